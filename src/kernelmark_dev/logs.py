"""Logs of a workload that never ran: as many calls and shapes as asked for, the same for a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernelmark.core.errors import UsageError

Form = Literal["mask32", "mask64", "mask128", "trace"]

# Widths of the layers of language models, and how many tokens are in flight.
_FEATURES = (1024, 1280, 1536, 2048, 2560, 4096, 5120, 7168, 8192, 14336, 16384, 28672, 128256)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192)
_HEADS = (8, 16, 32, 64)
_HEAD_DIM = 128
_STEP = 8  # layers are multiples of it
_TRIES = 200  # draws a shape before a limit on sizes is called too small
_KINDS = ("bf16_r", "bf16_r", "bf16_r", "f16_r", "f8_r", "batched")
_TRACED = {"bf16_r": "R_16BF", "f16_r": "R_16F", "f8_r": "R_8F_E4M3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A call in BLAS letters: columns first, D is m×n."""

    m: int
    n: int
    k: int
    batch: int
    trans_a: str
    trans_b: str
    a_type: str
    d_type: str
    bias: bool

    @property
    def leading(self) -> tuple[int, int, int]:
        """lda, ldb and ldd of matrices without gaps."""
        return (
            self.k if self.trans_a == "T" else self.m,
            self.n if self.trans_b == "T" else self.k,
            self.m,
        )

    @property
    def strides(self) -> tuple[int, int, int]:
        """From one matrix of the batch to the next; 0 where there is only one."""
        if self.batch == 1:
            return 0, 0, 0
        return self.m * self.k, self.k * self.n, self.m * self.n


def write_log(
    path: Path,
    *,
    calls: int = 25_000,
    shapes: int = 209,
    form: Form = "mask32",
    seed: int = 1,
    largest: int = 131_072,
) -> Mapping[Logged, int]:
    """Write a hipBLASLt log of `calls` calls of `shapes` distinct ones; no size is above `largest`.

    Layers of language models in bf16, f16 and 8-bit floats, and GEMMs of attention heads in
    batches; few shapes have most of the calls. What was written is returned, with its counts.
    """
    source = random.Random(seed)
    counts = _counted(distinct_shapes(shapes, seed=seed, largest=largest), calls, source)
    with path.open("w", encoding="utf-8") as file:
        for line in _lines(counts, form, source):
            file.write(line + "\n")
    return counts


def distinct_shapes(shapes: int, *, seed: int = 1, largest: int = 131_072) -> list[Logged]:
    """So many different calls, the same for a seed."""
    source = random.Random(seed)
    found: dict[Logged, None] = {}
    for _ in range(shapes * _TRIES):
        if len(found) == shapes:
            return list(found)
        found[_drawn(largest, source)] = None
    raise UsageError(f"there are no {shapes} distinct shapes with sizes up to {largest}")


