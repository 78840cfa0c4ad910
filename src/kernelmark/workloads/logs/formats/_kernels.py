"""Coverage: the fraction of a trace's GPU time that was launched by ops in the workload.

A kernel and the runtime call that launched it share a correlation number; the op is the one that
ran on that thread at that time. A replayed graph has one launch for all its kernels, and no op.
Since CUDA 12, every kernel has the id of its graph (0: none); on ROCm it does not.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelmark.core.reason import NO_REASON, Reason

Thread = tuple[str, str]
# Begin and end of the ops on each thread, in microseconds of the trace, without overlaps.
Intervals = Mapping[Thread, Sequence[tuple[float, float]]]

_KERNEL = "kernel"
_RUNTIMES = frozenset(("cuda_runtime", "cuda_driver", "runtime", "hip_runtime"))
_US = 1e-6
_GRAPH_LAUNCH = "GraphLaunch"  # cudaGraphLaunch, cuGraphLaunch, hipGraphLaunch
_NONE = -1
_SHOWN = 4  # kernels named in a note
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Seconds of all kernels, and of kernels in replayed graphs; `missed` are the kernels that no
    op of the workload launched, longest first."""

    total_s: float
    replayed_s: float
    missed: tuple[tuple[str, float], ...]

    def note(self) -> Reason:
        """Return a note on the missed kernels; an empty reason if there are none."""
        missed_s = sum(seconds for _, seconds in self.missed)
        if not missed_s:
            return NO_REASON
        return Reason(
            "kernels-of-no-op",
            total_s=self.total_s,
            share=missed_s / self.total_s,
            replayed_share=self.replayed_s / self.total_s,
            kernels=[
                Reason("kernel-share", kernel=_short(name), share=seconds / self.total_s)
                for name, seconds in self.missed[:_SHOWN]
            ],
            more=len(self.missed[_SHOWN:]),
        )


class Kernels:
    """The kernels and launches of a trace, from events in any order; a few bytes for each."""

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
            us = duration_us(event)
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

    def coverage(self, read: Intervals) -> Coverage:
        """Return the coverage of the kernels by launches within these intervals."""
        launched = self._launched(read)
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
        longest = sorted(missed.items(), key=lambda one: (-one[1], one[0]))
        return Coverage(
            total_s=total * _US,
            replayed_s=replayed * _US,
            missed=tuple((name, us * _US) for name, us in longest),
        )

    def _launched(self, read: Intervals) -> set[int]:
        """Return the correlation numbers of the launches within the intervals."""
        by_number: list[Sequence[tuple[float, float]]] = [
            sorted(read.get(thread, ())) for thread in self._threads
        ]
        begins = [[begin for begin, _ in one] for one in by_number]
        found = set()
        for correlation, thread, moment in zip(self._launch, self._thread, self._at, strict=True):
            at = bisect_right(begins[thread], moment) - 1
            if at >= 0 and moment <= by_number[thread][at][1]:
                found.add(correlation)
        return found


def duration_us(event: Mapping[str, Any]) -> float:
    """Return the duration of an event; 0 if it has none."""
    return _number(event.get("dur")) or 0.0


def _number(value: object) -> float | None:
    try:
        found = float(str(value))
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None


def _whole(value: object) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    return int(str(value)) if good else _NONE


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
