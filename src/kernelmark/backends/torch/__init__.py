"""PyTorch in eager mode, on the problem's own memory.

GEMMs write into the given output. The other ops have no such form in torch: a launch includes
torch's allocation of its result, as for every user of torch, and the result is copied into the
output after timing. PyTorch is only imported in `prepare`. The calls are the same on a CPU and on a
GPU; cpu.py and gpu.py import them from here, so this file imports those on demand.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kernelmark.backends._rules import (
    ON_AMD,
    not_installed,
    refuse_unknown,
    unknown_op,
    wrong_device,
)
from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, Space
from kernelmark.devices.base import ArgumentSet, Device
from kernelmark.devices.cpu import CpuDevice
from kernelmark.ops.attention import scale

OPS = ("gemm", "batched_gemm", "gemm_epilogue", "attention", "conv", "moe", "grouped_gemm")
OLDEST = (2, 5)  # the first whose attention shares key heads without copying them


_OPS = (
    *("gemm *", "batched_gemm *", "gemm_epilogue *", "attention *", "conv *", "moe *"),
    "grouped_gemm *",
    *("!*w_order=tiled", "!moe *scale=*"),
    *("!*c=f32", "!*acc=f16", "!batched_gemm *i8", "!conv *i8", "!conv *=f8*"),
    "!*scale=block*",
)
_GPU = ("!*fnuz", "!*i8 alpha=*", "!attention *=f8*", "!*c=f8*")
_CUDA = (*_OPS, *_GPU, "!moe *=f32", "!moe *=f16", "!grouped_gemm *=f*", "!*fnuz*", "!*f4e2m1*")
_HIP = (*_OPS, *_GPU, "!moe *", "!grouped_gemm *")


class TorchBackend(Backend):
    name = "torch"
    summary = f"PyTorch's own operators, called eagerly; on hip {ON_AMD}"
    device_kinds = ("cpu", "cuda", "hip")
    supports_examples = FrozenDict(
        {
            "cpu": (*_OPS, "!*=f8*", "!*=f4*", "!attention *dim_v=16 dtype=bf16"),
            "sm_90": (*_CUDA, "!*scale=mx*"),
            "sm_100": (*_CUDA, "!*scale=mx"),
            "gfx942": (*_HIP, "!*dtype=f8e4m3 *", "!*scale=mx*"),
            "gfx950": (*_HIP, "!*fnuz*", "!*swizzle*"),
        }
    )

    def available(self) -> str | None:
        if importlib.util.find_spec("torch") is None:
            return not_installed(self.name, "torch", 'pip install "kernelmark[torch]"')
        # Called before every case, and looking up an installation takes a millisecond.
        loaded = sys.modules.get("torch")
        version = self.version() if loaded is None else str(loaded.__version__)
        installed = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if installed < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            return f"torch {version} is too old; pip install 'torch>={oldest}'"
        return None

    def version(self) -> str:
        try:
            return importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            # Built in place, without installation metadata.
            return str(importlib.import_module("torch").__version__)

    def missing_on(self, kind: str) -> Reason:

        from kernelmark.backends.torch import gpu

        return gpu.missing_build(kind, self.version())

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        from kernelmark.backends.torch import cpu, gpu

        return (
            wrong_device(self.name, self.device_kinds, info)
            or unknown_op(self.name, OPS, problem)
            or (cpu.missing(problem) if info.kind == "cpu" else gpu.missing(problem, info))
            or cpu.loosened(problem, os.environ)
        )

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        """Return, on the CPU, whether torch may use oneDNN for the op. Both paths are torch's own
        code."""
        from kernelmark.backends.torch import cpu, gpu

        if self.supports(problem, info) is not None:
            return None
        if info.kind != "cpu":
            return gpu.space(problem, info)
        if problem.op == "attention":
            return None
        return Space(
            parameters={"onednn": cpu.onednn_choices(problem, info)},
            default={"onednn": cpu.onednn_choices(problem, info)[0]},
        )

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        from kernelmark.backends.torch import cpu, gpu

        reason = self.supports(problem, device.info)
        if reason is not None:
            raise Unsupported(reason)
        try:
            importlib.import_module("torch")
        except (ImportError, OSError) as error:
            raise CaseError(
                f"torch is installed but cannot be imported: {error}", hint="reinstall torch"
            ) from error
        if not isinstance(device, CpuDevice):
            return gpu.prepare(problem, config, device, sets)
        refuse_unknown(self.name, config, ("onednn",))
        onednn = cpu.onednn(problem, config, device.info)
        return cpu.prepare(problem, device, sets, threads=device.threads, onednn=onednn)


backend = TorchBackend()


Views = Mapping[str, Any]  # the tensors of an argument set, by name
Call = Callable[[], Any]
Grouped = Callable[[Any, Any, Any], Any]  # (rows, a matrix per expert, ends of their rows)


def gemm_calls(problem: Problem, views: Views) -> tuple[str, list[Call]]:
    """Return the name and the calls, in order, of a GEMM that writes to D."""
    import torch

    options, d = problem.options, views["d"]
    a, b = _factors(problem, views)
    if problem.dtypes["a"] == "i8":
        return "aten::_int_mm", _int_calls(problem, views, a, b)
    if problem.dtypes["a"].startswith("f8"):
        unscaled = torch.ones((), device=d.device, dtype=torch.float32)
        call = partial(torch._scaled_mm, a, b, unscaled, unscaled, out_dtype=d.dtype, out=d)
        return "aten::_scaled_mm", [call]
    alpha, beta, bias = float(options["alpha"]), float(options["beta"]), bool(options["bias"])
    batched = problem.op == "batched_gemm"
    if alpha == 1 and beta == 0 and not bias:
        product = partial(torch.bmm if batched else torch.mm, a, b, out=d)
        return "aten::bmm" if batched else "aten::mm", [product]
    # With beta=0 torch does not read the addend, so the output itself can be passed.
    added = views["c"] if beta else views["bias"] if bias else d
    factor = beta if beta else 1.0 if bias else 0.0
    fused = torch.baddbmm if batched else torch.addmm
    calls: list[Call] = [partial(fused, added, a, b, beta=factor, alpha=alpha, out=d)]
    if beta and bias:
        calls.append(partial(torch.add, d, views["bias"], out=d))
    return "aten::baddbmm" if batched else "aten::addmm", calls


def _factors(problem: Problem, views: Views) -> tuple[Any, Any]:
    a = views["a"].mT if problem.options["ta"] == "t" else views["a"]
    b = views["b"].mT if problem.options["tb"] == "t" else views["b"]
    return a, b


def _int_calls(problem: Problem, views: Views, a: Any, b: Any) -> list[Call]:
    import torch

    d, alpha, beta = views["d"], int(problem.options["alpha"]), int(problem.options["beta"])
    calls: list[Call] = [partial(torch._int_mm, a, b, out=d)]
    if alpha != 1:
        calls.append(partial(torch.mul, d, alpha, out=d))
    if beta:
        calls.append(partial(torch.add, d, views["c"], alpha=beta, out=d))
    if problem.options["bias"]:
        calls.append(partial(torch.add, d, views["bias"], out=d))
    return calls


def epilogue_calls(problem: Problem, views: Views) -> tuple[str, list[Call]]:
    """Return the name and the calls of a gemm_epilogue: a GEMM that adds the bias, then the
    activation in place."""
    import torch

    options, d = problem.options, views["d"]
    a, b = _factors(problem, views)
    if problem.dtypes["a"].startswith(("f8", "f4")):
        unscaled = torch.ones((), device=d.device, dtype=torch.float32)
        scales = [views.get(name, unscaled) for name in ("a_scale", "b_scale")]
        if options["scale"] == "row":
            scales = [scales[0].unsqueeze(1), scales[1].unsqueeze(0)]
        more = {"bias": views.get("bias"), "out_dtype": d.dtype, "out": d}
        multiply = _multiply_blocks if options["scale"] == "block" else torch._scaled_mm
        name, product = "aten::_scaled_mm", partial(multiply, a, b, *scales, **more)
    elif options["bias"]:
        name, product = "aten::addmm", partial(torch.addmm, views["bias"], a, b, out=d)
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


def _multiply_blocks(a: Any, b: Any, of_a: Any, of_b: Any, **more: Any) -> None:
    """Multiply 8-bit floats with factors of blocks of 128 elements of A's rows and 128×128 of B.
    cuBLASLt needs A's factors column by column, so a copy is part of the call."""
    import torch

    torch._scaled_mm(a, b, of_a.t().contiguous().t(), of_b.t(), **more)


