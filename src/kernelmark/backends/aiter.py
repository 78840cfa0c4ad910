"""aiter: AMD's inference kernels, called through its public functions, if installed.

A config chooses the implementation: {"kernel": "triton"}, "ck" or "asm". By default aiter's own
dispatcher decides if it has one ("auto"), by its tuned files. CK splits k according to its tuned
file, unless `split_k` is given, the log2 of the number of parts; `kernel_id`, an index in such a
file, runs any of CK's kernels. Some functions write into a given output; the others allocate their
result, which is copied into the output after timing. Signatures are those of ROCm/aiter e4048607
(2026-08).

Fused MoE takes weights in aiter's tiles (w_order=tiled), for which its tables are tuned. `kernel1`
and `kernel2` name CK's kernels of both GEMMs. They become what aiter's own lookup makes of a row of
its table with these names; where the installed aiter has no kernel of a name, it takes another one,
with a warning.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.backends import _rules
from kernelmark.backends.base import Backend, Kernel
from kernelmark.backends.torch import backend as torch
from kernelmark.backends.torch import gpu
from kernelmark.core.dtype import TORCH_NAMES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue, Space
from kernelmark.core.units import join_commas
from kernelmark.devices.base import ArgumentSet, Device
from kernelmark.ops.attention import scale

_TRITON = "aiter.ops.triton"
_BATCHED = f"{_TRITON}.gemm.batched"
_GROUP = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"
_HALVES = ("f16", "bf16")
# The function for each op or scheme and kernel, the default first: module and name.
FUNCTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "gemm": {
        "auto": ("aiter.tuned_gemm", "gemm_a16w16"),
        "triton": (f"{_TRITON}.gemm.basic.gemm_a16w16", "gemm_a16w16"),
        "asm": ("aiter", "gemm_a16w16_asm"),
    },
    "batched_gemm": {
        "triton": (f"{_BATCHED}.batched_gemm_bf16", "batched_gemm_bf16"),
        "ck": ("aiter", "batched_gemm_bf16_CK"),
    },
    "a8w8": {
        "triton": (f"{_BATCHED}.batched_gemm_a8w8", "batched_gemm_a8w8"),
        "ck": ("aiter", "batched_gemm_a8w8_CK"),
    },
    "a8w8_group": {"triton": (f"{_BATCHED}.{_GROUP}", _GROUP)},
    "a16wfp4": {"triton": (f"{_BATCHED}.batched_gemm_a16wfp4", "batched_gemm_a16wfp4")},
    "afp4wfp4": {"triton": (f"{_BATCHED}.batched_gemm_afp4wfp4", "batched_gemm_afp4wfp4")},
    # GEMMs of 8-bit floats, by their factors. The dispatcher of aiter runs CK, or Triton if CK has
    # no code for the GPU.
    "row": {
        "auto": ("aiter", "gemm_a8w8"),
        "triton": (f"{_TRITON}.gemm.basic.gemm_a8w8", "gemm_a8w8"),
    },
    "block": {
        "auto": ("aiter", "gemm_a8w8_blockscale"),
        "triton": (f"{_TRITON}.gemm.basic.gemm_a8w8_blockscale", "gemm_a8w8_blockscale"),
    },
    "attention": {
        "auto": ("aiter", "flash_attn_func"),
        "triton": (f"{_TRITON}.attention.mha", "flash_attn_func"),
    },
    # A decode step of latent attention, as bench_mla_decode.py calls it without rope.
    "mla": {"mla": (f"{_TRITON}.attention.mla_decode_rope", "decode_attention_fwd_grouped_rope")},
    "moe": {"auto": ("aiter.fused_moe", "fused_moe"), "ck": ("aiter.fused_moe", "_fused_moe_impl")},
}
# CK's functions that take a split of k, and those that also take a kernel's index, by the function
# that takes both from aiter's tuned file.
CK = {
    "batched_gemm_bf16_CK": ("batched_gemm_bf16", "batched_gemm_bf16_tune"),
    "batched_gemm_a8w8_CK": ("batched_gemm_a8w8", "batched_gemm_a8w8_tune"),
    "gemm_a8w8_CK": ("gemm_a8w8_ck", "gemm_a8w8_tune"),
}
_TUNED = "tuned"  # as in aiter's tuned file
# CK's kernels for both GEMMs of a MoE: rows, columns and k of a tile, and the pipeline
# (gemm_moe_ck2stages_common.py). Both have the rows of a block of sorted tokens.
_MOE_TILES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gfx942": (
        (
            *("32x64x128_v1", "32x64x64_v1", "64x64x128_v1", "64x64x64_v1", "128x64x64_v1"),
            *("64x128x128_v3", "64x128x64_v3", "128x128x128_v3", "128x128x64_v3"),
        ),
        (
            *("32x64x128_v1", "32x64x64_v1", "64x64x128_v1", "64x64x64_v1", "128x64x64_v1"),
            *("64x128x128_v3", "64x128x64_v3", "128x128x64_v3", "128x64x64_v3"),
        ),
    ),
    "gfx950": (
        (
            *("32x64x128_v1", "32x64x64_v1", "64x64x128_v1", "64x64x64_v1", "128x64x64_v1"),
            "128x128x64_v3",
        ),
        (
            *("32x128x128_v1", "32x64x64_v1", "64x128x128_v1", "64x128x64_v1", "64x64x64_v1"),
            *("128x128x64_v1", "128x128x64_v3", "128x64x64_v1", "128x64x64_v3"),
        ),
    ),
}
_MOE_KERNELS = ("kernel1", "kernel2")
_MOE_NAME = re.compile(r"moe_ck2stages_gemm[12]_\d+x(\d+)x\d+x\d+_\w+\Z")
_KV_SPLITS = 32  # parts of the keys, as in bench_mla_decode.py
_SPLITS: tuple[ConfigValue, ...] = (_TUNED, *range(5))  # log2 of the parts, up to 16 parts
_FP4_ARCHS = ("gfx950", "gfx1250")
_OPS = ("gemm", "batched_gemm", "batched_gemm_quant", "gemm_epilogue", "attention", "moe")
_EXAMPLES = (
    *("gemm *dtype=bf16 tb=t", "batched_gemm *dtype=bf16 tb=t*", "!*bias=yes"),
    *("attention *dtype=f16*", "attention *dtype=bf16*", "batched_gemm_quant *"),
    *("gemm_epilogue *scale=row*", "gemm_epilogue *scale=block*", "!gemm_epilogue *act=relu*"),
    "moe *w_order=tiled",
)


def functions_of(problem: Problem) -> Mapping[str, tuple[str, str]]:
    """Return the kernels that aiter has for a problem, its default first."""
    scaled = str(problem.options["scale"]) if problem.op == "gemm_epilogue" else problem.op
    functions = dict(FUNCTIONS[str(problem.options.get("scheme", scaled))])
    if _is_mla(problem):
        functions = {**FUNCTIONS["mla"], **functions}
    if _is_one_a8w8(problem):
        functions["ck"] = ("aiter", "gemm_a8w8_CK")
    # asm and ck are compiled for bf16 only.
    if problem.op in ("gemm", "batched_gemm") and problem.dtypes["a"] != "bf16":
        for name in ("asm", "ck"):
            functions.pop(name, None)
    return functions


def _is_mla(problem: Problem) -> bool:
    """Return whether a problem is a decode step of latent attention after the absorption of its
    projections: one query, and one key head for all, longer than the value."""
    d = problem.dims
    return (
        problem.op == "attention"
        and (d["seq_q"], d["heads_kv"]) == (1, 1)
        and d["dim_qk"] > d["dim_v"]
    )


def _is_one_a8w8(problem: Problem) -> bool:
    return problem.options.get("scheme") == "a8w8" and problem.dims["batch"] == 1


def function_of(problem: Problem, config: Config) -> tuple[str, str]:
    """Return the module and name of the function that a config chooses; refuse a config that no
    function supports."""
    kernels = functions_of(problem)
    kernel = str(config.get("kernel", next(iter(kernels))))
    if kernel not in kernels:
        names = tuple(kernels)
        raise Unsupported(f"aiter: kernel is one of {join_commas(names)}, not {kernel}")
    module, name = kernels[kernel]
    split, number = config.get("split_k", _TUNED), config.get("kernel_id")
    if problem.op == "moe":
        block_of(config)
    elif any(key in config for key in _MOE_KERNELS):
        raise Unsupported(f"kernel1 and kernel2 in the config are for moe, not for {problem.op}")
    for key, value in (("split_k", 0 if split == _TUNED else split), ("kernel_id", number or 0)):
        if problem.op == "moe" and key in config:
            raise Unsupported(f"{key} in the config is not for moe")
        if kernel != "ck" and config.get(key, _TUNED) != _TUNED:
            raise Unsupported(f"{key} in the config is for ck, not for {kernel}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise Unsupported(f"aiter: {key}={value!r} in the config is not a whole number ≥ 0")
    if number is not None and problem.options["bias"]:
        raise Unsupported(f"kernel_id in the config is for {name}, not for {name} with a bias")
    if number is not None:
        return module, CK[name][1]
    return (module, name) if split == _TUNED else (module, CK[name][0])


def block_of(config: Config) -> int:
    """Return the rows of a block of sorted tokens for the kernels of a MoE, 0 for aiter's choice;
    refuse kernels that do not go together."""
    names = [str(config.get(key, _TUNED)) for key in _MOE_KERNELS]
    if config.get("kernel", "auto") == "auto" and names == [_TUNED, _TUNED]:
        return 0
    blocks = {int(match[1]) for name in names if (match := _MOE_NAME.match(name))}
    if config.get("kernel") != "ck" or len(blocks) != 1 or _TUNED in names:
        raise Unsupported(
            "aiter's moe with kernel=ck needs kernel1 and kernel2, CK's kernels for tiles of as "
            "many rows; with kernel=auto it has neither"
        )
    return blocks.pop()


def missing(problem: Problem, info: DeviceInfo) -> str | None:
    """Return why aiter cannot compute a problem as it is specified, or None."""
    types, options = problem.dtypes, problem.options
    if problem.op == "moe":
        if types["x"] != "bf16" or info.arch not in _MOE_TILES:
            return _rules.wrong_dtypes("aiter", problem, info.arch)
        if options.get("w_order") != "tiled":
            return Reason("aiter's fused MoE is tuned for weights with w_order=tiled")
        return None
    if problem.op == "attention":
        same = len({types[name] for name in ("q", "kv", "o")}) == 1
        if types["q"] not in _HALVES or not same or types["acc"] != "f32":
            return _rules.wrong_dtypes("aiter", problem)
        return None
    if problem.op == "batched_gemm_quant":
        if options["scheme"] in ("a16wfp4", "afp4wfp4") and info.arch not in _FP4_ARCHS:
            return Reason(f"aiter has no f4e2m1 on {info.arch}")
        free = options["scheme"] == "a8w8_group"  # its function takes both orders
        mixed = (options["a_order"], options["c_order"]) != ("bmk", "bmn")
        if mixed and not free and options["scheme"] != "a16wfp4":
            order = f"a_order={options['a_order']} c_order={options['c_order']}"
            scheme = options["scheme"]
            return Reason(f"aiter has no scheme={scheme} with {order}")
        return None
    if problem.op == "gemm_epilogue":
        return _missing_scaled(problem, info)
    if types["a"] not in _HALVES or types["c"] != types["a"] or types["acc"] != "f32":
        return _rules.wrong_dtypes("aiter", problem)
    if options["ta"] != "n" or options["tb"] != "t":
        return Reason(
            f"aiter multiplies {types['a']} only as ta=n tb=t",
            "layout-unsupported",
            backend="aiter",
            dtype=types["a"],
            layout="ta=n tb=t",
        )
    if options["alpha"] != 1 or options["beta"] != 0:
        return Reason(
            f"aiter applies no alpha or beta to {problem.op}",
            "epilogue-missing",
            backend="aiter",
            names=("alpha", "beta"),
            op=problem.op,
        )
    if options["bias"] and problem.op == "batched_gemm":
        return Reason(
            f"aiter applies no shared bias to {problem.op}",
            "epilogue-missing",
            backend="aiter",
            names=("shared bias",),
            op=problem.op,
        )
    return None


def _missing_scaled(problem: Problem, info: DeviceInfo) -> str | None:
    """Return why aiter cannot compute a GEMM of 8-bit floats with factors, or None."""
    types, options = problem.dtypes, problem.options
    if options["scale"] not in ("row", "block"):
        return Reason(f"aiter has no gemm_epilogue with scale={options['scale']}")
    if reason := _rules.wrong_narrow_type("aiter", problem, info):
        return reason
    if len({types["a"], types["b"]}) > 1 or "e5m2" in types["a"] or types["c"] not in _HALVES:
        return _rules.wrong_dtypes("aiter", problem)
    extra = ("act",) if options["act"] != "none" else ()
    if options["bias"] and options["scale"] == "block":
        extra = (*extra, "bias")
    if extra or types.get("bias_type", types["c"]) != types["c"]:
        return Reason(f"aiter applies no {join_commas(extra or ('f32 bias',))} to this GEMM")
    if options["ta"] != "n" or options["tb"] != "t":
        return Reason(
            f"aiter multiplies {types['a']} only as ta=n tb=t",
            "layout-unsupported",
            backend="aiter",
            dtype=types["a"],
            layout="ta=n tb=t",
        )
    return None


def call_of(problem: Problem, config: Config, tensors: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a launch on the tensors of an argument set, and the output that its result must be
    copied to; None if the launch writes to the output."""
    module, name = function_of(problem, config)
    kernel = config.get("kernel", next(iter(functions_of(problem))))
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        reason = Reason(f"aiter has no {module}.{name}" + (f": {error}" if str(error) else ""))
        raise Unsupported(reason) from None
    if problem.op == "attention":
        made = _mla if kernel == "mla" else _attention
        return made(function, problem, tensors)
    if problem.op == "moe":
        return _moe_call(function, problem, config, tensors), tensors["out"]
    bias = tensors.get("bias")
    if problem.op == "gemm_epilogue":
        return _scaled_call(function, problem, str(kernel), tensors)
    if kernel == "ck":
        return _ck_call(function, problem, config, tensors)
    if problem.op == "batched_gemm_quant":
        return partial(function, *_quantised(problem, tensors)), None
    a, b, d = tensors["a"], tensors["b"], tensors["d"]
    if kernel == "auto":
        return partial(function, a, b, bias=bias, otype=d.dtype), d
    if kernel == "asm":
        return partial(function, a, b, d, bias=bias), None
    out = "y" if problem.op == "gemm" else "YQ"
    return partial(function, a, b, bias=bias, dtype=d.dtype, **{out: d}), None


