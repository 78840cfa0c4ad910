"""Conversion of an operand before a kernel: transposed, or upcast."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def transpose(source, target, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Transpose every matrix of a batch."""
    across = tl.cdiv(columns, BLOCK_C)
    tiles = tl.cdiv(rows, BLOCK_R) * across
    tile = tl.program_id(0) % tiles
    batch = (tl.program_id(0) // tiles).to(tl.int64) * rows * columns
    row = tile // across * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tile % across * BLOCK_C + tl.arange(0, BLOCK_C)
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
