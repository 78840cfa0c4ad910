"""tensile: winners in the logic YAML that hipBLASLt's kernel library is built from.

A folder of logic files can be merged with a folder of incremental logic, as Tensile writes it
(`logic=DIR`), or with a tuning folder's winners. A winner of hipBLASLt's solutions becomes an exact
size of the solution in the logic files that has its kernel's name; one of the backend `tensilelite`
brings a solution of its own. The library must be built again afterwards.

A logic file is a list of twelve elements, or an object that names them: 4 is the problem type, 5
the solutions, 7 the table of exact sizes [[m, n, batch, k], [solution, efficiency]], 11 the library
type. Tables are merged as by TensileMergeLibrary: a size that the base lacks is added; one that it
has is replaced if the incremental efficiency is higher, or with `force`. Solutions that no size
uses are dropped, equal ones are deduplicated, and all are renumbered.

Tensile generates the names of solutions from their parameters when it builds a library. Here names
are not changed, and two solutions are the same if their parameters are.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from kernelmark.backends.tensilelite import backend as tensilelite
from kernelmark.backends.tensilelite.checkout import VARIABLE
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.files import user_path
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, ConfigValue
from kernelmark.tune.install.emitters.base import (
    ON_AMD,
    CannotWrite,
    Change,
    Edit,
    Emitter,
    Entry,
    Key,
    Lookup,
    Options,
    Override,
    Skipped,
    check_folder,
    is_yes,
    text_at,
)
from kernelmark.tune.install.emitters.blas import blas_call
from kernelmark.tune.results import Outcome

_POSITIONS = {
    "MinimumRequiredVersion": 0,
    "ArchitectureName": 2,
    "ProblemType": 4,
    "Solutions": 5,
    "ExactLogic": 7,
    "LibraryType": 11,
}
_IDENTITY = ("SolutionIndex", "SolutionNameMin", "KernelNameMin", "BaseName")
# Parameters without effect if StaggerU is 0.
_STAGGER = ("StaggerUMapping", "StaggerUStride", "_staggerStrideShift")
_BIAS = re.compile(r"_Bias[A-Z]+_")
_ARCH = re.compile(r"\bgfx[0-9a-f]+")
_HEAD_BYTES = 400
_LEADING = 4  # the last four of eight numbers of a size are leading dimensions
Size = tuple[int, ...]
_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class SizeFate(StrEnum):
    """What was done with an incremental size, with the marks of TensileMergeLibrary."""

    ADDED = "[-]"
    BETTER = "[O]"
    FORCED = "[!]"
    KEPT = "[X]"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStep:
    """The merge of one incremental size, with the efficiency before (None: absent) and after; if
    the size was kept, `after` is the rejected efficiency."""

    size: Size
    fate: SizeFate
    before: float | None
    after: float


@dataclass(slots=True)
class Logic:
    """A logic file: its path for error messages, and the text it was parsed from."""

    document: Any
    path: str
    text: str = ""

    def get(self, name: str) -> Any:
        if isinstance(self.document, dict):
            return self.document.get(name)
        return self.document[_POSITIONS[name]]

    def set(self, name: str, value: Any) -> None:
        self.document[name if isinstance(self.document, dict) else _POSITIONS[name]] = value

    @property
    def solutions(self) -> list[dict[str, Any]]:
        solutions: list[dict[str, Any]] = self.get("Solutions")
        return solutions

    @property
    def table(self) -> list[Any]:
        return self.get("ExactLogic") or []


def parse(text: str, path: str) -> Logic:
    """Parse and check a logic file."""
    try:
        document = yaml.load(text, Loader=_loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise UsageError(f"{path}: is not YAML: {first}") from None
    if isinstance(document, list) and len(document) < max(_POSITIONS.values()) + 1:
        raise UsageError(f"{path}: a logic file has 12 parts, this one {len(document)}")
    if not isinstance(document, list | dict):
        raise UsageError(f"{path}: is no logic file")
    logic = Logic(document, path, text)
    if not isinstance(logic.get("ProblemType"), dict):
        raise UsageError(f"{path}: has no problem type")
    if not isinstance(logic.get("Solutions"), list) or not isinstance(logic.table, list):
        raise UsageError(f"{path}: has no solutions or no table of sizes")
    for solution in logic.solutions:
        if not isinstance(solution, dict) or not isinstance(solution.get("SolutionIndex"), int):
            raise UsageError(f"{path}: a solution has no SolutionIndex")
        if not isinstance(solution.get("SolutionNameMin"), str):
            raise UsageError(
                f"{path}: solution {solution['SolutionIndex']} has no SolutionNameMin",
                hint="run TensileMergeLibrary once: it names them",
            )
    for row in logic.table:
        if not _is_row(row) or row[1][0] not in range(len(logic.solutions)):
            raise UsageError(f"{path}: {str(row)[:60]} is no [size, [solution, efficiency]]")
    return logic


def _is_row(row: object) -> bool:
    if not (isinstance(row, list) and len(row) == 2 and all(isinstance(x, list) for x in row)):
        return False
    size, answer = row
    good = len(answer) == 2 and type(answer[0]) is int and isinstance(answer[1], int | float)
    return good and len(size) in (4, 8) and all(type(value) is int for value in size)


def answers(logic: Logic) -> dict[Size, tuple[dict[str, Any], float]]:
    """Return the solution and efficiency of each size; of a duplicate size, the last one. The table
    refers to solutions by position: Tensile does not use SolutionIndex for it."""
    solutions = logic.solutions
    return {_trimmed(size): (solutions[index], eff) for size, (index, eff) in logic.table}


def merge(
    base: Logic, extra: Logic, *, force: bool = False, no_eff: bool = False
) -> tuple[Logic, list[MergeStep]]:
    """Return `base` with the sizes of `extra`. `no_eff` writes 0 as the efficiency of merged sizes;
    comparisons still use the files' values. Neither argument is changed."""
    _check_alike(base, extra)
    table, steps = answers(base), []
    for size, (solution, efficiency) in answers(extra).items():
        before = table[size][1] if size in table else None
        fate = _fate(before, efficiency, force=force)
        if fate is not SizeFate.KEPT:
            efficiency = 0.0 if no_eff else efficiency
            table[size] = (solution, efficiency)
        steps.append(MergeStep(size=size, fate=fate, before=before, after=efficiency))
    merged = Logic(copy.deepcopy(base.document), base.path)
    _fill(merged, [*base.solutions, *extra.solutions], table)
    version = max((_version(logic) for logic in (base, extra)), key=_numbers)
    if isinstance(merged.get("MinimumRequiredVersion"), dict):
        merged.set("MinimumRequiredVersion", {"MinimumRequiredVersion": version})
    return merged, steps