def attention_calls(
    problem: Problem, sets: Sequence[Views], make_mask: Callable[[], Any]
) -> tuple[list[Call], list[Any]]:
    """Return the call of each argument set, which allocates its result, and the outputs to copy to.
    `make_mask` is called where torch's own causal mask is not the one of the problem."""
    from torch.nn.functional import scaled_dot_product_attention

    dims, options = problem.dims, problem.options
    causal, square = bool(options["causal"]), dims["seq_q"] == dims["seq_kv"]
    settings: dict[str, Any] = {
        # torch's causal mask is aligned to the first key, ours to the last.
        "is_causal": causal and square,
        "attn_mask": make_mask() if causal and not square and dims["seq_q"] > 1 else None,
        "scale": scale(problem),
        "enable_gqa": dims["heads_q"] != dims["heads_kv"],
    }
    heads_first = options["layout"] == "bhsd"
    calls: list[Call] = []
    outputs = []
    for views in sets:
        q, k, v, o = (views[x] if heads_first else views[x].transpose(1, 2) for x in "qkvo")
        calls.append(partial(scaled_dot_product_attention, q, k, v, **settings))
        outputs.append(o)
    return calls, outputs


def conv_calls(problem: Problem, sets: Sequence[Views]) -> tuple[list[Call], list[Any]]:
    """Return the call of each argument set, which allocates its result, and the outputs to copy
    to."""
    import torch

    dims = problem.dims
    settings: dict[str, Any] = {
        name: (dims[f"{short}_h"], dims[f"{short}_w"])
        for name, short in (("stride", "stride"), ("padding", "pad"), ("dilation", "dilation"))
    }
    settings["groups"] = dims["groups"]
    calls: list[Call] = []
    outputs = []
    for views in sets:
        parts = [views["x"], views["w"], views["y"]]
        if problem.options["layout"] == "nhwc":
            # The same memory viewed as N, C, H, W: torch's channels_last.
            parts = [part.permute(0, 3, 1, 2) for part in parts]
        x, weights, y = parts
        calls.append(partial(torch.conv2d, x, weights, **settings))
        outputs.append(y)
    return calls, outputs


