"""Judge a night in two stages: history flags suspects, `confirm` measures them again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.api.ab import AbPlan, Environments, captured, compare_sides
from kernelmark.api.checkouts import Checkouts, Recipe, Repository
from kernelmark.api.compare import compare, history
from kernelmark.api.plan import Plan
from kernelmark.api.run import Conduct, measure
from kernelmark.backends._lineage import own_kernels
from kernelmark.compare.alarms import LEAST, FailOn, level_s, screened_again, suspects
from kernelmark.compare.history import MIN_EFFECT, History, Story, counted_s
from kernelmark.compare.verdicts import ALARMS, HELD
from kernelmark.core.errors import KernelmarkError, NothingToDo
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason, shorten
from kernelmark.core.result import Case, Result, RunState, Status
from kernelmark.core.units import counted
from kernelmark.core.verdict import (
    NOTHING,
    REGRESSION,
    SOME_FAILED,
    Mark,
    MarkKind,
    Verdict,
    VerdictStatus,
)
from kernelmark.report.changes import Change, answer, of_comparison, of_pairs
from kernelmark.report.compare import moved_text
from kernelmark.report.names import backend_text, rerun, short
from kernelmark.runners.ab import ROUND, Budget, Opener, Pair, Rule, Side, parse_side
from kernelmark.runners.pool import kernel_key
from kernelmark.runners.targets import find
from kernelmark.stats.paired import Looks, rounds_for_one
from kernelmark.workloads.suites import CANARIES, canary_keys

if TYPE_CHECKING:
    from kernelmark.api.nightly import Nightly
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
    canaries: str = CANARIES
    baseline: str = ""
    limits: FailOn = field(default_factory=FailOn)
    paired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A suspect of stage one: tonight's result and the level it was expected at."""

    result: Result
    status: VerdictStatus
    level_s: float | None
    before: str  # the last good run
    since: str = ""  # the first run of the change
    story: Story | None = None  # None if only the comparison with the baseline flagged it

    @property
    def key(self) -> Key:
        return key_of(self.result)

    @property
    def is_worse(self) -> bool:
        return self.status in (VerdictStatus.SLOWER, VerdictStatus.BROKEN)

    @property
    def is_proven(self) -> bool:
        """Whether a step proves the slowdown. A failure that does not come again is not proven: the
        machine may have been too busy, or a library or a file missing."""
        if self.story is None or self.status is VerdictStatus.BROKEN:
            return False
        return self.story.is_regression and not self.story.screen.fresh


_AUTHOR = "kmark nightly"
_NO_FILES: Mapping[str, str] = FrozenDict()
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
        raise NothingToDo("tonight's runs have no results", hint="see the messages of the runs")
    past = history(
        store,
        runs=rules.nights * len(run_ids),
        label=rules.label,
        min_effect=rules.min_effect,
        canaries=rules.canaries,
    )
    canaries = set(canary_keys(rules.canaries))
    stories = {story.series: story for story in past.stories}
    doubted = {doubt.key: doubt for doubt in _against_baseline(store, run_ids, rules)}
    doubted |= {suspect.key: suspect for suspect in _doubts(past, tonight, run_ids, rules)}
    doubts = [
        suspect for suspect in doubted.values() if suspect.result.case.problem.key not in canaries
    ]
    confirmed = confirm(doubts) if doubts else {}
    moved = {story.newest.run_id for story in past.stories if story.held and not rules.paired}
    changes = []
    for key, result in tonight.items():
        if result.case.problem.key not in canaries:
            suspect, doubt = stories.get(result.series), doubted.get(key)
            if doubt is not None:
                change = _settled(doubt, confirmed.get(key))
            else:
                change = _unsuspected(result, suspect)
            changes.append(_suppress(change, suspect, moved))
    store.mark(_marks(doubts, confirmed, paired=rules.paired))
    unrepeated = [doubt for doubt in doubts if doubt.is_worse and doubt.key not in confirmed]
    failed = sum(result.status.failed for result in tonight.values())
    return Judged(
        changes=tuple(changes),
        notes=tuple(_notes(past, doubts, confirmed, tonight)),
        code=_code(changes, failed, rules.limits) or (NOTHING if unrepeated else 0),
        doubts=len(doubts),
        failed=failed,
    )


