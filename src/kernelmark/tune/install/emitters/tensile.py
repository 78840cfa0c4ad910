"""tensile: winners in the logic YAML that hipBLASLt's kernel library is built from.

A folder of logic files can be merged with a folder of incremental logic, as Tensile writes it
(`logic=DIR`), or with a tuning folder's winners. A winner becomes an exact size of the solution in
the logic files that has its kernel's name. The library must be built again afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, ConfigValue
from kernelmark.tune.install import tensile_logic as tensile
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
from kernelmark.tune.records.results import Outcome

_KINDS = ("Equality", "GridBased")


class Tensile(Emitter):
    name = "tensile"
    summary = "Tensile library logic (YAML), merged as TensileMergeLibrary does"
    facts = FormatFacts(
        versions="hipBLASLt 7d9fb683 (2024-10), rocm-libraries 0cd879ad (2026)",
        exactness="merges as TensileMergeLibrary: forced by default, except for files of arcturus",
        checked="TensileMergeLibrary executed on six logic files with the same result",
    )
    backends = ("hipblaslt",)
    options = FrozenDict(
        {
            "logic": "a folder of incremental logic to merge, in place of outcomes",
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
        chosen = self.choose(outcomes, _lookup_key)
        kernels = {outcome.tuned.kernel.name for outcome in chosen.winners.values()} - {""}
        library = _Library(into, kernels)
        extra: dict[Path, tensile.Logic] = {}
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
        pairs: Sequence[tuple[Path, tensile.Logic]],
        names: Mapping[tuple[Path, tensile.Size], str] | None = None,
        *,
        force: bool | None,
        no_eff: bool,
    ) -> Change:
        edits, lookups, notes = [], [], []
        replaceable = False
        for target, extra in pairs:
            # As defaultForceMergePolicy of TensileMergeLibrary, which uses only the first file.
            forced = "arcturus" not in extra.path if force is None else force
            tensile.check_folder(target.parent, extra)
            before, path = text_at(target), target.relative_to(into)
            answers, after, steps = _merge(before, extra, target, force=forced, no_eff=no_eff)
            notes += [f"{path}: {step}" for step in steps]
            for size, (config, is_new) in answers.items():
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
            for size, (solution, efficiency) in tensile.answers(_logic(file)).items()
        ]

    def find(self, path: Path, key: Key) -> Entry | None:
        text = text_at(path / key["file"])
        if text is None:
            return None
        if self._cached[0] != text:
            self._cached = (text, tensile.answers(tensile.parse(text, key["file"])))
        size = tuple(map(int, key["size"].split()))
        if size not in self._cached[1]:
            return None
        return Entry(key=key, config=_config(*self._cached[1][size]))

    _cached: tuple[str, dict[tensile.Size, tuple[dict[str, Any], float]]] = ("", {})


def _merge(
    before: str | None, extra: tensile.Logic, target: Path, *, force: bool, no_eff: bool
) -> tuple[dict[tensile.Size, tuple[Config, bool]], str, list[str]]:
    """Return the config of each size after the merge and whether it is new, the file's new text,
    and a line for each step."""
    offered = tensile.answers(extra)
    if before is None:
        text = extra.text or tensile.text_of(extra, None)
        return (
            {size: (_config(*answer), True) for size, answer in offered.items()},
            text,
            ["a new file"],
        )
    base = tensile.parse(before, str(target))
    logic, steps = tensile.merge(base, extra, force=force, no_eff=no_eff)
    answers = {size: (_config(*answer), False) for size, answer in tensile.answers(base).items()}
    for step in steps:
        if step.fate is not tensile.Fate.KEPT:
            solution, efficiency = offered[step.size]
            answers[step.size] = (_config(solution, 0.0 if no_eff else efficiency), True)
    # Without a new size the text stays, even if merging would normalise it.
    text = tensile.text_of(logic, before) if any(new for _, new in answers.values()) else before
    return answers, text, [_step_text(step) for step in steps]


class _Library:
    """The solutions of a folder by kernel and solution names."""

    def __init__(self, root: Path, names: Iterable[str]) -> None:
        self.names: dict[tuple[Path, tensile.Size], str] = {}
        self._named: dict[str, list[tuple[Path, tensile.Logic, dict[str, Any]]]] = {}
        for file in _files(root):
            text = text_at(file) or ""
            if any(name in text for name in names):  # parsing is slow, and most files lack them
                self._take(file, tensile.parse(text, str(file)))

    def _take(self, file: Path, logic: tensile.Logic) -> None:
        for solution in logic.solutions:
            for name in {solution["SolutionNameMin"], solution.get("KernelNameMin", "")} - {""}:
                self._named.setdefault(name, []).append((file, logic, solution))

    def add(self, outcome: Outcome, extra: dict[Path, tensile.Logic]) -> None:
        """Add the outcome's size to `extra`, as a row of the Equality logic that belongs to the
        file of its solution."""
        name = outcome.tuned.kernel.name
        arch = outcome.arch.split(":")[0]
        named = [each for each in self._named.get(name, []) if _arch(each[1]) in ("", arch)]
        if not named:
            raise CannotWrite(f"no logic file for {arch} has a solution called {name!r}")
        distinct = {(_equality(file), tensile.digest(solution)) for file, _, solution in named}
        if len(distinct) > 1:
            raise CannotWrite(f"{len(distinct)} different solutions are called {name}")
        file, logic, solution = named[0]
        target = _equality(file)
        if target not in extra:
            extra[target] = _empty(logic)
        size = [int(value) for value in _lookup_key(outcome)["size"].split()]
        pool = extra[target].solutions
        mark = tensile.digest(solution)
        index = next((i for i, s in enumerate(pool) if tensile.digest(s) == mark), len(pool))
        if index == len(pool):
            pool.append({**solution, "SolutionIndex": index})
        extra[target].set("ExactLogic", [*extra[target].table, [size, [index, 0.0]]])
        self.names[target, tuple(size)] = outcome.name


def _lookup_key(outcome: Outcome) -> Key:
    call = blas_call(outcome)
    names = ("transA", "transB", "a_type", "b_type", "c_type", "d_type", "compute_type")
    size = " ".join(call[name] for name in ("m", "n", "batch_count", "k"))
    return FrozenDict({**{name: call[name] for name in names}, "size": size})


def _arch(logic: tensile.Logic) -> str:
    name = logic.get("ArchitectureName")
    return str(name.get("Architecture", "") if isinstance(name, dict) else name or "")


def _equality(file: Path) -> Path:
    """Return the file of the same name in the Equality folder; `file` itself in a flat folder."""
    if file.parent.name in _KINDS:
        return file.parent.with_name("Equality") / file.name
    return file


def _empty(logic: tensile.Logic) -> tensile.Logic:
    """Return Equality logic of the same problem type, without solutions and sizes."""
    document: Any = type(logic.document)(logic.document)
    empty = tensile.Logic(document, logic.path)
    empty.set("Solutions", [])
    empty.set("ExactLogic", [])
    empty.set("LibraryType", "Equality")
    return empty


def _incremental(folder: Path, into: Path) -> Iterator[tuple[Path, tensile.Logic]]:
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


def _logic(file: Path) -> tensile.Logic:
    return tensile.parse(text_at(file) or "", str(file))


def _key(path: Path, size: tensile.Size) -> Key:
    return FrozenDict({"file": path.as_posix(), "size": " ".join(map(str, size))})


def _config(solution: dict[str, Any], efficiency: float) -> Config:
    config: dict[str, ConfigValue] = {
        "solution": tensile.digest(solution),
        "efficiency": float(efficiency),
    }
    return FrozenDict(config)


def _step_text(step: tensile.Step) -> str:
    before = "absent" if step.before is None else f"{step.before:g}"
    if step.fate is tensile.Fate.KEPT:
        return f"{step.fate} {list(step.size)} efficiency {before} stays: {step.after:g} is offered"
    return f"{step.fate} {list(step.size)} efficiency {before} -> {step.after:g}"


emitter = Tensile()
