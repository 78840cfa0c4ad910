"""GEMM and strided-batched GEMM: D = alpha · op(A) · op(B) + beta · C + bias.

`gemm_tiles` works on any architecture. With split-K, the slices go to a float32 workspace and are
summed by `gemm_reduce`, or, with FUSED, by the last slice of each tile, which saves a launch.
`gemm_persistent` is for Hopper and later: tensor descriptors (TMA), one program per SM. `transpose`
runs before either if the matrix unit takes an operand only transposed.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of(pid, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Return row and column of a tile, in groups of GROUP_M rows so that B stays in the L2."""
    # Neighbours in a group share columns of B, and their rows of A are few enough to be cached.
    rows = tl.cdiv(m, BLOCK_M)
    columns = tl.cdiv(n, BLOCK_N)
    in_group = GROUP_M * columns
    group = pid // in_group
    first = group * GROUP_M
    height = min(rows - first, GROUP_M)
    return first + (pid % in_group) % height, (pid % in_group) // height


@triton.jit
def near(pid, count, XCDS: tl.constexpr):
    """Renumber programs so that neighbours run on one of XCDS chiplets and share its L2: an AMD GPU
    assigns consecutive programs to its chiplets round-robin. A permutation of `count` programs."""
    share = count // XCDS
    more = count % XCDS
    xcd = pid % XCDS
    # The first `more` chiplets get one program more.
    return xcd * share + tl.minimum(xcd, more) + pid // XCDS


@triton.jit
def finish(
    acc,
    c,
    bias,
    alpha,
    beta,
    rows,
    columns,
    n,
    inside,
    HAS_C: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    ZERO: tl.constexpr,
):
    """Apply alpha, beta · C and bias, in the accumulator's precision."""
    if SCALED:
        acc = (acc * alpha).to(acc.dtype)
    if HAS_C:
        old = tl.load(
            c + rows[:, None].to(tl.int64) * n + columns[None, :], mask=inside, other=ZERO
        )
        acc = acc + (old * beta).to(acc.dtype)
    if HAS_BIAS:
        row = tl.load(bias + columns, mask=columns < n, other=ZERO)
        acc = acc + row[None, :].to(acc.dtype)
    return acc