def _fate(before: float | None, after: float, *, force: bool) -> SizeFate:
    if before is None:
        return SizeFate.ADDED
    if after > before:
        return SizeFate.BETTER
    return SizeFate.FORCED if force else SizeFate.KEPT


def _fill(
    logic: Logic, pool: Sequence[dict[str, Any]], table: Mapping[Size, tuple[dict[str, Any], float]]
) -> None:
    """Set the table of `logic`, and its solutions: those that the table uses, in the order of the
    pool, without duplicates and with unique names."""
    used = {digest(solution) for solution, _ in table.values()}
    numbers: dict[str, int] = {}
    names: set[str] = set()
    solutions: list[dict[str, Any]] = []
    for solution in pool:
        mark = digest(solution)
        if mark not in used or mark in numbers:
            continue
        numbers[mark] = len(solutions)
        name = _free(solution["SolutionNameMin"], names)
        names.add(name)
        clean = {**sanitised(solution), "SolutionIndex": len(solutions), "SolutionNameMin": name}
        solutions.append(copy.deepcopy(clean))
    logic.set("Solutions", solutions)
    rows = [[list(size), [numbers[digest(s)], eff]] for size, (s, eff) in table.items()]
    logic.set("ExactLogic", rows)


def digest(solution: Mapping[str, Any]) -> str:
    """Return a digest of a solution's parameters, without its index and names."""
    values = {k: v for k, v in sanitised(solution).items() if k not in _IDENTITY}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def sanitised(solution: Mapping[str, Any]) -> dict[str, Any]:
    """Return a solution with parameters that have no effect set to 0."""
    if solution.get("StaggerU") == 0:
        return {**solution, **dict.fromkeys(_STAGGER, 0)}
    return dict(solution)


