"""A made-up cost of made-up tiles: what there is to tune in the fake backend.

Smooth on the whole, with an optimum that moves with the problem, a rugged part that is fixed for
a configuration, and now and then one that does not compile, is wrong, fails, crashes or hangs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from kernelmark.core.frozen import FrozenDict
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
SHARED_BYTES = 96 * 1024  # of the made-up device
_REGISTERS = 160  # for sums, a thread
_RUGGED = 0.06
# One configuration in so many, of those that the smooth part lets through.
_FAULTS = {"wrong": 41, "raise": 83, "crash": 127}
_HANGS = 61  # among those of the largest swizzle


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiled:
    """What tiles come to: `factor` is the time in units of the default's, which an empty config
    takes too; `fault` is "" or a behaviour of the script."""

    factor: float
    fault: str
    resources: Mapping[str, int]


def space() -> Space:
    """Return the same for every problem; where its best point lies is not."""
    return Space(parameters=TILES, default=DEFAULT, forbids=_forbids)


def _forbids(config: Config) -> str | None:
    if int(config["warps"]) * 64 > int(config["tile_m"]) * int(config["tile_n"]):
        return "more threads than elements of the tile"
    return None


def tiled(problem: Problem, config: Config) -> Tiled:
    """Return the cost of a config that names every tile, on a problem of any op."""
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
    """About 1 for the default and 0.6 at the best; distances are in doublings."""
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
    """Numbers that only problem and config decide."""
    text = f"{problem.key} {config_key({name: config[name] for name in TILES})}"
    data = hashlib.sha256(text.encode()).digest()
    names = ("rugged", "wrong", "raise", "crash", "hang")
    return {n: int.from_bytes(data[4 * i : 4 * i + 4], "big") for i, n in enumerate(names)}