@triton.jit
def gemm_tiles(
    a,
    b,
    c,
    bias,
    d,
    parts,
    arrivals,
    m,
    n,
    k,
    k_split,
    alpha,
    beta,
    TA: tl.constexpr,
    TB: tl.constexpr,
    HAS_C: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    ZERO: tl.constexpr,
    ACC: tl.constexpr,
    EVEN_K: tl.constexpr,
    SPLIT: tl.constexpr,
    FUSED: tl.constexpr,
    SWAP: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    XCDS: tl.constexpr,
    CACHE: tl.constexpr,
):
    """Compute one tile of D, or of one K slice of it if SPLIT. FUSED is the number of slices that
    the last to arrive sums, or 0. SWAP computes the tile of Dᵀ, for matrix units that prefer many
    rows. CACHE is the cache modifier of B's loads."""
    pid = tl.program_id(0)
    if XCDS > 1:
        pid = near(pid, tl.num_programs(0), XCDS)
    row, column = tile_of(pid, m, n, BLOCK_M, BLOCK_N, GROUP_M)
    part = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    a += batch * m * k
    b += batch * k * n
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    # Past the edge, wrap around instead of masking every load. A remainder keeps what the compiler
    # knows about contiguous indices, which a minimum loses: it would load element by element.
    safe_rows = (rows % m).to(tl.int64)
    safe_columns = (columns % n).to(tl.int64)
    start = part * k_split
    ks = start + tl.arange(0, BLOCK_K)
    if TA:
        a_at = a + ks[None, :].to(tl.int64) * m + safe_rows[:, None]
        # In 64 bits: BLOCK_K rows of a wide matrix may exceed 2^31 elements.
        a_step = BLOCK_K * tl.cast(m, tl.int64)
    else:
        a_at = a + safe_rows[:, None] * k + ks[None, :]
        a_step = BLOCK_K
    if TB:
        b_at = b + safe_columns[None, :] * k + ks[:, None]
        b_step = BLOCK_K
    else:
        b_at = b + ks[:, None].to(tl.int64) * n + safe_columns[None, :]
        b_step = BLOCK_K * tl.cast(n, tl.int64)
    if SWAP:
        # Dᵀ has as many rows as B has columns, which fill a matrix unit of 64 rows.
        acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=ACC)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    end = min(start + k_split, k)
    for at in range(start, end, BLOCK_K):
        # Most k are multiples of the block: their loop computes no masks.
        if EVEN_K:
            x = tl.load(a_at)
            y = tl.load(b_at, cache_modifier=CACHE)
        else:
            left = end - at
            offsets = tl.arange(0, BLOCK_K)
            x = tl.load(a_at, mask=offsets[None, :] < left, other=ZERO)
            y = tl.load(b_at, mask=offsets[:, None] < left, other=ZERO, cache_modifier=CACHE)
        if SWAP:
            acc = tl.dot(y.T, x.T, acc, input_precision=PRECISION, out_dtype=ACC)
        else:
            acc = tl.dot(x, y, acc, input_precision=PRECISION, out_dtype=ACC)
        a_at += a_step
        b_at += b_step
    if SWAP:
        acc = acc.T
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    positions = rows[:, None].to(tl.int64) * n + columns[None, :]
    if SPLIT:
        # Slices stay in the accumulator's type: rounding each would add an error per slice.
        parts += batch * tl.num_programs(1) * m * n
        tl.store(parts + part.to(tl.int64) * m * n + positions, acc, mask=inside)
    if FUSED:
        # All threads' stores must come before the atomic that announces them.
        tl.debug_barrier()
        mine = arrivals + tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        before = tl.atomic_add(mine, 1, sem="acq_rel")
        if before == FUSED - 1:
            # Reset for the next launch, which starts after this one: relaxed order suffices.
            tl.atomic_xchg(mine, 0, sem="relaxed")
            # In slice order, so that the result is bit-reproducible; .cg bypasses the L1, which may
            # be stale. Small tiles unroll the loop, so that loads of all slices are in flight at
            # once; large ones have enough loads in one slice, and no registers for more.
            acc = tl.load(parts + positions, mask=inside, other=ZERO, cache_modifier=".cg")
            if BLOCK_M * BLOCK_N <= 4096:
                for _ in tl.static_range(1, FUSED):
                    parts += tl.cast(m, tl.int64) * n
                    acc += tl.load(parts + positions, mask=inside, other=ZERO, cache_modifier=".cg")
            else:
                for _ in range(1, tl.num_programs(1)):
                    parts += tl.cast(m, tl.int64) * n
                    acc += tl.load(parts + positions, mask=inside, other=ZERO, cache_modifier=".cg")
            acc = finish(
                acc,
                c + batch * m * n,
                bias,
                alpha,
                beta,
                rows,
                columns,
                n,
                inside,
                HAS_C,
                HAS_BIAS,
                SCALED,
                ZERO,
            )
            tl.store(d + batch * m * n + positions, acc.to(d.dtype.element_ty), mask=inside)
    if not SPLIT:
        c += batch * m * n
        d += batch * m * n
        acc = finish(
            acc, c, bias, alpha, beta, rows, columns, n, inside, HAS_C, HAS_BIAS, SCALED, ZERO
        )
        tl.store(d + positions, acc.to(d.dtype.element_ty), mask=inside)


