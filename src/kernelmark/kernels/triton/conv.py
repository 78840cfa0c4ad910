"""2-D convolution forward as an implicit GEMM: pixels × filters, summed over taps and channels.

`conv_tiles` reads any layout by pointers. `conv_patches` is for Hopper and later, channels
innermost and stride 1: each tap of a patch of pixels is one box of the image for the TMA, which
fills padding with zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernelmark.kernels.triton.gemm import tile_of


@triton.jit
def conv_tiles(
    x,
    w,
    y,
    pixels,
    height,
    width,
    rows_out,
    columns_out,
    depth,
    filters,
    x_image,
    x_row,
    x_column,
    x_channel,
    w_filter,
    w_row,
    w_column,
    w_channel,
    y_image,
    y_row,
    y_column,
    y_channel,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    TAPS_H: tl.constexpr,
    TAPS_W: tl.constexpr,
    ACC: tl.constexpr,
    ZERO: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Compute a tile of output pixels × filters of one group, which has `depth` channels."""
    # An implicit GEMM: patches are read from X directly and never written to memory.
    row, column = tile_of(tl.program_id(0), pixels, filters, BLOCK_M, BLOCK_N, GROUP_M)
    group = tl.program_id(1)
    pixel = row * BLOCK_M + tl.arange(0, BLOCK_M)
    filt = column * BLOCK_N + tl.arange(0, BLOCK_N)
    per_image = rows_out * columns_out
    image = (pixel // per_image).to(tl.int64)
    spot = pixel % per_image
    out_row = spot // columns_out
    out_column = spot % columns_out
    channels = tl.arange(0, BLOCK_K)
    if WIDE:  # offsets in an image exceed 32 bits
        out_row = out_row.to(tl.int64)
        out_column = out_column.to(tl.int64)
        channels = channels.to(tl.int64)
    x += group.to(tl.int64) * depth * x_channel
    w += group.to(tl.int64) * filters * w_filter
    # One code for NCHW and NHWC: the stride that is 1 is a constant, so loads along it are wide.
    first_row = out_row * STRIDE_H - PAD_H
    first_column = out_column * STRIDE_W - PAD_W
    blocks = tl.cdiv(depth, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for step in range(TAPS_H * TAPS_W * blocks):
        tap = step // blocks
        channel = (step % blocks) * BLOCK_K + channels
        tap_row = tap // TAPS_W
        tap_column = tap % TAPS_W
        in_row = first_row + tap_row * DILATION_H
        in_column = first_column + tap_column * DILATION_W
        # A tap on padding is masked: it costs a multiplication but no memory traffic.
        inside = (pixel < pixels) & (in_row >= 0) & (in_row < height)
        inside = inside & (in_column >= 0) & (in_column < width)
        at = image * x_image + in_row * x_row + in_column * x_column
        pixels_tile = tl.load(
            x + at[:, None] + channel[None, :] * x_channel,
            mask=inside[:, None] & (channel[None, :] < depth),
            other=ZERO,
        )
        w_at = filt.to(tl.int64) * w_filter + tap_row * w_row + tap_column * w_column
        filter_tile = tl.load(
            w + w_at[None, :] + channel[:, None] * w_channel,
            mask=(filt[None, :] < filters) & (channel[:, None] < depth),
            other=ZERO,
        )
        acc = tl.dot(pixels_tile, filter_tile, acc, input_precision=PRECISION, out_dtype=ACC)
    positions = image * y_image + out_row * y_row + out_column * y_column
    out = (group * filters + filt).to(tl.int64) * y_channel
    tl.store(
        y + positions[:, None] + out[None, :],
        acc.to(y.dtype.element_ty),
        mask=(pixel[:, None] < pixels) & (filt[None, :] < filters),
    )


@triton.jit
def conv_patches(
    x_tiles,
    w_tiles,
    y_tiles,
    images,
    rows_out,
    columns_out,
    depth,
    filters,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    TAPS_H: tl.constexpr,
    TAPS_W: tl.constexpr,
    ACC: tl.constexpr,
    IMAGES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Compute a tile of IMAGES × ROWS × COLUMNS = BLOCK_M output pixels by BLOCK_N filters. x, w
    and y are tensor descriptors of images, of filters × (taps · channels), and of images."""
    # One tile a program: in a loop over tiles of 128 × 256, 2 % of the pixels were wrong on an H200
    # with Triton 3.6; smaller tiles were right.
    down = tl.cdiv(rows_out, ROWS)
    across = tl.cdiv(columns_out, COLUMNS)
    patches = tl.cdiv(images, IMAGES) * down * across
    per_tap = tl.cdiv(depth, BLOCK_K)
    pid = tl.program_id(0)
    patch, column = tile_of(pid, patches * BLOCK_M, filters, BLOCK_M, BLOCK_N, GROUP_M)
    column *= BLOCK_N
    image = patch // (down * across) * IMAGES
    row = patch % (down * across) // across * ROWS
    left = patch % across * COLUMNS
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for step in range(TAPS_H * TAPS_W * per_tap):
        tap = step // per_tap
        channel = (step % per_tap) * BLOCK_K
        above = row + tap // TAPS_W * DILATION_H - PAD_H
        before = left + tap % TAPS_W * DILATION_W - PAD_W
        box = x_tiles.load([image, above, before, channel])
        # Channels past the last are those of the next tap in w, but zeros in x.
        factors = w_tiles.load([column, tap * depth + channel])
        acc = tl.dot(box.reshape(BLOCK_M, BLOCK_K), factors.T, acc, out_dtype=ACC)
    done = acc.to(y_tiles.dtype).reshape(IMAGES, ROWS, COLUMNS, BLOCK_N)
    y_tiles.store([image, row, left, column], done)
