"""CompileAhead: compile cases on host cores before a device needs them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from itertools import chain

from kernelmark.core.result import Case, Status, config_key
from kernelmark.runners.jobs import CompileCase, Compiled, compiles
from kernelmark.runners.pool import Finished, Pool, Returned

# Compile results that are final. Any other failure may come from compiling many kernels at once, so
# the device's worker compiles the case again.
FINAL = (Status.COMPILE_ERROR, Status.UNSUPPORTED, Status.TIMEOUT)

Key = tuple[str, str, str]


def kernel_key(case: Case) -> Key:
    """Return the identity of a case's kernel, shared by cases that differ only in their timing."""
    return case.problem.key, case.backend, config_key(case.config)


class CompileAhead:
    """The compile slots of a pool and their results. If the pool has no compile slot, every case is
    ready."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        # On the CPU a compiler would disturb the timing.
        self._exclusive = pool.devices[0].info.kind == "cpu"
        self._compiles = functools.cache(compiles)
        self._results: dict[Key, Compiled] = {}
        self._under_way: set[Key] = set()
        self._returned: list[Case] = []

    def result(self, key: Key) -> Compiled | None:
        """Return the result of compiling a kernel, or None before it is done."""
        return self._results.get(key)

    def ready(self, key: Key) -> bool:
        """Return whether a kernel is compiled, or need not be compiled ahead."""
        return key not in self._under_way and not self._must_compile(key)

    def _must_compile(self, key: Key) -> bool:
        known = key in self._results or key in self._under_way
        alive = any(not slot.lost for slot in self._pool.compilers)
        return alive and not known and self._compiles(key[1])

    def start(self, cases: Iterable[Case]) -> bool:
        """Submit the next of `cases` that must be compiled to idle slots. Return whether timing on
        devices is allowed now."""
        if self._exclusive and any(slot.job for slot in self._pool.devices):
            return False
        waiting = (
            case for case in chain(self._returned, cases) if self._must_compile(kernel_key(case))
        )
        for slot in self._pool.compilers:
            if slot.idle and (case := next(waiting, None)) is not None:
                self._under_way.add(kernel_key(case))
                self._pool.submit(slot, CompileCase(case=case))
        return not (self._exclusive and self._under_way)

    def on_outcome(self, outcome: Finished | Returned) -> None:
        """Record the outcome of a compile job. A returned job is submitted first at the next
        start."""
        assert isinstance(outcome.job, CompileCase)
        case = outcome.job.case
        self._under_way.discard(kernel_key(case))
        if isinstance(outcome, Finished):
            self._results[kernel_key(case)] = outcome.value
        else:
            self._returned.append(case)

    def collect_cost_s(self, key: Key) -> float:
        """Return the core seconds of compiling a kernel, and 0 from the second call on: they are
        attributed to one of the cases that share the kernel."""
        result = self._results.get(key)
        if result is None:
            return 0.0
        self._results[key] = dataclasses.replace(result, seconds=0.0)
        return result.seconds

    def forget(self, problem: str) -> None:
        """Drop the results of a finished problem."""
        self._returned = [case for case in self._returned if case.problem.key != problem]
        for key in [key for key in self._results if key[0] == problem]:
            del self._results[key]
