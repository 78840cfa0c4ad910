"""Files that hold no calls: one sentence that says what they are instead."""

from __future__ import annotations

import gzip
import os
import random

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.workloads import logs
from kernelmark_dev.raising import raises_code

TRACE = (
    '"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n'
    '"KERNEL_DISPATCH","Agent 7","void add<float>(float*, int)",1000,3000\n'
)
OLD_TRACE = (
    '"Index","KernelName","gpu-id","BeginNs","EndNs","DurationNs"\n0,"k.kd",0,1000,3000,2000\n'
)
STATS = (
    '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"__copy",70,172290,2461.3,8.38\n'
)
CALL = "GemmTunableOp_Half_TN,tn_48_5_32_ld_32_32_48,Default,0.5\n"


@pytest.fixture
def hint(read, tmp_path):
    """Expect an error with this code and these fields; return its hint."""

    def call(text, code, name="a.log", *, form=None, **fields):
        place = str(tmp_path / name)
        with raises_code(UsageError, code, **fields) as refused:
            read(text, name, form=form)
        assert refused.value.message.fields["file"] == place
        assert refused.value.hint
        return refused.value.hint.replace(place, name)

    return call


@pytest.mark.parametrize("text", [TRACE, OLD_TRACE, STATS])
def test_timings_are_for_history(hint, text):
    assert hint(text, "log-of-times", "x.csv", format="rocprof") == (
        "without --workload it is taken for history: kmark import x.csv"
    )
    packed = gzip.compress(text.encode())
    assert hint(packed, "log-of-times", "x.csv.gz", format="rocprof").startswith("unpack it, then")
    hint(text, "log-of-times", "x.csv", form="shapes")


def test_results_of_ours_and_of_others_are_for_history(hint):
    ours = '{"kernelmark":"results","version":1,"run":{},"results":[]}'
    hint(ours, "log-of-times", "r.json", format="kernelmark")
    other = '{"context":{"num_cpus":8},"benchmarks":[]}'
    hint(other, "log-of-times", "r.json", format="googlebench")


EMPTY = gzip.compress(b"", mtime=0)  # the same bytes in every process that collects tests


@pytest.mark.parametrize("text", [b"", b"\n \r\n\n", EMPTY, b"\xef\xbb\xbf\n"])
def test_nothing(hint, text):
    assert hint(text, "log-empty") == "leave it out, or log again"


def test_bytes_that_are_no_text(hint):
    garbage = random.Random(5).randbytes(5000)
    hint(garbage, "document-not-text")
    hint(b"PK\x03\x04" + garbage, "file-encoding", encoding="zip")
    packed = b"\x28\xb5\x2f\xfd" + garbage
    assert "unpack" in hint(packed, "file-encoding", "a.log.zst", encoding="zstd")
    wide = "M,N,K\n1,2,3\n".encode("utf-16")
    assert "UTF-8" in hint(wide, "file-encoding", encoding="UTF-16")


@pytest.mark.parametrize("text", ['{"a": ', "{", '[\n {"m": 8,\n  "n"'])
def test_json_that_is_cut(hint, text):
    """As without --workload, also for a packed file."""
    for data in (text, gzip.compress(text.encode())):
        assert hint(data, "document-not-json", "a.json") == Reason("document-cut")


@pytest.mark.parametrize(
    "text", ['{"a": 1}', '{"a": 1}\n{"a": 2}\n{"a', "[Api] a call\n", f'["{"b" * (1 << 21)}"]']
)
def test_a_log_without_calls_that_is_json_or_begins_like_it(hint, text):
    hint(text, "log-without-calls")


def test_damaged_archives(hint):
    packed = gzip.compress(CALL.encode() * 3)
    assert "log" in hint(packed[:14], "file-cut")
    hint(b"\x1f\x8bxxxxxx", "file-damaged")


def test_a_format_that_was_named_and_is_another(hint):
    table = "M,N,K,q_dtype_w\n5,48,32,torch.int8\n"
    other = {"format": "tunableop", "found": "aiter-csv"}
    assert hint(table, "log-of-other-format", form="tunableop", **other) == (
        "leave --as out, or: --as aiter-csv"
    )
    assert hint("noise\n", "log-without-calls", form="tunableop") == (
        "tried: tunableop; without --as every format is"
    )
    hint("a,b\n1,2\n", "log-without-calls", form="rocblas")
    hint("a,b\n1,2\n", "log-columns", form="shapes")
    many = [f"c{number}" for number in range(20)]
    row = f"{','.join(many)}\n{'1,' * 19}1\n"
    hint(row, "log-columns", form="shapes", columns=many[:12], more=8)


def test_what_is_not_there_or_no_file(tmp_path):
    for place, code in ((tmp_path / "none", "file-missing"), (tmp_path, "file-is-folder")):
        with raises_code(UsageError, code, file=str(place)) as refused:
            logs.read([str(place)])
        assert refused.value.hint
    assert f"{tmp_path}/*" in (refused.value.hint or "")


def test_what_may_not_be_read(tmp_path):
    (tmp_path / "a").touch(mode=0o000)
    mine = [] if os.geteuid() == 0 else [tmp_path / "a"]
    for place in ("/proc/self/mem", *mine):  # the beginning of the first one nobody can read
        with raises_code(UsageError, "file-unreadable", file=str(place)) as refused:
            logs.read([str(place)])
        assert refused.value.hint


def test_a_last_line_without_an_end_is_noted(read):
    assert read(CALL * 2).inputs[0].notes == ()
    cut = read(CALL + CALL[:45])
    assert cut.workload.total == 2
    assert cut.inputs[0].notes == (Reason("may-be-cut", line=2),)
    assert read("5,48,32", dtype="bf16").inputs[0].notes == (), "people write lists so"
    assert read(CALL + "noise").inputs[0].notes == ()
