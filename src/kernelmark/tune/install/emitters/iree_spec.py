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

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.backends.iree import choices, lowering
from kernelmark.backends.iree.compiler import compiler_present, spec_flags
from kernelmark.backends.iree.spec import EMPTY, Lowering, Spec, parse_spec
from kernelmark.backends.iree.spec import Entry as SpecEntry
from kernelmark.backends.iree.targets import Target, target
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, Unsupported, UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config
from kernelmark.tune.install.emitters.base import (
    Change,
    Edit,
    Emitter,
    Entry,
    Fields,
    Held,
    Unfit,
    Wanted,
    kept_answers,
    option,
    required_text,
    settle,
    text_at,
)
from kernelmark.tune.records.outcome import Outcome


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
        {"verify": "yes (default) compiles each winner with the spec and compares its config; no"}
    )

    def emit(self, outcomes: Sequence[Outcome], into: Path, given: Fields) -> Change:
        before = text_at(into)
        base = EMPTY if before is None else _parsed(before, into)
        settled = settle(self, outcomes, _lookup_key)
        held, kept = list(settled.held), dict(settled.winners)
        for fields, reason in _clashes(kept, settled.others, base):
            held.append(Held(name=kept.pop(fields).name, reason=reason))
        for fields, clash in _flag_conflicts(kept, base):
            held.append(Held(name=kept.pop(fields).name, reason=clash))
        more = _same_gemm(outcomes, kept)
        notes = []
        verify = option(self, given, "verify", "yes")
        if verify not in ("yes", "no"):
            raise UsageError(
                Reason("option-not-yes-or-no", name="verify", given=verify),
                hint="for example: --with verify=no",
            )
        if verify == "no" or not compiler_present():
            notes.append("not verified: no winner was compiled with the spec")
        else:
            whole = _merged(base, kept, more)
            flags = file_flags(whole)
            for fields, outcome in list(kept.items()):
                if lost := _unapplied(outcome, whole.text, flags):
                    held.append(Held(name=kept.pop(fields).name, reason=lost))
            for outcome in list(more):
                if lost := _unapplied(outcome, whole.text, flags):
                    held.append(Held(name=outcome.name, reason=lost))
                    more.remove(outcome)
            if kept:
                notes.append(f"compiled with the spec: {len(kept)} of {len(kept)} winners applied")
        merged = _merged(base, kept, more)
        if kept:
            words = (*file_flags(merged), *spec_flags(merged.text, "FILE"))
            notes.append(f"compile with {' '.join(words)}")
        wanted = [
            Wanted(fields=fields, config=outcome.tuned.config, name=outcome.name)
            for fields, outcome in kept.items()
        ]
        there = {entry.fields: entry.config for entry in _entries(base)}
        wanted += kept_answers(there, settled.others, kept)
        same = before is not None and merged == base
        edits = () if same or not kept else (Edit(path=Path(), before=before, after=merged.text),)
        return Change(
            emitter=self.name,
            edits=edits,
            wanted=tuple(wanted),
            held=tuple(held),
            notes=tuple(notes),
        )

    def read(self, path: Path) -> list[Entry]:
        return _entries(_parsed(required_text(path), path))


def _lookup_key(outcome: Outcome) -> Fields:
    """Return the lookup key of a problem: the names of its root ops' matchers."""
    goal = _target(outcome.arch)
    try:
        roots = lowering.roots(outcome.problem, choices.form_of(outcome.problem, {}, goal))
    except Unsupported as error:
        raise Unfit(error.message) from None
    return _fields(outcome.arch, [root.name for root in roots])


def _fields(arch: str, names: Iterable[str]) -> Fields:
    return FrozenDict({"arch": arch, "match": " ".join(names)})


def _spec_entries(problem: Problem, config: Config, arch: str) -> tuple[SpecEntry, ...]:
    """Return the spec entries of a config, with a note of its problem; raise Unfit if it has
    none."""
    goal = _target(arch)
    try:
        choice = choices.choose(problem, config, goal)
    except KernelmarkError as error:
        raise Unfit(error.message) from None
    if not choice.entries:
        raise Unfit(Reason("config-no-lowering"))
    note = {
        "arch": arch,
        "config": dict(config),
        "flags": list(choices.codegen_flags(choice, goal)),
        "match": [entry.root.name for entry in choice.entries],
        "problem": problem.key,
    }
    return tuple(replace(entry, note=note) for entry in choice.entries)


def file_flags(spec: Spec) -> tuple[str, ...]:
    """Return the flags that a module is compiled with to use the winners of a spec, except for the
    spec and the target. The spec marks the operands to pack, which also needs data tiling."""
    every = [flag for note in spec.notes.values() for flag in _noted_flags(note)]
    off, on = (f"{choices.DATA_TILING}={word}" for word in ("false", "true"))
    found = dict.fromkeys(on if flag == off and on in every else flag for flag in every)
    return tuple(found)


def _noted_flags(note: Mapping[str, Any]) -> list[str]:
    flags = note.get("flags")
    return [str(flag) for flag in flags] if isinstance(flags, list) else []


