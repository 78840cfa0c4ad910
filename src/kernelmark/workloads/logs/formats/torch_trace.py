"""torch-trace: traces of the PyTorch profiler, recorded with record_shapes=True.

Operators call each other: linear calls addmm, matmul calls bmm, attention may call either. Each is
counted once, by the operator that does the work: what is inside a product, a fused attention or a
convolution is not looked at, and what wraps one is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.workloads.logs.base import Given, LogReader
from kernelmark.workloads.logs.formats._aten import LEAVES, WRAPPERS, Inputs
from kernelmark.workloads.logs.trace_events import events
from kernelmark.workloads.workload import Call

_CATEGORIES = ("cpu_op", "Operator", "operator", None)
_RECORDED = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_NO_SHAPES = "has no shapes; record the profile with record_shapes=True"

# (begin, -end, line, number of the signature, whether it is counted wherever it is)
_Event = tuple[float, float, int, int, bool]


class TorchTrace(LogReader):
    name = "torch-trace"
    summary = "PyTorch profiler traces (JSON): products, attention, convolutions"

    def is_document(self, head: bytes) -> bool:
        start = head.lstrip()[:1]
        if start == b"{":
            return b'"traceEvents"' in head or b'"schemaVersion"' in head
        return start == b"[" and b'"ph"' in head[:4096]

    def document(self, chunks: Iterable[bytes], given: Given) -> Iterator[tuple[int, Call | str]]:
        signatures: dict[tuple[str, str], int] = {}
        threads: dict[tuple[str, str], list[_Event]] = {}
        found: list[tuple[int, int]] = []  # line, signature
        broken: list[tuple[int, str]] = []
        for line, event in events(chunks):
            if isinstance(event, str):
                broken.append((line, event))
            elif (read := _event(event, line, signatures)) is not None:
                thread = str(event.get("pid")), str(event.get("tid"))
                threads.setdefault(thread, []).append(read)
        for ran in threads.values():
            found += _working(ran)
        made = [_made(name, inputs) for name, inputs in signatures]
        called: list[tuple[int, Call | str]] = [(line, made[number]) for line, number in found]
        yield from sorted([*called, *broken], key=lambda one: one[0])


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
    # As text it is hashable, and a million calls of one shape share it.
    recorded = json.dumps([arguments.get(key) for key in _RECORDED])
    number = signatures.setdefault((name, recorded), len(signatures))
    return begin, -(begin + length), line, number, name in LEAVES


def _working(thread: list[_Event]) -> Iterator[tuple[int, int]]:
    """Lines and signatures of the operators that do the work, of one thread."""
    thread.sort()
    covered_until = float("-inf")
    wrappers: list[_Event] = []
    for event in thread:
        begin, end = event[0], -event[1]
        if begin < covered_until:
            continue
        if wrappers and -wrappers[-1][1] <= begin:
            yield wrappers[-1][2:4]
            wrappers.clear()  # the others wrap it
        if event[4]:
            wrappers.clear()
            covered_until = end
            yield event[2:4]
        else:
            wrappers.append(event)
    yield from (wrapper[2:4] for wrapper in wrappers[-1:])


def _made(name: str, recorded: str) -> Call | str:
    dims, types, strides, values = json.loads(recorded)
    if not isinstance(dims, list) or not isinstance(types, list):
        return f"{name.removeprefix('aten::')} {_NO_SHAPES}"
    given = Inputs(
        dims=dims,
        types=types,
        strides=strides if isinstance(strides, list) else (),
        values=values if isinstance(values, list) else (),
    )
    try:
        return (LEAVES.get(name) or WRAPPERS[name])(given)
    except UsageError as error:
        return f"{name.removeprefix('aten::')} {error.message}"


reader = TorchTrace()
