"""PyTorch on a GPU: the device's stream and memory, each op by the call that a user would make.

GEMMs write into the given output. The other ops allocate their result and temporaries. Memory that
torch allocates in one capture may be reused in the next, so replays of different graphs overwrite
each other's results. During capture one result per argument set is kept, so that the results of the
sets have distinct memory, like their inputs. The checked result comes from a separate launch after
timing, on the same inputs.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.backends._rules import (
    get_flag,
    refuse_unknown,
    wrong_acc,
    wrong_bias_type,
    wrong_dtypes,
    wrong_narrow_type,
    wrong_scales,
)
from kernelmark.backends.base import Kernel
from kernelmark.backends.torch import (
    Call,
    Views,
    attention_calls,
    conv_calls,
    epilogue_calls,
    expert_calls,
    gemm_calls,
)
from kernelmark.core.dtype import TORCH_NAMES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason, prefixed
from kernelmark.core.result import Config, KernelInfo, Space
from kernelmark.core.units import join_commas, join_or
from kernelmark.devices.base import ArgumentSet, Buffer, Device, Stream, Tensor

SDPA = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
_SAME = ("f64", "f32", "f16", "bf16")
_MX_NAMES = {"f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn_x2"}


class _Interface:
    """Device memory in the form that torch accepts without a copy."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class Viewer:
    """Torch tensors on our memory. A buffer is imported once per dtype; slicing it is many times
    faster than importing each tensor."""

    def __init__(self, index: int) -> None:
        self._device = f"cuda:{index}"
        self._whole: dict[tuple[int, str], Any] = {}

    def view(self, tensor: Tensor) -> Any:
        """Return a torch tensor on the same memory, of the spec's shape and dtype."""
        import torch

        spec = tensor.spec
        whole = self._in_dtype(tensor.buffer, spec.dtype)
        strides = [1]
        for size in reversed(spec.shape[1:]):
            strides.append(strides[-1] * size)
        start = tensor.offset // whole.element_size()
        return torch.as_strided(whole, spec.shape, strides[::-1][: len(spec.shape)], start)

    def codes(self, tensor: Tensor) -> Any:
        """Return the bytes of a format that torch does not have, the last axis packed."""
        spec = tensor.spec
        raw = self._in_dtype(tensor.buffer, "uint8")[tensor.offset : tensor.offset + spec.nbytes]
        return raw.view(*spec.shape[:-1], -1)

    def _in_dtype(self, buffer: Buffer, dtype: str) -> Any:
        import torch

        key = (buffer.address, dtype)
        if key not in self._whole:
            nbytes = buffer.nbytes // 8 * 8  # a multiple of the widest element; the rest is unused
            raw = torch.as_tensor(_Interface(buffer.address, nbytes), device=self._device)
            self._whole[key] = raw.view(getattr(torch, TORCH_NAMES.get(dtype, dtype)))
        return self._whole[key]


# -- what torch computes on a GPU in exactly the types that a problem specifies


def missing(problem: Problem, info: DeviceInfo) -> str | None:
    """Return why torch on a GPU cannot compute a problem in exactly its types, or None."""
    if problem.op in ("gemm", "batched_gemm", "gemm_epilogue"):
        if info.kind == "cuda" and "fnuz" in problem.dtypes["a"] + problem.dtypes["b"]:
            return wrong_dtypes("torch", problem, info.arch)
        # _scaled_mm uses hipBLASLt on AMD GPUs.
        narrow = wrong_narrow_type("torch", problem, info) if info.kind == "hip" else None
        if problem.op == "gemm_epilogue":
            return narrow or wrong_scales("torch", problem, info) or _missing_epilogue(problem)
        return narrow or _missing_gemm(problem)
    if problem.op == "attention":
        types = problem.dtypes
        if (
            types["q"] not in ("f16", "bf16", "f32")
            or len({types[x] for x in ("q", "kv", "o")}) > 1
        ):
            return wrong_dtypes("torch", problem, "a GPU")
        return wrong_acc("torch", problem, ("f32",))
    if problem.op in ("moe", "grouped_gemm"):
        return _missing_moe(problem, info)
    if problem.dtypes["x"] not in _SAME or problem.dtypes["x"] != problem.dtypes["y"]:
        return wrong_dtypes("torch", problem, "a GPU")
    wide = "f64" if problem.dtypes["x"] == "f64" else "f32"
    return wrong_acc("torch", problem, (wide,))


