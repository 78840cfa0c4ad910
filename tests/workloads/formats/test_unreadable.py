"""Files that hold no calls: one sentence that says what they are instead."""

import gzip
import os
import random

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.workloads import logs
from kernelmark_dev.raising import raises

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


EMPTY = gzip.compress(b"", mtime=0)  # the same bytes in every process that collects tests
GARBAGE = random.Random(5).randbytes(5000)
PACKED = gzip.compress(CALL.encode() * 3, mtime=0)
OURS = '{"kernelmark":"results","version":1,"run":{},"results":[]}'
AITER = "M,N,K,q_dtype_w\n5,48,32,torch.int8\n"


@pytest.mark.parametrize(
    ("text", "form", "value", "hint"),
    [
        *(
            (text, None, "empty", "log again")
            for text in (b"", b"\n \r\n\n", EMPTY, b"\xef\xbb\xbf\n")
        ),
        *((text, None, "rocprof", "kmark import") for text in (TRACE, OLD_TRACE, STATS)),
        (gzip.compress(TRACE.encode(), mtime=0), None, "rocprof", "kmark import"),
        (TRACE, "shapes", "rocprof", "kmark import"),
        (OURS, None, "kernelmark", "kmark import"),
        (GARBAGE, None, "not text", "text"),
        (b"PK\x03\x04" + GARBAGE, None, "zip", "unpack"),
        (b"\x28\xb5\x2f\xfd" + GARBAGE, None, "zstd", "unpack"),
        ("M,N,K\n1,2,3\n".encode("utf-16"), None, "UTF-16", "UTF-8"),
        (PACKED[:14], None, "cut off", "log"),
        (b"\x1f\x8bxxxxxx", None, "damaged", "log"),
        (AITER, "tunableop", "aiter-csv", "--as aiter-csv"),
        ("noise\n", "tunableop", "", "tried: tunableop"),
        ("a,b\n1,2\n", "rocblas", "", "tried: rocblas"),
        ("a,b\n1,2\n", "shapes", "a, b", "M,N,K"),
        *((text, None, "", "tried") for text in ('{"a": 1}', '{"a": ', "[Api] a call\n")),
    ],
)
def test_a_file_without_calls(read, tmp_path, text, form, value, hint):
    with raises(UsageError, tmp_path / "a.csv", value) as refused:
        read(text, "a.csv", form=form)
    assert hint in (refused.value.hint or "")


def test_what_may_not_be_read(tmp_path):
    (tmp_path / "a").touch(mode=0o000)
    mine = [] if os.geteuid() == 0 else [tmp_path / "a"]
    for place in ("/proc/self/mem", *mine):  # the beginning of the first one nobody can read
        with raises(UsageError, str(place)) as refused:
            logs.read([str(place)])
        assert refused.value.hint


def test_a_last_line_without_an_end_is_noted(read):
    assert read(CALL * 2).inputs[0].notes == ()
    cut = read(CALL + CALL[:45])
    assert cut.workload.total == 2
    (note,) = cut.inputs[0].notes
    assert "line 2" in note
    (note,) = read("5,48,32", dtype="bf16").inputs[0].notes  # perhaps of 5,48,320
    assert "line 1" in note
    assert read(CALL + "noise").inputs[0].notes == ()