def key_of(result: Result) -> Key:
    """Return the key of a result within a night: one series may run on several equal devices."""
    return result.series, result.device


def _doubts(
    past: History, tonight: Mapping[Key, Result], run_ids: Sequence[str], rules: Rules
) -> list[Doubt]:
    suspected = suspects(
        past, run_ids, least=rules.least, suppressed=rules.paired, few=rules.paired
    )
    by_series: dict[str, list[Result]] = {}
    for result in tonight.values():
        by_series.setdefault(result.series, []).append(result)
    return [
        Doubt(
            result=result,
            status=suspect.status,
            level_s=suspect.level_s,
            before=suspect.before,
            since=suspect.since,
            story=suspect.story,
        )
        for suspect in suspected
        for result in by_series.get(suspect.story.series, ())
        if (suspect.status is VerdictStatus.BROKEN) == (result.status is not Status.OK)
    ]


def _against_baseline(store: Store, run_ids: Sequence[str], rules: Rules) -> list[Doubt]:
    """Return the results that are slower than in the pinned run. This finds a slow drift, which no
    single night shows as a step."""
    if not rules.baseline:
        return []
    base = store.run(rules.baseline)
    doubts = []
    for run_id in run_ids:
        try:
            compared = compare(base.id, run_id, store=store, canaries=rules.canaries)
        except NothingToDo:  # another device or suite
            continue
        for row in compared.rows:
            is_worse = row.status in (VerdictStatus.SLOWER, VerdictStatus.BROKEN)
            if is_worse and row.pair.head is not None and not (row.held and not rules.paired):
                doubts.append(
                    Doubt(
                        result=row.pair.head,
                        status=row.status,
                        level_s=row.judgement.base_s,
                        before=base.id,
                    )
                )
    return doubts


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


def _settled(doubt: Doubt, again: Change | None) -> Change:
    """Return the change of a suspect, measured again or not."""
    by_median = doubt.story is None  # flagged by the baseline, whose level is a median
    result, status = doubt.result, doubt.status
    if again is None:
        # An alarm of history stands; a lenient suspicion is undecided.
        is_alarm = doubt.story is not None and doubt.story.is_regression
        reason = Reason(f"looks {status.value}, and could not be measured again")
        kept = status if is_alarm else VerdictStatus.UNSURE
        return change_of(result, doubt.level_s, kept, reason, by_median=by_median)
    if again.status is VerdictStatus.UNSURE and doubt.is_proven and doubt.story is not None:
        return change_of(result, doubt.level_s, status, doubt.story.screen.reason)
    return again


def _marks(doubts: Sequence[Doubt], confirmed: Mapping[Key, Change], *, paired: bool) -> list[Mark]:
    """Return what measuring the suspects again decided, for history and the nights to come."""
    marks_by_series: dict[tuple[str, MarkKind], Mark] = {}
    for doubt in doubts:
        again, story = confirmed.get(doubt.key), doubt.story
        if again is None or story is None or not doubt.is_worse:
            continue
        if again.status is VerdictStatus.UNSURE and again.head is None:
            continue  # tonight's code did not answer: that refutes nothing
        since = next((p.started for p in story.points if p.run_id == doubt.since), None)
        mark = Mark(
            series=story.series,
            kind=MarkKind.REGRESSED,
            state=VerdictStatus.SLOWER.value,
            run_id=doubt.since or story.newest.run_id,
            started=story.newest.started if since is None else since,
            before_id=doubt.before,
            level=doubt.level_s,
            reason=str(again.reason),
            author=_AUTHOR,
            created=time.time(),
        )
        if again.status is VerdictStatus.BROKEN:
            mark = replace(mark, state=doubt.result.status.value)
        elif again.status is VerdictStatus.SAME and doubt.is_proven and paired:
            # The code before the step is as slow today: the machine or the software below changed.
            reason = f"as fast as the last good version in paired rounds: {again.reason}"
            mark = replace(mark, kind=MarkKind.ACCEPTED, reason=reason)
        elif again.status is not VerdictStatus.SLOWER:
            newest = story.newest
            mark = replace(
                mark, kind=MarkKind.REFUTED, run_id=newest.run_id, started=newest.started
            )
        is_held = bool(story.held) and not paired
        if not (is_held or (doubt.is_proven and mark.kind is MarkKind.REFUTED)):
            marks_by_series[mark.series, mark.kind] = mark
    regressed = {series for series, kind in marks_by_series if kind is MarkKind.REGRESSED}
    return [
        mark
        for mark in marks_by_series.values()
        if mark.kind is MarkKind.REGRESSED or mark.series not in regressed
    ]


