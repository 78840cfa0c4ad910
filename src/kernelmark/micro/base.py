"""Microbenchmark: one idea about a device, with setup, timed region, verification and metrics kept
apart. A file in micro/benchmarks offers one as `benchmark`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.frozen import FrozenDict
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
    """What can be chosen, and what is chosen by mode. `brief` is what the headline metrics need.

    `choices` are all the words or numbers there are, () where any will do. Numbers are from
    `least` to `most`, in multiples of `multiple`; without `least`, more than 0, and 0 as well where
    a mode has it."""

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
    """A column of the rows, with the bound that its numbers must keep."""

    name: str
    help: str
    unit: str = ""
    limit: LimitOf | None = None

    def on(self, hardware: Hardware) -> PointColumn:
        bound = self.limit(hardware) if self.limit else None
        if bound is None:
            return PointColumn(name=self.name, unit=self.unit)
        return PointColumn(name=self.name, unit=self.unit, limit=bound.value, why=bound.why)


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
    """One benchmark. `S` is what `setup` prepares, `R` what the timed region gives."""

    name: str
    summary: str
    measures: str  # what the numbers are, in a paragraph
    misleads: str  # and how they can mislead
    kinds: tuple[str, ...] = GPUS
    by_cycles: bool = False  # whether it says nothing where kernels cannot count core cycles
    parameters: Mapping[str, Parameter] = FrozenDict()
    columns: tuple[Column, ...] = ()
    host_paced: tuple[str, ...] = ()  # metrics that the host sets as much as the device
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
        """Return the mode's values with those chosen instead."""
        for name in chosen:
            if name not in self.parameters:
                known = ", ".join(self.parameters)
                raise UsageError(
                    Reason("micro-parameter-unknown", benchmark=self.name, name=name),
                    hint=f"it has: {known}",
                )
        values = {name: p.value(mode) for name, p in self.parameters.items()}
        for name, value in chosen.items():
            given = _as_given(self.name, name, value, values[name])
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
    roof: str = "",
    steady: bool = True,
    stand_in: bool = False,
) -> list[Metric]:
    """Return a list of one metric, or of none where there is no value."""
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
            roof=roof,
            steady=steady,
            stand_in=stand_in,
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
            Reason(
                "micro-type",
                benchmark=benchmark,
                name=name,
                value=value,
                wanted=wanted if many else wanted.rstrip("s"),
            ),
            hint=f"for example: {name}={example}",
        ) from None
    # What is asked for twice is measured once.
    chosen: Setting = tuple(dict.fromkeys(made)) if many else made[0]
    return chosen


def _check(benchmark: str, name: str, given: Setting, parameter: Parameter) -> None:
    """Refuse what is unknown, and numbers that nothing can be measured with."""
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
        raise UsageError(
            Reason("micro-not-multiple", **where, multiple=parameter.multiple), hint=hint
        )


def _every(setting: Setting) -> tuple[Any, ...]:
    return setting if isinstance(setting, tuple) else (setting,)


def fitting(sizes: Sequence[int], most: float, share: str) -> tuple[list[int], list[str]]:
    """Sizes of at most `most` bytes, which is `share` of something, and a note on the others."""
    kept = [size for size in sizes if size <= most]
    if not kept:
        raise Unsupported(Reason("micro-does-not-fit", size=min(sizes), most=most, share=share))
    large = ", ".join(bytes_text(size) for size in sizes if size > most)
    note = f"left out: {large}; {bytes_text(most)} can be used, {share}"
    return kept, [note] if large else []


def rounded(sizes: Sequence[int], step: int, least: int) -> tuple[list[int], list[str]]:
    """Return each distinct size in whole steps, at least `least`, once; and a note where that
    changed one."""
    made = [max(least, size // step * step) for size in sizes]
    odd = [f"{a} B as {b} B" for a, b in zip(sizes, made, strict=True) if a != b]
    note = f"sizes are multiples of {step} B, at least {least} B: measured {', '.join(odd)}"
    return list(dict.fromkeys(made)), [note] if odd else []


def available(
    asked: Sequence[str], there: Callable[[str], bool], where: str
) -> tuple[tuple[str, ...], list[str]]:
    """Return those of `asked` that are there, and a note on the others; none at all is
    unsupported."""
    found = tuple(word for word in asked if there(word))
    missing = ", ".join(word for word in asked if not there(word))
    if not found:
        raise Unsupported(f"{where} has no instruction for: {missing}")
    return found, [f"no instruction here for: {missing}"] if missing else []