def _free(name: str, taken: set[str]) -> str:
    free, number = name, 2
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def _trimmed(size: Sequence[int]) -> Size:
    return tuple(size[:-_LEADING] if len(size) >= 2 * _LEADING else size)


def _check_alike(base: Logic, extra: Logic) -> None:
    if isinstance(base.document, dict) != isinstance(extra.document, dict):
        raise UsageError(f"{extra.path}: is of another form than {base.path}")
    mine, theirs = base.get("ProblemType"), extra.get("ProblemType")
    for name in {**mine, **theirs}:
        # A parameter missing in files of older Tensile versions is off, like 0, '' or [].
        if (mine.get(name) or 0) != (theirs.get(name) or 0):
            raise UsageError(
                f"{extra.path}: its problem type has {name}={theirs.get(name)}, that of "
                f"{base.path} {mine.get(name)}",
                hint="only logic of one problem type can be merged",
            )
    if isinstance(base.document, dict):
        default = [logic.document.get("DefaultSolution") for logic in (base, extra)]
        if default[0] != default[1]:
            raise UsageError(
                f"{extra.path}: its DefaultSolution is another than that of {base.path}",
                hint="run TensileMergeLibrary: it knows what the defaults mean",
            )
    kind, there = extra.get("LibraryType"), base.get("LibraryType")
    if kind != there:
        raise UsageError(f"{extra.path}: is of type {kind}, {base.path} of {there}")


def _version(logic: Logic) -> str:
    version = logic.get("MinimumRequiredVersion")
    return str(version["MinimumRequiredVersion"] if isinstance(version, dict) else version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))


def check_logic_folder(folder: Path, logic: Logic) -> None:
    """Raise UsageError for logic of another library type than its folder, Equality or GridBased."""
    kind = logic.get("LibraryType")
    if folder.name in ("Equality", "GridBased") and folder.name != kind:
        raise UsageError(f"{logic.path}: is of type {kind} and does not belong into {folder}")


def text_of(logic: Logic, like: str | None) -> str:
    """Return the YAML of `logic`, in the layout of `like` if a usual layout reproduces that."""
    layouts = [(sort, width) for sort in (True, False) for width in (80, 10**6)]
    if like is not None and "---" not in like[:4]:
        original = yaml.load(like, Loader=_loader)
        for sort, width in layouts:
            if _dumped(original, sort=sort, width=width) == like:
                return _dumped(logic.document, sort=sort, width=width)
    sort, width = layouts[0]
    return _dumped(logic.document, sort=sort, width=width)


def _dumped(document: Any, *, sort: bool, width: int) -> str:
    text: str = yaml.dump(
        document, Dumper=_dumper, default_flow_style=None, sort_keys=sort, width=width
    )
    return text


_KINDS = ("Equality", "GridBased")
_GENERATED = "tensilelite"


