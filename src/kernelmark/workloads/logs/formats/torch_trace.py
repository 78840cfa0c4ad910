"""torch-trace: traces of the PyTorch profiler, recorded with record_shapes=True.

Operators call each other: linear calls addmm, matmul calls bmm, attention may call either. Each
computation is counted once, by the operator that does the work: operators within a GEMM, a fused
attention or a convolution are ignored, and so are operators that wrap one. Kernels of other ops,
such as those of replayed graphs or of a framework, are reported with their share of the time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import Reason
from kernelmark.workloads.logs.base import Given, LogReader, Remark
from kernelmark.workloads.logs.formats._aten import LEAVES, WRAPPERS, Inputs
from kernelmark.workloads.logs.formats._kernels import Kernels, Thread
from kernelmark.workloads.logs.trace_events import events
from kernelmark.workloads.workload import Call

# Fields that PyTorch writes before the events, which may begin megabytes later.
MARKS = (
    *(b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"record_shapes"'),
    *(b'"distributedInfo"', b'"displayTimeUnit"', b'"baseTimeNanoseconds"'),
)
_CATEGORIES = ("cpu_op", "Operator", "operator", None)
_RECORDED = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_NO_SHAPES = Reason("no-shapes")

# (begin, -end, line, number of the signature, whether it is always counted)
_Event = tuple[float, float, int, int, bool]


class TorchTrace(LogReader):
    name = "torch-trace"
    summary = "PyTorch profiler traces (JSON): GEMMs, attention, convolutions"
    facts = FormatFacts(
        versions="Kineto JSON, with and without schemaVersion 1",
        exactness="exact for supported ops; the fraction of kernel time of other ops is reported",
        checked="traces of HolisticTraceAnalysis' tests: the share against an independent count "
        "by correlation",
    )

    def is_document(self, head: bytes) -> bool:
        start = head.lstrip()[:1]
        if start == b"{":
            return any(mark in head for mark in MARKS)
        return start == b"[" and b'"ph"' in head[:4096]

    def document(
        self, chunks: Iterable[bytes], given: Given
    ) -> Iterator[tuple[int, Call | str | Remark]]:
        signatures: dict[tuple[str, str], int] = {}
        threads: dict[Thread, list[_Event]] = {}
        kernels = Kernels()
        broken: list[tuple[int, str]] = []
        for line, event in events(chunks):
            if isinstance(event, str):
                broken.append((line, event))
            elif (read := _event(event, line, signatures)) is not None:
                thread = str(event.get("pid")), str(event.get("tid"))
                threads.setdefault(thread, []).append(read)
            else:
                kernels.take(event)
        made = [_made(name, inputs) for name, inputs in signatures]
        called: list[tuple[int, Call | str]] = []
        covered: dict[Thread, list[tuple[float, float]]] = {}
        for thread, ran in threads.items():
            for begin, end, line, number, _ in _working(ran):
                called.append((line, made[number]))
                if isinstance(made[number], Call):
                    covered.setdefault(thread, []).append((begin, -end))
        yield from sorted([*called, *broken], key=lambda one: one[0])
        if note := kernels.coverage(covered).note():
            last = max((line for line, _ in (*called, *broken)), default=0)
            yield last, Remark(note)


def _event(
    event: Mapping[str, Any], line: int, signatures: dict[tuple[str, str], int]
) -> _Event | None:
    name = event.get("name")
    if not isinstance(name, str) or event.get("ph") != "X" or event.get("cat") not in _CATEGORIES:
        return None
    if name not in LEAVES and name not in WRAPPERS:
        return None
    try:
        begin, length = float(event.get("ts", 0)), float(event.get("dur", 0))
    except (TypeError, ValueError, OverflowError):
        return None
    arguments = event.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    if "Input Dims" not in arguments and "Input dims" in arguments:
        arguments = arguments | {"Input Dims": arguments["Input dims"]}
    # As text it is hashable, and a million calls with the same shapes share it.
    recorded = json.dumps([arguments.get(key) for key in _RECORDED])
    number = signatures.setdefault((name, recorded), len(signatures))
    return begin, -(begin + length), line, number, name in LEAVES


def _working(thread: list[_Event]) -> Iterator[_Event]:
    """Yield the operators of one thread that do the work."""
    thread.sort()
    covered_until = float("-inf")
    wrappers: list[_Event] = []
    for event in thread:
        begin, end = event[0], -event[1]
        if begin < covered_until:
            continue
        if wrappers and -wrappers[-1][1] <= begin:
            yield wrappers[-1]
            wrappers.clear()  # the others are wrappers of the yielded one
        if event[4]:
            wrappers.clear()
            covered_until = end
            yield event
        else:
            wrappers.append(event)
    yield from wrappers[-1:]


def _made(name: str, recorded: str) -> Call | str:
    dims, types, strides, values = json.loads(recorded)
    if not isinstance(dims, list) or not isinstance(types, list):
        return Reason("of-operator", operator=name.removeprefix("aten::"), cause=_NO_SHAPES)
    inputs = Inputs(
        dims=dims,
        types=types,
        strides=strides if isinstance(strides, list) else (),
        values=values if isinstance(values, list) else (),
    )
    try:
        return (LEAVES.get(name) or WRAPPERS[name])(inputs)
    except UsageError as error:
        return Reason("of-operator", operator=name.removeprefix("aten::"), cause=error.message)


reader = TorchTrace()
