"""Case, Space, Measurement, Check, Result and Run: what is measured, and what is stored.
`check_results` checks numbers from files, so that a damaged or crafted file cannot make an
impossible result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import html
import itertools
import json
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kernelmark.core.environment import Environment
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.immutable import OPTIONAL as OPTIONAL
from kernelmark.core.immutable import FrozenDict, computed_once
from kernelmark.core.metric import Metric, PointColumn, Roof, Value, impossible
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason, prefixed
from kernelmark.core.timing import MOST_S, Timing
from kernelmark.core.units import plain_number, time_text, width_text

ConfigValue = str | int | float | bool
Config = Mapping[str, ConfigValue]
# Codes of warnings that make a median unreliable: it is shown with a mark, and not ranked. A
# warning of another code does so by its field `unreliable`.
UNRELIABLE = ("few-blocks", "blocks-disagree", "audited-slower")
# Blocks disagree if the interval of their median spans this factor: the median may then lie
# between two modes, at a time that no launch took.
DISAGREEMENT = 4.0
_IMPOSSIBLE = "no run has such times: was the file edited? measure or export it again"
_config_text = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def is_wide(low_s: float, high_s: float) -> bool:
    """Return whether blocks with this interval disagree. Results of earlier versions lack the
    warning."""
    return low_s > 0 and high_s > DISAGREEMENT * low_s


def config_key(config: Config) -> str:
    """Return the canonical text of a config; `{}` is the backend's default."""
    return _config_text(dict(config)) if config else "{}"


BACKEND = "backend"  # the parameter of a union of spaces that names the backend of a config


def join_config(backend: str, config: Config) -> Config:
    """Return a backend's config as a point of a union of spaces."""
    return FrozenDict({BACKEND: backend, **{f"{backend}.{n}": v for n, v in config.items()}})


def split_config(config: Config) -> tuple[str, Config]:
    """Return the backend of a point of a union of spaces, and its own config."""
    backend = str(config.get(BACKEND, ""))
    others = {name: value for name, value in config.items() if name != BACKEND}
    own = {n.removeprefix(f"{backend}."): v for n, v in others.items()}
    if not backend or any(not name.startswith(f"{backend}.") for name in others):
        raise UsageError(
            f"{config_key(config)} is no config of several backends",
            hint="it is backend=NAME, and the parameters of that one as NAME.PARAMETER=VALUE",
        )
    return backend, FrozenDict(own)


class _CaseMemory:
    __slots__ = ("_id", "_series")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(_CaseMemory):
    """What a worker measures: a problem, backend, config and timing.

    `name` identifies a user's kernel file in history, independently of its path."""

    problem: Problem
    backend: str
    timing: Timing = field(default_factory=Timing)
    config: Config = field(default_factory=FrozenDict)
    name: str = field(default="", metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        if not isinstance(self.config, Mapping):
            raise UsageError(
                f"config={self.config!r} is not a mapping", hint='write: config={"tile": 64}'
            )
        plain: dict[str, Any] = {n: plain_number(value) for n, value in self.config.items()}
        object.__setattr__(self, "config", FrozenDict(plain))
        for name, value in plain.items():
            if not isinstance(value, str | int | float):
                raise UsageError(f"config: {name}={value!r} is not a word, number or truth value")
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"config: {name}={value} is not finite")

    @computed_once
    def series(self) -> str:
        """The identity in history, without the architecture of the device."""
        name = self.name or self.backend
        return " | ".join((self.problem.key, name, config_key(self.config), self.timing.identity))

    @computed_once
    def id(self) -> str:
        """A short, stable hash of `series` that identifies a case within a run."""
        return hashlib.sha256(self.series.encode()).hexdigest()[:16]


class Status(StrEnum):
    """How a case ended. Only reliable `ok` results are ranked; all results have a row."""

    OK = "ok"
    WRONG = "wrong"
    IMPOSSIBLE = "impossible"  # faster than the device's measured limits allow
    UNSUPPORTED = "unsupported"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    SKIPPED = "skipped"

    @property
    def failed(self) -> bool:
        """Whether this status makes a run end with exit code 3."""
        return self not in (Status.OK, Status.UNSUPPORTED, Status.SKIPPED)


