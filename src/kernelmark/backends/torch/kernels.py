"""The torch call that computes each op, prepared on our tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kernelmark import ops
from kernelmark.backends.base import Kernel
from kernelmark.backends.torch import epilogue
from kernelmark.backends.torch.conv import conv_calls
from kernelmark.backends.torch.moe import experts, one_by_one
from kernelmark.backends.torch.views import view
from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import KernelInfo
from kernelmark.devices.base import ArgumentSet, Device, Stream
from kernelmark.ops.attention import scale

Views = dict[str, Any]
Call = Callable[[], Any]


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
        super().__init__(name, [], onednn=onednn)
        self.info = KernelInfo(
            name=self.info.name, resources={"private_output_bytes": outputs[0].nbytes}
        )
        self._makers = calls
        self._outputs = outputs
        self._results: list[Any] = [None] * len(calls)

    def launch(self, stream: Stream, set_index: int) -> None:
        if self._is_onednn() is not self._onednn:
            self._set_onednn(self._onednn)
        self._results[set_index] = self._makers[set_index]()

    def collect(self, set_index: int) -> None:
        if self._results[set_index] is not None:
            self._outputs[set_index].copy_(self._results[set_index])

    def close(self) -> None:
        self._makers, self._outputs, self._results = [], [], []


def prepare(
    problem: Problem, device: Device, sets: Sequence[ArgumentSet], *, threads: int, onednn: bool
) -> Kernel:
    """Return the kernel of a problem that `rules.missing` accepts."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("highest")
    # torch falls back automatically, and warns with a C++ stack that would hide our own warnings.
    warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
    names = [spec.name for spec in ops.registry.get(problem.op).tensors(problem)]
    held = [{name: view(arguments[name]) for name in names} for arguments in sets]
    if problem.op in ("attention", "conv", "moe"):
        _check_free(len(sets) * ops.registry.get(problem.op).output(problem).nbytes, device)
    if problem.op == "attention":
        return _attention(problem, held, onednn=onednn)
    if problem.op == "conv":
        return _conv(problem, held, onednn=onednn)
    if problem.op == "moe":
        makers: list[Call] = [partial(experts, views, one_by_one) for views in held]
        outputs = [views["out"] for views in held]
        return AllocatingKernel("aten::mm by experts", makers, outputs, onednn=onednn)
    if problem.op == "gemm_epilogue":
        made = [epilogue.calls(problem, views) for views in held]
        return TorchKernel(made[0][0], [steps for _, steps in made], onednn=onednn)
    name, calls = (_int_gemm if problem.dtypes["a"] == "i8" else _gemm)(problem, held)
    return TorchKernel(name, calls, onednn=onednn)


def _check_free(nbytes: int, device: Device) -> None:
    """Raise OutOfMemory for results that do not fit: the system would overcommit and kill the
    process later."""
    free = device.free_bytes()
    if nbytes > free:
        raise OutOfMemory(
            Reason("out-of-memory", needed=nbytes, free=free, what="torch's own results")
        )


def _factors(problem: Problem, held: Views) -> tuple[Any, Any]:
    a = held["a"].mT if problem.options["ta"] == "t" else held["a"]
    b = held["b"].mT if problem.options["tb"] == "t" else held["b"]
    return a, b


def _gemm(problem: Problem, sets: list[Views]) -> tuple[str, list[list[Call]]]:
    import torch

    options = problem.options
    alpha, beta = float(options["alpha"]), float(options["beta"])
    batched = problem.op == "batched_gemm"
    calls: list[list[Call]] = []
    if alpha == 1 and beta == 0 and not options["bias"]:
        product = torch.bmm if batched else torch.mm
        for held in sets:
            calls.append([partial(product, *_factors(problem, held), out=held["d"])])
        return "aten::bmm" if batched else "aten::mm", calls
    product = torch.baddbmm if batched else torch.addmm
    for held in sets:
        a, b = _factors(problem, held)
        # With beta=0 torch does not read the addend, so the output itself can be passed.
        added = held["c"] if beta else held["bias"] if options["bias"] else held["d"]
        factor = beta if beta else 1.0 if options["bias"] else 0.0
        call: list[Call] = [partial(product, added, a, b, beta=factor, alpha=alpha, out=held["d"])]
        if beta and options["bias"]:
            call.append(partial(torch.add, held["d"], held["bias"], out=held["d"]))
        calls.append(call)
    return "aten::baddbmm" if batched else "aten::addmm", calls


