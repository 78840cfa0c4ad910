"""Times of a designed set of Triton configs on hundreds of shapes: the prior that is shipped.

    python benchmarks/gpu/prior.py --seed 1 --minutes 7 -o prior-sm_90.json.gz     collect
    python benchmarks/gpu/prior.py --check --seed 2 --minutes 4 [--prior FILE]     on unseen shapes
    python benchmarks/gpu/prior.py --ship prior-sm_90.json.gz     no GPU: put it into the package
    python benchmarks/gpu/prior.py --dry-run --seed 1     no GPU: what would be compiled and timed

`--check` compares, on shapes that are not in the prior, the default config by the prior and the
default by rules with the best of a search, and writes benchmarks/results/gpu_prior.json.

One process times, the others compile. Configs are shared over shapes so that a kernel is compiled
once a dtype and divisibility: the group of rows, which changes nothing in the order of tiles where
there are fewer rows, is always the largest, and persistent kernels always start a program on every
SM. Each config is timed with a cold cache on a few rotated argument sets, in one graph, and its
output is compared with that of the default config in some positions.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _gpu import gpu_info

from kernelmark import ops
from kernelmark.backends import _memory
from kernelmark.backends.triton import attention, gemm, launch
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, config_key
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import Timer
from kernelmark.devices import registry as devices
from kernelmark.devices.base import Tensor
from kernelmark.gpu.architectures import absent
from kernelmark.numerics.floats import decode, storage
from kernelmark.tune.evaluate import static_reason
from kernelmark.tune.strategies import registry as strategies
from kernelmark.tune.strategies.base import Points, Search
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_prior.json"
# n and k of the layers of served models of 0.5 to 70 billion parameters.
SERVED = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (8192, 8192)),
    *((57344, 8192), (8192, 28672), (4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)),
    *((7168, 5120), (5120, 5120), (55296, 5120), (5120, 27648), (1152, 896), (9728, 896)),
    *((2048, 1536), (17920, 1536), (1536, 8960), (2560, 2048), (16384, 2048), (2048, 8192)),
    *((2112, 7168), (7168, 2048), (7168, 16384), (4096, 7168), (24576, 1536), (5120, 2880)),
    *((128256, 4096), (12288, 4096), (22016, 4096), (4096, 11008), (15360, 5120)),
)
ALIGNED = (16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768)
HEADS = ((32, 8), (64, 8), (16, 16), (32, 32), (48, 8), (16, 2), (32, 4), (64, 16))
MOST_FLOPS = 4e11
WIDE, PER_SHAPE = 2.2, 56  # configs of a shape: estimates within this of the least, at most so many
SAMPLE_S = 0.0003
SLOW = 2.0  # of the best so far: timed once only
AT_ONCE, LEAST_TIMES = 12, 10  # configs of a shape
MOST_ERRORS = 20
SHIPPED_WITHIN = 2.5  # of the best of a shape
ROUND = 16  # candidates of a search that are compiled together


def draw_gemm(random: np.random.Generator) -> Problem:
    """A GEMM of a served model, or of random n and k; m is small, aligned or of a prefill."""
    while True:
        kind = random.choice(3, p=(0.42, 0.23, 0.35))
        m = (
            int(_log_uniform(random, 1, 777))
            if kind == 0
            else int(random.choice(ALIGNED))
            if kind == 1
            else _rounded(_log_uniform(random, 778, 8192), 64)
        )
        if random.random() < 0.6:
            n, k = SERVED[random.integers(len(SERVED))]
        else:
            n = _rounded(_log_uniform(random, 128, 32768), 128)
            k = _rounded(_log_uniform(random, 256, 16384), 128)
        types = random.choice(3, p=(0.45, 0.2, 0.35))
        kinds = ("a=bf16 b=bf16", "a=f16 b=f16", "a=f8e4m3 b=f8e4m3 c=bf16")[types]
        tb = "t" if types == 2 or random.random() < 0.75 else "n"
        if 2 * m * n * k <= MOST_FLOPS:
            return ops.parse(f"gemm m={m} n={n} k={k} {kinds} tb={tb}")


def draw_attention(random: np.random.Generator) -> Problem:
    """Causal prefill with grouped heads, or one query a sequence (decode)."""
    while True:
        query, kv = HEADS[random.integers(len(HEADS))]
        dim = int(random.choice((64, 128), p=(0.25, 0.75)))
        decode_only = random.random() < 0.3
        batch = int(2 ** random.integers(0, 8 if decode_only else 4))
        seq = _rounded(_log_uniform(random, 256, 16384), 64)
        seqs = f"seq_q=1 seq_kv={seq}" if decode_only else f"seq={seq}"
        causal = "no" if decode_only or random.random() < 0.15 else "yes"
        rows = 1 if decode_only else seq
        if 4 * batch * query * rows * seq * dim <= 2 * MOST_FLOPS and batch * kv * seq < 2**21:
            return ops.parse(
                f"attention batch={batch} heads_q={query} heads_kv={kv} {seqs} dim={dim}"
                f" dtype=bf16 causal={causal}"
            )


def _log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(random.uniform(math.log(low), math.log(high + 1))))


def _rounded(value: float, step: int) -> int:
    return max(step, round(value / step) * step)


def shapes(seed: int, count: int) -> list[Problem]:
    """Distinct problems, every eighth of attention."""
    random = np.random.default_rng(seed)
    drawn: dict[str, Problem] = {}
    while len(drawn) < count:
        draw = draw_attention if len(drawn) % 8 == 7 else draw_gemm
        problem = draw(random)
        drawn.setdefault(problem.key, problem)
    return list(drawn.values())


# -- the design


def designed(problem: Problem, info: DeviceInfo, random: np.random.Generator) -> list[Config]:
    """The configs to time on a problem: its default by rules, then the most promising ones by an
    estimate with some noise, so that neighbouring shapes also have different ones."""
    module = gemm if problem.op == "gemm" else attention
    space = module.space(problem, info)
    default = module.default(problem, info)
    estimated: list[tuple[float, str, Config]] = []
    for change in _gemm_design(problem) if module is gemm else _attention_design(problem):
        config = FrozenDict({**default, **{n: v for n, v in change.items() if n in default}})
        known = all(config[name] in space.parameters.get(name, ()) for name in config)
        if known and space.forbids(config) is None and config != default:
            cost = _estimate(problem, config, info)
            estimated.append((cost, config_key(config), config))
    estimated.sort()
    least = estimated[0][0] if estimated else 0.0
    jitter = random.lognormal(0, 0.2, len(estimated))
    kept = [
        (cost * noise, key, config)
        for (cost, key, config), noise in zip(estimated, jitter, strict=True)
        if cost <= WIDE * least
    ]
    return [default, *(config for _, _, config in sorted(kept)[: PER_SHAPE - 1])]


TILES = (
    *((16, 32, (4,)), (16, 64, (4,)), (16, 128, (4,)), (16, 256, (4,)), (32, 32, (4,))),
    *((32, 64, (4,)), (32, 128, (4,)), (32, 256, (4,)), (64, 32, (4,)), (64, 64, (4,))),
    *((64, 128, (4,)), (64, 256, (4, 8)), (128, 64, (4, 8)), (128, 128, (4, 8))),
    *((128, 256, (8,)), (256, 64, (8,)), (256, 128, (8,))),
)


GEMM = (
    *("block_m", "block_n", "block_k", "group_m", "split_k", "num_warps", "num_stages"),
    *("persistent", "swap", "fused_sum"),
)


def _gemm_design(problem: Problem) -> Iterator[dict[str, Any]]:
    bits = 8 if problem.dtypes["a"].startswith("f8") else 16
    m, k = problem.dims["m"], problem.dims["k"]
    for block_m, block_n, warps in TILES:
        large = block_m * block_n > 64 * 128
        depths = (64, 128) if bits == 16 else (128,) if large else (128, 256)
        for block_k in depths:
            for num_warps in warps:
                for stages in (3, 4) if large else (3, 5):
                    group = gemm._least_group(m, block_m, 8)
                    sizes = (block_m, block_n, block_k, group, 1, num_warps, stages)
                    tile = dict(zip(GEMM, (*sizes, False, False, False), strict=True))
                    yield tile
                    if block_m >= 64:
                        yield {**tile, "persistent": True}
                    elif block_n >= 64:
                        yield {**tile, "swap": True}
                    for split in (2, 4, 8, 16):
                        if gemm._least_split(k, split, block_k) != split:
                            continue
                        yield {**tile, "split_k": split}
                        if not large and stages == 3 and split < 16:
                            yield {**tile, "split_k": split, "fused_sum": True}


def _attention_design(problem: Problem) -> Iterator[dict[str, Any]]:
    columns, stages = (32, 64, 128), (2, 3, 4)
    if problem.dims["seq_q"] == 1:
        names = ("block_m", "block_n", "num_warps", "num_stages", "split_kv")
        values = itertools.product((16,), columns, (2, 4), stages, (1, 2, 4, 8, 16, 32, 64))
    else:
        names = ("block_m", "block_n", "num_warps", "num_stages", "descriptors")
        values = itertools.product((64, 128), columns, (4, 8), stages, (True, False))
    yield from (dict(zip(names, row, strict=True)) for row in values)


def _estimate(problem: Problem, config: Config, info: DeviceInfo) -> float:
    """The relative time of a config by the rule that defaults are chosen with."""
    if problem.op == "gemm":
        tile = int(config["block_m"]), int(config["block_n"]), int(config["split_k"])
        return float(gemm._cost(tile, problem, info.units))
    split = int(config["split_kv"])
    if not split:
        return 1.0
    programs = split * problem.dims["batch"] * problem.dims["heads_kv"]
    return 1 + abs(math.log2(programs / (2 * info.units))) / 4


# -- kernels


def planned(problem: Problem, config: Config, info: DeviceInfo) -> launch.KernelPlan:
    """The launches of a config, by kernels that other shapes have too."""
    module = gemm if problem.op == "gemm" else attention
    if problem.op == "gemm":
        config = FrozenDict({**config, "group_m": 8})
    plan = module.plan(problem, config, info)
    return dataclasses.replace(plan, calls=tuple(_shared(call, info) for call in plan.calls))


def _shared(call: launch.KernelCall, info: DeviceInfo) -> launch.KernelCall:
    if "PROGRAMS" not in call.constants:
        return call
    constants = {**call.constants, "PROGRAMS": info.units}
    return dataclasses.replace(call, constants=constants, grid=(info.units, 1, 1))


def kernel_id(call: launch.KernelCall) -> str:
    parts = (call.arguments, sorted(call.constants.items()), sorted(call.options.items()))
    return f"{call.function.__name__} {parts}"


Keyed = tuple[Config, tuple[str, ...]]  # a config, and the kernels that it needs


def keyed(problem: Problem, configs: Sequence[Config], info: DeviceInfo) -> list[Keyed]:
    """These configs with their kernels, without those that no plan can be made from."""
    made = []
    for config in configs:
        try:
            calls = planned(problem, config, info).calls
        except KernelmarkError:
            continue
        made.append((config, tuple(kernel_id(call) for call in calls)))
    return made


def design(job: tuple[str, int, DeviceInfo]) -> list[Keyed]:
    """The design of a problem, in a worker."""
    key, seed, info = job
    problem = ops.parse(key)
    return keyed(problem, designed(problem, info, np.random.default_rng(seed)), info)


@dataclass(frozen=True)
class Unit:
    """A kernel to compile: that of a call of a config."""

    key: str
    problem: str
    config: Config
    call: int


def build(job: tuple[Unit, DeviceInfo]) -> tuple[str, launch.BuiltKernel | None]:
    """Compile, in a worker; None where the compiler fails."""
    unit, info = job
    try:
        plan = planned(ops.parse(unit.problem), unit.config, info)
        return unit.key, plan.calls[unit.call].build(info.arch)
    except KernelmarkError:
        return unit.key, None


class Kernels:
    """Kernels compiled by other processes, the most used ones first."""

    def __init__(self, info: DeviceInfo, workers: Any) -> None:
        self._info = info
        self._workers = workers
        self.built: dict[str, launch.BuiltKernel | None] = {}
        self._asked: set[str] = set()
        self._results: list[Any] = []

    def ask(self, wanted: Sequence[tuple[Problem, Sequence[Keyed]]]) -> None:
        """Enqueue what these need and nobody has asked for yet."""
        uses: Counter[str] = Counter()
        units: dict[str, Unit] = {}
        for problem, configs in wanted:
            for config, keys in configs:
                uses.update(keys)
                for index, key in enumerate(keys):
                    if key not in self._asked:
                        units.setdefault(key, Unit(key, problem.key, config, index))
        self._asked |= set(units)
        jobs = [(units[key], self._info) for key in sorted(units, key=lambda key: -uses[key])]
        self._results.append(self._workers.imap_unordered(build, jobs))

    def collect(self) -> None:
        """Take what is compiled by now."""
        for results in self._results:
            while True:
                try:
                    key, kernel = results.next(timeout=0)
                except (multiprocessing.TimeoutError, StopIteration):
                    break
                self.built[key] = kernel

    @property
    def pending(self) -> int:
        return len(self._asked) - len(self.built)

    def compiled(self, keys: Sequence[str]) -> bool:
        return all(key in self.built for key in keys)

    def fit(self, keys: Sequence[str]) -> bool:
        """Whether these could be compiled, and none spills."""
        kernels = [self.built[key] for key in keys]
        return all(k is not None and not static_reason(k.resources, self._info) for k in kernels)

    def serve(self) -> None:
        """Let launches use these kernels: reading one from Triton's cache takes 10 ms."""
        by_arguments = self.built

        def build_of(function: Any, arguments: Any, constants: Any, options: Any, arch: str) -> Any:
            call = launch.KernelCall(
                function=function,
                arguments=arguments,
                values=(),
                constants=constants,
                options=options,
                grid=(1, 1, 1),
            )
            return by_arguments[kernel_id(call)]

        launch.build = build_of


