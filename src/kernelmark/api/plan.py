"""Expand a request into cases. Illegal requests are refused here, before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelmark import backends as backend_folder
from kernelmark import ops as op_folder
from kernelmark.api.sentinels import SENTINELS, companions
from kernelmark.backends._lineage import OwnKernel, identify
from kernelmark.backends.base import Backend
from kernelmark.core.dtype import dtype as known_dtype
from kernelmark.core.dtype import foreign_dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import (
    KernelmarkError,
    NothingToDo,
    ProblemError,
    Unsupported,
    UsageError,
)
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem, parse_value
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Config, ConfigValue
from kernelmark.core.timing import Timing
from kernelmark.core.units import counted
from kernelmark.runners import targets
from kernelmark.runners.session import UNKNOWN_NAME, unknown_config_error
from kernelmark.workloads import axes as axis_grammar
from kernelmark.workloads import select, suites


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A request: what to measure. Problems come from `suites`, from `ops` with `axes`, or from
    `problems`; with a suite, `ops` filters it. No backends means all that support the problems.
    `sentinels` adds the canaries to suites; filter and limit do not apply to them."""

    ops: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    config: Config = field(default_factory=FrozenDict)
    filter: str | None = None
    limit: int | None = None
    sentinels: bool = False


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


def plan(selection: Selection, timing: Timing) -> Plan:
    """Return the cases of a selection, ordered by problem; raise UsageError if it is illegal."""
    _check_files(selection)
    problems = _problems(selection, timing)
    infos = targets.expand(selection.devices)
    targets.check_threads(infos[0], timing.threads)
    chosen, notes = _backends(selection, problems, infos[0])
    own = own_kernels(list(chosen))
    names = {backend: kernel.name for backend, kernel in own.items()}
    for backend, name in names.items():
        if (other := next(one for one in names if names[one] == name)) != backend:
            raise UsageError(
                Reason("kernel-name-twice", file=backend, other=other, name=name),
                hint="declare another name in one of them",
            )
    cases = [
        Case(
            problem=problem,
            backend=name,
            timing=timing,
            config=selection.config,
            name=names.get(name, ""),
        )
        for problem in problems
        for name in chosen
        if problem.op in chosen[name]
    ]
    if not cases:
        raise NothingToDo(
            Reason("no-backend", device=infos[0].name),
            hint="; ".join(notes) or "see kmark doctor",
        )
    _refuse_unknown_config(cases, infos[0])
    if left := _left_out(problems, cases):
        notes.append(left)
    if made_up := _fake_times_note(list(chosen), infos[0]):
        notes.append(made_up)
    named = selection.suites
    if selection.sentinels and named and SENTINELS not in named:
        have = {case.id for case in cases}
        added = [case for case in companions(list(chosen), infos[0], timing) if case.id not in have]
        cases += added
        named = (*named, SENTINELS) if added else named
        if others := {case.backend for case in added} - chosen.keys():
            notes.append(f"canaries are measured by {', '.join(sorted(others))}")
    return Plan(
        cases=tuple(cases),
        devices=tuple(infos),
        suite=",".join(named),
        notes=(*notes, *changes(own.values())),
        own=tuple(own.values()),
    )


def _refuse_unknown_config(cases: Sequence[Case], info: DeviceInfo) -> None:
    """Raise UsageError if every case is known to refuse a name in its config. Otherwise the workers
    decide."""
    refusals = []
    for case in cases:
        if not case.config or (refusal := _refused_name(case, info)) is None:
            return
        refusals.append(refusal)
    if refusals:
        raise unknown_config_error(refusals[0])


def _refused_name(case: Case, info: DeviceInfo) -> Reason | None:
    """Return the backend's reason to refuse a name in the config; None if there is none, or if
    only a device can show it."""
    try:
        find_backend(case.backend).check_config(case.problem, case.config, info)
    except Unsupported as error:
        reason = error.message.root
        return reason if reason.code == UNKNOWN_NAME else None
    except Exception:  # raised by the user's file: this case fails, others may not
        return None
    return None


