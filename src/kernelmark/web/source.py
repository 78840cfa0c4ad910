"""The data behind pages: a store, cached results, and the judged newest runs.

Judging all series of the newest runs takes seconds for a large store. A background thread does it
once per change of the store, and only for series with new points; meanwhile pages show the last
summary.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kernelmark.api.compare import assembled, compare, placed, series_runs
from kernelmark.api.results import Results
from kernelmark.api.roofs import stored_roofs
from kernelmark.compare.history import History, Marks, SeriesStep, Story, story
from kernelmark.compare.verdicts import Comparison
from kernelmark.core.result import ResultSet, Run, RunState, Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.report.results import Share
from kernelmark.stores import SeriesPoint
from kernelmark.stores.store import Store

RUNS = 60  # newest runs over which series are judged
RECENT = 10  # newest runs whose changes count as news
_KEPT_RESULTS = 12  # runs kept in memory with all samples
_KEPT_COMPARISONS = 6
_SHARED_RUNS = 6  # newest runs with percentages of the roof in the summary
_PAUSE_S = 1.0  # between checks of the store
T = TypeVar("T")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A series in the dashboard. `share` is the percentage of the roof of its newest point,
    `is_recent` whether one of the newest runs has it, `step` its last step if that is in one of
    these runs."""

    case_id: str
    arch: str
    story: Story
    share: Share | None = None
    is_recent: bool = True
    step: SeriesStep | None = None

    @property
    def op(self) -> str:
        return self.story.series.partition(" ")[0]

    @property
    def backend(self) -> str:
        return self.story.series.split(" | ", 2)[1]

    @property
    def change(self) -> float | None:
        """The newest point over its expected value, or the ratio of the step that explains it."""
        screen = self.story.screen
        if self.step and not screen.flagged:
            return self.step.ratio
        return screen.ratio if screen.low_s else None

    @property
    def since(self) -> str:
        """The run in which the change began; "" without a change."""
        if self.story.screen.flagged or self.story.is_regression:
            return self.story.change[1]
        return self.step.run_id if self.step else ""

    @property
    def state(self) -> str:
        """One of broken, slower, faster, accepted, failed, unsupported, new and steady."""
        story = self.story
        if story.screen.flagged or story.is_regression:
            return story.screen.status.value
        if story.accepted is not None:
            return "accepted"
        if story.newest.status is not Status.OK:
            return "failed" if story.newest.status.failed else "unsupported"
        if self.step is not None and (self.step.ratio < 1) != (story.newest.better == "higher"):
            return "faster"
        return "new" if story.screen.status is VerdictStatus.NEW else "steady"

    @property
    def is_news(self) -> bool:
        """Whether the series has an open regression or became faster recently, and its alarm is not
        suppressed."""
        is_faster = self.state == "faster" and self.is_recent
        return (self.story.is_regression or is_faster) and not self.story.held


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The judged newest runs, as of `version` of the store; `number` counts summaries."""

    number: int
    version: str
    history: History | None
    kernels: tuple[Kernel, ...]
    shares: Mapping[tuple[str, str, str], Share] = field(default_factory=dict)
    derived: dict[Any, Any] = field(default_factory=dict)  # cache of what pages compute from it

    def kernel(self, case_id: str, arch: str, metric: str = "") -> Kernel | None:
        """Return the series with this case, architecture and metric."""
        if "index" not in self.derived:
            self.derived["index"] = {
                (k.case_id, k.arch, k.story.newest.metric): k for k in reversed(self.kernels)
            }
        found: Kernel | None = self.derived["index"].get((case_id, arch, metric))
        return found


class Source:
    """A store with caches of its results, comparisons and summary. Thread-safe."""

    def __init__(
        self,
        store: Store,
        tuning: Sequence[Path] = (),
        *,
        runs: int = RUNS,
        prepare: Callable[[Summary], object] = lambda summary: None,
    ) -> None:
        self.store = store
        self._prepare = prepare  # computes what pages derive from a summary in advance
        self.tuning = tuple(tuning)
        self._runs = runs
        self._results: OrderedDict[tuple[object, ...], Results] = OrderedDict()
        self._comparisons: OrderedDict[tuple[object, ...], Comparison] = OrderedDict()
        self._points: dict[str, tuple[object, list[SeriesPoint]]] = {}
        self._stories: dict[str, tuple[object, Story]] = {}
        self._judgement: tuple[list[Story], Sequence[Run]] = ([], [])  # of the summary
        self._summary: Summary | None = None
        self._refreshing = threading.Lock()
        self._reading = threading.Lock()
        self._ended = threading.Event()
        self._ready = threading.Event()

    # Contents of the store

    @property
    def stamp(self) -> str:
        """A text that differs after every change that a page could show."""
        return f"{self.store.version()}.{self._summary.number if self._summary else 0}"

    def results(self, ref: str) -> Results:
        """Return a run with its results and roofs."""
        run = self.store.run(ref)
        return self._results_of(run, self._state(run))

    def _results_of(self, run: Run, key: tuple[object, ...]) -> Results:
        def read() -> Results:
            result_set = self.store.result_set(run.id)
            return Results(result_set, stored_roofs(self.store, result_set))

        return self._cached(self._results, key, read, _KEPT_RESULTS)

    def _cached(
        self,
        cache: OrderedDict[tuple[object, ...], T],
        key: tuple[object, ...],
        make: Callable[[], T],
        most: int,
    ) -> T:
        """Return a value of a cache that keeps the values used last. Two threads may make one."""
        with self._reading:
            if key in cache:
                cache.move_to_end(key)
                return cache[key]
        value = make()
        with self._reading:
            cache[key] = value
            while len(cache) > most:
                cache.popitem(last=False)
        return value

    def results_like(self, ref: str, case_id: str) -> Results:
        """Return a run with the results for one case's problem, which are shown together. Only
        these are read, unless the run is cached."""
        run = self.store.run(ref)
        with self._reading:
            whole = self._results.get(self._state(run))
        if whole is not None:
            return whole
        sample = next(self.store.results(run.id, case_id=case_id), None)
        same = self.store.results(run.id, problem=sample.case.problem) if sample else ()
        result_set = ResultSet(run=run, results=tuple(same))
        return Results(result_set, stored_roofs(self.store, result_set))

    def comparison(self, base: Run, head: Run, rule: str) -> Comparison:
        """Return the comparison of two runs, cached."""
        states = [self._state(run) for run in (base, head)]

        def judge() -> Comparison:
            sides = [
                self._results_of(run, state).result_set
                for run, state in zip((base, head), states, strict=True)
            ]
            return compare(sides[0], sides[1], rule=rule)

        return self._cached(self._comparisons, (*states, rule), judge, _KEPT_COMPARISONS)

    def _state(self, run: Run) -> tuple[object, ...]:
        """Return a key that stays equal while the run has the same results: a finished run changes
        only if it is resumed, and then ends at another time."""
        if run.state is RunState.RUNNING:
            return run.id, self.store.version()
        return run.id, run.finished, self.store.sizes([run.id]).get(run.id)

    # Judging the newest runs

    def summary(self, wait_s: float = 0.0) -> Summary | None:
        """Return the newest summary; None if the first one takes longer than `wait_s`."""
        self._ready.wait(wait_s)
        return self._summary

    @property
    def is_stale(self) -> bool:
        """Whether the store has changed since it was judged."""
        return self._summary is None or self._summary.version != self.store.version()

    def start(self) -> None:
        """Start a thread that judges the store whenever it changes, until `stop`."""
        threading.Thread(target=self._follow, name="summary", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                if self.is_stale:
                    self.refresh()
            except Exception:  # a store that is temporarily unavailable must not end the dashboard
                _LOG.exception("the newest runs could not be judged")
            self._ended.wait(_PAUSE_S)

    def refresh(self) -> Summary:
        """Judge the newest runs now."""
        with self._refreshing:
            version = self.store.version()
            runs = series_runs(self.store, self._runs)
            points = placed(self._fetch(runs), {run.id: run for run in runs})
            before, judged = self._judgement, self._judged(points, self.store.marks())
            self._judgement = (judged, runs)
            last, is_same = self._summary, self._judgement == before
            if last is not None and is_same and self._shares(last.history) == last.shares:
                # Only what pages read from the store itself has changed, such as a pin.
                summary = dataclasses.replace(last, number=last.number + 1, version=version)
            else:
                history = assembled(judged, runs) if points else None
                shares = self._shares(history)
                summary = Summary(
                    number=last.number + 1 if last else 1,
                    version=version,
                    history=history,
                    shares=shares,
                    kernels=_kernels(history, shares) if history else (),
                )
                self._prepare(summary)
            self._summary = summary
            self._ready.set()
            return summary

    def _fetch(self, runs: Sequence[Run]) -> list[SeriesPoint]:
        """Return the points of these runs, oldest first; only changed runs are read."""
        sizes = self.store.sizes([run.id for run in runs])
        fresh: dict[str, tuple[object, list[SeriesPoint]]] = {}
        for run in runs:
            live = time.monotonic() if run.state is RunState.RUNNING else 0.0
            state = (sizes.get(run.id), run.state, run.finished, live)
            known = self._points.get(run.id)
            if known is None or known[0] != state:
                known = state, self.store.history(run_id=run.id)
            fresh[run.id] = known
        self._points = fresh
        return [point for run in reversed(runs) for point in fresh[run.id][1]]

    def _judged(self, points: Sequence[SeriesPoint], marks: Marks) -> list[Story]:
        """Return each series with its steps and screen; only series with new points or marks are
        judged."""
        found: dict[str, list[SeriesPoint]] = {}
        for point in points:
            found.setdefault(point.series, []).append(point)
        made: dict[str, tuple[object, Story]] = {}
        for series, mine in found.items():
            known, key = self._stories.get(series), (mine, marks.get(series, ()))
            is_same = known is not None and known[0] == key
            made[series] = known if known and is_same else (key, story(mine, marks=key[1]))
            time.sleep(0)  # yields the GIL to request threads
        self._stories = made
        return [one for _, one in made.values()]

    def _shares(self, history: History | None) -> dict[tuple[str, str, str], Share]:
        """Return the percentage of the roof by run, series and device, for the newest runs."""
        if history is None:
            return {}
        ids = list(dict.fromkeys(item.newest.run_id for item in history.stories))
        newest = [run.id for run in reversed(history.runs) if run.id in ids][:_SHARED_RUNS]
        return {
            (run_id, row.result.series, row.result.device): row.share
            for run_id in newest
            for row in self.results(run_id).rows
            if row.share is not None and row.ranks
        }


def _kernels(history: History, shares: Mapping[tuple[str, str, str], Share]) -> tuple[Kernel, ...]:
    recent = {run.id for run in history.runs[-RECENT:]}
    made = []
    for item in history.stories:
        newest = item.newest
        whole = item.series.removesuffix(f" | {newest.metric}") if newest.metric else item.series
        case_series, _, arch = whole.rpartition(" | ")
        step = item.steps[-1] if item.steps else None
        digest = hashlib.sha256(case_series.encode("utf-8", "surrogatepass")).hexdigest()
        made.append(
            Kernel(
                case_id=digest[:16],
                arch=arch,
                story=item,
                share=shares.get((newest.run_id, item.series, getattr(newest, "device", ""))),
                is_recent=newest.run_id in recent,
                step=step if step and step.run_id in recent else None,
            )
        )
    return tuple(made)
