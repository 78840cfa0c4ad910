"""The engine that writes winners in the formats of other tools.

A format is described by a subclass of `Emitter`: what its library looks an entry up by
(`lookup_key`), what an entry contains (`entry`), and how a file is parsed and merged. The engine
chooses the winners, refuses those that would slow another problem down, keeps all other entries,
and checks both by the format's own lookup. No emitter writes files: it returns a `Change`.

`FileEmitter` is for formats of one file, `LineEmitter` for those of which an entry is whole lines.
JSON is edited as text: unchanged parts keep their order, indentation and line ends.
"""

from __future__ import annotations

import difflib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unreadable, read_whole
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, config_key
from kernelmark.tune.results import Outcome

_SPACE = re.compile(r"[ \t\r\n]*")
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of an object: its name, and the positions of its name, value and end."""

    name: str
    start: int
    value: int
    end: int


def members(text: str) -> list[Member]:
    """Return the members of the object. The text must be valid JSON."""
    position = _skip(text, 0) + 1
    listed: list[Member] = []
    while True:
        position = _skip(text, position)
        if text[position] == "}":
            return listed
        if text[position] == ",":
            position = _skip(text, position + 1)
        name, after = _decode(text, position)
        value = _skip(text, _skip(text, after) + 1)
        _, end = _decode(text, value)
        listed.append(Member(name=name, start=position, value=value, end=end))
        position = end


def with_object(text: str, name: str, new: dict[str, Any], *, after: str | None) -> str:
    """Return `text` with the member `name` set to the flat object `new`. A new member is inserted
    after the member `after` (None: first), in the layout of its neighbour."""
    every = members(text)
    old = next((member for member in every if member.name == name), None)
    if old is not None:
        return text[: old.value] + _edited(text[old.value : old.end], new) + text[old.end :]
    if not every:
        return json.dumps({name: new}, indent=4) + "\n"
    neighbour = next((member for member in every if member.name == after), every[0])
    models = [text[m.value : m.end] for m in (neighbour, *every) if text[m.value] == "{"]
    body = f"{json.dumps(name)}: {_format_like(models[0], new) if models else json.dumps(new)}"
    gap = _gap(text, every[0].start)
    if after is None:
        return f"{text[: neighbour.start]}{body},{gap}{text[neighbour.start :]}"
    return f"{text[: neighbour.end]},{gap}{body}{text[neighbour.end :]}"


def _edited(text: str, new: dict[str, Any]) -> str:
    """Return an object's text with its members changed to `new`; remaining members keep their
    order."""
    for member in reversed(members(text)):
        if member.name not in new:
            text = _without(text, member)
        elif json.loads(text[member.value : member.end]) != new[member.name]:
            value = json.dumps(new[member.name])
            text = text[: member.value] + value + text[member.end :]
    every = members(text)
    for name, value in new.items():
        if any(member.name == name for member in every):
            continue
        if not every:
            text = json.dumps({name: value}, indent=4)
        else:
            gap = _gap(text, every[0].start)
            end = every[-1].end
            text = f"{text[:end]},{gap}{json.dumps(name)}: {json.dumps(value)}{text[end:]}"
        every = members(text)
    return text


def _without(text: str, member: Member) -> str:
    after = _skip(text, member.end)
    if text[after] == ",":
        return text[: member.start] + text[_skip(text, after + 1) :]
    before = text[: member.start].rstrip(" \t\r\n")
    return before.removesuffix(",") + text[member.end :]


def _format_like(model: str, new: dict[str, Any]) -> str:
    """Return `new` in the layout of the object `model`: on one line, or one member per line."""
    every = members(model)
    inner = _gap(model, every[0].start) if every else " "
    if "\n" not in inner:
        return json.dumps(new)
    closing = model[every[-1].end : -1]
    lines = f",{inner}".join(f"{json.dumps(name)}: {json.dumps(v)}" for name, v in new.items())
    return "{" + inner + lines + closing + "}"


def _gap(text: str, start: int) -> str:
    """Return the white space before `start`, or one blank."""
    left = len(text[:start].rstrip(" \t\r\n"))
    return text[left:start] or " "


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


Key = Mapping[str, str]  # all fields that a library compares when it looks an entry up
Options = Mapping[str, str]  # the NAME=VALUE options of a format
NO_OPTIONS: Options = FrozenDict()
ON_AMD = "Not yet run on AMD hardware: files are only read back as the library's reader would."


class CannotWrite(Exception):
    """A winner cannot be written in a format; `reason` completes "… is not written: "."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a file."""

    key: Key
    config: Config
    kernel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """The entry of a winner: the config that is read back, and its text or value."""

    winner: Outcome
    config: Config
    content: Any