def _missing_moe(problem: Problem, info: DeviceInfo) -> str | None:
    """Return why torch has no grouped GEMM for a problem, or None. Without one it multiplies expert
    by expert and waits for their row counts, which can be neither captured nor queued."""
    sized = info.arch.startswith(("sm_9", "sm_10"))
    if problem.dtypes["x"] != "bf16" or "w" in problem.dtypes or not sized:
        return wrong_dtypes("torch", problem, info.arch)
    return _misaligned("_grouped_mm", problem, 8)


def _misaligned(call: str, problem: Problem, multiple: int) -> Reason | None:
    """Return which of n and k is not a multiple that a function of torch requires, or None."""
    for name in "nk":
        if (size := problem.dims[name]) % multiple:
            return Reason(f"torch's {call}: {name}={size} is not a multiple of {multiple}")
    return None


def _missing_gemm(problem: Problem) -> str | None:
    types, options = problem.dtypes, problem.options
    a, c = types["a"], types["c"]
    plain = options["alpha"] == 1 and options["beta"] == 0 and not options["bias"]
    if a.startswith("f8") or a == "i8":
        if problem.op == "batched_gemm":
            return wrong_dtypes("torch", problem, "a GPU")
        if not plain:
            names = ("alpha", "beta", "bias")
            return Reason(
                f"torch would round this {problem.op} to {c} before it applies {join_or(names)}"
            )
    if a.startswith("f8"):
        return _missing_scaled(problem)
    if a == "i8":
        if (m := problem.dims["m"]) <= 16:
            return Reason(f"torch's _int_mm: m={m} must be at least 17")
        return _misaligned("_int_mm", problem, 8)
    if a not in _SAME or c != a or types["acc"] != ("f64" if a == "f64" else "f32"):
        return wrong_dtypes("torch", problem, "a GPU")
    if a in ("f16", "bf16") and options["beta"] != 0 and options["bias"]:
        option_names = ("beta", "bias")
        return Reason(
            f"torch would round this {problem.op} to {a} before it applies {join_or(option_names)}"
        )
    return None


def _missing_scaled(problem: Problem) -> str | None:
    """Return why torch's _scaled_mm, the GEMM of narrow types, does not compute a problem, or
    None."""
    types, options = problem.dtypes, problem.options
    if "f8e5m2" in types["a"] and "f8e5m2" in types["b"]:
        return wrong_dtypes("torch", problem, "a GPU")
    if options["ta"] == "t" or options["tb"] != "t":
        return Reason(
            f"torch multiplies {types['a']} only as ta=n tb=t",
            "layout-unsupported",
            backend="torch",
            dtype=types["a"],
            layout="ta=n tb=t",
        )
    if reason := _misaligned("_scaled_mm", problem, 16):
        return reason
    written = types["c"] in ("bf16", "f16", "f32")
    return None if written else wrong_dtypes("torch", problem, "a GPU")


def _missing_epilogue(problem: Problem) -> str | None:
    types = problem.dtypes
    if reason := wrong_bias_type("torch", problem):
        return reason
    if not types["a"].startswith(("f8", "f4")):
        same = types["a"] in _SAME and types["c"] == types["a"]
        return None if same else wrong_dtypes("torch", problem, "a GPU")
    if problem.options["scale"] == "row" and types["c"] != "bf16":
        return Reason(f"torch applies scale=row only to an output of bf16, not of {types['c']}")
    if problem.options["scale"] == "block":
        d = problem.dims
        # A row of B's factors is a multiple of 16 bytes, and no block is cut off.
        if types["c"] != "bf16" or problem.options["bias"] or d["n"] % 128 or d["k"] % 512:
            what = "only with c=bf16, bias=no, n a multiple of 128 and k of 512"
            return Reason(f"torch applies scale=block {what}")
    if problem.options["bias"] and types["c"] == "f32":
        return Reason(
            f"torch applies no bias to {problem.op} with c=f32",
            "epilogue-missing",
            backend="torch",
            names=("bias",),
            op=problem.op,
            given="c=f32",
        )
    return _missing_scaled(problem)


