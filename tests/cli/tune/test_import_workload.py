"""`kmark import LOG… --workload DIR`: what it writes, what it says, and what it leaves alone."""

import csv
import io
import json
import sys

import pytest

from kernelmark.workloads.formats.shapes import _BY_COLUMNS
from kernelmark.workloads.logs import NO_CALL
from kernelmark.workloads.workload import read
from kernelmark_dev.logs import write_log

LINE = (
    "hipblaslt-bench --api_method c -m 48 -n 5 -k 32 --transA T --transB N --a_type bf16_r "
    "--b_type bf16_r --c_type bf16_r --d_type bf16_r --compute_type f32_r --activation_type none"
)

NO_LETTERS = "has no transA, transB, a_type, compute_type"


@pytest.fixture
def log(tmp_path):
    def make(*lines, name="a.log"):
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)

    return make


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "mine")


def test_a_log_becomes_a_tuning_folder(kmark, tmp_path, folder):
    write_log(tmp_path / "0.log", calls=900, shapes=30, largest=256)
    write_log(tmp_path / "1.log", calls=900, shapes=30, largest=256, form="mask64")
    ended = kmark("import", str(tmp_path / "0.log"), str(tmp_path / "1.log"), "--workload", folder)
    assert ended.code == 0, ended.err
    assert ended.out == ""
    first, *others = ended.err.splitlines()
    assert first == "1,800 calls of 30 problems in 2 files (hipblaslt)"
    assert "0 lines skipped" in others
    assert any("scaleA" in line and "left out of the problems" in line for line in others)
    assert any("--arch gfx942" in line for line in others)
    assert f"next: kmark tune summarise {folder}" in others[-1]
    workload = read(tmp_path / "mine" / "workload.csv")
    assert workload.total == 1800
    assert workload.name == "mine"
    assert [call.count for call in workload.calls] == sorted(
        (call.count for call in workload.calls), reverse=True
    )


def test_copies_are_counted_and_told(kmark, log, folder):
    first, second = log(LINE), log(LINE, name="b.log")
    ended = kmark("import", first, second, "--workload", folder)
    assert "2 calls of 1 problem in 2 files" in ended.err
    assert f"{first} and {second} " in ended.err


def test_lines_that_are_skipped_are_told_and_written(kmark, log, folder, tmp_path):
    place = log("starting", LINE, LINE[:48], "noise", LINE)
    skipped = tmp_path / "skipped.csv"
    ended = kmark("import", place, "--workload", folder, "--skipped", str(skipped))
    assert ended.code == 0
    lines = ended.err.splitlines()
    at = lines.index("3 lines skipped:")
    assert lines[at + 1] == f"  1 × {NO_LETTERS} ({place}: line 3)"
    assert lines[at + 2] == f"  2 × {NO_CALL} ({place}: line 1, 4)"
    rows = list(csv.DictReader(skipped.open()))
    assert [(row["line"], row["reason"]) for row in rows] == [
        ("1", NO_CALL),
        ("3", NO_LETTERS),
        ("4", NO_CALL),
    ]
    ended = kmark("import", place, "--workload", folder, "--skipped", "-")
    assert ended.out == skipped.read_text()


def test_another_workload_is_left_alone(kmark, refused, log, folder, tmp_path):
    first = log(LINE)
    second = log(LINE.replace("-m 48", "-m 64"), name="b.log")
    assert kmark("import", first, "--workload", folder).code == 0
    assert kmark("import", first, "--workload", folder).code == 0, "the same again"
    file = str(tmp_path / "mine" / "workload.csv")
    words = ("import", second, "--workload", folder)
    ended = refused(*words)
    assert f"{file} exists" in ended.err
    assert first in ended.err
    assert "--force" in ended.err
    assert kmark("import", second, "--workload", folder, "--force").code == 0
    (call,) = read(tmp_path / "mine" / "workload.csv").calls
    assert call.problem.dims["n"] == 64
    known = json.loads((tmp_path / "mine" / "inputs.json").read_text())
    assert [one["path"] for one in known["inputs"]] == [second]


def test_edits_are_not_lost(kmark, refused, log, folder, tmp_path):
    place = log(LINE)
    kmark("import", place, "--workload", folder)
    file = tmp_path / "mine" / "workload.csv"
    file.write_text(file.read_text().replace(",1,", ",9,", 1))
    words = ("import", place, "--workload", folder)
    assert str(file) in refused(*words).err
    assert read(file).calls[0].count == 9
    (tmp_path / "mine" / "inputs.json").write_text("[]")
    assert str(file) in refused(*words).err
    assert read(file).calls[0].count == 9


