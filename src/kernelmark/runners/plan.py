"""The order of cases and the time they are expected to take."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence

from kernelmark import ops
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import Case, Result

# Operations that today's CPUs and GPUs do, to within an order of magnitude, in the time of moving
# a byte. Only the order of cases depends on it, never a number that is shown.
_OPERATIONS_A_BYTE = 10


def work(case: Case) -> float | None:
    """The size of a case in operations or in bytes moved, whichever binds; None if unknown."""
    try:
        op = ops.registry.get(case.problem.op)
        flops, nbytes = op.flops(case.problem), op.bytes(case.problem)
    except (KernelmarkError, KeyError):
        return None
    return float(max(flops, _OPERATIONS_A_BYTE * nbytes))


def order(cases: Sequence[Case], devices: int) -> list[Case]:
    """Longest first where several devices share the cases, so that they end together; as given
    on one device, where order gains nothing. Cases of equal thread count stay together: another
    count needs another worker."""
    groups: dict[int, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.timing.threads, []).append(case)
    if devices > 1:
        for group in groups.values():
            sizes = {id(case): work(case) for case in group}
            if all(size is not None for size in sizes.values()):
                group.sort(key=lambda c: -(sizes[id(c)] or 0.0) * c.timing.processes)
    return [case for group in groups.values() for case in group]


# A problem tells of those up to so many times its size: the time of a small one is mostly that of
# its launch, and scaled up to a large one it would be hours.
_ALIKE = 10
# A backend that refused so many cases and measured none will refuse the others too.
_REFUSES = 10


class Forecast:
    """Expected seconds of a case, from its timing and from what this run has shown so far."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[float]] = {}
        self._ratio: dict[str, float] = {}
        self._ran: set[str] = set()  # backends that have measured something
        self._rate: dict[tuple[str, str], float] = {}  # by backend and op
        self._largest: dict[tuple[str, str], float] = {}
        self._work: dict[Case, float | None] = {}

    def learn(self, result: Result, seconds: float) -> None:
        """Take in how long a finished case really took."""
        name = result.case.backend
        recent = self._recent.get(name)
        if recent is None:
            # The first of a backend also starts a worker and loads a library, as no other does.
            self._recent[name] = deque(maxlen=50)
        else:
            recent.append(seconds / budget_s(result.case))
            # The mean, as some cases of a backend may be refused at once and others take long.
            self._ratio[name] = statistics.fmean(recent)
        if result.measurement is None:
            return
        self._ran.add(name)
        if size := self._size(result.case):
            # The fastest rate seen: large problems run closer to it than small ones.
            rate = size / result.measurement.median_s
            kind = name, result.case.problem.op
            self._rate[kind] = max(rate, self._rate.get(kind, 0.0))
            self._largest[kind] = max(size, self._largest.get(kind, 0.0))

    def seconds(self, case: Case) -> float:
        """The share of their budget that cases used so far, and at least the launches that a
        large problem cannot do without. Before anything is known this is the budget."""
        ratio = self._ratio.get(case.backend)
        few = len(self._recent.get(case.backend, ())) < _REFUSES
        if ratio is None or (few and case.backend not in self._ran):
            # Backends that only refused so far say nothing about one that may not.
            others = [self._ratio[name] for name in self._ran & self._ratio.keys()]
            ratio = statistics.fmean(others) if others else 1.0
        expected = budget_s(case) * ratio
        kind = case.backend, case.problem.op
        size = self._size(case)
        if size and kind in self._rate and size <= _ALIKE * self._largest[kind]:
            timing = case.timing
            launches = timing.processes * (timing.allocations * timing.min_samples + 1)
            expected = max(expected, launches * size / self._rate[kind])
        return expected

    def total_s(self, cases: Iterable[Case]) -> float:
        return sum(self.seconds(case) for case in cases)

    def _size(self, case: Case) -> float | None:
        if case not in self._work:
            self._work[case] = work(case)
        return self._work[case]


def budget_s(case: Case) -> float:
    """Seconds that a case's timing allows for warm-up and timed launches."""
    timing = case.timing
    return timing.processes * (timing.warmup_s + timing.max_s)


def estimate_s(cases: Iterable[Case], devices: int = 1) -> float:
    """Seconds that a run of `cases` takes at most, without compiling and with small problems."""
    return Forecast().total_s(cases) / max(1, devices)
