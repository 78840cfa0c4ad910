"""A scripted backend that runs the whole pipeline without a library: correct results, wrong ones,
crashes, hangs and every other way a case can end, chosen by its config.

On the fake device a launch advances the device's clock; on the CPU it really takes its time.
Results are computed by the op's reference over the whole output, so problems must be small.

A config with tiles has the cost and faults of a synthetic model, for tuning: mostly smooth, with an
optimum that depends on the problem, a rugged part that is fixed per configuration, and a few
configurations that do not compile, are wrong, fail, crash or hang.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kernelmark import ops
from kernelmark.backends._rules import refuse_unknown, wrong_device
from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, OutOfMemory, Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue, KernelInfo, Space, config_key
from kernelmark.core.units import join_commas
from kernelmark.devices.base import ArgumentSet, Device, Stream
from kernelmark.devices.fake import FakeDevice
from kernelmark.host.cache import DiskCache, cache_root, digest
from kernelmark.numerics.floats import Bits, decode, encode, storage
from kernelmark.numerics.generate import Inputs

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
    accumulators = area // (size["warps"] * 32)
    spilled = 4 * max(0, accumulators - _REGISTERS)
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
            "registers": min(255, 24 + accumulators),
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


Behaviour = Literal[
    "ok",
    "wrong",  # every element is off
    "nan",  # the last element is not a number
    "unwritten",  # the last element is never written
    "overrun",  # one byte after the output is written
    "crash",  # the process is killed
    "abort",  # the process aborts
    "hang",  # a launch never returns
    "raise",  # a launch raises
    "oom",  # preparing runs out of device memory
    "memory_hog",  # preparing really uses up host memory, up to a limit it sets itself
    "compile_error",  # the compiler refuses
    "slow_compile",  # only compile_s, which applies to every behaviour
]
# Above this, computing the whole output by the reference takes seconds.
MAX_FLOPS = 1 << 31
_SPIN_S = 0.0005  # a sleep may take about this much longer than requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The behaviour that a config requests. `after` launches succeed before a bad behaviour
    begins."""

    behaviour: Behaviour = "ok"
    time_us: float = 10.0
    noise: float = 0.0  # relative standard deviation of a launch's time
    block_noise: float = 0.0  # the same, but common to all launches of one prepared kernel
    seed: int = 0
    after: int = 0
    compile_s: float = 0.0  # on the first compilation in a cache folder
    hog_bytes: int = 1 << 28
    # The model's tiles: all or none.
    tile_m: int = 0
    tile_n: int = 0
    depth: int = 0
    warps: int = 0
    stages: int = 0
    swizzle: int = 0

    @classmethod
    def read(cls, config: Config) -> Script:
        """Parse the script in a config; raise Unsupported for an unknown name or value."""
        refuse_unknown("fake", config, [field.name for field in fields(cls)])
        behaviours = get_args(Behaviour)
        if (behaviour := config.get("behaviour", "ok")) not in behaviours:
            raise Unsupported(
                f"fake: behaviour is one of {join_commas(behaviours)}, not {behaviour}"
            )
        for field in fields(cls):
            value = config.get(field.name, field.default)
            whole = isinstance(field.default, int)
            if field.name != "behaviour" and not _is_number(value, whole=whole):
                number = "a whole number" if whole else "a number"
                raise Unsupported(f"fake: {field.name}={value!r} in the config is not {number} ≥ 0")
        tiles = [name for name in TILES if config.get(name)]
        if tiles and len(tiles) < len(TILES):
            raise Unsupported(f"fake: give all tile sizes or none: {join_commas(TILES)}")
        values: dict[str, Any] = dict(config)
        return cls(**values)

    def on(self, problem: Problem) -> tuple[Script, Mapping[str, int]]:
        """Return the script with the modelled cost of its tiles on a problem, and the resources
        used."""
        if not self.tile_m:
            return self, {}
        tiles = {name: getattr(self, name) for name in TILES}
        cost = tiled(problem, tiles)
        behaviour = cost.fault if cost.fault and self.behaviour == "ok" else self.behaviour
        changed = {"time_us": self.time_us * cost.factor, "behaviour": behaviour}
        return dataclasses.replace(self, **changed), cost.resources  # type: ignore[arg-type]


