"""CompileAhead: cases that host cores compile before a device needs them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from itertools import chain

from kernelmark.core.result import Case, Status, config_key
from kernelmark.runners.jobs import CompileCase, Compiled, compiles
from kernelmark.runners.pool import Finished, Pool, Returned

# Compiling alone decides these. Any other failure may come from compiling many at once: the
# device's own worker tries the case again.
FINAL = (Status.COMPILE_ERROR, Status.UNSUPPORTED, Status.TIMEOUT)

Key = tuple[str, str, str]


def kernel_key(case: Case) -> Key:
    """Return what cases share that differ in their timing alone: they run the same kernel."""
    return case.problem.key, case.backend, config_key(case.config)


class CompileAhead:
    """The compile slots of a pool, and what they compiled. Without a slot every case is ready."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        # On the CPU a compiler would disturb what is being timed.
        self._exclusive = pool.devices[0].info.kind == "cpu"
        self._compiles = functools.cache(compiles)
        self._found: dict[Key, Compiled] = {}
        self._under_way: set[Key] = set()
        self._returned: list[Case] = []

    def found(self, key: Key) -> Compiled | None:
        """Return what compiling gave, None before it is done."""
        return self._found.get(key)

    def ready(self, key: Key) -> bool:
        """Return whether a device need not wait for a compiler any more."""
        return key in self._found or not (key in self._under_way or self._awaits(key))

    def _awaits(self, key: Key) -> bool:
        known = key in self._found or key in self._under_way
        alive = any(not slot.lost for slot in self._pool.compilers)
        return alive and not known and self._compiles(key[1])

    def start(self, cases: Iterable[Case]) -> bool:
        """Give idle slots the first of `cases` that are still to be compiled. Return whether
        devices may be timed now."""
        if self._exclusive and any(slot.job for slot in self._pool.devices):
            return False
        waiting = (case for case in chain(self._returned, cases) if self._awaits(kernel_key(case)))
        for slot in self._pool.compilers:
            if slot.idle and (case := next(waiting, None)) is not None:
                self._under_way.add(kernel_key(case))
                self._pool.submit(slot, CompileCase(case=case))
        return not (self._exclusive and self._under_way)

    def take(self, outcome: Finished | Returned) -> None:
        """Take in what became of a compile job. One that was returned goes first at the next
        start."""
        assert isinstance(outcome.job, CompileCase)
        case = outcome.job.case
        self._under_way.discard(kernel_key(case))
        if isinstance(outcome, Finished):
            self._found[kernel_key(case)] = outcome.value
        else:
            self._returned.append(case)

    def collect_cost_s(self, key: Key) -> float:
        """Return the seconds that a core compiled, once: cases with the same kernel share them."""
        found = self._found.get(key)
        if found is None:
            return 0.0
        self._found[key] = dataclasses.replace(found, seconds=0.0)
        return found.seconds

    def forget(self, problem: str) -> None:
        """Drop what was compiled for a problem that is done with."""
        self._returned = [case for case in self._returned if case.problem.key != problem]
        for key in [key for key in self._found if key[0] == problem]:
            del self._found[key]
