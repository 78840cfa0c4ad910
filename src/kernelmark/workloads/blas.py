"""BLAS calls of logs and tables: their vocabulary, and conversion to problems and back.

A column-major GEMM (m, n, k) with transA and transB is the row-major problem m=n, n=m with the
operands and their letters swapped: the bytes in memory are the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping

from kernelmark import ops
from kernelmark.core.dtype import DTYPES
from kernelmark.core.errors import ProblemError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.ops.base import Parameter
from kernelmark.workloads.source import BadLine, size_fault
from kernelmark.workloads.workload import BLAS_FIELDS, Call

_NAMES = {
    "M": "m",
    "N": "n",
    "K": "k",
    "transposeA": "transA",
    "transposeB": "transB",
    "activation": "activation_type",
    "rocblas_function": "function",
    "swizzle_a": "swizzleA",
    "swizzle_b": "swizzleB",
    **{f"size{name}": name for name in "mnk"},
    "batch": "batch_count",
}
_DTYPES = {
    "f64_r": "f64",
    "f32_r": "f32",
    "f16_r": "f16",
    "bf16_r": "bf16",
    "i8_r": "i8",
    "i32_r": "i32",
    "f8_r": "f8e4m3",
    "bf8_r": "f8e5m2",
    "f8_fnuz_r": "f8e4m3fnuz",
    "bf8_fnuz_r": "f8e5m2fnuz",
}
_TOKENS = {name: token for token, name in _DTYPES.items()}
# Both clients also accept letters (string2rocblas_datatype, string_to_hip_datatype).
_LETTERS = {"h": "f16_r", "s": "f32_r", "d": "f64_r", "i8": "i8_r", "i": "i32_r", "x": "xf32_r"}
_TYPED = ("a_type", "b_type", "c_type", "d_type", "compute_type", "scale_type", "bias_type")
# The same letters for OCP and FNUZ formats: only the device determines which one it was.
SHARED_F8 = frozenset({"f8_r", "bf8_r"})
SHARED_BY = frozenset({"hipblaslt", "rocblas"})  # other logs name the format
F8_OCP = frozenset(_DTYPES[token] for token in SHARED_F8)
FNUZ_ARCHS = ("gfx940", "gfx941", "gfx942")
# Names of dtypes that PyTorch, its profiler and people use.
_SPOKEN = {
    "double": "f64",
    "float64": "f64",
    "fp64": "f64",
    "float": "f32",
    "float32": "f32",
    "fp32": "f32",
    "half": "f16",
    "float16": "f16",
    "fp16": "f16",
    "bfloat16": "bf16",
    **dict.fromkeys(("float4_e2m1fn", "fp4", "fp4_e2m1", "e2m1"), "f4e2m1"),
    "float4_e2m1fn_x2": "f4e2m1",
    "signed char": "i8",
    "int8": "i8",
    "int": "i32",
    "int32": "i32",
}
# As e4m3, fp8_e4m3fn or f8_e5m2fnuz.
_F8 = re.compile(r"(?:(?:fp|float|f)8_?)?(?:(e4m3)(fn|fnuz)?|(e5m2)(fnuz)?)\Z")
_SPOKEN_F8 = ("fp8", "f8", "float8")
_ACCUMULATORS = {
    "f64_r": "f64",
    "f32_r": "f32",
    "f16_r": "f16",
    "i32_r": "i32",
    "xf32_r": "f32",
    "f32_f16_r": "f32",
    "f32_bf16_r": "f32",
}
_COMPUTE_NAMES = {
    "f32_fast_f16_r": "f32_f16_r",
    "f32_fast_bf16_r": "f32_bf16_r",
    "f32_fast_xf32_r": "xf32_r",
    "f32_pedantic_r": "f32_r",
}
# Compute types that round the inputs before multiplying.
_ROUNDED_INPUTS = ("xf32_r", "f32_f16_r", "f32_bf16_r")
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off", "none", ""})
_FLAGS = (
    *("bias_vector", "scaleAlpha_vector", "gradient", "use_e", "swizzleA", "swizzleB"),
    *("grouped_gemm", "amaxD"),
)
_SCALES = ("scaleA", "scaleB", "scaleC", "scaleD")
_SIZES = (
    *("m", "n", "k", "batch_count", "lda", "ldb", "ldc", "ldd"),
    *("stride_a", "stride_b", "stride_c", "stride_d"),
)
# A call with one of these does more than the plain GEMM that it becomes.
EXTRAS = (
    *("scaleA", "scaleB", "scaleC", "scaleD", "scaleAlpha_vector", "amaxD"),
    *("swizzleA", "swizzleB", "gradient", "use_e", "grouped_gemm"),
)
# Further fields that a call reads, or that change nothing without the fields above.
_READ = frozenset((*BLAS_FIELDS, *EXTRAS, "call_count", "bias_source"))


def _spoken(text: str) -> str:
    word = text.strip().lower()
    for prefix in ("torch.", "c10::", "dtypes."):
        word = word.removeprefix(prefix)
    return word


def is_open_f8(text: str) -> bool:
    """Return whether a text names an 8-bit float that is another format on another GPU."""
    return _spoken(text) in _SPOKEN_F8


def dtype_named(text: str, arch: str = "") -> str:
    """Return kernelmark's name of a dtype; `fp8` is the format that `arch` supports."""
    word = _spoken(text)
    if word in _SPOKEN_F8:
        return "f8e4m3fnuz" if arch.startswith(FNUZ_ARCHS) else "f8e4m3"
    name = _SPOKEN.get(word, word)
    if f8 := _F8.match(word):
        name = f"f8{f8[1] or f8[3]}{'fnuz' if 'fnuz' in (f8[2], f8[4]) else ''}"
    if name not in DTYPES:
        raise BadLine(f"unknown dtype {text[:24]!r}")
    return name


