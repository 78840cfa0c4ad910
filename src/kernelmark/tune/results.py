"""The result files of a tuning folder.

raw_results.csv    one row per outcome; column names have the units
final_results.csv  the rows of kept outcomes
metrics.json       uplifts, saving and coverage, in percent
outcomes.json      the complete outcomes, for emitters
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.core import codec, files
from kernelmark.core.errors import CodecError, NothingToDo, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason, prefixed
from kernelmark.core.result import OPTIONAL, Config, KernelInfo, config_key
from kernelmark.ops.base import Parameter
from kernelmark.tune.folder import TuningFolder, unreadable, write_whole
from kernelmark.workloads.generate import categories


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A backend's config for a problem, as timed in the final. `worst` is the largest error of all
    checks in units of its tolerance; above 1 it is wrong."""

    backend: str
    config: Config = field(default_factory=FrozenDict)
    median_s: float = math.nan
    kernel: KernelInfo = field(default_factory=KernelInfo)
    worst: float = math.nan
    version: str = ""  # of the library underneath

    @property
    def verified(self) -> bool:
        return self.worst <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of tuning one problem. `ratio` is reference time / tuned time over interleaved
    rounds, with its interval.

    `share` is the problem's fraction of the workload's time with the reference, 0 to 1. `blas` has
    the fields of the logged call (transA, lda, a_type, …), for emitters. `disturbed`: other work
    disturbed the final, which has to be repeated."""

    name: str  # BBS_TN_0
    problem: Problem
    device: str
    arch: str
    reference: Choice
    tuned: Choice
    ratio: float
    low: float
    high: float
    kept: bool
    reason: Reason  # why it is kept or not
    count: int = 1
    share: float = 0.0
    evaluations: int = 0
    blas: Mapping[str, str] = field(default_factory=FrozenDict)
    disturbed: bool = field(default=False, metadata={OPTIONAL: True})
    # Of a plan for several backends: the shortest time of each in the search.
    reached_s: Mapping[str, float] = field(default_factory=FrozenDict, metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", Reason.of(self.reason))

    @property
    def saved_s(self) -> float:
        """Seconds saved over all calls of the workload."""
        return (self.reference.median_s - self.tuned.median_s) * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Totals of a tuning run. Uplifts are factors over the kept outcomes; `weighted_saving` and
    `coverage` are fractions of the workload's time with the reference."""

    problems: int
    kept: int
    average_uplift: float
    geomean_uplift: float
    weighted_saving: float
    coverage: float

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Metrics:
        every = list(outcomes)
        kept = [outcome for outcome in every if outcome.kept]
        ratios = [outcome.ratio for outcome in kept]
        return cls(
            problems=len(every),
            kept=len(kept),
            average_uplift=sum(ratios) / len(ratios) if ratios else 1.0,
            geomean_uplift=math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0,
            weighted_saving=sum(o.share * (1 - 1 / o.ratio) for o in kept),
            coverage=sum(outcome.share for outcome in kept),
        )


_KIND = "outcomes"
_US = 1e6
# Without a summary, the share of a problem in the workload's time is unknown.
_NO_SHARES = {"weighted_uplift_pct": None, "coverage_pct": None}
_GEMMS = ("gemm", "batched_gemm")
_LAYOUTS = {"trans_a": "ta", "trans_b": "tb"}

Row = dict[str, Any]


def raw(folder: TuningFolder) -> Path:
    return folder.results / "raw_results.csv"


def final(folder: TuningFolder) -> Path:
    return folder.results / "final_results.csv"


def metrics_file(folder: TuningFolder) -> Path:
    return folder.results / "metrics.json"


def outcomes_file(folder: TuningFolder) -> Path:
    return folder.results / "outcomes.json"


