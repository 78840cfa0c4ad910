"""nightly.toml: what is measured every night, how it is judged, and who is notified.

Unknown keys and wrong types are refused before anything runs.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kernelmark.api.selection import Selection
from kernelmark.compare.alarms import LEAST
from kernelmark.compare.history import MIN_EFFECT
from kernelmark.core.errors import UsageError
from kernelmark.core.files import load_toml
from kernelmark.core.flags import flags
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.timing import Timing
from kernelmark.workloads.suites import CANARIES

T = TypeVar("T")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?\Z")
_DOCS = "docs/nightly.md explains the file"
WHEN = ("alarm", "change", "always")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """[setup]: shell commands to run before measuring; a failure ends the night."""

    commands: tuple[str, ...] = ()
    timeout_s: float = 3600.0


# Keys of a [[run]] table that are fields of a Selection.
_SELECTED = ("suites", "backends", "devices", "dtypes", "filter", "limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """[[run]]: what to measure on each of the devices. `selected` are texts for fields of a
    Selection: kernel files and backends are looked up when their turn comes, since a table that
    cannot be measured must not stop the others."""

    selected: Mapping[str, Any]
    timing: str = "default"
    processes: int = 0  # fresh processes per case; 0: as in the timing

    @property
    def suites(self) -> tuple[str, ...]:
        return tuple(self.selected["suites"])

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.selected.get("devices", ("cpu",)))

    def load_timing(self) -> Timing:
        return Timing.load(self.timing, **({"processes": self.processes} if self.processes else {}))

    def select(self, device: str, canary_suite: str) -> Selection:
        """Return what is measured on one device; canaries of kernelmark's own suite are added."""
        usual = canary_suite == CANARIES
        extra = canary_suite and not usual and canary_suite not in self.suites
        suites = [*self.suites, *([canary_suite] if extra else ())]
        texts = {**self.selected, "suites": suites, "devices": [device]}
        return Selection.parse(**texts, canaries=usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """[canaries]: how to distinguish changes of the machine from changes of the code. With `roofs`,
    every night measures the device's roofs, and reports those that moved by more than
    `roof_limit`."""

    suite: str = CANARIES
    roofs: bool = False
    roof_limit: float = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """[judge]: how many nights to consider, what is suspect, and how to confirm suspects."""

    nights: int = 60
    suspect: float = LEAST
    min_effect: float = MIN_EFFECT
    baseline: str = ""
    fail_on: tuple[str, ...] = ()
    repeats: int = 5  # fresh processes per suspect, if there is no base to compare with
    budget_s: float = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """[base]: what suspects are compared with: a fixed environment (`python`, `set`), or, with
    `repo`, the commit before the change, checked out and built."""

    python: str = ""
    set: Mapping[str, str] = field(default_factory=FrozenDict)
    repo: str = ""
    build: str = ""
    build_timeout_s: float = 3600.0

    @property
    def given(self) -> bool:
        return bool(self.python or self.set or self.repo)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """[notify]: who is notified, and when: at an alarm, at any change, or always. A webhook `$NAME`
    is read from that environment variable, which keeps the secret out of the file."""

    when: str = "alarm"
    webhook: str = ""
    mail_to: tuple[str, ...] = ()
    mail_from: str = ""
    sendmail: str = "/usr/sbin/sendmail"
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """[keep]: retention in days; 0 keeps everything. Results older than `samples` keep one time per
    block; runs older than `runs` are deleted, except one per week and pinned ones."""

    samples: int = 0
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nightly:
    """The contents of the file at `path`."""

    name: str
    run: tuple[RunTable, ...]
    store: str = ""
    state: str = ""
    summary: str = ""
    push: str = ""
    site: str = ""
    resume_h: float = 12.0
    setup: Setup = field(default_factory=Setup)
    canaries: Canaries = field(default_factory=Canaries)
    judge: Judge = field(default_factory=Judge)
    base: Base = field(default_factory=Base)
    notify: Notify = field(default_factory=Notify)
    keep: Keep = field(default_factory=Keep)
    path: Path = field(default=Path(), metadata={"own": True})

    @property
    def folder(self) -> Path:
        """The folder that commands run in, and that paths in the file are relative to."""
        return self.path.parent

    @property
    def state_folder(self) -> Path:
        return self.folder / (self.state or f"{self.path.stem}.state")


def load(path: str | os.PathLike[str]) -> Nightly:
    """Load and check a nightly file."""
    resolved = Path(path).expanduser().absolute()
    document = load_toml(
        resolved,
        missing="examples/nightly/nightly.toml is one to begin with",
        hint="see docs/nightly.md",
        shown=str(path),
    )
    nightly = dataclasses.replace(_read(document, Nightly, str(path)), path=resolved)
    return _checked(nightly, str(path))


def expanded(text: str) -> str:
    """Return the environment variable that `$NAME` refers to; other texts unchanged."""
    match = _VARIABLE.match(text)
    if match is None:
        return text
    value = os.environ.get(match[1], "")
    if not value:
        raise UsageError(f"the variable {match[1]} is not set", hint="nightly.toml names it")
    return value


def _checked(nightly: Nightly, file: str) -> Nightly:
    from kernelmark.api.load import check_name
    from kernelmark.compare import alarms

    if not nightly.run:
        raise UsageError(f"{file}: [[run]] is missing", hint='[[run]]\n  suites = ["smoke"]')
    check_name(nightly.name, f"{file}: name")
    if nightly.notify.when not in WHEN:
        raise UsageError(
            f"{file}: notify.when = {nightly.notify.when!r} is unknown",
            hint=f"known: {', '.join(WHEN)}",
        )
    if nightly.judge.fail_on:
        alarms.parse(nightly.judge.fail_on)
    limits = {
        "resume_h": nightly.resume_h,
        "setup.timeout_s": nightly.setup.timeout_s,
        "judge.nights": nightly.judge.nights,
        "judge.suspect": nightly.judge.suspect,
        "judge.min_effect": nightly.judge.min_effect,
        "judge.repeats": nightly.judge.repeats,
        "judge.budget_s": nightly.judge.budget_s,
        "canaries.roof_limit": nightly.canaries.roof_limit,
    }
    for name, value in limits.items():
        if value <= 0:
            raise UsageError(f"{file}: {name} = {value:g} must be positive")
    for name in ("samples", "runs"):
        if (days := getattr(nightly.keep, name)) < 0:
            raise UsageError(f"{file}: keep.{name} = {days} is not a whole number of at least 0")
    if nightly.base.build and not nightly.base.repo:
        raise UsageError(
            f"{file}: base.repo is missing", hint='base.build is for a repository: base.repo = "."'
        )
    if nightly.notify.mail_to and not nightly.notify.mail_from:
        raise UsageError(f"{file}: notify.mail_from is missing", hint="mail needs a sender")
    return nightly


def _read(table: object, kind: type[T], file: str, key: str = "") -> T:
    """Return a dataclass from a TOML table; `key` is the table's key in the file."""
    if not isinstance(table, dict):
        raise UsageError(f"{file}: {key} is not a table", hint="write its keys below [name]")
    prefix = f"{key}." if key else ""
    keys, required = _keys(kind)
    for name in table:
        if name not in keys:
            close = difflib.get_close_matches(name, keys, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(
                f"{file}: {prefix}{name} is unknown", hint=f"{meant}known: {', '.join(keys)}"
            )
    for name in required:
        if name not in table:
            raise UsageError(f"{file}: {prefix}{name} is missing", hint=_DOCS)
    values = {
        name: _value(value, keys[name], file, f"{prefix}{name}") for name, value in table.items()
    }
    if kind is RunTable:
        values["selected"] = {name: values.pop(name) for name in _SELECTED if name in values}
    return kind(**values)


def _keys(kind: type) -> tuple[dict[str, Any], list[str]]:
    """Return the type of each key of a table, and the keys that are required."""
    hints = typing.get_type_hints(kind)
    shown = [field for field in dataclasses.fields(kind) if "own" not in field.metadata]
    keys = {field.name: hints[field.name] for field in shown}
    empty = dataclasses.MISSING
    required = [f.name for f in shown if f.default is empty and f.default_factory is empty]
    if kind is RunTable:
        declared = flags(Selection)
        texts = {name: declared[name].takes for name in _SELECTED}
        texts = {name: tuple[str, ...] if kind is list else kind for name, kind in texts.items()}
        keys, required = {**texts, **keys}, ["suites"]
        del keys["selected"]
    return keys, required


def _value(value: Any, hint: Any, file: str, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _read(value, hint, file, key)  # type: ignore[arg-type]
    origin = typing.get_origin(hint)
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        if not isinstance(value, list):
            raise _wrong(value, file, key, "[…]")
        return tuple(_value(item, inner, file, key) for item in value)
    if origin is Mapping or origin is types.MappingProxyType or hint is Mapping:
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise _wrong(value, file, key, '{ NAME = "value" }')
        return FrozenDict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise _wrong(value, file, key, {str: '"text"', int: "3", float: "0.5", bool: "true"}[hint])
    return value


def _wrong(value: object, file: str, key: str, example: str) -> UsageError:
    return UsageError(f"{file}: {key} cannot be {value!r}", hint=f"for example: {example}")
