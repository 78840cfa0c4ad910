"""Simulated spaces: all points are already measured, so a search needs no GPU.

Formats: Kernel Tuner caches, T4 results, files of Triton's autotuner, and a compact pair of
NAME.json and NAME.npz.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.files import user_path
from kernelmark.core.reason import prefixed
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import ConfigValue, is_time
from kernelmark.tune.strategies import registry
from kernelmark.tune.strategies.base import ONE_AT_A_TIME, Pipeline, Points, Proposals, Search
from kernelmark.workloads.formats.triton import timed_configs
from kernelmark.workloads.source import Fields, opened

BROKEN = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError),
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error),
)
_FORMS = (
    "a Kernel Tuner cache, a T4 results file, Triton's *.autotune.json, or NAME.json beside "
    "NAME.npz"
)
_WHOLE = f"perhaps a part of it is missing: write or copy it again; what can be read is {_FORMS}"
FACTS = {
    "kernel-tuner": FormatFacts(
        versions="Kernel Tuner 96a6abc1 (2026-06)",
        exactness="every configuration by its time; rejected if the objective is neither a time "
        "nor a rate",
        checked="Kernel Tuner's own choice of the best, executed on its caches: the same time",
    ),
    "triton-autotune": FormatFacts(
        versions="Triton 3.9",
        exactness="every configuration, with the parameters that vary",
        checked="a file that Triton's own code wrote: the best config is the same",
    ),
    "t4": FormatFacts(
        versions="T4 results 1.0.0",
        exactness="every configuration by its time; rejected if the objective is neither a time "
        "nor a rate",
        checked="files that Kernel Tuner's own writer made, read as its caches are",
    ),
}
# Files of the T4 benchmark hub contain the misspelling "miliseconds".
UNITS_S = {
    **dict.fromkeys(("s", "seconds"), 1.0),
    **dict.fromkeys(("ms", "milliseconds", "miliseconds"), 1e-3),
    **dict.fromkeys(("us", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanoseconds"), 1e-9),
}
# Objectives that Kernel Tuner computes from the time: they rank configurations like the time does.
_RATES = frozenset(("GFLOP/s", "TFLOP/s", "GFLOPS", "TFLOPS", "GB/s", "TB/s"))


@dataclass(frozen=True, eq=False)
class Simulated:
    """A measured space. `times_s` is NaN where a point failed."""

    name: str
    points: Points
    times_s: NDArray[np.float64]
    restrictions: tuple[str, ...] = ()
    constants: Mapping[str, ConfigValue] | None = None

    def seconds(self, point: int) -> float | None:
        """Return the time of a point, None if it failed."""
        value = float(self.times_s[point])
        return None if math.isnan(value) else value

    @cached_property
    def best_s(self) -> float:
        """The shortest time of the space."""
        return float(np.nanmin(self.times_s))


def simulate(
    space: Simulated, search: Search, budget: int, pipeline: Pipeline = ONE_AT_A_TIME
) -> list[int]:
    """Run a search on recorded times for `budget` points; return the points in order."""
    proposals = Proposals(search, pipeline, budget)
    evaluated: list[int] = []
    while (point := proposals.next()) is not None:
        search.tell(point, space.seconds(point))
        evaluated.append(point)
    return evaluated


def try_strategy(space: Simulated, strategy: str, *, budget: int, seed: int = 1) -> list[int]:
    """Return the points that a strategy tries on a measured space, in order, at most `budget`."""
    if budget < 1 or seed < 0:
        raise UsageError(
            "a search needs a budget above 0 and a seed that is not negative: "
            f"{budget} and {seed} were given",
            hint="for example: budget=100, seed=1",
        )
    return simulate(
        space, registry.get(strategy).begin(space.points, budget=budget, seed=seed), budget
    )


def quality(space: Simulated, evaluated: Sequence[int], after: int | None = None) -> float:
    """Return the shortest time of the space / the shortest of the first `after` points (None: all
    of them); 0 if all failed."""
    times = space.times_s[list(evaluated[:after])]
    good = times[~np.isnan(times)]
    return space.best_s / float(good.min()) if len(good) else 0.0


def read(path: str | os.PathLike[str]) -> Simulated:
    """Load the measured space of a file, in any of the module's formats."""
    path = user_path(path)
    document = _document(path)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    table = path.with_name(f"{name}.npz")
    try:
        if "cache" in document:
            space = _of_cache(name, document)
        elif "results" in document:
            space = _of_t4(name, document)
        elif "configs_timings" in document:
            space = _of_triton(name, document)
        elif "params" in document and table.exists():
            space = _of_table(name, document, table)
        else:
            raise CodecError("it is no measured space", hint=_FORMS)
    except CodecError as error:
        reason = prefixed(error.message, f"{path.name}: ")
        raise CodecError(reason, hint=error.hint) from None
    except BROKEN as error:
        raise CodecError(
            f"{path.name} cannot be read as a measured space: {error!r}", hint=_WHOLE
        ) from error
    if not np.isfinite(space.times_s).any():
        raise CodecError(
            f"{path.name} has no configuration that worked",
            hint="give a file in which at least one configuration has a time",
        )
    return space


