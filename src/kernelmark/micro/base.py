"""Microbenchmark: one idea about a device, with setup, timed region, verification and metrics kept
apart. A file in micro/benchmarks offers one as `benchmark`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from kernelmark.core.errors import UsageError
from kernelmark.core.frozen import FrozenDict
from kernelmark.core.micro import Better, MicroColumn, MicroMetric, Value
from kernelmark.micro.hardware import Hardware, Limit
from kernelmark.micro.rig import Rig

GPUS = ("cuda", "hip")
EVERYWHERE = ("cpu", *GPUS)
Mode = Literal["brief", "quick", "full"]
MODES: tuple[Mode, ...] = ("brief", "quick", "full")
Setting = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
LimitOf = Callable[[Hardware], Limit]
Record = dict[str, Value]
S = TypeVar("S")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """What can be chosen, and what is chosen by mode. `brief` is what the headline metrics need."""

    help: str
    quick: Setting
    full: Setting | None = None
    brief: Setting | None = None

    def value(self, mode: Mode) -> Setting:
        chosen = {"brief": self.brief, "quick": None, "full": self.full}[mode]
        return self.quick if chosen is None else chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the rows, with the bound that its numbers must keep."""

    name: str
    help: str
    unit: str = ""
    limit: LimitOf | None = None

    def on(self, hardware: Hardware) -> MicroColumn:
        bound = self.limit(hardware) if self.limit else None
        if bound is None:
            return MicroColumn(name=self.name, unit=self.unit)
        return MicroColumn(name=self.name, unit=self.unit, limit=bound.value, why=bound.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What is drawn over the figure's x: a column, shown after division by `per`. With `zero` the
    axis begins there, as it always does under bars."""

    y: str
    title: str
    per: float = 1.0
    scale: Literal["linear", "log"] = "linear"
    mark: Literal["line", "bar", "point", "rect"] = "line"
    zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """How a benchmark's rows are drawn: `colour` is the column that tells lines apart, `facet` one
    that has a panel for each of its values. Rows are those with the values in `where`."""

    x: str
    title: str
    panels: tuple[Panel, ...]
    per: float = 1.0
    scale: Literal["linear", "log", "band"] = "linear"
    colour: str = ""
    facet: str = ""
    where: Mapping[str, Value] = field(default_factory=FrozenDict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the timed region came to."""

    rows: Sequence[Mapping[str, Value]] = ()
    metrics: Sequence[MicroMetric] = ()
    notes: Sequence[str] = ()


class Settings:
    """The chosen values of a benchmark's parameters."""

    def __init__(self, values: Mapping[str, Setting]) -> None:
        self._values = dict(values)

    def number(self, name: str) -> float:
        return float(self._values[name])  # type: ignore[arg-type]

    def whole(self, name: str) -> int:
        return int(self._values[name])  # type: ignore[arg-type]

    def wholes(self, name: str) -> list[int]:
        value = self._values[name]
        return [int(v) for v in value] if isinstance(value, tuple) else [int(value)]

    def words(self, name: str) -> list[str]:
        value = self._values[name]
        return [str(v) for v in value] if isinstance(value, tuple) else [str(value)]

    def plain(self) -> dict[str, Value]:
        return {
            name: ",".join(map(str, value)) if isinstance(value, tuple) else value
            for name, value in self._values.items()
        }


class Microbenchmark(ABC, Generic[S, R]):
    """One benchmark. `S` is what `setup` prepares, `R` what the timed region gives."""

    name: str
    summary: str
    measures: str  # what the numbers are, in a paragraph
    misleads: str  # and how they can mislead
    kinds: tuple[str, ...] = GPUS
    parameters: Mapping[str, Parameter] = FrozenDict()
    columns: tuple[Column, ...] = ()
    figure: Figure

    def unsupported(self, rig: Rig) -> str | None:
        """None, or one sentence on why this device cannot run it."""
        return None

    @abstractmethod
    def setup(self, rig: Rig, given: Settings) -> S:
        """Allocate and fill; nothing here is timed."""

    @abstractmethod
    def timed(self, rig: Rig, state: S) -> R:
        """Run and read clocks; nothing else."""

    @abstractmethod
    def verify(self, rig: Rig, state: S, raw: R) -> str | None:
        """None, or what the kernels computed wrongly."""

    @abstractmethod
    def metrics(self, rig: Rig, state: S, raw: R) -> Findings:
        """Rows and metrics from what was timed."""

    def settings(self, mode: Mode, chosen: Mapping[str, Any]) -> Settings:
        """The mode's values with those chosen instead."""
        for name in chosen:
            if name not in self.parameters:
                known = ", ".join(self.parameters)
                raise UsageError(f"{self.name} has no parameter {name!r}", hint=f"it has: {known}")
        values = {name: p.value(mode) for name, p in self.parameters.items()}
        for name, value in chosen.items():
            given = _as_given(self.name, name, value, values[name])
            _check_size(self.name, name, given, self.parameters[name])
            values[name] = given
        return Settings(values)


def metric(
    name: str,
    value: float | None,
    unit: str,
    *,
    better: Better = "higher",
    headline: bool = True,
    limit: Limit | None = None,
    least: float | None = None,
) -> list[MicroMetric]:
    """A list of one metric, or of none where there is no value."""
    if value is None:
        return []
    return [
        MicroMetric(
            name=name,
            value=float(value),
            unit=unit,
            better=better,
            headline=headline,
            limit=limit.value if limit else None,
            least=least,
            why=limit.why if limit else "",
        )
    ]


def _as_given(benchmark: str, name: str, value: Any, like: Setting) -> Setting:
    """`value` in the form of the default: text may come from a command line."""
    many = isinstance(like, tuple)
    example = like[0] if isinstance(like, tuple) else like
    kind = type(example)
    if isinstance(value, str):
        items: list[Any] = value.split(",") if many or kind is not str else [value]
    else:
        items = list(value) if isinstance(value, list | tuple) else [value]
    try:
        made: Any = tuple(kind(item) for item in items)
        if not made or (len(made) > 1 and not many):
            raise ValueError
    except (TypeError, ValueError):
        wanted = {int: "whole numbers", float: "numbers", str: "words"}[kind]
        raise UsageError(
            f"{benchmark}: {name}={value!r} is not {wanted if many else wanted.rstrip('s')}",
            hint=f"for example: {name}={example}",
        ) from None
    chosen: Setting = made if many else made[0]
    return chosen


def _check_size(benchmark: str, name: str, given: Setting, parameter: Parameter) -> None:
    """Refuse what is below zero, and no count or size at all where no mode has that either."""

    def every(setting: Setting) -> tuple[Any, ...]:
        return setting if isinstance(setting, tuple) else (setting,)

    usual = [value for mode in MODES for value in every(parameter.value(mode))]
    least = 1 if isinstance(usual[0], int) and 0 not in usual else 0
    wrong = [value for value in every(given) if not isinstance(value, str) and not value >= least]
    if wrong:
        raise UsageError(
            f"{benchmark}: {name}={wrong[0]} is too small",
            hint=f"{least} is the least; usual is {name}={usual[0]}",
        )