class Tensile(Emitter):
    name = "tensile"
    summary = "Tensile library logic (YAML), merged as TensileMergeLibrary does"
    facts = FormatFacts(
        versions="hipBLASLt 7d9fb683 (2024-10), rocm-libraries 0cd879ad (2026)",
        exactness="merges as TensileMergeLibrary: forced by default, except for files of arcturus",
        checked="TensileMergeLibrary executed on six logic files with the same result; mergeLogic "
        "of 7d9fb683 and aec838a8 on 600 pairs of drawn tables",
    )
    backends = ("hipblaslt", _GENERATED)
    options = FrozenDict(
        {
            "logic": "a folder of incremental logic to merge, in place of outcomes",
            "tensilelite": "the checkout that generated winners (default: $KERNELMARK_TENSILELITE)",
            "force": "yes (default, but for files of arcturus, as in TensileMergeLibrary): replace "
            "what is there even where the new efficiency is not higher; no: only where it is",
            "no_eff": "yes: write 0 as the efficiency of what is merged; always so for winners",
        }
    )
    needs_base = True
    careful = True  # a library is built from these files
    caution = ON_AMD
    # Applies to the library that is built from the files. Newer builds compress its index
    # (.dat.zlib) and have a folder for each architecture.
    override = Override(
        backend="hipblaslt",
        variables={"HIPBLASLT_TENSILE_LIBPATH": "{path}"},
        built="Tensile*Library*.dat*",
    )

    def emit(self, outcomes: Sequence[Outcome], into: Path, options: Options) -> Change:
        check_folder(into, "give a folder of logic YAML files")
        folder = options.get("logic", "")
        # A final has decided on winners already; their times are not comparable to efficiencies.
        force = is_yes(options, "force", default=True)
        no_eff = is_yes(options, "no_eff", default=not folder)
        if folder:
            pairs = list(_incremental(Path(folder), into))
            return self._merged(
                into, pairs, force=force if "force" in options else None, no_eff=no_eff
            )
        if not no_eff:
            raise UsageError(
                "no_eff=no is not possible: a winner has a time, not an efficiency, and 0 is "
                "written",
                hint="leave it out",
            )
        if checkout := options.get("tensilelite"):
            os.environ[VARIABLE] = str(user_path(checkout).absolute())
        chosen = self.choose(outcomes, _lookup_key)
        winners = [o.tuned for o in chosen.winners.values() if o.tuned.backend != _GENERATED]
        library = _Library(into, {tuned.kernel.name for tuned in winners} - {""})
        extra: dict[Path, Logic] = {}
        for outcome in chosen.winners.values():
            try:
                library.add(outcome, extra)
            except CannotWrite as error:
                chosen.skipped.append(Skipped(name=outcome.name, reason=error.reason))
        change = self._merged(into, [*extra.items()], library.names, force=force, no_eff=True)
        reason = "its size is in the file already, and force=no leaves it"
        skipped = [
            Skipped(name=name, reason=reason)
            for name in library.names.values()
            if name not in change.winners
        ]
        return dataclasses.replace(change, skipped=(*chosen.skipped, *skipped))

    def _merged(
        self,
        into: Path,
        pairs: Sequence[tuple[Path, Logic]],
        names: Mapping[tuple[Path, Size], str] | None = None,
        *,
        force: bool | None,
        no_eff: bool,
    ) -> Change:
        edits, lookups, notes = [], [], []
        replaceable = False
        for target, extra in pairs:
            # As defaultForceMergePolicy of TensileMergeLibrary, which uses only the first file.
            forced = "arcturus" not in extra.path if force is None else force
            check_logic_folder(target.parent, extra)
            before, path = text_at(target), target.relative_to(into)
            merged, after, steps = _merge(before, extra, target, force=forced, no_eff=no_eff)
            notes += [f"{path}: {step}" for step in steps]
            for size, (config, is_new) in merged.items():
                winner = (names or {}).get((target, size), f"{path}: {list(size)}")
                lookups.append(
                    Lookup(key=_key(path, size), config=config, winner=winner if is_new else "")
                )
            if after != before:
                edits.append(Edit(path=path, before=before, after=after))
                replaceable |= no_eff and not forced
        if replaceable:
            notes.append(
                "no_eff without force: what is merged now has the efficiency 0, so any later merge "
                "replaces it"
            )
        if edits:
            notes.append("build the library again before anything changes; indices move with it")
        return Change(
            emitter=self.name, edits=tuple(edits), lookups=tuple(lookups), notes=tuple(notes)
        )

    def read(self, path: Path) -> list[Entry]:
        return [
            Entry(
                key=_key(file.relative_to(path), size),
                config=_config(solution, efficiency),
                kernel=solution.get("KernelNameMin", solution["SolutionNameMin"]),
            )
            for file in _files(path)
            for size, (solution, efficiency) in answers(_logic(file)).items()
        ]

    def find(self, path: Path, key: Key) -> Entry | None:
        text = text_at(path / key["file"])
        if text is None:
            return None
        if self._cached[0] != text:
            self._cached = (text, answers(parse(text, key["file"])))
        size = tuple(map(int, key["size"].split()))
        if size not in self._cached[1]:
            return None
        return Entry(key=key, config=_config(*self._cached[1][size]))

    _cached: tuple[str, dict[Size, tuple[dict[str, Any], float]]] = ("", {})


