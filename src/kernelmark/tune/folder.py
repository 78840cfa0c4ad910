"""TuningFolder: the files of tuning one workload.

workload.csv         problems with their counts                      (kmark import --workload)
inputs.json          the logs that the problems were read from       (kmark import --workload)
summary.csv          the time of each problem with the reference     (kmark tune summarise)
plans/NAME.toml      how each problem is tuned; may be edited        (kmark tune plan)
trials/NAME.jsonl    all evaluated candidates                        (kmark tune run)
results/             reference against tuned, and what is kept       (kmark tune run)
state.json           names of problems, and digests of plans as `kmark tune plan` wrote them
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kernelmark.core import files
from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unreadable, file_unwritable, user_path
from kernelmark.core.immutable import FrozenDict

_VERSION = 1
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderState:
    """The content of state.json. `names` maps a problem's key to its plan's name; `written` maps a
    plan's name to the digest of the file that `kmark tune plan` wrote last."""

    names: Mapping[str, str] = field(default_factory=FrozenDict)
    written: Mapping[str, str] = field(default_factory=FrozenDict)


@dataclass(frozen=True, slots=True)
class TuningFolder:
    """The paths of a tuning folder, which need not exist; `open` requires a workload."""

    path: Path

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TuningFolder:
        """Return the tuning folder at `path`; raise UsageError if there is no workload in it."""
        folder = cls(user_path(path))
        if folder.workload.is_file():
            return folder
        if not folder.path.exists():
            cause = "there is no such folder"
        elif not folder.path.is_dir():
            cause = "it is a file"
        else:
            cause = f"it has no {folder.workload.name}"
        raise UsageError(
            f"{path} is no tuning folder: {cause}", hint=f"kmark import LOG --workload {path}"
        )

    @classmethod
    def make(cls, path: str | os.PathLike[str]) -> TuningFolder:
        """Return the folder at `path`, created if missing; its workload need not exist yet."""
        folder = cls(user_path(path))
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be made: {error.strerror}", hint="name another folder"
            ) from None
        return folder

    @property
    def workload(self) -> Path:
        return self.path / "workload.csv"

    @property
    def summary(self) -> Path:
        return self.path / "summary.csv"

    @property
    def plans(self) -> Path:
        return self.path / "plans"

    @property
    def trials(self) -> Path:
        return self.path / "trials"

    @property
    def results(self) -> Path:
        return self.path / "results"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    def plan(self, name: str) -> Path:
        return self.plans / f"{name}.toml"

    def journal(self, name: str) -> Path:
        return self.trials / f"{name}.jsonl"

    def names(self) -> list[str]:
        """Return the names of the existing plans, BBS_TN_2 before BBS_TN_10."""
        return sorted((path.stem for path in self.plans.glob("*.toml")), key=_natural)

    def read_state(self) -> FolderState:
        """Load state.json; return an empty state if the file does not exist yet."""
        try:
            document = json.loads(self.state.read_text(encoding="utf-8"))
            names, written = document["names"], document["written"]
            if not all(isinstance(x, str) for x in (*names.values(), *written.values())):
                raise TypeError
        except FileNotFoundError:
            return FolderState()
        except OSError as error:
            raise unreadable(self.state, error) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UsageError(
                f"{self.state}: was not written by kmark",
                hint="delete it: names are then taken from the plans, which all count as edited",
            ) from None
        return FolderState(names=FrozenDict(names), written=FrozenDict(written))

    def write_state(self, state: FolderState) -> None:
        document = {"version": _VERSION, "names": dict(state.names), "written": dict(state.written)}
        write_whole(self.state, files.json_text(document))


def write_whole(path: Path, text: str) -> None:
    """Write `text` to a file atomically, and sync it to disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, text.encode(), sync=True)
    except OSError as error:
        raise unwritable(path, error) from None


def check_writable(path: Path) -> None:
    """Raise UsageError for a file that `write_whole` could not write, before work is lost."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> UsageError:
    """Return a UsageError that names the file: the OSError of a full disk does not."""
    return UsageError(
        file_unwritable(path, error),
        hint="make room or allow writing there, then give the same command again",
    )


def unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        file_unreadable(path, error), hint="allow reading it, then give the same command again"
    )


@contextmanager
def hinted(hint: str) -> Iterator[None]:
    """Add `hint` to a UsageError that is raised in the context and has no hint."""
    try:
        yield
    except UsageError as error:
        if error.hint:
            raise
        raise type(error)(error.message, hint=hint) from None


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _natural(name: str) -> tuple[str | int, ...]:
    """Return a key for sorting names with numbers. `split` puts words at even indices and numbers
    at odd ones, so tuples compare."""
    return tuple(int(word) if i % 2 else word for i, word in enumerate(_DIGITS.split(name)))
