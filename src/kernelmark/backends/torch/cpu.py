"""PyTorch on a CPU: what it computes in exactly the types that a problem specifies, and the calls.

Measured, and checked by tests: f16 and bf16 GEMMs are summed in f32 and rounded once, including
alpha and beta (or bias). oneDNN on Arm sums f16 convolutions in f16, so these run on torch's other
kernels there. `_scaled_mm`, the f8 GEMM, converts to f32 first on a CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernelmark import ops
from kernelmark.backends._rules import get_flag, wrong_bias_type, wrong_dtypes
from kernelmark.backends.base import Kernel
from kernelmark.backends.torch import (
    Call,
    attention_calls,
    conv_calls,
    epilogue_calls,
    expert_by_expert,
    expert_calls,
    gemm_calls,
)
from kernelmark.core.dtype import TORCH_NAMES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, KernelInfo
from kernelmark.core.units import bytes_text, join_or
from kernelmark.devices.base import ArgumentSet, Device, Stream, Tensor
from kernelmark.devices.cpu import array

# input -> (accumulator, output)
FLOATS = {
    "f64": ("f64", "f64"),
    "f32": ("f32", "f32"),
    "f16": ("f32", "f16"),
    "bf16": ("f32", "bf16"),
}
HALVES = ("f16", "bf16")
# Names of the dtypes of a problem's inputs and output.
FACTORS = {
    "gemm": ("a", "b", "c"),
    "batched_gemm": ("a", "b", "c"),
    "attention": ("q", "kv", "o"),
    "conv": ("x", "y"),
    "moe": ("x", "x"),
    "grouped_gemm": ("x", "x"),
    "gemm_epilogue": ("a", "b", "c"),
}


def missing(problem: Problem) -> str | None:
    """Return why torch on a CPU cannot compute a problem in exactly its types, or None."""
    types = problem.dtypes
    if problem.op == "moe" and "w" in types:
        return wrong_dtypes("torch", problem, "a CPU")
    *factors, out = (types[name] for name in FACTORS[problem.op])
    inputs = set(factors)
    if any(name.startswith(("f8", "f4")) for name in (*inputs, out)):
        small = next(name for name in (*factors, out) if name.startswith(("f8", "f4")))
        if problem.op != "gemm":
            return wrong_dtypes("torch", problem, "a CPU")
        # With AMX it may not convert, which is not verified.
        return Reason(
            f"torch converts the operands of this {small} {problem.op} to f32 first",
            "dtype-converted",
            backend="torch",
            op=problem.op,
            dtype=small,
        )
    if "i8" in inputs:
        # Its i8 conv on a CPU overflows in 8 bits.
        return None if problem.op == "gemm" else wrong_dtypes("torch", problem, "a CPU")
    expected = FLOATS.get(factors[0])
    if reason := wrong_bias_type("torch", problem):
        return reason
    if len(inputs) > 1 or (types["acc"], out) != expected:
        return wrong_dtypes("torch", problem, "a CPU")
    if factors[0] in HALVES:
        return _rounds_twice(problem, factors[0])
    return None


def _rounds_twice(problem: Problem, narrow: str) -> str | None:
    dims, options = problem.dims, problem.options
    if problem.op == "attention" and dims["dim_qk"] != dims["dim_v"]:
        return Reason(
            f"torch converts the operands of this {narrow} {problem.op} to f32 first on a CPU, as"
            " dim_qk and dim_v differ",
            "dtype-converted",
            backend="torch",
            op=problem.op,
            dtype=narrow,
        )
    if options.get("bias") and options.get("beta"):
        names = ("beta", "bias")
        return Reason(
            f"torch would round this {problem.op} to {narrow} before it applies {join_or(names)}"
        )
    return None


def loosened(problem: Problem, variables: Mapping[str, str]) -> str | None:
    """Return a sentence if the environment lets oneDNN compute f32 in a narrower type, else
    None."""
    for name in ("DNNL_DEFAULT_FPMATH_MODE", "ONEDNN_DEFAULT_FPMATH_MODE"):
        mode = variables.get(name, "strict")
        if "f32" in problem.dtypes.values() and mode.lower() not in ("", "strict"):
            return Reason(f"{name}={mode} lets torch compute f32 in a narrower type; unset it")
    return None


def onednn_choices(problem: Problem, info: DeviceInfo) -> tuple[bool, ...]:
    """Return the values that `onednn` may have in a config, torch's default first."""
    sums_in_f16 = (
        problem.op == "conv"
        and problem.dtypes["x"] == "f16"
        and info.arch.startswith(("aarch64", "arm"))
    )
    return (False,) if sums_in_f16 else (True, False)


def onednn(problem: Problem, config: Config, info: DeviceInfo) -> bool:
    """Return whether torch may use oneDNN for this problem and config."""
    choices = onednn_choices(problem, info)
    allowed = get_flag("torch", config, "onednn", default=choices[0])
    if allowed not in choices:
        raise Unsupported(
            "oneDNN sums f16 convolutions in f16 on Arm, but the problem requires f32"
        )
    return allowed