def _unsuspected(result: Result, story: Story | None) -> Change:
    """Return the change of a result that is no suspect."""
    if story is None:  # another run of tonight has the series' newest point
        return change_of(result, None, VerdictStatus.UNSURE, Reason("no earlier run has it"))
    status = story.screen.status
    if status is VerdictStatus.NEW and len(story.points) > 1:
        status = VerdictStatus.UNSURE  # not new, but too few nights to judge it by
    change = change_of(result, level_s(story), status, story.screen.reason)
    return replace(change, since=story.change[1]) if story.confirmed else change


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
    past: History,
    doubts: Sequence[Doubt],
    confirmed: Mapping[Key, Change],
    tonight: Mapping[Key, Result],
) -> list[str]:
    notes = [f"a canary moved: {moved_text(item)}" for item in past.moved]
    if not past.watched:
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
    failed = Counter(item.status.value for item in tonight.values() if item.status.failed)
    notes += [f"{counted(count, 'case')} {status}" for status, count in failed.items()]
    if past.audit.compared:
        notes.append(
            f"same binary in successive runs: {past.audit.alarms} of {past.audit.compared} rows "
            "called changed, each a false alarm or the machine"
        )
    return notes


def compared_change(store: Store, base: str, head: str, series: str) -> Change | None:
    """Return the row of a series in the comparison of two runs."""
    compared = compare(base, head, store=store, canaries="")
    pairs = zip(compared.rows, of_comparison(compared), strict=True)
    return next((change for row, change in pairs if row.pair.shown.series == series), None)


Tell = Callable[[str], None]
Sides = tuple[Side, Side]


def confirm_paired(
    doubts: Sequence[Doubt], file: Nightly, store: Store, tell: Tell
) -> dict[Key, Change]:
    """Compare the suspects of each device with the base in paired rounds. Suspects that have no
    base, as nothing was committed since, or whose base fails, are measured again alone."""
    changes: dict[Key, Change] = {}
    budget = Budget(seconds=file.judge.budget_s)
    groups: dict[tuple[str, str], list[Doubt]] = {}
    for doubt in doubts:
        # With a repository the base is the last good commit; else there is one base.
        before = doubt.before if file.base.repo else ""
        groups.setdefault((doubt.result.device, before), []).append(doubt)
    for (device, before), mine in groups.items():
        if budget.left_s <= 0:
            tell("note: the time to confirm suspects is over")
            return changes
        try:
            with _sides(file, store, before, mine[0]) as (sides, argv):
                plan = partial(
                    plan_pairs,
                    sides=sides,
                    device=device,
                    label=f"{file.name}-confirm",
                    budget_s=budget.left_s,
                )
                changes |= paired_changes(
                    mine, plan, argv, store, files=_kernel_files(file, sides[1].folder)
                )
        except KernelmarkError as error:  # a base that does not build gives no verdict
            tell(f"note: suspects on {device} are not compared in pairs: {error.message}")
    judged = {key: item for key, item in changes.items() if item.status in _JUDGED}
    alone = [doubt for doubt in doubts if doubt.key not in judged and doubt.is_worse]
    return judged | (confirm_repeated(alone, file, store, tell) if alone else {})