def expert_calls(problem: Problem, sets: Sequence[Views], grouped: Grouped) -> list[Call]:
    """Return a call for each set that returns its output."""
    if problem.op == "moe":
        return [partial(run_experts, views, grouped) for views in sets]
    return [partial(grouped, views["x"], views["w"].mT, views["ends"]) for views in sets]


def run_experts(views: Views, grouped: Grouped) -> Any:
    """Return the output of a moe: sort rows by expert, two grouped GEMMs, scatter back to tokens.

    torch allocates all tensors. The host never needs the row counts of experts, so that only
    `grouped` determines whether a graph can be captured."""
    import torch

    x, ids = views["x"], views["ids"]
    top_k = ids.shape[1]
    chosen, order = ids.flatten().sort(stable=True)
    experts = torch.arange(views["w1"].shape[0], device=x.device, dtype=ids.dtype)
    ends = torch.searchsorted(chosen, experts, right=True).to(torch.int32)
    gate, up = grouped(x[order // top_k], views["w1"].mT, ends).chunk(2, dim=1)
    out = grouped(torch.nn.functional.silu(gate) * up, views["w2"].mT, ends)
    parts = torch.empty_like(out)
    parts[order] = (out * views["weights"].flatten()[order, None]).to(out.dtype)
    return parts.view(-1, top_k, x.shape[1]).sum(dim=1)


def expert_by_expert(rows: Any, matrices: Any, ends: Any) -> Any:
    """Run a GEMM for each expert that has rows. Waits for `ends`, so it cannot be captured."""
    import torch

    out = rows.new_empty(rows.shape[0], matrices.shape[2])
    start = 0
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            torch.mm(rows[start:end], matrices[expert], out=out[start:end])
        start = end
    return out
