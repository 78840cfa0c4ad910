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


_IMPORTING = "<frozen importlib._bootstrap>"
_AGAIN_S = 0.01


class _Command:
    """What is known of the command that this process runs."""

    asked = 0  # the signal that asked it to end
    begun = False  # whether there may be something to tidy up


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, and remember it: a library may make another error of it."""
    _Command.asked = number
    raise KeyboardInterrupt


def stop_asked() -> bool:
    """Return whether `interrupt` was called since the command began."""
    return _Command.asked != 0


def begin_command() -> None:
    """Forget what is known of an earlier command in this process."""
    _Command.asked, _Command.begun = 0, False


def raise_ignored() -> None:
    """Have a KeyboardInterrupt that Python could not raise come again. In a finaliser or a callback
    of a weak reference nothing can be raised: Python writes `Exception ignored` and goes on, and
    the signal would be lost."""
    usual = sys.unraisablehook

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            _send_again(_Command.asked or signal.SIGINT)
        else:
            usual(lost)

    sys.unraisablehook = hook


def _send_again(number: int) -> None:
    """Send this process a signal a little later, when it may be where an error can be raised."""
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def catch_stops(
    handler: Handler = interrupt, *, importing: Handler | None = None
) -> dict[signal.Signals, Any]:
    """Have `handler`, which raises KeyboardInterrupt by default, take every signal that asks for
    the end; return what took them before. One that is ignored stays so: a shell's background job
    begins with SIGINT ignored, one under nohup with SIGHUP.

    Nothing is raised inside of an import: compiled modules lose errors or make an ImportError of
    them, for which the importing module may have a fallback, and a lock of importlib may stay
    taken. There `importing` takes the signal of a command that has not begun its work; else, and
    by default, the signal comes again until the import is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}  # only the main thread may set handlers, and only it is interrupted
    depth = _import_depth(sys._getframe())  # our caller may be a module that is being imported

    def careful(number: int, frame: FrameType | None) -> None:
        if _import_depth(frame) <= depth:
            handler(number, frame)
        elif importing is None or _Command.begun:
            _send_again(number)
        else:
            importing(number, frame)

    before = {number: signal.getsignal(number) for number in STOPS}
    caught = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    for number in caught:
        signal.signal(number, careful)
    return caught


def _import_depth(frame: FrameType | None) -> int:
    """Return how many calls of importlib are under way."""
    depth = 0
    while frame is not None:
        depth += frame.f_code.co_filename == _IMPORTING
        frame = frame.f_back
    return depth


def restore_stops(before: dict[signal.Signals, Any]) -> None:
    """Undo `catch_stops`."""
    for number, handler in before.items():
        # None stands for a handler that was not set from Python, and cannot be set again.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def caught_stops(handler: Handler = interrupt) -> Iterator[None]:
    """`catch_stops` for the work of a command."""
    _Command.begun = True
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
        """Yield a stretch that a first signal does not tear apart."""
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
