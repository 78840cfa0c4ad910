"""Line-based formats: an entry is one or two lines; all other lines are kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
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
    required_text,
    settle,
    text_at,
    unwritable,
)
from kernelmark.tune.records.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An entry and its range of lines, `end` excluded."""

    first: int
    end: int
    entry: Entry


class LineEmitter(Emitter):
    """A text file of entries; a lookup returns the first entry with its key."""

    @abstractmethod
    def rows(self, lines: Sequence[str], path: Path) -> list[Row]:
        """Return the entries that the library's reader finds; lines that it skips are ignored."""

    @abstractmethod
    def lookup_key(self, outcome: Outcome, given: Fields) -> Fields:
        """Return the key that the library looks this problem up by."""

    @abstractmethod
    def entry(self, outcome: Outcome, fields: Fields) -> tuple[Config, list[str]]:
        """Return the config that is read back for a winner, and the lines of its entry."""

    @abstractmethod
    def head(self, winners: Sequence[Outcome], lines: Sequence[str], given: Fields) -> list[str]:
        """Return the lines before the first entry; check the head that `lines` has, if any."""

    @abstractmethod
    def is_head(self, line: str) -> bool:
        """Return whether a line belongs to the head of this format."""

    def emit(self, outcomes: Sequence[Outcome], into: Path, given: Fields) -> Change:
        before = text_at(into)
        lines = [] if before is None else before.splitlines()
        content = [line for line in lines if line.strip() and not line.startswith("#")]
        rows = self.rows(lines, into)
        # Readers skip unknown lines, so the check would also pass for a file of another format.
        if content and not rows and not any(map(self.is_head, content)):
            raise UsageError(
                Reason("file-of-another-format", file=str(into), format=self.name),
                hint=f"kmark export DIR --as {self.name} -o PATH writes a new one",
            )
        given = self.generation(rows, given)
        settled = settle(self, outcomes, lambda outcome: self.lookup_key(outcome, given))
        held, wanted = list(settled.held), []
        texts: dict[Fields, list[str]] = {}
        names = {row.entry.config.get("solution_index"): row.entry.kernel for row in rows}
        for fields, outcome in settled.winners.items():
            try:
                config, text = self.entry(outcome, fields)
                _check_name(names.get(config.get("solution_index")), outcome, config)
            except Unfit as error:
                held.append(Held(name=outcome.name, reason=error.reason))
                continue
            texts[fields] = text
            wanted.append(Wanted(fields=fields, config=config, name=outcome.name))
        answers: dict[Fields, Config] = {}
        for row in rows:
            answers.setdefault(row.entry.fields, row.entry.config)
        wanted += kept_answers(answers, settled.others, texts)
        if not texts:
            return Change(emitter=self.name, edits=(), wanted=tuple(wanted), held=tuple(held))
        chosen = [settled.winners[fields] for fields in texts]
        head = self.head(chosen, content, given)
        after = "\n".join((*(() if content else head), *_merged(lines, rows, texts))) + "\n"
        edits = () if after == before else (Edit(path=Path(), before=before, after=after),)
        return Change(emitter=self.name, edits=edits, wanted=tuple(wanted), held=tuple(held))

    def generation(self, rows: Sequence[Row], given: Fields) -> Fields:
        """Return the options, completed from the rows of the file."""
        return given

    def read(self, path: Path) -> list[Entry]:
        return [row.entry for row in self.rows(required_text(path).splitlines(), path)]

    def find(self, path: Path, fields: Fields) -> Entry | None:
        # Parse a file once for many lookups; comparing the text keeps the cache valid.
        text = text_at(path) or ""
        if self._seen[0] != text:
            table: dict[Fields, Entry] = {}
            for row in self.rows(text.splitlines(), path):
                table.setdefault(row.entry.fields, row.entry)
            self._seen = (text, table)
        return self._seen[1].get(fields)

    def has_winner(self, outcome: Outcome, path: Path) -> bool | None:
        if unwritable(self, outcome):
            return False
        lines = (text_at(path) or "").splitlines()
        given = self.generation(self.rows(lines, path), FrozenDict())
        try:
            fields = self.lookup_key(outcome, given)
            config, _ = self.entry(outcome, fields)
        except Unfit:
            return False
        entry = self.find(path, fields)
        return entry is not None and entry.config == config

    _seen: tuple[str, Mapping[Fields, Entry]] = ("", {})


def _check_name(known: str | None, outcome: Outcome, config: Config) -> None:
    """Raise Unfit if the file has the index with another kernel name: it is of another build."""
    if known and known != outcome.tuned.kernel.name:
        raise Unfit(
            Reason(
                "index-differs",
                index=config["solution_index"],
                known=known,
                name=outcome.tuned.kernel.name,
            )
        )


def _merged(
    lines: Sequence[str], rows: Sequence[Row], made: Mapping[Fields, list[str]]
) -> list[str]:
    """Replace entries with the same lookup key, and append the other new ones."""
    left = dict(made)
    result: list[str] = []
    position = 0
    for row in rows:
        if row.entry.fields in made:
            result += lines[position : row.first]
            result += left.pop(row.entry.fields, [])
            position = row.end
    result += lines[position:]
    for text in left.values():
        result += text
    return result