def _is_number(value: object, *, whole: bool) -> bool:
    types = int if whole else (int, float)
    return isinstance(value, types) and not isinstance(value, bool) and 0 <= value < math.inf


class FakeKernel(Kernel):
    """Simulates time in `launch`; `collect` computes and writes the result, so that a rotation over
    thousands of argument sets costs nothing."""

    def __init__(
        self,
        problem: Problem,
        script: Script,
        device: Device,
        sets: Sequence[ArgumentSet],
        info: KernelInfo,
        block: int,
    ) -> None:
        self.info = info
        self._problem = problem
        self._script = script
        self._device = device
        self._sets = sets
        self._launches = 0
        self._ended: dict[int, str] = {}
        self._random = np.random.Generator(np.random.PCG64([script.seed, block]))
        self._time_s = script.time_us * 1e-6 * self._factor(script.block_noise)

    def launch(self, stream: Stream, set_index: int) -> None:
        start = time.perf_counter()
        behaviour = self._script.behaviour if self._launches >= self._script.after else "ok"
        self._launches += 1
        if behaviour in _ACTIONS:
            _ACTIONS[behaviour]()
        self._ended[set_index] = behaviour
        self._pass_time(start, self._time_s * self._factor(self._script.noise))

    def collect(self, set_index: int) -> None:
        if set_index not in self._ended:
            return
        behaviour = self._ended[set_index]
        arguments = self._sets[set_index]
        out = arguments[ops.registry.get(self._problem.op).output(self._problem).name]
        data = _spoiled(
            _correct_output(self._problem, self._device, arguments), out.spec.dtype, behaviour
        ).view(np.uint8)
        self._device.write(out.buffer, out.offset, data)
        if behaviour == "overrun":
            past = np.zeros(1, np.uint8)
            self._device.write(out.buffer, out.offset + out.spec.nbytes, past)

    def _factor(self, spread: float) -> float:
        return float(np.exp(spread * self._random.standard_normal())) if spread else 1.0

    def _pass_time(self, start: float, seconds: float) -> None:
        if isinstance(self._device, FakeDevice):
            self._device.advance(seconds)
            return
        if seconds > 2 * _SPIN_S:
            time.sleep(seconds - _SPIN_S)
        while time.perf_counter() < start + seconds:
            pass

    def close(self) -> None:
        self._sets = ()


