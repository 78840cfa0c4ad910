"""Microbenchmark: one measurement of a device, with separate setup, timed region, verification and
metrics. Each file in micro/benchmarks provides one as `benchmark`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Better, Metric, PointColumn, Value
from kernelmark.core.reason import Reason
from kernelmark.core.units import bytes_text
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
    """A parameter with its values by mode. `brief` is the subset that the headline metrics need.

    `choices` lists all legal words or numbers, () if any is legal. Numbers are from `least` to
    `most`, in multiples of `multiple`; without `least`, above 0, and 0 is also legal if a mode uses
    it."""

    help: str
    quick: Setting
    full: Setting | None = None
    brief: Setting | None = None
    choices: tuple[str | int, ...] = ()
    least: float | None = None
    most: float | None = None
    multiple: int = 1

    def value(self, mode: Mode) -> Setting:
        chosen = {"brief": self.brief, "quick": None, "full": self.full}[mode]
        return self.quick if chosen is None else chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the rows, with the bound that its numbers must not exceed."""

    name: str
    help: str
    unit: str = ""
    limit: LimitOf | None = None

    def on(self, hardware: Hardware) -> PointColumn:
        bound = self.limit(hardware) if self.limit else None
        if bound is None:
            return PointColumn(name=self.name, unit=self.unit)
        return PointColumn(name=self.name, unit=self.unit, limit=bound.value, why=bound.why)


# Filled from `spread_of`; a metric with the value of a row gets its spread.
SPREAD = Column(name="spread", help="spread of the launches (see Comparing)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel of a figure: a column over the figure's x, divided by `per`. With `zero` the axis
    begins at zero, as it always does for bars."""

    y: str
    title: str
    per: float = 1.0
    scale: Literal["linear", "log"] = "linear"
    mark: Literal["line", "bar", "point", "rect"] = "line"
    zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """How to draw a benchmark's rows: `colour` is the column that distinguishes lines, `facet` a
    column with a panel for each value. Only rows with the values in `where` are drawn."""

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
    """The results of the timed region."""

    rows: Sequence[Mapping[str, Value]] = ()
    metrics: Sequence[Metric] = ()
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
    """One benchmark. `S` is the state that `setup` prepares, `R` the raw result of the timed
    region."""

    name: str
    summary: str
    measures: str  # what the numbers are, in a paragraph
    misleads: str  # how they can mislead
    kinds: tuple[str, ...] = GPUS
    by_cycles: bool = False  # whether it needs kernels that can count core cycles
    parameters: Mapping[str, Parameter] = FrozenDict()
    columns: tuple[Column, ...] = ()
    host_paced: tuple[str, ...] = ()  # metrics that depend on the host as much as on the device
    no_spread: Mapping[str, str] = FrozenDict()  # times and rates without a spread: why, by metric
    figure: Figure

    def unsupported(self, rig: Rig) -> str | None:
        """Return None, or one sentence on why this device cannot run the benchmark."""
        return None

    @abstractmethod
    def setup(self, rig: Rig, given: Settings) -> S:
        """Allocate and fill memory; untimed."""

    @abstractmethod
    def timed(self, rig: Rig, state: S) -> R:
        """Run and read clocks only."""

    @abstractmethod
    def verify(self, rig: Rig, state: S, raw: R) -> str | None:
        """Return None, or a description of a wrong result."""

    @abstractmethod
    def metrics(self, rig: Rig, state: S, raw: R) -> Findings:
        """Return rows and metrics of the raw result."""

    def settings(self, mode: Mode, chosen: Mapping[str, Any]) -> Settings:
        """Return the mode's values, overridden by `chosen`."""
        for name in chosen:
            if name not in self.parameters:
                known = ", ".join(self.parameters)
                raise UsageError(
                    Reason("micro-parameter-unknown", benchmark=self.name, name=name),
                    hint=f"it has: {known}",
                )
        values = {name: p.value(mode) for name, p in self.parameters.items()}
        for name, value in chosen.items():
            given = _convert(self.name, name, value, values[name])
            _check(self.name, name, given, self.parameters[name])
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
    spread: float | None = None,
    roof: str = "",
    steady: bool = True,
    stand_in: bool = False,
) -> list[Metric]:
    """Return a list with one metric, or an empty list without a value. Without a `spread`, the
    metric gets that of the row with its value."""
    if value is None:
        return []
    return [
        Metric(
            name=name,
            value=float(value),
            unit=unit,
            better=better,
            headline=headline,
            limit=limit.value if limit else None,
            least=least,
            why=limit.why if limit else "",
            spread=spread,
            roof=roof,
            steady=steady,
            stand_in=stand_in,
        )
    ]