def _document(path: Path) -> dict[str, Any]:
    with opened(str(path)) as source:
        data = b"".join(source.chunks())
    if source.complaint:
        raise CodecError(f"{path.name}: cannot be read: {source.complaint}", hint=_WHOLE)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CodecError(f"{path.name}: cannot be read: {error}", hint=_WHOLE) from error
    # Kernel Tuner omits the last two brackets while a session is open.
    for candidate in (text, text.rstrip().rstrip(",") + "}}"):
        try:
            document = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            return document
    raise CodecError(f"{path.name} is no JSON object", hint=_WHOLE)


def _of_table(name: str, document: Mapping[str, Any], table: Path) -> Simulated:
    params = document["params"]
    with np.load(table) as arrays:
        codes, times = arrays["idx"], arrays["time_ms"].astype(float) * 1e-3
    sizes = [len(values) for values in params.values()]
    if codes.shape != (len(times), len(sizes)) or (codes < 0).any() or (codes >= sizes).any():
        raise CodecError(f"{table.name} does not fit the parameters", hint=_WHOLE)
    points = Points(list(params), list(params.values()), codes)
    return Simulated(
        name=name,
        points=points,
        times_s=times,
        restrictions=tuple(document.get("restrictions", ())),
        constants=document.get("const", {}),
    )


def _of_cache(name: str, document: Mapping[str, Any]) -> Simulated:
    rows = list(document["cache"].values())
    names = list(document.get("tune_params_keys") or document["tune_params"])
    objective = document.get("objective", "time")
    if isinstance(objective, list):
        objective = objective[0]
    timed = any("time" in row for row in rows)
    if objective != "time" and not (objective in _RATES and timed):
        raise _no_time(objective)
    times = [math.nan if "__error__" in row else _time_of(row.get("time"), 1e-3) for row in rows]
    return _of_rows(name, names, rows, times, document.get("tune_params"))


def _of_t4(name: str, document: Mapping[str, Any]) -> Simulated:
    rows, times = [], []
    unit = document.get("metadata", {}).get("timeunit", "ms")
    for result in document["results"]:
        rows.append(result["configuration"])
        right = result.get("invalidity", "correct") == "correct" and result.get("correctness", 1)
        times.append(_measured_s(result, unit) if right else math.nan)
    names = list(rows[0]) if rows else []
    return _of_rows(name, names, rows, times, None)


def _of_triton(name: str, document: Mapping[str, Any]) -> Simulated:
    """Return the configs that Triton's autotuner timed, with the parameters that vary."""
    rows, times = [], []
    for config, timing in timed_configs(Fields(document)):
        rows.append(config)
        times.append(_time_of(timing[0], 1e-3))
    every = list(dict.fromkeys(key for row in rows for key in row))
    rows = [{key: row.get(key, "") for key in every} for row in rows]
    names = [key for key in every if len({row[key] for row in rows}) > 1]
    return _of_rows(name, names or every[:1], rows, times, None)


def _measured_s(result: Mapping[str, Any], unit: str) -> float:
    """Return the seconds of a result; NaN without a measurement of its objective."""
    objective = (result.get("objectives") or ["time"])[0]
    measured = {entry["name"]: entry for entry in result.get("measurements", ())}
    own_unit = str(measured.get(objective, {}).get("unit") or "").lower()
    if objective != "time" and own_unit not in UNITS_S:
        if objective not in _RATES or "time" not in measured:
            raise _no_time(objective)
        objective = "time"
    if objective not in measured:
        return math.nan
    factor = UNITS_S.get(str(measured[objective].get("unit") or unit).lower())
    if factor is None:
        raise ValueError(f"the unit of time {measured[objective].get('unit') or unit!r} is unknown")
    return _time_of(measured[objective]["value"], factor)


def _no_time(objective: object) -> CodecError:
    return CodecError(
        f"its objective is {str(objective)[:40]!r}, which is no time",
        hint="give a file that was tuned for time; what is simulated is seconds",
    )


def _time_of(value: object, unit_s: float) -> float:
    """Return seconds, NaN for a failure, which is recorded as text or a huge time."""
    seconds = value * unit_s if isinstance(value, int | float) else math.nan
    return seconds if is_time(seconds) else math.nan


def _of_rows(
    name: str,
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    times: Sequence[float],
    listed: Mapping[str, Sequence[ConfigValue]] | None,
) -> Simulated:
    """Build a space from rows. Values are in `listed` order, else sorted. Of a configuration that
    occurs twice, the first time counts."""
    values = []
    for key in names:
        seen = {row[key] for row in rows}
        order = list(dict.fromkeys(listed[key])) if listed else sorted(seen, key=_rank)
        values.append([*(v for v in order if v in seen), *sorted(seen - set(order), key=_rank)])
    codes = [{v: c for c, v in enumerate(column)} for column in values]
    table = np.array([[codes[p][row[k]] for p, k in enumerate(names)] for row in rows], np.int64)
    table, first = np.unique(table.reshape(len(rows), len(names)), axis=0, return_index=True)
    return Simulated(
        name=name, points=Points(names, values, table), times_s=np.array(times, float)[first]
    )


def _rank(value: ConfigValue) -> tuple[bool, float, str]:
    number = isinstance(value, (int, float))
    return not number, float(value) if isinstance(value, (int, float)) else 0.0, str(value)


def folder(path: Path) -> list[Simulated]:
    """Load all measured spaces of a folder, sorted by name."""
    files = [p for p in sorted(path.iterdir()) if p.name.endswith((".json", ".json.gz"))]
    return [read(p) for p in files]
