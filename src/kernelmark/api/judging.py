"""Judge a night in two stages: history flags suspects, `confirm` measures them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kernelmark.api.comparing import compare, history
from kernelmark.api.sentinels import SENTINELS, sentinel_keys
from kernelmark.compare.fail_on import FailOn
from kernelmark.compare.history import MIN_EFFECT, History, Story, counted_s
from kernelmark.compare.suspects import LEAST, level_s, suspects
from kernelmark.compare.verdicts import ALARMS, HELD
from kernelmark.core.errors import NothingToDo
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result, Status
from kernelmark.core.units import counted
from kernelmark.core.verdict import REGRESSION, SOME_FAILED, Verdict, VerdictStatus
from kernelmark.report.changes import Change, answer, of_comparison
from kernelmark.report.compare import moved_text
from kernelmark.report.names import backend_text, rerun, short

if TYPE_CHECKING:
    from kernelmark.stores.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of the judgement. `nights` is the number of earlier runs per step, `least` the
    lenient limit of stage one, `baseline` a run to compare with as well. `paired` is true if
    suspects are confirmed in paired rounds, which a change of the machine does not affect."""

    label: str
    nights: int = 60
    least: float = LEAST
    min_effect: float = MIN_EFFECT
    canaries: str = SENTINELS
    baseline: str = ""
    limits: FailOn = field(default_factory=FailOn)
    paired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A suspect of stage one: tonight's result and the level it was expected at."""

    result: Result
    status: VerdictStatus
    level_s: float | None
    before: str  # the last run before the change
    story: Story | None = None  # None if only the comparison with the baseline flagged it

    @property
    def key(self) -> Key:
        return key_of(self.result)