def _check_files(selection: Selection) -> None:
    """Refuse kernel files that are missing or that compute none of the requested ops, before the
    op's own dims are checked."""
    for name in selection.ops:
        if backend_folder.is_file(name):
            raise UsageError(Reason("file-not-op", file=name), hint=Reason("file-is-no-op"))
    for name in selection.backends:
        if backend_folder.is_file(name):
            _check_op(find_backend(name), selection)
        elif name not in backend_folder.registry:
            find_backend(name)  # raises UsageError


def _check_op(file: Backend, selection: Selection) -> None:
    """Refuse a kernel file that computes none of the requested ops."""
    from kernelmark.ops._own import OwnOp  # imports NumPy, which nothing else here needs

    ops: tuple[str, ...] = getattr(file, "ops", ())
    if not selection.ops or set(ops) & set(selection.ops):
        return
    hint = Reason("leave-out-op")
    own = op_folder.registry.get(ops[0]) if len(ops) == 1 else None
    if isinstance(own, OwnOp):
        place = Path(own.place).name
        hint = Reason("op-of-file", op=own.name, file=place, parameters=tuple(own.parameters))
    raise UsageError(
        Reason("file-computes", file=file.name, ops=ops, asked=selection.ops), hint=hint
    )


def own_kernels(backends: Sequence[str]) -> dict[str, OwnKernel]:
    """Return the identity in history of each kernel file among these backends."""
    files = [name for name in backends if backend_folder.is_file(name)]
    return dict(zip(files, identify(map(Path, files)), strict=True))


def changes(kernels: Iterable[OwnKernel]) -> list[str]:
    """Return notes on kernel files whose content changed since they were last measured, or whose
    name got a suffix because another file has the same name."""
    notes = []
    for kernel in kernels:
        if kernel.changed:
            notes.append(
                f"{kernel.path} has changed since it was last measured as {kernel.name} "
                f"(content {kernel.before[:8]} → {kernel.digest[:8]})"
            )
        elif kernel.marked and not kernel.before:
            notes.append(
                f"{kernel.path}: its results are stored as the series {kernel.name}, because those "
                f'of another file are {kernel.name.partition("@")[0]}; name = "..." in the file '
                "chooses another name"
            )
    return notes


def problems_of(selection: Selection, timing: Timing, *, here: bool = True) -> tuple[Problem, ...]:
    """Return the problems of a selection, whether or not a backend is available. With `here=False`,
    kernel files run in another environment, and this process may be unable to load them."""
    if here:
        _check_files(selection)
    try:
        return tuple(_problems(selection, timing))
    except ProblemError:
        # Dims may be missing because the op is not the one in the file.
        for name in filter(backend_folder.is_file, selection.backends):
            try:
                file = find_backend(name)
            except KernelmarkError:
                continue
            _check_op(file, selection)
        raise


def parse_config(words: Sequence[str]) -> dict[str, ConfigValue]:
    """Parse `name=value` words into a config; the form of a value determines its type."""
    config: dict[str, ConfigValue] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name or not text:
            raise UsageError(
                Reason("not-of-form", given=word, form="NAME=VALUE"), hint="write: --config tile=64"
            )
        if name in config:
            raise UsageError(
                Reason("given-twice", what="config", name=name),
                hint="a run has one config; 'kmark ab' two",
            )
        config[name] = parse_value(text)
    return config


def axis_words(given: Mapping[str, object]) -> tuple[str, ...]:
    """Format Python values as axes: m=512, m=[256, 512], ta=("n", "t"), causal=True, m="[1:16]"."""
    return tuple(f"{name}={_axis_text(name, value)}" for name, value in given.items())


