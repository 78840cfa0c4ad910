"""conv with NumPy: one GEMM per image, over columns gathered into a workspace.

Padding costs nothing in a launch: the workspace is zeroed once and only taps inside the image are
copied. A 1×1 filter with stride 1 and no padding needs no columns.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from kernelmark.backends.numpy.matmuls import MATMULS, Array, Plan, Step, types, workspace
from kernelmark.core.problem import Problem

Slices = tuple[slice, slice]  # outputs that a filter tap contributes to, inputs that it reads


def plan(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> Plan:
    """Plan images one after the other, with all groups of an image in one GEMM."""
    nchw = problem.options["layout"] == "nchw"
    image_steps = _nchw_steps if nchw else _nhwc_steps
    columns: Array | None = None
    launches: list[list[Step]] = []
    for held in arrays:
        x, weights, y = held.values()
        if columns is None and not _is_pointwise(problem):
            columns = _columns(problem, x, y[0], free_bytes)
        steps: list[Step] = []
        for image in range(problem.dims["n"]):
            steps += image_steps(problem, x[image], weights, y[image], columns)
        launches.append(steps)
    held_bytes = 0 if columns is None else columns.nbytes
    return Plan(name="numpy conv by columns", launches=launches, workspace_bytes=held_bytes)


def _is_pointwise(problem: Problem) -> bool:
    dims = problem.dims
    ones = ("r", "s", "stride_h", "stride_w")
    return all(dims[name] == 1 for name in ones) and dims["pad_h"] == dims["pad_w"] == 0


def _columns(problem: Problem, x: Array, y: Array, free_bytes: int) -> Array:
    dims, groups = problem.dims, problem.dims["groups"]
    each = dims["c"] // groups
    if problem.options["layout"] == "nchw":
        shape = (groups, each, dims["r"], dims["s"], *y.shape[1:])
    else:
        shape = (groups, *y.shape[:2], dims["r"], dims["s"], each)
    return workspace(shape, x.dtype, free_bytes)


def _nchw_steps(
    problem: Problem, x: Array, weights: Array, y: Array, columns: Array | None
) -> list[Step]:
    """Return the steps of filters (groups, k, taps) times columns (groups, taps, pixels)."""
    groups = problem.dims["groups"]
    source = x.reshape(groups, -1, *x.shape[1:])
    steps: list[Step] = []
    if columns is not None:
        for r, (p, h) in enumerate(_taps(problem, "h", "r", y.shape[1])):
            for s, (q, w) in enumerate(_taps(problem, "w", "s", y.shape[2])):
                steps.append(partial(np.copyto, columns[:, :, r, s, p, q], source[:, :, h, w]))
        source = columns
    pixels = y.shape[1] * y.shape[2]
    filters = weights.reshape(groups, y.shape[0] // groups, -1)
    multiply = MATMULS[types(problem)]
    matrix, out = source.reshape(groups, -1, pixels), y.reshape(groups, -1, pixels)
    return [*steps, partial(multiply, filters, matrix, out)]


def _nhwc_steps(
    problem: Problem, x: Array, weights: Array, y: Array, columns: Array | None
) -> list[Step]:
    """Return the steps of columns (groups, pixels, taps) times filters (groups, taps, k)."""
    groups = problem.dims["groups"]
    height, width, channels = x.shape
    # Groups are adjacent within a pixel: view them as the leading dimension.
    source = x.reshape(height, width, groups, channels // groups).transpose(2, 0, 1, 3)
    pixels = y.shape[0] * y.shape[1]
    matrix = x.reshape(height * width, groups, -1).swapaxes(0, 1)
    steps: list[Step] = []
    if columns is not None:
        for r, (p, h) in enumerate(_taps(problem, "h", "r", y.shape[0])):
            for s, (q, w) in enumerate(_taps(problem, "w", "s", y.shape[1])):
                steps.append(partial(np.copyto, columns[:, p, q, r, s], source[:, h, w]))
        matrix = columns.reshape(groups, pixels, -1)
    filters = weights.reshape(groups, y.shape[2] // groups, -1).swapaxes(1, 2)
    out = y.reshape(pixels, groups, -1).swapaxes(0, 1)
    return [*steps, partial(MATMULS[types(problem)], matrix, filters, out)]


def _taps(problem: Problem, axis: str, taps: str, outputs: int) -> list[Slices]:
    """Return, for each filter tap along an axis, the outputs whose input lies inside the image."""
    dims = problem.dims
    size, stride, pad = dims[axis], dims[f"stride_{axis}"], dims[f"pad_{axis}"]
    found: list[Slices] = []
    for tap in range(dims[taps]):
        shift = tap * dims[f"dilation_{axis}"] - pad
        first = max(0, -(shift // stride))
        last = min(outputs - 1, (size - 1 - shift) // stride)
        count = max(0, last - first + 1)
        start = first * stride + shift if count else 0
        stop = start + (count - 1) * stride + 1 if count else 0
        found.append((slice(first, first + count), slice(start, stop, stride)))
    return found
