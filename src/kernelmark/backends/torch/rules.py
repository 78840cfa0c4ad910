"""What torch computes on a CPU in exactly the types that a problem specifies; without importing it.

Measured, and checked by tests: f16 and bf16 GEMMs are summed in f32 and rounded once, including
alpha and beta (or bias). oneDNN on Arm sums f16 convolutions in f16, so these run on torch's other
kernels there. `_scaled_mm`, the f8 GEMM, converts to f32 first on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernelmark.backends._rules import get_flag, wrong_bias_type, wrong_dtypes
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config

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
    "gemm_epilogue": ("a", "b", "c"),
}


def missing(problem: Problem) -> str | None:
    """Return why torch on a CPU cannot compute a problem in exactly its types, or None."""
    types = problem.dtypes
    *factors, out = (types[name] for name in FACTORS[problem.op])
    inputs = set(factors)
    if any(name.startswith(("f8", "f4")) for name in (*inputs, out)):
        small = next(name for name in (*factors, out) if name.startswith(("f8", "f4")))
        if problem.op != "gemm":
            return wrong_dtypes("torch", problem, "a CPU")
        # With AMX it may not convert, which is not verified.
        return Reason("dtype-converted", backend="torch", op=problem.op, dtype=small)
    if "i8" in inputs:
        return _missing_int(problem)
    expected = FLOATS.get(factors[0])
    if reason := wrong_bias_type("torch", problem):
        return reason
    if len(inputs) > 1 or (types["acc"], out) != expected:
        return wrong_dtypes("torch", problem, "a CPU")
    if factors[0] in HALVES:
        return _rounds_twice(problem, factors[0])
    return None


def _missing_int(problem: Problem) -> str | None:
    # Its i8 conv on a CPU overflows in 8 bits.
    return None if problem.op == "gemm" else wrong_dtypes("torch", problem, "a CPU")


def _rounds_twice(problem: Problem, narrow: str) -> str | None:
    dims, options = problem.dims, problem.options
    if problem.op == "attention" and dims["dim_qk"] != dims["dim_v"]:
        fields = {"backend": "torch", "op": problem.op, "dtype": narrow}
        return Reason("dtype-converted", **fields, where="a CPU", unequal=("dim_qk", "dim_v"))
    if options.get("bias") and options.get("beta"):
        names = ("beta", "bias")
        return Reason("rounds-twice", backend="torch", op=problem.op, dtype=narrow, names=names)
    return None


def loosened(problem: Problem, variables: Mapping[str, str]) -> str | None:
    """Return a sentence if the environment lets oneDNN compute f32 in a narrower type, else
    None."""
    for name in ("DNNL_DEFAULT_FPMATH_MODE", "ONEDNN_DEFAULT_FPMATH_MODE"):
        mode = variables.get(name, "strict")
        if "f32" in problem.dtypes.values() and mode.lower() not in ("", "strict"):
            return Reason("f32-narrowed", name=name, value=mode)
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
    wanted = get_flag("torch", config, "onednn", default=choices[0])
    if wanted not in choices:
        raise Unsupported(Reason("onednn-f16"))
    return wanted
