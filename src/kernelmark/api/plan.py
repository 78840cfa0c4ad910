"""Expand a selection into cases. Illegal requests are refused here, before anything runs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark import backends as backend_folder
from kernelmark import ops as op_folder
from kernelmark.api.selection import Selection
from kernelmark.backends import BackendRef, is_file
from kernelmark.backends._lineage import OwnKernel, change_notes, check_names, own_kernels
from kernelmark.backends.base import Backend
from kernelmark.core.dtype import dtype as check_dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import (
    KernelmarkError,
    NothingToDo,
    ProblemError,
    Unsupported,
    UsageError,
)
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Config
from kernelmark.core.timing import Timing
from kernelmark.core.units import counted, join_and, join_commas
from kernelmark.runners import kernel_files, places, targets
from kernelmark.runners.jobs import threads_on
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.session import UNKNOWN_NAME, unknown_config_error
from kernelmark.workloads import select, suites

# Backends that measure canaries, in order: those least likely to be under test.
_CANARY_BACKENDS = {"cpu": ("numpy",), "cuda": ("rtc", "cublaslt"), "hip": ("rtc",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The cases, the devices they are distributed to, and notes on what was selected."""

    cases: tuple[Case, ...]
    devices: tuple[DeviceInfo, ...]
    suite: str = ""
    notes: tuple[str, ...] = ()
    own: tuple[OwnKernel, ...] = ()  # kernel files of the user

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(case.backend for case in self.cases))

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(dict.fromkeys(case.problem for case in self.cases))


def plan(selection: Selection, timing: Timing, *, load_s: float = 0.0) -> Plan:
    """Return the cases of a selection, ordered by problem; raise UsageError if it is illegal. A
    kernel file has `load_s` seconds to be imported (default: the limit of compiling)."""
    infos = targets.parse_devices(selection.devices)
    info = infos[0]
    targets.check_threads(info, timing.threads)
    with contextlib.ExitStack() as stack:
        if any(ref.file is not None for ref in selection.backends):
            # The worker that loads the file then measures it.
            spec = LocalRunner([info.name]).slot(info).spec_for(threads_on(timing, info))
            stack.enter_context(kernel_files.loaded_in(spec, load_s))
        return _plan(selection, timing, infos)


def _plan(selection: Selection, timing: Timing, infos: Sequence[DeviceInfo]) -> Plan:
    problems = problems_of(selection, timing)
    chosen, notes = _choose_backends(selection, problems, infos[0])
    pairs = [(p, ref) for p in problems for ref, ops in chosen.items() if p.op in ops]
    if not pairs:
        raise NothingToDo(
            f"no backend that is available on {infos[0].name} can do any of these problems",
            hint="; ".join(notes) or "see kmark doctor",
        )
    notes += _left_out(problems, {problem for problem, _ in pairs})
    notes += _fake_times(chosen, infos[0])
    suite_names, canaries = selection.suites, list[Case]()
    if selection.canaries and suite_names and suites.CANARIES not in suite_names:
        canaries = canary_cases(list(chosen), infos[0], timing)
    _refuse_unknown_config(pairs, selection.config, infos[0])
    own = own_kernels(chosen)
    check_names(own)
    settings = {ref: kernel_files.load(ref).settings(infos[0]) for ref in chosen}
    cases = [
        Case(
            problem=problem,
            backend=ref.name,
            timing=timing,
            config={**settings[ref], **selection.config},
            name=own[ref.name].name if ref.name in own else "",
        )
        for problem, ref in pairs
    ]
    planned = {case.id for case in cases}
    if added := [case for case in canaries if case.id not in planned]:
        cases += added
        suite_names = (*suite_names, suites.CANARIES)
        if unasked := sorted({case.backend for case in added} - {ref.name for ref in chosen}):
            notes.append(f"canaries are measured by {', '.join(unasked)}")
    return Plan(
        cases=tuple(cases),
        devices=tuple(infos),
        suite=",".join(suite_names),
        notes=(*notes, *change_notes(own.values())),
        own=tuple(own.values()),
    )


def problems_of(selection: Selection, timing: Timing, *, here: bool = True) -> tuple[Problem, ...]:
    """Return the problems of a selection, whether or not a backend is available. With `here=False`,
    kernel files run in another environment, and this process may be unable to load them."""
    files = [ref for ref in selection.backends if ref.file is not None]
    if here:  # before the op's own dims are checked
        for ref in files:
            _check_ops(kernel_files.load(ref), _ops_of(ref), selection.ops)
    try:
        return tuple(_expand(selection, timing.seed))
    except ProblemError:
        # Dims may be missing because the op is not the one in the file.
        for ref in files:
            try:
                file = kernel_files.load(ref)
            except KernelmarkError:
                continue
            _check_ops(file, _ops_of(ref), selection.ops)
        raise