# -- timing


@dataclass
class Task:
    """A problem, what is to be timed on it yet, and the times so far."""

    problem: Problem
    left: list[Keyed] = field(default_factory=list)
    times: dict[str, tuple[Config, float]] = field(default_factory=dict)
    best_s: float = math.inf
    expected: np.ndarray | None = None


class Bench:
    """Times configs in one process. Tensors of all problems are windows of a few large buffers."""

    def __init__(self, name: str, kernels: Kernels) -> None:
        kind, _, index = name.partition(":")
        self.device = devices.get(kind).open(int(index or 0))
        self.info = self.device.info
        self._kernels = kernels
        self.errors = 0  # in a row; after an illegal access every call of the process fails
        self._inputs: dict[str, Any] = {}
        self._output = self.device.allocate(3 * 2**29)
        self._input_bytes = 3 * 2**29
        kernels.serve()

    def _input(self, dtype: str) -> Any:
        if dtype not in self._inputs:
            buffer = self.device.allocate(self._input_bytes)
            count = self._input_bytes // storage(dtype).itemsize // 4
            for quarter in range(4):
                spec = TensorSpec(name="x", shape=(count,), dtype=dtype)
                place = Tensor(
                    spec=spec, buffer=buffer, offset=quarter * count * storage(dtype).itemsize
                )
                self.device.generate(place, 7, quarter)
            self._inputs[dtype] = buffer
        return self._inputs[dtype]

    def sets(self, problem: Problem) -> list[dict[str, Tensor]]:
        """Argument sets that exceed three times the cache together, 48 at most."""
        specs = ops.registry.get(problem.op).tensors(problem)
        footprint = sum(spec.nbytes for spec in specs)
        count = min(48, max(1, -(-3 * self.info.cache_bytes // footprint)))
        ends: Counter[int] = Counter()
        made = []
        for _ in range(count):
            chosen = {}
            for spec in specs:
                buffer = self._output if spec.role == "out" else self._input(spec.dtype)
                nbytes = -(-spec.nbytes // 512) * 512
                start = ends[id(buffer)]
                if start + nbytes > buffer.nbytes:
                    start = 0
                ends[id(buffer)] = start + nbytes
                chosen[spec.name] = Tensor(spec=spec, buffer=buffer, offset=start)
            made.append(chosen)
        return made

    def time(self, task: Task, configs: Sequence[Keyed]) -> None:
        """Time these configs of a task, as far as they are compiled and agree with its first."""
        sets = self.sets(task.problem)
        out = next(t for t in sets[0].values() if t.spec.role == "out")
        for config, keys in configs:
            if not self._kernels.compiled(keys) or not self._kernels.fit(keys):
                continue
            plan = planned(task.problem, config, self.info)
            try:
                self.device.driver.fill(out.address, 0xFF, out.spec.nbytes, self.device.stream)
                seconds = self._seconds(task.problem, plan, sets, task.best_s)
            except KernelmarkError as error:
                print(f"{task.problem.key} {config_key(config)}: {error.message}", file=sys.stderr)
                self.errors += 1
                continue
            self.errors = 0
            values = self._values(out)
            written = bool(np.isfinite(values).all())
            if task.expected is None and written:
                task.expected = values
            if task.expected is None:
                continue
            scale = float(np.abs(task.expected).max())
            if not np.allclose(values, task.expected, rtol=0.05, atol=0.02 * scale):
                print(f"{task.problem.key} {config_key(config)}: wrong", file=sys.stderr)
                continue
            task.best_s = min(task.best_s, seconds)
            task.times[config_key(config)] = config, seconds

    def _seconds(
        self,
        problem: Problem,
        plan: launch.KernelPlan,
        sets: Sequence[Mapping[str, Tensor]],
        best: float,
    ) -> float:
        kernel = launch.TritonKernel(plan, self.device, sets)
        try:
            op = ops.registry.get(problem.op)
            flops, nbytes = op.flops(problem), op.bytes(problem)
            guess = 2e-6 + 1.5 * max(flops / 7e14, nbytes / 4e12)
            rounds = max(1, math.ceil(SAMPLE_S / guess / len(sets)))
            order = list(range(len(sets))) * rounds
            replay = self.device.record(kernel.launch, order, Timer.GRAPH)
            try:
                first = replay.run().elapsed_s / len(order)
                if first > SLOW * best:
                    return first
                readings = [replay.run().elapsed_s for _ in range(3)]
                return min(readings) / len(order)
            finally:
                replay.close()
        finally:
            kernel.close()

    def _values(self, out: Tensor) -> np.ndarray:
        """Some values of an output: its start and its end, which edge tiles write."""
        dtype = out.spec.dtype
        nbytes = min(out.spec.nbytes, 1024)
        ends = (out.offset, out.offset + out.spec.nbytes - nbytes)
        raw = np.concatenate([self.device.read(out.buffer, at, nbytes) for at in ends])
        values = decode(raw.view(storage(dtype)), dtype)
        return np.nan_to_num(values, nan=np.inf)


def collect(options: argparse.Namespace, info: DeviceInfo, workers: Any) -> None:
    """Time the design on as many shapes as the minutes allow, and write the file."""
    began = time.monotonic()
    deadline = began + 60 * options.minutes
    problems = shapes(options.seed, options.shapes)
    jobs = [(p.key, options.seed * 10**6 + number, info) for number, p in enumerate(problems)]
    designs = workers.map(design, jobs, chunksize=4)
    tasks = [Task(p, list(configs)) for p, configs in zip(problems, designs, strict=True)]
    kernels = Kernels(info, workers)
    kernels.ask([(task.problem, task.left) for task in tasks])
    print(
        f"{len(tasks)} shapes, {sum(len(t.left) for t in tasks)} times, {kernels.pending} "
        f"kernels to compile; planned in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    bench = Bench(options.device, kernels)
    told = time.monotonic()
    while any(task.left for task in tasks):
        if time.monotonic() > deadline or bench.errors > MOST_ERRORS:
            break
        kernels.collect()
        timed = False
        for task in tasks:
            ready = [item for item in task.left if kernels.compiled(item[1])]
            # What takes a shape's tensors is shared by many configs.
            if len(ready) < (1 if not kernels.pending else AT_ONCE):
                continue
            bench.time(task, ready)
            keys = {config_key(config) for config, _ in ready}
            task.left = [item for item in task.left if config_key(item[0]) not in keys]
            timed = True
            if time.monotonic() > deadline or bench.errors > MOST_ERRORS:
                break
            if time.monotonic() - told > 20:
                told = time.monotonic()
                _tell(tasks, kernels, told - began)
                kernels.collect()
        if not timed:
            time.sleep(0.1)
    done = [
        _memory.Searched(problem=t.problem, backend="triton", arch=info.arch, times=t.times)
        for t in tasks
        if len(t.times) >= LEAST_TIMES
    ]
    _tell(tasks, kernels, time.monotonic() - began)
    if not done:
        sys.exit("no shape has enough times")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    _memory.save(options.output, done)
    slowdowns = [_slowdown(search) for search in done]
    print(
        f"{options.output}: {len(done)} shapes, {options.output.stat().st_size} bytes\n"
        f"first config / best of the design: geomean {statistics.geometric_mean(slowdowns):.3f}"
        f", worst {max(slowdowns):.2f}"
    )


def _tell(tasks: Sequence[Task], kernels: Kernels, seconds: float) -> None:
    count = sum(len(task.times) for task in tasks)
    enough = sum(len(task.times) >= LEAST_TIMES for task in tasks)
    print(
        f"{seconds:4.0f} s: {count} times, {enough} shapes with {LEAST_TIMES} or more, "
        f"{kernels.pending} kernels to compile",
        flush=True,
    )


def _slowdown(search: _memory.Searched) -> float:
    seconds = [s for _, s in search.times.values()]
    return seconds[0] / min(seconds)


# -- the check


@dataclass
class Trial:
    """A held-back shape: what the prior and the rules choose, and a search."""

    problem: Problem
    rules: Config
    points: Points
    search: Search
    guesses: list[Config]
    task: Task


def check(options: argparse.Namespace, info: DeviceInfo, workers: Any) -> None:
    """Compare the prior's choice and the rules' with the best of a search on unseen shapes."""
    began = time.monotonic()
    deadline = began + 60 * options.minutes
    searches = (
        _memory.load(options.prior) if options.prior else list(_memory.shipped("triton", info.arch))
    )
    if not searches:
        sys.exit("there is no prior: give --prior FILE")
    known = {search.problem.key for search in searches}
    kernels = Kernels(info, workers)
    trials = []
    for problem in shapes(options.seed, options.held_back):
        if problem.key not in known:
            trials.append(_trial(problem, info, searches, options.evaluations))
    print(f"{len(trials)} unseen shapes, {time.monotonic() - began:.0f} s", flush=True)
    bench = Bench(options.device, kernels)
    rounds = max(1, options.evaluations // ROUND)
    for number in range(rounds):
        asked: list[list[tuple[int, Config]]] = []
        for trial in trials:
            points = [(p, trial.points.config(p)) for p in trial.search.ask(ROUND)]
            asked.append(points)
            configs = [config for _, config in points]
            if number == 0:
                configs = [trial.rules, *trial.guesses, *configs]
            trial.task.left = keyed(trial.problem, configs, info)
        kernels.ask([(trial.problem, trial.task.left) for trial in trials])
        stop = began + (deadline - began) * (number + 1) / (rounds + 0.5)
        while kernels.pending and time.monotonic() < stop:
            kernels.collect()
            time.sleep(0.05)
        for trial, points in zip(trials, asked, strict=True):
            bench.time(trial.task, trial.task.left)
            for point, config in points:
                timed = trial.task.times.get(config_key(config))
                trial.search.tell(point, timed[1] if timed else None)
        print(f"round {number + 1}: {time.monotonic() - began:.0f} s", flush=True)
    _report(options, info, [_compared(trial, bench) for trial in trials], len(searches))


def _trial(
    problem: Problem, info: DeviceInfo, searches: Sequence[_memory.Searched], evaluations: int
) -> Trial:
    module = gemm if problem.op == "gemm" else attention
    space = module.space(problem, info)
    predicted = _memory.predicted(problem, info.arch, searches, space)
    guesses = [config for config, _ in predicted[:3]]
    points = Points.of(space, limit=20_000)
    return Trial(
        problem=problem,
        rules=module.default(problem, info),
        points=points,
        search=strategies.get("kmark").search(points, budget=evaluations, seed=1),
        guesses=guesses,
        task=Task(problem),
    )


def _compared(trial: Trial, bench: Bench) -> dict[str, Any]:
    """Time the best three, the prior's choice and the rules' again, in turns."""
    order = sorted(trial.task.times.values(), key=lambda item: item[1])
    best = [config for config, _ in order[:3]]
    chosen = (trial.rules, *trial.guesses, *best)
    distinct = keyed(trial.problem, list({config_key(c): c for c in chosen}.values()), bench.info)
    seconds: dict[str, list[float]] = {config_key(config): [] for config, _ in distinct}
    for number in range(4):
        turn = Task(trial.problem, expected=trial.task.expected)
        bench.time(turn, distinct[:: 1 if number % 2 == 0 else -1])
        for key, (_, spent) in turn.times.items():
            seconds[key].append(spent)
    medians = {key: statistics.median(x) for key, x in seconds.items() if x}
    configs = {config_key(config): config for config, _ in distinct}

    def us(*configs: Config) -> float | None:
        known = [medians[k] for k in map(config_key, configs) if k in medians]
        return round(1e6 * min(known), 3) if known else None

    prior = trial.guesses[:1]
    return {
        "problem": trial.problem.key,
        "evaluated": len(trial.task.times),
        "tuned_us": us(*configs.values()),
        "rules_us": us(trial.rules),
        "prior_us": us(*prior),
        "after_3_us": us(*trial.guesses),
        "prior": dict(prior[0]) if prior else {},
        "tuned": dict(configs[min(medians, key=medians.__getitem__)]) if medians else {},
    }


def _report(
    options: argparse.Namespace, info: DeviceInfo, rows: Sequence[dict[str, Any]], size: int
) -> None:
    shares: dict[str, list[float]] = {}
    for row in rows:
        for name in ("rules", "prior", "after_3"):
            if row["tuned_us"] and row[f"{name}_us"]:
                shares.setdefault(name, []).append(row["tuned_us"] / row[f"{name}_us"])
        text = "  ".join(f"{row[f'{n}_us'] or math.nan:9.2f}" for n in ("rules", "prior", "tuned"))
        print(f"{text}  {row['problem'].split(' acc')[0]}")
    lines = {
        name: f"{statistics.geometric_mean(x):.3f}, least {min(x):.3f} ({len(x)} shapes)"
        for name, x in shares.items()
    }
    print("tuned / default by rules, by prior, best of three guesses:")
    for name, line in lines.items():
        print(f"{name:8} {line}")
    bars = [
        (
            "default by the prior ≥ 0.9 × tuned, geomean, on unseen shapes",
            lines.get("prior", "none"),
            bool(shares.get("prior")) and statistics.geometric_mean(shares["prior"]) >= 0.9,
        ),
        (
            "best of the prior's first three ≥ 0.93 × tuned, geomean",
            lines.get("after_3", "none"),
            bool(shares.get("after_3")) and statistics.geometric_mean(shares["after_3"]) >= 0.93,
        ),
    ]
    figures = {"shapes_of_the_prior": size, "rules": lines.get("rules", ""), "rows": list(rows)}
    evidence.write(
        options.output, title="Defaults by a prior", bars=bars, figures=figures, device=info
    )
    print(evidence.bars_text(bars))


def ship(path: Path) -> None:
    """Write the times to the package, without those too slow to be of use on a similar shape."""
    kept = []
    for search in _memory.load(path):
        most = SHIPPED_WITHIN * min(seconds for _, seconds in search.times.values())
        times = {key: item for key, item in search.times.items() if item[1] <= most}
        kept.append(dataclasses.replace(search, times=times))
    target = _memory.SHIPPED / f"{kept[0].backend}-{kept[0].arch}.json.gz"
    target.parent.mkdir(exist_ok=True)
    _memory.save(target, kept)
    count = sum(len(search.times) for search in kept)
    print(f"{target}: {len(kept)} shapes, {count} times, {target.stat().st_size} bytes")


def dry_run(options: argparse.Namespace) -> None:
    """Print what would be compiled and timed, and compile a few kernels."""
    info = absent("sm_90")
    began = time.monotonic()
    uses: Counter[str] = Counter()
    units: dict[str, Unit] = {}
    count = 0
    problems = shapes(options.seed, options.shapes)
    for number, problem in enumerate(problems):
        for config, keys in design((problem.key, options.seed * 10**6 + number, info)):
            count += 1
            uses.update(keys)
            for index, key in enumerate(keys):
                units.setdefault(key, Unit(key, problem.key, config, index))
    often = sum(n >= 5 for n in uses.values())
    kinds = Counter(p.op for p in problems)
    print(
        f"{dict(kinds)}: {count} times, {len(uses)} kernels, {often} of them used five times or "
        f"more; planned in {time.monotonic() - began:.1f} s"
    )
    large = [key for key, _ in uses.most_common() if not key.startswith("gemm_reduce")]
    for key in large[: options.compile]:
        began = time.monotonic()
        _, built = build((units[key], info))
        text = "failed" if built is None else str(dict(built.resources))
        print(f"{time.monotonic() - began:.2f} s {key.split(' ')[0]} {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--shapes", type=int, default=420, help="drawn; as many as there is time")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--prior", type=Path, help="checked instead of the shipped one")
    parser.add_argument("--held-back", type=int, default=32, help="shapes of the check")
    parser.add_argument("--evaluations", type=int, default=48, help="of each search of the check")
    parser.add_argument("--ship", type=Path, metavar="FILE", help="put it into the package")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--compile", type=int, default=3, help="kernels that --dry-run compiles")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    options.output = options.output or (RESULTS if options.check else Path("prior.json.gz"))
    if options.dry_run or options.ship:
        ship(options.ship) if options.ship else dry_run(options)
        return
    launch.prepare_cache()
    import triton  # noqa: F401 - before the workers fork, so that they need not import it

    # Before this process uses the GPU: a child of one that does cannot.
    with multiprocessing.get_context("fork").Pool(options.jobs) as workers:
        info = gpu_info(options.device)
        (check if options.check else collect)(options, info, workers)


if __name__ == "__main__":
    main()
