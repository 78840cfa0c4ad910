"""Dependent chains of one instruction (micro_ops.cu): what each kernel computes, and its timing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmark.devices.base import Buffer
from kernelmark.micro.hardware import Hardware, Limit
from kernelmark.micro.rig import Call, Rig, Typical

FILE = "micro_ops.cu"
_LONG, _SLOW, _OTHER = 512, 8, 128  # steps per iteration of the unrolled loop
_LOOPS = {"fma_f32": _LONG, "fma_f64": _LONG}
_LOOPS |= dict.fromkeys(("div_f32", "div_f64", "sqrt_f32", "sqrt_f64"), _SLOW)
_NUMPY = {"float": np.float32, "double": np.float64, "u32": np.uint32, "u64": np.uint64}
_CHAINS = 8  # output elements per thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One instruction: each step is `instructions` machine instructions and counts as `flops`
    operations. `next` computes a step on the host, if that is exact."""

    name: str
    kind: str  # C type
    seed: float | int
    other: float | int
    instructions: int = 1
    flops: int = 0
    next: Callable[[Any, Any], Any] | None = None

    @property
    def loop(self) -> int:
        return _LOOPS.get(self.name, _OTHER)

    @property
    def element(self) -> Any:
        return _NUMPY[self.kind]

    def after(self, steps: int) -> Any:
        """Return the value of a chain after `steps` steps, or None if the host cannot compute
        it."""
        if self.next is None:
            return None
        with np.errstate(over="ignore"):
            x, y = self.element(self.seed), self.element(self.other)
            for _ in range(steps):
                x = self.next(x, y)
        return x


def _real(name: str, flops: int, next: Callable[[Any, Any], Any], **numbers: float) -> list[Op]:
    given = {"seed": 3.0, "other": 0.5} | numbers
    return [
        Op(
            name=f"{name}_{dtype}",
            kind=kind,
            seed=given["seed"],
            other=given["other"],
            flops=flops,
            next=next,
        )
        for dtype, kind in (("f32", "float"), ("f64", "double"))
    ]


def _whole(name: str, next: Callable[[Any, Any], Any] | None = None, **more: Any) -> Op:
    return Op(
        name=name, kind=more.pop("kind", "u32"), seed=12345, other=2654435761, next=next, **more
    )


# x/2 + 1/2: exact in every format, so that a fused step rounds like two operations.
OPS = {
    op.name: op
    for op in (
        *_real("fma", 2, lambda x, y: x * y + y),
        *_real("add", 1, lambda x, y: x + y),
        *_real("mul", 1, lambda x, y: x * y, seed=1.0, other=1.0009765625),
        *_real("div", 1, lambda x, y: y / x, seed=1.5, other=1.1),
        *_real("sqrt", 1, lambda x, y: np.sqrt(x), seed=1.5),
        Op(name="fma_f16x2", kind="u32", seed=0x42004200, other=0x38003800, flops=4),
        Op(name="fma_bf16x2", kind="u32", seed=0x40404040, other=0x3F003F00, flops=4),
        Op(
            name="fma_f32x2",
            kind="u64",
            seed=3 * (2**62 + 2**30),
            other=63 * (2**56 + 2**24),
            flops=4,
        ),
        Op(name="rsqrt_f32", kind="float", seed=1.5, other=0.0),
        Op(name="exp2_f32", kind="float", seed=-1.5, other=0.0),
        Op(name="log2_f32", kind="float", seed=1.5, other=0.0),
        Op(name="sin_f32", kind="float", seed=1.5, other=0.0, instructions=2),
        _whole("add_xor_i32", lambda x, y: (x + y) ^ y, instructions=2),
        _whole("mul_i32", lambda x, y: x * y),
        _whole("mad_i32", lambda x, y: x * y + y),
        _whole("add_i64", lambda x, y: x + y, kind="u64"),
        _whole("mul_i64", lambda x, y: x * y, kind="u64"),
        _whole("shift_i32"),
        _whole("permute_i32"),
        _whole("popc_i32"),
        _whole("dot4_i8", flops=8),
        _whole("shuffle_i32"),
        _whole("convert_i32_f32"),
    )
}


def lanes_of(hardware: Hardware, op: str) -> Limit:
    """Return the lanes of an SM/CU that can finish this instruction per cycle, if its dtype has
    separate hardware; else those of any instruction."""
    own = op.endswith("_f64") and hardware.kind == "gpu" and hardware.known
    if not own or "f64" not in hardware.vector:
        return most_lanes(hardware)
    bound = hardware.per_cycle("vector", "f64")
    return Limit(value=bound.value / 2, why=f"1/2 of {bound.value:g} {bound.why}")


