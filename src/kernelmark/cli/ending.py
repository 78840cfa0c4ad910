"""Exit codes, Ctrl-C and the elapsed time of a command."""

from __future__ import annotations

import time

from kernelmark.core.verdict import INTERRUPTED, NOTHING, REGRESSION, SOME_FAILED

__all__ = ["INTERRUPTED", "NOTHING", "REGRESSION", "SOME_FAILED", "Interrupted"]


def begin_clock(*, with_process: bool) -> None:
    """Start the command's clock now, or at the start of its process: loading Python took at least
    the CPU time so far."""
    _Clock.begun = time.monotonic() - (time.process_time() if with_process else 0.0)


def command_age_s() -> float:
    """Return the seconds since the command began."""
    return time.monotonic() - _Clock.begun


def learn_start(seconds: float, command: str) -> None:
    """Record the time a command takes outside its cases, for later estimates."""
    from kernelmark.runners.forecast import Means

    means = Means.of_machine()
    means.learn(f"start/{command}", seconds)
    means.save()


class _Clock:
    begun = time.monotonic()


class Interrupted(Exception):
    """Ctrl-C in a command, with a sentence about what was kept."""
