"""GEMMs of quantised operands: D[i] = A[i] · B[i]ᵀ with scales, + bias[i].

`scaled_tiles` multiplies 8-bit floats with scales of tensors, rows or blocks; `int8_tiles` scales
rows and columns after an integer GEMM; `group_tiles` quantises A one group of K at a time;
`mxfp4_native_tiles` multiplies MXFP4 on matrix units that support it, and `mxfp4_emulated_tiles`
decodes it to 16 bits for others. With SPLIT each writes a float32 part of K to a workspace that
`quantized_reduce` sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernelmark.kernels.triton.gemm import tile_of


@triton.jit
def lines_of(rows, batch, batches, m, SWAPPED: tl.constexpr):
    """Return the line index in a matrix stored batch×m, or m×batch when SWAPPED."""
    if SWAPPED:
        return rows.to(tl.int64) * batches + batch
    return batch * m + rows.to(tl.int64)


@triton.jit
def tile_indices(
    batches,
    m,
    n,
    A_SWAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Return rows, columns and batch of this program's tile, and the lines of A and B that it
    reads, which wrap around at the edge."""
    row, column = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M)
    batch = tl.program_id(2).to(tl.int64)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    a_lines = lines_of(rows % m, batch, batches, m, A_SWAPPED)
    b_lines = batch * n + (columns % n).to(tl.int64)
    return rows, columns, batch, a_lines, b_lines


