"""Progress of `kmark tune run` on a terminal; loaded only by a run, as it loads numpy and scipy."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kernelmark.cli.output import fancy, progress_bar, say, say_above
from kernelmark.core.units import counted, duration_text, time_text
from kernelmark.report.tuning import outcome_line
from kernelmark.runners.events import DeviceLost, Note
from kernelmark.tune import progress as e
from kernelmark.tune.journal import is_screening

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

OnEvent = Callable[[e.Event], None]
# Seconds between progress lines without a bar.
_EVERY_S = 10.0


@contextlib.contextmanager
def reporter(*, quiet: bool) -> Iterator[OnEvent]:
    """Yield a callback for events of a run; with `quiet` it reports only lost devices and plans."""
    if quiet:
        yield _report_problem
    elif fancy(sys.stderr):
        with progress_bar() as bar:
            yield TuneProgressBar(bar)
    else:
        yield TuneProgressLines()


class TuneProgressLines:
    """Progress lines: one per finished plan, and one every `_EVERY_S` seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, event: e.Event) -> None:
        if isinstance(event, e.Expected):
            progress = event.progress
            if progress.plans_done < progress.plans:
                left = f"about {duration_text(progress.left_s)}"
                say(f"{counted(progress.plans, 'plan')}, {far_candidates(progress)}, {left}")
        elif isinstance(event, e.Began) and event.evaluated:
            say(f"{event.name}: {_progress_of(event)}")
        elif isinstance(event, e.Ended):
            origin = "" if event.fresh else " (as found before)"
            done, total = event.progress.plans_done, event.progress.plans
            say(f"[{done:{len(str(total))}}/{total}] {outcome_line(event.outcome)}{origin}")
        elif isinstance(event, e.Evaluated) and time.monotonic() - self._last > _EVERY_S:
            self._last = time.monotonic()
            say(f"{far(event.progress)}; {best(event)}")
        else:
            _report_problem(event, say)


class TuneProgressBar:
    """A progress bar over candidates with the current plan, and a line per finished plan."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None, left="")

    def __call__(self, event: e.Event) -> None:
        with contextlib.suppress(OSError):  # the run continues if the terminal goes away
            if isinstance(event, e.Expected):
                self._show(event.progress)
            elif isinstance(event, e.Evaluated):
                self._show(event.progress)
                self._bar.update(self._task, description=best(event))
            elif isinstance(event, e.Ended):
                self._show(event.progress)
                if event.fresh:
                    self._print(outcome_line(event.outcome))
            else:
                _report_problem(event, self._print)

    def _show(self, progress: e.TuneProgress) -> None:
        pace = f"{progress.per_minute:.0f}/min, " if progress.per_minute else ""
        self._bar.update(
            self._task,
            completed=progress.candidates_done,
            total=progress.candidates,
            left=f"{pace}about {duration_text(progress.left_s)} left",
        )

    def _print(self, text: str) -> None:
        say_above(self._bar, text)


def _progress_of(event: e.Began) -> str:
    """Return the progress of a resumed plan, whose budget may have been lowered since."""
    if event.evaluated < event.limit:
        return f"goes on with {event.evaluated} of {event.limit} candidates"
    return f"has {event.evaluated} candidates, and goes on with its final"


def far(progress: e.TuneProgress) -> str:
    """Return the progress of a run as text."""
    text = f"{progress.plans_done} of {progress.plans} plans, {far_candidates(progress)}"
    if progress.per_minute:
        text += f", {progress.per_minute:.0f} a minute, about {duration_text(progress.left_s)} left"
    return text


def far_candidates(progress: e.TuneProgress) -> str:
    done = f"{progress.candidates_done} of " if progress.candidates_done else ""
    return f"{done}{counted(progress.candidates, 'candidate')}"


def best(event: e.Evaluated) -> str:
    """Return the state of the current plan: its best time so far, or its final re-measurement."""
    if event.trial.step.startswith(("final", "near")):
        screened = is_screening(event.trial.step)
        part = "screening of the best" if screened else "final against the reference"
        return f"{event.name}: {part}"
    if event.best_s is None:
        return f"{event.name}: nothing right yet"
    text = f"{event.name}: best {time_text(event.best_s)}"
    if event.reference_s:
        text += f", {event.reference_s / event.best_s:.2f} × as fast as the reference"
    return text


def _report_problem(event: e.Event, tell: Callable[[str], object] = say) -> None:
    if isinstance(event, DeviceLost):
        tell(f"warning: {event.device} is lost: {event.reason}")
    elif isinstance(event, e.Retired):
        tell(f"warning: {event.name} cannot be tuned: {event.reason}")
    elif isinstance(event, Note):
        tell(f"note: {event.text}")
