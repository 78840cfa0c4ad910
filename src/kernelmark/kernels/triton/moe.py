"""Mixture of experts: rows sorted by expert, two grouped GEMMs with silu·up between, a sum.

A row is one choice of a token: token = row // TOP_K. `moe_sort` orders the rows by expert and pads
each expert's rows to whole blocks of BLOCK_M, so that a block of `moe_tiles` uses the weights of
one expert. Intermediate results are stored in the dtype of the inputs. `moe_quantise` runs before
each GEMM with quantised weights.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernelmark.kernels.triton.gemm import tile_of


@triton.jit
def moe_sort(
    ids,
    order,
    owners,
    rows,
    experts,
    blocks,
    BINS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write the rows of one expert, in order, and the expert of each block; -1 for empty blocks.

    Each program counts the rows of all experts, which are few: that avoids a second launch to find
    where its own rows begin. BINS is more than `experts`: the last bin counts elements past the
    end.
    """
    expert = tl.program_id(0)
    bins = tl.arange(0, BINS)
    counts = tl.zeros((BINS,), dtype=tl.int32)
    for at in range(0, rows, CHUNK):
        where = at + tl.arange(0, CHUNK)
        chosen = tl.load(ids + where, mask=where < rows, other=BINS - 1)
        counts += tl.histogram(chosen, BINS)
    # Whole blocks per expert: a block multiplies by one expert's weights.
    needed = tl.where(bins < experts, (counts + BLOCK_M - 1) // BLOCK_M, 0)
    first = tl.sum(tl.where(bins < expert, needed, 0))
    end = first + tl.sum(tl.where(bins == expert, needed, 0))
    for at in range(first, end, CHUNK):
        block = at + tl.arange(0, CHUNK)
        tl.store(owners + block, tl.zeros((CHUNK,), dtype=tl.int32) + expert, mask=block < end)
    # The grid is for the worst case of padding; blocks without an owner end at once.
    if expert == experts - 1:
        for at in range(end, blocks, CHUNK):
            block = at + tl.arange(0, CHUNK)
            tl.store(owners + block, tl.full((CHUNK,), -1, dtype=tl.int32), mask=block < blocks)
    position = first * BLOCK_M
    for at in range(0, rows, CHUNK):
        where = at + tl.arange(0, CHUNK)
        chosen = tl.load(ids + where, mask=where < rows, other=BINS - 1)
        mine = (chosen == expert).to(tl.int32)
        # A prefix sum instead of atomics: rows have the same order in every launch.
        tl.store(order + position + tl.cumsum(mine, 0) - 1, where, mask=mine != 0)
        position += tl.sum(mine)
    padding = position + tl.arange(0, BLOCK_M)
    tl.store(
        order + padding, tl.zeros((BLOCK_M,), dtype=tl.int32) + rows, mask=padding < end * BLOCK_M
    )


@triton.jit
def moe_quantise(
    source, target, scales, k, LARGEST: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    """Quantise a row, or GROUP of its elements at a time, so that the largest becomes LARGEST."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = part * GROUP + tl.arange(0, BLOCK)
    inside = columns < k
    x = tl.load(source + row * k + columns, mask=inside, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-10)
    # Correctly rounded divisions: the same quantised elements on every device.
    scale = tl.div_rn(largest, tl.full((), LARGEST, tl.float32))
    inverse = tl.div_rn(tl.full((), 1.0, tl.float32), scale)
    quotient = tl.minimum(tl.maximum(x * inverse, -LARGEST), LARGEST)
    if target.dtype.element_ty == tl.int8:
        # Adding 1.5 · 2^23 rounds to the nearest integer, ties to even.
        quotient = (quotient + 12582912.0) - 12582912.0
    tl.store(target + row * k + columns, quotient.to(target.dtype.element_ty), mask=inside)
    tl.store(scales + row * tl.num_programs(1) + part, scale)


@triton.jit
def moe_tiles(
    a,
    w,
    a_scale,
    w_scale,
    weights,
    order,
    owners,
    c,
    rows,
    blocks,
    n,
    k,
    SHARED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    SCALE: tl.constexpr,
    GROUP: tl.constexpr,
    ACC: tl.constexpr,
    ZERO: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Compute C[row] = A[row // SHARED] · W[expert]ᵀ, times the row's weight if WEIGHTED. SCALE is
    none, or what has a factor of W: tensor, row, or block, of GROUP elements along each side."""
    block, column = tile_of(tl.program_id(0), blocks * BLOCK_M, n, BLOCK_M, BLOCK_N, GROUP_M)
    owner = tl.load(owners + block)
    if owner < 0:
        return
    mine = tl.load(order + block * BLOCK_M + tl.arange(0, BLOCK_M))
    inside = mine < rows
    # Padding reads the last row, and columns past the edge wrap around: no load needs a mask.
    source = (tl.minimum(mine, rows - 1) // SHARED).to(tl.int64)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    safe_columns = (columns % n).to(tl.int64)
    ks = tl.arange(0, BLOCK_K)
    a_at = a + source[:, None] * k + ks[None, :]
    w_at = w + (owner.to(tl.int64) * n + safe_columns[None, :]) * k + ks[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for at in range(0, k, BLOCK_K):
        if EVEN_K:
            x = tl.load(a_at)
            y = tl.load(w_at)
        else:
            x = tl.load(a_at, mask=ks[None, :] < k - at, other=ZERO)
            y = tl.load(w_at, mask=ks[:, None] < k - at, other=ZERO)
        if SCALE == "block":
            groups = k // GROUP
            of_rows = tl.load(a_scale + source * groups + at // GROUP)
            blocks_above = owner.to(tl.int64) * (n // GROUP)
            of_columns = tl.load(
                w_scale + (blocks_above + safe_columns // GROUP) * groups + at // GROUP
            )
            acc += tl.dot(x, y, out_dtype=ACC) * of_rows[:, None] * of_columns[None, :]
        else:
            acc = tl.dot(x, y, acc, input_precision=PRECISION, out_dtype=ACC)
        a_at += BLOCK_K
        w_at += BLOCK_K
    acc = acc.to(tl.float32)
    if SCALE == "tensor":
        acc *= tl.load(a_scale + source)[:, None] * tl.load(w_scale + owner)
    if SCALE == "row":
        of_columns = tl.load(w_scale + owner.to(tl.int64) * n + safe_columns)
        acc *= tl.load(a_scale + source)[:, None] * of_columns[None, :]
    if WEIGHTED:
        # In f32, before the result is rounded, as in vLLM's kernel.
        acc *= tl.load(weights + mine, mask=inside, other=0.0)[:, None]
    positions = mine.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(c + positions, acc, mask=inside[:, None] & (columns[None, :] < n))


@triton.jit
def moe_gate(gate_up, hidden, n, BLOCK: tl.constexpr):
    """Compute silu of a row's first half times its second half."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    # In f32: exp of a 16-bit number in 16 bits would lose most of its digits.
    gate = tl.load(gate_up + row * 2 * n + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * n + n + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(hidden + row * n + columns, gate / (1 + tl.exp(-gate)) * up, mask=inside)


@triton.jit
def moe_sum(parts, out, k, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """Sum a token's rows, in f32."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < k
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for slot in range(TOP_K):
        at = (token * TOP_K + slot) * k + columns
        total += tl.load(parts + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * k + columns, total, mask=inside)