def _merge(
    before: str | None, extra: Logic, target: Path, *, force: bool, no_eff: bool
) -> tuple[dict[Size, tuple[Config, bool]], str, list[str]]:
    """Return the config of each size after the merge and whether it is new, the file's new text,
    and a line for each step."""
    offered = answers(extra)
    if before is None:
        text = extra.text or text_of(extra, None)
        return (
            {size: (_config(*answer), True) for size, answer in offered.items()},
            text,
            ["a new file"],
        )
    base = parse(before, str(target))
    logic, steps = merge(base, extra, force=force, no_eff=no_eff)
    sizes = {size: (_config(*answer), False) for size, answer in answers(base).items()}
    for step in steps:
        if step.fate is not SizeFate.KEPT:
            solution, efficiency = offered[step.size]
            sizes[step.size] = (_config(solution, 0.0 if no_eff else efficiency), True)
    # Without a new size the text stays, even if merging would normalise it.
    text = text_of(logic, before) if any(new for _, new in sizes.values()) else before
    return sizes, text, [_step_text(step) for step in steps]


class _Library:
    """The solutions of a folder by kernel and solution names."""

    def __init__(self, root: Path, names: Collection[str]) -> None:
        self.names: dict[tuple[Path, Size], str] = {}
        self._root = root
        self._named: dict[str, list[tuple[Path, Logic, dict[str, Any]]]] = {}
        for file in _files(root) if names else ():
            text = text_at(file) or ""
            if any(name in text for name in names):  # parsing is slow, and most files lack them
                self._take(file, parse(text, str(file)))

    def _take(self, file: Path, logic: Logic) -> None:
        for solution in logic.solutions:
            for name in {solution["SolutionNameMin"], solution.get("KernelNameMin", "")} - {""}:
                self._named.setdefault(name, []).append((file, logic, solution))

    def add(self, outcome: Outcome, extra: dict[Path, Logic]) -> None:
        """Add the outcome's size to `extra`, as a row of the Equality logic that belongs to the
        file of its solution."""
        find = self._generated if outcome.tuned.backend == _GENERATED else self._listed
        file, logic, solution = find(outcome)
        target = _equality(file)
        if target not in extra:
            extra[target] = _empty(logic)
        size = [int(value) for value in _lookup_key(outcome)["size"].split()]
        pool = extra[target].solutions
        mark = digest(solution)
        index = next((i for i, s in enumerate(pool) if digest(s) == mark), len(pool))
        if index == len(pool):
            pool.append({**solution, "SolutionIndex": index})
        extra[target].set("ExactLogic", [*extra[target].table, [size, [index, 0.0]]])
        self.names[target, tuple(size)] = outcome.name

    def _listed(self, outcome: Outcome) -> tuple[Path, Logic, dict[str, Any]]:
        """Return the file, the logic and the solution that has the name of the outcome's kernel."""
        name = outcome.tuned.kernel.name
        arch = outcome.arch.split(":")[0]
        named = [each for each in self._named.get(name, []) if _arch(each[1]) in ("", arch)]
        if not named:
            raise CannotWrite(f"no logic file for {arch} has a solution called {name!r}")
        distinct = {(_equality(file), digest(solution)) for file, _, solution in named}
        if len(distinct) > 1:
            raise CannotWrite(f"{len(distinct)} different solutions are called {name}")
        return named[0]

    def _generated(self, outcome: Outcome) -> tuple[Path, Logic, dict[str, Any]]:
        """Return a new solution, and the file of its architecture and problem type: one that
        exists, else a new one. Tensile's names begin with the problem type."""
        arch = outcome.arch.split(":")[0]
        parts = tensilelite.logic(outcome.problem, outcome.tuned.config, arch)
        logic = parse(_dumped(parts, sort=True, width=80), outcome.name)
        solution = logic.solutions[0]
        kind = solution["SolutionNameMin"].partition("_MT")[0]
        own, files = _usual(kind), _files(self._root)
        alike = [file for file in files if _usual(file.stem).endswith(f"_{own}")]
        for file in alike:
            if file.parent.name in ("Equality", self._root.name) and _arch_of(file) in ("", arch):
                return file, logic, solution
        folder = self._root / "Equality" if (self._root / "Equality").is_dir() else self._root
        return folder / f"{arch}_{kind}.yaml", logic, solution