@triton.jit
def gemm_reduce(
    parts,
    c,
    bias,
    d,
    m,
    n,
    alpha,
    beta,
    HAS_C: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    ZERO: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum the K slices, in slice order, so that the result is bit-reproducible."""
    batch = tl.program_id(1).to(tl.int64)
    size = tl.cast(m, tl.int64) * n
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    parts += batch * PARTS * size
    acc = tl.load(parts + at, mask=inside, other=ZERO)
    # Unrolled: the loads of all slices are independent and in flight together.
    for part in tl.static_range(1, PARTS):
        acc += tl.load(parts + part * size + at, mask=inside, other=ZERO)
    if SCALED:
        acc = (acc * alpha).to(acc.dtype)
    if HAS_C:
        old = tl.load(c + batch * size + at, mask=inside, other=ZERO)
        acc += (old * beta).to(acc.dtype)
    if HAS_BIAS:
        acc += tl.load(bias + at % n, mask=inside, other=ZERO).to(acc.dtype)
    tl.store(d + batch * size + at, acc.to(d.dtype.element_ty), mask=inside)


@triton.jit
def gemm_persistent(
    a_tiles,
    b_tiles,
    c,
    bias,
    d_tiles,
    m,
    n,
    k,
    batches,
    alpha,
    beta,
    TA: tl.constexpr,
    TB: tl.constexpr,
    HAS_C: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    ZERO: tl.constexpr,
    ACC: tl.constexpr,
    SPECIALIZE: tl.constexpr,
    HALVES: tl.constexpr,
    SWAP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Compute all tiles, PROGRAMS at a time; A, B and D are tensor descriptors (TMA). With
    SPECIALIZE some warps load and others multiply; without, the loops are flattened, so that loads
    continue across tiles. HALVES stores a tile in two steps, which halves the shared memory for its
    output. SWAP computes the tile of Dᵀ.

    A batch is a row range of one tall matrix, so that one descriptor serves all batches; this needs
    the rows of a batch to be a multiple of the block, which the plan checks.
    """
    WIDTH: tl.constexpr = BLOCK_N // 2 if HALVES else BLOCK_N
    # As many programs as are resident: stores overlap the next tile's loads.
    per_batch = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    steps = tl.cdiv(k, BLOCK_K)
    for tile in tl.range(
        tl.program_id(0),
        per_batch * batches,
        PROGRAMS,
        flatten=not SPECIALIZE,
        warp_specialize=SPECIALIZE,
    ):
        batch = tile // per_batch
        row, column = tile_of(tile % per_batch, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        row *= BLOCK_M
        column *= BLOCK_N
        if SWAP:
            acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=ACC)
        else:
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
        for step in range(steps):
            at = step * BLOCK_K
            if TA:
                x = a_tiles.load([batch * k + at, row]).T
            else:
                x = a_tiles.load([batch * m + row, at])
            if TB:
                y = b_tiles.load([batch * n + column, at]).T
            else:
                y = b_tiles.load([batch * k + at, column])
            if SWAP:
                acc = tl.dot(y.T, x.T, acc, out_dtype=ACC)
            else:
                acc = tl.dot(x, y, acc, out_dtype=ACC)
        if SWAP:
            acc = acc.T
        if HAS_C or HAS_BIAS or SCALED:
            rows = row + tl.arange(0, BLOCK_M)
            columns = column + tl.arange(0, BLOCK_N)
            inside = (rows[:, None] < m) & (columns[None, :] < n)
            size = tl.cast(m, tl.int64) * n
            acc = finish(
                acc,
                c + batch * size,
                bias,
                alpha,
                beta,
                rows,
                columns,
                n,
                inside,
                HAS_C,
                HAS_BIAS,
                SCALED,
                ZERO,
            )
        done = acc.to(d_tiles.dtype)
        if HALVES:
            left, right = done.reshape(BLOCK_M, 2, WIDTH).permute(0, 2, 1).split()
            d_tiles.store([batch * m + row, column], left)
            d_tiles.store([batch * m + row, column + WIDTH], right)
        else:
            d_tiles.store([batch * m + row, column], done)


@triton.jit
def transpose(source, target, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Transpose every matrix of a batch."""
    across = tl.cdiv(columns, BLOCK_C)
    tiles = tl.cdiv(rows, BLOCK_R) * across
    tile = tl.program_id(0) % tiles
    batch = (tl.program_id(0) // tiles).to(tl.int64) * rows * columns
    row = tile // across * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tile % across * BLOCK_C + tl.arange(0, BLOCK_C)
    # Lanes read along columns and write along rows: `values.T` exchanges them in shared memory.
    there = batch + row[:, None].to(tl.int64) * columns + column[None, :]
    values = tl.load(source + there, mask=(row[:, None] < rows) & (column[None, :] < columns))
    here = batch + column[:, None].to(tl.int64) * rows + row[None, :]
    tl.store(target + here, values.T, mask=(column[:, None] < columns) & (row[None, :] < rows))


@triton.jit
def upcast(source, target, count, BLOCK: tl.constexpr):
    """Convert every element to the type of the target."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + at, mask=at < count)
    tl.store(target + at, values.to(target.dtype.element_ty), mask=at < count)