# Verdicts of paired rounds in which both sides ran, or only the head failed.
_JUDGED = (*ALARMS, VerdictStatus.SAME, VerdictStatus.FASTER, VerdictStatus.UNSURE)


def _kernel_files(file: Nightly, folder: str = "") -> dict[str, str]:
    """Return the path of each kernel file by its name in history. If its repository is checked out
    at `folder`, the path is relative to that, so that each side measures its own version."""
    repository = Repository(file.base.repo) if file.base.repo and folder else None
    files = {}
    for table in file.run:
        with contextlib.suppress(KernelmarkError):  # its run said so already
            for ref, kernel in own_kernels(table.load_backends()).items():
                path = Path(kernel.path)
                if repository is not None and path.is_relative_to(repository.top):
                    ref = os.path.relpath(path, repository.top / repository.inside)
                files[kernel.name] = ref if "/" in ref else f"./{ref}"
    return files


def _named_by_file(case: Case, files: Mapping[str, str]) -> Case:
    """Return the case with the file of its kernel: a stored case has the name in history."""
    path = files.get(case.backend)
    return case if path is None else dataclasses.replace(case, backend=path, name=case.backend)


def paired_changes(
    doubts: Sequence[Doubt],
    plan: Callable[[tuple[Pair, ...]], AbPlan],
    argv: tuple[str, ...],
    store: Store | None,
    *,
    files: Mapping[str, str] = _NO_FILES,
    environments: Environments | None = None,
    opener: Opener | None = None,
) -> dict[Key, Change]:
    """Compare the suspects on one device in paired rounds, and return their changes. `files` are
    the paths of kernel files by their names in history. `opener` replaces the workers of this
    machine, and then needs `environments`."""
    cases = {doubt.key: _named_by_file(_round(doubt.result.case), files) for doubt in doubts}
    pairs_plan = plan(tuple(Pair(base=case, head=case) for case in cases.values()))
    report = compare_sides(
        pairs_plan, environments or captured(pairs_plan), store=store, argv=argv, opener=opener
    )
    if report.base.state is RunState.INTERRUPTED:
        raise KeyboardInterrupt
    changed_rows = zip(report.rows, of_pairs(report.rows, argv), strict=True)
    changes = {kernel_key(row.pair.base): change for row, change in changed_rows}
    return {k: changes[kernel_key(c)] for k, c in cases.items() if kernel_key(c) in changes}


def plan_pairs(
    pairs: tuple[Pair, ...], *, sides: Sides, device: str, label: str, budget_s: float
) -> AbPlan:
    """Return the comparison of suspects, with enough rounds to detect a change in a single
    pair."""
    rule = Rule(looks=looks_for(len(pairs)))
    return AbPlan(
        sides=sides, pairs=pairs, device=device, rule=rule, label=label, budget_s=budget_s
    )


def looks_for(pairs: int) -> Looks:
    """Return looks with enough rounds to detect a change in only one of `pairs` pairs."""
    usual = Looks()
    need = rounds_for_one(usual, pairs)
    if need <= usual.last:
        return usual
    return Looks(rounds=(*usual.rounds, need + need % 2))


@contextlib.contextmanager
def _sides(
    file: Nightly, store: Store, before: str, doubt: Doubt
) -> Iterator[tuple[Sides, tuple[str, ...]]]:
    """Yield (base, head) and the words of the command that compares them."""
    base = file.base
    if not base.repo:
        side = parse_side(f"base={base.python}" if base.python else "base")
        side = dataclasses.replace(side, variables=base.set)
        command = ["ab", "--env", f"base={side.python}", "--env", "head"]
        command += [
            w for name, value in base.set.items() for w in ("--set", f"base:{name}={value}")
        ]
        yield (side, Side(name="head")), (*command, *_device_words(doubt.result))
        return
    recipe = Recipe(
        build=base.build, python=base.python, variables=base.set, timeout_s=base.build_timeout_s
    )
    commit = store.run(before).environment.commit if before else ""
    with Checkouts(Repository(base.repo), recipe) as checkouts:
        head = checkouts.repository.commit("HEAD")
        if not commit or commit == head:
            raise KernelmarkError(
                f"the last good run {before} has no commit, or that of tonight's runs"
            )
        sides = checkouts.side("base", commit), checkouts.side("head", head)
        command = ["gate", "--base", commit[:12], "--head", head[:12], "--repo", base.repo]
        command += ["--build", base.build] if base.build else []
        command += ["--python", base.python] if base.python else []
        command += [w for name, value in base.set.items() for w in ("--set", f"{name}={value}")]
        yield sides, (*command, *_device_words(doubt.result))