def _usual(name: str) -> str:
    """Return the name of a problem type without what depends on Tensile's version: which types of
    bias it leaves out, and how it writes the type of an activation."""
    return _BIAS.sub("_Bias_", name).replace("_HA_S_", "_HAS_")


def _arch_of(file: Path) -> str:
    """Return the architecture in a logic file's first lines: a whole one is slow to parse."""
    with file.open(encoding="utf-8", errors="replace") as text:
        found = _ARCH.search(text.read(_HEAD_BYTES))
    return found[0] if found else ""


def _lookup_key(outcome: Outcome) -> Key:
    call = blas_call(outcome)
    names = ("transA", "transB", "a_type", "b_type", "c_type", "d_type", "compute_type")
    size = " ".join(call[name] for name in ("m", "n", "batch_count", "k"))
    return FrozenDict({**{name: call[name] for name in names}, "size": size})


def _arch(logic: Logic) -> str:
    name = logic.get("ArchitectureName")
    return str(name.get("Architecture", "") if isinstance(name, dict) else name or "")


def _equality(file: Path) -> Path:
    """Return the file of the same name in the Equality folder; `file` itself in a flat folder."""
    if file.parent.name in _KINDS:
        return file.parent.with_name("Equality") / file.name
    return file


def _empty(logic: Logic) -> Logic:
    """Return Equality logic of the same problem type, without solutions and sizes."""
    document: Any = type(logic.document)(logic.document)
    empty = Logic(document, logic.path)
    empty.set("Solutions", [])
    empty.set("ExactLogic", [])
    empty.set("LibraryType", "Equality")
    return empty


def _incremental(folder: Path, into: Path) -> Iterator[tuple[Path, Logic]]:
    """Yield the target and the logic of each incremental file. The target has the same relative
    path, else the same name, else it is a new file."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder of logic files")
    files = _files(folder)
    if not files:
        raise NothingToDo(f"{folder}: there are no logic files (*.yaml) in it")
    named: dict[str, list[Path]] = {}
    for there in _files(into):
        named.setdefault(there.name, []).append(there)
    for file in files:
        yield _target(file, folder, into, named.get(file.name, [])), _logic(file)


def _target(file: Path, folder: Path, into: Path, namesakes: Sequence[Path]) -> Path:
    same = into / file.relative_to(folder)
    if same.exists():
        return same
    kind = str(_logic(file).get("LibraryType"))
    meant = [path for path in namesakes if str(_logic(path).get("LibraryType")) == kind]
    if len(meant) > 1:
        raise UsageError(
            f"{file} may go into {meant[0]} or {meant[1]}",
            hint="put it into a folder of the same name below, or give --to one of theirs",
        )
    if meant:
        return meant[0]
    return into / kind / file.name if (into / kind).is_dir() else same


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.yaml") if path.is_file())


def _logic(file: Path) -> Logic:
    return parse(text_at(file) or "", str(file))


def _key(path: Path, size: Size) -> Key:
    return FrozenDict({"file": path.as_posix(), "size": " ".join(map(str, size))})


def _config(solution: dict[str, Any], efficiency: float) -> Config:
    config: dict[str, ConfigValue] = {"solution": digest(solution), "efficiency": float(efficiency)}
    return FrozenDict(config)


def _step_text(step: MergeStep) -> str:
    before = "absent" if step.before is None else f"{step.before:g}"
    if step.fate is SizeFate.KEPT:
        return f"{step.fate} {list(step.size)} efficiency {before} stays: {step.after:g} is offered"
    return f"{step.fate} {list(step.size)} efficiency {before} -> {step.after:g}"


emitter = Tensile()