def write(
    folder: TuningFolder,
    outcomes: Sequence[Outcome],
    *,
    retired: Mapping[str, str] | None = None,
    unreached: Sequence[str] = (),
) -> Metrics:
    """Write all files, each atomically. `retired` and `unreached` are plans without an outcome."""
    metrics = Metrics.of(outcomes)
    rows = [row(outcome) for outcome in outcomes]
    kept = [r for r, outcome in zip(rows, outcomes, strict=True) if outcome.kept]
    names = list(dict.fromkeys(name for cells in rows for name in cells))
    write_whole(raw(folder), csv_text(rows, names))
    write_whole(final(folder), csv_text(kept, names))
    document = {
        **percents(metrics),
        **({} if any(outcome.share for outcome in outcomes) else _NO_SHARES),
        "retired": dict(retired or {}),
        "unreached": list(unreached),
        "evaluations": sum(outcome.evaluations for outcome in outcomes),
        "devices": sorted({outcome.device for outcome in outcomes}),
        "archs": sorted({outcome.arch for outcome in outcomes}),
    }
    write_whole(metrics_file(folder), json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    write_whole(outcomes_file(folder), dumps(outcomes))
    return metrics


def percents(metrics: Metrics) -> dict[str, float | int]:
    """Return the metrics in percent, as they are shown."""
    return {
        "problems": metrics.problems,
        "kept": metrics.kept,
        "average_uplift_pct": 100 * (metrics.average_uplift - 1),
        "geomean_uplift_pct": 100 * (metrics.geomean_uplift - 1),
        "weighted_uplift_pct": 100 * metrics.weighted_saving,
        "coverage_pct": 100 * metrics.coverage,
    }


def row(outcome: Outcome) -> Row:
    """Return an outcome as a flat row. `category` has the words of docs/suites.md that apply to a
    GEMM. Values that depend on an unknown share are NaN."""
    problem, reference, tuned = outcome.problem, outcome.reference, outcome.tuned
    op = ops.registry.get(problem.op)
    moved = op.bytes(problem)
    saving = 1 - 1 / outcome.ratio if outcome.ratio > 0 else math.nan
    share = outcome.share or math.nan
    return {
        "name": outcome.name,
        "op": problem.op,
        "problem": problem.key,
        **problem.dims,
        **{f"{name}_type": word for name, word in problem.dtypes.items()},
        **_layout(problem),
        "device": outcome.device,
        "arch": outcome.arch,
        "us_reference": reference.median_s * _US,
        "us_tuned": tuned.median_s * _US,
        "ratio": outcome.ratio,
        "ratio_low": outcome.low,
        "ratio_high": outcome.high,
        "uplift_pct": 100 * (outcome.ratio - 1),
        "us_saved": (reference.median_s - tuned.median_s) * _US,
        "error_reference_tolerances": reference.worst,
        "error_tuned_tolerances": tuned.worst,
        "verified": "yes" if tuned.verified else "no",
        "kept": "yes" if outcome.kept else "no",
        "reason": outcome.reason,
        "backend_reference": reference.backend,
        "config_reference": config_key(reference.config),
        "kernel_reference": reference.kernel.name,
        "version_reference": reference.version,
        "backend_tuned": tuned.backend,
        "config_tuned": config_key(tuned.config),
        "kernel_tuned": tuned.kernel.name,
        "version_tuned": tuned.version,
        "kernel_changed": "yes" if _changed(outcome) else "no",
        "arith_intensity_flops_per_byte": op.flops(problem) / moved if moved else math.nan,
        "category": _category(problem),
        "call_count": outcome.count,
        "pct_of_total": 100 * share,
        "weighted_us_saved": outcome.saved_s * _US,
        "weighted_uplift_contribution_pct": 100 * share * saving,
        "evaluations": outcome.evaluations,
    }


def _layout(problem: Problem) -> Row:
    """Return the transposes of a row-major GEMM."""
    options = problem.options
    return {column: options[name] for column, name in _LAYOUTS.items() if name in options}


def _changed(outcome: Outcome) -> bool:
    """Return whether another kernel runs than before, by the hash of its code if known."""
    before, after = outcome.reference, outcome.tuned
    if before.kernel.binary_hash and after.kernel.binary_hash:
        return before.kernel.binary_hash != after.kernel.binary_hash
    return (before.backend, before.config) != (after.backend, after.config)


def _category(problem: Problem) -> str:
    if problem.op not in _GEMMS:
        return ""
    op = ops.registry.get(problem.op)
    parameters: dict[str, Parameter] = {**problem.dims, **problem.dtypes}
    return " ".join(
        word for word, kind in categories(problem.op).items() if kind.holds(op, parameters)
    )


def csv_text(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return rows as CSV; NaN becomes an empty cell."""
    return files.csv_text([{k: _cell(value) for k, value in row.items()} for row in rows], names)


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return f"{value:.6g}" if math.isfinite(value) else ("" if math.isnan(value) else str(value))


def dumps(outcomes: Sequence[Outcome]) -> str:
    """Return outcomes as one JSON document, without loss."""
    document = {
        "kernelmark": _KIND,
        "version": codec.VERSION,
        "outcomes": [codec.plain(outcome) for outcome in outcomes],
    }
    return files.json_text(document)


def loads(text: str | bytes) -> tuple[Outcome, ...]:
    """Parse the outcomes that `dumps` wrote."""
    fields = codec.open_envelope(codec.parse(text), _KIND)
    outcomes: tuple[Outcome, ...] = codec.read(fields.get("outcomes"), tuple[Outcome, ...], _KIND)
    return outcomes


def read(folder: TuningFolder) -> tuple[Outcome, ...]:
    """Load the outcomes of a folder from outcomes.json."""
    path, again = outcomes_file(folder), f"kmark tune run {folder.path}"
    try:
        return loads(path.read_bytes())
    except FileNotFoundError:
        raise NothingToDo(f"{folder.path} has no results yet", hint=again) from None
    except OSError as error:
        raise unreadable(path, error) from None
    except CodecError as error:
        raise UsageError(
            prefixed(error.message, f"{path}: "),
            hint=f"{again} writes it anew from {folder.trials}",
        ) from None