class StopReason(StrEnum):
    """Why measuring stopped."""

    PRECISE = "precise"  # the interval is under its target
    TIME = "time"  # the cap on timed seconds was reached
    BLOCKS = "blocks"  # the cap on allocation blocks was reached
    FIXED = "fixed"  # the number of blocks was given: as many at least as at most
    CUTOFF = "cutoff"  # a candidate of a search whose first launches are too slow to rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Readings of the device around a block; None for values that it does not report."""

    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None
    load: float | None = None
    throttle: tuple[str, ...] = ()


class _MedianMemory:
    __slots__ = ("_median_s",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(_MedianMemory):
    """Samples of one process and one set of allocations: the statistical unit."""

    process: int
    allocation: int
    samples_s: tuple[float, ...]
    clocks_mhz: tuple[float, ...] = ()
    telemetry: Telemetry = field(default_factory=Telemetry)

    def __post_init__(self) -> None:
        if not self.samples_s:
            raise UsageError("samples_s is empty: a block has at least one time", hint=_IMPOSSIBLE)
        # The sum is finite only if every time is.
        if not (min(self.samples_s) > 0 and math.isfinite(sum(self.samples_s))):
            wrong = next((t for t in self.samples_s if not 0 < t < math.inf), math.inf)
            raise UsageError(
                f"samples_s has {wrong}, and a time is positive and finite", hint=_IMPOSSIBLE
            )

    @computed_once
    def median_s(self) -> float:
        return statistics.median(self.samples_s)

    @property
    def clock_mhz(self) -> float | None:
        """The median core clock of the samples; None if it was not measured."""
        return statistics.median(self.clocks_mhz) if self.clocks_mhz else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One mode of a multimodal case: its time, and the fraction of samples in it."""

    value_s: float
    share: float

    def __post_init__(self) -> None:
        if not (0 < self.value_s < math.inf and 0 < self.share <= 1):
            raise UsageError(
                f"a mode of {self.value_s} s with a share of {self.share} is not possible",
                hint=_IMPOSSIBLE,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(_MedianMemory):
    """All times of a case, in seconds per launch.

    `low_s` and `high_s` are the 95 % confidence interval of the median, over blocks, not samples.
    `also` holds other times of the same kernel: host_s (eager, with launch cost), hot_s, …
    `modes` are the modes of the samples, fastest first; empty if there is only one.
    """

    blocks: tuple[Block, ...]
    low_s: float
    high_s: float
    method: str
    launches: int
    sets: int
    footprint_bytes: int
    stop: StopReason
    warmup_s: float
    timed_s: float
    warnings: tuple[Reason, ...] = ()
    also: Mapping[str, float] = field(default_factory=FrozenDict)
    modes: tuple[Mode, ...] = field(default=(), metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "also", FrozenDict(self.also))
        object.__setattr__(self, "warnings", tuple(map(Reason.of, self.warnings)))
        if not self.blocks:
            raise UsageError(
                "blocks is empty: a measurement has at least one block", hint=_IMPOSSIBLE
            )

    @computed_once
    def median_s(self) -> float:
        """The headline: the median over blocks of each block's median."""
        return statistics.median([block.median_s for block in self.blocks])

    @property
    def rel_half_width(self) -> float:
        """Half of the interval's width relative to its geometric mean; infinite without interval.

        Times vary by factors, so the interval is symmetric in the logarithm."""
        if self.low_s <= 0 or math.isinf(self.high_s):
            return math.inf
        return (self.high_s - self.low_s) / 2 / math.sqrt(self.low_s * self.high_s)

    @property
    def has_interval(self) -> bool:
        """Whether the interval is bounded; that of a bare mean is not."""
        return math.isfinite(self.high_s)

    @property
    def reliable(self) -> bool:
        """Whether enough blocks were measured, and agree with each other and with the audit."""
        return self.doubt is None

    @property
    def doubt(self) -> Reason | None:
        """Why the median is unreliable; None if it is reliable."""
        return next(
            (w for w in self.warnings if w.code in UNRELIABLE or w.fields.get("unreliable")), None
        )

    @property
    def launch_bound(self) -> bool:
        """Whether an eager launch takes more than 1.5 times as long as the kernel."""
        return self.also.get("host_s", 0.0) > 1.5 * self.median_s

    @property
    def clock_mhz(self) -> float | None:
        """The median core clock of the samples; None unless it was measured with each sample."""
        clocks = [clock for block in self.blocks for clock in block.clocks_mhz]
        return statistics.median(clocks) if len(clocks) == self.samples else None

    @property
    def samples(self) -> int:
        """The number of samples in all blocks."""
        return sum(len(block.samples_s) for block in self.blocks)


class Fault(StrEnum):
    """What a check found wrong."""

    UNWRITTEN = "unwritten"  # elements of the output still hold the poison value
    GUARDS = "guards"  # memory next to the output was overwritten
    VALUES = "values"  # sampled positions differ from the float64 reference
    PROJECTION = "projection"  # projections of rows differ from the reference
    INPUTS = "inputs"  # inputs were modified
    STRAY = "stray"  # the output of another argument set was written
    LESS_WORK = "less-work"  # launches on new inputs take longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The verification of the outputs of timed launches.

    `worst` is the largest error in units of its tolerance: above 1 the result is wrong. `rows` is
    the number of output rows that a random projection checked. `fresh_ratio` is the time of
    launches on new inputs divided by that of launches on unchanged ones, in the audit; None if it
    was not measured. `faults` are the codes of all checks that failed.
    """

    positions: int
    worst: float
    max_abs: float
    unwritten: int
    guards_intact: bool
    detail: Reason = NO_REASON
    faults: tuple[Fault, ...] = field(default=(), metadata={OPTIONAL: True})
    rows: int = field(default=0, metadata={OPTIONAL: True})
    fresh_ratio: float | None = field(default=None, metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", Reason.of(self.detail))

    @property
    def passed(self) -> bool:
        whole = self.unwritten == 0 and self.guards_intact
        return self.worst <= 1.0 and whole and not self.faults


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInfo:
    """The kernel that ran: its name, how it was built, and its registers, spills and memory.

    `configs` are the pipeline and tile sizes that a compiler chose, by the names of the kernels
    that it generated for the problem."""

    name: str = ""
    compile_s: float = 0.0
    cached: bool = False
    binary_hash: str = ""
    resources: Mapping[str, int] = field(default_factory=FrozenDict)
    configs: Mapping[str, str] = field(default=FrozenDict(), metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "resources", FrozenDict(self.resources))
        object.__setattr__(self, "configs", FrozenDict(self.configs))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """The outcome of a case, failed or not.

    `measurement` has the times, `check` the verification of the output, `kernel` what ran, `error`
    the reason of a failure. `flops` and `bytes` are the work of one launch. `cost` holds wall-clock
    seconds by phase (compile, inputs, warmup, timed, check, total). Cases that were measured by
    turns have the same `started`.

    A microbenchmark has `metrics` instead of a measurement; `rows` are the points that these are
    computed from, described by `columns`, and `trace` holds clock, power and temperature during the
    benchmark. An `ok` result cannot hold a value above the limit of its metric or column: its
    construction fails.
    """

    case: Case
    device: str
    status: Status
    arch: str = ""
    flops: int = 0
    bytes: int = 0
    measurement: Measurement | None = None
    check: Check | None = None
    kernel: KernelInfo = field(default_factory=KernelInfo)
    error: Reason = NO_REASON
    started: float = 0.0
    cost: Mapping[str, float] = field(default_factory=FrozenDict)
    metrics: tuple[Metric, ...] = field(default=(), metadata={OPTIONAL: True})
    columns: tuple[PointColumn, ...] = field(default=(), metadata={OPTIONAL: True})
    rows: tuple[Mapping[str, Value], ...] = field(default=(), metadata={OPTIONAL: True})
    trace: tuple[Telemetry, ...] = field(default=(), metadata={OPTIONAL: True})
    notes: tuple[str, ...] = field(default=(), metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost", FrozenDict(self.cost))
        object.__setattr__(self, "error", Reason.of(self.error))
        if self.rows:
            object.__setattr__(self, "rows", tuple(map(FrozenDict, self.rows)))
        if self.metrics or self.rows:
            self._check_numbers()

    def _check_numbers(self) -> None:
        name = self.case.problem.op
        for row in self.rows:
            for column, value in row.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise UsageError(f"{name}: {column} is {value}; leave it out instead")
        reasons = impossible(self.columns, self.rows, self.metrics)
        if self.status is Status.OK and reasons:
            raise UsageError(prefixed(reasons[0], f"{name}: "))

    def __str__(self) -> str:
        """Return one line: the problem, the backend, the median with its ±, and the status."""
        parts = [f"{self.case.problem.key} by {self.case.backend}:"]
        if measured := self.measurement:
            width = width_text(measured.rel_half_width)
            parts.append(f"{time_text(measured.median_s)} ± {width},")
        return " ".join([*parts, self.status.value])

    def __repr__(self) -> str:
        return f"<Result: {self}>"

    def _repr_html_(self) -> str:
        measured = self.measurement
        width = width_text(measured.rel_half_width) if measured else ""
        facts = {
            "problem": self.case.problem.key,
            "backend": self.case.backend,
            "device": f"{self.device} {self.arch}",
            "status": self.status.value + (f": {self.why}" if self.why else ""),
            "median": f"{time_text(measured.median_s)} ± {width}" if measured else "",
            "samples": f"{measured.samples} in {len(measured.blocks)} blocks" if measured else "",
            "warnings": "; ".join(map(str, measured.warnings)) if measured else "",
            "metrics": "; ".join(f"{m.name} {m.value:.4g} {m.unit}" for m in self.headlines),
        }
        rows = (
            f"<tr><th>{name}</th><td style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in facts.items()
            if text
        )
        return f"<table>{''.join(rows)}</table>"

    @property
    def median_s(self) -> float | None:
        """The median time of a launch; None without a measurement."""
        return self.measurement.median_s if self.measurement else None

    def metric(self, name: str) -> Metric:
        """Return the metric called `name`; raise a UsageError that lists the known ones."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        metric_names = ", ".join(metric.name for metric in self.metrics)
        raise UsageError(
            f"{self.case.problem.op} has no metric {name!r}", hint=f"it has: {metric_names}"
        )

    @property
    def headlines(self) -> tuple[Metric, ...]:
        """The headline metrics; all metrics if none is a headline."""
        return tuple(metric for metric in self.metrics if metric.headline) or self.metrics

    @property
    def why(self) -> Reason:
        """Why the result is not ok; empty if it is ok or the reason is unknown."""
        if self.error or self.check is None or self.check.passed:
            return self.error
        return self.check.detail or Reason("the output is wrong")

    @property
    def series(self) -> str:
        """The identity in history: the series of the case, and the architecture."""
        return f"{self.case.series} | {self.arch}"

    @property
    def flops_per_s(self) -> float | None:
        """The compute rate at the median time; None without a measurement."""
        return self.flops / self.measurement.median_s if self.measurement else None

    @property
    def bytes_per_s(self) -> float | None:
        """The memory rate at the median time; None without a measurement."""
        return self.bytes / self.measurement.median_s if self.measurement else None


class RunState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A set of cases that are measured together in one environment.

    `started` and `finished` are in seconds since the epoch, UTC; `paused_s` is the time between
    interruptions and `--resume`. `cases` is the number of cases requested."""

    id: str
    started: float
    environment: Environment
    label: str = ""
    suite: str = ""
    argv: tuple[str, ...] = ()
    cases: int = 0
    state: RunState = RunState.RUNNING
    finished: float | None = None
    excluded: bool = field(default=False, metadata={OPTIONAL: True})  # from history
    paused_s: float = field(default=0.0, metadata={OPTIONAL: True})

    @property
    def imported(self) -> bool:
        """Whether another tool measured. Its timing is then what the importer knows of the tool."""
        return not self.environment.kernelmark_version

    @property
    def took_s(self) -> float | None:
        """The seconds that the run took, without pauses; None while it runs."""
        if self.finished is None or self.state is RunState.RUNNING:
            return None
        return max(0.0, self.finished - self.started - self.paused_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSet:
    """A run with its results and the roofs they were compared with: the document that
    `kmark export` writes and `kmark import` reads."""

    run: Run
    results: tuple[Result, ...]
    roofs: tuple[Roof, ...] = field(default=(), metadata={OPTIONAL: True})

    def ordered(self, last: Collection[str] = ()) -> list[Result]:
        """Return the results in the order of the request, grouped by problem. Problems whose key is
        in `last` come last."""
        keys = [result.case.problem.key for result in self.results]
        positions = {key: position for position, key in enumerate(dict.fromkeys(keys))}

        def sort_key(result: Result) -> tuple[bool, int]:
            key = result.case.problem.key
            return key in last, positions[key]

        return sorted(self.results, key=sort_key)


MOST_SIZE = 2**48
MOST_COUNT = 2**63 - 1  # bytes or FLOPs; the largest integer of a store
_INDEX = "solution_index"  # may be negative: rocBLAS uses negative indices for Tensile solutions
_MOST_CLOCK = 2.0**33  # seconds UTC: the year 2242


def is_time(seconds: float) -> bool:
    """Return whether this is a possible duration of a launch."""
    return 0 < seconds < MOST_S


def is_moment(seconds: float | None) -> bool:
    """Return whether this is a possible time of a run, in seconds since the epoch."""
    return seconds is not None and 0 <= seconds < _MOST_CLOCK


def bad_size(problem: Problem) -> str:
    """Return the first impossible dim, such as `m=-1`; "" if all are possible. 0 is accepted: only
    the op can decide which dims may be 0, such as a padding."""
    sizes = problem.dims.items()
    return next((f"{n}={str(v)[:24]}" for n, v in sizes if not 0 <= v < MOST_SIZE), "")


def check_results(results: ResultSet) -> ResultSet:
    """Return a run from a file unchanged; raise CodecError for the first impossible value."""
    _check(results.run, "results.run")
    for number, result in enumerate(results.results):
        check_result(result, f"results.results[{number}]")
    for number, roof in enumerate(results.roofs):
        _check(roof, f"results.roofs[{number}]")
    return results


def check_result(result: Result, where: str) -> None:
    """Raise CodecError for the first impossible value."""
    _check(result, where)


def _check(value: object, where: str) -> None:
    for path, bad in _faults(value, where, ""):
        raise CodecError(
            f"{path}: {bad} is not possible", hint="is the file damaged, or not of kmark?"
        )


def _faults(value: Any, where: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield (path, value) of every impossible part of `value`, which is in a field `name`."""
    if isinstance(value, Case):  # timing and config are checked on construction
        if bad := bad_size(value.problem):
            yield f"{where}.problem", bad
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            called = "roof" if isinstance(value, Roof) and field.name == "value" else field.name
            field_value = getattr(value, field.name)
            if not _is_fine(field_value, called):
                yield from _faults(field_value, f"{where}.{field.name}", called)
        if isinstance(value, Measurement) and not value.low_s <= value.high_s:
            yield f"{where}.low_s", f"{value.low_s:g} to {value.high_s:g}"
    elif isinstance(value, Mapping):
        for key, field_value in value.items():
            called = key if key == _INDEX else name
            if not _is_fine(field_value, called):
                yield from _faults(field_value, f"{where}.{key}", called)
    elif isinstance(value, tuple):
        for number, field_value in enumerate(value):
            if not _is_fine(field_value, name):
                yield from _faults(field_value, f"{where}[{number}]", name)
    elif isinstance(value, int | float) and not _is_possible(value, name):
        yield where, str(value)[:24] if isinstance(value, int) else f"{value:g}"


def _is_fine(value: Any, name: str) -> bool:
    """Return whether a value needs no closer look. Most of a result is numbers, and building the
    path of each would be slow."""
    if isinstance(value, int | float):
        return _is_possible(value, name)
    return value is None or isinstance(value, str)


def _is_possible(value: float, name: str) -> bool:
    """Return whether a number is possible in the field `name` of a run, a result or a roof."""
    if isinstance(value, int):  # a count, an index or a bool
        return abs(value) < 2**31 if name == _INDEX else 0 <= value <= MOST_COUNT
    if name in ("started", "finished", "measured", "paused_s"):  # a pause may last years
        return is_moment(value)
    if name in ("samples_s", "value_s"):
        return is_time(value)
    if name == "low_s":
        return 0 <= value < MOST_S
    if name == "high_s":  # the interval of few blocks may be wide or unbounded
        return value >= 0
    # A difference of clocks may be a little below 0.
    if name in ("cost", "also") or name.endswith("_s"):
        return abs(value) < MOST_S * 10
    if name in ("worst", "max_abs"):  # a kernel's output may be infinite or NaN
        return not value < 0
    if name == "roof":  # a divisor
        return 0 < value < MOST_COUNT
    return abs(value) < MOST_COUNT  # clocks, power, temperature, ratios


def _anything(config: Config) -> str | None:
    return None


def _itself(config: Config) -> Config:
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A search space: ordered parameters, each with ordered values. `forbids` returns the reason
    why a combination is illegal, or None. A list of solutions is one parameter. `default` is the
    combination that a search starts from; `seeds` are combinations to try next, most promising
    first. Values have the types that `--config` gives them: yes and no are True and False.

    `parts` make a large space fast to enumerate: every legal combination takes its values from one
    part, for example all sizes 0 or none. Other combinations are not enumerated, and `forbids` must
    refuse them. A parameter that a part does not name keeps all its values there. With `exact`,
    every combination of a part is legal, and `forbids` is not called for each.

    `check` is for a space too large to enumerate, whose rules another program knows: it returns the
    reasons of many combinations at once, "" for a legal one. It gets only combinations that
    `forbids` allows.

    `opt_in` are more parameters, the default value first, that are searched only if a plan lists
    values of them.

    `traits` describe the values of a parameter that are names, such as solutions of a library, by
    numbers, always as many, that a model of their times may learn from.

    `alternatives` are the spaces of several backends, by name, of which a config is a point of one:
    see `union`.

    `canonical` maps a config of another problem's space to the one that is the same kernel here:
    of values that make no difference, `forbids` allows only the least."""

    parameters: Mapping[str, tuple[ConfigValue, ...]]
    default: Config = field(default_factory=FrozenDict)
    forbids: Callable[[Config], str | None] = _anything
    seeds: tuple[Config, ...] = ()
    parts: tuple[Mapping[str, tuple[ConfigValue, ...]], ...] = ()
    exact: bool = False
    check: Callable[[Sequence[Config]], Sequence[str]] | None = None
    opt_in: Mapping[str, tuple[ConfigValue, ...]] = field(default_factory=FrozenDict)
    traits: Mapping[str, Callable[[ConfigValue], tuple[float, ...]]] = field(
        default_factory=FrozenDict
    )
    alternatives: Mapping[str, Space] = field(default_factory=FrozenDict)
    canonical: Callable[[Config], Config] = _itself

    @classmethod
    def union(cls, spaces: Mapping[str, Space]) -> Space:
        """Return the space of several backends: `backend=triton triton.block_m=64 …`. It starts
        from the default of the first, then come those of the others and the seeds of all."""
        every = spaces.items()
        defaults = [join_config(name, space.default) for name, space in every]
        seeds = [join_config(name, seed) for name, space in every for seed in space.seeds]
        return cls(
            parameters=FrozenDict(
                {
                    BACKEND: tuple(spaces),
                    **{f"{n}.{p}": v for n, space in every for p, v in space.parameters.items()},
                }
            ),
            default=defaults[0],
            seeds=(*defaults[1:], *seeds),
            opt_in=FrozenDict(
                {f"{n}.{p}": v for n, space in every for p, v in space.opt_in.items()}
            ),
            alternatives=FrozenDict(spaces),
        )

    @property
    def products(self) -> list[list[tuple[ConfigValue, ...]]]:
        """For each part, the values of every parameter."""
        return [
            [
                tuple(value for value in values if value in part[name]) if name in part else values
                for name, values in self.parameters.items()
            ]
            for part in self.parts or ({},)
        ]

    @property
    def size(self) -> int:
        """The number of combinations, illegal ones included."""
        if self.alternatives:
            return sum(space.size for space in self.alternatives.values())
        return sum(math.prod(map(len, values)) for values in self.products)

    def __iter__(self) -> Iterator[Config]:
        for backend, space in self.alternatives.items():
            yield from (join_config(backend, config) for config in space)
        if self.alternatives:
            return
        names = list(self.parameters)
        for product in self.products:
            for values in itertools.product(*product):
                config = FrozenDict(zip(names, values, strict=True))
                if self.forbids(config) is None:
                    yield config
