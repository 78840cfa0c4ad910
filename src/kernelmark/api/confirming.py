"""Stage two of a night: measure suspects again, in paired rounds or in fresh processes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kernelmark.api.ab import AbPlan, Environments, captured, compare_sides
from kernelmark.api.checkouts import Checkouts, Recipe, Repository
from kernelmark.api.judging import Doubt, Key, change_of, compared_change, key_of
from kernelmark.api.nightly_file import Nightly
from kernelmark.api.plan import Plan
from kernelmark.api.running import Conduct, measure
from kernelmark.compare.history import counted_s
from kernelmark.compare.suspects import screened_again
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Result, RunState, Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.report.changes import Change, of_pairs
from kernelmark.runners.ab import ROUND, Budget, Opener, Pair, Rule
from kernelmark.runners.pool import kernel_key
from kernelmark.runners.sides import Side, parse_side
from kernelmark.runners.targets import find
from kernelmark.stats.paired import Looks, rounds_for_one

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

Tell = Callable[[str], None]
Sides = tuple[Side, Side]


def confirm_paired(
    doubts: Sequence[Doubt], file: Nightly, store: Store, tell: Tell
) -> dict[Key, Change]:
    """Compare the suspects of each device with the base in paired rounds."""
    found: dict[Key, Change] = {}
    budget = Budget(seconds=file.judge.budget_s)
    groups: dict[tuple[str, str], list[Doubt]] = {}
    for doubt in doubts:
        # With a repository the base is the commit before the change; else there is one base.
        before = doubt.before if file.base.repo else ""
        groups.setdefault((doubt.result.device, before), []).append(doubt)
    for (device, before), mine in groups.items():
        if budget.left_s <= 0:
            tell("note: the time to confirm suspects is over")
            break
        try:
            with _sides(file, store, before, mine[0]) as (sides, argv):
                plan = partial(
                    plan_pairs,
                    sides=sides,
                    device=device,
                    label=f"{file.name}-confirm",
                    budget_s=budget.left_s,
                )
                found |= paired_changes(mine, plan, argv, store)
        except KernelmarkError as error:  # a base that does not build gives no verdict
            tell(f"note: suspects on {device} are not confirmed: {error.message}")
    return found


def paired_changes(
    doubts: Sequence[Doubt],
    plan: Callable[[tuple[Pair, ...]], AbPlan],
    argv: tuple[str, ...],
    store: Store | None,
    *,
    environments: Environments | None = None,
    opener: Opener | None = None,
) -> dict[Key, Change]:
    """Compare the suspects on one device in paired rounds, and return their changes. `opener`
    replaces the workers of this machine, and then needs `environments`."""
    cases = {doubt.key: _round(doubt.result.case) for doubt in doubts}
    made = plan(tuple(Pair(base=case, head=case) for case in cases.values()))
    report = compare_sides(
        made, environments or captured(made), store=store, argv=argv, opener=opener
    )
    if report.base.state is RunState.INTERRUPTED:
        raise KeyboardInterrupt
    found = zip(report.rows, of_pairs(report.rows, argv), strict=True)
    changes = {kernel_key(row.pair.base): change for row, change in found}
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
        words = ["ab", "--env", f"base={side.python}", "--env", "head"]
        words += [w for name, value in base.set.items() for w in ("--set", f"base:{name}={value}")]
        yield (side, Side(name="head")), (*words, *_device_words(doubt.result))
        return
    recipe = Recipe(
        build=base.build, python=base.python, variables=base.set, timeout_s=base.build_timeout_s
    )
    commit = store.run(before).environment.commit
    with Checkouts(Repository(base.repo), recipe) as checkouts:
        head = checkouts.repository.commit("HEAD")
        if not commit or commit == head:
            raise KernelmarkError(Reason("no-earlier-commit", run=before, commit=commit))
        sides = checkouts.side("base", commit), checkouts.side("head", head)
        words = ["gate", "--base", commit[:12], "--head", head[:12], "--repo", base.repo]
        words += ["--build", base.build] if base.build else []
        words += ["--python", base.python] if base.python else []
        words += [w for name, value in base.set.items() for w in ("--set", f"{name}={value}")]
        yield sides, (*words, *_device_words(doubt.result))


def confirm_repeated(
    doubts: Sequence[Doubt], file: Nightly, store: Store, tell: Tell
) -> dict[Key, Change]:
    """Measure the suspects again in fresh processes, and apply the strict screen. This excludes
    effects of a single process, not a change of the machine, which canaries reveal."""
    found: dict[Key, Change] = {}
    devices: dict[str, list[Doubt]] = {}
    for one in doubts:
        devices.setdefault(one.result.device, []).append(one)
    for device, mine in devices.items():
        cases = tuple(_repeated(one.result.case, file.judge.repeats) for one in mine)
        plan = Plan(cases=cases, devices=(find(device)[1],), suite="")
        results = measure(
            plan,
            conduct=Conduct(label=f"{file.name}-again", roofs="none", repository=file.base.repo),
            store=store,
            argv=("nightly-again", file.path.name),
        )
        if results.run.state is RunState.INTERRUPTED:
            raise KeyboardInterrupt
        again = {key_of(result): result for result in results}
        for one in mine:
            if one.key in again:
                found[one.key] = verdict_again(one, again[one.key], file.judge.min_effect)
                if one.story is None:  # flagged and judged by the baseline alone
                    row = compared_change(store, one.before, results.run.id, one.result.series)
                    found |= {one.key: row} if row is not None else {}
    return found


def verdict_again(doubt: Doubt, again: Result, min_effect: float) -> Change:
    """Return the verdict on a suspect's repeated measurement, by the strict screen."""
    if again.status is not Status.OK or again.measurement is None:
        failed = Reason("failed", status=again.status.value, cause=again.error)
        broken = VerdictStatus.BROKEN if doubt.level_s or _worked(doubt) else VerdictStatus.IGNORED
        return change_of(again, doubt.level_s, broken, failed)
    if doubt.story is None or doubt.status is VerdictStatus.BROKEN:
        reason = Reason("not-confirmed", verdict=doubt.status.value)
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
