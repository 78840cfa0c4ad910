"""The form of a microbenchmark: a declaration and one function that measures.

Each file in micro/benchmarks provides one or more:

    @microbenchmark(summary=…, measures=…, parameters={…}, columns=(…), figure=…)
    def empty(run: MicroRun, *, blocks: Ints, samples: int) -> None: ...

The function gets the values of its parameters and goes through three phases: it allocates and
fills memory; after `run.begin_timing()` it only launches and reads clocks, and adds rows and
metrics; after `run.begin_checks()` it compares what the kernels computed with the exact result.
The driver (execute.py) does the rest: modes, limits, spreads, disturbed metrics, failures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Better, Metric, PointColumn, Value
from kernelmark.core.units import bytes_text, join_commas
from kernelmark.micro.hardware import Hardware, Limit
from kernelmark.micro.rig import Rig

GPUS = ("cuda", "hip")
EVERYWHERE = ("cpu", *GPUS)
Mode = Literal["brief", "quick", "full"]
MODES: tuple[Mode, ...] = ("brief", "quick", "full")
Ints = tuple[int, ...]
Names = tuple[str, ...]
Setting = int | float | str | Ints | tuple[float, ...] | Names
Record = dict[str, Any]  # a Value by column
KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the rows, with the bound that its numbers must not exceed."""

    name: str
    help: str
    unit: str = ""
    limit: Callable[[Hardware], Limit] | None = None

    def on(self, hardware: Hardware) -> PointColumn:
        bound = self.limit(hardware) if self.limit else None
        if bound is None:
            return PointColumn(name=self.name, unit=self.unit)
        return PointColumn(name=self.name, unit=self.unit, limit=bound.value, why=bound.why)


# A metric with the value of a row gets the row's spread.
SPREAD = Column("spread", "spread of the launches (see Comparing)")


@dataclass(frozen=True, slots=True)
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