def space(problem: Problem, info: DeviceInfo) -> Space | None:
    """Return the GPU choices: torch's attention kernel; whether cuDNN or MIOpen benchmark
    convolutions."""
    if problem.op == "attention":
        kernels = tuple(name for name in SDPA if info.kind == "cuda" or name != "cudnn")
        return Space(parameters={"kernel": kernels}, default={"kernel": "flash"})
    if problem.op == "conv":
        return Space(parameters={"benchmark": (False, True)}, default={"benchmark": False})
    return None


# -- kernels


class _Choice:
    """The attention kernel that torch may use. Changed only between kernels: torch's context
    manager around each call would add 20 µs to every launch."""

    def __init__(self) -> None:
        self._name = ""
        self._entered = ExitStack()

    def make(self, name: str) -> None:
        """Restrict torch to this attention kernel; "" allows all."""
        if name == self._name:
            return
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self._entered.close()
        self._name = ""
        if name:
            self._entered.enter_context(sdpa_kernel(getattr(SDPBackend, SDPA[name])))
            self._name = name


_choice = _Choice()


class GpuKernel(Kernel):
    """Calls on the device's stream; results that torch allocates are kept during capture."""

    def __init__(
        self, name: str, calls: list[Call], outputs: list[Any] | None, attention: str = ""
    ) -> None:
        import torch

        self._capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._calls = calls
        self._outputs = outputs
        self._attention = attention
        self._kept: dict[int, Any] = {}
        resources = {} if outputs is None else {"private_output_bytes": outputs[0].nbytes}
        self.info = KernelInfo(name=name, resources=resources)

    def launch(self, stream: Stream, set_index: int) -> None:
        _choice.make(self._attention)
        if self._outputs is None or not self._capturing():
            self._calls[set_index]()
            return
        # Free the last result first, so that this call gets the same memory.
        self._kept.pop(set_index, None)
        self._kept[set_index] = self._calls[set_index]()

    def collect(self, set_index: int) -> None:
        if self._outputs is not None:
            _choice.make(self._attention)
            self._outputs[set_index].copy_(self._calls[set_index]())

    def close(self) -> None:
        import torch

        if self._outputs is not None:  # graphs write to memory that torch reuses
            torch.cuda.current_stream().synchronize()
        _choice.make("")  # for the next measurement in this process
        self._calls, self._kept, self._outputs = [], {}, None


def prepare(
    problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
) -> Kernel:
    """Return the kernel of a problem that `missing` accepts."""
    viewer = enter(device)
    names = [spec.name for spec in ops.registry.get(problem.op).tensors(problem)]
    views = [{name: _view(viewer, arguments[name]) for name in names} for arguments in sets]
    grouped = dict.fromkeys(("moe", "grouped_gemm"), _moe)
    make = {"attention": _attention, "conv": _conv, **grouped}.get(problem.op, _gemm)
    return started(make(problem, config, views), device)


def _view(viewer: Viewer, tensor: Tensor) -> Any:
    """Return a view in torch's dtype, or in that of an MX format, which older versions lack."""
    import torch

    if (name := _MX_NAMES.get(tensor.spec.dtype)) is None:
        return viewer.view(tensor)
    if not hasattr(torch, name):
        raise Unsupported(f"torch {torch.__version__} has no {name}")
    return viewer.codes(tensor).view(getattr(torch, name))


def enter(device: Device) -> Viewer:
    """Make torch use the device's stream from now on; return a viewer for its memory."""
    import torch

    if reason := missing_build(device.info.kind, torch.__version__):
        raise Unsupported(reason)
    if not torch.cuda.is_available():
        raise Unsupported(f"torch {torch.__version__} sees no GPU")
    _settings()
    index = device.info.index
    torch.cuda.set_device(index)
    torch.cuda.set_stream(torch.cuda.ExternalStream(device.stream, device=f"cuda:{index}"))
    return Viewer(index)


def started(kernel: Kernel, device: Device) -> Kernel:
    """Launch once: handles and workspaces are created by the first call, which must not happen
    during capture."""
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            kernel.launch(device.stream, 0)
    except RuntimeError as error:
        kernel.close()
        if reason := refusal(error, [str(item.message) for item in said]):
            raise Unsupported(reason) from None
        raise
    return kernel


