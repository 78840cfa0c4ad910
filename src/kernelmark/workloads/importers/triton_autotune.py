"""triton-autotune: times of Triton's autotuner, NAME.autotune.json in its cache (cache_results).

Every config has the median and two quantiles in milliseconds, or one time; inf is a config that
failed. The key has the values that the kernel is tuned by and the dtypes of its arguments, without
names: the file does not show which value is M. As a workload it needs --key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmark.core.errors import CodecError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import ConfigValue, ResultSet, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    build_run,
    fields_of,
    items_of,
    json_with_infinity,
    problem_of,
    unexpected,
)
from kernelmark.workloads.logs import dtypes
from kernelmark.workloads.logs.base import BadLine

_END = ".autotune.json"
_MARK = "configs_timings"
# do_bench flushes the cache before each launch.
_TIMING = Timing(cache=Cache.FLUSH)
_QUANTILES = ("q20_s", "q80_s")
_MS = 1e-3


class TritonAutotune(Importer):
    name = "triton-autotune"
    summary = "*.autotune.json of Triton's cache: every config that its autotuner timed"
    facts = FormatFacts(
        versions="Triton 3.9",
        exactness="every config with its median; the key has no names",
        checked="a file that Triton's own code wrote: the best config is the same",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        return name.endswith(".json") and f'"{_MARK}"'.encode() in head

    def read(self, path: Path, given: Given) -> ResultSet:
        rows = _rows(path, json_with_infinity(path))
        return build_run(path, given, rows, method="Triton do_bench")


def _rows(path: Path, document: object) -> Iterator[Found]:
    problem = _problem(path, fields_of(document, str(path)).get("key"))
    for config, timing in timed_configs(document, str(path)):
        worked = math.isfinite(timing[0])
        quantiles = zip(_QUANTILES, timing[1:], strict=False)
        yield Found(
            problem=problem,
            backend="triton",
            timing=_TIMING,
            config=FrozenDict(config),
            samples_s=(timing[0] * _MS,) if worked else (),
            status=Status.OK if worked else Status.RUNTIME_ERROR,
            error="" if worked else Reason("not-timed", tool="Triton"),
            also={name: ms * _MS for name, ms in quantiles if math.isfinite(ms)},
        )


def timed_configs(
    document: object, place: str
) -> Iterator[tuple[dict[str, ConfigValue], tuple[float, ...]]]:
    """Yield each config with its times in milliseconds, the median first."""
    entries = items_of(fields_of(document, place).get(_MARK), f"{place}: {_MARK}")
    for number, entry in enumerate(entries, 1):
        here = f"{place}: config {number}"
        pair = items_of(entry, here)
        if len(pair) != 2:
            raise unexpected(here, "a config with its times", entry)
        yield _config(fields_of(pair[0], here), here), _times(pair[1], here)


def _config(stored: Mapping[str, Any], place: str) -> dict[str, ConfigValue]:
    values = dict(fields_of(stored.get("kwargs"), f"{place}, kwargs"))
    # Other fields depend on the version of Triton; configs with a hook are not stored.
    values |= {name: value for name, value in stored.items() if name not in ("kwargs", "pre_hook")}
    return {name: _value(value) for name, value in values.items() if value is not None}


def _value(value: object) -> ConfigValue:
    return value if isinstance(value, str | int | float) else str(value)


def _times(value: object, place: str) -> tuple[float, ...]:
    times: list[Any] = value if isinstance(value, list) else [value]
    if not times or any(type(one) not in (int, float) for one in times):
        raise unexpected(place, "a time", value)
    try:
        return tuple(float(one) for one in times)
    except OverflowError:
        raise CodecError(Reason("field-too-large", where=place)) from None


def _problem(path: Path, key: object) -> Problem:
    """Return the problem of a key: `[512, "torch.float16"]` in _matmul.autotune.json is
    triton_matmul key=512 key_2=f16."""
    values: dict[str, str | int | float | bool] = {}
    parts = items_of(key, f"{path}: key")
    if not parts:  # Triton writes no file without a key
        raise CodecError(Reason("field-missing", where=str(path), name="key"))
    for number, part in enumerate(parts, 1):
        values["key" if number == 1 else f"key_{number}"] = _part(part)
    return problem_of(f"triton_{path.name.removesuffix(_END).strip('_')}", values)


def _part(part: object) -> str | int | float | bool:
    if isinstance(part, int | float):
        return part
    try:
        return dtypes.named(str(part))
    except BadLine:
        return str(part)


importer = TritonAutotune()
