"""Builders: cores that compile candidates before a device meets them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernelmark.core import codec
from kernelmark.core.errors import CodecError
from kernelmark.core.reason import BRIEF, NO_REASON, Reason, format_reason, read_reason
from kernelmark.core.result import Case, KernelInfo, Status, config_key
from kernelmark.runners.dispatch import START_ATTEMPTS, compiles
from kernelmark.runners.lane import Failure, Item, Lane, Phase

# What compiling settles. Anything else may come from compiling many at once: the device's own
# worker tries again.
FINAL = (Status.COMPILE_ERROR, Status.UNSUPPORTED, Status.TIMEOUT)

Key = tuple[str, str, str]


@dataclass(slots=True, kw_only=True)
class Compiled:
    """What compiling gave; `done` is False while it is under way."""

    done: bool = False
    status: Status = Status.OK
    error: Reason = NO_REASON
    kernel: KernelInfo = field(default_factory=KernelInfo)
    seconds: float = 0.0


class Builders:
    """Compile-only workers and what they compiled. Without any, everything is ready at once."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = list(lanes)
        self.lost: list[str] = []  # why lanes died, until told
        self._busy: dict[Lane, Key] = {}
        self._found: dict[Key, Compiled] = {}

    @property
    def busy(self) -> bool:
        return bool(self._busy)

    @property
    def _alive(self) -> bool:
        return any(not lane.dead for lane in self.lanes)

    def found(self, case: Case) -> Compiled | None:
        """What became of a case; None before it is compiled."""
        one = self._found.get(_key(case))
        return one if one is not None and one.done else None

    def ready(self, case: Case) -> bool:
        """Whether there is nothing more to wait for."""
        known = self._found.get(_key(case))
        if known is not None:
            return known.done
        return not self.awaits(case)

    def awaits(self, case: Case) -> bool:
        """Whether a case is still to be given to a lane."""
        return self._alive and _key(case) not in self._found and compiles(case.backend)

    def start(self, cases: Iterable[Case]) -> None:
        """Give idle lanes the first of `cases` that nobody compiles yet."""
        waiting = (case for case in cases if self.awaits(case))
        for lane in self.lanes:
            if not lane.idle or lane in self._busy:
                continue
            case = next(waiting, None)
            if case is None:
                return
            self._found[_key(case)] = Compiled()
            self._busy[lane] = _key(case)
            for item in lane.give({"do": "compile", "case": codec.to_document(case)}):
                self.take(lane, item)

    def take(self, lane: Lane, item: Item) -> None:
        """What a lane said."""
        if isinstance(item, Phase) or lane not in self._busy:
            return
        key = self._busy.pop(lane)
        if isinstance(item, Failure) and not item.started:
            self._found.pop(key, None)
            if lane.start_failures >= START_ATTEMPTS:
                lane.dead = format_reason(item.error, BRIEF)
                self.lost.append(lane.dead)
            return
        found = self._found.setdefault(key, Compiled())
        found.done = True
        if isinstance(item, Failure):
            found.status, found.error = item.status, item.error
            return
        found.status = Status(item.message["status"])
        found.error = read_reason(item.message.get("error"))
        found.seconds = float(item.message.get("seconds", 0.0))
        try:
            found.kernel = codec.read(item.message.get("kernel"), KernelInfo, "kernel")
        except CodecError:
            found.kernel = KernelInfo()  # nothing is known that it could be rejected by

    def cost_s(self, case: Case) -> float:
        """A case's share of the cores' time; asked for again it is paid."""
        found = self._found.get(_key(case))
        if found is None:
            return 0.0
        seconds, found.seconds = found.seconds, 0.0
        return seconds / max(1, len(self.lanes))

    def forget(self, problem: str) -> None:
        """What was compiled for a problem that is done with."""
        for key in [key for key in self._found if key[0] == problem]:
            del self._found[key]

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()


def _key(case: Case) -> Key:
    return case.problem.key, case.backend, config_key(case.config)
