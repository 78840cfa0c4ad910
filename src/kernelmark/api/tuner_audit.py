"""Audit the choices of other tuners: measure each against the default and against alternatives.

Every row of a tuner's file is compared by `ab`'s engine with the default and with alternatives of
its problem. These are the configs that the tuner timed too and, if there are too few, others of the
backend's space, drawn by a seed. Each round is a fresh process for both sides of a pair, so that a
round is also what a tuner that measures once would have seen: how often its winner changes between
rounds is the flip rate.

The regret of a choice is how much slower it is than the best contender, which is not known. Its
interval spans those of all contenders, from the largest lower end to the largest upper end, as
every interval covers its own ratio. So it also holds for the best of them; it says nothing about
configs that were not measured.

A choice is changed only where another contender is significantly faster. Of those whose intervals
overlap with that of the fastest, the default is taken, else the first by its text. Other choices
stay, so that an audit of an audited file changes no more than noise that is called a discovery
does.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernelmark import backends
from kernelmark.api.ab import AbPlan, captured, compare_sides
from kernelmark.backends._lineage import own_kernels
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import UNEXPECTED, CaseError, KernelmarkError, NothingToDo, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import prefixed
from kernelmark.core.result import Case, RunState, Space, Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.runners import kernel_files, targets
from kernelmark.runners.ab import OnEvent, Opener, Pair, Row, Side
from kernelmark.tune.install.emitters.base import CannotWrite
from kernelmark.tune.recorded import format_of
from kernelmark.tune.recorded.audited import AuditedRow, AuditPlan, AuditReport, Regret, RowVerdict
from kernelmark.tune.recorded.base import Applied, ChoiceFormat, Contender, RecordedChoice
from kernelmark.workloads.importers import ResultFile

_SIDES = (Side(name="other"), Side(name="choice"))
# Points of a space that are drawn for each alternative: some are equal in code or do not compile.
_LISTED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedFile:
    """A tuner's file, its format and all of its rows."""

    path: Path
    format: ChoiceFormat
    content: ResultFile
    rows: tuple[RecordedChoice, ...]


def read_file(path: Path, plan: AuditPlan) -> TunedFile:
    """Read every row of a tuner's file; raise UsageError with its place if it is damaged."""
    tuner = format_of(path, plan.format)
    content = ResultFile(path)
    with _in_file(content, tuner):
        rows = tuple(tuner.rows(content, plan.facts))
    if not rows:
        raise NothingToDo(f"{path} has no choices")
    return TunedFile(path=path, format=tuner, content=content, rows=rows)