def most_lanes(hardware: Hardware) -> Limit:
    """Return the lanes of an SM/CU that can finish an instruction per cycle: the f32 FMA rate or
    that of packed halves, whichever has more lanes."""
    numbers = {"f32": 1, "f16": 2, "bf16": 2}
    known = [dtype for dtype in numbers if dtype in hardware.vector] or ["f32"]
    bounds = {dtype: hardware.per_cycle("vector", dtype) for dtype in known}
    dtype = max(known, key=lambda one: bounds[one].value / numbers[one])
    bound, each = bounds[dtype], 2 * numbers[dtype]
    return Limit(value=bound.value / each, why=f"1/{each} of {bound.value:g} {bound.why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Device memory for clocks and for the results of the chains."""

    clocks: Buffer
    out: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Operations per second, and per cycle and SM/CU, each with its spread."""

    per_s: float
    spread: float | None
    per_clk: float | None
    clk_spread: float | None


def allocate(rig: Rig, blocks: int) -> Buffers:
    return Buffers(
        clocks=rig.memory(blocks * 16), out=rig.memory(max(64, blocks * rig.block * _CHAINS * 8))
    )


def call(
    rig: Rig, buffers: Buffers, op: Op, ilp: int, steps: int, *, grid: int = 1, block: int = 1
) -> Call:
    """Return a launch of `steps` iterations of the unrolled loop with `ilp` chains per thread."""
    return rig.call(
        *(FILE, f"chain_{op.name}_{ilp}", steps, op.seed, op.other, 0, buffers.clocks, buffers.out),
        grid=grid,
        block=block,
        types={"T": op.kind},
    )


def cycles_per_step(
    rig: Rig, buffers: Buffers, op: Op, ilp: int, *, threads: int, steps: int, samples: int
) -> Typical:
    """Return the cycles per step of every thread in a block of `threads`, counting steps of all its
    chains. On a CPU, measured on that many cores at once."""
    on_cpu = rig.block == 1
    made = call(
        rig,
        buffers,
        op,
        ilp,
        steps,
        grid=threads if on_cpu else 1,
        block=1 if on_cpu else threads,
    )
    rig.run(made)
    seen, waited = [], []
    for _ in range(samples):
        waited.append(rig.run(made).waited)
        seen.append(float(np.median(rig.cycles(buffers.clocks, made.grid))))
    return rig.typical(seen, waited).over(steps * op.loop)


def peak(rig: Rig, buffers: Buffers, op: Op, *, seconds: float, samples: int) -> Peak:
    """Return the peak of an instruction with all SMs/CUs busy."""
    cycles: list[float] = []

    def note() -> None:
        if rig.no_cycles is None:
            cycles.append(float(np.median(rig.cycles(buffers.clocks, rig.grid))))

    # One block per SM/CU: with two, one would be served first, and the cycles of neither would be
    # those of the SM/CU.
    rounds, made = rig.calibrated(
        lambda n: call(rig, buffers, op, 8, n, grid=rig.grid, block=rig.block), 16, seconds
    )
    timed = rig.sample(made, samples=samples, launches=1, after=note)
    done = rounds * op.loop * op.flops * rig.block
    by_cycles = rig.typical(cycles) if cycles else None
    return Peak(
        per_s=done * rig.grid / timed.typical_s,
        spread=timed.spread(),
        per_clk=done / by_cycles.value if by_cycles else None,
        clk_spread=by_cycles.spread if by_cycles else None,
    )


def check(rig: Rig, buffers: Buffers, op: Op, ilp: int) -> str | None:
    """Compare one iteration of the loop with the host, bit for bit; return the error or None.
    Returns None if the host cannot compute the instruction."""
    wanted = op.after(op.loop // ilp)
    if wanted is None:
        return None
    threads = min(rig.block, 64)
    rig.run(call(rig, buffers, op, ilp, 1, block=threads))
    found = rig.read(buffers.out, op.element, threads * _CHAINS).reshape(threads, _CHAINS)[:, :ilp]
    if (found == wanted).all():
        return None
    wrong = found[found != wanted][0]
    return f"{op.name} with {ilp} chains gives {wrong}, not {wanted}"
