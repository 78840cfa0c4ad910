"""Write plans for the problems of a tuning folder, or create a folder from problems."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernelmark import backends
from kernelmark.api.plan import Selection, own_ops, problems_of, require
from kernelmark.api.tuning_summary import DEVICES, Place, check_percent, read_workload
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.timing import Timing
from kernelmark.gpu.architectures import absent
from kernelmark.runners import targets
from kernelmark.tune import strategies
from kernelmark.tune.folder import TuningFolder, hinted
from kernelmark.tune.plans import planfile, planner
from kernelmark.tune.plans import summary as summaries
from kernelmark.tune.plans.plan import Acceptance, Budget
from kernelmark.tune.plans.planner import Draft, Fate, Refused, Settings
from kernelmark.tune.plans.summary import Cost, Summary
from kernelmark.tune.records import ownership
from kernelmark.workloads import select
from kernelmark.workloads import workload as workloads
from kernelmark.workloads.logs import inputs
from kernelmark.workloads.logs.blas_words import F8_OCP, FNUZ_ARCHS, SHARED_BY
from kernelmark.workloads.workload import Call, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The outcome of `plan`: a draft for each problem with the fate of its file, problems that
    cannot be tuned, and problems that were not selected. `hint` says what to do if nothing was
    planned."""

    drafts: tuple[Draft, ...]
    fates: Mapping[str, Fate]
    refused: tuple[Refused, ...]
    left_out: tuple[Cost, ...]
    notes: tuple[str, ...] = ()
    hint: str = ""


def plan(
    place: Place,
    *,
    backend: str,
    reference: str | None = None,
    device: str | None = None,
    arch: str | None = None,
    thr: float | None = None,
    selection: Selection | None = None,
    strategy: str = "kmark",
    seed: int = 1,
    budget: Budget | None = None,
    acceptance: Acceptance | None = None,
    force: bool = False,
) -> Planned:
    """Write a plan for each problem of a tuning folder that is worth tuning.

    backend: the backend to tune.
    reference: the backend to beat (default: that of the summary, else the default config).
    device, arch: the target device, or its architecture if it is not in this machine.
    thr: least share of the workload's time, in percent (default: the summary's selection).
    selection: problems to add to the folder, which is created if missing. With only a filter or
        limit, it selects among the problems of the folder.
    strategy, seed, budget: how to search, and for how long.
    acceptance: least improvement that is kept.
    force: overwrite plans that were edited by hand.
    """
    backend = backends.canonical(backend)
    asked = dataclasses.replace(selection or Selection(), backends=(backend,))
    folder, workload, added = _workload_for(place, asked)
    known = _summary_for(folder, thr)
    info = _target(device, arch, known)
    chosen = Settings(
        backend=backend,
        reference=backends.canonical(reference or (known.basis.backend if known else backend)),
        strategy=strategy,
        seed=seed,
        budget=budget or Budget(),
        acceptance=acceptance or Acceptance(),
    )
    _check_settings(chosen, info, here=arch is None, named=reference is not None)
    ownership.check(folder, backend, info.arch)
    costs = _picked(planner.costs_of(workload, known, thr), asked, folder)
    names = planner.named(folder, [cost.problem for cost in costs])
    drafts, refused = planner.drafts(
        [cost for cost in costs if cost.selected],
        names=names,
        blas=_logged(workload),
        settings=chosen,
        info=info,
        # Times from another architecture weight the problems, but are no reference times here.
        timed_by=known.basis.backend if known and known.basis.arch == info.arch else "",
    )
    if drafts and added:
        with hinted("make room or allow writing there, then give the same command again"):
            workloads.write(TuningFolder.make(place).workload, workload)
    fates = planner.write(folder, drafts, names, force=force) if drafts else {}
    floats = _other_floats(folder, refused, info)
    return Planned(
        drafts=tuple(drafts),
        fates=fates,
        refused=tuple(refused),
        left_out=tuple(cost for cost in costs if not cost.selected),
        notes=(*_notes(folder, workload, known, info, costs, drafts, fates), *floats)
        if drafts
        else (),
        hint="" if drafts else "; ".join(floats) or _way_out(backend, refused, info),
    )