def _problems(selection: Selection, timing: Timing) -> list[Problem]:
    for name in selection.dtypes:
        known_dtype(name)
    if _asks_for_own(selection):
        own = own_ops(selection.backends)
        if not (selection.ops or selection.problems or selection.suites):
            selection = dataclasses.replace(selection, ops=own or _ops_of_files(selection.backends))
    for name in selection.ops:
        op_folder.registry.get(name)
    if selection.suites:
        found = _from_suites(selection)
    elif selection.ops:
        found = [
            problem
            for name in selection.ops
            for problem in axis_grammar.expand(name, selection.axes, selection.dtypes)
        ]
    elif selection.problems:
        if selection.axes or selection.dtypes:
            raise UsageError(Reason("problem-with-axes"), hint="put them in its text")
        found = []
    else:
        raise UsageError(Reason("nothing-asked"), hint=Reason("ask-for"))
    found += [op_folder.parse(text) for text in selection.problems]
    found = list(dict.fromkeys(found))
    if selection.filter is not None:
        found = select.matching(found, selection.filter)
        if not found:
            raise NothingToDo(
                Reason("filter-matches-none", filter=selection.filter),
                hint=Reason("leave-out-filter"),
            )
    if selection.limit is not None:
        found = select.sample(found, selection.limit, timing.seed)
    return found


def _asks_for_own(selection: Selection) -> bool:
    """Return whether an op may be defined in a kernel file. If not, no file is loaded: a side of
    `kmark ab` may have a file that this process cannot load."""
    asked = {*selection.ops, *(text.split(" ", 1)[0] for text in selection.problems)}
    suites_of_files = not set(selection.suites) <= set(suites.names())
    return (not asked and (not selection.suites or suites_of_files)) or any(
        op not in op_folder.registry for op in asked
    )


def _ops_of_files(names: Sequence[str]) -> tuple[str, ...]:
    """Return the ops that the kernel files among these backends compute."""
    files = [find_backend(name) for name in names if backend_folder.is_file(name)]
    return tuple(dict.fromkeys(op for file in files for op in getattr(file, "ops", ())))


def own_ops(names: Sequence[str]) -> tuple[str, ...]:
    """Register and return the ops that the kernel files among these backends define."""
    from kernelmark.ops._own import OwnOp  # imports NumPy, which nothing else here needs

    ops = _ops_of_files(names)
    return tuple(op for op in ops if isinstance(op_folder.registry.get(op), OwnOp))


def _from_suites(selection: Selection) -> list[Problem]:
    if selection.axes:
        raise UsageError(Reason("suite-with-axes"), hint=Reason("choose-from-suite"))
    problems: list[Problem] = []
    for name in selection.suites:
        problems += suites.load(name, dtypes=selection.dtypes).problems
    if selection.ops:
        problems = [problem for problem in problems if problem.op in selection.ops]
        if not problems:
            raise NothingToDo(
                Reason("suite-without-op", suites=selection.suites, ops=selection.ops),
                hint="kmark list suites says what each one holds",
            )
    return problems


def _backends(
    selection: Selection, problems: Sequence[Problem], info: DeviceInfo
) -> tuple[dict[str, frozenset[str]], list[str]]:
    """Return the ops to measure with each backend, and notes on what was left out.

    A backend selected by name must be available, and problems that it does not support become
    rows. Without names, each backend gets the ops of which it supports at least one problem.
    """
    all_ops = frozenset(problem.op for problem in problems)
    if selection.backends:
        named = [backend_folder.canonical(name) for name in selection.backends]
        for name in named:
            require(name, info)
        return dict.fromkeys(named, all_ops), []
    chosen: dict[str, frozenset[str]] = {}
    notes: list[str] = []
    for name in backend_folder.registry.names():
        if name == "fake" and info.kind != "fake":
            continue
        backend, reason = _available(name, info)
        if backend is None:
            notes += [f"{name} is left out: {reason}"] if reason else []
            continue
        able, why_not = _able(backend, problems, info)
        if able:
            chosen[name] = able
        elif why_not:
            notes.append(f"{name} is left out: {why_not}")
    return chosen, notes