class MicroRun:
    """One execution of a microbenchmark: its device, and the rows, metrics and notes so far."""

    def __init__(self, rig: Rig, columns: Sequence[Column] = ()) -> None:
        self.rig = rig
        self.rows: list[Record] = []
        self.metrics: list[Metric] = []
        self.notes: list[str] = []
        self.wrong = ""
        self.seconds: dict[str, float] = {}  # by phase
        self._columns = [column.name for column in columns]
        self.phase, self._begun = "setup", time.perf_counter()

    def begin_timing(self) -> None:
        """Begin the timed phase: from here on, run and read clocks only."""
        self._begin("timed")

    def begin_checks(self) -> None:
        """End the timed phase; results of the kernels are checked after it."""
        self._begin("verify")
        self.rig.look()

    def end(self) -> None:
        self._begin("")

    def _begin(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[self.phase] = now - self._begun
        self.phase, self._begun = phase, now

    def row(self, **values: Value) -> None:
        """Add a point; columns without a value are None."""
        if unknown := values.keys() - set(self._columns):
            raise TypeError(f"no such columns: {', '.join(sorted(unknown))}")
        self.rows.append({name: values.get(name) for name in self._columns})

    def metric(
        self,
        name: str,
        value: float | None,
        unit: str,
        *,
        limit: Limit | None = None,
        least: float | None = None,
        better: Better | None = None,
        **more: Any,
    ) -> None:
        """Add a metric, unless its value is None: a rate with the `limit` of the hardware, or a
        time with the `least` that is physically possible, of which less is better. Without a
        `spread`, it gets that of the row with its value; `more` are other fields of `Metric`."""
        if value is None:
            return
        if better is None:
            better = "higher" if least is None else "lower"
        self.metrics.append(
            Metric(
                name=name,
                value=float(value),
                unit=unit,
                better=better,
                limit=limit.value if limit else None,
                least=least,
                why=limit.why if limit else "",
                **more,
            )
        )

    def rows_with(self, **values: Value) -> list[Record]:
        """Return the rows that have these values."""
        return [r for r in self.rows if all(r[name] == value for name, value in values.items())]

    def check(self, error: str | None) -> None:
        """Record that a kernel computed something wrong; the first error counts."""
        self.wrong = self.wrong or error or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbenchmark:
    """The declaration of a microbenchmark, and the function that measures. `by_cycles`: it needs
    kernels that can count core cycles. `unsupported` returns None, or one sentence on why a device
    cannot run it."""

    name: str
    summary: str
    measures: str  # what the numbers are, in a paragraph
    misleads: str  # how they can mislead
    parameters: Mapping[str, Parameter]
    columns: tuple[Column, ...]
    figure: Figure
    measure: Callable[..., None]
    kinds: tuple[str, ...] = GPUS
    by_cycles: bool = False
    host_paced: tuple[str, ...] = ()  # metrics that depend on the host as much as on the device
    # Times and rates without a spread: why, by metric.
    no_spread: Mapping[str, str] = field(default_factory=FrozenDict)
    unsupported: Callable[[Rig], str | None] = lambda rig: None

    def settings(self, mode: Mode, chosen: Mapping[str, Any]) -> dict[str, Setting]:
        """Return the mode's values of the parameters, overridden by `chosen`."""
        for name in chosen:
            if name not in self.parameters:
                raise UsageError(
                    f"{self.name} has no parameter {name!r}",
                    hint=f"it has: {', '.join(self.parameters)}",
                )
        values = {name: p.value(mode) for name, p in self.parameters.items()}
        for name, value in chosen.items():
            values[name] = _convert(self.name, name, value, values[name])
            _check(self.name, name, values[name], self.parameters[name])
        return values

    def case_parameters(self, mode: Mode, chosen: Mapping[str, Any]) -> dict[str, Value]:
        """Return the same as parameters of a case: lists are joined by commas."""
        return {
            name: ",".join(map(str, value)) if isinstance(value, tuple) else value
            for name, value in self.settings(mode, chosen).items()
        }


def microbenchmark(
    *, parameters: Mapping[str, Parameter], **declared: Any
) -> Callable[[Callable[..., None]], Microbenchmark]:
    """Declare a microbenchmark by the fields of `Microbenchmark`; it decorates the function that
    measures, which has the benchmark's name and its parameters as keyword arguments."""

    def declare(measure: Callable[..., None]) -> Microbenchmark:
        name = measure.__name__.replace("_", "-")
        fields = {"parameters": FrozenDict(parameters), **declared}
        return Microbenchmark(name=name, measure=measure, **fields)

    return declare


def _convert(benchmark: str, name: str, value: Any, default: Setting) -> Setting:
    """Convert `value` to the type of the default: text may come from a command line."""
    many = isinstance(default, tuple)
    example = default[0] if isinstance(default, tuple) else default
    kind = type(example)
    if isinstance(value, str):
        items: list[Any] = value.split(",") if many or kind is not str else [value]
    else:
        items = list(value) if isinstance(value, list | tuple) else [value]
    try:
        converted: Any = tuple(kind(item) for item in items)
        if not converted or (len(converted) > 1 and not many):
            raise ValueError
    except (TypeError, ValueError):
        expected = {int: "whole numbers", float: "numbers", str: "words"}[kind]
        expected = expected if many else expected.rstrip("s")
        raise UsageError(
            f"{benchmark}: {name}={value!r} is not {expected}",
            hint=f"for example: {name}={example}",
        ) from None
    # Measure a repeated value once.
    setting: Setting = tuple(dict.fromkeys(converted)) if many else converted[0]
    return setting


def _check(benchmark: str, name: str, setting: Setting, parameter: Parameter) -> None:
    """Raise UsageError for unknown values, and for numbers that cannot be measured with."""
    for value in _every(setting):
        if parameter.choices and value not in parameter.choices:
            raise UsageError(
                f"{benchmark}: {name}={value} is not known",
                hint=f"known: {', '.join(map(str, parameter.choices))}",
            )
        if not isinstance(value, str):
            _check_number(benchmark, name, value, parameter)


def _check_number(benchmark: str, name: str, value: float, parameter: Parameter) -> None:
    usual = [number for mode in MODES for number in _every(parameter.value(mode))]
    least = parameter.least
    if least is None:
        least = 1 if isinstance(usual[0], int) and 0 not in usual else 0
    positive = parameter.least is None and 0 not in usual
    hint = f"usual is {name}={usual[0]}"
    if not value >= least or (positive and value == 0):
        limit = f"{least:.15g} is the least" if least or not positive else "it must be above 0"
        raise UsageError(f"{benchmark}: {name}={value} is too small", hint=f"{limit}; {hint}")
    if not math.isfinite(value) or (parameter.most is not None and value > parameter.most):
        limit = "it must end" if parameter.most is None else f"{parameter.most:.15g} is the most"
        raise UsageError(f"{benchmark}: {name}={value} is too large", hint=f"{limit}; {hint}")
    if isinstance(value, int) and value % parameter.multiple:
        raise UsageError(
            f"{benchmark}: {name}={value} is not a multiple of {parameter.multiple}", hint=hint
        )


def _every(setting: Setting) -> tuple[Any, ...]:
    return setting if isinstance(setting, tuple) else (setting,)


def fitting(sizes: Iterable[int], most: float, share: str) -> tuple[list[int], list[str]]:
    """Return the sizes of at most `most` bytes and a note on the larger ones; `share` describes
    `most`. Raise Unsupported if no size fits."""
    every = list(sizes)
    kept = [size for size in every if size <= most]
    if not kept:
        raise Unsupported(
            f"{bytes_text(min(every))} does not fit: {bytes_text(most)} can be used, {share}"
        )
    large = ", ".join(bytes_text(size) for size in every if size > most)
    note = f"left out: {large}; {bytes_text(most)} can be used, {share}"
    return kept, [note] if large else []


def rounded(sizes: Iterable[int], step: int, least: int) -> tuple[list[int], list[str]]:
    """Return the distinct sizes, rounded down to multiples of `step` but at least `least`; and a
    note if a size was changed."""
    pairs = [(size, max(least, size // step * step)) for size in sizes]
    odd = [f"{a} B as {b} B" for a, b in pairs if a != b]
    note = f"sizes are multiples of {step} B, at least {least} B: measured {', '.join(odd)}"
    return list(dict.fromkeys(size for _, size in pairs)), [note] if odd else []


def available(
    names: Iterable[str], exists: Callable[[str], bool], where: str
) -> tuple[Names, list[str]]:
    """Return the names that exist, and a note on the missing ones; raise Unsupported if all are
    missing."""
    every = tuple(names)
    present = tuple(name for name in every if exists(name))
    missing = tuple(name for name in every if name not in present)
    reason = f"{where} has no instruction for: {join_commas(missing)}"
    if not present:
        raise Unsupported(reason)
    return present, [reason] if missing else []
