"""Tensile library logic: merging one file into another, as TensileMergeLibrary does.

A logic file is a list of twelve elements, or an object that names them: 4 is the problem type, 5
the solutions, 7 the table of exact sizes [[m, n, batch, k], [solution, efficiency]], 11 the library
type. The tables are merged: a size that the base lacks is added; one that it has is replaced if the
incremental efficiency is higher, or with `force`. Solutions that no size uses are dropped, equal
ones are deduplicated, and all are renumbered.

Tensile generates the names of solutions from their parameters when it builds a library. Here names
are not changed, and two solutions are the same if their parameters are.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from kernelmark.core.errors import UsageError

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
_LEADING = 4  # the last four of eight numbers of a size are leading dimensions
Size = tuple[int, ...]
_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class Fate(StrEnum):
    """What was done with an incremental size, with the marks of TensileMergeLibrary."""

    ADDED = "[-]"
    BETTER = "[O]"
    FORCED = "[!]"
    KEPT = "[X]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The merge of one incremental size, with the efficiency before (None: absent) and after; if
    the size was kept, `after` is the rejected efficiency."""

    size: Size
    fate: Fate
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
) -> tuple[Logic, list[Step]]:
    """Return `base` with the sizes of `extra`. `no_eff` writes 0 as the efficiency of merged sizes;
    comparisons still use the files' values. Neither argument is changed."""
    _check_alike(base, extra)
    table, steps = answers(base), []
    for size, (solution, efficiency) in answers(extra).items():
        before = table[size][1] if size in table else None
        fate = _fate(before, efficiency, force=force)
        if fate is not Fate.KEPT:
            efficiency = 0.0 if no_eff else efficiency
            table[size] = (solution, efficiency)
        steps.append(Step(size=size, fate=fate, before=before, after=efficiency))
    merged = Logic(copy.deepcopy(base.document), base.path)
    _fill(merged, [*base.solutions, *extra.solutions], table)
    version = max((_version(logic) for logic in (base, extra)), key=_numbers)
    if isinstance(merged.get("MinimumRequiredVersion"), dict):
        merged.set("MinimumRequiredVersion", {"MinimumRequiredVersion": version})
    return merged, steps


def _fate(before: float | None, after: float, *, force: bool) -> Fate:
    if before is None:
        return Fate.ADDED
    if after > before:
        return Fate.BETTER
    return Fate.FORCED if force else Fate.KEPT


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


def check_folder(folder: Path, logic: Logic) -> None:
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
