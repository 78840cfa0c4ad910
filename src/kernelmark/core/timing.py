"""Timing: how a case is measured and when measuring stops."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.files import load_toml, user_path
from kernelmark.core.immutable import flag, fraction, not_negative, positive
from kernelmark.core.units import plain_number

MOST_S = 1e6  # 12 days: no launch or measurement takes longer


class Cache(StrEnum):
    """State of the caches at each launch."""

    COLD = "cold"  # rotate argument sets that together exceed the last-level cache
    HOT = "hot"  # use the same argument set for every launch
    FLUSH = "flush"  # evict the last-level cache before each launch


class Timer(StrEnum):
    """The method of timing. `auto` is the most exact one of the device."""

    AUTO = "auto"
    LOOP = "loop"  # a host clock around launches that return when done (CPU)
    CPU = "cpu"  # CPU time of the process around such launches, on one thread
    GRAPH = "graph"  # captured graphs of N and 2N launches
    GATE = "gate"  # device events around launches that are queued behind a gate kernel
    PROFILER = "profiler"  # the vendor's profiler
    OUTSIDE = "outside"  # the clock of another process, by two lengths (kmark judge)
    IREE = "iree-benchmark-module"  # IREE's benchmark program, for the backend iree


class Strain(StrEnum):
    """Background load between launches, to imitate a full model."""

    NONE = "none"
    BANDWIDTH = "bandwidth"
    COMPUTE = "compute"


class Duty(StrEnum):
    """Whether launches follow each other without a pause (steady power) or with idle gaps."""

    SUSTAINED = "sustained"
    BURST = "burst"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The settings of a measurement.

        km.Timing.preset("quick", max_s=2, target_rel_ci=0.02)

    These change what is measured:

    - `cache`: cold, flush or hot, the state of the caches at each launch;
    - `timer`: auto, loop, cpu, graph, gate, profiler or iree-benchmark-module, or outside, that of
      `kmark judge`;
    - `strain`: none, bandwidth or compute, background load between launches;
    - `duty`: sustained, or burst for idle gaps between samples;
    - `threads`: CPU threads; 0 means every core that the process may use.

    These change duration and precision:

    - `processes`: fresh processes per case;
    - `allocations`, `max_allocations`: least and most blocks, each with new allocations;
    - `min_samples`: least samples per block;
    - `min_sample_s`: least duration of a sample, reached by repeating short launches;
    - `target_rel_ci`: stop when the relative half-width of the interval is below this;
    - `max_s`, `warmup_s`: limits for the seconds in timed launches, and of warm-up;
    - `seed`: seed of the inputs, and of the sample that a limit takes.
    """

    cache: Cache = flag(
        Cache.COLD,
        "--cache",
        "Set the cache state before each launch. Default: cold, or that of --timing FILE.",
    )
    timer: Timer = flag(Timer.AUTO, "--timer", "Select the timing method.")
    strain: Strain = flag(
        Strain.NONE,
        "--strain",
        "Run background load between launches, to imitate a full model. Default: none.",
    )
    duty: Duty = flag(
        Duty.SUSTAINED, "--duty", "Launch back to back, or with idle gaps between samples."
    )
    threads: int = flag(
        0, "--threads N", "Use N CPU threads. Default: every usable core.", check=not_negative
    )

    processes: int = flag(
        1, "--processes N", "Measure each case in N fresh processes.", check=positive
    )
    allocations: int = 3
    max_allocations: int = flag(
        20, "--max-blocks N", "Limit the blocks (fresh allocations) of a case in each process."
    )
    min_samples: int = flag(5, "--samples N", "Samples in a block.")
    min_sample_s: float = 0.0005
    target_rel_ci: float = flag(
        0.01,
        "--target-ci FRACTION",
        "Stop when the half-width of the 95 % confidence interval is below this fraction of the "
        "median: 0.02 is 2 %. Default: that of --timing.",
        check=fraction,
    )
    max_s: float = flag(
        2.0,
        "--max-s S",
        "Limit the timed seconds of a case in each process. Default: that of --timing.",
        check=positive,
    )
    warmup_s: float = flag(
        0.5,
        "--warmup-s S",
        "Limit the warm-up seconds of a case in each process.",
        check=not_negative,
    )
    seed: int = flag(
        1, "--seed N", "Seed the random inputs and the sample of --limit.", check=not_negative
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(field.default, str):
                continue
            value = plain_number(getattr(self, field.name))
            whole = isinstance(field.default, int)
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                expected = "a whole number" if whole else "a number"
                raise UsageError(f"timing: {field.name}={value!r} is not {expected}")
            object.__setattr__(self, field.name, value)
        for name, kind in (("cache", Cache), ("timer", Timer), ("strain", Strain), ("duty", Duty)):
            try:
                object.__setattr__(self, name, kind(getattr(self, name)))
            except ValueError:
                choices = ", ".join(str(k) for k in kind)
                shown = repr(getattr(self, name))
                raise UsageError(
                    f"timing: {name}={shown} is unknown", hint=f"known: {choices}"
                ) from None
        for name in ("processes", "allocations", "min_samples"):
            if getattr(self, name) < 1:
                raise UsageError(f"timing: {name} must be at least 1")
        if self.max_allocations < self.allocations:
            raise UsageError(
                f"timing: max_allocations must not be below {self.allocations}, the"
                " blocks that are always measured"
            )
        for name in ("threads", "seed"):
            if getattr(self, name) < 0:
                raise UsageError(f"timing: {name} must be at least 0")
        if not (self.max_s > 0 and self.target_rel_ci > 0 and self.min_sample_s >= 0):
            raise UsageError("timing: --max-s and --target-ci must be positive")
        if not self.warmup_s >= 0:
            raise UsageError("timing: warmup_s must not be negative")
        for name in ("max_s", "warmup_s", "min_sample_s", "target_rel_ci"):
            if not getattr(self, name) < MOST_S:
                raise UsageError(f"timing: {name} must be below {MOST_S:,.0f}")
        for name in ("threads", "processes", "max_allocations", "min_samples", "seed"):
            if not getattr(self, name) < 2**63:  # the limit of integers in a store
                raise UsageError(f"timing: {name} must be below 2^63")

    @property
    def identity(self) -> str:
        """The settings that change what is measured: part of a series' identity in history."""
        return (
            f"cache={self.cache} timer={self.timer} strain={self.strain} "
            f"duty={self.duty} threads={self.threads}"
        )

    @classmethod
    def load(cls, name: str, **changes: object) -> Timing:
        """Return the preset `name`, or the timing in a TOML file, with `changes` to its fields."""
        if not name.endswith(".toml"):
            return cls.preset(name, **changes)
        fields = load_timing_fields(user_path(name))
        preset = fields.pop("preset", "default")
        return cls.preset(preset, **{**fields, **changes})

    @classmethod
    def preset(cls, name: str, **changes: object) -> Timing:
        """Return the preset quick, default or full, with `changes` to its fields."""
        if name not in PRESETS:
            raise UsageError(
                f"unknown timing preset {name!r}",
                hint=f"known: {', '.join(PRESETS)}, or a .toml file",
            )
        names = [field.name for field in dataclasses.fields(cls)]
        for field in changes:
            if field not in names:
                raise _unknown_field("timing", field, names)
        return dataclasses.replace(PRESETS[name], **changes)  # type: ignore[arg-type]


PRESETS: dict[str, Timing] = {
    "quick": Timing(max_allocations=27, max_s=0.4, warmup_s=0.1, target_rel_ci=0.05),
    "default": Timing(),
    "full": Timing(
        processes=3,
        allocations=4,
        max_allocations=40,
        max_s=10.0,
        warmup_s=3.0,
        target_rel_ci=0.005,
    ),
}


def _unknown_field(where: str, name: str, names: Iterable[str]) -> UsageError:
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return UsageError(f"{where}: unknown field {name!r}", hint=f"{meant}known: {', '.join(names)}")


def load_timing_fields(path: Path) -> dict[str, Any]:
    """Return the fields that a TOML file sets, and `preset` if it names one."""
    missing = f"a timing is a TOML file or one of {', '.join(PRESETS)}"
    values = load_toml(path, missing=missing, hint="is the file cut short?")
    defaults = {"preset": "default", **dataclasses.asdict(PRESETS["default"])}
    for name, value in values.items():
        if name not in defaults:
            raise _unknown_field(str(path), name, defaults)
        default = defaults[name]
        kind = str if isinstance(default, str) else int | float
        if isinstance(default, int):
            kind = int
        if isinstance(value, bool) or not isinstance(value, kind):
            raise UsageError(
                f"{path}: {name} = {value!r} has the wrong type",
                hint=f"for example: {name} = {json.dumps(default)}",
            )
    return values
