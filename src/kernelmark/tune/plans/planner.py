"""Planning: a plan for each problem of a summary, and their files, which keep a user's edits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kernelmark import backends
from kernelmark.backends.base import Backend
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason, prefixed, suffixed
from kernelmark.core.result import Case, Config, Status
from kernelmark.core.space import Space
from kernelmark.runners.forecast import work
from kernelmark.tune.folder import State, TuningFolder, digest, unreadable, write_whole
from kernelmark.tune.plans import planfile
from kernelmark.tune.plans.plan import Acceptance, Budget, TunePlan
from kernelmark.tune.plans.summary import Cost, Summary, counted, counts, summary
from kernelmark.workloads.workload import Workload

_LETTERS = {
    "f64": "D",
    "f32": "S",
    "tf32": "X",
    "f16": "H",
    "bf16": "B",
    "f8e4m3": "F8",
    "f8e5m2": "B8",
    "f8e4m3fnuz": "F8N",
    "f8e5m2fnuz": "B8N",
    "f4e2m1": "F4",
    "i8": "I8",
    "i32": "I",
}
_SHORT = {"attention": "ATTN"}
_COUNTER = re.compile(r"(.+)_(\d+)\Z")


def stem(problem: Problem) -> str:
    """Return the name of a problem without its counter."""
    if problem.op == "gemm":
        return _gemm_name(problem)
    if problem.op == "batched_gemm":
        return f"BATCHED_{_gemm_name(problem)}"
    if problem.op == "batched_gemm_quant":
        scheme = str(problem.options["scheme"]).upper()
        return f"BATCHED_{scheme}_{_letter(problem.dtypes['c'])}"
    first = next(iter(problem.dtypes.values()), "")
    op = _SHORT.get(problem.op, problem.op.upper())
    return f"{op}_{first.upper()}" if first else op


def assign(problems: Iterable[Problem], given: Mapping[str, str]) -> dict[str, str]:
    """Return names by problem key: the one in `given`, else the stem with the next free counter.

    A name in `given` is not reused, even if `problems` lacks the problem that has it."""
    taken = {name: key for key, name in given.items()}
    following: dict[str, int] = {}
    for name in taken:
        if match := _COUNTER.match(name):
            following[match[1]] = max(following.get(match[1], 0), int(match[2]) + 1)
    names: dict[str, str] = {}
    for problem in problems:
        if problem.key in given:
            names[problem.key] = given[problem.key]
        elif problem.key not in names:
            kind = stem(problem)
            number = following.get(kind, 0)
            following[kind] = number + 1
            names[problem.key] = f"{kind}_{number}"
    return names


def _gemm_name(problem: Problem) -> str:
    types, options = problem.dtypes, problem.options
    # BLAS computes the transpose of our row-major GEMM: its A is our B.
    a, b = _letter(types["b"]), _letter(types["a"])
    inputs = a if a == b else a + b
    layout = "".join("N" if options[name] == "n" else "T" for name in ("tb", "ta"))
    return f"{inputs}{_letter(types['c'])}{_letter(types['acc'])}_{layout}"


def _letter(dtype: str) -> str:
    return _LETTERS.get(dtype, dtype.upper())


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that all plans of one call share."""

    backend: str
    reference: str
    strategy: str = "kmark"
    seed: int = 1
    budget: Budget = field(default_factory=Budget)
    acceptance: Acceptance = field(default_factory=Acceptance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A plan, with the default config and the size of its space."""

    plan: TunePlan
    default: Config
    combinations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A problem that no plan is written for, with the reason. `bare`: the backend has nothing to
    tune for it. `by_reference`: the reference is another backend, which cannot run it."""

    cost: Cost
    reason: Reason
    bare: bool = False
    by_reference: bool = False


class Fate(StrEnum):
    """What was done with a plan's file."""

    NEW = "new"
    CHANGED = "changed"  # overwritten: the user had not edited it
    SAME = "same"
    EDITED = "edited"  # kept: the user edited it
    UNREADABLE = "unreadable"  # kept: the user edited it, and it is invalid now


def costs_of(workload: Workload, known: Summary | None, thr: float | None) -> list[Cost]:
    """Return all problems of the workload by contribution: timed ones by time, then untimed ones
    by calls × work.

    Counts come from the workload, so shares are correct after another log was imported. `thr` is in
    percent; None keeps the summary's selection. Problems that are not in the summary are then
    selected only if all problems in it are."""
    called = counts(workload)
    timed = {} if known is None else {cost.problem: cost for cost in known.costs}
    whole = all(cost.selected for cost in timed.values())
    costs = [
        counted(timed[problem], count)
        if problem in timed
        else Cost(problem=problem, count=count, selected=whole)
        for problem, count in called.items()
    ]
    if known is not None:
        costs = list(summary(known.basis, costs, thr=thr).costs)
    return sorted(costs, key=lambda cost: (-cost.total_s, -cost.count * _work(cost.problem)))


def drafts(
    costs: Iterable[Cost],
    *,
    names: Mapping[str, str],
    blas: Mapping[Problem, Mapping[str, str]],
    settings: Settings,
    info: DeviceInfo,
    timed_by: str = "",
) -> tuple[list[Draft], list[Refused]]:
    """Return a plan for each problem that can be tuned, in the order given, and the refused ones.

    `timed_by` is the backend that the costs were timed with. If it is the reference, its failures
    are refused and its times are the reference's; otherwise both are ignored."""
    backend, reference = backends.find(settings.backend), backends.find(settings.reference)
    drafted: list[Draft] = []
    refused: list[Refused] = []
    own, another = timed_by == settings.reference, settings.reference != settings.backend
    for cost in costs:
        failed = own and cost.status not in (None, Status.OK)
        if failed:
            role = "the reference " if another else ""
            reason = Reason(f"{role}{settings.reference} {cost.status}: {cost.reason}")
        else:
            reason = _refusal(reference, cost.problem, info, reference=another)
        if reason:
            refused.append(Refused(cost=cost, reason=reason, by_reference=another))
            continue
        reason = _refusal(backend, cost.problem, info)
        if reason:
            refused.append(Refused(cost=cost, reason=reason))
            continue
        space, reason = _space(backend, cost.problem, info)
        if space is None:
            refused.append(Refused(cost=cost, reason=reason, bare=True))
            continue
        plan = TunePlan(
            name=names[cost.problem.key],
            problem=cost.problem,
            backend=settings.backend,
            reference_backend=settings.reference,
            arch=info.arch,
            strategy=settings.strategy,
            seed=settings.seed,
            budget=settings.budget,
            acceptance=settings.acceptance,
            space=FrozenDict(space.parameters),
            count=cost.count,
            share=round(cost.share, 8),
            reference_s=float(f"{cost.time_s:.6g}") if own and cost.status is Status.OK else 0.0,
            blas=FrozenDict(blas.get(cost.problem, {})),
        )
        drafted.append(Draft(plan=plan, default=space.default, combinations=space.size))
    return drafted, refused


def named(folder: TuningFolder, problems: Sequence[Problem]) -> dict[str, str]:
    """Return names by problem key, keeping existing ones. Names missing in the state are read from
    the plans."""
    names = dict(folder.read_state().names)
    taken = set(names.values())
    for name in folder.names():
        if name not in taken:
            names.setdefault(planfile.read(folder.plan(name)).problem.key, name)
    return names | assign(problems, names)


def write(
    folder: TuningFolder, drafted: Iterable[Draft], names: Mapping[str, str], *, force: bool = False
) -> dict[str, Fate]:
    """Write every plan to its file, except for files that the user edited (`force` overwrites
    these too)."""
    written = dict(folder.read_state().written)
    fates: dict[str, Fate] = {}
    for draft in drafted:
        name = draft.plan.name
        path, text = folder.plan(name), planfile.text(draft.plan, default=draft.default)
        there = _text_at(path)
        if there == text:
            fates[name] = Fate.SAME
        elif there is not None and digest(there) != written.get(name) and not force:
            fates[name] = Fate.UNREADABLE if complaint(path) else Fate.EDITED
            continue
        else:
            fates[name] = Fate.NEW if there is None else Fate.CHANGED
            write_whole(path, text)
        written[name] = digest(text)
    folder.write_state(State(names=FrozenDict(names), written=FrozenDict(written)))
    return fates


def complaint(path: Path) -> str:
    """Return the error in a plan's file, "" if it is valid."""
    try:
        planfile.read(path)
    except KernelmarkError as error:
        return error.message
    return ""


def _text_at(path: Path) -> str | None:
    """Return the text of a file, None if it does not exist."""
    try:
        # A file that is not UTF-8 differs from what was written, so it counts as edited.
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from None


def _refusal(
    backend: Backend, problem: Problem, info: DeviceInfo, *, reference: bool = False
) -> Reason:
    rule: Callable[[Problem, DeviceInfo], str | None] = backend.supports
    if not _is_present(info):  # then the libraries that run the backend need not be installed
        rule = getattr(backend, "refuses", rule)
    cause = rule(problem, info)
    if cause is None:
        return NO_REASON
    return prefixed(cause, ("the reference " if reference else "") + f"{backend.name}: ")


def _is_present(info: DeviceInfo) -> bool:
    # A device that is known by its architecture alone has no memory size.
    return info.memory_bytes > 0


def tunable(problem: Problem, info: DeviceInfo) -> list[str]:
    """Return the backends with something to tune for a problem; `fake` only on a fake device."""
    names = []
    for name in backends.registry.names():
        try:
            backend = backends.find(name)
            able = info.kind in backend.device_kinds and not _refusal(backend, problem, info)
            able = able and (name != "fake" or info.kind == "fake")
            if able and _space(backend, problem, info)[0]:
                names.append(name)
        except KernelmarkError:
            continue
    return names


def _space(backend: Backend, problem: Problem, info: DeviceInfo) -> tuple[Space | None, Reason]:
    try:
        space = backend.space(problem, info)
    except KernelmarkError as error:
        if _is_present(info) or backends.is_file(backend.name):
            return None, prefixed(error.message, f"{backend.name}: ")
        return None, Reason(
            f"{backend.name} cannot list its candidates here ({error.message}):"
            " plan it on the machine with the GPU"
        )
    if space is None or next(iter(space), None) is None:
        reason = Reason(
            f"{backend.name} has nothing to tune for it on {info.arch}",
            "nothing-to-tune",
            backend=backend.name,
            arch=info.arch,
        )
        cause = backend.untunable(problem, info)
        return None, suffixed(reason, f": {cause}" if cause else "")
    return space, NO_REASON


def _work(problem: Problem) -> float:
    return work(Case(problem=problem, backend="")) or 0.0
