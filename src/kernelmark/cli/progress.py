"""Progress on stderr: a bar with the time left on a terminal, else a line a case."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kernelmark.cli.output import fancy, progress_bar, say
from kernelmark.core.units import duration_text, time_text
from kernelmark.report.names import backend_text, short
from kernelmark.report.tables import width_text
from kernelmark.runners import events as e

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from kernelmark.api import Plan
    from kernelmark.core.result import Case, Result

OnEvent = Callable[[e.Event], None]


@contextlib.contextmanager
def reporter(plan: Plan | None, *, quiet: bool) -> Iterator[OnEvent]:
    """What a run tells its events to. Quiet, it still tells of lost devices and of waiting.

    Without a plan the number of cases is what the first event says."""
    if quiet:
        yield _only_trouble
    elif fancy(sys.stderr):
        with progress_bar() as bar:
            yield _unharmed(Drawn(bar, len(plan.cases) if plan else 0))
    else:
        yield Lines()


def _unharmed(tell: OnEvent) -> OnEvent:
    """As `tell`, for a terminal that may go away: the run goes on to its end."""

    def told(event: e.Event) -> None:
        with contextlib.suppress(OSError):
            tell(event)

    return told


class Lines:
    """One line for every case that ended."""

    def __call__(self, event: e.Event) -> None:
        if isinstance(event, e.CaseFinished):
            done, total = event.progress.done, event.progress.total
            left = _left(event.progress.remaining_s) if done < total else ""
            say(f"[{done:{len(str(total))}}/{total}] {outcome(event.result)}{left}")
        else:
            _say_other(event)


class Drawn:
    """A bar that says which case is in which phase, and how long the rest will take."""

    def __init__(self, bar: Bar, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=total, left="")
        self._doing: dict[str, str] = {}

    def __call__(self, event: e.Event) -> None:
        if isinstance(event, e.CaseStarted):
            self._doing[event.device] = label(event.case)
            self._show(event.progress)
        elif isinstance(event, e.CasePhase):
            self._doing[event.device] = f"{label(event.case)}: {event.phase}"
            self._describe()
        elif isinstance(event, e.CaseCompiled):
            self._bar.update(
                self._task, description=f"compiling {event.done}/{event.total}: {label(event.case)}"
            )
        elif isinstance(event, e.CaseFinished):
            self._doing.pop(event.result.device, None)
            self._show(event.progress)
            if event.result.status.failed:
                self._bar.console.print(outcome(event.result), markup=False, highlight=False)
        else:
            _say_other(event, lambda text: self._bar.console.print(text, markup=False))

    def _show(self, progress: e.Progress) -> None:
        self._bar.update(
            self._task,
            completed=progress.done,
            total=progress.total,
            left=f"about {duration_text(progress.remaining_s)} left",
        )
        self._describe()

    def _describe(self) -> None:
        text = "; ".join(self._doing.values()) or "starting"
        room = max(20, self._bar.console.width - 50)
        self._bar.update(
            self._task, description=text if len(text) <= room else text[: room - 1] + "…"
        )


def outcome(result: Result) -> str:
    """How a case ended, in one line."""
    name = f"{backend_text(result.case)}  {short(result.case.problem)}"
    measured = result.measurement
    if measured is None:
        reason = f": {result.error.splitlines()[0]}" if result.error else ""
        return f"{result.status.value:<11}  {name}{reason}"
    time = f"{time_text(measured.median_s):>9} ± {width_text(measured.rel_half_width)}"
    return f"{result.status.value:<11}  {time:<19}  {name}"


def label(case: Case) -> str:
    return f"{short(case.problem)} by {case.backend}"


def _left(seconds: float) -> str:
    return f"  (about {duration_text(seconds)} left)"


def _only_trouble(event: e.Event) -> None:
    if isinstance(event, e.DeviceLost | e.Waiting):
        _say_other(event)


def _say_other(event: e.Event, tell: Callable[[str], object] = say) -> None:
    if isinstance(event, e.DeviceLost):
        tell(f"warning: {event.device} is lost: {event.reason}")
    elif isinstance(event, e.Waiting):
        tell(str(event))
    elif isinstance(event, e.Note):
        tell(f"note: {event.text}")