def _way_out(backend: str, refused: Sequence[Refused], info: DeviceInfo) -> str:
    if any(refusal.by_reference for refusal in refused):
        return Reason("choose-reference")
    bare = next((refusal.cost.problem for refusal in refused if refusal.bare), None)
    if bare is None:
        return ""
    if backends.is_file(backend):
        return f'add to {backend} what can be tried: space = {{"rows": [64, 128, 256]}}'
    names = ", ".join([*planner.tunable(bare, info), "a .py file of your own with a space"])
    return f"what can be tuned for it: {names}"


def _other_floats(
    folder: TuningFolder, refused: Sequence[Refused], info: DeviceInfo
) -> tuple[str, ...]:
    """Return a hint for OCP 8-bit floats on an architecture that only has FNUZ ones. BLAS logs use
    the same letters for both."""
    taken = {kind for refusal in refused for kind in refusal.cost.problem.dtypes.values()} & F8_OCP
    if not (taken and info.arch.startswith(FNUZ_ARCHS)):
        return ()
    if not SHARED_BY & inputs.formats(folder.workload):
        names = ", ".join(f"{kind}fnuz instead of {kind}" for kind in sorted(taken))
        return (f"{info.arch} has FNUZ 8-bit floats: use {names}",)
    return (
        f"{info.arch} has FNUZ 8-bit floats, and the log's were read as OCP's; import it again: "
        f"kmark import LOG --workload {folder.path} --arch {info.arch}",
    )


def _workload_for(place: Place, selection: Selection) -> tuple[TuningFolder, Workload, bool]:
    """Return the folder, its problems with the requested ones, and whether some were added."""
    if not _has_problems(selection):
        if selection.axes or selection.dtypes:
            if own := own_ops(selection.backends):
                return _workload_for(place, dataclasses.replace(selection, ops=own))
            raise UsageError(Reason("axes-without-op"), hint="for example: -o gemm -a m=512")
        folder = TuningFolder.open(place)
        return folder, read_workload(folder), False
    problems = problems_of(selection, Timing())
    folder = TuningFolder(Path(place).expanduser())
    there = read_workload(folder).calls if folder.workload.is_file() else ()
    have = {call.problem for call in there}
    new = tuple(Call(problem=problem) for problem in problems if problem not in have)
    return folder, Workload(name=folder.path.name, calls=(*there, *new)), bool(new)


def _summary_for(folder: TuningFolder, thr: float | None) -> Summary | None:
    """Return the summary, if there is one; raise UsageError if a threshold needs it."""
    if thr is not None:
        check_percent(thr)
    known = summaries.read(folder.summary)
    if known is None and thr:
        raise UsageError(
            Reason("threshold-without-shares"),
            hint=f"kmark tune summarise {folder.path}",
        )
    return known


def _has_problems(selection: Selection) -> bool:
    return bool(selection.ops or selection.suites or selection.problems)


def _picked(costs: list[Cost], selection: Selection, folder: TuningFolder) -> list[Cost]:
    """Return the costs that match the filter and limit, which apply here only if the selection
    names no problems."""
    if not _has_problems(selection):
        keep = [cost.problem for cost in costs]
        if selection.filter is not None:
            keep = select.matching(keep, selection.filter)
        chosen = set(keep if selection.limit is None else keep[: selection.limit])
        costs = [cost for cost in costs if cost.problem in chosen]
    if not any(cost.selected for cost in costs):
        raise NothingToDo(
            Reason("none-selected", folder=str(folder.path)),
            hint="lower --thr, or leave --filter and --limit out",
        )
    return costs


def _target(device: str | None, arch: str | None, known: Summary | None) -> DeviceInfo:
    if arch is not None:
        if device is not None:
            raise UsageError(
                Reason("arch-and-device", arch=arch, device=device), hint="leave one of them out"
            )
        return absent(arch)
    name = device or (known.basis.device.split(",")[0] if known else "cpu")
    with hinted(DEVICES):
        return targets.find(name)[1]


