"""Progress of a run as lines of text."""

from __future__ import annotations

from collections.abc import Callable

from kernelmark.core.result import Result
from kernelmark.core.units import counted, duration_text, time_text, width_text
from kernelmark.report.names import backend_text, short
from kernelmark.runners import events as e

Say = Callable[[str], object]


class ProgressLines:
    """Progress as lines: the estimated total time, and one line per finished case."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._begun = False

    def __call__(self, event: e.Event) -> None:
        if isinstance(event, e.CaseStarted | e.CaseCompiled) and not self._begun:
            self._begun = True
            expected = duration_text(event.progress.remaining_s)
            self._say(f"{counted(event.progress.total, 'case')}, about {expected}")
        if isinstance(event, e.CaseFinished):
            done, total = event.progress.done, event.progress.total
            left = duration_text(event.progress.remaining_s)
            more = f"  (about {left} left)" if done < total else ""
            self._say(f"[{done:{len(str(total))}}/{total}] {outcome(event.result)}{more}")
        else:
            say_other(event, self._say)


def outcome(result: Result) -> str:
    """Return a one-line summary of how a case ended."""
    name = f"{backend_text(result.case)}  {short(result.case.problem)}"
    measured = result.measurement
    if measured is None:
        reason = f": {result.error.splitlines()[0]}" if result.error else ""
        return f"{result.status.value:<11}  {name}{reason}"
    time = f"{time_text(measured.median_s):>9} ± {width_text(measured.rel_half_width)}"
    return f"{result.status.value:<11}  {time:<19}  {name}"


def say_other(event: e.Event, say: Say) -> None:
    """Report lost devices, waiting and notes."""
    if isinstance(event, e.DeviceLost):
        say(f"warning: {event.device} is lost: {event.reason}")
    elif isinstance(event, e.Waiting):
        if e.WAITS.is_due(event.device):
            say(str(event))
    elif isinstance(event, e.Note):
        say(f"note: {event.text}")