NewEntries = Mapping[Key, NewEntry]
Winners = Sequence[Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A kept winner that is not written."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The new text of one file; `path` is relative to the target, empty for the target itself."""

    path: Path
    before: str | None  # None: there is no such file
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """What a lookup must return after the change: the config of `winner`, or, without a winner, the
    config that it returned before (None: no entry)."""

    key: Key
    config: Config | None
    winner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The edits that would be written, and the lookups that check them. `also_read` are files,
    relative to the target, that a check reads and the change does not write."""

    emitter: str
    edits: tuple[Edit, ...]
    lookups: tuple[Lookup, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    also_read: tuple[Path, ...] = ()

    @property
    def winners(self) -> frozenset[str]:
        """The names of the winners in the change."""
        return frozenset(lookup.winner for lookup in self.lookups if lookup.winner)

    def diff(self, into: Path) -> str:
        """Return the unified diff of all files."""
        return "".join(_unified(edit, into) for edit in self.edits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """How to make a library read a file: set the environment `variables`, with {path} replaced, and
    run the default config of `backend`. `copy` is the file name that the library requires; `built`
    matches the files of a library that has to be built first."""

    backend: str
    variables: Mapping[str, str]
    copy: str = ""
    built: str = ""


class Emitter(ABC):
    """The description of one format."""

    name: str
    summary: str  # one line
    facts: FormatFacts
    backends: tuple[str, ...]  # whose configs it can write
    options: Mapping[str, str] = FrozenDict()  # names of NAME=VALUE options, with help texts
    needs_base: bool = False  # whether it can only merge into existing files
    careful: bool = False  # whether files are written only on explicit request
    caution: str = ""
    override: Override | None = None  # None: no library reads the file by itself

    @abstractmethod
    def emit(self, outcomes: Sequence[Outcome], into: Path, options: Options) -> Change:
        """Return the change that adds all kept outcomes to `into`, which need not exist."""

    @abstractmethod
    def read(self, path: Path) -> list[Entry]:
        """Return all entries of a file or folder."""

    @abstractmethod
    def find(self, path: Path, key: Key) -> Entry | None:
        """Return the entry that the library would find, or None."""

    def has_winner(self, outcome: Outcome, path: Path) -> bool | None:
        """Return whether a file has a winner's entry; None if the format has no lookup."""
        return None

    def takes(self, backend: str) -> bool:
        """Return whether the emitter can write a backend's configs."""
        return backend in self.backends

    def check(self, change: Change, path: Path) -> list[str]:
        """Return an error for each winner that is not found and each other lookup that changed."""
        return [error for lookup in change.lookups if (error := self._check(lookup, path))]

    def _check(self, lookup: Lookup, path: Path) -> str:
        entry = self.find(path, lookup.key)
        config = None if entry is None else entry.config
        if config == lookup.config:
            return ""
        shown = " ".join(f"{name}={value}" for name, value in lookup.key.items())
        now, expected = (
            "nothing" if each is None else config_key(each) for each in (config, lookup.config)
        )
        if lookup.winner:
            return f"{lookup.winner}: {shown} finds {now}, not {expected}"
        return f"{shown} was {expected} and would become {now}"

    def choose(self, outcomes: Sequence[Outcome], key_of: Callable[[Outcome], Key]) -> Chosen:
        """Choose the outcomes to write. One is not written if another one with the same lookup key
        did not gain, or gained with another config: that one would become slower."""
        groups: dict[Key, list[Outcome]] = {}
        skipped: list[Skipped] = []
        for outcome in outcomes:
            try:
                groups.setdefault(FrozenDict(key_of(outcome)), []).append(outcome)
            except CannotWrite as error:
                if outcome.kept:
                    skipped.append(Skipped(name=outcome.name, reason=error.reason))
        winners: dict[Key, Outcome] = {}
        for key, group in groups.items():
            kept = [outcome for outcome in group if outcome.kept]
            reasons = {o.name: reason for o in kept if (reason := self.why_not(o))}
            conflict = _conflict(group)
            if kept and not reasons and not conflict:
                winners[key] = max(kept, key=lambda outcome: outcome.saved_s)
                continue
            if reasons and not conflict:
                conflict = f"{next(iter(reasons))} looks up the same entry and cannot be written"
            skipped += [Skipped(name=o.name, reason=reasons.get(o.name, conflict)) for o in kept]
        unchanged = tuple(key for key in groups if key not in winners)
        return Chosen(winners=winners, unchanged=unchanged, skipped=skipped)

    def why_not(self, outcome: Outcome) -> str:
        """Return why a kept outcome must not be written in this format, or ""."""
        tuned = outcome.tuned
        if not self.takes(tuned.backend):
            return f"it was tuned with {tuned.backend}, whose configs are not for {self.name}"
        if not tuned.verified:
            return "its result was not verified"
        return "" if tuned.config else "the backend's own default won: there is nothing to write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The winners by lookup key, the keys whose lookup must not change, and the kept outcomes that
    are not written, to which a format may add."""

    winners: dict[Key, Outcome]
    unchanged: tuple[Key, ...]
    skipped: list[Skipped]

    def lookups(self, new: Mapping[Key, Config], before: Mapping[Key, Config]) -> list[Lookup]:
        """Return the lookups that check a file: the `new` configs of winners, and for all other
        keys the configs `before`."""
        winners = [
            Lookup(key=key, config=config, winner=self.winners[key].name)
            for key, config in new.items()
        ]
        unchanged_keys = dict.fromkeys(key for key in (*before, *self.unchanged) if key not in new)
        return [*winners, *(Lookup(key=key, config=before.get(key)) for key in unchanged_keys)]


def _conflict(group: Sequence[Outcome]) -> str:
    for outcome in group:
        if not outcome.kept:
            return f"{outcome.name} looks up the same entry and did not gain"
    if len({config_key(outcome.tuned.config) for outcome in group}) > 1:
        names = " and ".join(outcome.name for outcome in group)
        return f"{names} look up the same entry and gained with different configs"
    return ""


Document = TypeVar("Document")


class FileEmitter(Emitter, Generic[Document]):
    """A format of one file. A lookup compares all fields of its key; the first entry counts."""

    @abstractmethod
    def parse(self, text: str | None, path: Path) -> Document:
        """Parse a file; None is a missing one. Raise UsageError for a file of another format."""

    @abstractmethod
    def entries(self, document: Document) -> list[Entry]:
        """Return the entries that the library's reader finds."""

    @abstractmethod
    def lookup_key(self, outcome: Outcome, options: Options) -> Key:
        """Return what the library looks the problem up by; raise CannotWrite if it has none."""

    @abstractmethod
    def entry(self, outcome: Outcome, key: Key) -> NewEntry:
        """Return the entry of a winner; raise CannotWrite if it has none."""

    @abstractmethod
    def merge(self, document: Document, new: NewEntries, options: Options) -> str:
        """Return the file's text with the new entries, which replace those with the same key."""

    def complete(self, document: Document, options: Options) -> Options:
        """Return the options, with what the file implies."""
        return options

    def pin(self, document: Document, keys: Sequence[Key]) -> Document:
        """Return the file with what keeps lookups of these keys, which were tuned and have no new
        entry, from entries of their neighbours."""
        return document

    def emit(self, outcomes: Sequence[Outcome], into: Path, options: Options) -> Change:
        before = text_at(into)
        document = self.parse(before, into)
        options = self.complete(document, options)
        chosen = self.choose(outcomes, lambda outcome: self.lookup_key(outcome, options))
        there = self.entries(document)
        new: dict[Key, NewEntry] = {}
        for key, outcome in chosen.winners.items():
            try:
                entry = self.entry(outcome, key)
                _check_same_build(entry, there)
                new[key] = entry
            except CannotWrite as error:
                chosen.skipped.append(Skipped(name=outcome.name, reason=error.reason))
        configs: dict[Key, Config] = {}
        for present in there:
            configs.setdefault(present.key, present.config)
        edits: tuple[Edit, ...] = ()
        if new:
            missed = [key for key in (*chosen.unchanged, *chosen.winners) if key not in new]
            document = self.pin(document, missed)
            after = self.merge(document, new, options)
            if after != before:
                edits = (Edit(path=Path(), before=before, after=after),)
        lookups = chosen.lookups({key: entry.config for key, entry in new.items()}, configs)
        return Change(
            emitter=self.name, edits=edits, lookups=tuple(lookups), skipped=tuple(chosen.skipped)
        )

    def read(self, path: Path) -> list[Entry]:
        return self.entries(self.parse(required_text(path), path))

    def find(self, path: Path, key: Key) -> Entry | None:
        # Parse a file once for many lookups; comparing the text keeps the cache valid.
        text = text_at(path)
        if text is None:
            return None
        if self._cached[0] != text:
            table: dict[Key, Entry] = {}
            for entry in self.entries(self.parse(text, path)):
                table.setdefault(entry.key, entry)
            self._cached = (text, table)
        return self._cached[1].get(key)

    _cached: tuple[str, Mapping[Key, Entry]] = ("", {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An entry and its range of lines, `end` excluded."""

    first: int
    end: int
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFile:
    """The lines of a file, those that are neither empty nor comments, and its entries."""

    lines: Sequence[str]
    content: Sequence[str]
    rows: Sequence[Row]


class LineEmitter(FileEmitter[LineFile]):
    """A text file whose entries are one or two lines; all other lines are kept."""

    @abstractmethod
    def rows(self, lines: Sequence[str]) -> list[Row]:
        """Return the entries that the library's reader finds; lines that it skips are ignored."""

    @abstractmethod
    def head(self, winners: Winners, content: Sequence[str], options: Options) -> list[str]:
        """Return the lines before the first entry of a new file; check the head of `content`."""

    @abstractmethod
    def is_head(self, line: str) -> bool:
        """Return whether a line belongs to the head of this format."""

    def parse(self, text: str | None, path: Path) -> LineFile:
        lines = (text or "").splitlines()
        content = [line for line in lines if line.strip() and not line.startswith("#")]
        return LineFile(lines=lines, content=content, rows=self.rows(lines))

    def entries(self, document: LineFile) -> list[Entry]:
        return [row.entry for row in document.rows]

    def emit(self, outcomes: Sequence[Outcome], into: Path, options: Options) -> Change:
        there = self.parse(text_at(into), into)
        # Readers skip unknown lines, so the check would also pass for a file of another format.
        if there.content and not there.rows and not any(map(self.is_head, there.content)):
            raise UsageError(
                f"{into}: is not a {self.name} file",
                hint=f"kmark export DIR --as {self.name} -o PATH writes a new one",
            )
        return super().emit(outcomes, into, options)

    def merge(self, document: LineFile, new: NewEntries, options: Options) -> str:
        winners = [entry.winner for entry in new.values()]
        head = self.head(winners, document.content, options)
        lines: list[str] = [] if document.content else head
        appended: dict[Key, Sequence[str]] = {key: entry.content for key, entry in new.items()}
        position = 0
        for row in document.rows:
            if row.entry.key in new:  # the first of equal entries is replaced, others are removed
                lines += document.lines[position : row.first]
                lines += appended.pop(row.entry.key, ())
                position = row.end
        lines += document.lines[position:]
        for content in appended.values():
            lines += content
        return "\n".join(lines) + "\n"

    def has_winner(self, outcome: Outcome, path: Path) -> bool | None:
        if self.why_not(outcome):
            return False
        options = self.complete(self.parse(text_at(path), path), NO_OPTIONS)
        try:
            key = self.lookup_key(outcome, options)
            config = self.entry(outcome, key).config
        except CannotWrite:
            return False
        entry = self.find(path, key)
        return entry is not None and entry.config == config


def _check_same_build(new: NewEntry, there: Iterable[Entry]) -> None:
    """Raise CannotWrite if a file has the index of a winner's solution with another kernel name:
    the file is of another build of the library."""
    index, kernel = new.config.get("solution_index"), new.winner.tuned.kernel.name
    same = (entry.kernel for entry in there if entry.config.get("solution_index") == index)
    name = next((name for name in same if name), kernel)
    if index is not None and name != kernel:
        raise CannotWrite(f"its index {index} is {name} in the file, not {kernel}")


def parse_options(form: str, known: Mapping[str, str], arguments: Iterable[str]) -> Options:
    """Parse NAME=VALUE arguments as options of a format, of which `known` has the names."""
    options: dict[str, str] = {}
    hint = f"{form} knows: {', '.join(known) or 'none'}"
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or not value:
            raise UsageError(f"{argument!r} is not NAME=VALUE", hint=hint)
        if name not in known:
            raise UsageError(f"{form} has no option {name!r}", hint=hint)
        options[name] = value
    return FrozenDict(options)


def is_yes(options: Options, name: str, *, default: bool) -> bool:
    """Return the value of a yes-or-no option."""
    value = options.get(name, "yes" if default else "no").lower()
    if value not in ("yes", "true", "1", "no", "false", "0"):
        raise UsageError(
            f"{name}={value} is neither yes nor no", hint=f"give {name}=yes or {name}=no"
        )
    return value in ("yes", "true", "1")


def check_folder(into: Path, hint: str) -> None:
    """Raise UsageError unless a target is a folder."""
    if not into.is_dir():
        raise UsageError(f"{into} is not a folder", hint=hint)


def check_weights(name: str, problem: Problem) -> None:
    """Raise CannotWrite unless the weights are n×k: some formats have no layout in their key."""
    ta, tb = problem.options["ta"], problem.options["tb"]
    if (ta, tb) != ("n", "t"):
        raise CannotWrite(
            f"{name} has entries only for weights of n×k (ta=n tb=t), not for ta={ta} tb={tb}"
        )


def text_at(path: Path) -> str | None:
    """Return a file's text, None if it does not exist."""
    try:
        return read_whole(path).decode()
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder, not a file", hint="name a file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(file_unreadable(path, error)) from None


def required_text(path: Path) -> str:
    """Return a file's text; raise UsageError if it does not exist."""
    text = text_at(path)
    if text is None:
        raise UsageError(f"there is no file {path}")
    return text


def _unified(edit: Edit, into: Path) -> str:
    path = str(into / edit.path)
    lines = difflib.unified_diff(
        (edit.before or "").splitlines(keepends=True),
        edit.after.splitlines(keepends=True),
        path if edit.before is not None else "/dev/null",
        path,
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