def _check_settings(chosen: Settings, info: DeviceInfo, *, here: bool, named: bool) -> None:
    """Raise UsageError for illegal settings. `named`: the user named the reference; otherwise it is
    that of the summary."""
    asked = chosen.acceptance
    numbers = {
        "seed": chosen.seed,
        "minutes": chosen.budget.minutes,
        "min_ratio": asked.min_ratio,
        "min_gain_us": asked.min_gain_us,
    }
    for name, number in numbers.items():
        if not (math.isfinite(number) and number >= 0):
            raise UsageError(
                Reason("argument-type", name=name, given=number, wanted="a number of at least 0"),
                hint="0 minutes are no limit; a ratio of 1 and a gain of 0 keep all that is faster",
            )
    if reason := planfile.too_few(asked.rounds):
        raise UsageError(reason, hint=f"ask for {planfile.LEAST_ROUNDS}, or more")
    _check_backend(chosen.backend, info, here=here)
    if chosen.reference != chosen.backend:
        with _reference_in_errors(by_summary=not named):
            _check_backend(chosen.reference, info, here=here)
    strategies.registry.get(chosen.strategy)


def _check_backend(name: str, info: DeviceInfo, *, here: bool) -> None:
    if here:
        require(name, info)
    elif info.kind not in (kinds := backends.find(name).device_kinds):
        raise UsageError(
            Reason("device-unsupported", backend=name, kinds=kinds, kind=info.kind, arch=info.arch)
        )


@contextmanager
def _reference_in_errors(*, by_summary: bool) -> Iterator[None]:
    """Add to a UsageError that the backend is the reference."""
    try:
        yield
    except UsageError as error:
        reason = Reason("as-reference", cause=error.message, by_summary=by_summary)
        raise UsageError(reason, hint=Reason("choose-reference", hint=error.hint)) from None


def _logged(workload: Workload) -> dict[Problem, Mapping[str, str]]:
    """Return the BLAS fields that were logged for each problem's most frequent call."""
    fields: dict[Problem, Mapping[str, str]] = {}
    for call in sorted(workload.calls, key=lambda call: -call.count):
        if call.blas:
            fields.setdefault(call.problem, call.blas)
    return fields


def _notes(
    folder: TuningFolder,
    workload: Workload,
    known: Summary | None,
    info: DeviceInfo,
    costs: Sequence[Cost],
    drafts: Sequence[Draft],
    fates: Mapping[str, Fate],
) -> tuple[str, ...]:
    notes = []
    untimed = sum(cost.status is None for cost in costs)
    where = "" if info.kind == "cpu" else f" -d {info.name}"
    again = f"kmark tune summarise {folder.path}{where}"
    if known is not None and known.basis.arch != info.arch:
        notes.append(
            f"the shares, and {known.basis.backend} as what is to be beaten if no --reference is "
            f"given, are from a summary on {known.basis.arch}, not on {info.arch}: {again}"
        )
    if known is None:
        notes.append(f"shares are not known, so the order is by calls × work: {again}")
    elif untimed:
        notes.append(f"{untimed} of {len(costs)} problems are not timed yet: {again}")
    lost = sorted({word for call in workload.calls for word in call.lost})
    if lost:
        notes.append(f"some logged calls do more than their problem: {', '.join(lost)}")
    others = [name for name in folder.names() if name not in fates]
    if others:
        notes.append(
            f"{len(others)} other plans from before are in {folder.plans} and will run too: "
            f"{_some(others)}"
        )
    for name, fate in fates.items():
        if fate is planner.Fate.UNREADABLE:
            wrong = planner.complaint(folder.plan(name))
            notes.append(f"{wrong}; mend it, or --force writes it anew")
    changed = [draft.plan for draft in drafts if fates[draft.plan.name] is planner.Fate.CHANGED]
    if old := ownership.outdated(folder, changed):
        notes.append(
            f"{_some(old)} asked for another search before: move its file in {folder.trials} away "
            "to begin anew, or give the plan its former settings to go on"
        )
    return tuple(notes)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
