"""How a command ends: its exit codes, Ctrl-C, and how long it took."""

from __future__ import annotations

import time

from kernelmark.core.exit_codes import INTERRUPTED, NOTHING, REGRESSION, SOME_FAILED

__all__ = ["INTERRUPTED", "NOTHING", "REGRESSION", "SOME_FAILED", "Interrupted"]


def begin_clock(*, with_process: bool) -> None:
    """Count the seconds of a command from here, or from the start of its process, which has taken
    at least the CPU time of loading Python."""
    _Clock.begun = time.monotonic() - (time.process_time() if with_process else 0.0)


def command_age_s() -> float:
    """Seconds since the command began."""
    return time.monotonic() - _Clock.begun


def learn_start(seconds: float, command: str) -> None:
    """Remember what a command took before and after its cases, for later estimates."""
    from kernelmark.runners.forecast import Means

    means = Means.of_machine()
    means.learn(f"start/{command}", seconds)
    means.save()


class _Clock:
    begun = time.monotonic()


class Interrupted(Exception):
    """Ctrl-C in a command, with what it left behind in one sentence."""
