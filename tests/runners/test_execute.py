from __future__ import annotations

import errno

import pytest

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, OutOfMemory, Unsupported, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Status
from kernelmark.core.timing import Timing
from kernelmark.devices.fake import kind
from kernelmark.ops import parse
from kernelmark.runners.execute import execute, explain, failure, join
from kernelmark_dev.raising import tells

PROBLEM = parse("gemm m=8 n=8 k=8 a=f32 b=f32 c=f32")
QUICK = Timing(max_s=0.02, warmup_s=0.0, max_allocations=3)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unsupported("no"), Status.UNSUPPORTED),
        (CompileError("no"), Status.COMPILE_ERROR),
        (OutOfMemory("no"), Status.OUT_OF_MEMORY),
        (MemoryError(), Status.OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "no memory"), Status.OUT_OF_MEMORY),
        (RuntimeError("the queue is out of memory slots"), Status.RUNTIME_ERROR),
        (UsageError("odd"), Status.RUNTIME_ERROR),
        (SystemExit(3), Status.RUNTIME_ERROR),
        (ZeroDivisionError(), Status.RUNTIME_ERROR),
    ],
)
def test_every_exception_has_a_status_and_a_line(error, status):
    found, text = explain(error)
    assert found is status
    assert text
    assert "\n" not in text


def test_the_last_frame_is_named():
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        status, text = explain(error)
    assert status is Status.RUNTIME_ERROR
    assert text.startswith("ValueError: two lines (test_execute.py:")


def test_an_unknown_op_is_a_result_too():
    strange = Case(problem=Problem(op="strange", dims={"m": 1}, dtypes={}), backend="fake")
    result = execute(strange, kind.open(0), 0, lambda phase: None)
    assert result.status is not Status.OK
    assert "strange" in result.error
    assert result.flops == 0


def test_processes_are_joined():
    case = Case(problem=PROBLEM, backend="fake", timing=QUICK)
    parts = [execute(case, kind.open(0), index, lambda phase: None) for index in range(3)]
    whole = join(parts)
    assert whole.status is Status.OK
    assert whole.measurement is not None
    assert {block.process for block in whole.measurement.blocks} == {0, 1, 2}
    assert whole.cost["total"] == pytest.approx(sum(p.cost["total"] for p in parts))
    assert join(parts[:1]) is parts[0]


def test_a_process_that_failed_decides_and_the_others_are_kept():
    timing = Timing(max_s=0.02, warmup_s=0.0, max_allocations=3, processes=3)
    case = Case(problem=PROBLEM, backend="fake", timing=timing)
    good = execute(case, kind.open(0), 0, lambda phase: None)
    info = DeviceInfo(name="fake", kind="fake", model="", arch="fake")
    bad = failure(case, info, Status.CRASHED, "killed", started=1.0)
    whole = join([good, bad])
    assert whole.status is Status.CRASHED
    assert "2" in whole.error
    assert whole.measurement == good.measurement


def test_lack_of_memory_keeps_its_code_and_hint():
    reason = Reason("no memory", "out-of-memory", needed=2**30, free=2**20)
    status, found = explain(OutOfMemory(reason, hint="choose a smaller problem"))
    assert status is Status.OUT_OF_MEMORY
    assert (found.code, found.fields) == (reason.code, reason.fields)
    assert "choose a smaller problem" in found


def test_a_refusal_by_a_compiler_keeps_its_code_its_hint_and_the_log():
    refused = Reason("no such type\nlog\nof two lines")
    status, found = explain(CompileError(refused, hint="flags: -O3"))
    assert status is Status.COMPILE_ERROR
    head, *log = found.splitlines()
    assert tells(head, refused="no such type", hint="flags: -O3")
    assert log == ["log", "of two lines"]