@contextmanager
def _in_file(content: ResultFile, tuner: ChoiceFormat) -> Iterator[None]:
    """Add the place in the file to errors."""
    hint = f"it was read as {tuner.name}: is it whole, and as that tuner wrote it?"
    try:
        yield
    except UNEXPECTED as error:
        text = f"{type(error).__name__}: {str(error)[:80]}"
        raise UsageError(
            f"{content.path} is not a whole file of {tuner.name}: {text}", hint=hint
        ) from error
    except UsageError as error:
        where = f"{content.path}: {content.at}" if content.at else str(content.path)
        named = str(error.message).startswith(f"{content.path}:")
        reason = error.message if named else prefixed(error.message, f"{where}: ")
        raise UsageError(reason, hint=error.hint or hint) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A row with the contenders that its choice is compared with, the default first if it has one
    of its own; `reason` is not empty if it cannot be measured."""

    row: RecordedChoice
    contenders: tuple[Contender, ...] = ()
    default: Contender | None = None
    reason: str = ""


def contests(rows: Iterable[RecordedChoice], plan: AuditPlan) -> list[Contest]:
    """Return what each row is compared with."""
    info = targets.find(plan.device)[1]
    return [_contest(row, plan, info) for row in rows]


def _contest(row: RecordedChoice, plan: AuditPlan, info: DeviceInfo) -> Contest:
    if row.reason or row.problem is None or row.choice is None:
        return Contest(row=row, reason=row.reason or "the row has no problem")
    try:
        reason = _unable(row.choice, row.problem, info)
        space = None if reason else _space_of(row.choice, row.problem, info)
    except KernelmarkError as error:
        reason, space = str(error.message), None
    if reason:
        return Contest(row=row, reason=reason)
    usual = row.default or Contender(backend=row.choice.backend)
    default = None if _unable(usual, row.problem, info) else usual
    same = {_identity(row.choice, space)}
    contenders = []
    if default is not None and _identity(default, space) not in same:
        contenders.append(default)
        same.add(_identity(default, space))
    draw = random.Random(f"{plan.rule.seed} {row.problem.key}")
    recorded = [each for each in row.others if not _unable(each, row.problem, info)]
    draw.shuffle(recorded)
    drawn: Iterable[Contender] = () if row.closed else _drawn(row.choice.backend, space, draw)
    for other in (*recorded, *drawn):
        if len(contenders) - (default in contenders) >= plan.alternatives:
            break
        if (identity := _identity(other, space)) not in same:
            same.add(identity)
            contenders.append(other)
    if not contenders:
        reason = "there is nothing to compare it with: it is the default, and has no alternatives"
        return Contest(row=row, reason=reason)
    return Contest(row=row, contenders=tuple(contenders), default=default)


def _unable(contender: Contender, problem: Problem, info: DeviceInfo) -> str:
    """Return why a contender cannot compute the problem here, or ""."""
    try:
        backend = kernel_files.find(contender.backend)
        for reason in (
            backend.available(),
            backend.missing_on(info.kind),
            backend.supports(problem, info),
        ):
            if reason:
                return reason
        backend.check_config(problem, contender.config, info)
    except (CaseError, UsageError) as error:
        return str(error.message)
    return ""


def _space_of(choice: Contender, problem: Problem, info: DeviceInfo) -> Space | None:
    return kernel_files.find(choice.backend).space(problem, info)


def _identity(contender: Contender, space: Space | None) -> str:
    """Return the same text for a config and for one that leaves out values of the default."""
    own = {} if space is None or contender.backend == "torch" else space.default
    return dataclasses.replace(contender, config=FrozenDict({**own, **contender.config})).key


def _drawn(backend: str, space: Space | None, draw: random.Random) -> Iterator[Contender]:
    """Yield points of a space in random order."""
    if space is None or not space.parameters:
        return
    from kernelmark.tune.strategies.base import Points

    points = Points.of(space, limit=_LISTED, seed=draw.randrange(1 << 31))
    for index in draw.sample(range(len(points)), len(points)):
        yield Contender(backend=backend, config=points.config(index))


def ab_plan(contested: Sequence[Contest], plan: AuditPlan) -> AbPlan:
    """Return the comparison of every contender with its choice."""
    names = {c.backend for contest in contested for c in (*contest.contenders, *_choice(contest))}
    own = own_kernels([backends.parse(name) for name in names])

    def case(problem: Problem, contender: Contender) -> Case:
        name = own[contender.backend].name if contender.backend in own else ""
        return Case(
            problem=problem,
            backend=contender.backend,
            config=contender.config,
            timing=plan.timing,
            name=name,
        )

    pairs = [
        Pair(base=case(contest.row.problem, other), head=case(contest.row.problem, choice))
        for contest in contested
        if contest.row.problem is not None
        for choice in _choice(contest)
        for other in contest.contenders
    ]
    return AbPlan(
        sides=_SIDES,
        pairs=tuple(dict.fromkeys(pairs)),  # of rows with one problem and choice
        device=targets.find(plan.device)[1].name,
        rule=plan.rule,
        timeout_s=plan.timeout_s,
        jobs=plan.jobs,
    )


def _choice(contest: Contest) -> tuple[Contender, ...]:
    return () if contest.row.choice is None or contest.reason else (contest.row.choice,)


def audit(
    files: Sequence[TunedFile],
    plan: AuditPlan,
    *,
    contested: Mapping[str, Sequence[Contest]] | None = None,
    on_event: OnEvent | None = None,
    opener: Opener | None = None,
) -> AuditReport:
    """Measure every row of the files, and judge it. `contested` has the contests by file, if they
    were planned already; `opener` replaces the workers of this machine."""
    planned = contested or {str(file.path): contests(file.rows, plan) for file in files}
    compared = ab_plan([contest for each in planned.values() for contest in each], plan)
    rows: Sequence[Row] = ()
    state = RunState.DONE
    if compared.pairs:
        environments = captured(compared) if opener is None else (Environment(), Environment())
        report = compare_sides(
            compared, environments, on_event=on_event, opener=opener, argv=("audit",)
        )
        rows, state = report.rows, report.base.state
    by_pair = {_key(row.pair): row for row in rows}
    return AuditReport(
        plan=plan,
        rows=tuple(
            _judged(file, contest, by_pair, plan.log)
            for file in files
            for contest in planned[str(file.path)]
        ),
        state=state,
    )


def _key(pair: Pair) -> tuple[str, str, str]:
    other, choice = (Contender(backend=c.backend, config=c.config).key for c in pair.cases)
    return pair.base.problem.key, other, choice


def _judged(
    file: TunedFile, contest: Contest, rows: Mapping[tuple[str, str, str], Row], log: str
) -> AuditedRow:
    row, choice = contest.row, contest.row.choice
    applied = file.format.applied(file.content, row, log) if log else Applied.UNKNOWN
    audited = AuditedRow(
        file=str(file.path),
        row=row,
        verdict=RowVerdict.UNMEASURED,
        reason=contest.reason,
        applied=applied,
    )
    if contest.reason or row.problem is None or choice is None:
        return audited
    keys = {other: (row.problem.key, other.key, choice.key) for other in contest.contenders}
    measured = {other: rows[key] for other, key in keys.items() if key in rows}
    verdict, reason = judge(measured, contest.default)
    return dataclasses.replace(
        audited,
        verdict=verdict,
        reason=reason,
        pairs=tuple(measured.values()),
        default=measured.get(contest.default) if contest.default else None,
        regret=regret(measured.values()),
        ties=tuple(o for o, pair in measured.items() if pair.status is VerdictStatus.SAME),
        flips=flip_rate(measured.values()),
        stable=stable_choice(choice, measured, contest.default),
    )


Measured = Mapping[Contender, Row]


def judge(measured: Measured, default: Contender | None) -> tuple[RowVerdict, str]:
    """Return the verdict on a choice, from the verdicts on its pairs (contender → choice)."""
    if not measured:
        return RowVerdict.UNSURE, "it was not measured before the end"
    failed = [pair for pair in measured.values() if _choice_fails(pair)]
    if failed:
        return RowVerdict.FAILED, str(failed[0].head.error or failed[0].reason)
    slower = {c: pair for c, pair in measured.items() if pair.status is VerdictStatus.SLOWER}
    if default in slower:
        return RowVerdict.SLOWER, str(slower[default].reason)
    if slower:
        best = max(slower.values(), key=_ratio)
        return RowVerdict.BEATEN, str(best.reason)
    # A contender that does not run proves nothing.
    ran = [pair for pair in measured.values() if pair.paired is not None]
    if not ran:
        cause = next(iter(measured.values())).reason
        return RowVerdict.UNSURE, f"no contender could be compared: {cause}"
    if opened := [pair for pair in ran if pair.status is VerdictStatus.UNSURE]:
        return RowVerdict.UNSURE, str(opened[0].reason)
    if same := sum(pair.status is VerdictStatus.SAME for pair in ran):
        return RowVerdict.TIED, f"with {same} of {len(ran)}"
    return RowVerdict.BEST, f"of {len(ran) + 1}"


def _choice_fails(pair: Row) -> bool:
    return pair.head.status is not Status.OK and pair.status in (
        VerdictStatus.BROKEN,
        VerdictStatus.IGNORED,
    )


def _ratio(pair: Row) -> float:
    return pair.paired.ratio if pair.paired is not None else 1.0


def regret(pairs: Iterable[Row]) -> Regret | None:
    """Return the regret of a choice, None if it was compared with nothing."""
    tests = [pair.paired for pair in pairs if pair.paired is not None]
    if not tests:
        return None
    low, value, high = (
        max(getattr(test, name) for test in tests) - 1 for name in ("low", "ratio", "high")
    )
    return Regret(value=max(value, 0.0), low=max(low, 0.0), high=max(high, 0.0))


def flip_rate(pairs: Iterable[Row]) -> float | None:
    """Return the share of processes whose fastest is not the usual one, over the processes that
    measured every contender that does not lose; None with fewer than two."""
    open_pairs = [p for p in pairs if p.paired is not None and p.status is not VerdictStatus.FASTER]
    rounds = min((min(len(p.base_s), len(p.head_s)) for p in open_pairs), default=0)
    if rounds < 2:
        return 0.0 if not open_pairs else None
    winners = Counter(
        min(
            range(len(open_pairs) + 1),
            key=lambda i: open_pairs[i - 1].base_s[r] / open_pairs[i - 1].head_s[r] if i else 1.0,
        )
        for r in range(rounds)
    )
    return 1 - max(winners.values()) / rounds


def stable_choice(choice: Contender, measured: Measured, default: Contender | None) -> Contender:
    """Return what to write: the choice, unless a contender is proven faster, or it fails."""
    faster = {c: pair for c, pair in measured.items() if pair.status is VerdictStatus.SLOWER}
    if any(_choice_fails(pair) for pair in measured.values()):
        # Without times of the choice, contenders are not ordered.
        good = [c for c, pair in measured.items() if pair.base.status is Status.OK]
        return _first(good, default) or choice
    tests = {c: pair.paired for c, pair in faster.items() if pair.paired is not None}
    if not tests:
        return choice
    least = max(tests.values(), key=lambda test: test.ratio).low
    return _first([c for c, test in tests.items() if test.high >= least], default) or choice


def _first(contenders: Sequence[Contender], default: Contender | None) -> Contender | None:
    if default in contenders:
        return default
    return min(contenders, key=lambda contender: contender.key, default=None)


def stable_text(file: TunedFile, report: AuditReport) -> str:
    """Return the file with its stable choices; raise UsageError if it cannot have one of them."""
    if not file.format.writes:
        raise UsageError(
            f"{file.path}: no tuner reads files of {file.format.name} back",
            hint="leave -o out; --json writes the verdicts",
        )
    changes = {
        row.row.where: row.stable
        for row in report.rows
        if row.file == str(file.path) and row.is_changed and row.stable is not None
    }
    if not changes:
        return file.content.text
    try:
        return file.format.rewritten(file.content, changes)
    except CannotWrite as error:
        raise UsageError(f"{file.path} cannot have the stable choice: {error.reason}") from None
