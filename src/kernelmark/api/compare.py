"""Compare runs, and analyse their history."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernelmark.api.results import read_run
from kernelmark.compare import rules, verdicts
from kernelmark.compare.history import MIN_EFFECT, History, Story, hold, judged_s, marked, stories
from kernelmark.compare.match import By
from kernelmark.compare.rules.base import Rule
from kernelmark.compare.verdicts import Audit
from kernelmark.compare.verdicts import compare as compare_sets
from kernelmark.core.environment import difference
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.micro import MICRO_SUITE
from kernelmark.core.reason import Reason
from kernelmark.core.result import ResultSet, Run
from kernelmark.core.verdict import Mark, MarkKind, VerdictStatus
from kernelmark.report import compare as report
from kernelmark.report.tables import Table, html_list, html_table, printed
from kernelmark.workloads.suites import CANARIES, canary_keys

if TYPE_CHECKING:
    from kernelmark.stores import SeriesPoint
    from kernelmark.stores.store import Store

# Number of newest runs that are each compared with the run before, to count false alarms.
_AUDITED = 6
# Newest runs whose labels are searched for similar ones, and how many are suggested.
_LOOKED_AT = 100
_LABELS = 5
_NOT_AUDITED = Audit(compared=0, alarms=0)
_LONGEST_REASON = 500
# Commands that measure a series again, instead of as its next point.
_PAIRED = {"ab", "gate", "bisect", "nightly-again"}


class Comparison(verdicts.Comparison):
    """A comparison that prints as a table, also in notebooks."""

    __slots__ = ()

    def _parts(self) -> tuple[Table, list[str]]:
        # Python has no --fail-on, which the note on gone rows would explain.
        notes = report.notes(self, gone_fails=True)
        return report.table(self.rows), [report.summary(self), *notes]

    def __str__(self) -> str:
        table, lines = self._parts()
        return printed(table) + "".join(f"{line}\n" for line in lines)

    def __repr__(self) -> str:
        """Return a brief text: the default would print every sample of both runs."""
        return f"<Comparison of {self.base.id} with {self.head.id}: {report.summary(self)}>"

    def _repr_html_(self) -> str:
        table, lines = self._parts()
        return html_table(table) + html_list(lines)


def compare(
    base: str | ResultSet,
    head: str | ResultSet,
    *,
    rule: str | Rule = "robust",
    match: By = "case",
    store: Store | None = None,
    canaries: str = CANARIES,
) -> Comparison:
    """Compare two runs, and give a verdict for every case they share.

    base, head: id, label or pinned name of a run in `store`, a file, or a `ResultSet`.
    rule: a preset (robust, golden-tot, ratio), a TOML file, or a `Rule`.
    match: "case" pairs results of the same case, "problem" the best of each side for a problem.
    canaries: suite of the canary problems that reveal a change of the machine.
    """
    judged_by = rules.load_rule(rule) if isinstance(rule, str) else rule
    sides = [read_run(ref, store) if isinstance(ref, str) else ref for ref in (base, head)]
    compared = compare_sets(
        sides[0], sides[1], rule=judged_by, by=match, sentinels=canary_keys(canaries)
    )
    fields = dataclasses.fields(compared)
    return Comparison(**{field.name: getattr(compared, field.name) for field in fields})


def history(
    store: Store,
    *,
    runs: int = 60,
    label: str | None = None,
    arch: str | None = None,
    min_effect: float = MIN_EFFECT,
    baseline: str | None = None,
    canaries: str = CANARIES,
    suites: Sequence[str] | None = None,
) -> History:
    """Return every series over the newest `runs` runs: steps, what changed at each, and alarms.
    `suites` restricts the runs to these suites."""
    newest = series_runs(store, runs, label, suites)
    if not newest and label is not None and (stored := store.runs(limit=_LOOKED_AT)):
        labels = list(dict.fromkeys(run.label for run in stored if run.label))
        hint = f"newest labels: {', '.join(labels[:_LABELS])}" if labels else "no run has a label"
        raise NothingToDo(
            Reason(f"no run has the label {label!r}", "run-unknown", ref=label, by=("label",)),
            hint=hint,
        )
    if not newest:
        sides = "; the sides of `kmark ab` count where --label named them" if store.runs(1) else ""
        raise NothingToDo("there is no run to look back at", hint=f"`kmark run` adds one{sides}")
    ids = {run.id for run in newest}
    every = store.history(since=newest[-1].started, label=label, arch=arch)
    points = [point for point in every if point.run_id in ids]
    if not points:
        raise NothingToDo("no stored result matches", hint="`kmark list runs` shows what there is")
    points = placed(points, {run.id: run for run in newest})
    return assembled(
        stories(points, min_effect=min_effect, marks=store.marks()),
        newest,
        min_effect=min_effect,
        canaries=canaries,
        audit=audit(store, newest[:_AUDITED]),
        baseline_name=baseline or "",
        baseline={} if baseline is None else _baseline(store, baseline),
    )


def accept(store: Store, accepted: Sequence[Story], reason: str, author: str) -> None:
    """Accept open regressions: the present level of a slowdown becomes the good one, a failure is
    silent until it changes. `unaccept` undoes it."""
    if not 0 < len(reason.strip()) <= _LONGEST_REASON:
        raise UsageError(
            f"a reason has 1 to {_LONGEST_REASON} characters, not {len(reason.strip())}",
            hint='for example: --reason "the new layout needs one more pass"',
        )
    for item in accepted:
        if not item.is_regression:
            raise NothingToDo(
                f"{item.series} is {item.screen.status.value}: there is nothing to accept",
                hint="an acceptance is for a series that is slower or broken",
            )
    store.mark([_acceptance(item, reason.strip(), author) for item in accepted])


def unaccept(store: Store, item: Story) -> None:
    """Undo the acceptance of a regression."""
    if not store.unmark(item.series, MarkKind.ACCEPTED):
        raise NothingToDo(
            f"no regression of {item.series} is accepted", hint="'kmark history' notes those"
        )


def _acceptance(item: Story, reason: str, author: str) -> Mark:
    is_slower = item.screen.status is VerdictStatus.SLOWER
    begin = item.present_level if is_slower else item.first_failure
    return Mark(
        series=item.series,
        kind=MarkKind.ACCEPTED,
        state=VerdictStatus.SLOWER.value if is_slower else item.newest.status.value,
        run_id=item.change[1],
        started=begin.started,
        before_id=item.change[0],
        level=judged_s(item.newest),
        reason=reason,
        author=author,
        created=time.time(),
    )


def assembled(
    histories: Sequence[Story],
    newest: Sequence[Run],
    *,
    min_effect: float = MIN_EFFECT,
    canaries: str = CANARIES,
    audit: Audit = _NOT_AUDITED,
    baseline_name: str = "",
    baseline: Mapping[str, float] = FrozenDict(),
) -> History:
    """Return the history of series: alarms are suppressed where canaries moved, and steps carry
    what changed. `newest` are the runs, newest first."""
    keys = set(canary_keys(canaries))
    watch = {story.series: story.problem for story in histories if story.problem in keys}
    earlier = marked(histories, watch, min_effect=min_effect)
    histories, moved = hold(histories, watch, earlier)
    return History(
        stories=tuple(histories),
        runs=tuple(reversed(newest)),
        changes=_changes(histories, {run.id: run for run in newest}),
        moved=tuple(moved),
        marked=earlier,
        watched=not keys
        or newest[0].suite == MICRO_SUITE
        or any(
            story.series in watch and story.newest.run_id == newest[0].id for story in histories
        ),
        audit=audit,
        baseline_name=baseline_name,
        baseline=baseline,
    )


def placed(points: Sequence[SeriesPoint], runs: Mapping[str, Run]) -> list[SeriesPoint]:
    """Return the points with one series per machine for microbenchmarks, which measure it."""

    def place(point: SeriesPoint) -> str:
        here = runs[point.run_id].environment
        models = {info.name: info.model for info in here.devices}
        return f"{point.metric} on {point.device} ({models.get(point.device, '')}) of {here.host}"

    places: dict[str, set[str]] = {}
    for point in points:
        if point.metric:
            places.setdefault(point.series, set()).add(place(point))
    return [
        dataclasses.replace(
            point,
            metric=place(point),
            series=f"{point.series.removesuffix(point.metric)}{place(point)}",
        )
        if len(places.get(point.series, ())) > 1
        else point
        for point in points
    ]


def series_runs(
    store: Store, count: int, label: str | None = None, suites: Sequence[str] | None = None
) -> list[Run]:
    """Return the newest runs that are not excluded, newest first. The sides of a paired comparison
    confirm or refute a point of a series; they are points themselves only if selected by label."""
    stored = store.runs(limit=4 * count, label=label, suites=suites)
    sides = label is not None
    kept = [r for r in stored if not r.excluded and (sides or not set(r.argv[:1]) & _PAIRED)]
    return kept[:count]


def audit(store: Store, newest: Sequence[Run]) -> Audit:
    """Count the rows of consecutive runs with the same binary, and the alarms that the robust rule
    raised on them. `newest` is newest first."""
    compared = alarms = 0
    # Reading and judging take longer than a look for binaries, of which backends of CPUs have none.
    binaries = [store.binaries(run.id) for run in newest]
    sets: dict[str, ResultSet] = {}
    for (later, of_later), (earlier, of_earlier) in itertools.pairwise(
        zip(newest, binaries, strict=True)
    ):
        if not of_later & of_earlier:
            continue
        sets = {run.id: sets.get(run.id) or store.result_set(run.id) for run in (earlier, later)}
        try:
            rule = rules.load_rule("robust")
            counts = compare_sets(sets[earlier.id], sets[later.id], rule=rule).audit
        except NothingToDo:
            continue
        compared += counts.compared
        alarms += counts.alarms
    return Audit(compared=compared, alarms=alarms)


def _changes(
    histories: Sequence[Story], runs: dict[str, Run]
) -> dict[tuple[str, str], tuple[tuple[str, str, str], ...]]:
    pairs = {(step.before_id, step.run_id) for story in histories for step in story.steps}
    pairs |= {story.change for story in histories if story.alarm}
    return {
        (before, after): tuple(difference(runs[before].environment, runs[after].environment))
        for before, after in pairs
        if before in runs and after in runs
    }


def _baseline(store: Store, ref: str) -> dict[str, float]:
    run = store.run(ref)
    points = store.history(run_id=run.id)
    return {point.series: time_s for point in points if (time_s := judged_s(point))}
