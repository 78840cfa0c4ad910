"""gemm_epilogue with torch: a GEMM that adds the bias, then the activation in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kernelmark.core.problem import Problem

Call = Callable[[], Any]


def calls(problem: Problem, held: Mapping[str, Any]) -> tuple[str, list[Call]]:
    """Return the kernel's name and the calls for one argument set."""
    import torch

    options, d = problem.options, held["d"]
    a = held["a"].mT if options["ta"] == "t" else held["a"]
    b = held["b"].mT if options["tb"] == "t" else held["b"]
    if problem.dtypes["a"].startswith(("f8", "f4")):
        one = torch.ones((), device=d.device, dtype=torch.float32)
        scales = [held.get(name, one) for name in ("a_scale", "b_scale")]
        more = {"bias": held.get("bias"), "out_dtype": d.dtype, "out": d}
        name, product = "aten::_scaled_mm", partial(torch._scaled_mm, a, b, *scales, **more)
    elif options["bias"]:
        name, product = "aten::addmm", partial(torch.addmm, held["bias"], a, b, out=d)
    else:
        name, product = "aten::mm", partial(torch.mm, a, b, out=d)
    aten = torch.ops.aten
    activations = {
        "relu": partial(aten.relu_, d),
        "gelu": partial(aten.gelu_, d, approximate="tanh"),
        "silu": partial(aten.silu_, d),
    }
    act = str(options["act"])
    if act == "none":
        return name, [product]
    return f"{name}, aten::{act}_", [product, activations[act]]
