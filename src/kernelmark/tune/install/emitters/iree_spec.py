"""iree-spec: winners of the iree backend as a tuning spec, merged into an existing one.

    iree-compile model.mlir --iree-codegen-tuning-spec-path=tuned.mlir …

A spec matches root ops by kind, types, indexing maps and sizes, but not by device, so a file is for
one architecture. A comment above each matcher has the winner's problem and config. A file that
packs operands or rewrites convolutions must also be passed to
`--iree-preprocessing-transform-spec-filename`. All winners of a file are compiled with the same
flags. A winner is not written if it needs another value of a flag, or if its dispatch, compiled
with the whole new spec and its flags, does not have its config.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.backends.iree import choices, lowering
from kernelmark.backends.iree.compiler import compiler_present, spec_flags
from kernelmark.backends.iree.spec import EMPTY, Spec, parse_spec
from kernelmark.backends.iree.spec import RootEntry as SpecEntry
from kernelmark.backends.iree.targets import Target, target
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, Unsupported, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import shorten
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config
from kernelmark.tune.install.emitters.base import (
    CannotWrite,
    Change,
    Edit,
    Emitter,
    Entry,
    Key,
    Options,
    Skipped,
    is_yes,
    required_text,
    text_at,
)
from kernelmark.tune.results import Outcome

_MEASURED = 5  # winners whose gain is measured: each takes some ten seconds


class IreeSpec(Emitter):
    name = "iree_spec"
    summary = "a tuning spec for iree-compile, merged into one that is there (also: iree-spec)"
    facts = FormatFacts(
        versions="IREE 3.13",
        exactness="exact; other sequences in the file are kept unchanged",
        checked="compiled with the spec, and the dispatch's config compared",
    )
    backends = ("iree",)
    options = FrozenDict(
        {
            "verify": "yes (default): compile each winner with the spec and compare its config; no",
            "gain": "yes (default): kmark export measures what the flags gain without the spec; no",
        }
    )

    def emit(self, outcomes: Sequence[Outcome], into: Path, options: Options) -> Change:
        before = text_at(into)
        base = EMPTY if before is None else _parsed(before, into)
        verify = is_yes(options, "verify", default=True)
        chosen = self.choose(outcomes, _lookup_key)
        skipped, winners = list(chosen.skipped), dict(chosen.winners)
        for find_conflicts in (partial(_clashes, unchanged=chosen.unchanged), _flag_conflicts):
            for key, reason in find_conflicts(winners, base):
                skipped.append(Skipped(name=winners.pop(key).name, reason=reason))
        notes = []
        if not verify or not compiler_present():
            notes.append("not verified: no winner was compiled with the spec")
        else:
            whole = _merged(base, winners)
            flags = file_flags(whole)
            reasons = {
                outcome.name: reason
                for outcome in winners.values()
                if (reason := _not_applied(outcome, whole.text, flags))
            }
            skipped += [Skipped(name=name, reason=reason) for name, reason in reasons.items()]
            winners = {key: o for key, o in winners.items() if o.name not in reasons}
            if winners:
                count = len(winners)
                notes.append(f"compiled with the spec: {count} of {count} winners applied")
        merged = _merged(base, winners)
        edits: tuple[Edit, ...] = ()
        if winners:
            flags = (*file_flags(merged), *spec_flags(merged.text, "FILE"))
            notes.append(f"compile with {' '.join(flags)}")
            if before is None or merged != base:
                edits = (Edit(path=Path(), before=before, after=merged.text),)
        configs = {key: outcome.tuned.config for key, outcome in winners.items()}
        there = {entry.key: entry.config for entry in _entries(base)}
        return Change(
            emitter=self.name,
            edits=edits,
            lookups=tuple(chosen.lookups(configs, there)),
            skipped=tuple(skipped),
            notes=tuple(notes),
        )

    def read(self, path: Path) -> list[Entry]:
        return _entries(_parsed(required_text(path), path))

    def find(self, path: Path, key: Key) -> Entry | None:
        entries = self.read(path) if path.exists() else []
        return next((entry for entry in entries if entry.key == key), None)


def _lookup_key(outcome: Outcome) -> Key:
    """Return the lookup key of a problem: the names of its root ops."""
    return _key(outcome.arch, _root_names(outcome.problem, _target(outcome.arch)))


def _root_names(problem: Problem, goal: Target) -> list[str]:
    """Return the names of the ops that a model has: of a convolution on a CPU, which is rewritten,
    the named op."""
    try:
        roots = lowering.model_roots(problem, choices.form_of(problem, FrozenDict(), goal))
    except Unsupported as error:
        raise CannotWrite(error.message) from None
    return [root.name for root in roots]


def _key(arch: str, names: Iterable[str]) -> Key:
    return FrozenDict({"arch": arch, "match": " ".join(names)})


def _spec_entries(problem: Problem, config: Config, arch: str) -> tuple[SpecEntry, ...]:
    """Return the spec entries of a config, with a note of its problem; raise CannotWrite if it has
    none."""
    goal = _target(arch)
    try:
        choice = choices.choose(problem, config, goal)
    except KernelmarkError as error:
        raise CannotWrite(error.message) from None
    if not choice.entries:
        raise CannotWrite("its config is no lowering that a spec could apply")
    note = {
        "arch": arch,
        "config": dict(config),
        "flags": list(choices.codegen_flags(choice, goal)),
        "match": _root_names(problem, goal),
        "problem": problem.key,
    }
    return tuple(replace(entry, note=note) for entry in choice.entries)


def gain_modules(outcomes: Sequence[Outcome]) -> tuple[list[str], Target]:
    """Return the modules in which the gain of a file is measured, as a model has them: those of the
    winners that save the most time. Return their target, too."""
    chosen = sorted(outcomes, key=lambda outcome: -outcome.saved_s)[:_MEASURED]
    goal = _target(chosen[0].arch)
    return [choices.model_source(outcome.problem, goal) for outcome in chosen], goal


def file_flags(spec: Spec) -> tuple[str, ...]:
    """Return the flags that a module is compiled with to use the winners of a spec, except for the
    spec and the target. The spec marks the operands to pack, which also needs data tiling."""
    every = [flag for note in spec.notes.values() for flag in _noted_flags(note)]
    off, on = (f"{choices.DATA_TILING}={word}" for word in ("false", "true"))
    return tuple(dict.fromkeys(on if flag == off and on in every else flag for flag in every))


def _noted_flags(note: Mapping[str, Any]) -> list[str]:
    flags = note.get("flags")
    return [str(flag) for flag in flags] if isinstance(flags, list) else []


def _flag_conflicts(kept: Mapping[Key, Outcome], base: Spec) -> list[tuple[Key, str]]:
    """Return the winners that need another value of a flag than the file has; in a new file, than
    the value whose winners save the most time."""
    flags: dict[str, bool] = {}
    notes: Iterable[Mapping[str, Any]] = base.notes.values()
    for note in notes:
        try:
            if _key(note["arch"], note["match"]) not in kept:
                flags |= choices.depends(ops.parse(note["problem"]), FrozenDict(note["config"]))
        except (KernelmarkError, KeyError, TypeError):
            continue
    needed = {key: choices.depends(o.problem, o.tuned.config) for key, o in kept.items()}
    saved: dict[str, dict[bool, float]] = {}
    for key, values in needed.items():
        for flag, value in values.items():
            by_value = saved.setdefault(flag, {})
            by_value[value] = by_value.get(value, 0.0) + kept[key].saved_s
    flags = {flag: max(by, key=lambda value: by[value]) for flag, by in saved.items()} | flags
    conflicts = []
    for key, values in needed.items():
        if flag := next((name for name, value in values.items() if value != flags[name]), ""):
            own, other = (("no", "yes")[each[flag]] for each in (values, flags))
            conflicts.append(
                (
                    key,
                    f"it was tuned with {flag}={own}, and most of the file's gain is with "
                    f"{flag}={other}: all its winners are compiled with one set of flags",
                )
            )
    return conflicts


def _target(arch: str) -> Target:
    kind = "hip" if arch.startswith("gfx") else "cuda" if arch.startswith("sm_") else "cpu"
    goal = target(DeviceInfo(name=arch, kind=kind, model=arch, arch=arch))
    if goal is None:
        raise CannotWrite(f"iree has no target for {kind} {arch}")
    return goal


def _merged(base: Spec, kept: Mapping[Key, Outcome]) -> Spec:
    """Return the spec with all winners."""
    return base.with_entries(
        [
            entry
            for outcome in kept.values()
            for entry in _spec_entries(outcome.problem, outcome.tuned.config, outcome.arch)
        ]
    )


def _clashes(
    kept: Mapping[Key, Outcome], base: Spec, *, unchanged: Sequence[Key]
) -> list[tuple[Key, str]]:
    """Return the winners that cannot be in the file, with the reason: another architecture, a root
    op shared with a problem that has another config or did not gain, or a config that is not a
    lowering."""
    archs = {str(note["arch"]) for note in base.notes.values()}
    kept_roots = {(key["arch"], name) for key in unchanged for name in key["match"].split()}
    taken: set[str] = set()
    clashes = []
    for key, outcome in sorted(kept.items(), key=lambda item: -item[1].saved_s):
        try:
            entries = _spec_entries(outcome.problem, outcome.tuned.config, outcome.arch)
        except CannotWrite as error:
            clashes.append((key, error.reason))
            continue
        archs = archs or {outcome.arch}
        if outcome.arch not in archs:
            reason = f"the file is for {', '.join(sorted(archs))}, not for {outcome.arch}"
        elif any((outcome.arch, entry.root.name) in kept_roots for entry in entries):
            reason = "a problem that did not gain has the same root op"
        elif taken & {entry.root.name for entry in entries}:
            reason = "another winner has the same root op"
        else:
            taken |= {entry.root.name for entry in entries}
            continue
        clashes.append((key, reason))
    return clashes


def _not_applied(outcome: Outcome, spec: str, flags: Sequence[str]) -> str:
    """Return why a winner's dispatches do not have its config when compiled with the spec, or
    ""."""
    goal = _target(outcome.arch)
    choice = choices.choose(outcome.problem, outcome.tuned.config, goal)
    try:
        lost = choices.unapplied(outcome.problem, choice, spec, (*goal.flags, *flags))
    except KernelmarkError as error:
        return f"it does not compile with the spec: {shorten(error.message)}"
    return "its compiled dispatch does not have the spec's config" if lost else ""


def _entries(spec: Spec) -> list[Entry]:
    """Return the winners in a spec, without duplicates and without edited ones."""
    entries: dict[Key, Entry] = {}
    for note in spec.notes.values():
        entry = _entry(spec, note)
        if entry is not None:
            entries[entry.key] = entry
    return list(entries.values())


def _entry(spec: Spec, note: Mapping[str, Any]) -> Entry | None:
    try:
        problem, config = ops.parse(note["problem"]), FrozenDict(note["config"])
        again = spec.with_entries(_spec_entries(problem, config, note["arch"]))
    except (CannotWrite, KernelmarkError, KeyError, TypeError):
        return None
    # Adding the entries again changes nothing if all of them are present and unedited.
    if again.sequences != spec.sequences or {*again.packs} != {*spec.packs}:
        return None
    return Entry(key=_key(note["arch"], note["match"]), config=config)


def _parsed(text: str, path: Path) -> Spec:
    try:
        return parse_spec(text)
    except ValueError as error:
        raise UsageError(f"{path}: a kernelmark comment cannot be read: {error}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from None


emitter = IreeSpec()