def test_stdin_and_lists(kmark, log, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"5,48,32\n6,48,32\n")))
    ended = kmark("import", "-", "--workload", folder, "--dtype", "f16")
    assert "2 calls of 2 problems in 1 file (shapes)" in ended.err
    assert read(tmp_path / "mine" / "workload.csv").calls[0].problem.dtypes["a"] == "f16"
    place = log("op,M,N,K,dtype,transA,transB", "gemm,48,5,32,fp16,T,N", name="x.csv")
    ended = kmark("import", place, "--workload", folder, "--force")
    assert "1 call of 1 problem in 1 file (shapes)" in ended.err
    for note in (_BY_COLUMNS, "columns that were not read: op"):
        assert f"{place}: {note}" in ended.err


def test_a_log_without_workload_is_told_what_it_is(refused, log, tmp_path):
    refused("import", log("noise", LINE), format="hipblaslt")
    words = ("import", log("5,48,32", name="x.csv"))
    ended = refused(*words, format="shapes")
    assert "--workload DIR" in ended.err.splitlines()[1]
    trace = tmp_path / "t.json"
    trace.write_text('{"schemaVersion": 1, "traceEvents": []}')
    ended = refused("import", str(trace), code=4)
    assert "--workload DIR" in ended.err.splitlines()[1]


def test_formats_are_named_in_one_spelling_and_taken_in_several(kmark, refused, log, folder):
    place = log("M,N,K,q_dtype_w", "5,48,32,torch.int8")
    for word in ("aiter-csv", "aiter_csv", "aiter"):
        ended = kmark("import", place, "--workload", folder, "--as", word)
        assert "1 call of 1 problem in 1 file (aiter-csv)" in ended.err
    words = ("import", place, "--workload", folder, "--as")
    assert "torch-trace or triton-autotune or tunableop" in refused(*words, "t").err
    ended = refused(*words, "torch_tracer")
    assert " torch-trace? " in ended.err
    assert "aiter_csv" not in ended.err
    ended = refused("import", place, "--as", "aiter_csv")
    assert "--workload DIR" in ended.err


def test_timings_are_sent_to_history(kmark, refused, log, folder, tmp_path):
    columns = '"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"'
    place = log(columns, '"KERNEL_DISPATCH","k",1000,3000', name="x_kernel_trace.csv")
    ended = refused("import", place, "--workload", folder)
    assert f"{place} has times of rocprof" in ended.err
    assert f"kmark import {place}" in ended.err
    assert not (tmp_path / "mine").exists()
    assert "1 result added" in kmark("import", place).err
    assert "rocprof" in refused("import", log(LINE), place, "--workload", folder).err


@pytest.mark.parametrize("words", [(), ("--workload", "DIR")])
def test_what_is_no_file_or_empty(refused, log, folder, tmp_path, words):
    asked = [folder if word == "DIR" else word for word in words]
    (tmp_path / "logs").mkdir()
    ended = refused("import", str(tmp_path / "logs"), *asked)
    assert "logs/*" in ended.err
    ended = refused("import", str(tmp_path / "none.log"), *asked)
    assert "--as" not in ended.err
    for name in ("x.log", "x.csv"):
        place = log(name=name)
        ended = refused("import", place, *asked)
        assert place in ended.err
        assert "empty" in ended.err
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (("--workload", "DIR", "--label", "x"), {"options": ("--label",)}),
        (("--workload", "DIR", "--as", "nvbench"), {"format": "nvbench"}),
        (("--workload", "DIR", "--dtype", "f33"), {"name": "f33"}),
        (("--workload", "DIR", "--skipped", "/no/x"), {"folder": "/no"}),
        (("--force",), {"options": ("--force",), "other": "--workload"}),
        (
            ("--dtype", "f16", "--key", "x"),
            {"options": ("--dtype", "--key"), "other": "--workload"},
        ),
    ],
)
def test_what_does_not_go_together(refused, log, folder, words, fields):
    asked = [folder if word == "DIR" else word for word in words]
    refused("import", log(LINE), *asked, **fields)


def test_nothing_is_made_of_a_file_without_calls(refused, log, folder, tmp_path):
    place = log("nothing")
    words = ("import", place, "--workload", folder)
    ended = refused(*words)
    assert place in ended.err
    assert "hipblaslt" in ended.err.splitlines()[1]
    assert not (tmp_path / "mine").exists()
    (tmp_path / "mine").write_text("")
    refused("import", log(LINE), "--workload", folder, folder=folder)
