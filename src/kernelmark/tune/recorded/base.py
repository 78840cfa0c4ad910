"""The choices in a file of another tuner: what `kmark audit` measures, and what it writes back.

A `ChoiceFormat` describes the files of one tuner: how a row names its problem, what was chosen for
it, what the tuner would run without the file, and which lines of its own log prove that the row was
used. Tiles of a Triton kernel are measured with kernelmark's kernel for the same op, unless the
user names the kernel that was tuned: a row then has a `stand_in`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, ConfigValue, config_key
from kernelmark.tune.install.emitters.base import CannotWrite
from kernelmark.workloads.importers import ResultFile

# Settings of Triton that mean the same as leaving them out.
_NEUTRAL: Mapping[str, object] = {
    "num_ctas": 1,
    "maxnreg": "None",
    "ir_override": "None",
    "enable_warp_specialization": 0,
    "num_consumer_groups": 0,
    "num_buffers_warp_spec": 0,
    "reg_dec_producer": 0,
    "reg_inc_consumer": 0,
}
_TILE = re.compile(r"(BLOCK|GROUP)(?:_SIZE)?_([MNK])\Z", re.IGNORECASE)
_SPLITS = ("SPLIT_K", "NUM_KSPLIT")


class Applied(StrEnum):
    """Whether a log proves that a row of the file was used."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A backend with a config, one of several that compute a row's problem."""

    backend: str
    config: Config = field(default_factory=FrozenDict)

    @property
    def key(self) -> str:
        return f"{self.backend} {config_key(self.config)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChoice:
    """A row of a tuner's file. `where` identifies it in the file, `label` is what the tuner calls
    it, and `recorded` its choice as the file has it.

    A row that cannot be measured has a `reason`; any other one has a problem and a choice. Without
    a `default`, that of the choice's backend is compared with. `others` are configs that the tuner
    timed too, the fastest first. `closed` if the tuner's file can have no other config.
    """

    where: str
    label: str
    recorded: str
    problem: Problem | None = None
    choice: Contender | None = None
    default: Contender | None = None
    others: tuple[Contender, ...] = ()
    closed: bool = False
    stand_in: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFacts:
    """Facts that the user gives because a file lacks them: `key` names the values of a tuner's key,
    or is the problem of a file with only one; `kernel` is the backend or kernel file that was
    tuned; `values` are further parameters of the problems, as {"k": "4096"}."""

    key: str = ""
    kernel: str = ""
    values: Mapping[str, str] = field(default_factory=FrozenDict)


class ChoiceFormat(ABC):
    """The description of one tuner's files."""

    name: str
    summary: str  # one line
    facts: FormatFacts
    writes: bool = True  # whether the tuner reads such a file back

    @abstractmethod
    def recognizes(self, name: str, head: bytes) -> bool:
        """Return whether a file with this name and these first bytes has this format."""

    @abstractmethod
    def rows(self, file: ResultFile, facts: AuditFacts) -> Iterator[RecordedChoice]:
        """Yield every row of the file, also those that cannot be measured."""

    def rewritten(self, file: ResultFile, changes: Mapping[str, Contender]) -> str:
        """Return the file's text with other choices, by `where` of their rows. The rest of the file
        is unchanged. Contenders are of the row: its default, or of the same names as its choice."""
        raise CannotWrite(f"no tuner reads files of {self.name} back")

    def applied(self, file: ResultFile, row: RecordedChoice, log: str) -> Applied:
        """Return what the tuner's own log proves about a row."""
        return Applied.UNKNOWN


def own_config(settings: Mapping[str, Any], kernel: str) -> Config:
    """Return a config with the names of the kernel that measures it: kernelmark's own for its
    Triton kernels, and unchanged for a user's file. Settings that say nothing are left out."""
    config: dict[str, ConfigValue] = {}
    for name, value in settings.items():
        if value is None or _NEUTRAL.get(name, ...) == value:
            continue
        if kernel == "triton":
            tile = _TILE.match(name)
            name = f"{tile[1]}_{tile[2]}".lower() if tile else name
            name = "split_k" if name in _SPLITS else name
        config[name] = value
    return FrozenDict(config)


def parse_problem(text: str, values: Mapping[str, str]) -> Problem:
    """Parse a problem, with further parameters."""
    return ops.parse(" ".join([text, *(f"{name}={value}" for name, value in values.items())]))


def refusal(error: UsageError) -> str:
    """Return why a row cannot be measured, with what to do."""
    return f"{error.message}: {error.hint}" if error.hint else str(error.message)


def logged_by_name(log: str, name: str, used: re.Pattern[str], unused: re.Pattern[str]) -> Applied:
    """Return what a log proves about a file called `name`, whose path the patterns capture."""

    def has(pattern: re.Pattern[str]) -> bool:
        return any(re.split(r"[/\\]", path)[-1] == name for path in pattern.findall(log))

    if has(unused):
        return Applied.NO
    return Applied.YES if has(used) else Applied.UNKNOWN
