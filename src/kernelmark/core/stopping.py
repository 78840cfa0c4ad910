"""Signals that ask a command to stop: all of them as Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# Ctrl-C; a batch system or `kill`; a terminal that is closed; Ctrl-\.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
Handler = Callable[[int, FrameType | None], Any]


class _Asked:
    """Whether a signal asked this process to end."""

    stop = False


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, and remember it: a library may make another error of it."""
    _Asked.stop = True
    raise KeyboardInterrupt


def stop_asked() -> bool:
    """Whether `interrupt` was called since the command began."""
    return _Asked.stop


def begin_command() -> None:
    """Forget what an earlier command in this process was asked."""
    _Asked.stop = False


def raise_ignored() -> None:
    """Have a KeyboardInterrupt that Python could not raise come again. In a finaliser or a callback
    of a weak reference, as importing a module has one, nothing can be raised: Python writes
    `Exception ignored` and goes on, and the signal would be lost."""
    usual = sys.unraisablehook

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            usual(lost)
            return
        # Not at once, which would still be inside of what cannot raise.
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    sys.unraisablehook = hook


def catch_stops(handler: Handler = interrupt) -> dict[signal.Signals, Any]:
    """Have `handler`, which raises KeyboardInterrupt by default, take every signal that asks for
    the end; return what took them before. One that is ignored stays so: a shell's background job
    begins with SIGINT ignored, one under nohup with SIGHUP."""
    if threading.current_thread() is not threading.main_thread():
        return {}  # only the main thread may set handlers, and only it is interrupted
    before = {number: signal.getsignal(number) for number in STOPS}
    caught = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    for number in caught:
        signal.signal(number, handler)
    return caught


def restore_stops(before: dict[signal.Signals, Any]) -> None:
    """Undo `catch_stops`."""
    for number, handler in before.items():
        # None stands for a handler that was not set from Python, and cannot be set again.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def caught_stops(handler: Handler = interrupt) -> Iterator[None]:
    """`catch_stops` for a while."""
    before = catch_stops(handler)
    try:
        yield
    finally:
        restore_stops(before)


class StopGuard:
    """Turns the first signal into KeyboardInterrupt, but not in the middle of storing."""

    def __init__(self) -> None:
        self._busy = False
        self._wanted = False

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._busy and not self._wanted:
            self._wanted = True
            return
        interrupt(number, frame)

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """A stretch that a first signal does not tear apart."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._wanted:
            raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible() -> Iterator[StopGuard]:
    """Signals end what is done inside, but for what `finishing` of the guard protects."""
    guard = StopGuard()
    with caught_stops(guard.interrupt):
        yield guard