def refusal(error: RuntimeError, said: Sequence[str]) -> Reason | None:
    """Return why torch has no kernel, or None if it failed for another reason. The cause is in its
    warnings, among a heading per kernel and a line for each kernel that was not requested.

    torch raises a RuntimeError without a code for both: only the text distinguishes them."""
    text = (str(error).splitlines() or [""])[0]
    if "No available kernel" not in text:
        return prefixed(text, "torch: ") if "not support" in str(error) else None
    causes = [item.split(" (Triggered")[0] for item in said]
    causes = [
        cause for cause in causes if "not used because" not in cause and "disabled" not in cause
    ]
    return Reason(f"torch has no kernel for this problem: {' '.join(causes) or text}")


def _settings() -> None:
    """Make torch accumulate in f32: forbid TF32 and reduced-precision reductions."""
    import torch

    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("highest")
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.allow_tf32 = False


def _gemm(problem: Problem, config: Config, sets: Sequence[Views]) -> Kernel:
    refuse_unknown("torch", config)
    of_set = epilogue_calls if problem.op == "gemm_epilogue" else gemm_calls
    named = [of_set(problem, views) for views in sets]
    calls = [steps[0] if len(steps) == 1 else partial(_run_all, steps) for _, steps in named]
    return GpuKernel(named[0][0], calls, None)


def _run_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _attention(problem: Problem, config: Config, sets: Sequence[Views]) -> Kernel:
    refuse_unknown("torch", config, ("kernel",))
    chosen = str(config.get("kernel", ""))
    if chosen and chosen not in SDPA:
        raise Unsupported(f"torch: kernel is one of {join_commas(SDPA)}, not {chosen}")
    calls, outputs = attention_calls(problem, sets, partial(_aligned_to_the_last_key, problem))
    name = f"aten::scaled_dot_product_attention ({chosen or 'its own choice'})"
    return GpuKernel(name, calls, outputs, chosen)


def _aligned_to_the_last_key(problem: Problem) -> Any:
    # Imported here: it loads torch's compiler, which takes seconds.
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right(problem.dims["seq_q"], problem.dims["seq_kv"])


def _conv(problem: Problem, config: Config, sets: Sequence[Views]) -> Kernel:
    import torch

    refuse_unknown("torch", config, ("benchmark",))
    torch.backends.cudnn.benchmark = get_flag("torch", config, "benchmark", default=False)
    calls, outputs = conv_calls(problem, sets)
    return GpuKernel("aten::conv2d", calls, outputs)


def _moe(problem: Problem, config: Config, sets: Sequence[Views]) -> Kernel:
    import torch

    refuse_unknown("torch", config)
    product = getattr(torch, "_grouped_mm", None)  # from 2.8 on
    if product is None:
        library = f"torch {torch.__version__}"
        raise Unsupported(f"{library} has no _grouped_mm")

    def grouped(rows: Any, matrices: Any, ends: Any) -> Any:
        return product(rows, matrices, offs=ends)

    calls = expert_calls(problem, sets, grouped)
    return GpuKernel("aten::_grouped_mm", calls, [views["out"] for views in sets])


_GPUS = ("cuda", "hip")  # also the names in torch.version


def platforms() -> frozenset[str] | None:
    """Return the kinds of GPU that torch is built for, or None if unknown."""
    loaded = sys.modules.get("torch.version")
    facts = vars(loaded) if loaded is not None else _version_facts()
    return frozenset(kind for kind in _GPUS if facts.get(kind)) if facts else None


def _version_facts() -> Mapping[str, Any]:
    """Return the values in torch/version.py, which imports nothing from torch."""
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:  # a module inserted into sys.modules by hand
        return {}
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / "version.py"
        if file.is_file():
            return runpy.run_path(str(file))
    return {}


def missing_build(kind: str, version: str) -> Reason:
    """Return why torch does not run on this kind of device, or NO_REASON."""
    present = platforms()
    if kind not in _GPUS or present is None or kind in present:
        return NO_REASON
    return Reason(
        f"torch {version} is not built for {kind} devices: install a build for"
        " them from pytorch.org/get-started"
    )
