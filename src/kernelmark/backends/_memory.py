"""Memory: measured times of a backend's configs on other problems and GPUs, and the prediction of
their times on a new problem. The prediction is the prior of a search, and chooses the default
config of a backend that ships such times.

A file of it is JSON, gzipped if its name ends in .gz. Configs are numbered, because hundreds of
problems share a few dozen.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.files import file_unreadable, read_whole, write_whole
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ConfigValue, Space, config_key, is_time, split_config

FORMAT = "kernelmark memory 1"
SHIPPED = Path(__file__).parent / "_priors"
# A prediction is the mean over the nearest problems; weights fall with this power of the distance.
_NEAREST, _STEEPNESS = 16, 4
# A config counts as this much slower than the best, in natural logarithms, until it was measured
# nearby, with a weight of this part of that of the nearest problem.
_UNKNOWN, _DOUBT = 0.5, 0.1
_OTHER_DTYPE, _OTHER_ARCH = 0.5, 2.0  # doublings that these differences count as
_MINOR = frozenset(("alpha", "beta", "bias", "scale", "layout"))  # options that change few times


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The configs that worked on a problem, with their times."""

    problem: Problem
    backend: str
    arch: str
    times: Mapping[str, tuple[Config, float]]  # by config_key


def doublings(value: float, other: float) -> float:
    """Return the distance between two sizes in doublings."""
    if value <= 0 or other <= 0:
        return abs(value - other)
    return abs(math.log2(value / other))


def apart(problem: Problem, other: Problem) -> float:
    """Return the distance between two problems in doublings of their sizes, infinite if their
    times cannot be compared."""
    if problem.op != other.op or problem.dims.keys() != other.dims.keys():
        return math.inf
    options, others = problem.options, other.options
    if any(options.get(n) != others.get(n) for n in {*options, *others} - _MINOR):
        return math.inf
    square = sum(doublings(size, other.dims[n]) ** 2 for n, size in problem.dims.items())
    for name, kind in problem.dtypes.items():
        if (another := other.dtypes.get(name)) != kind:
            if another is None or dtype(another).bits != dtype(kind).bits:
                return math.inf
            square += _OTHER_DTYPE**2
    return math.sqrt(square)


def predicted(
    problem: Problem, arch: str, searches: Iterable[Searched], space: Space | None = None
) -> list[tuple[Config, float]]:
    """Return the configs of these searches, with the logarithm of the time on `problem` that is
    predicted relative to the best, best first; with `space`, as its configs."""
    near = []
    for search in searches:
        distance = apart(problem, search.problem) + _OTHER_ARCH * (search.arch != arch)
        if search.times and math.isfinite(distance):
            near.append((distance, search.problem.key, search))
    near.sort(key=lambda item: item[:2])
    fits: dict[str, Config | None] = {}
    configs: dict[str, Config] = {}
    slowdown: dict[str, float] = {}
    weights: dict[str, float] = {}
    for distance, _, search in near[:_NEAREST]:
        weight = ((1 + near[0][0]) / (1 + distance)) ** _STEEPNESS
        best_s = min(seconds for _, seconds in search.times.values())
        for key, (config, seconds) in search.times.items():
            if space is not None and key not in fits:
                fits[key] = fitted(config, space)
            own = config if space is None else fits[key]
            if own is None:
                continue
            own_key = config_key(own)
            configs.setdefault(own_key, own)
            slowdown[own_key] = slowdown.get(own_key, 0.0) + weight * math.log(seconds / best_s)
            weights[own_key] = weights.get(own_key, 0.0) + weight
    means = {key: (slowdown[key] + _DOUBT * _UNKNOWN) / (weights[key] + _DOUBT) for key in configs}
    return [(configs[key], means[key]) for key in sorted(means, key=lambda key: (means[key], key))]


def fitted(config: Config, space: Space) -> Config | None:
    """Return the config of `space` that is the same kernel as `config`, or the nearest one: missing
    parameters get their defaults, sizes the nearest ones. None if it is not legal."""
    whole = {**space.default, **config}
    if whole.keys() != space.parameters.keys():
        return None
    chosen = {name: nearest(whole[name], values) for name, values in space.parameters.items()}
    legal = space.canonical(FrozenDict(chosen))
    if any(value not in space.parameters[name] for name, value in legal.items()):
        return None
    return legal if space.forbids(legal) is None else None