def _flag_conflicts(kept: Mapping[Fields, Outcome], base: Spec) -> list[tuple[Fields, Reason]]:
    """Return the winners that need another value of a flag than the file has; in a new file, than
    the value whose winners save the most time."""
    given: dict[str, bool] = {}
    notes: Iterable[Mapping[str, Any]] = base.notes.values()
    for note in notes:
        try:
            if _fields(note["arch"], note["match"]) not in kept:
                given |= choices.depends(ops.parse(note["problem"]), FrozenDict(note["config"]))
        except (KernelmarkError, KeyError, TypeError):
            continue
    saved: dict[str, dict[bool, float]] = {}
    for outcome in kept.values():
        for flag, value in choices.depends(outcome.problem, outcome.tuned.config).items():
            by = saved.setdefault(flag, {})
            by[value] = by.get(value, 0.0) + outcome.saved_s
    given = {flag: max(by, key=lambda value: by[value]) for flag, by in saved.items()} | given
    conflicts = []
    for fields, outcome in kept.items():
        own = choices.depends(outcome.problem, outcome.tuned.config)
        if flag := next((name for name, value in own.items() if value != given[name]), ""):
            words = {
                name: ("no", "yes")[one[flag]] for name, one in (("value", own), ("file", given))
            }
            conflicts.append((fields, Reason("spec-flags", flag=flag, **words)))
    return conflicts


def _target(arch: str) -> Target:
    kind = "hip" if arch.startswith("gfx") else "cuda" if arch.startswith("sm_") else "cpu"
    goal = target(DeviceInfo(name=arch, kind=kind, model=arch, arch=arch))
    if goal is None:
        raise Unfit(Reason("iree-no-target", kind=kind, arch=arch))
    return goal


def _same_gemm(outcomes: Sequence[Outcome], kept: Mapping[Fields, Outcome]) -> list[Outcome]:
    """Return kept convolutions that become the same GEMM as a winner: their named ops differ, and
    have to be rewritten too."""
    found = []
    for outcome in outcomes:
        if outcome.kept and outcome.problem.op == "conv" and outcome not in kept.values():
            with contextlib.suppress(Unfit):
                found += [outcome] * (_lookup_key(outcome) in kept)
    return found


def _merged(base: Spec, kept: Mapping[Fields, Outcome], more: Sequence[Outcome]) -> Spec:
    """Return the spec with all winners. Those of `more` come first, so that the comment of a shared
    matcher is that of the winner in `kept`."""
    return base.with_entries(
        [
            entry
            for outcome in (*more, *kept.values())
            for entry in _spec_entries(outcome.problem, outcome.tuned.config, outcome.arch)
        ]
    )


def _clashes(
    kept: Mapping[Fields, Outcome], others: Sequence[Fields], base: Spec
) -> list[tuple[Fields, Reason]]:
    """Return the winners that cannot be in the file, with the reason: another architecture, a root
    op shared with a problem that has another config or did not gain, or a config that is not a
    lowering."""
    archs = {str(note["arch"]) for note in base.notes.values()}
    unchanged = {(f["arch"], name) for f in others for name in f["match"].split()}
    taken: dict[str, Lowering] = {}
    clashes = []
    for fields, outcome in sorted(kept.items(), key=lambda item: -item[1].saved_s):
        try:
            entries = _spec_entries(outcome.problem, outcome.tuned.config, outcome.arch)
        except Unfit as error:
            clashes.append((fields, error.reason))
            continue
        archs = archs or {outcome.arch}
        if outcome.arch not in archs:
            reason = Reason("file-arch", archs=tuple(sorted(archs)), arch=outcome.arch)
            clashes.append((fields, reason))
        elif any((outcome.arch, entry.root.name) in unchanged for entry in entries):
            clashes.append((fields, Reason("root-op-shared")))
        elif any(taken.get(e.root.name, e.lowering) != e.lowering for e in entries):
            clashes.append((fields, Reason("root-op-contested")))
        else:
            taken |= {entry.root.name: entry.lowering for entry in entries}
    return clashes


def _unapplied(outcome: Outcome, spec: str, flags: Sequence[str]) -> Reason | None:
    """Return why a winner's dispatches do not have its config when compiled with the spec, or
    None."""
    goal = _target(outcome.arch)
    choice = choices.choose(outcome.problem, outcome.tuned.config, goal)
    try:
        lost = choices.unapplied(outcome.problem, choice, spec, (*goal.flags, *flags))
    except KernelmarkError as error:
        return Reason("spec-not-compiled", cause=error.message)
    return Reason("spec-not-applied") if lost else None


def _entries(spec: Spec) -> list[Entry]:
    """Return the winners in a spec, without duplicates and without edited ones."""
    entries: dict[Fields, Entry] = {}
    for note in spec.notes.values():
        entry = _entry(spec, note)
        if entry is not None:
            entries[entry.fields] = entry
    return list(entries.values())


def _entry(spec: Spec, note: Mapping[str, Any]) -> Entry | None:
    try:
        problem, config = ops.parse(note["problem"]), FrozenDict(note["config"])
        again = spec.with_entries(_spec_entries(problem, config, note["arch"]))
    except (Unfit, KernelmarkError, KeyError, TypeError):
        return None
    # Adding the entries again changes nothing if all of them are present and unedited.
    if again.sequences != spec.sequences or {*again.packs} != {*spec.packs}:
        return None
    return Entry(fields=_fields(note["arch"], note["match"]), config=config)


def _parsed(text: str, path: Path) -> Spec:
    try:
        return parse_spec(text)
    except ValueError as error:
        raise UsageError(
            Reason("spec-comment-unreadable", file=str(path), error=str(error))
        ) from None
    except UsageError as error:
        raise UsageError(
            Reason("in-file", file=str(path), cause=error.message), hint=error.hint
        ) from None


emitter = IreeSpec()
