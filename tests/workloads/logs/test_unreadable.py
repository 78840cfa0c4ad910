"""Files that hold no calls: one sentence that says what they are instead."""

from __future__ import annotations

import gzip
import os
import random

import pytest

from kernelmark.core.errors import UsageError
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


def said(read, text, name="a.log", **given):
    with pytest.raises(UsageError) as refused:
        read(text, name, **given)
    assert refused.value.hint
    return refused.value.message.rpartition("/")[2], refused.value.hint


@pytest.mark.parametrize("text", [TRACE, OLD_TRACE, STATS])
def test_timings_are_for_history(read, text):
    message, hint = said(read, text, "x.csv")
    assert message == "x.csv: holds timings (rocprof), not problems"
    assert hint.startswith("without --workload it is taken for history: kmark import ")
    assert hint.endswith("x.csv")
    message, hint = said(read, gzip.compress(text.encode()), "x.csv.gz")
    assert message == "x.csv.gz: holds timings (rocprof), not problems"
    assert hint.startswith("unpack it, then without --workload")
    assert said(read, text, "x.csv", form="shapes")[0].endswith("not problems")


def test_results_of_ours_and_of_others_are_for_history(read):
    ours = '{"kernelmark":"results","version":1,"run":{},"results":[]}'
    assert said(read, ours, "r.json")[0] == "r.json: holds timings (kernelmark), not problems"
    other = '{"context":{"num_cpus":8},"benchmarks":[]}'
    assert said(read, other, "r.json")[0] == "r.json: holds timings (googlebench), not problems"


EMPTY = gzip.compress(b"", mtime=0)  # the same bytes in every process that collects tests


@pytest.mark.parametrize("text", [b"", b"\n \r\n\n", EMPTY, b"\xef\xbb\xbf\n"])
def test_nothing(read, text):
    assert said(read, text) == ("a.log: is empty", "leave it out, or log again")


def test_bytes_that_are_no_text(read):
    garbage = random.Random(5).randbytes(5000)
    assert said(read, garbage)[0] == "a.log: is not text"
    assert said(read, b"PK\x03\x04" + garbage)[0] == "a.log: is a zip archive, which is not read"
    message, hint = said(read, b"\x28\xb5\x2f\xfd" + garbage, "a.log.zst")
    assert message == "a.log.zst: is compressed by zstd, which is not read"
    assert hint == "unpack it first; what gzip compressed is read as it is"
    message, hint = said(read, "M,N,K\n1,2,3\n".encode("utf-16"))
    assert message == "a.log: is UTF-16 text, which is not read"
    assert "UTF-8" in hint


def test_damaged_archives(read):
    packed = gzip.compress(CALL.encode() * 3)
    message, hint = said(read, packed[:14])
    assert message == "a.log: the compressed file ends before the first call"
    assert "log" in hint
    assert said(read, b"\x1f\x8bxxxxxx")[0] == (
        "a.log: the compressed file is damaged before the first call"
    )


def test_a_format_that_was_named_and_is_another(read):
    table = "M,N,K,q_dtype_w\n5,48,32,torch.int8\n"
    message, hint = said(read, table, form="tunableop")
    assert message == "a.log: holds no call in tunableop, but looks like aiter-csv"
    assert hint == "leave --as out, or: --as aiter-csv"
    assert said(read, "noise\n", form="tunableop") == (
        "a.log: holds no call in any format tried",
        "tried: tunableop; without --as every format is",
    )
    assert "make no problem" not in said(read, "a,b\n1,2\n", form="rocblas")[0]
    assert "make no problem" in said(read, "a,b\n1,2\n", form="shapes")[0]


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
    assert cut.inputs[0].notes == (
        "line 2 is the last and has no end: if the file was cut, its call may be another one",
    )
    assert read("5,48,32", dtype="bf16").inputs[0].notes == (), "people write lists so"
    assert read(CALL + "noise").inputs[0].notes == ()
