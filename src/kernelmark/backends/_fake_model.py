"""The synthetic cost model of tiles that the fake backend offers for tuning.

Mostly smooth, with an optimum that depends on the problem, a rugged part that is fixed per
configuration, and a few configurations that do not compile, are wrong, fail, crash or hang.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ConfigValue, config_key
from kernelmark.core.space import Space

TILES: Mapping[str, tuple[ConfigValue, ...]] = FrozenDict(
    {
        "tile_m": (16, 32, 64, 128, 256),
        "tile_n": (16, 32, 64, 128, 256),
        "depth": (16, 32, 64),
        "warps": (1, 2, 4, 8),
        "stages": (1, 2, 3, 4),
        "swizzle": (1, 2, 4),
    }
)
DEFAULT: Config = FrozenDict(
    {"tile_m": 32, "tile_n": 32, "depth": 16, "warps": 4, "stages": 1, "swizzle": 1}
)
SHARED_BYTES = 96 * 1024  # of the fake device
_REGISTERS = 160  # accumulators per thread
_RUGGED = 0.06
# One configuration in this many has the fault.
_FAULTS = {"wrong": 41, "raise": 83, "crash": 127}
_HANGS = 61  # one in this many of those with the largest swizzle


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiled:
    """The modelled cost of a config: `factor` is the time relative to the default's, which is also
    that of an empty config; `fault` is "" or a behaviour of the script."""

    factor: float
    fault: str
    resources: Mapping[str, int]


def space() -> Space:
    """Return the space, which is the same for every problem; its optimum is not."""
    return Space(parameters=TILES, default=DEFAULT, forbids=_forbids)


def _forbids(config: Config) -> str | None:
    if int(config["warps"]) * 64 > int(config["tile_m"]) * int(config["tile_n"]):
        return "more threads than elements of the tile"
    return None


def tiled(problem: Problem, config: Config) -> Tiled:
    """Return the cost of a config that has every tile parameter, on a problem of any op."""
    size = {name: int(config[name]) for name in TILES}
    area = size["tile_m"] * size["tile_n"]
    staged = (size["tile_m"] + size["tile_n"]) * size["depth"] * 2 * size["stages"]
    held = area // (size["warps"] * 32)
    spilled = 4 * max(0, held - _REGISTERS)
    draws = _draws(problem, config)
    fault = next((name for name, one_in in _FAULTS.items() if draws[name] % one_in == 0), "")
    if size["swizzle"] == 4 and draws["hang"] % _HANGS == 0:
        fault = "hang"
    if staged > SHARED_BYTES:
        fault = "compile_error"
    factor = _smooth(problem, size) * (1 + 4 * spilled / 1024) * _rugged(draws)
    own = {name: int(DEFAULT[name]) for name in TILES}
    return Tiled(
        factor=factor / (_smooth(problem, own) * _rugged(_draws(problem, DEFAULT))),
        fault=fault if config_key(config) != config_key(DEFAULT) else "",
        resources={
            "registers": min(255, 24 + held),
            "stack_bytes": spilled,
            "shared_bytes": staged,
        },
    )


def _rugged(draws: Mapping[str, int]) -> float:
    return 1 + _RUGGED * (draws["rugged"] % 1000 / 1000 - 0.5)


def _smooth(problem: Problem, size: Mapping[str, int]) -> float:
    """Return the smooth part: about 1 for the default and 0.6 at the optimum; distances are
    log2."""
    sizes = sorted(problem.dims.values(), reverse=True)[:3]
    rows, columns, deep = (math.log2(max(1, value)) for value in (*sizes, 1, 1, 1)[:3])
    best = {
        "tile_m": min(8.0, 4.5 + rows / 5),
        "tile_n": min(8.0, 4.0 + columns / 4),
        "depth": min(6.0, 4.0 + deep / 6),
        "warps": 2.0,
        "stages": math.log2(3),
        "swizzle": 1.0,
    }
    weight = {"tile_m": 0.9, "tile_n": 0.7, "depth": 0.5, "warps": 0.6, "stages": 1.0}
    away = sum(
        weight.get(name, 0.2) * (math.log2(size[name]) - middle) ** 2
        for name, middle in best.items()
    )
    return 0.6 * (1 + away / 9)


def _draws(problem: Problem, config: Config) -> dict[str, int]:
    """Return pseudo-random numbers determined by problem and config."""
    text = f"{problem.key} {config_key({name: config[name] for name in TILES})}"
    data = hashlib.sha256(text.encode()).digest()
    names = ("rugged", "wrong", "raise", "crash", "hang")
    return {n: int.from_bytes(data[4 * i : 4 * i + 4], "big") for i, n in enumerate(names)}
