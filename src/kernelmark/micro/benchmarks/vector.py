"""FMA throughput of a CPU's vector units, on all cores."""

from __future__ import annotations

import math
import time

import numpy as np

from kernelmark.core.errors import CaseError
from kernelmark.devices.base import Buffer
from kernelmark.micro._cpu_rig import PASS_S, CpuRig, confirmed
from kernelmark.micro.base import (
    SPREAD,
    Column,
    Figure,
    MicroRun,
    Names,
    Panel,
    Parameter,
    microbenchmark,
)
from kernelmark.micro.hardware import Limit
from kernelmark.micro.rig import Call, Rig, spread_of

FILE = "vector.cc"
_KINDS: dict[str, type[np.floating]] = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
_TRIAL = 1000  # steps; sums of ones are exact in every dtype up to 2048
_SIZE = 1024  # of numpy's matrices: a product takes far longer than starting BLAS's threads
_CALLS = 5  # of numpy's matmul


@microbenchmark(
    summary="FLOP/s of a CPU's vector multiply-adds by dtype, on all cores at once.",
    kinds=("cpu",),
    measures="Independent chains of FMAs in registers, on the widest vectors that the compiler "
    "supports for this CPU, with one thread per core. Passes of a third of a millisecond repeat "
    "until two more rounds confirm the best. The result is the sum over cores of each core's best "
    "pass while all cores run, because cores share no vector units. Without a C++ compiler, "
    "numpy's matmul is timed instead, and the metrics have other names.",
    misleads="A core that runs wide vectors for longer may lower its clock: this is the peak of a "
    "short burst. Matrix units (AMX, SME) are not used. The host of a virtual machine may give its "
    "guest half of a core.",
    parameters={
        "dtypes": Parameter("f32, f64, f16", quick=tuple(_KINDS), choices=tuple(_KINDS)),
        "passes": Parameter("passes per round", quick=60, full=200),
    },
    columns=(
        Column("dtype", "f32, f64 or f16"),
        Column("what", "multiply-add, or numpy's matmul"),
        Column(
            "flops_per_s",
            "operations per second of all cores",
            "FLOP/s",
            lambda h: h.flops("vector", "f32"),
        ),
        SPREAD,
        Column("steady", "whether two more rounds confirmed it"),
    ),
    figure=Figure(
        x="dtype",
        title="dtype",
        scale="band",
        panels=(Panel("flops_per_s", "GFLOP/s", per=1e9, mark="bar"),),
    ),
)
def vector(run: MicroRun, *, dtypes: Names, passes: int) -> None:
    rig = run.rig
    out = rig.memory(8 * max(8, rig.threads))
    try:
        kernels = rig.kernels(FILE)
    except CaseError as error:
        run.notes.append(f"{error.message}: numpy's matrix product stands in")
        run.begin_timing()
        for dtype in dtypes:
            if dtype != "f16":  # numpy has no BLAS for f16
                per_s, right, spread = _time_numpy(dtype)
                _add_rate(run, dtype, per_s, spread, steady=True, right=right, compiled=False)
        run.begin_checks()
        return
    rig.run(rig.call(FILE, "vector_chains", out))
    chains = int(rig.read(out, np.uint32, 1)[0])
    run.begin_timing()
    for dtype in dtypes:
        if f"vector_{dtype}" in kernels:
            per_s, right, spread, steady = time_chains(rig, dtype, out, chains, passes)
            _add_rate(run, dtype, per_s, spread, steady=steady, right=right, compiled=True)
    run.begin_checks()


def _add_rate(
    run: MicroRun,
    dtype: str,
    per_s: float,
    spread: float | None,
    *,
    steady: bool,
    right: bool,
    compiled: bool,
) -> None:
    run.row(
        dtype=dtype,
        what="multiply-add" if compiled else "numpy product",
        flops_per_s=per_s,
        spread=spread,
        steady=steady,
    )
    run.metric(
        *(f"peak_{dtype}" if compiled else f"numpy_{dtype}", per_s, "FLOP/s"),
        limit=_limit(run.rig, dtype),
        roof=f"flops {dtype} vector",
        steady=steady,
        stand_in=not compiled,
    )
    if not right:
        run.check(f"the sums of {dtype} are not what was added")


def _limit(rig: Rig, dtype: str) -> Limit:
    """Return a limit that no core reaches: four pipes of 64-byte vectors, at a clock above any
    core's."""
    lanes, hertz = 64 // np.dtype(_KINDS[dtype]).itemsize, rig.hardware.clock_mhz * 1e6
    why = f"{rig.threads} × 4 pipes of {lanes} lanes × {hertz / 1e9:g} GHz"
    return Limit(value=rig.threads * 4 * 2 * lanes * hertz, why=why)


def time_chains(
    rig: Rig, dtype: str, out: Buffer, chains: int, passes: int
) -> tuple[float, bool, float | None, bool]:
    """Return (FLOP/s of all cores, whether the sums are right, spread over rounds, whether two
    more rounds confirmed the best)."""
    assert isinstance(rig, CpuRig)
    per_step = chains * rig.vector_bytes // np.dtype(_KINDS[dtype]).itemsize

    def call(steps: int) -> Call:
        return rig.call(FILE, f"vector_{dtype}", steps, out, grid=rig.threads)

    trial = rig.passes([call(_TRIAL)], passes)
    sums = rig.read(out, np.float64, rig.threads)
    steps = max(1, int(_TRIAL * PASS_S / max(min(trial.alone_s), 1e-9)))
    launch, alone_s = call(steps), [math.inf] * rig.threads
    rounds_s: list[float] = []

    def per_s(seconds: list[float]) -> float:
        return sum(2.0 * steps * per_step / max(each, 1e-9) for each in seconds)

    def one_round() -> float:
        cores_s = list(rig.passes([launch], passes).alone_s)
        alone_s[:] = map(min, alone_s, cores_s)
        rounds_s.append(1 / per_s(cores_s))
        return per_s(cores_s)

    _, steady = confirmed(one_round)
    right = bool((sums == float(_TRIAL * per_step)).all())
    return per_s(alone_s), right, spread_of(rounds_s, shortest=True), steady


def _time_numpy(dtype: str) -> tuple[float, bool, float | None]:
    """Measure with numpy's BLAS, which has as many threads as the rig: it reads their number when
    it is loaded. Return (FLOP/s, whether the product is right, spread)."""
    a = np.ones((_SIZE, _SIZE), _KINDS[dtype])
    out = np.empty_like(a)
    times = []
    for _ in range(1 + _CALLS):  # the first one starts the threads
        start = time.perf_counter()
        np.matmul(a, a, out=out)
        times.append(time.perf_counter() - start)
    right = bool((out == _SIZE).all())
    return 2 * _SIZE**3 / min(times[1:]), right, spread_of(times[1:], shortest=True)
