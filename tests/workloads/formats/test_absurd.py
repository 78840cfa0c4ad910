"""Damaged files: what cannot be is a sentence or a line that is left out, never a result."""

import gzip
import zlib
from pathlib import Path

import pytest

from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.tune import simulate
from kernelmark.workloads import importers
from kernelmark.workloads import logs as reading
from kernelmark.workloads import source as opening
from kernelmark.workloads.importers import Overrides
from kernelmark_dev.raising import raises

CSV = "x_val;aten-latency\n(256, 512, 64);{}\n"
GOOGLE = '{{"context":{{"library_build_type":"x"}},"benchmarks":[{{"name":"BM/{size}/k:8",' + (
    '"run_name":"BM/{size}/k:8","run_type":"iteration","real_time":{time},"time_unit":"ns"}}]}}'
)


@pytest.mark.parametrize("time", ["1e43", "1e12"])
def test_a_time_that_cannot_be_is_refused(tmp_path, time):
    path = tmp_path / "gemm.csv"
    path.write_text(CSV.format(time))
    with pytest.raises(UsageError):
        importers.read(path, Overrides())


@pytest.mark.parametrize(("size", "time"), [(2**64, 1), (2**48, 1), (8, 1e40), (8, "1e300")])
def test_a_size_that_cannot_be_is_refused(tmp_path, size, time):
    path = tmp_path / "out.json"
    path.write_text(GOOGLE.format(size=size, time=time))
    with pytest.raises(KernelmarkError):
        importers.read(path, Overrides())
    path.write_text(GOOGLE.format(size=8, time=1))
    assert len(importers.read(path, Overrides()).results) == 1


@pytest.mark.parametrize(
    "error", [ValueError("x"), IndexError(), ZeroDivisionError(), RecursionError(), KeyError("a")]
)
def test_what_a_reader_did_not_foresee_is_a_sentence(tmp_path, monkeypatch, error):
    path = tmp_path / "out.json"
    path.write_text(GOOGLE.format(size=8, time=1))

    def fail(self, file):
        raise error

    monkeypatch.setattr(type(importers.registry.find("googlebench")), "rows", fail)
    with pytest.raises(UsageError) as refused:
        importers.read(path, Overrides())
    assert refused.value.__cause__ is error


def test_a_log_line_of_a_size_that_cannot_be_is_left_out(tmp_path):
    log = tmp_path / "log"
    line = "hipblaslt-bench --api_method c --transA N --transB N -m 8 -n 8 -k 8 "
    line += "--lda 8 --ldb 8 --ldc 8 --ldd 8 --a_type f16_r --b_type f16_r "
    line += "--c_type f16_r --d_type f16_r --compute_type f32_r"
    log.write_text(f"{line}\n{line.replace('-m 8', '-m 281474976710656')}\n")
    found = reading.read([str(log)])
    assert [call.problem.dims["m"] for call in found.workload.calls] == [8]
    assert [skip.line for skip in found.skipped] == [2]


def test_a_compressed_bomb_stops_at_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "MOST_UNPACKED", 1 << 22)
    path = tmp_path / "bomb.gz"
    pack = zlib.compressobj(9, wbits=31)
    path.write_bytes(b"".join(pack.compress(bytes(1 << 20)) for _ in range(64)) + pack.flush())
    with opening.opened(str(path)) as source:
        taken = sum(map(len, source.chunks()))
    assert source.complaint == opening.EXPANDS
    assert taken <= 1 << 25
    assert path.stat().st_size * opening.MOST_RATIO < 64 << 20


def bomb(path, head):
    """A file of 64 MiB of blanks after `head`, in 64 KiB."""
    pack = zlib.compressobj(9, wbits=31)
    blanks = (pack.compress(b" " * (1 << 20)) for _ in range(64))
    path.write_bytes(pack.compress(head) + b"".join(blanks) + pack.flush())
    return str(path)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: importers.read(Path(path), Overrides()),
        lambda path: reading.read([path]),
        simulate.read,
    ],
    ids=["results", "log", "space"],
)
def test_every_reader_says_that_a_file_expands_too_much(tmp_path, monkeypatch, read):
    monkeypatch.setattr(opening, "MOST_UNPACKED", 1 << 22)
    place = bomb(tmp_path / "x.json.gz", b'{"schemaVersion": 1, "traceEvents": [')
    with pytest.raises(KernelmarkError) as refused:
        read(place)
    assert opening.EXPANDS in refused.value.message


def test_a_log_of_one_line_over_and_over_is_no_bomb(tmp_path):
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"the same line\n" * 1_000_000))
    with opening.opened(str(path)) as source:
        assert sum(map(len, source.chunks())) == 14_000_000
    assert source.complaint == ""


@pytest.mark.parametrize("text", ["9.5e-6", "1e-6"])
def test_a_time_of_picoseconds_is_refused(tmp_path, text):
    path = tmp_path / "bf16_tuned_gemm.csv"
    path.write_text(f"gfx,cu_num,M,N,K,libtype,us\ngfx942,304,16,64,64,asm,{text}\n")
    with pytest.raises(KernelmarkError):
        importers.read(path, Overrides())


def test_a_key_that_a_document_of_another_tool_has_twice_is_refused(tmp_path):
    path = tmp_path / "a.json"
    text = '{"context": {}, "benchmarks": [{"name": "f", "real_time": 1, "cpu_time": 1}]}'
    path.write_text(text)
    assert len(importers.read(path, Overrides(), "googlebench").results) == 1
    path.write_text(text.replace('"real_time": 1', '"real_time": 1, "real_time": 1000'))
    with raises(KernelmarkError, "real_time"):
        importers.read(path, Overrides(), "googlebench")


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("M,N,K\n1,2,3\n".encode("utf-16"), "UTF-16"),
        (gzip.compress(gzip.compress(b"M,N,K\n1,2,3\n")), "gzip twice"),
    ],
    ids=["UTF-16", "gzip twice"],
)
def test_what_is_no_text_is_named_for_times_as_for_calls(tmp_path, data, value):
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    for read in (
        lambda: importers.read(path, Overrides()),
        lambda: importers.read(path, Overrides(), "ncu"),
        lambda: reading.read([str(path)]),
    ):
        with raises(UsageError, value):
            read()


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        (
            "_mm.autotune.json",
            '{"key": [512], "configs_timings": [[{"kwargs": {"BLOCK_M": 16}}, [1%s]]]}'
            % ("0" * 400),
            "triton-autotune",
        ),
        ("matmul.csv", "\rM,N,Triton (ms)\n512,64,1.5\n", "triton-perf-report"),
    ],
    ids=["whole number", "no columns"],
)
def test_what_no_reader_expects_is_refused_by_the_reader(tmp_path, name, text, form):
    path = tmp_path / name
    path.write_text(text, newline="")
    with pytest.raises(UsageError) as caught:
        importers.read(path, Overrides(), form)
    assert isinstance(caught.value.__cause__, KernelmarkError | None)


@pytest.mark.parametrize("number", ["1_000", "\u0661\u0662", "\uff11"])
def test_what_only_python_takes_for_a_number_is_refused(number):
    with pytest.raises(UsageError):
        opening.parse_number(number, "us")
