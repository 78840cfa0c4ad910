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

from kernelmark.compare.history import MIN_EFFECT
from kernelmark.compare.suspects import LEAST
from kernelmark.core.errors import UsageError
from kernelmark.core.files import load_toml
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason

T = TypeVar("T")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?\Z")
_DOCS = "docs/nightly.md explains the file"
WHEN = ("alarm", "change", "always")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """[setup]: shell commands to run before measuring; a failure ends the night."""

    commands: tuple[str, ...] = ()
    timeout_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """[[run]]: the suites and backends to measure on each of the devices."""

    suites: tuple[str, ...]
    backends: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    timing: str = "default"
    processes: int = 0  # fresh processes per case; 0: as in the timing
    dtypes: tuple[str, ...] = ()
    filter: str = ""
    limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """[canaries]: how to distinguish changes of the machine from changes of the code. With `roofs`,
    every night measures the device's roofs, and reports those that moved by more than
    `roof_limit`."""

    suite: str = "sentinels"
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
    run: tuple[Measured, ...]
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
    place = Path(path).expanduser().absolute()
    document = load_toml(
        place,
        missing="examples/nightly/nightly.toml is one to begin with",
        hint="see docs/nightly.md",
        shown=str(path),
    )
    found = dataclasses.replace(_read(document, Nightly, str(path)), path=place)
    return _checked(found, str(path))


def expanded(text: str) -> str:
    """Return the environment variable that `$NAME` refers to; other texts unchanged."""
    found = _VARIABLE.match(text)
    if found is None:
        return text
    value = os.environ.get(found[1], "")
    if not value:
        raise UsageError(Reason("variable-unset", name=found[1]), hint="nightly.toml names it")
    return value


def _checked(nightly: Nightly, file: str) -> Nightly:
    from kernelmark.api.reading import check_name
    from kernelmark.compare import fail_on

    if not nightly.run:
        raise UsageError(
            Reason("key-missing", file=file, key="[[run]]"), hint='[[run]]\n  suites = ["smoke"]'
        )
    check_name(nightly.name, f"{file}: name")
    if nightly.notify.when not in WHEN:
        raise UsageError(
            Reason("value-unknown", file=file, key="notify.when", given=repr(nightly.notify.when)),
            hint=f"known: {', '.join(WHEN)}",
        )
    if nightly.judge.fail_on:
        fail_on.parse(nightly.judge.fail_on)
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
            raise UsageError(Reason("value-not-positive", file=file, key=name, given=value))
    for name in ("samples", "runs"):
        if (kept := getattr(nightly.keep, name)) < 0:
            raise UsageError(
                Reason("value-not-whole", file=file, key=f"keep.{name}", given=kept, least=0)
            )
    if nightly.base.build and not nightly.base.repo:
        raise UsageError(
            Reason("key-missing", file=file, key="base.repo"),
            hint='base.build is for a repository: base.repo = "."',
        )
    if nightly.notify.mail_to and not nightly.notify.mail_from:
        raise UsageError(
            Reason("key-missing", file=file, key="notify.mail_from"), hint="mail needs a sender"
        )
    return nightly


def _read(table: object, kind: type[T], file: str, key: str = "") -> T:
    """Return a dataclass from a TOML table; `key` is the table's key in the file."""
    if not isinstance(table, dict):
        raise UsageError(
            Reason("value-not-table", file=file, key=key), hint="write its keys below [name]"
        )
    prefix = f"{key}." if key else ""
    hints = typing.get_type_hints(kind)
    known = {one.name: one for one in dataclasses.fields(kind) if "own" not in one.metadata}  # type: ignore[arg-type]
    for name in table:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(
                Reason("key-unknown", file=file, key=f"{prefix}{name}"),
                hint=f"{meant}known: {', '.join(known)}",
            )
    for name, one in known.items():
        required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if required and name not in table:
            raise UsageError(Reason("key-missing", file=file, key=f"{prefix}{name}"), hint=_DOCS)
    values = {
        name: _value(value, hints[name], file, f"{prefix}{name}") for name, value in table.items()
    }
    return kind(**values)


def _value(value: Any, hint: Any, file: str, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _read(value, hint, file, key)  # type: ignore[arg-type]
    origin = typing.get_origin(hint)
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        if not isinstance(value, list):
            raise _wrong(value, file, key, "[…]")
        return tuple(_value(one, inner, file, key) for one in value)
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
    reason = Reason("value-of-another-type", file=file, key=key, given=repr(value))
    return UsageError(reason, hint=f"for example: {example}")
