"""Progress on stderr: a bar with the time left on a terminal, else one line per case."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kernelmark.cli.output import fancy, progress_bar, say, say_above
from kernelmark.core.units import duration_text
from kernelmark.report.names import short
from kernelmark.report.summary import NotebookBar, ProgressLines, in_notebook, outcome, say_other
from kernelmark.runners import events as e

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from kernelmark.api.plan import Plan
    from kernelmark.core.result import Case

OnEvent = Callable[[e.Event], None]


@contextlib.contextmanager
def reporter(plan: Plan | None, *, quiet: bool) -> Iterator[OnEvent]:
    """Yield a callback for the events of a run. With `quiet` it reports only lost devices and
    waiting. Without a plan, the first event has the number of cases."""
    if quiet:
        yield _report_problems
    elif fancy(sys.stderr):
        with progress_bar() as bar:
            yield _ignoring_lost_terminal(Drawn(bar, len(plan.cases) if plan else 0))
    else:
        yield NotebookBar() if in_notebook() else ProgressLines(say)


class CaseClock:
    """Forwards events and measures the seconds from the first case, compiled or measured, to the
    end of the last, which is what forecasts of cases add up to."""

    def __init__(self, tell: OnEvent, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._begun: float | None = None
        self.seconds = 0.0

    def __call__(self, event: e.Event) -> None:
        now = self._clock()
        if isinstance(event, e.CaseCompiled):
            self._begin(now - event.seconds)
        elif isinstance(event, e.CaseStarted):
            self._begin(now)
        elif isinstance(event, e.CaseFinished) and self._begun is not None:
            self.seconds = now - self._begun
        self._tell(event)

    def _begin(self, at: float) -> None:
        self._begun = at if self._begun is None else self._begun


def _ignoring_lost_terminal(tell: OnEvent) -> OnEvent:
    """Return `tell` with the errors of a lost terminal suppressed, so that the run continues."""

    def forward(event: e.Event) -> None:
        with contextlib.suppress(OSError):
            tell(event)

    return forward


class Drawn:
    """A progress bar with the current case, its phase and the time left."""

    def __init__(self, bar: Bar, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=total, left="")
        self._doing: dict[str, tuple[str, str]] = {}  # by device: the problem, and what follows

    def __call__(self, event: e.Event) -> None:
        if isinstance(event, e.CaseStarted):
            self._doing[event.device] = _parts(event.case)
            self._show(event.progress)
        elif isinstance(event, e.CasePhase):
            self._doing[event.device] = _parts(event.case, f": {event.phase}")
            self._describe()
        elif isinstance(event, e.CaseCompiled):
            self._bar.update(
                self._task,
                left=f"about {duration_text(event.progress.remaining_s)} left",
                description=f"compiling {event.done}/{event.total}: {label(event.case)}",
                end="",
            )
        elif isinstance(event, e.CaseFinished):
            self._doing.pop(event.result.device, None)
            self._show(event.progress)
            if event.result.status.failed:
                say_above(self._bar, outcome(event.result))
        else:
            say_other(event, lambda text: say_above(self._bar, text))

    def _show(self, progress: e.Progress) -> None:
        self._bar.update(
            self._task,
            completed=progress.done,
            total=progress.total,
            left=f"about {duration_text(progress.remaining_s)} left",
        )
        self._describe()

    def _describe(self) -> None:
        text, end = "" if self._bar.finished else "starting", ""
        if len(self._doing) == 1:
            ((text, end),) = self._doing.values()
        elif self._doing:
            text = "; ".join(map("".join, self._doing.values()))
        self._bar.update(self._task, description=text, end=end)


def _parts(case: Case, phase: str = "") -> tuple[str, str]:
    return short(case.problem), f" by {case.backend}{phase}"


def label(case: Case) -> str:
    return f"{short(case.problem)} by {case.backend}"


def _report_problems(event: e.Event) -> None:
    if isinstance(event, e.DeviceLost | e.Waiting):
        say_other(event, say)