Key = tuple[str, str]  # series and device
# Stage two. A suspect that is not in its result could not be measured again.
Confirm = Callable[[Sequence[Doubt]], Mapping[Key, Change]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict on a night. `failed` counts tonight's failed cases, `doubts` the suspects."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    code: int
    doubts: int
    failed: int

    @property
    def answer(self) -> Reason:
        return answer(self.changes)


def judge(store: Store, run_ids: Sequence[str], rules: Rules, confirm: Confirm) -> Judged:
    """Judge every result of tonight's runs."""
    results = (result for run_id in run_ids for result in store.result_set(run_id).results)
    tonight = {key_of(result): result for result in results}
    if not tonight:
        raise NothingToDo(Reason("night-without-results"), hint="see the messages of the runs")
    known = history(
        store,
        runs=rules.nights * len(run_ids),
        label=rules.label,
        min_effect=rules.min_effect,
        sentinels=rules.canaries,
    )
    canaries = set(sentinel_keys(rules.canaries))
    doubted = {doubt.key: doubt for doubt in _against_baseline(store, run_ids, rules)}
    doubted |= {one.key: one for one in _doubts(known, tonight, run_ids, rules)}
    doubts = [one for one in doubted.values() if one.result.case.problem.key not in canaries]
    confirmed = confirm(doubts) if doubts else {}
    stories = {story.series: story for story in known.stories}
    moved = {story.newest.run_id for story in known.stories if story.held and not rules.paired}
    changes = []
    for key, result in tonight.items():
        if result.case.problem.key not in canaries:
            one = stories.get(result.series)
            change = confirmed.get(key) or _unconfirmed(result, doubted.get(key), one)
            changes.append(_suppress(change, one, moved))
    failed = sum(result.status.failed for result in tonight.values())
    return Judged(
        changes=tuple(changes),
        notes=tuple(_notes(known, doubts, confirmed, tonight)),
        code=_code(changes, failed, rules.limits),
        doubts=len(doubts),
        failed=failed,
    )


def key_of(result: Result) -> Key:
    """Return the key of a result within a night: one series may run on several equal devices."""
    return result.series, result.device


def _doubts(
    known: History, tonight: Mapping[Key, Result], run_ids: Sequence[str], rules: Rules
) -> list[Doubt]:
    found = suspects(known, run_ids, least=rules.least, held=rules.paired)
    by_series: dict[str, list[Result]] = {}
    for result in tonight.values():
        by_series.setdefault(result.series, []).append(result)
    return [
        Doubt(
            result=result,
            status=one.status,
            level_s=one.level_s,
            before=one.before,
            story=one.story,
        )
        for one in found
        for result in by_series.get(one.story.series, ())
        if (one.status is VerdictStatus.BROKEN) == (result.status is not Status.OK)
    ]


def _against_baseline(store: Store, run_ids: Sequence[str], rules: Rules) -> list[Doubt]:
    """Return the results that are slower than in the pinned run. This finds a slow drift, which no
    single night shows as a step."""
    if not rules.baseline:
        return []
    base = store.run(rules.baseline)
    found = []
    for run_id in run_ids:
        try:
            compared = compare(base.id, run_id, store=store, sentinels=rules.canaries)
        except NothingToDo:  # another device or suite
            continue
        for row in compared.rows:
            wanted = row.status in (VerdictStatus.SLOWER, VerdictStatus.BROKEN)
            if wanted and row.pair.head is not None and not (row.held and not rules.paired):
                found.append(
                    Doubt(
                        result=row.pair.head,
                        status=row.status,
                        level_s=row.judgement.base_s,
                        before=base.id,
                    )
                )
    return found


def change_of(
    result: Result,
    level: float | None,
    status: VerdictStatus,
    reason: Reason,
    *,
    by_median: bool = False,
) -> Change:
    """Return the change of tonight's result against its level in history, or, with `by_median`,
    against a median."""
    now = None
    if result.measurement is not None:
        now = result.measurement.median_s if by_median else counted_s(result.measurement)
    return Change(
        problem=short(result.case.problem),
        backend=backend_text(result.case),
        device=result.device,
        status=status,
        reason=reason,
        base=level,
        head=now,
        ratio=now / level if now and level else None,
        again=rerun(result),
    )


def _unconfirmed(result: Result, doubt: Doubt | None, story: Story | None) -> Change:
    """Return the change of a result that stage two did not judge."""
    if doubt is not None:
        reason = Reason("not-confirmed", verdict=doubt.status.value)
        by_median = doubt.story is None  # flagged by the baseline, whose level is a median
        return change_of(result, doubt.level_s, VerdictStatus.UNSURE, reason, by_median=by_median)
    if story is None:  # another run of tonight has the series' newest point
        return change_of(result, None, VerdictStatus.UNSURE, Reason("no-level"))
    status = story.screen.status
    if status is VerdictStatus.NEW and len(story.points) > 1:
        status = VerdictStatus.UNSURE  # not new, but too few nights to judge it by
    return change_of(result, level_s(story), status, story.screen.reason)


def _suppress(change: Change, story: Story | None, moved: Collection[str]) -> Change:
    """Return the change, suppressed if a canary moved in its run: the machine changed."""
    if story is None or story.newest.run_id not in moved or change.status not in ALARMS:
        return change
    return replace(change, held=HELD)


def _code(changes: Sequence[Change], failed: int, limits: FailOn) -> int:
    if any(_verdict(change) in limits and (limits.held or not change.held) for change in changes):
        return REGRESSION
    return SOME_FAILED if failed else 0


def _verdict(change: Change) -> Verdict:
    return Verdict(
        series="", base="", head="", status=change.status, reason=change.reason, ratio=change.ratio
    )


def _notes(
    known: History,
    doubts: Sequence[Doubt],
    confirmed: Mapping[Key, Change],
    tonight: Mapping[Key, Result],
) -> list[str]:
    notes = [f"a canary moved: {moved_text(one)}" for one in known.moved]
    if not known.watched:
        notes.append("no canary was measured: a change of the machine looks like one of the code")
    if doubts:
        real = sum(
            doubt.status is confirmed[doubt.key].status
            for doubt in doubts
            if doubt.key in confirmed
        )
        notes.append(
            f"{counted(len(doubts), 'suspect')} of the first stage measured again: {real} confirmed"
        )
    failed = Counter(one.status.value for one in tonight.values() if one.status.failed)
    notes += [f"{counted(count, 'case')} {status}" for status, count in failed.items()]
    if known.audit.compared:
        notes.append(
            f"same binary in successive runs: {known.audit.alarms} of {known.audit.compared} rows "
            "called changed, each a false alarm or the machine"
        )
    return notes


def compared_change(store: Store, base: str, head: str, series: str) -> Change | None:
    """Return the row of a series in the comparison of two runs."""
    found = compare(base, head, store=store, sentinels="")
    pairs = zip(found.rows, of_comparison(found), strict=True)
    return next((change for row, change in pairs if row.pair.shown.series == series), None)
