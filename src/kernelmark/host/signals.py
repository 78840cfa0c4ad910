"""The command of this process: its age, and the signals that stop it like Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# Ctrl-C; a batch system or `kill`; a terminal that is closed; Ctrl-\.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
Handler = Callable[[int, FrameType | None], Any]


_IMPORTING = "<frozen importlib._bootstrap>"
_AGAIN_S = 0.01


class _Command:
    """The state of the command that this process runs."""

    stop_signal = 0  # the signal that was received; 0: none
    begun = False  # whether there may be something to clean up
    began = time.monotonic()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, and record it: a library may replace it by another error."""
    _Command.stop_signal = number
    raise KeyboardInterrupt


def stop_asked() -> bool:
    """Return whether `interrupt` was called since the command began."""
    return _Command.stop_signal != 0


def begin_command(*, with_process: bool = False) -> None:
    """Reset the state for a new command in this process, which began now, or, `with_process`, when
    the process did: loading Python took at least the CPU time so far."""
    _Command.stop_signal, _Command.begun = 0, False
    _Command.began = time.monotonic() - (time.process_time() if with_process else 0.0)


def command_age_s() -> float:
    """Return the seconds since the command began."""
    return time.monotonic() - _Command.began


def raise_ignored() -> None:
    """Repeat a KeyboardInterrupt that Python could not raise. Python ignores exceptions in
    finalisers and callbacks of weak references (`Exception ignored in …`), and the signal would be
    lost."""
    usual = sys.unraisablehook

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            _send_again(_Command.stop_signal or signal.SIGINT)
        else:
            usual(lost)

    sys.unraisablehook = hook


def _send_again(number: int) -> None:
    """Send this process the signal again a little later, when it may be possible to raise."""
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def catch_stops(
    handler: Handler = interrupt, *, importing: Handler | None = None
) -> dict[signal.Signals, Any]:
    """Install `handler`, which raises KeyboardInterrupt by default, for all signals in STOPS, and
    return the previous handlers. Ignored signals stay ignored: background jobs of a shell start
    with SIGINT ignored, and commands under nohup with SIGHUP.

    Nothing is raised during an import: compiled modules lose exceptions or replace them by an
    ImportError, for which the importing module may have a fallback, and a lock of importlib may
    stay locked. There, `importing` handles the signal if the command has not begun its work;
    otherwise, and by default, the signal is repeated until the import is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}  # only the main thread can set handlers, and only it is interrupted
    depth = _import_depth(sys._getframe())  # the caller may be a module that is being imported

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
    """Return the number of importlib frames on the stack."""
    depth = 0
    while frame is not None:
        depth += frame.f_code.co_filename == _IMPORTING
        frame = frame.f_back
    return depth


def restore_stops(before: dict[signal.Signals, Any]) -> None:
    """Undo `catch_stops`."""
    for number, handler in before.items():
        # None is a handler that was not set from Python, and cannot be restored.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def caught_stops(handler: Handler = interrupt) -> Iterator[None]:
    """Apply `catch_stops` within the `with` block, and mark the command as begun."""
    _Command.begun = True
    before = catch_stops(handler)
    try:
        yield
    finally:
        restore_stops(before)


class StopGuard:
    """A handler that raises KeyboardInterrupt at the first signal, except while storing."""

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
        """Defer the first signal to the end of the `with` block."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._wanted:
            raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible() -> Iterator[StopGuard]:
    """Let signals interrupt the `with` block, except within `finishing` of the guard."""
    guard = StopGuard()
    with caught_stops(guard.interrupt):
        yield guard
