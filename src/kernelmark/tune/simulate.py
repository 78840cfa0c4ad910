"""Simulated spaces: every point was measured before, so a search costs look-ups, not a GPU.

Read from Kernel Tuner cache files, T4 results files, and a compact pair of NAME.json and NAME.npz.
"""

from __future__ import annotations

import gzip
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
from kernelmark.core.result import ConfigValue
from kernelmark.tune.points import Points
from kernelmark.tune.strategies import registry
from kernelmark.tune.strategies.base import Search

ABSURD_MS = 1e15  # old cache files write a failure as a huge time
BROKEN = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError),
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error),
)
_FORMS = "a Kernel Tuner cache, a T4 results file, or NAME.json beside NAME.npz"
_WHOLE = f"perhaps a part of it is missing: write or copy it again; what can be read is {_FORMS}"
UNITS_S = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, eq=False)
class Simulated:
    """A measured space. `times_s` is NaN where a point failed."""

    name: str
    points: Points
    times_s: NDArray[np.float64]
    restrictions: tuple[str, ...] = ()
    constants: Mapping[str, ConfigValue] | None = None

    def seconds(self, point: int) -> float | None:
        """What the point gave; None when it failed."""
        value = float(self.times_s[point])
        return None if math.isnan(value) else value

    @cached_property
    def best_s(self) -> float:
        """The least time of the space."""
        return float(np.nanmin(self.times_s))


def simulate(space: Simulated, search: Search, budget: int, batch: int = 1) -> list[int]:
    """Ask, look up and tell until `budget` points are known; the points in order."""
    known: list[int] = []
    while len(known) < budget:
        asked = search.ask(min(batch, budget - len(known)))
        if not asked:
            break
        for point in asked:
            search.tell(point, space.seconds(point))
        known += asked
    return known


def try_strategy(space: Simulated, strategy: str, *, budget: int, seed: int = 1) -> list[int]:
    """The points that a strategy tries on a measured space, in order; at most `budget`."""
    if budget < 1 or seed < 0:
        raise UsageError(
            f"a search needs a budget above 0 and a seed that is not negative: "
            f"{budget} and {seed} were given",
            hint="for example: budget=100, seed=1",
        )
    return simulate(
        space, registry.get(strategy).begin(space.points, budget=budget, seed=seed), budget
    )


def quality(space: Simulated, known: Sequence[int], after: int | None = None) -> float:
    """Least time of the space / least time among the first `after` points (None: all of them);
    0 when all failed."""
    times = space.times_s[list(known[:after])]
    good = times[~np.isnan(times)]
    return space.best_s / float(good.min()) if len(good) else 0.0


def read(path: str | os.PathLike[str]) -> Simulated:
    """The measured space in a file: a Kernel Tuner cache, T4 results, or the compact form."""
    path = Path(path).expanduser()
    document = _document(path)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    table = path.with_name(f"{name}.npz")
    try:
        if "cache" in document:
            space = _of_cache(name, document)
        elif "results" in document:
            space = _of_t4(name, document)
        elif "params" in document and table.exists():
            space = _of_table(name, document, table)
        else:
            raise CodecError(
                f"{path.name} is no measured space",
                hint=_FORMS,
            )
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
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}",
            hint=f"give {_FORMS}",
        ) from error
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise CodecError(f"{path.name} cannot be read: {error}", hint=_WHOLE) from error
    # Kernel Tuner leaves the last two brackets out while a session is open.
    for tried in (text, text.rstrip().rstrip(",") + "}}"):
        try:
            document = json.loads(tried)
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
        raise ValueError(f"{table.name} does not fit the parameters")
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
    times = [_milliseconds(row.get(objective, row.get("time"))) * 1e-3 for row in rows]
    return _of_rows(name, names, rows, times, document.get("tune_params"))


def _of_t4(name: str, document: Mapping[str, Any]) -> Simulated:
    rows, times = [], []
    unit = document.get("metadata", {}).get("timeunit", "ms")
    for result in document["results"]:
        rows.append(result["configuration"])
        wanted = (result.get("objectives") or ["time"])[0]
        found = [m for m in result.get("measurements", ()) if m["name"] == wanted]
        right = result.get("invalidity", "correct") == "correct" and result.get("correctness", 1)
        if not right or not found:
            times.append(math.nan)
            continue
        factor = UNITS_S[found[0].get("unit") or unit]
        times.append(_milliseconds(found[0]["value"]) * factor)
    names = list(rows[0]) if rows else []
    return _of_rows(name, names, rows, times, None)


def _milliseconds(value: object) -> float:
    """The number, NaN for what is none: failures are written as words or as a huge time."""
    if isinstance(value, (int, float)) and math.isfinite(value) and 0 < value < ABSURD_MS:
        return float(value)
    return math.nan


def _of_rows(
    name: str,
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    times: Sequence[float],
    listed: Mapping[str, Sequence[ConfigValue]] | None,
) -> Simulated:
    """Values in their listed order, or sorted when the file does not list them. The first time
    of a configuration that is there twice."""
    values = []
    for key in names:
        seen = {row[key] for row in rows}
        order = list(dict.fromkeys(listed[key])) if listed else sorted(seen, key=_rank)
        values.append([*(v for v in order if v in seen), *sorted(seen - set(order), key=_rank)])
    codes = [{v: c for c, v in enumerate(column)} for column in values]
    table = np.array([[codes[p][row[k]] for p, k in enumerate(names)] for row in rows], np.int64)
    table, first = np.unique(table.reshape(len(rows), len(names)), axis=0, return_index=True)
    return Simulated(
        name=name,
        points=Points(names, values, table),
        times_s=np.array(times, float)[first],
    )


def _rank(value: ConfigValue) -> tuple[bool, float, str]:
    number = isinstance(value, (int, float))
    return not number, float(value) if isinstance(value, (int, float)) else 0.0, str(value)


def folder(path: Path) -> list[Simulated]:
    """Every measured space in a folder, by name."""
    files = [p for p in sorted(path.iterdir()) if p.name.endswith((".json", ".json.gz"))]
    return [read(p) for p in files]