def view(tensor: Tensor) -> Any:
    """Return a torch tensor on the same memory, of the spec's shape and dtype."""
    import torch

    values, name = array(tensor), TORCH_NAMES[tensor.spec.dtype]
    if values.dtype.name == name:
        return torch.from_numpy(values)
    # torch has few unsigned types: use the signed one of the same width.
    signed = values.view(np.dtype(f"i{values.dtype.itemsize}"))
    return torch.from_numpy(signed).view(getattr(torch, name))


class TorchKernel(Kernel):
    """Calls that write into the given outputs."""

    def __init__(self, name: str, calls: list[list[Call]], *, onednn: bool) -> None:
        from torch import _C

        self.info = KernelInfo(name=name if onednn else f"{name} without oneDNN")
        self._calls = calls
        self._onednn = onednn
        self._is_onednn: Callable[[], bool] = _C._get_mkldnn_enabled
        self._set_onednn: Callable[[bool], None] = _C._set_mkldnn_enabled

    def launch(self, stream: Stream, set_index: int) -> None:
        # The switch is global to the process: another kernel may have changed it.
        if self._is_onednn() is not self._onednn:
            self._set_onednn(self._onednn)
        for call in self._calls[set_index]:
            call()

    def close(self) -> None:
        self._calls = []


class AllocatingKernel(TorchKernel):
    """A call whose result torch allocates; `collect` copies it into the output.

    The result of every argument set is kept until its next launch, so that with cold caches the
    memory that torch writes to is as cold as the inputs.
    """

    def __init__(self, name: str, calls: list[Call], outputs: list[Any], *, onednn: bool) -> None:
        super().__init__(name, [[call] for call in calls], onednn=onednn)
        resources = {"private_output_bytes": outputs[0].nbytes}
        self.info = KernelInfo(name=self.info.name, resources=resources)
        self._outputs = outputs
        self._results: list[Any] = [None] * len(calls)

    def launch(self, stream: Stream, set_index: int) -> None:
        if self._is_onednn() is not self._onednn:
            self._set_onednn(self._onednn)
        self._results[set_index] = self._calls[set_index][0]()

    def collect(self, set_index: int) -> None:
        if self._results[set_index] is not None:
            self._outputs[set_index].copy_(self._results[set_index])

    def close(self) -> None:
        self._calls, self._outputs, self._results = [], [], []


def prepare(
    problem: Problem, device: Device, sets: Sequence[ArgumentSet], *, threads: int, onednn: bool
) -> Kernel:
    """Return the kernel of a problem that `missing` accepts."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("highest")
    # torch falls back automatically, and warns with a C++ stack that would hide our own warnings.
    warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
    op = ops.registry.get(problem.op)
    names = [spec.name for spec in op.tensors(problem)]
    views = [{name: view(arguments[name]) for name in names} for arguments in sets]
    if problem.op not in ("attention", "conv", "moe", "grouped_gemm"):
        of_set = epilogue_calls if problem.op == "gemm_epilogue" else gemm_calls
        named = [of_set(problem, one_set) for one_set in views]
        return TorchKernel(named[0][0], [calls for _, calls in named], onednn=onednn)
    _check_free(len(sets) * op.output(problem).nbytes, device)
    calls: list[Call]
    if problem.op == "attention":
        calls, outputs = attention_calls(problem, views, lambda: _mask(problem, views[0]["q"]))
        name = f"aten::scaled_dot_product_attention ({_chosen(problem, calls[0])})"
    elif problem.op == "conv":
        calls, outputs = conv_calls(problem, views)
        name = "aten::conv2d"
    else:
        calls = expert_calls(problem, views, expert_by_expert)
        outputs, name = [one_set["out"] for one_set in views], "aten::mm by experts"
    return AllocatingKernel(name, calls, outputs, onednn=onednn)


def _check_free(nbytes: int, device: Device) -> None:
    """Raise OutOfMemory for results that do not fit: the system would overcommit and kill the
    process later."""
    free = device.free_bytes()
    if nbytes > free:
        raise OutOfMemory(
            Reason(
                f"{bytes_text(nbytes)} needed for torch's own results, {bytes_text(free)} free",
                "out-of-memory",
                needed=nbytes,
                free=free,
                what="torch's own results",
            )
        )


def _mask(problem: Problem, q: Any) -> Any:
    """Return the addend of the scores in the inputs' dtype, so that torch converts nothing."""
    import torch

    seq_q, seq_kv = problem.dims["seq_q"], problem.dims["seq_kv"]
    hidden = torch.ones(seq_q, seq_kv, dtype=torch.bool).tril(seq_kv - seq_q).logical_not()
    return torch.zeros(seq_q, seq_kv, dtype=q.dtype).masked_fill(hidden, float("-inf"))


def _chosen(problem: Problem, call: Any) -> str:
    """Return which of its implementations torch picks; the plain one is refused for narrow
    types."""
    import torch
    from torch.nn.attention import SDPBackend

    index = torch._fused_sdp_choice(*call.args, dropout_p=0.0, **call.keywords)
    chosen = SDPBackend(index)
    if chosen == SDPBackend.MATH and problem.dtypes["q"] in ("f16", "bf16"):
        raise Unsupported(
            Reason(
                f"torch converts the operands of this {problem.dtypes['q']} "
                f"{problem.op} to f32 first",
                "dtype-converted",
                backend="torch",
                op=problem.op,
                dtype=problem.dtypes["q"],
            )
        )
    return str(chosen.name).lower().replace("_", " ")