def nearest(value: ConfigValue, values: Sequence[ConfigValue]) -> ConfigValue:
    """Return `value` if it is one of `values` or no number, else the nearest of them in
    doublings."""
    if value in values or isinstance(value, str | bool):
        return value
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return min(numbers, key=lambda v: doublings(v, value), default=value)


def guess(backend: str, problem: Problem, info: DeviceInfo, space: Callable[[], Space]) -> Config:
    """Return the config that the shipped times predict to be the best; empty if none is shipped for
    the architecture, or for problems like this one."""
    searches = shipped(backend, info.arch)
    if not any(math.isfinite(apart(problem, search.problem)) for search in searches):
        return FrozenDict()
    best = predicted(problem, info.arch, searches, space())
    return best[0][0] if best else FrozenDict()


def of_backend(search: Searched, backend: str) -> list[Searched]:
    """Return the times of one backend of a search of several, [] if it has none."""
    if search.backend == backend:
        return [search] if search.times else []
    own = {}
    for config, seconds in search.times.values():
        name, part = split_config(config)
        if name == backend:
            own[config_key(part)] = part, seconds
    return [replace(search, backend=backend, times=own)] if own else []


def merged(searches: Iterable[Searched]) -> list[Searched]:
    """Return one search per backend, architecture and problem, with the last time of a config."""
    whole: dict[tuple[str, str, str], Searched] = {}
    for search in searches:
        key = search.backend, search.arch, search.problem.key
        if key in whole:
            search = replace(search, times={**whole[key].times, **search.times})
        whole[key] = search
    return list(whole.values())


# -- files


def save(path: Path, searches: Iterable[Searched]) -> None:
    """Write the times to a file."""
    numbers: dict[str, int] = {}
    configs: list[Config] = []
    rows: list[dict[str, Any]] = []
    for search in searches:
        for key, (config, _) in search.times.items():
            if key not in numbers:
                numbers[key] = len(configs)
                configs.append(config)
        rows.append(
            {
                "problem": search.problem.key,
                "backend": search.backend,
                "arch": search.arch,
                "configs": [numbers[key] for key in search.times],
                "us": [float(f"{1e6 * seconds:.4g}") for _, seconds in search.times.values()],
            }
        )
    lines = [f' "format": {json.dumps(FORMAT)}', _lines("configs", map(dict, configs))]
    lines.append(_lines("problems", rows))
    data = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
    write_whole(path, gzip.compress(data, 9, mtime=0) if path.name.endswith(".gz") else data)


def _lines(name: str, items: Iterable[Any]) -> str:
    rows = ",\n".join(json.dumps(item, separators=(",", ":")) for item in items)
    return f' "{name}": [\n{rows}\n ]'


def load(path: Path) -> list[Searched]:
    """Read a file; raise CodecError if it is not one, or incomplete."""
    try:
        data = read_whole(path)
        if path.name.endswith(".gz"):
            data = gzip.decompress(data)
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
        configs = [FrozenDict(config) for config in document["configs"]]
        keys = [config_key(config) for config in configs]
        return [_searched(row, configs, keys) for row in document["problems"]]
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UsageError(file_unreadable(path, error), hint="name another file") from None
    except (LookupError, TypeError, ValueError, AttributeError, EOFError, OSError, zlib.error) as e:
        raise CodecError(
            f"{path} is no file of memory, or incomplete: {str(e) or type(e).__name__}",
            hint="delete it, or name a file that 'kmark tune memory -o FILE' wrote",
        ) from None


def _searched(row: Mapping[str, Any], configs: Sequence[Config], keys: Sequence[str]) -> Searched:
    times = {}
    for number, us in zip(row["configs"], row["us"], strict=True):
        if not is_time(us):
            raise ValueError(f"{us!r} is no time")
        times[keys[number]] = configs[number], us * 1e-6
    return Searched(
        problem=ops.parse(row["problem"]), backend=row["backend"], arch=row["arch"], times=times
    )


@functools.cache
def shipped(backend: str, arch: str) -> tuple[Searched, ...]:
    """Return the times that the package ships for a backend on an architecture."""
    path = SHIPPED / f"{backend}-{arch.rstrip('af')}.json.gz"
    return tuple(load(path)) if path.exists() else ()