def confirm_repeated(
    doubts: Sequence[Doubt], file: Nightly, store: Store, tell: Tell
) -> dict[Key, Change]:
    """Measure the suspects again in fresh processes, and apply the strict screen. This excludes
    effects of a single process, not a change of the machine, which canaries reveal."""
    changes: dict[Key, Change] = {}
    files = _kernel_files(file)
    devices: dict[str, list[Doubt]] = {}
    for doubt in doubts:
        devices.setdefault(doubt.result.device, []).append(doubt)
    for device, mine in devices.items():
        cases = tuple(
            _named_by_file(_repeated(doubt.result.case, file.judge.repeats), files)
            for doubt in mine
        )
        plan = Plan(cases=cases, devices=(find(device)[1],), suite="")
        results = measure(
            plan,
            conduct=Conduct(
                label=f"{file.name}-again",
                argv=("nightly-again", file.path.name),
                repository=file.base.repo,
            ),
            store=store,
        )
        if results.run.state is RunState.INTERRUPTED:
            raise KeyboardInterrupt
        again = {key_of(result): result for result in results}
        for doubt in mine:
            if doubt.key in again:
                changes[doubt.key] = verdict_again(doubt, again[doubt.key], file.judge.min_effect)
                if doubt.story is None:  # flagged and judged by the baseline alone
                    row = compared_change(store, doubt.before, results.run.id, doubt.result.series)
                    changes |= {doubt.key: row} if row is not None else {}
    return changes


def verdict_again(doubt: Doubt, again: Result, min_effect: float) -> Change:
    """Return the verdict on a suspect's repeated measurement, by the strict screen."""
    if again.status is not Status.OK or again.measurement is None:
        failed = Reason(
            again.status.value + (f": {shorten(again.error)}" if again.error else ""),
            "failed",
            status=again.status.value,
            cause=again.error,
        )
        broken = VerdictStatus.BROKEN if doubt.level_s or _worked(doubt) else VerdictStatus.IGNORED
        return change_of(again, doubt.level_s, broken, failed)
    if doubt.story is None or doubt.status is VerdictStatus.BROKEN:
        reason = Reason(f"looked {doubt.status.value}; measured again, that was not confirmed")
        by_median = doubt.story is None
        return change_of(again, doubt.level_s, VerdictStatus.UNSURE, reason, by_median=by_median)
    screen = screened_again(doubt.story, counted_s(again.measurement), min_effect=min_effect)
    return change_of(again, doubt.level_s, screen.status, screen.reason)


def _worked(doubt: Doubt) -> bool:
    points = doubt.story.points if doubt.story else ()
    return any(point.status is Status.OK for point in points)


def _round(case: Case) -> Case:
    """Return the case with the duration of a round and the conditions of the night's timing."""
    kept = {name: getattr(case.timing, name) for name in ("cache", "strain", "duty", "threads")}
    return dataclasses.replace(case, timing=dataclasses.replace(ROUND, **kept))


def _repeated(case: Case, processes: int) -> Case:
    timing = dataclasses.replace(case.timing, processes=max(processes, case.timing.processes))
    return dataclasses.replace(case, timing=timing)


def _device_words(result: Result) -> tuple[str, ...]:
    return () if result.device == "cpu" else ("-d", result.device)
