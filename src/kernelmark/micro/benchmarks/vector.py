"""FMA throughput of a CPU's vector units, on all cores."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from kernelmark.core.errors import CaseError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.devices.base import Buffer
from kernelmark.micro._cpu_rig import PASS_S, CpuRig, confirmed
from kernelmark.micro.base import (
    SPREAD,
    Column,
    Figure,
    Findings,
    Microbenchmark,
    Panel,
    Parameter,
    Record,
    Settings,
    metric,
)
from kernelmark.micro.hardware import Limit
from kernelmark.micro.rig import Call, Rig, spread_of

FILE = "vector.cc"
_KINDS: dict[str, type[np.floating]] = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
_TRIAL = 1000  # steps; sums of ones are exact in every dtype up to 2048
_SIZE = 1024  # of numpy's matrices
_CALLS = 5  # of numpy's matmul


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    dtypes: tuple[str, ...]
    passes: int
    out: Buffer
    chains: int = 0  # 0 without a compiler
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    per_s: float
    steady: bool
    right: bool
    spread: float | None = None


class Vector(Microbenchmark[_State, dict[str, _Point]]):
    name = "vector"
    summary = "FLOP/s of a CPU's vector multiply-adds by dtype, on all cores at once."
    kinds = ("cpu",)
    measures = (
        "Independent chains of FMAs in registers, on the widest vectors that the compiler supports "
        "for this CPU, with one thread per core. Passes of a third of a millisecond repeat until "
        "two more rounds confirm the best. The result is the sum over cores of each core's best "
        "pass while all cores run, because cores share no vector units. Without a C++ compiler, "
        "numpy's matmul is timed instead, and the metrics have other names."
    )
    misleads = (
        "A core that runs wide vectors for longer may lower its clock: this is the peak of a short "
        "burst. Matrix units (AMX, SME) are not used. The host of a virtual machine may give its "
        "guest half of a core."
    )
    parameters = FrozenDict(
        {
            "dtypes": Parameter(help="f32, f64, f16", quick=tuple(_KINDS), choices=tuple(_KINDS)),
            "passes": Parameter(help="passes per round", quick=60, full=200),
        }
    )
    columns = (
        Column(name="dtype", help="f32, f64 or f16"),
        Column(name="what", help="multiply-add, or numpy's matmul"),
        Column(
            name="flops_per_s",
            help="operations per second of all cores",
            unit="FLOP/s",
            limit=lambda h: h.flops("vector", "f32"),
        ),
        SPREAD,
        Column(name="steady", help="whether two more rounds confirmed it"),
    )
    figure = Figure(
        x="dtype",
        title="dtype",
        scale="band",
        panels=(Panel(y="flops_per_s", title="GFLOP/s", per=1e9, mark="bar"),),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        asked, passes = given.words("dtypes"), given.whole("passes")
        out = rig.memory(8 * max(8, rig.threads))
        try:
            there = rig.kernels(FILE)
        except CaseError as error:
            numpys = tuple(name for name in asked if name != "f16")  # numpy has no BLAS for f16
            notes = (f"{error.message}: numpy's matrix product stands in",)
            return _State(dtypes=numpys, passes=passes, out=out, notes=notes)
        rig.run(rig.call(FILE, "vector_chains", out))
        return _State(
            dtypes=tuple(name for name in asked if f"vector_{name}" in there),
            passes=passes,
            out=out,
            chains=int(rig.read(out, np.uint32, 1)[0]),
        )

    def timed(self, rig: Rig, state: _State) -> dict[str, _Point]:
        measure = _compiled if state.chains else _by_numpy
        return {dtype: measure(rig, state, dtype) for dtype in state.dtypes}

    def verify(self, rig: Rig, state: _State, raw: dict[str, _Point]) -> str | None:
        wrong = [dtype for dtype, point in raw.items() if not point.right]
        return f"the sums of {', '.join(wrong)} are not what was added" if wrong else None

    def metrics(self, rig: Rig, state: _State, raw: dict[str, _Point]) -> Findings:
        rows: list[Record] = []
        found: list[Metric] = []
        for dtype, point in raw.items():
            rows.append(
                {
                    "dtype": dtype,
                    "what": "multiply-add" if state.chains else "numpy product",
                    "flops_per_s": point.per_s,
                    "spread": point.spread,
                    "steady": point.steady,
                }
            )
            found += metric(
                f"peak_{dtype}" if state.chains else f"numpy_{dtype}",
                point.per_s,
                "FLOP/s",
                limit=_limit(rig, dtype),
                roof=f"flops {dtype} vector",
                steady=point.steady,
                stand_in=not state.chains,
            )
        return Findings(rows=rows, metrics=found, notes=state.notes)


def _limit(rig: Rig, dtype: str) -> Limit:
    """Return a limit that no core reaches: four pipes of 64-byte vectors, at a clock above any
    core's."""
    lanes, hertz = 64 // np.dtype(_KINDS[dtype]).itemsize, rig.hardware.clock_mhz * 1e6
    why = f"{rig.threads} × 4 pipes of {lanes} lanes × {hertz / 1e9:g} GHz"
    return Limit(value=rig.threads * 4 * 2 * lanes * hertz, why=why)


def _compiled(rig: Rig, state: _State, dtype: str) -> _Point:
    assert isinstance(rig, CpuRig)
    per_step = state.chains * rig.vector_bytes // np.dtype(_KINDS[dtype]).itemsize

    def call(steps: int) -> Call:
        return rig.call(FILE, f"vector_{dtype}", steps, state.out, grid=rig.threads)

    trial = rig.passes([call(_TRIAL)], state.passes)
    sums = rig.read(state.out, np.float64, rig.threads)
    steps = max(1, int(_TRIAL * PASS_S / max(min(trial.alone_s), 1e-9)))
    made, alone_s = call(steps), [math.inf] * rig.threads
    rounds_s: list[float] = []

    def per_s(seconds: list[float]) -> float:
        return sum(2.0 * steps * per_step / max(each, 1e-9) for each in seconds)

    def one_round() -> float:
        mine = list(rig.passes([made], state.passes).alone_s)
        alone_s[:] = map(min, alone_s, mine)
        rounds_s.append(1 / per_s(mine))
        return per_s(mine)

    _, steady = confirmed(one_round)
    right = bool((sums == float(_TRIAL * per_step)).all())
    spread = spread_of(rounds_s, shortest=True)
    return _Point(per_s=per_s(alone_s), steady=steady, right=right, spread=spread)


def _by_numpy(rig: Rig, state: _State, dtype: str) -> _Point:
    """Measure with numpy's BLAS, which has as many threads as the rig: it reads their number when
    it is loaded."""
    a = np.ones((_SIZE, _SIZE), _KINDS[dtype])
    out = np.empty_like(a)
    times = []
    for _ in range(1 + _CALLS):
        start = time.perf_counter()
        np.matmul(a, a, out=out)
        times.append(time.perf_counter() - start)
    right = bool((out == _SIZE).all())
    spread = spread_of(times[1:], shortest=True)
    return _Point(per_s=2 * _SIZE**3 / min(times[1:]), steady=True, right=right, spread=spread)


benchmark = Vector()
