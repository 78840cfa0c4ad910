"""Run ids, and the types that a store returns in addition to those of `core`."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from random import Random, SystemRandom

from kernelmark.core.environment import Environment
from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Mode, Status
from kernelmark.core.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPoint:
    """One result of a series without its samples, or its headline metric `metric`. `started` is the
    start of the run, in seconds since the epoch.

    `median_s` and its bounds are None if nothing was measured. `fingerprint` is that of the run's
    environment: a change of it may explain a step.
    """

    series: str
    run_id: str
    started: float
    status: Status
    device: str
    fingerprint: str
    median_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    flops: float = 0.0
    bytes: float = 0.0
    modes: tuple[Mode, ...] = ()
    doubt: Reason | None = None  # why the median is unreliable
    metric: str = ""
    value: float | None = None
    unit: str = ""
    better: str = "lower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An environment with the number of its runs and the start of the newest one."""

    environment: Environment
    fingerprint: str
    runs: int
    newest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The outcome of adding a result set: the number of new results and of known ones."""

    run_id: str
    added: int
    known: int
    changed: bool

    def __str__(self) -> str:
        if not self.changed:
            return f"run {self.run_id} is already in the store; nothing was added"
        known = f", {self.known} were already there" if self.known else ""
        return f"run {self.run_id}: {counted(self.added, 'result')} added{known}"


# Crockford's base 32: without i, l and o, which look like digits, and without u.
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
_LEGAL = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}\Z")


def new_run_id(now: float | None = None, random: Random | None = None) -> str:
    """Return an id like 20261115-031502-k3f9x2: UTC to the second, then 30 random bits."""
    moment = time.gmtime(time.time() if now is None else now)
    source = SystemRandom() if random is None else random
    tail = "".join(source.choice(_LETTERS) for _ in range(6))
    return f"{time.strftime('%Y%m%d-%H%M%S', moment)}-{tail}"


def check_name(what: str, name: str) -> str:
    """Return `name`; raise UsageError if it is not valid as the name of a `what`."""
    if not _LEGAL.match(name) or name.lower().startswith("latest"):
        raise UsageError(
            f"{name[:80]!r} cannot be the name of a {what}",
            hint="use up to 64 letters, digits, '.', '_' or '-', not beginning with 'latest'",
        )
    return name
