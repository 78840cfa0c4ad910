"""One line of why a result failed."""

from __future__ import annotations

import pytest

from kernelmark.core.problem import parse_key
from kernelmark.core.reasons import reason_line, whole_reason
from kernelmark.core.result import Case, Check, Result, Status

DUMP = """\
killed by signal 6 (Aborted) (in phase warmup)
{said}Fatal Python error: Aborted

Thread 0x0000fffe (most recent call first):
  File "/x/other.py", line 3 in wait

Current thread 0x0000ffff (most recent call first):
  File "/opt/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/kernelmark/own.py", line 10 in launch
  File "/cache/import/ab/kernelmark/backends/_file.py", line 44 in launch
  File "/cache/import/ab/kernelmark/measure/loop.py", line 167 in replay
  File "<frozen runpy>", line 88 in _run_code

Extension modules: numpy._core._multiarray_umath (total: 1)"""
OWN = ", at own.py line 10 in launch"
TRACE = """\
the worker ended by itself with exit code 1
Traceback (most recent call last):
  File "/x/own.py", line 3, in <module>
    import nothing
ModuleNotFoundError: No module named 'nothing'"""


def failed(status, error="", check=None):
    case = Case(problem=parse_key("gemm m=1 n=1 k=1"), backend="a")
    return Result(case=case, device="cpu", status=status, error=error, check=check)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (DUMP.format(said=""), f"killed by signal 6 (Aborted) (in phase warmup){OWN}"),
        (
            DUMP.format(said="own.c:3: x > 0 does not hold\n"),
            f"killed by signal 6 (Aborted) (in phase warmup): own.c:3: x > 0 does not hold{OWN}",
        ),
        (
            TRACE,
            "the worker ended by itself with exit code 1: "
            "ModuleNotFoundError: No module named 'nothing'",
        ),
        ("killed (signal 9), perhaps out of memory", "killed (signal 9), perhaps out of memory"),
        ("", ""),
    ],
)
def test_a_worker_that_ended(error, line):
    result = failed(Status.CRASHED, error)
    assert reason_line(result) == line
    assert whole_reason(result) == error


def test_a_compiler_is_quoted_by_its_first_line():
    assert reason_line(failed(Status.COMPILE_ERROR, "bad tile\nat x")) == "bad tile …"
    assert reason_line(failed(Status.UNSUPPORTED, "not f8")) == "not f8"
    assert len(reason_line(failed(Status.RUNTIME_ERROR, "x" * 999))) == 200


def wrong(index, bad, value):
    return (
        f"set {index}: {bad} of 1024 checked positions are wrong; worst is d[{index}] = {value}, "
        "expected -0.08 ± 6.9e-06"
    )


def test_a_wrong_answer_is_told_once():
    one = wrong(0, 1024, 0.9)
    assert reason_line(failed(Status.WRONG, one)) == one
    many = "; ".join([one, wrong(374, 9, "nan"), wrong(0, 1, -1e-5)])
    assert reason_line(failed(Status.WRONG, many)) == f"{one} (the first of 3 like this)"
    more = f"{many}; and 2 more"
    assert reason_line(failed(Status.WRONG, more)) == f"{one} (the first of 5 like this)"
    prefixed = f"process 1 of 3: {many}"
    assert reason_line(failed(Status.WRONG, prefixed)).endswith("(the first of 3 like this)")
    other = "set 3: memory beside d was overwritten"
    told = reason_line(failed(Status.WRONG, f"{many}; {other}"))
    assert told == f"{one} (the first of 3 like this); {other}"


def test_a_check_speaks_where_no_error_does():
    check = Check(
        positions=1, worst=2.0, max_abs=1.0, unwritten=0, guards_intact=True, detail="off by one"
    )
    assert whole_reason(failed(Status.WRONG, check=check)) == "off by one"