def dtype(fields: Mapping[str, str], name: str, arch: str) -> str:
    """Return the dtype of a BLAS type name on this architecture."""
    text = fields.get(name, "")
    if text not in _DTYPES:
        raise ProblemError(f"{name}={text[:24]} is a type that kernelmark does not have")
    fnuz = text in SHARED_F8 and arch.startswith(FNUZ_ARCHS)
    return _DTYPES[text] + ("fnuz" if fnuz else "")


def token(dtype_name: str) -> str:
    """Return the name of a dtype in BLAS libraries."""
    if dtype_name not in _TOKENS:
        raise ProblemError(f"BLAS libraries have no type for {dtype_name}")
    return _TOKENS[dtype_name]


def accumulator(text: str) -> str:
    """Return the accumulator dtype of a compute type, which may have any of its names."""
    text = _compute_name(text)
    if text not in _ACCUMULATORS:
        raise ProblemError(f"unknown compute_type {text[:24]!r}")
    return _ACCUMULATORS[text]


def number_text(value: float) -> str:
    """Format a factor in canonical form: 1 for 1.000000, 1.0 and 1."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def real(fields: Mapping[str, str], name: str, default: str = "") -> float:
    """Return a field as a finite number; raise ProblemError otherwise."""
    text = fields.get(name) or default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ProblemError(f"{name}={text[:24]} is not a finite number")
    return value


def call(logged: Mapping[str, str], arch: str = "", *, harmless: Container[str] = ()) -> Call:
    """Return a logged call with its nearest problem and all its BLAS fields.

    `lost` names the fields that the problem does not compute: also every unknown field that is set
    and not `harmless`, because it may change what was computed. Fields that the log lacks get the
    values of dense matrices; fields without effect (strides of a single GEMM, the type of an absent
    bias) are dropped, so that equal calls from different logs are equal. Raise ProblemError for an
    unreadable field.
    """
    fields = _normal(logged)
    _complete(fields)
    scaled = _row_scaled(fields, arch)
    problem, lost = (scaled, []) if scaled else _nearest(fields, arch)
    computed = ("scaleA", "scaleB") if scaled else ()
    lost += [n for n in EXTRAS if n not in computed and fields.get(n, "0") != "0"]
    lost += _gaps(fields)
    lost += _of_epilogue(fields, bias_type=problem.dtypes.get("bias_type", ""))
    if fields["compute_type"] in _ROUNDED_INPUTS:
        lost.append("compute_type")
    if has_pointers(fields["function"]):
        lost.append("function")
    lost += [name for name in fields if name not in harmless and _may_change(name, fields)]
    kept = FrozenDict({name: fields[name] for name in BLAS_FIELDS if fields.get(name)})
    count = _whole(fields, "call_count", "1")
    return Call(problem=problem, count=count, blas=kept, lost=tuple(dict.fromkeys(lost)))


def fields_of(problem: Problem) -> FrozenDict[str]:
    """Return the BLAS call that computes a gemm, a batched_gemm, or a gemm_epilogue without an
    activation whose rows have factors."""
    dims, types, options = problem.dims, problem.dtypes, problem.options
    fields = {
        "function": "matmul",
        "transA": str(options["tb"]).upper(),
        "transB": str(options["ta"]).upper(),
        "m": str(dims["n"]),
        "n": str(dims["m"]),
        "k": str(dims["k"]),
        "batch_count": str(dims.get("batch", 1)),
        "a_type": token(types["b"]),
        "b_type": token(types["a"]),
        "c_type": token(types["c"]),
        "d_type": token(types["c"]),
        "compute_type": token(types["acc"]),
        "scaleA": (scale := "2" if options.get("scale") == "row" else "0"),
        "scaleB": scale,
        "alpha": number_text(float(options.get("alpha", 1.0))),
        "beta": number_text(float(options.get("beta", 0.0))),
        "bias_vector": str(int(options["bias"])),
        "activation_type": "none",
    }
    if options["bias"]:
        bias_type = types.get("bias_type")
        fields["bias_type"] = token(bias_type) if bias_type else fields["d_type"]
    _complete(fields)
    return FrozenDict({name: fields[name] for name in BLAS_FIELDS if name in fields})


def has_pointers(function: str) -> bool:
    """Return whether a function, as gemm_batched_ex, reads its matrices through arrays of pointers.
    They may be anywhere, and the library has other kernels for them."""
    return "_batched" in function.replace("_strided_batched", "")


def _row_scaled(fields: Mapping[str, str], arch: str) -> Problem | None:
    """Return the GEMM of 8-bit floats of which each row of A and column of B has a factor, if the
    call is one: the library has other solutions for it than for the GEMM without factors."""
    if (fields["scaleA"], fields["scaleB"]) != ("2", "2"):
        return None
    if real(fields, "alpha") != 1 or real(fields, "beta") != 0:
        return None
    if _whole(fields, "batch_count") > 1 or fields["activation_type"] != "none":
        return None
    options: dict[str, Parameter] = {"scale": "row"}
    try:
        if fields["bias_vector"] != "0" and fields.get("bias_source", "d") == "d":
            options["bias"] = True
            if fields.get("bias_type"):
                options["bias_type"] = dtype(fields, "bias_type", arch)
        return ops.registry.get("gemm_epilogue").problem(**_product(fields, arch), **options)
    except ProblemError:
        return None


def _may_change(name: str, fields: Mapping[str, str]) -> bool:
    """Return whether an unknown field may change what is computed."""
    text = fields[name]
    if name in _READ or text.lower() in _NO:
        return False
    if name.startswith(("scaleABlock", "scaleBBlock")):  # the size of blocks that share a scale
        return fields[name[:6]] != "0"
    if name in ("compute_input_typeA", "compute_input_typeB"):
        return text != fields[f"{name[-1].lower()}_type"]
    return True


def _normal(logged: Mapping[str, str]) -> dict[str, str]:
    """Return the fields with normalised names and values."""
    fields: dict[str, str] = {}
    for name, text in logged.items():
        name, value = _NAMES.get(name, name), text.strip()
        if fields.setdefault(name, value) != value:
            raise BadLine(f"gives {name} twice, as {fields[name][:24]} and as {value[:24]}")
    for name in _SIZES:
        if fields.get(name):
            fields[name] = str(_whole(fields, name))
    for name in ("alpha", "beta"):
        if fields.get(name):
            fields[name] = number_text(real(fields, name))
    for name in _FLAGS:
        if name in fields:
            fields[name] = _flag(name, fields[name])
    for name in _SCALES:
        if name in fields:
            fields[name] = _scale(fields[name])
    for name in _TYPED:
        if fields.get(name) in _LETTERS:
            fields[name] = _LETTERS[fields[name]]
    for name in ("transA", "transB"):
        if fields.get(name):
            fields[name] = fields[name].upper().removeprefix("OP_")
    if fields.get("compute_type"):
        fields["compute_type"] = _compute_name(fields["compute_type"])
    activation = fields.get("activation_type", "").lower()
    fields["activation_type"] = "none" if activation in _NO else activation
    return fields


def _compute_name(text: str) -> str:
    # In profile logs, c_ is a prefix of compute types only.
    name = text.removeprefix("c_")
    return _COMPUTE_NAMES.get(name, name)


def _whole(fields: Mapping[str, str], name: str, default: str = "") -> int:
    text = fields.get(name) or default
    if fault := size_fault(text):
        raise ProblemError(f"{name}={text[:24]} {fault}")
    return int(text)


def _flag(name: str, text: str) -> str:
    if text.lower() in _YES:
        return "1"
    if text.lower() in _NO:
        return "0"
    raise ProblemError(f"{name}={text[:24]} is neither yes nor no")


def _scale(text: str) -> str:
    """Normalise a scale mode: 0 none, 1 scalar, 2 vector, 3 blocks. Old logs have s and v, PyTorch
    has the type of the scale."""
    if text.lower() in _NO:
        return "0"
    if text.lower() in _YES or text == "s" or text.endswith("_r"):
        return "1"
    return "2" if text == "v" else text


def _letter(fields: Mapping[str, str], name: str) -> str:
    """Return a field as n or t; the conjugate transpose of real numbers is the transpose."""
    text = fields.get(name, "").strip().upper()
    if text not in ("N", "T", "C"):
        raise ProblemError(f"{name}={text[:12]} is not N, T or C")
    return "n" if text == "N" else "t"


def _gemm(fields: Mapping[str, str], arch: str) -> Problem:
    batch = _whole(fields, "batch_count", "1")
    op = ops.registry.get("batched_gemm" if batch > 1 else "gemm")
    return op.problem(
        **({"batch": batch} if batch > 1 else {}),
        **_product(fields, arch),
        alpha=real(fields, "alpha", "1"),
        beta=real(fields, "beta", "0"),
        bias=fields.get("bias_vector", "0") != "0",
    )


def _product(fields: Mapping[str, str], arch: str) -> dict[str, Parameter]:
    """Return the parameters of a call that every GEMM has, in row-major order."""
    return {
        "m": _whole(fields, "n"),
        "n": _whole(fields, "m"),
        "k": _whole(fields, "k"),
        "b": dtype(fields, "a_type", arch),
        "a": dtype(fields, "b_type", arch),
        **({"c": dtype(fields, "d_type", arch)} if fields.get("d_type") else {}),
        "acc": accumulator(fields.get("compute_type", "")),
        "ta": _letter(fields, "transB"),
        "tb": _letter(fields, "transA"),
    }


def _nearest(fields: Mapping[str, str], arch: str) -> tuple[Problem, list[str]]:
    """Return the problem of a call, with as few factors and output types replaced as necessary, and
    the names of the replaced fields."""
    wished = dict(fields)
    if fields.get("bias_source", "d") != "d":
        wished["bias_vector"] = "0"  # the gradient of a bias: an output, not an input
    plain = {"alpha": "1", "beta": "0" if real(fields, "beta", "0") == 0 else "1"}
    first: ProblemError | None = None
    for change in ({}, plain, {"d_type": ""}, {"d_type": ""} | plain):
        try:
            problem = _gemm(wished | change, arch)
        except ProblemError as error:
            first = first or error
            continue
        return problem, [name for name in change if _differs(name, wished, change)]
    assert first is not None
    raise first


def _differs(name: str, wished: Mapping[str, str], change: Mapping[str, str]) -> bool:
    return name == "d_type" or real(wished, name, change[name]) != float(change[name])


def _complete(fields: dict[str, str]) -> None:
    """Fill in fields that a log may lack, and drop fields without effect."""
    required = ("transA", "transB", "m", "n", "k", "a_type", "compute_type")
    if missing := [name for name in required if not fields.get(name)]:
        raise ProblemError(f"has no {', '.join(missing)}")
    for name, default in (
        ("function", "matmul"),
        ("batch_count", "1"),
        ("alpha", "1"),
        ("beta", "0"),
        ("scaleA", "0"),
        ("scaleB", "0"),
        ("bias_vector", "0"),
        ("b_type", fields["a_type"]),
        ("d_type", fields.get("c_type") or fields["a_type"]),
    ):
        fields[name] = fields.get(name) or default
    fields["c_type"] = fields.get("c_type") or fields["d_type"]
    for name in ("m", "n", "k", "batch_count"):
        if _whole(fields, name) == 0:
            raise ProblemError(f"{name}=0 computes nothing")
    for name, (rows, _) in _stored(fields).items():
        fields[f"ld{name}"] = fields.get(f"ld{name}") or str(rows)
    batched = _whole(fields, "batch_count") > 1
    for name, (_, columns) in _stored(fields).items():
        packed = _whole(fields, f"ld{name}") * columns
        step = fields.get(f"stride_{name}") or str(packed)
        fields[f"stride_{name}"] = step if batched else "0"
    if fields["bias_vector"] == "0":
        fields.pop("bias_type", None)


def _stored(fields: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return rows and columns of each matrix as stored in memory."""
    m, n, k = (_whole(fields, name) for name in ("m", "n", "k"))
    a = (m, k) if _letter(fields, "transA") == "n" else (k, m)
    b = (k, n) if _letter(fields, "transB") == "n" else (n, k)
    return {"a": a, "b": b, "c": (m, n), "d": (m, n)}