def _scaled_call(
    function: Callable[..., Any], problem: Problem, kernel: str, tensors: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return the call of a GEMM of 8-bit floats with a factor for each row or block."""
    d, scales = tensors["d"], [tensors["a_scale"], tensors["b_scale"]]
    bias: dict[str, Any] = {}
    if problem.options["scale"] == "row":
        scales = [scales[0].unsqueeze(1), scales[1].unsqueeze(0)]
        bias = {"bias": tensors.get("bias")}
    call = partial(function, tensors["a"], tensors["b"], *scales, **bias, dtype=d.dtype)
    return (partial(call, y=d), None) if kernel == "triton" else (call, d)


def _ck_call(
    function: Callable[..., Any], problem: Problem, config: Config, tensors: Mapping[str, Any]
) -> tuple[Any, Any]:
    d, bias, operands = tensors["d"], tensors.get("bias"), [tensors["a"], tensors["b"]]
    if problem.op == "batched_gemm_quant":
        operands += [tensors["a_scale"].unsqueeze(2), tensors["b_scale"].unsqueeze(1)]
        bias = None if bias is None else bias.unsqueeze(1)
    if _is_one_a8w8(problem):  # a function without a batch
        operands, d = [tensor[0] for tensor in operands], d[0]
        bias = None if bias is None else bias[0, 0]
    split = config.get("split_k", _TUNED)
    if "kernel_id" in config:
        number = config["kernel_id"]
        return partial(function, *operands, d, number, 0 if split == _TUNED else split), None
    if split == _TUNED:
        return partial(function, *operands, bias=bias, dtype=d.dtype), d
    return partial(function, *operands, d, bias, split), None


def _quantised(problem: Problem, tensors: Mapping[str, Any]) -> Sequence[Any]:
    """Return the positional arguments of a scheme's Triton function."""
    scheme, d = problem.options["scheme"], tensors["d"]
    bias = tensors["bias"].unsqueeze(1) if "bias" in tensors else None
    swapped_in = problem.options["a_order"] == "mbk"
    swapped_out = problem.options["c_order"] == "mbn"
    a, b, b_scale = tensors["a"], tensors["b"], tensors["b_scale"]
    if scheme == "a8w8":
        scales = tensors["a_scale"].unsqueeze(2), b_scale.unsqueeze(1)
        return a, b, *scales, bias, d.dtype, None, d
    if scheme == "a8w8_group":
        group = problem.dims["group"]
        return a, b, b_scale, group, bias, d.dtype, None, d, swapped_out, swapped_in
    if scheme == "a16wfp4":
        x = a.transpose(0, 1) if swapped_in else a
        return x, b, b_scale, d.dtype, d, None, swapped_out
    return a, b, tensors["a_scale"], b_scale, d.dtype, d


def _moe_call(
    function: Callable[..., Any], problem: Problem, config: Config, tensors: Mapping[str, Any]
) -> Any:
    weights = [tensors[name].detach() for name in ("w1", "w2")]
    for tensor in weights:
        tensor.is_shuffled = True  # as shuffle_weight marks them
    call = partial(function, tensors["x"], *weights, tensors["weights"], tensors["ids"])
    if not (block := block_of(config)):
        return call
    chosen = _looked_up(problem, config, block, tensors["x"].dtype)
    return partial(call, _metadata_transform=lambda _: chosen)


class _Row:
    """A tuned table with one row, which is that of every problem."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    def get(self, key: object, default: object = None) -> Mapping[str, Any]:
        return self._row


def _looked_up(problem: Problem, config: Config, block: int, dtype: Any) -> Any:
    """Return what aiter's lookup makes of a row of its table with the kernels of a config."""
    module: Any = importlib.import_module("aiter.fused_moe")
    row = {
        "block_m": block,
        "ksplit": 0,
        "run_1stage": 0,
        "kernelName1": config["kernel1"],
        "kernelName2": config["kernel2"],
    }
    d, table = problem.dims, module.cfg_2stages
    sizes = (module.get_padded_M(d["m"]), d["k"], d["n"], d["e"], d["top_k"])
    quantised, activation = module.QuantType.No, module.ActivationType.Silu
    try:
        module.cfg_2stages = (_Row(row), _Row(row))
        module.get_2stage_cfgs.cache_clear()
        types = (dtype, dtype, dtype, quantised)
        return module.get_2stage_cfgs(*sizes, *types, True, activation, False, 0, 0, True)
    finally:
        module.cfg_2stages = table
        module.get_2stage_cfgs.cache_clear()


def _attention(
    function: Callable[..., Any], problem: Problem, tensors: Mapping[str, Any]
) -> tuple[Any, Any]:
    # aiter's layout is batch, seq, heads, dim; its causal mask ends at the last key, like ours.
    swapped = problem.options["layout"] == "bhsd"
    q, k, v, o = (tensors[x].transpose(1, 2) if swapped else tensors[x] for x in "qkvo")
    causal = bool(problem.options["causal"])
    return partial(function, q, k, v, softmax_scale=scale(problem), causal=causal), o


def _mla(
    function: Callable[..., Any], problem: Problem, tensors: Mapping[str, Any]
) -> tuple[Any, Any]:
    import torch

    d, q = problem.dims, tensors["q"]
    # With one query and one key head, both layouts are the same memory.
    k, v = (tensors[x].view(d["batch"] * d["seq_kv"], 1, -1) for x in "kv")
    q, o = (tensors[x].view(d["batch"], d["heads_q"], -1) for x in "qo")
    on = {"device": q.device}
    ends = torch.arange(d["batch"] + 1, dtype=torch.int32, **on) * d["seq_kv"]
    rows = torch.arange(d["batch"] * d["seq_kv"], **on)
    parts = (d["batch"], d["heads_q"], _KV_SPLITS, d["dim_v"] + 1)  # and the logarithm of its sum
    partial_sums = torch.empty(parts, dtype=q.dtype, **on)
    rope: tuple[None, ...] = (None, None)  # cos and sin, and positions
    sizes = d["dim_v"], d["dim_qk"] - d["dim_v"]
    arguments = (q, k, v, o, ends, rows, None, *sizes, *rope, partial_sums, _KV_SPLITS)
    return partial(function, *arguments, scale(problem)), None


class Aiter(Backend):
    name = "aiter"
    summary = f"AMD's aiter: Triton, CK and assembly kernels; {_rules.ON_AMD}"
    device_kinds = ("hip",)
    supports_examples = FrozenDict(
        {
            "gfx942": (*_EXAMPLES, "!*fp4*", "!gemm_epilogue *dtype=f8e4m3 *"),
            "gfx950": (*_EXAMPLES, "!gemm_epilogue *fnuz*"),
        }
    )

    def available(self) -> str | None:
        spec = importlib.util.find_spec("aiter")
        folders = list(spec.submodule_search_locations or []) if spec else []
        # Another package has the same name.
        if not any((Path(folder) / "ops").is_dir() for folder in folders):
            hint = "github.com/ROCm/aiter; it needs a torch built for ROCm"
            return _rules.not_installed(self.name, "aiter", hint)
        if importlib.util.find_spec("torch") is None:
            return _rules.not_installed(self.name, "torch", "install one built for ROCm")
        return None

    def missing_on(self, kind: str) -> Reason:
        return torch.missing_on(kind)

    def version(self) -> str:
        for package in ("amd-aiter", "aiter"):
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return str(getattr(importlib.import_module("aiter"), "__version__", "unknown"))

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        return (
            _rules.wrong_device(self.name, self.device_kinds, info)
            or _rules.unknown_op(self.name, _OPS, problem, reads_tiles=True)
            or missing(problem, info)
        )

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        if self.supports(problem, info) is not None:
            return None
        kernels: tuple[ConfigValue, ...] = tuple(functions_of(problem))
        default = {"kernel": kernels[0]}
        if problem.op == "moe":
            return _moe_space(kernels, info.arch)
        if "ck" not in kernels:
            return Space(parameters={"kernel": kernels}, default=default)
        return Space(
            parameters={"kernel": kernels, "split_k": _SPLITS},
            default={**default, "split_k": _TUNED},
            forbids=_forbidden_split,
        )

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        _rules.refuse_unknown(self.name, config, ("kernel", "split_k", "kernel_id", *_MOE_KERNELS))
        name = ".".join(function_of(problem, config))
        viewer = gpu.enter(device)
        try:
            importlib.import_module("aiter")
        except (ImportError, OSError, RuntimeError) as error:
            raise CaseError(f"aiter is installed but cannot be imported: {error}") from error
        calls, outputs = [], []
        for arguments in sets:
            call, output = call_of(problem, config, _views(problem, arguments, viewer))
            calls.append(call)
            outputs.append(output)
        allocates = bool(outputs) and outputs[0] is not None
        return gpu.started(gpu.GpuKernel(name, calls, outputs if allocates else None), device)


def _forbidden_split(config: Config) -> str | None:
    if config["kernel"] == "ck" or config["split_k"] == _TUNED:
        return None
    return Reason(f"split_k in the config is for ck, not for {config['kernel']}")


def _moe_space(kernels: tuple[ConfigValue, ...], arch: str) -> Space:
    tiles = dict(zip(_MOE_KERNELS, _MOE_TILES[arch], strict=True))
    return Space(
        parameters={
            "kernel": kernels,
            **{
                key: (_TUNED, *(_moe_kernel(key, tile, arch) for tile in tiles[key]))
                for key in _MOE_KERNELS
            },
        },
        default={"kernel": kernels[0], **dict.fromkeys(_MOE_KERNELS, _TUNED)},
        forbids=_forbidden_moe,
    )


def _moe_kernel(key: str, tile: str, arch: str) -> str:
    """Return the name of a kernel of CK; the second one multiplies by the router's weights."""
    size, _, version = tile.partition("_")
    by_router = key == "kernel2"
    cast = "TypeCastExpertWeight" if by_router and arch != "gfx950" else "TypeCast"
    words = ("Nswizzle0", "Quant0", f"MulRoutedWeight{int(by_router)}")
    types = ("B16", "B16", "B16") if by_router else ("silu", "B16", "B16", "B16")
    first = f"moe_ck2stages_gemm{1 + by_router}_256x{size}_1x4_{cast}_{version}"
    return "_".join((first, *words, *types))


def _forbidden_moe(config: Config) -> str | None:
    try:
        block_of(config)
    except Unsupported as error:
        return error.message
    return None


def _views(problem: Problem, arguments: ArgumentSet, viewer: gpu.Viewer) -> dict[str, Any]:
    """Return our tensors as torch tensors; formats that torch lacks are passed as bytes."""
    specs = ops.registry.get(problem.op).tensors(problem)
    return {
        spec.name: (viewer.view if spec.dtype in TORCH_NAMES else viewer.codes)(
            arguments[spec.name]
        )
        for spec in specs
    }


backend = Aiter()