def _check_ops(file: Backend, ops: Sequence[str], requested: Sequence[str]) -> None:
    """Refuse a kernel file that computes none of the requested ops."""
    from kernelmark.ops._own import OwnOp  # imports NumPy, which nothing else here needs

    if not requested or set(ops) & set(requested):
        return
    hint = "leave -o out, or choose another backend by -b"
    own = op_folder.registry.get(ops[0]) if len(ops) == 1 else None
    if isinstance(own, OwnOp):
        path = Path(own.path).name
        hint = (
            f"{path} defines its own op, {own.name}: leave -o out; -a NAME=VALUE sets its"
            f" parameters ({join_commas(own.parameters)})"
        )
    raise UsageError(
        f"{file.name} computes {join_commas(ops)}, not {join_commas(requested)}", hint=hint
    )


def _expand(selection: Selection, seed: int) -> list[Problem]:
    """Return the problems that suites, ops with axes, and texts name, filtered and sampled."""
    for name in selection.dtypes:
        check_dtype(name)
    ops = selection.ops
    if _may_need_files(selection):
        own = own_ops(selection.backends)
        if not (ops or selection.problems or selection.suites):
            ops = own or _ops_of_files(selection.backends)
    for name in ops:
        op_folder.registry.get(name)
    problems: list[Problem] = []
    if selection.suites:
        problems = _from_suites(selection)
    elif ops:
        for name in ops:
            problems += select.expand(name, selection.axes, selection.dtypes)
    elif not selection.problems:
        raise UsageError(
            "nothing was asked for",
            hint=(
                "for example: kmark run -s demo, or kmark run -o gemm -a m=512 -a"
                " n=512 -a k=512 --dtype f32"
            ),
        )
    elif selection.axes or selection.dtypes:
        raise UsageError(
            "a problem given as text takes no axes and no dtype", hint="put them in its text"
        )
    problems += [op_folder.parse(text) for text in selection.problems]
    problems = list(dict.fromkeys(problems))
    if selection.filter is not None:
        problems = select.matching(problems, selection.filter)
        if not problems:
            raise NothingToDo(
                f"no problem matches {selection.filter!r}",
                hint="leave --filter out to get all problems",
            )
    if selection.limit is not None:
        problems = select.sample(problems, selection.limit, seed)
    return problems


def _may_need_files(selection: Selection) -> bool:
    """Return whether an op may be defined in a kernel file. If not, no file is loaded: a side of
    `kmark ab` may have a file that this process cannot load."""
    ops = {*selection.ops, *(text.split(" ", 1)[0] for text in selection.problems)}
    has_suite_files = not set(selection.suites) <= set(suites.names())
    return (not ops and (not selection.suites or has_suite_files)) or any(
        op not in op_folder.registry for op in ops
    )


def _ops_of_files(refs: Sequence[BackendRef]) -> tuple[str, ...]:
    """Return the ops that the kernel files among these backends compute."""
    return tuple(dict.fromkeys(op for ref in refs for op in _ops_of(ref)))


def _ops_of(ref: BackendRef) -> tuple[str, ...]:
    """Return the ops that a kernel file computes, which loads it; none for another backend."""
    file = None if ref.file is None else kernel_files.load(ref)
    return file.ops if isinstance(file, kernel_files.RemoteFile) else ()


def own_ops(refs: Sequence[BackendRef]) -> tuple[str, ...]:
    """Register and return the ops that the kernel files among these backends define."""
    from kernelmark.ops._own import OwnOp  # imports NumPy, which nothing else here needs

    ops = _ops_of_files(refs)
    return tuple(op for op in ops if isinstance(op_folder.registry.get(op), OwnOp))


def _from_suites(selection: Selection) -> list[Problem]:
    if selection.axes:
        raise UsageError(
            "a suite has its own axes", hint="choose from it by -o, --dtype, --filter or --limit"
        )
    problems: list[Problem] = []
    for name in selection.suites:
        problems += suites.load(name, dtypes=selection.dtypes).problems
    if selection.ops:
        problems = [problem for problem in problems if problem.op in selection.ops]
        if not problems:
            raise NothingToDo(
                f"suite {join_commas(selection.suites)} has no problem of "
                f"{join_commas(selection.ops)}",
                hint="kmark list suites says what each one holds",
            )
    return problems


def _choose_backends(
    selection: Selection, problems: Sequence[Problem], info: DeviceInfo
) -> tuple[dict[BackendRef, frozenset[str]], list[str]]:
    """Return the ops to measure with each backend, and notes on what was left out.

    A backend selected by name must be available, and problems that it does not support become
    rows. Without names, each backend gets the ops of which it supports at least one problem.
    """
    if selection.backends:
        for ref in selection.backends:
            require(ref, info)
        return dict.fromkeys(selection.backends, frozenset(p.op for p in problems)), []
    chosen: dict[BackendRef, frozenset[str]] = {}
    notes: list[str] = []
    for name in backend_folder.registry.names():
        if name == "fake" and info.kind != "fake":
            continue
        ref = BackendRef(name)
        supported, refusal = _supported_ops(ref, problems, info)
        if supported:
            chosen[ref] = supported
        elif refusal:
            notes.append(f"{name} is left out: {refusal}")
    return chosen, notes