def _int_gemm(problem: Problem, sets: list[Views]) -> tuple[str, list[list[Call]]]:
    import torch

    alpha, beta = int(problem.options["alpha"]), int(problem.options["beta"])
    calls: list[list[Call]] = []
    for held in sets:
        d = held["d"]
        call: list[Call] = [partial(torch._int_mm, *_factors(problem, held), out=d)]
        if alpha != 1:
            call.append(partial(torch.mul, d, alpha, out=d))
        if beta:
            call.append(partial(torch.add, d, held["c"], alpha=beta, out=d))
        if problem.options["bias"]:
            call.append(partial(torch.add, d, held["bias"], out=d))
        calls.append(call)
    return "aten::_int_mm", calls


def _attention(problem: Problem, sets: list[Views], *, onednn: bool) -> Kernel:
    from torch.nn.functional import scaled_dot_product_attention

    dims, options = problem.dims, problem.options
    square = dims["seq_q"] == dims["seq_kv"]
    settings: dict[str, Any] = {
        # torch's causal mask is aligned to the first key, ours to the last.
        "is_causal": bool(options["causal"]) and square,
        "attn_mask": _mask(problem, sets[0]["q"]),
        "scale": scale(problem),
        "enable_gqa": dims["heads_q"] != dims["heads_kv"],
    }
    makers: list[Call] = []
    outputs = []
    for held in sets:
        heads_first = options["layout"] == "bhsd"
        q, k, v, o = (
            held[name] if heads_first else held[name].transpose(1, 2)
            for name in ("q", "k", "v", "o")
        )
        makers.append(partial(scaled_dot_product_attention, q, k, v, **settings))
        outputs.append(o)
    name = f"aten::scaled_dot_product_attention ({_chosen(problem, makers[0])})"
    return AllocatingKernel(name, makers, outputs, onednn=onednn)


def _mask(problem: Problem, q: Any) -> Any:
    """Return the addend of the scores in the inputs' dtype, so that torch converts nothing."""
    import torch

    seq_q, seq_kv = problem.dims["seq_q"], problem.dims["seq_kv"]
    if not problem.options["causal"] or seq_q in (1, seq_kv):
        return None
    hidden = torch.ones(seq_q, seq_kv, dtype=torch.bool).tril(seq_kv - seq_q).logical_not()
    return torch.zeros(seq_q, seq_kv, dtype=q.dtype).masked_fill(hidden, float("-inf"))


def _chosen(problem: Problem, call: Any) -> str:
    """Return which of its implementations torch picks; the plain one is refused for narrow
    types."""
    import torch
    from torch.nn.attention import SDPBackend

    settings = dict(call.keywords)
    index = torch._fused_sdp_choice(*call.args, dropout_p=0.0, **settings)
    chosen = SDPBackend(index)
    if chosen == SDPBackend.MATH and problem.dtypes["q"] in ("f16", "bf16"):
        raise Unsupported(
            Reason("dtype-converted", backend="torch", op=problem.op, dtype=problem.dtypes["q"])
        )
    return str(chosen.name).lower().replace("_", " ")


def _conv(problem: Problem, sets: list[Views], *, onednn: bool) -> Kernel:
    makers, outputs = conv_calls(problem, sets)
    return AllocatingKernel("aten::conv2d", makers, outputs, onednn=onednn)
