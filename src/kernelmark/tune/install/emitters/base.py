"""Emitter: winners as a file that another library reads, and the proof that it reads them."""

from __future__ import annotations

import difflib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.files import read_whole
from kernelmark.core.formats import FormatFacts
from kernelmark.core.frozen import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, config_key
from kernelmark.tune.records.outcome import Outcome

Fields = Mapping[str, str]
ON_AMD = "Not yet run on AMD hardware: files are only read back as the library's reader would."


class Unfit(Exception):
    """An outcome that a format cannot hold, with the reason in one sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = Reason.of(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a file answers to one question. `fields` is all that its reader looks at."""

    fields: Fields
    config: Config
    kernel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A kept outcome that is not written, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One file's new text; `path` is relative to the target, empty for the target itself."""

    path: Path
    before: str | None  # None: there is no such file
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What must be found afterwards: a winner's config under the outcome's `name`, or, with no
    name, the same as before (None: nothing)."""

    fields: Fields
    config: Config | None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Everything that would be written, and what proves it. `beside` are files, relative to the
    target, that are read but not written when it is checked."""

    emitter: str
    edits: tuple[Edit, ...]
    wanted: tuple[Wanted, ...]
    held: tuple[Held, ...] = ()
    notes: tuple[str, ...] = ()
    beside: tuple[Path, ...] = ()

    @property
    def written(self) -> int:
        """Winners in it."""
        return len({wanted.name for wanted in self.wanted if wanted.name})

    def diff(self, into: Path) -> str:
        """Unified difference of every file."""
        return "".join(_unified(edit, into) for edit in self.edits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """How a library is made to read a file: `variables`, in which {path} is the file's, while
    `backend` runs its own choice. A `copy` is a name that the library insists on; `built` matches
    the files of a library that has to be built first."""

    backend: str
    variables: Mapping[str, str]
    copy: str = ""
    built: str = ""


class Emitter(ABC):
    """Writes one format. It never touches a file: it says what a file would become."""

    name: str
    summary: str  # one line
    facts: FormatFacts
    backends: tuple[str, ...]  # whose configs it can write
    options: Mapping[str, str] = FrozenDict()  # what may be given as NAME=VALUE, with its meaning
    needs_base: bool = False  # whether there is nothing to write without files to merge into
    careful: bool = False  # whether it is only written when that is asked for
    caution: str = ""
    override: Override | None = None  # None: no library reads the file by itself

    @abstractmethod
    def emit(self, outcomes: Sequence[Outcome], into: Path, given: Fields) -> Change:
        """Return the change that puts every kept outcome into `into`, which need not exist."""

    @abstractmethod
    def read(self, path: Path) -> list[Entry]:
        """Return every entry of a file or folder."""

    def find(self, path: Path, fields: Fields) -> Entry | None:
        """Return what the library would find for a question: the entry with these fields."""
        entries = self.read(path) if path.exists() else []
        return next((entry for entry in entries if entry.fields == fields), None)

    def has_winner(self, outcome: Outcome, path: Path) -> bool | None:
        """Return whether a file holds a winner's entry; None where it cannot be looked up."""
        return None

    def takes(self, backend: str) -> bool:
        """Return whether it can write a backend's configs."""
        return backend in self.backends

    def check(self, change: Change, path: Path) -> list[Reason]:
        """Return a reason for every winner that is not found and other answer that changed."""
        return [
            fault for wanted in change.wanted if (fault := self._fault(wanted, path)) is not None
        ]

    def _fault(self, wanted: Wanted, path: Path) -> Reason | None:
        entry = self.find(path, wanted.fields)
        config = None if entry is None else entry.config
        if config == wanted.config:
            return None
        shown = " ".join(f"{name}={value}" for name, value in wanted.fields.items())
        answer = "nothing" if config is None else config_key(config)
        expected = "nothing" if wanted.config is None else config_key(wanted.config)
        if wanted.name:
            return Reason(
                "winner-not-found", name=wanted.name, lookup=shown, found=answer, wanted=expected
            )
        return Reason("lookup-changed", lookup=shown, before=expected, after=answer)


def option(emitter: Emitter, given: Fields, name: str, default: str = "") -> str:
    """Return a given value; unknown names are refused by `checked_options`."""
    assert name in emitter.options
    return given.get(name, default)


def checked_options(emitter: Emitter, words: Iterable[str]) -> Fields:
    """NAME=VALUE words as an emitter's options."""
    options: dict[str, str] = {}
    known = ", ".join(emitter.options) or "none"
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise UsageError(
                Reason("option-not-name-value", given=word), hint=f"{emitter.name} knows: {known}"
            )
        if name not in emitter.options:
            raise UsageError(
                Reason("option-unknown", format=emitter.name, name=name),
                hint=f"{emitter.name} knows: {known}",
            )
        options[name] = value
    return FrozenDict(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Outcomes by the question they ask: one winner a question, and what stays out."""

    winners: Mapping[Fields, Outcome]
    others: tuple[Fields, ...]  # questions whose answer must stay
    held: tuple[Held, ...]


def settle(
    emitter: Emitter, outcomes: Sequence[Outcome], question: Callable[[Outcome], Fields]
) -> Settled:
    """Return which outcomes may be written. One that shares its question with an outcome that did
    not gain, or gained with another config, would make it slower and is not written."""
    groups: dict[Fields, list[Outcome]] = {}
    held: list[Held] = []
    for outcome in outcomes:
        try:
            groups.setdefault(FrozenDict(question(outcome)), []).append(outcome)
        except Unfit as error:
            if outcome.kept:
                held.append(Held(name=outcome.name, reason=error.reason))
    winners: dict[Fields, Outcome] = {}
    others: list[Fields] = []
    for fields, group in groups.items():
        kept = [one for one in group if one.kept]
        reasons = {one.name: reason for one in kept if (reason := unwritable(emitter, one))}
        reason = _quarrel(group)
        if kept and not reasons and reason is None:
            winners[fields] = max(kept, key=lambda one: one.saved_s)
        else:
            others.append(fields)
            held += [Held(name=o.name, reason=reasons.get(o.name) or reason or "") for o in kept]
    held = [one for one in held if one.reason]
    return Settled(winners=winners, others=tuple(others), held=tuple(held))


def kept_answers(
    before: Mapping[Fields, Config], others: Iterable[Fields], written: Container[Fields]
) -> list[Wanted]:
    """Return what the questions of a file, and `others`, must find unless they are `written`: the
    same as before."""
    return [
        Wanted(fields=fields, config=before.get(fields))
        for fields in dict.fromkeys((*before, *others))
        if fields not in written
    ]


def unwritable(emitter: Emitter, outcome: Outcome) -> str | None:
    """Why a kept outcome must not be written in any form."""
    tuned = outcome.tuned
    if not emitter.takes(tuned.backend):
        return f"it was tuned with {tuned.backend}, whose configs are not for {emitter.name}"
    if not tuned.verified:
        return "its result was not verified"
    if not tuned.config:
        return "the backend's own default won: there is nothing to write"
    return None


def _quarrel(group: Sequence[Outcome]) -> str | None:
    for outcome in group:
        if not outcome.kept:
            return f"{outcome.name} looks up the same entry and did not gain"
    configs = {config_key(outcome.tuned.config) for outcome in group}
    if len(configs) > 1:
        names = " and ".join(outcome.name for outcome in group)
        return f"{names} look up the same entry and gained with different configs"
    return None


def solution_index(outcome: Outcome) -> int:
    """Return the library's index of the winner as it was in the final; without its kernel's name it
    cannot be trusted later."""
    tuned = outcome.tuned
    # A backend's config is the solution's name, and the kernel holds the index that was found.
    index = tuned.config.get("solution_index", tuned.kernel.resources.get("solution_index"))
    if not isinstance(index, int) or isinstance(index, bool):
        raise Unfit("its solution_index is not known")
    if not outcome.tuned.kernel.name:
        raise Unfit("its kernel's name is not known, and an index alone may change its meaning")
    if any(sign in outcome.tuned.kernel.name for sign in ",\n\r"):
        raise Unfit("its kernel's name has a comma")
    return index


def text_at(path: Path) -> str | None:
    """Return a file's text, or None where there is none."""
    try:
        return read_whole(path).decode()
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise UsageError(Reason("file-is-folder", file=str(path)), hint="name a file") from None
    except UnicodeDecodeError:
        raise UsageError(Reason("file-not-utf8", file=str(path))) from None
    except OSError as error:
        raise UsageError(
            Reason("file-unreadable", file=str(path), error=error.strerror or str(error))
        ) from None


def required_text(path: Path) -> str:
    """Return a file's text; an error where there is none."""
    text = text_at(path)
    if text is None:
        raise UsageError(Reason("file-missing", file=str(path)))
    return text


def read_json(path: Path, kind: str) -> dict[str, object]:
    """Return a JSON document of ours, whose `format` is `kind`."""
    text = required_text(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        cause = Reason("not-json", error=str(error))
        raise UsageError(
            Reason("in-file", file=str(path), cause=cause), hint="is it truncated?"
        ) from None
    if not isinstance(document, dict) or document.get("format") != kind:
        raise UsageError(Reason("file-of-another-format", file=str(path), format=kind))
    return document


def _unified(edit: Edit, into: Path) -> str:
    place = str(into / edit.path)
    before = (edit.before or "").splitlines(keepends=True)
    lines = difflib.unified_diff(
        before,
        edit.after.splitlines(keepends=True),
        place if edit.before is not None else "/dev/null",
        place,
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
