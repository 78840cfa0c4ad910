"""torch-trace: traces of the PyTorch profiler, as calls (with record_shapes=True) and as times.

Operators call each other: linear calls addmm, matmul calls bmm, attention may call either. Each
computation is counted once, by the operator that does the work: operators within a GEMM, a fused
attention or a convolution are ignored, and so are operators that wrap one. Kernels of other ops,
such as those of replayed graphs or of a framework, are reported with their share of the time: a
kernel and the runtime call that launched it share a correlation number, and the op is the one that
ran on that thread at that time.

As times, each launch is a sample of one process, by name and launch shape, with or without an op.
A trace of minutes does not fit into memory: events are read one at a time.
"""

from __future__ import annotations

import codecs
import json
import re
import shlex
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.registry import FormatFacts
from kernelmark.core.units import time_text
from kernelmark.workloads.calls import LogOptions, LogReader, Remark
from kernelmark.workloads.formats._aten import LEAVES, WRAPPERS, AtenInputs
from kernelmark.workloads.importers import (
    SECONDS,
    Importer,
    Launch,
    Launches,
    ResultFile,
    ResultRow,
)
from kernelmark.workloads.source import BadLine, opened
from kernelmark.workloads.workload import Call

# Fields that PyTorch writes before the events, which may begin megabytes later.
_MARKS = (
    *(b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"record_shapes"'),
    *(b'"distributedInfo"', b'"displayTimeUnit"', b'"baseTimeNanoseconds"'),
)
_CATEGORIES = ("cpu_op", "Operator", "operator", None)
_RECORDED = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
# Names that may occur once in an event or in its arguments.
_READ = (
    *("ph", "name", "cat", "ts", "dur", "pid", "tid", "args", *_RECORDED, "Input dims"),
    *("correlation", "graph id", "graph node id", "grid", "block", "device"),
)
_NO_SHAPES = "has no shapes; record the profile with record_shapes=True"

# (begin, -end, line, number of the signature, whether it is always counted)
_Event = tuple[float, float, int, int, bool]
_START = re.compile(r'"traceEvents"\s*:\s*\[')
_NEXT = re.compile(r'\{\s*"(?:ph|name|cat)"')
_BETWEEN = re.compile(r"[\s,]*")
_LONGEST = 1 << 20  # characters of one event
_KEPT = 1000  # longest text from the key of the events to its bracket, in characters
BROKEN = "an event cannot be read"
CUT_OFF = "the trace is cut off here"
SECOND = "a second trace begins here, and is not read"
_KERNEL = "kernel"
_RUNTIMES = frozenset(("cuda_runtime", "cuda_driver", "runtime", "hip_runtime"))
_US = SECONDS["us"]
_GRAPH_LAUNCH = "GraphLaunch"  # cudaGraphLaunch, cuGraphLaunch, hipGraphLaunch
_NONE = -1
_SHOWN = 4  # kernels named in a note
_LONGEST_NAME = 60
_SHAPES = ("grid", "block")

Thread = tuple[str, str]
# Begin and end of the ops on each thread, in microseconds of the trace, without overlaps.
Intervals = Mapping[Thread, Sequence[tuple[float, float]]]


class TraceCalls(LogReader):
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
            return any(mark in head for mark in _MARKS)
        return start == b"[" and b'"ph"' in head[:4096]

    def document(
        self, chunks: Iterable[bytes], options: LogOptions
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
        calls = [_call(name, inputs) for name, inputs in signatures]
        called: list[tuple[int, Call | str]] = []
        covered: dict[Thread, list[tuple[float, float]]] = {}
        for thread, ran in threads.items():
            for begin, end, line, number, _ in _working(ran):
                called.append((line, calls[number]))
                if isinstance(calls[number], Call):
                    covered.setdefault(thread, []).append((begin, -end))
        yield from sorted([*called, *broken], key=lambda item: item[0])
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


def _call(name: str, recorded: str) -> Call | str:
    dims, types, strides, values = json.loads(recorded)
    if not isinstance(dims, list) or not isinstance(types, list):
        return f"{name.removeprefix('aten::')} {_NO_SHAPES}"
    inputs = AtenInputs(
        dims=dims,
        types=types,
        strides=strides if isinstance(strides, list) else (),
        values=values if isinstance(values, list) else (),
    )
    try:
        return (LEAVES.get(name) or WRAPPERS[name])(inputs)
    except UsageError as error:
        return f"{name.removeprefix('aten::')} {error.message}"


class _Ambiguous(dict[str, Any]):
    """An object with two values of a name that is read."""

    twice = ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    event = dict(pairs)
    if len(event) == len(pairs):
        return event
    first = dict(reversed(pairs))
    twice = next((name for name in _READ if event.get(name) != first.get(name)), "")
    if twice:
        event = _Ambiguous(event)
        event.twice = twice
    return event


def events(chunks: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield (line number, event), or the reason why the event cannot be read."""
    text = _Text(chunks)
    text.begin()
    decoder = json.JSONDecoder(strict=False, object_pairs_hook=_object)
    while True:
        text.skip()
        if text.rest.startswith("]", text.at):
            if text.find_start():
                yield text.line, SECOND
            return
        try:
            event, end = decoder.raw_decode(text.rest, text.at)
        except (ValueError, RecursionError):
            if len(text.rest) - text.at <= _LONGEST and text.more():
                continue
            match = _NEXT.search(text.rest, text.at + 1)
            yield text.line, BROKEN if match else CUT_OFF
            if match is None:
                return
            text.to(match.start())
            continue
        if isinstance(event, dict):
            parts = (part for part in (event, event.get("args")) if isinstance(part, _Ambiguous))
            name = next((part.twice for part in parts), "")
            yield text.line, f"an event has two values of {name}" if name else event
        text.to(end)


class _Text:
    """A buffer of the text, with a position in it and its line number."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self.rest = ""
        self.at = 0
        self.line = 1

    def more(self) -> bool:
        chunk = next(self._chunks, None)
        self.rest += self._decode.decode(chunk or b"", final=chunk is None)
        return chunk is not None

    def to(self, position: int) -> None:
        self.line += self.rest.count("\n", self.at, position)
        self.at = position
        if position > _LONGEST:
            self.rest, self.at = self.rest[position:], 0

    def skip(self) -> None:
        """Skip the characters between events."""
        if match := _BETWEEN.match(self.rest, self.at):
            self.to(match.end())

    def begin(self) -> None:
        """Go to the first event, or to the end if there is none."""
        while True:
            if self.rest.lstrip()[:1] == "[":
                self.to(self.rest.index("[") + 1)
                return
            if self.rest.strip() or not self.more():
                self.find_start()
                return

    def find_start(self) -> bool:
        """Go past the next opening bracket of events; return False at the end of the text."""
        while True:
            if match := _START.search(self.rest, self.at):
                self.to(match.end())
                return True
            # Text that cannot contain the start of the key is searched once.
            if len(self.rest) - self.at > _KEPT:
                self.to(len(self.rest) - _KEPT)
                self.rest, self.at = self.rest[self.at :], 0
            if not self.more():
                self.to(len(self.rest))
                return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Seconds of all kernels, and of kernels in replayed graphs; `missed` are the kernels that no
    op of the workload launched, longest first."""

    total_s: float
    replayed_s: float
    missed: tuple[tuple[str, float], ...]

    def note(self) -> str:
        """Return a note on the missed kernels; "" if there are none."""
        if not self.missed or not self.total_s:
            return ""
        missed, replayed = sum(s for _, s in self.missed) / self.total_s, self.replayed_s
        shown = ", ".join(f"{_short(k)} {s / self.total_s:.1%}" for k, s in self.missed[:_SHOWN])
        more = f" and {len(self.missed) - _SHOWN} more" if self.missed[_SHOWN:] else ""
        graphs = f", {replayed / self.total_s:.1%} in replayed graphs" if replayed else ""
        return (
            f"{missed:.1%} of {time_text(self.total_s)} of kernel time is of no op that was read"
            f"{graphs}: {shown}{more}"
        )


class Kernels:
    """The kernels and launches of a trace, from events in any order; a few bytes for each.

    A replayed graph has one launch for all its kernels, and no op. Since CUDA 12, every kernel has
    the id of its graph (0: none); on ROCm it does not.
    """

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._threads: dict[Thread, int] = {}
        # For each kernel: name, microseconds, correlation number, and whether a graph ran it.
        self._name, self._us = array("l"), array("d")
        self._correlation, self._replayed = array("q"), array("b")
        # For each launch: correlation number, thread and time.
        self._launch, self._thread, self._at = array("q"), array("l"), array("d")
        self._graphs: set[int] = set()  # correlation numbers of launched graphs

    def take(self, event: Mapping[str, Any]) -> None:
        category = str(event.get("cat")).lower()
        if category != _KERNEL and category not in _RUNTIMES:
            return
        arguments, name = event.get("args"), event.get("name")
        if not isinstance(arguments, dict) or not isinstance(name, str):
            return
        correlation = _whole(arguments.get("correlation"))
        if category == _KERNEL:
            us = _duration_us(event)
            if us > 0:
                self._name.append(self._names.setdefault(name, len(self._names)))
                self._us.append(us)
                self._correlation.append(correlation)
                graph = arguments.get("graph id") or arguments.get("graph node id")
                self._replayed.append(bool(graph))
        elif correlation != _NONE and (moment := _number(event.get("ts"))) is not None:
            thread = str(event.get("pid")), str(event.get("tid"))
            self._launch.append(correlation)
            self._thread.append(self._threads.setdefault(thread, len(self._threads)))
            self._at.append(moment)
            if _GRAPH_LAUNCH in name:
                self._graphs.add(correlation)

    def coverage(self, covered: Intervals) -> Coverage:
        """Return the coverage of the kernels by launches within these intervals."""
        launched = self._launched(covered)
        names = list(self._names)
        missed: dict[str, float] = {}
        total = replayed = 0.0
        for number, us, correlation, by_graph in zip(
            self._name, self._us, self._correlation, self._replayed, strict=True
        ):
            total += us
            if correlation in launched:
                continue
            replayed += us if by_graph or correlation in self._graphs else 0.0
            missed[names[number]] = missed.get(names[number], 0.0) + us
        longest = sorted(missed.items(), key=lambda item: (-item[1], item[0]))
        return Coverage(
            total_s=total * _US,
            replayed_s=replayed * _US,
            missed=tuple((name, us * _US) for name, us in longest),
        )

    def _launched(self, covered: Intervals) -> set[int]:
        """Return the correlation numbers of the launches within the intervals."""
        by_number: list[Sequence[tuple[float, float]]] = [
            sorted(covered.get(thread, ())) for thread in self._threads
        ]
        begins = [[begin for begin, _ in intervals] for intervals in by_number]
        kernels = set()
        for correlation, thread, moment in zip(self._launch, self._thread, self._at, strict=True):
            at = bisect_right(begins[thread], moment) - 1
            if at >= 0 and moment <= by_number[thread][at][1]:
                kernels.add(correlation)
        return kernels


def _duration_us(event: Mapping[str, Any]) -> float:
    """Return the duration of an event; 0 if it has none."""
    return _number(event.get("dur")) or 0.0


def _number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _whole(value: object) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    return int(str(value)) if good else _NONE


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


class TraceTimes(Importer):
    name = "torch-trace"
    summary = "GPU kernels of a PyTorch profiler trace, by name and launch shape"
    facts = FormatFacts(
        versions="Kineto JSON, with and without schemaVersion 1",
        exactness="every kernel launch by name and launch shape",
        checked="sums of 21 traces of HolisticTraceAnalysis' tests against an independent reader",
    )
    method = "PyTorch profiler"
    is_log = True

    def recognizes(self, name: str, head: bytes) -> bool:
        # Other Chrome traces are lists, or have none of PyTorch's fields.
        is_object = head.lstrip()[:1] == b"{"
        return name.endswith(".json") and is_object and _calls.is_document(head)

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        launches = Launches("torch-trace")
        with opened(str(file.path)) as source:
            for line, event in events(source.chunks()):
                if isinstance(event, str) and source.complaint:
                    break  # the compressed file is damaged or truncated here
                if isinstance(event, str):
                    raise BadLine(f"line {line}: {event}", hint="was the file cut or edited?")
                if str(event.get("cat")).lower() == _KERNEL:
                    launches.add(_launch(event), _duration_us(event) * _US)
            if source.complaint:
                raise UsageError(source.complaint, hint="copy it again")
        if not launches:
            command = f"kmark import {shlex.quote(str(file.path))} --workload DIR"
            raise NothingToDo("the file has no kernels", hint=f"its ops are a workload: {command}")
        yield from launches.rows()


def _launch(event: Mapping[str, Any]) -> Launch:
    args = event.get("args")
    arguments = args if isinstance(args, dict) else {}
    sizes: list[tuple[str, int]] = []
    for name in _SHAPES:
        shape = arguments.get(name)
        if isinstance(shape, list):
            axes = zip("xyz", shape, strict=False)
            sizes += [(f"{name}_{axis}", size) for axis, size in axes if type(size) is int]
    device = arguments.get("device")
    return Launch(
        kernel=str(event.get("name")),
        sizes=tuple(sizes),
        device=f"cuda:{device}" if type(device) is int else "",
    )


_calls = TraceCalls()
readers = (_calls,)
importers = (TraceTimes(),)