def _gaps(fields: Mapping[str, str]) -> list[str]:
    """Return the leading dimensions and strides that leave gaps, overlap or repeat a matrix."""
    used = _stored(fields)
    if real(fields, "beta", "0") == 0:
        del used["c"]
    gaps = []
    batched = _whole(fields, "batch_count") > 1
    for name, (rows, columns) in used.items():
        leading = _whole(fields, f"ld{name}")
        if leading != rows and columns > 1:
            gaps.append(f"ld{name}")
        # The leading dimension of a single column has no effect.
        step = leading * columns if columns > 1 else rows
        if batched and _whole(fields, f"stride_{name}") not in (step, leading * columns):
            gaps.append(f"stride_{name}")
    return gaps


def _of_epilogue(fields: Mapping[str, str], bias_type: str) -> list[str]:
    """Return the fields of the epilogue that a problem does not compute; it may have a dtype of the
    bias."""
    lost = []
    if fields["activation_type"] != "none":
        lost.append("activation_type")
    if fields["bias_vector"] != "0":
        if fields.get("bias_source", "d") != "d":
            lost.append("bias_source")
        elif not bias_type and fields.get("bias_type", fields["d_type"]) != fields["d_type"]:
            lost.append("bias_type")
    if real(fields, "beta", "0") != 0 and fields["c_type"] != fields["d_type"]:
        lost.append("c_type")
    return lost
