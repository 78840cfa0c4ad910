"""Attention forward: O = softmax(scale · Q · Kᵀ) · V, with an online softmax.

In `attention_tiles` each program computes a block of queries of one head. `attention_split` is for
few queries: it packs the query heads of a group into one block of rows and splits the keys over
programs; `attention_join` combines the parts. A causal mask is aligned at the last query.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def absorb(
    acc, top, total, x, k_tile, v_tile, scale, seen, WEIGHT: tl.constexpr, MASKED: tl.constexpr
):
    """Add one block of keys and values to the running maximum, sum and output.

    If MASKED, `seen` is the mask of the pairs that count. Scores are in units of log2, so that the
    exponential is one instruction.
    """
    scores = tl.dot(x, k_tile) * scale
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    if MASKED:
        # A fully masked row would give inf - inf.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
    else:
        base = new_top
    # The maximum is subtracted first: no exponential exceeds 1, so f32 cannot overflow.
    weights = tl.math.exp2(scores - base[:, None])
    shrink = tl.math.exp2(top - base)
    # What was summed below the old maximum is brought to the new one.
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None]
    # Both operands in 16 bits: matrix units do not multiply f32 by a narrower type.
    acc = tl.dot(weights.to(WEIGHT), v_tile.to(WEIGHT), acc)
    return acc, new_top, total


@triton.jit
def edge_of(
    k,
    v,
    k_row,
    v_row,
    where,
    end,
    DIM_QK: tl.constexpr,
    DIM_V: tl.constexpr,
    PAD_QK: tl.constexpr,
    PAD_V: tl.constexpr,
):
    """Return the keys (as columns) and values (as rows) at `where`, zeros from `end` on."""
    # Blocks have power-of-two sides; zeros beyond the head's dim add nothing to a dot product.
    columns = tl.arange(0, PAD_QK)
    v_columns = tl.arange(0, PAD_V)
    k_tile = tl.load(
        k + where[None, :].to(tl.int64) * k_row + columns[:, None],
        mask=(columns[:, None] < DIM_QK) & (where[None, :] < end),
        other=0.0,
    )
    v_tile = tl.load(
        v + where[:, None].to(tl.int64) * v_row + v_columns[None, :],
        mask=(v_columns[None, :] < DIM_V) & (where[:, None] < end),
        other=0.0,
    )
    return k_tile, v_tile


@triton.jit
def attention_tiles(
    q,
    k,
    v,
    o,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    o_batch,
    o_head,
    o_row,
    heads_q,
    group,
    seq_q,
    seq_kv,
    scale,
    DIM_QK: tl.constexpr,
    DIM_V: tl.constexpr,
    PAD_QK: tl.constexpr,
    PAD_V: tl.constexpr,
    CAUSAL: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
    WEIGHT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute a block of BLOCK_M queries of one head against all keys that they attend to. With
    DESCRIPTORS, k and v are tensor descriptors (TMA). With HEADS_FIRST, neighbouring programs have
    different heads; otherwise the same head, whose keys they share in the L2."""
    block = tl.program_id(1 if HEADS_FIRST else 0)
    if CAUSAL:
        # The last queries attend to most keys: start the long programs first.
        block = tl.num_programs(1 if HEADS_FIRST else 0) - 1 - block
    pair = tl.program_id(0 if HEADS_FIRST else 1)
    # In 64 bits: the offset of a head in a large cache exceeds 2^31 elements.
    batch = (pair // heads_q).to(tl.int64)
    head = (pair % heads_q).to(tl.int64)
    q += batch * q_batch + head * q_head
    item = pair // heads_q
    shared = (pair % heads_q) // group
    if not DESCRIPTORS:
        k += batch * k_batch + (head // group) * k_head
        v += batch * v_batch + (head // group) * v_head
    o += batch * o_batch + head * o_head
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, PAD_QK)
    places = tl.arange(0, BLOCK_N)
    v_columns = tl.arange(0, PAD_V)
    x = tl.load(
        q + rows[:, None].to(tl.int64) * q_row + columns[None, :],
        mask=(rows[:, None] < seq_q) & (columns[None, :] < DIM_QK),
        other=0.0,
    )
    acc = tl.zeros((BLOCK_M, PAD_V), dtype=tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    ahead = seq_kv - seq_q
    # Keys before `whole` are seen by every query of the block: only the rest needs a mask.
    if CAUSAL:
        end = min(seq_kv, ahead + (block + 1) * BLOCK_M)
        whole = (ahead + block * BLOCK_M + 1) // BLOCK_N * BLOCK_N
    else:
        end = seq_kv
        whole = seq_kv // BLOCK_N * BLOCK_N
    whole = min(whole, end)
    for at in range(0, whole, BLOCK_N):
        if DESCRIPTORS:
            # TMA copies a tile by one instruction and needs no registers for its addresses.
            k_tile = k.load([item, shared, at, 0]).reshape(BLOCK_N, PAD_QK).T
            v_tile = v.load([item, shared, at, 0]).reshape(BLOCK_N, PAD_V)
        else:
            where = (at + places).to(tl.int64)
            # A mask that is true everywhere would still be computed in the inner loop.
            if DIM_QK == PAD_QK:
                k_tile = tl.load(k + where[None, :] * k_row + columns[:, None])
            else:
                k_tile = tl.load(
                    k + where[None, :] * k_row + columns[:, None],
                    mask=columns[:, None] < DIM_QK,
                    other=0.0,
                )
            if DIM_V == PAD_V:
                v_tile = tl.load(v + where[:, None] * v_row + v_columns[None, :])
            else:
                v_tile = tl.load(
                    v + where[:, None] * v_row + v_columns[None, :],
                    mask=v_columns[None, :] < DIM_V,
                    other=0.0,
                )
        acc, top, total = absorb(acc, top, total, x, k_tile, v_tile, scale, None, WEIGHT, False)
    for at in range(whole, end, BLOCK_N):
        where = at + places
        if DESCRIPTORS:
            k_tile = k.load([item, shared, at, 0]).reshape(BLOCK_N, PAD_QK).T
            v_tile = v.load([item, shared, at, 0]).reshape(BLOCK_N, PAD_V)
        else:
            k_tile, v_tile = edge_of(
                k, v, k_row, v_row, where, seq_kv, DIM_QK, DIM_V, PAD_QK, PAD_V
            )
        seen = where[None, :] < seq_kv
        if CAUSAL:
            seen = seen & (where[None, :] <= ahead + rows[:, None])
        acc, top, total = absorb(acc, top, total, x, k_tile, v_tile, scale, seen, WEIGHT, True)
    # One division per output at the end, instead of one per block of keys.
    acc = acc / total[:, None]
    tl.store(
        o + rows[:, None].to(tl.int64) * o_row + v_columns[None, :],
        acc.to(o.dtype.element_ty),
        mask=(rows[:, None] < seq_q) & (v_columns[None, :] < DIM_V),
    )


@triton.jit
def attention_split(
    q,
    k,
    v,
    parts,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    heads_kv,
    group,
    seq_q,
    seq_kv,
    keys_part,
    scale,
    DIM_QK: tl.constexpr,
    DIM_V: tl.constexpr,
    PAD_QK: tl.constexpr,
    PAD_V: tl.constexpr,
    CAUSAL: tl.constexpr,
    WEIGHT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute one range of the keys for rows of (query head of the group, query).

    A part is a row of DIM_V outputs, then its maximum and its sum.
    """
    part = tl.program_id(0)
    pair = tl.program_id(1)
    block = tl.program_id(2)
    batch = (pair // heads_kv).to(tl.int64)
    head = (pair % heads_kv).to(tl.int64)
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    # A matrix instruction has at least 16 rows: a group's heads fill them when queries are few.
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    count = group * seq_q
    query = rows % seq_q
    query_head = head * group + rows // seq_q
    columns = tl.arange(0, PAD_QK)
    v_columns = tl.arange(0, PAD_V)
    places = tl.arange(0, BLOCK_N)
    q_at = q + batch * q_batch + query_head * q_head + query.to(tl.int64) * q_row
    x = tl.load(
        q_at[:, None] + columns[None, :],
        mask=(rows[:, None] < count) & (columns[None, :] < DIM_QK),
        other=0.0,
    )
    acc = tl.zeros((BLOCK_M, PAD_V), dtype=tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    start = part * keys_part
    end = min(start + keys_part, seq_kv)
    ahead = seq_kv - seq_q
    # Keys and values are read once for all heads of the group: they bound the time of a decode.
    for at in range(start, end, BLOCK_N):
        where = at + places
        k_tile, v_tile = edge_of(k, v, k_row, v_row, where, end, DIM_QK, DIM_V, PAD_QK, PAD_V)
        seen = where[None, :] < end
        if CAUSAL:
            seen = seen & (where[None, :] <= ahead + query[:, None])
        acc, top, total = absorb(acc, top, total, x, k_tile, v_tile, scale, seen, WEIGHT, True)
    width = DIM_V + 2
    at_part = (pair.to(tl.int64) * tl.num_programs(0) + part) * count + rows
    target = parts + at_part * width
    inside = rows < count
    tl.store(
        target[:, None] + v_columns[None, :],
        acc,
        mask=inside[:, None] & (v_columns[None, :] < DIM_V),
    )
    tl.store(target + DIM_V, top, mask=inside)
    tl.store(target + DIM_V + 1, total, mask=inside)


@triton.jit
def attention_join(
    parts,
    o,
    o_batch,
    o_head,
    o_row,
    heads_kv,
    group,
    seq_q,
    DIM_V: tl.constexpr,
    PAD_V: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Combine the parts of one output row, weighted by exp2(own maximum - overall maximum)."""
    row = tl.program_id(0)
    pair = tl.program_id(1)
    count = group * seq_q
    width = DIM_V + 2
    columns = tl.arange(0, PAD_V)
    inside = columns < DIM_V
    base = parts + (pair.to(tl.int64) * PARTS * count + row) * width
    step = tl.cast(count, tl.int64) * width
    # Weights are relative to the overall maximum, so it is found before any part is added.
    top = tl.load(base + DIM_V)
    for part in range(1, PARTS):
        top = tl.maximum(top, tl.load(base + part * step + DIM_V))
    acc = tl.zeros((PAD_V,), dtype=tl.float32)
    total = 0.0
    for part in range(PARTS):
        at = base + part * step
        weight = tl.math.exp2(tl.load(at + DIM_V) - top)
        acc += weight * tl.load(at + columns, mask=inside, other=0.0)
        total += weight * tl.load(at + DIM_V + 1)
    batch = (pair // heads_kv).to(tl.int64)
    head = (pair % heads_kv).to(tl.int64) * group + row // seq_q
    target = o + batch * o_batch + head * o_head + (row % seq_q).to(tl.int64) * o_row
    tl.store(target + columns, (acc / total).to(o.dtype.element_ty), mask=inside)