def _supported_ops(
    ref: BackendRef, problems: Sequence[Problem], info: DeviceInfo
) -> tuple[frozenset[str], str]:
    """Return the ops of which a backend supports a problem, and the first refusal; "" for a backend
    of another kind of device."""
    try:
        backend = kernel_files.load(ref)
    except KernelmarkError as error:
        return frozenset(), error.message
    if info.kind not in backend.device_kinds:
        return frozenset(), ""
    refusal = unavailable(backend, info)
    supported: set[str] = set()
    for problem in () if refusal else problems:
        if problem.op not in supported:
            reason = backend.supports(problem, info)
            if reason is None:
                supported.add(problem.op)
            refusal = refusal or reason or ""
    return frozenset(supported), refusal


def unavailable(backend: Backend, info: DeviceInfo) -> str:
    """Return why a backend cannot run on a kind of device that it is for; "" if it can."""
    if (place := places.current()) is not None and not is_file(backend.name):
        return place.unavailable(backend.name, info)
    return backend.available() or backend.missing_on(info.kind)


def require(ref: BackendRef, info: DeviceInfo) -> None:
    """Raise UsageError for a backend that is unavailable or does not run on this kind of device."""
    backend = kernel_files.load(ref)
    if info.kind not in backend.device_kinds:
        kinds = backend.device_kinds
        raise UsageError(
            Reason(
                f"{ref.name} runs on {join_and(kinds)}, not on {info.kind}",
                "device-unsupported",
                backend=ref.name,
                kinds=kinds,
                kind=info.kind,
            ),
            hint="-d chooses a device",
        )
    if reason := unavailable(backend, info):
        raise UsageError(
            Reason(
                f"backend {ref.name} is not available: {reason}",
                "backend-unavailable",
                backend=ref.name,
                cause=Reason.of(reason),
            ),
            hint="kmark doctor lists all of them",
        )


def _refuse_unknown_config(
    pairs: Sequence[tuple[Problem, BackendRef]], config: Config, info: DeviceInfo
) -> None:
    """Raise UsageError if every case is known to refuse a name in its config. Otherwise the workers
    decide."""
    refusals = []
    for problem, ref in pairs if config else ():
        refusal = _refused_name(kernel_files.load(ref), problem, config, info)
        if refusal is None:
            return
        refusals.append(refusal)
    if refusals:
        raise unknown_config_error(refusals[0])


def _refused_name(
    backend: Backend, problem: Problem, config: Config, info: DeviceInfo
) -> Reason | None:
    """Return the backend's reason to refuse a name in the config; None if there is none, or if
    only a device can show it."""
    try:
        backend.check_config(problem, config, info)
    except Unsupported as error:
        reason = error.message.root
        return reason if reason.code == UNKNOWN_NAME else None
    except Exception:  # raised by the user's file: this case fails, others may not
        return None
    return None


def _left_out(problems: Sequence[Problem], measured: Collection[Problem]) -> list[str]:
    """Return a note on problems that no backend measures, if there are some."""
    left = [problem for problem in problems if problem not in measured]
    if not left:
        return []
    ops = ", ".join(dict.fromkeys(problem.op for problem in left))
    summary = f"{len(left)} of {counted(len(problems), 'problem')} left out"
    return [f"{summary}: no backend that is available here can do any of {ops}"]


def _fake_times(chosen: Iterable[BackendRef], info: DeviceInfo) -> list[str]:
    """Return a note on user kernels on the fake device, whose clock is scripted."""
    own = [ref.name for ref in chosen if ref.file is not None]
    if info.kind != "fake" or not own:
        return []
    return [
        f"the clock of {info.name} is scripted: it checks the answers of {', '.join(own)}, and its "
        "times are made up"
    ]


def canary_cases(chosen: Sequence[BackendRef], info: DeviceInfo, timing: Timing) -> list[Case]:
    """Return a case for each canary, with one backend: NumPy on a CPU; on a GPU kernelmark's kernel
    or the vendor's library; else the first of the `chosen` backends that supports it. There are
    none for the fake device."""
    first = [BackendRef(name) for name in _CANARY_BACKENDS.get(info.kind, ())]
    # A kernel file of the user is what is under test.
    refs = [*first, *(ref for ref in chosen if ref.file is None)]
    cases = []
    for problem in suites.load(suites.CANARIES).problems if first else ():
        able = (ref for ref in refs if _supported_ops(ref, [problem], info)[0])
        if (ref := next(able, None)) is not None:
            config = kernel_files.load(ref).settings(info)
            cases.append(Case(problem=problem, backend=ref.name, timing=timing, config=config))
    return cases