def _convert(benchmark: str, name: str, value: Any, like: Setting) -> Setting:
    """Convert `value` to the type of the default: text may come from a command line."""
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
            Reason(
                "at",
                where=benchmark,
                cause=Reason(
                    "argument-type",
                    name=name,
                    given=repr(value),
                    wanted=wanted if many else wanted.rstrip("s"),
                ),
            ),
            hint=f"for example: {name}={example}",
        ) from None
    # Measure a repeated value once.
    chosen: Setting = tuple(dict.fromkeys(made)) if many else made[0]
    return chosen


def _check(benchmark: str, name: str, given: Setting, parameter: Parameter) -> None:
    """Raise UsageError for unknown values, and for numbers that cannot be measured with."""
    for value in _every(given):
        if parameter.choices and value not in parameter.choices:
            known = ", ".join(map(str, parameter.choices))
            raise UsageError(
                Reason("micro-value-unknown", benchmark=benchmark, name=name, value=value),
                hint=f"known: {known}",
            )
        if not isinstance(value, str):
            _check_number(benchmark, name, value, parameter)


def _check_number(benchmark: str, name: str, value: float, parameter: Parameter) -> None:
    where = {"benchmark": benchmark, "name": name, "value": value}
    usual = [number for mode in MODES for number in _every(parameter.value(mode))]
    least = parameter.least
    if least is None:
        least = 1 if isinstance(usual[0], int) and 0 not in usual else 0
    positive = parameter.least is None and 0 not in usual
    hint = f"usual is {name}={usual[0]}"
    if not value >= least or (positive and value == 0):
        limit = f"{least:.15g} is the least" if least or not positive else "it must be above 0"
        raise UsageError(Reason("micro-too-small", **where), hint=f"{limit}; {hint}")
    if not math.isfinite(value) or (parameter.most is not None and value > parameter.most):
        limit = "it must end" if parameter.most is None else f"{parameter.most:.15g} is the most"
        raise UsageError(Reason("micro-too-large", **where), hint=f"{limit}; {hint}")
    if isinstance(value, int) and value % parameter.multiple:
        cause = Reason("not-multiple", name=name, value=value, multiple=parameter.multiple)
        raise UsageError(Reason("at", where=benchmark, cause=cause), hint=hint)


def _every(setting: Setting) -> tuple[Any, ...]:
    return setting if isinstance(setting, tuple) else (setting,)


def fitting(sizes: Sequence[int], most: float, share: str) -> tuple[list[int], list[str]]:
    """Return the sizes of at most `most` bytes and a note on the others; `share` describes `most`.
    Raise Unsupported if no size fits."""
    kept = [size for size in sizes if size <= most]
    if not kept:
        raise Unsupported(Reason("micro-does-not-fit", size=min(sizes), most=most, share=share))
    large = ", ".join(bytes_text(size) for size in sizes if size > most)
    note = f"left out: {large}; {bytes_text(most)} can be used, {share}"
    return kept, [note] if large else []


def rounded(sizes: Sequence[int], step: int, least: int) -> tuple[list[int], list[str]]:
    """Return the distinct sizes, rounded down to multiples of `step` but at least `least`; and a
    note if a size was changed."""
    made = [max(least, size // step * step) for size in sizes]
    odd = [f"{a} B as {b} B" for a, b in zip(sizes, made, strict=True) if a != b]
    note = f"sizes are multiples of {step} B, at least {least} B: measured {', '.join(odd)}"
    return list(dict.fromkeys(made)), [note] if odd else []


def available(
    asked: Sequence[str], there: Callable[[str], bool], where: str
) -> tuple[tuple[str, ...], list[str]]:
    """Return those of `asked` for which `there` is true, and a note on the others; raise
    Unsupported if there are none."""
    found = tuple(word for word in asked if there(word))
    missing = tuple(word for word in asked if word not in found)
    reason = Reason("instruction-missing", where=where, names=missing)
    if not found:
        raise Unsupported(reason)
    return found, [reason] if missing else []