@triton.jit
def put(
    acc,
    bias,
    d,
    rows,
    columns,
    batch,
    batches,
    m,
    n,
    SWAPPED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Store a finished tile in D, or in this part's slice of the workspace."""
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    if SPLIT:
        # A part is f32 and in the order of the problem: only the reduction writes D's order.
        lines = (batch * tl.num_programs(1) + tl.program_id(1)) * m + rows.to(tl.int64)
        out = acc
    else:
        lines = lines_of(rows, batch, batches, m, SWAPPED)
        out = acc.to(d.dtype.element_ty)
        if HAS_BIAS:
            # Rounded before the bias is added, as in the library kernels that this one imitates.
            out += tl.load(bias + batch * n + columns, mask=columns < n, other=0)[None, :]
    tl.store(d + lines[:, None] * n + columns[None, :], out, mask=inside)


@triton.jit
def int8_tiles(
    a,
    b,
    a_scale,
    b_scale,
    bias,
    d,
    batches,
    m,
    n,
    k,
    k_split,
    A_SWAPPED: tl.constexpr,
    D_SWAPPED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Compute int8 · int8, then apply a factor for each row of A and each row of B."""
    rows, columns, batch, a_lines, b_lines = tile_indices(
        batches, m, n, A_SWAPPED, BLOCK_M, BLOCK_N, GROUP_M
    )
    start = tl.program_id(1) * k_split
    # Both operands have k innermost, as 8-bit matrix instructions read them.
    ks = start + tl.arange(0, BLOCK_K)
    a_at = a + a_lines[:, None] * k + ks[None, :]
    b_at = b + b_lines[None, :] * k + ks[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    end = min(start + k_split, k)
    for at in range(start, end, BLOCK_K):
        if EVEN_K:
            x = tl.load(a_at)
            y = tl.load(b_at)
        else:
            left = end - at
            offsets = tl.arange(0, BLOCK_K)
            x = tl.load(a_at, mask=offsets[None, :] < left, other=0)
            y = tl.load(b_at, mask=offsets[:, None] < left, other=0)
        # Exact: the plan refuses a k for which the sum could exceed 32 bits.
        total = tl.dot(x, y, total, out_dtype=tl.int32)
        a_at += BLOCK_K
        b_at += BLOCK_K
    # Scales are common to a row and a column, so they are applied once, after the sum.
    acc = total.to(tl.float32) * (
        tl.load(a_scale + a_lines)[:, None] * tl.load(b_scale + b_lines)[None, :]
    )
    put(acc, bias, d, rows, columns, batch, batches, m, n, D_SWAPPED, HAS_BIAS, SPLIT)


@triton.jit
def scaled_tiles(
    a,
    b,
    a_scale,
    b_scale,
    bias,
    d,
    batches,
    m,
    n,
    k,
    k_split,
    A_SWAPPED: tl.constexpr,
    D_SWAPPED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    SPLIT: tl.constexpr,
    SCALE: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Compute the product of 8-bit floats with the factors of SCALE: tensor, row, or block, which
    has a factor per GROUP elements of a row of A and per GROUP × GROUP elements of B."""
    rows, columns, batch, a_lines, b_lines = tile_indices(
        batches, m, n, A_SWAPPED, BLOCK_M, BLOCK_N, GROUP_M
    )
    start = tl.program_id(1) * k_split
    ks = start + tl.arange(0, BLOCK_K)
    a_at = a + a_lines[:, None] * k + ks[None, :]
    b_at = b + b_lines[None, :] * k + ks[:, None]
    groups = k // GROUP
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    end = min(start + k_split, k)
    for at in range(start, end, BLOCK_K):
        if EVEN_K:
            x = tl.load(a_at)
            y = tl.load(b_at)
        else:
            left = end - at
            offsets = tl.arange(0, BLOCK_K)
            x = tl.load(a_at, mask=offsets[None, :] < left, other=0.0)
            y = tl.load(b_at, mask=offsets[:, None] < left, other=0.0)
        if SCALE == "block":
            of_rows = tl.load(a_scale + a_lines * groups + at // GROUP)
            part = tl.dot(x, y, out_dtype=tl.float32)
            if BLOCK_N <= GROUP:
                # All columns of the tile share a factor: one multiplication per row.
                of_tile = tl.load(
                    b_scale + tl.min(columns, 0).to(tl.int64) // GROUP * groups + at // GROUP
                )
                acc += part * (of_rows * of_tile)[:, None]
            else:
                of_columns = tl.load(b_scale + b_lines // GROUP * groups + at // GROUP)
                acc += part * of_rows[:, None] * of_columns[None, :]
        else:
            acc = tl.dot(x, y, acc, out_dtype=tl.float32)
        a_at += BLOCK_K
        b_at += BLOCK_K
    if SCALE == "row":
        acc *= tl.load(a_scale + a_lines)[:, None] * tl.load(b_scale + b_lines)[None, :]
    elif SCALE == "tensor":
        acc *= tl.load(a_scale) * tl.load(b_scale)
    put(acc, bias, d, rows, columns, batch, batches, m, n, D_SWAPPED, HAS_BIAS, SPLIT)


@triton.jit
def group_tiles(
    a,
    b,
    a_scale,
    b_scale,
    bias,
    d,
    batches,
    m,
    n,
    k,
    k_split,
    A_SWAPPED: tl.constexpr,
    D_SWAPPED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    SPLIT: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Quantise A in the kernel, with a scale per BLOCK_K of a row; B has a single scale."""
    rows, columns, batch, a_lines, b_lines = tile_indices(
        batches, m, n, A_SWAPPED, BLOCK_M, BLOCK_N, GROUP_M
    )
    start = tl.program_id(1) * k_split
    ks = start + tl.arange(0, BLOCK_K)
    a_at = a + a_lines[:, None] * k + ks[None, :]
    b_at = b + b_lines[None, :] * k + ks[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    end = min(start + k_split, k)
    for at in range(start, end, BLOCK_K):
        if EVEN_K:
            x = tl.load(a_at).to(tl.float32)
            y = tl.load(b_at)
        else:
            left = end - at
            offsets = tl.arange(0, BLOCK_K)
            x = tl.load(a_at, mask=offsets[None, :] < left, other=0.0).to(tl.float32)
            y = tl.load(b_at, mask=offsets[:, None] < left, other=0.0)
        # A group is as long as the block: one read of A gives its maximum and its elements.
        largest = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-10)
        # Correctly rounded divisions: the same quantised elements on every device.
        scale = tl.div_rn(largest, tl.full((BLOCK_M,), LARGEST, tl.float32))
        inverse = tl.div_rn(tl.full((BLOCK_M,), 1.0, tl.float32), scale)
        quotient = tl.minimum(tl.maximum(x * inverse[:, None], -LARGEST), LARGEST)
        if b.dtype.element_ty == tl.int8:
            # Adding 1.5 · 2^23 rounds to the nearest integer, ties to even.
            whole = (quotient + 12582912.0) - 12582912.0
            part = tl.dot(whole.to(tl.int8), y, out_dtype=tl.int32).to(tl.float32)
        else:
            part = tl.dot(quotient.to(b.dtype.element_ty), y, out_dtype=tl.float32)
        acc += part * scale[:, None]
        a_at += BLOCK_K
        b_at += BLOCK_K
    acc *= tl.load(b_scale)
    put(acc, bias, d, rows, columns, batch, batches, m, n, D_SWAPPED, HAS_BIAS, SPLIT)


@triton.jit
def group_exponents(x):
    """Return the e8m0 codes of the groups of x[rows, groups, 32] (f32), as integers."""
    largest = tl.max(tl.abs(x), axis=2)
    # A significand of 1.75 or more carries into the exponent.
    exponent = (largest.to(tl.int32, bitcast=True) + 0x200000) >> 23
    return tl.where(exponent >= 255, 254, tl.maximum(exponent - 2, 0))


@triton.jit
def power_of(codes):
    """Return 2^(code - 127) as f32; the lowest code is a subnormal number."""
    return tl.where(codes == 0, 0x400000, codes << 23).to(tl.float32, bitcast=True)


@triton.jit
def element_codes(x, exponents):
    """Return the 4-bit codes of x[rows, groups, 32] with the exponents of its groups."""
    scaled = x * power_of(254 - exponents)[:, :, None]
    size = tl.abs(scaled)
    # Comparisons with the midpoints of neighbours, > or >= so that ties go to the even code.
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32)
    code += (size > 1.25).to(tl.int32) + (size >= 1.75).to(tl.int32)
    code += (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    negative = (x.to(tl.int32, bitcast=True) >> 31) & 8
    return code | negative


@triton.jit
def numbers_of(codes):
    """Return the values of 4-bit codes (integers), as f32."""
    size = codes & 7
    # From 1.0 on, the code has exponent and fraction bits as in a float; 0.5 and 0 are special.
    bits = tl.where(size >= 2, (size << 22) + 0x3F000000, size * 0x3F000000)
    return (bits | ((codes & 8) << 28)).to(tl.float32, bitcast=True)


@triton.jit
def decoded(packed, exponents, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """Return MXFP4 as f32, from bytes [ROWS, DEPTH / 2] with two codes each and e8m0 codes [ROWS,
    DEPTH / 32]."""
    low = (packed & 15).to(tl.int32)
    high = (packed >> 4).to(tl.int32)
    # The low half of a byte is the first element, as OCP's MX format and the libraries store it.
    codes = tl.reshape(tl.join(low, high), (ROWS, DEPTH // 32, 32))
    numbers = numbers_of(codes) * power_of(exponents.to(tl.int32))[:, :, None]
    return tl.reshape(numbers, (ROWS, DEPTH))


@triton.jit
def columns_of(
    base,
    lines,
    k,
    at,
    left,
    EVEN_K: tl.constexpr,
    DEPTH: tl.constexpr,
    PER: tl.constexpr,
    DOWN: tl.constexpr = False,
):
    """Return DEPTH elements from `at` on of each line, with PER elements per stored one; zeros
    beyond the first `left`. With DOWN a line is a column of the result."""
    columns = tl.arange(0, DEPTH // PER)
    if DOWN:
        where = base + lines[None, :] * (k // PER) + (at // PER + columns)[:, None]
        inside = columns[:, None] * PER < left
    else:
        where = base + lines[:, None] * (k // PER) + (at // PER + columns)[None, :]
        inside = columns[None, :] * PER < left
    if EVEN_K:
        return tl.load(where)
    return tl.load(where, mask=inside, other=0)


@triton.jit
def quantised_of(
    base, lines, k, at, left, EVEN_K: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr
):
    """Return 16-bit elements as MXFP4: codes [ROWS, DEPTH / 32, 32] and e8m0 codes, as integers."""
    x = columns_of(base, lines, k, at, left, EVEN_K, DEPTH, 1).to(tl.float32)
    x = tl.reshape(x, (ROWS, DEPTH // 32, 32))
    exponents = group_exponents(x)
    return element_codes(x, exponents), exponents


@triton.jit
def mxfp4_emulated_tiles(
    a,
    b,
    a_scale,
    b_scale,
    bias,
    d,
    batches,
    m,
    n,
    k,
    k_split,
    A_SWAPPED: tl.constexpr,
    D_SWAPPED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    SPLIT: tl.constexpr,
    QUANTISE_A: tl.constexpr,
    PRODUCT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Multiply MXFP4 decoded to PRODUCT, which represents every such number exactly."""
    rows, columns, batch, a_lines, b_lines = tile_indices(
        batches, m, n, A_SWAPPED, BLOCK_M, BLOCK_N, GROUP_M
    )
    start = tl.program_id(1) * k_split
    end = min(start + k_split, k)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for at in range(start, end, BLOCK_K):
        left = end - at
        if QUANTISE_A:
            codes, exponents = quantised_of(a, a_lines, k, at, left, EVEN_K, BLOCK_M, BLOCK_K)
            x = tl.reshape(numbers_of(codes) * power_of(exponents)[:, :, None], (BLOCK_M, BLOCK_K))
        else:
            packed = columns_of(a, a_lines, k, at, left, EVEN_K, BLOCK_K, 2)
            exponents = columns_of(a_scale, a_lines, k, at, left, EVEN_K, BLOCK_K, 32)
            x = decoded(packed, exponents, BLOCK_M, BLOCK_K)
        # B is decoded again for every tile of rows: the price of a unit without this format.
        packed = columns_of(b, b_lines, k, at, left, EVEN_K, BLOCK_K, 2)
        exponents = columns_of(b_scale, b_lines, k, at, left, EVEN_K, BLOCK_K, 32)
        y = decoded(packed, exponents, BLOCK_N, BLOCK_K)
        acc = tl.dot(x.to(PRODUCT), tl.trans(y.to(PRODUCT)), acc, out_dtype=tl.float32)
    put(acc, bias, d, rows, columns, batch, batches, m, n, D_SWAPPED, HAS_BIAS, SPLIT)


@triton.jit
def mxfp4_native_tiles(
    a,
    b,
    a_scale,
    b_scale,
    bias,
    d,
    batches,
    m,
    n,
    k,
    k_split,
    A_SWAPPED: tl.constexpr,
    D_SWAPPED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    SPLIT: tl.constexpr,
    QUANTISE_A: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Multiply MXFP4 by the matrix unit's scaled instruction."""
    rows, columns, batch, a_lines, b_lines = tile_indices(
        batches, m, n, A_SWAPPED, BLOCK_M, BLOCK_N, GROUP_M
    )
    start = tl.program_id(1) * k_split
    end = min(start + k_split, k)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for at in range(start, end, BLOCK_K):
        left = end - at
        if QUANTISE_A:
            codes, exponents = quantised_of(a, a_lines, k, at, left, EVEN_K, BLOCK_M, BLOCK_K)
            low, high = tl.split(tl.reshape(codes, (BLOCK_M, BLOCK_K // 2, 2)))
            # Packed in registers, in the layout that a stored operand has.
            x = (low | (high << 4)).to(tl.uint8)
            x_scale = exponents.to(tl.uint8)
        else:
            x = columns_of(a, a_lines, k, at, left, EVEN_K, BLOCK_K, 2)
            x_scale = columns_of(a_scale, a_lines, k, at, left, EVEN_K, BLOCK_K, 32)
        y = columns_of(b, b_lines, k, at, left, EVEN_K, BLOCK_K, 2, DOWN=True)
        y_scale = columns_of(b_scale, b_lines, k, at, left, EVEN_K, BLOCK_K, 32)
        # Blackwell and gfx950 take packed elements and e8m0 scales as they are stored.
        acc = tl.dot_scaled(x, x_scale, "e2m1", y, y_scale, "e2m1", acc)
    put(acc, bias, d, rows, columns, batch, batches, m, n, D_SWAPPED, HAS_BIAS, SPLIT)


@triton.jit
def quantized_reduce(
    parts,
    bias,
    d,
    batches,
    m,
    n,
    D_SWAPPED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum the parts of K, in their order, so that the result is bit-reproducible."""
    batch = tl.program_id(1).to(tl.int64)
    size = tl.cast(m, tl.int64) * n
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    parts += batch * PARTS * size
    acc = tl.load(parts + at, mask=inside, other=0)
    for part in tl.static_range(1, PARTS):
        acc += tl.load(parts + part * size + at, mask=inside, other=0)
    # Rounded before the bias is added, as without a split.
    out = acc.to(d.dtype.element_ty)
    row, column = at // n, at % n
    if HAS_BIAS:
        out += tl.load(bias + batch * n + column, mask=inside, other=0)
    lines = row * batches + batch if D_SWAPPED else batch * m + row
    tl.store(d + lines * n + column, out, mask=inside)