def _left_out(problems: Sequence[Problem], cases: Sequence[Case]) -> str:
    """Return a note on problems that no backend measures; "" if there are none."""
    done = {case.problem for case in cases}
    left = [problem for problem in problems if problem not in done]
    if not left:
        return ""
    ops = ", ".join(dict.fromkeys(problem.op for problem in left))
    summary = f"{len(left)} of {counted(len(problems), 'problem')} left out"
    return f"{summary}: no backend that is available here can do any of {ops}"


def _fake_times_note(chosen: Sequence[str], info: DeviceInfo) -> str:
    """Return a note on user kernels on the fake device, whose clock is scripted; else ""."""
    own = [name for name in chosen if name not in backend_folder.registry]
    if info.kind != "fake" or not own:
        return ""
    return (
        f"the clock of {info.name} is scripted: it checks the answers of {', '.join(own)}, and its "
        "times are made up"
    )


def _able(
    backend: Backend, problems: Sequence[Problem], info: DeviceInfo
) -> tuple[frozenset[str], str]:
    """Return the ops of which the backend supports a problem, and its first refusal."""
    able: set[str] = set()
    first_reason = ""
    for problem in problems:
        if problem.op not in able:
            reason = backend.supports(problem, info)
            if reason is None:
                able.add(problem.op)
            first_reason = first_reason or reason or ""
    return frozenset(able), first_reason


def find_backend(name: str) -> Backend:
    """Return the backend that a user named: a registered one, or the path of a kernel file."""
    try:
        return backend_folder.find(name)
    except UsageError as error:
        if name in backend_folder.registry or backend_folder.is_file(name):
            raise
        if _is_file(name):
            raise UsageError(
                Reason("not-kernel-file", file=name),
                hint="one ends in .py, .cu or .hip; a .py file calls a compiled library by ctypes",
            ) from None
        hint = f"{error.hint}, or a .py, .cu or .hip file"
        if _is_file(f"{name}.py"):
            known = ", ".join(backend_folder.registry.names())
            hint = f"did you mean {name}.py? known: {known}, or a .py, .cu or .hip file"
        raise UsageError(error.message, hint=hint) from None


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except (OSError, RuntimeError):  # the name is too long, or ~user does not exist
        return False


def require(name: str, info: DeviceInfo) -> None:
    """Raise UsageError for a backend that is unavailable or does not run on this kind of device."""
    backend = find_backend(name)
    if info.kind not in backend.device_kinds:
        raise UsageError(
            Reason("device-unsupported", backend=name, kinds=backend.device_kinds, kind=info.kind),
            hint=Reason("choose-device"),
        )
    reason = backend.available() or backend.missing_on(info.kind)
    if reason:
        raise UsageError(
            Reason("backend-unavailable", backend=name, cause=Reason.of(reason)),
            hint="kmark doctor lists all of them",
        )


def _available(name: str, info: DeviceInfo) -> tuple[Backend | None, str]:
    """Return the backend, or None and the reason; "" if it is for another kind of device."""
    try:
        backend = backend_folder.find(name)
    except KernelmarkError as error:
        return None, error.message
    if info.kind not in backend.device_kinds:
        return None, ""
    reason = backend.available() or backend.missing_on(info.kind)
    return (None, reason) if reason else (backend, "")


def _axis_text(name: str, value: object) -> str:
    if (dtype := foreign_dtype(value)) is not None:
        return dtype
    if hasattr(value, "tolist") and not isinstance(value, type):
        value = value.tolist()  # a NumPy array
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, Sequence):
        return f"[{','.join(_axis_text(name, item) for item in value)}]"
    raise UsageError(
        Reason("not-an-axis", name=name, given=repr(value)),
        hint="give a number, a word, or a list of them",
    )
