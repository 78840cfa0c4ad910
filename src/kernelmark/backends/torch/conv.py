"""torch's convolution, the same call on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kernelmark.core.problem import Problem


def conv_calls(
    problem: Problem, sets: Sequence[Mapping[str, Any]]
) -> tuple[list[Callable[[], Any]], list[Any]]:
    """Return the call of each argument set, which allocates its result, and the outputs to copy
    to."""
    import torch

    dims = problem.dims
    settings: dict[str, Any] = {
        name: (dims[f"{short}_h"], dims[f"{short}_w"])
        for name, short in (("stride", "stride"), ("padding", "pad"), ("dilation", "dilation"))
    }
    settings["groups"] = dims["groups"]
    calls: list[Callable[[], Any]] = []
    outputs = []
    for held in sets:
        parts = [held["x"], held["w"], held["y"]]
        if problem.options["layout"] == "nhwc":
            # The same memory viewed as N, C, H, W: torch's channels_last.
            parts = [part.permute(0, 3, 1, 2) for part in parts]
        x, weights, y = parts
        calls.append(partial(torch.conv2d, x, weights, **settings))
        outputs.append(y)
    return calls, outputs