class FakeBackend(Backend):
    name = "fake"
    summary = "scripted times, answers and failures, for tests and drills"
    device_kinds = ("fake", "cpu")
    supports_examples = FrozenDict({"fake": ("*",), "cpu": ("*",)})

    def __init__(self) -> None:
        self._prepared: Counter[tuple[str, str]] = Counter()

    def available(self) -> str | None:
        return None

    def version(self) -> str:
        return "1"

    def libraries(self) -> dict[str, str]:
        return {}

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        wrong = wrong_device(self.name, self.device_kinds, info)
        if wrong is not None:
            return wrong
        op = ops.registry.get(problem.op)
        flops = max(op.flops(problem), op.output(problem).count)
        if flops > MAX_FLOPS:
            return Reason(
                f"fake computes the whole output by the reference, and {problem.op}"
                f" has {flops} operations, more than {MAX_FLOPS}"
            )
        return None

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        """Return the synthetic tiles; the default takes as long as `{}`."""
        return space()

    def compile(self, problem: Problem, config: Config, info: DeviceInfo) -> KernelInfo:
        """Take `compile_s` once per problem and config, like a compiler with a disk cache."""
        script, resources = Script.read(config).on(problem)
        name = f"fake_{script.behaviour}"
        if script.behaviour == "compile_error":
            raise CompileError(f"fake: {script.behaviour}, as the config demands")
        if not script.compile_s:
            return KernelInfo(name=name, resources=resources)
        cache = DiskCache(cache_root() / "fake", 1 << 20)
        key = digest(problem.key, config_key(config))
        if cache.get(key) is not None:
            return KernelInfo(name=name, cached=True, resources=resources)
        time.sleep(script.compile_s)
        cache.put(key, b"compiled")
        return KernelInfo(name=name, compile_s=script.compile_s, resources=resources)

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        reason = self.supports(problem, device.info)
        if reason is not None:
            raise Unsupported(reason)
        script, _ = Script.read(config).on(problem)
        info = self.compile(problem, config, device.info)
        if script.behaviour == "oom":
            raise OutOfMemory(f"fake: {script.behaviour}, as the config demands")
        if script.behaviour == "memory_hog":
            _hog(script.hog_bytes)
        # Each preparation of a case is a new block; the sequence is the same in every process.
        case = problem.key, config_key(config)
        self._prepared[case] += 1
        return FakeKernel(problem, script, device, sets, info, self._prepared[case])


class _DeviceInputs(Inputs):
    """Inputs read back from a device instead of generated."""

    def __init__(self, values: Mapping[str, NDArray[np.float64]]) -> None:
        self._values = values

    def take(self, name: str, where: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._values[name][where]

    def run(self, name: str, start: int, count: int) -> NDArray[np.float64]:
        return self._values[name][start : start + count]


def _correct_output(
    problem: Problem, device: Device, arguments: ArgumentSet
) -> NDArray[np.float64]:
    """Return the correct output, from the inputs in the device's memory."""
    op = ops.registry.get(problem.op)
    values: dict[str, NDArray[np.float64]] = {}
    for spec in op.tensors(problem):
        if spec.role == "in":
            tensor = arguments[spec.name]
            data = device.read(tensor.buffer, tensor.offset, spec.nbytes)
            if spec.type.bits < 8:  # two per byte, the first in the low half
                data = np.stack([data & 15, data >> 4], axis=-1).ravel()[: spec.count]
            values[spec.name] = decode(data.view(storage(spec.dtype)), spec.dtype)
    everywhere = np.arange(op.output(problem).count, dtype=np.int64)
    return op.reference(problem, _DeviceInputs(values), everywhere).value


def _spoiled(values: NDArray[np.float64], dtype_name: str, behaviour: str) -> Bits:
    """Return the result as bits of the output's dtype, made wrong according to `behaviour`.

    Integers have no NaN: their smallest value replaces it."""
    if behaviour == "wrong":
        values = values - np.where(values > 0, 1, -1) * np.maximum(1, np.abs(values) / 2)
    elif behaviour == "nan":
        no_nan = dtype(dtype_name).kind == "int"
        values[-1] = -dtype(dtype_name).max_value - 1 if no_nan else np.nan
    bits = encode(values, dtype_name)
    return bits[:-1] if behaviour == "unwritten" else bits


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    while True:
        time.sleep(3600)


def _raise() -> None:
    raise RuntimeError("fake: the launch fails, as the config asks")


_ACTIONS: dict[str, Callable[[], None]] = {
    "crash": _kill,
    "abort": os.abort,
    "hang": _hang,
    "raise": _raise,
}


def _hog(nbytes: int) -> None:
    """Really run out of host memory, under a temporary limit so that other processes are not
    affected: at most an existing limit and half of the free memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    room = min(nbytes, os.sysconf("SC_AVPHYS_PAGES") * resource.getpagesize() // 2)
    limits = [used + room, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    blocks = []
    try:
        while True:
            blocks.append(np.ones(1 << 20, np.uint8))
    finally:
        blocks.clear()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


backend = FakeBackend()