def _drawn(largest: int, source: random.Random) -> Logged:
    def limited(size: int) -> int:
        if size <= largest:
            return size
        return _STEP * source.randint(1, max(1, largest // _STEP))

    kind = source.choice(_KINDS)
    tokens = min(source.choice(_TOKENS), largest)
    if kind == "batched":
        inner, scores = limited(_HEAD_DIM), source.random() < 0.5
        return Logged(
            m=tokens if scores else inner,
            n=limited(source.choice(_TOKENS)),
            k=inner if scores else tokens,
            batch=min(source.choice(_HEADS), largest),
            trans_a="T" if scores else "N",
            trans_b="N",
            a_type="bf16_r",
            d_type="bf16_r",
            bias=False,
        )
    return Logged(
        m=limited(source.choice(_FEATURES)),
        n=tokens,
        k=limited(source.choice(_FEATURES)),
        batch=1,
        trans_a="T",
        trans_b="N",
        a_type=kind,
        d_type="bf16_r" if kind == "f8_r" else kind,
        bias=kind == "f16_r" and source.random() < 0.5,
    )


def _counted(shapes: list[Logged], calls: int, source: random.Random) -> dict[Logged, int]:
    """Every shape once, the other calls as 1/rank: a few layers are most of a model's time."""
    if calls < len(shapes):
        raise UsageError(f"{calls} calls cannot be of {len(shapes)} shapes")
    weights = [1 / rank for rank in range(1, len(shapes) + 1)]
    counts = dict.fromkeys(shapes, 1)
    for shape in source.choices(shapes, weights, k=calls - len(shapes)):
        counts[shape] += 1
    return counts


def _lines(counts: Mapping[Logged, int], form: Form, source: random.Random) -> Iterator[str]:
    if form in ("mask64", "mask128"):
        for call, count in counts.items():
            yield profile_line(call, count, source.randrange(100_000) if form == "mask128" else -1)
        return
    order = [call for call, count in counts.items() for _ in range(count)]
    source.shuffle(order)
    if form == "mask32":
        texts = {call: bench_line(call, source.randrange(100_000)) for call in counts}
        yield from (texts[call] for call in order)
    else:
        yield from (trace_line(call, number, source) for number, call in enumerate(order))


def bench_line(call: Logged, solution: int = 0) -> str:
    """As mask 32 logs it: a command."""
    lda, ldb, ldd = call.leading
    a, b, d = call.strides
    scale = int(call.a_type == "f8_r")
    bias = " --bias_vector --bias_source d" if call.bias else ""
    return (
        f"hipblaslt-bench --api_method c -m {call.m} -n {call.n} -k {call.k} "
        f"--lda {lda} --ldb {ldb} --ldc {ldd} --ldd {ldd}  "
        f"--stride_a {a} --stride_b {b} --stride_c {d} --stride_d {d}  "
        f"--alpha 1.000000 --beta 0.000000 --transA {call.trans_a} --transB {call.trans_b} "
        f"--batch_count {call.batch} --scaleA {scale} --scaleB {scale} {bias} "
        f"--a_type {call.a_type} --b_type {call.a_type} --c_type {call.d_type} "
        f"--d_type {call.d_type} --scale_type f32_r --bias_type {call.d_type}   "
        f"--compute_type f32_r --algo_method index --solution_index {solution} "
        "--activation_type none --any_stride --rotating 0 --cold_iters 0 --iters 0 "
    )


def profile_line(call: Logged, count: int, solution: int = -1) -> str:
    """As mask 64 logs it at the end of a process; with a solution, as mask 128."""
    lda, ldb, ldd = call.leading
    a, b, d = call.strides
    scale = int(call.a_type == "f8_r")
    kernel = ""
    if solution >= 0:
        name = f"Cijk_Alik_Bljk_BBS_BH_MT{solution % 256}x128x64"
        kernel = f"solution_index: {solution}, solution_Name: {name}, kernel_name: {name}, "
    return (
        f"- {{ function: matmul, M: {call.m}, N: {call.n}, K: {call.k}, "
        f"lda: {lda}, ldb: {ldb}, ldc: {ldd}, ldd: {ldd}, "
        f"stride_a: {a}, stride_b: {b}, stride_c: {d}, stride_d: {d}, "
        f"alpha: 1.000000, beta: 0.000000, transA: {call.trans_a}, transB: {call.trans_b}, "
        f"batch_count: {call.batch}, scaleA: {scale}, scaleB: {scale}, "
        "scaleAlpha_vector: false, gradient: false, use_e: false, "
        f"bias_vector: {str(call.bias).lower()}, bias_source: d, "
        f"a_type: {call.a_type}, b_type: {call.a_type}, c_type: {call.d_type}, "
        f"d_type: {call.d_type}, scale_type: f32_r, bias_type: {call.d_type}, "
        "compute_type: c_f32_r, activation_type: none, flush: false, rotating: 0, "
        f"cold_iters: 0, iters: 0, {kernel}call_count: {count} }}"
    )


def trace_line(call: Logged, number: int, source: random.Random) -> str:
    """As the trace level logs it: no two lines are the same, by their times and pointers."""
    lda, ldb, ldd = call.leading
    rows_a, cols_a = (call.k, call.m) if call.trans_a == "T" else (call.m, call.k)
    rows_b, cols_b = (call.n, call.k) if call.trans_b == "T" else (call.k, call.n)

    def pointer() -> str:
        return f"0x7f{source.getrandbits(32):08x}00"

    def layout(kind: str, rows: int, cols: int, leading: int, stride: int) -> str:
        batch = f" batch_count={call.batch} batch_stride={stride}" if call.batch > 1 else ""
        return f"[type={_TRACED[kind]} rows={rows} cols={cols} ld={leading}{batch}]"

    a, b, d = call.strides
    out = layout(call.d_type, call.m, call.n, ldd, d)
    epilogue = "EPILOGUE_BIAS" if call.bias else "EPILOGUE_DEFAULT"
    bias = pointer() if call.bias else "0x0"
    seconds = number // 1000
    return (
        f"[2026-01-0{1 + seconds // 86400 % 9} {seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:"
        f"{seconds % 60:02}][HIPBLASLT][{4000 + number % 8}][Trace][rocblaslt_matmul] "
        f"A={pointer()} Adesc={layout(call.a_type, rows_a, cols_a, lda, a)} "
        f"B={pointer()} Bdesc={layout(call.a_type, rows_b, cols_b, ldb, b)} "
        f"C={pointer()} Cdesc={out} D={pointer()} Ddesc={out} "
        f"computeDesc=[computeType=COMPUTE_32F scaleType=R_32F transA=OP_{call.trans_a} "
        f"transB=OP_{call.trans_b} epilogue={epilogue} biasPointer={bias}] workSpace={pointer()} "
        f"workSpaceSizeInBytes=33554432 alpha=1 beta=0 stream={pointer()}"
    )
