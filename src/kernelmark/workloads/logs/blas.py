"""Convert BLAS calls, which are column-major, to problems, which are row-major, and back.

A column-major GEMM (m, n, k) with transA and transB is the row-major problem m=n, n=m with the
operands and their letters swapped: the bytes in memory are the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernelmark import ops
from kernelmark.core.errors import ProblemError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.workloads.logs import blas_words as words
from kernelmark.workloads.workload import BLAS_FIELDS, Call

# A call with one of these does more than the plain GEMM that it becomes.
_EXTRAS = (
    *("scaleA", "scaleB", "scaleC", "scaleD", "scaleAlpha_vector", "amaxD"),
    *("swizzleA", "swizzleB", "gradient", "use_e", "grouped_gemm"),
)
# Compute types that round the inputs before multiplying.
_ROUNDED_INPUTS = ("xf32_r", "f32_f16_r", "f32_bf16_r")


def call(given: Mapping[str, str], arch: str = "") -> Call:
    """Return a logged call with its nearest problem and all its BLAS fields.

    `lost` names the fields that the problem does not compute. Fields that the log lacks get the
    values of dense matrices; fields without effect (strides of a single GEMM, the type of an absent
    bias) are dropped, so that equal calls from different logs are equal. Raise ProblemError for an
    unreadable field.
    """
    fields = words.normal(given)
    _complete(fields)
    problem, lost = _nearest(fields, arch)
    lost += [name for name in _EXTRAS if fields.get(name, "0") != "0"]
    lost += _gaps(fields)
    lost += _of_epilogue(fields)
    if fields["compute_type"] in _ROUNDED_INPUTS:
        lost.append("compute_type")
    kept = FrozenDict({name: fields[name] for name in BLAS_FIELDS if fields.get(name)})
    count = words.whole(fields, "call_count", "1")
    return Call(problem=problem, count=count, blas=kept, lost=tuple(dict.fromkeys(lost)))


def fields_of(problem: Problem) -> FrozenDict[str]:
    """Return the BLAS call that computes a gemm or batched_gemm."""
    dims, types, options = problem.dims, problem.dtypes, problem.options
    fields = {
        "function": "matmul",
        "transA": str(options["tb"]).upper(),
        "transB": str(options["ta"]).upper(),
        "m": str(dims["n"]),
        "n": str(dims["m"]),
        "k": str(dims["k"]),
        "batch_count": str(dims.get("batch", 1)),
        "a_type": words.token(types["b"]),
        "b_type": words.token(types["a"]),
        "c_type": words.token(types["c"]),
        "d_type": words.token(types["c"]),
        "compute_type": words.token(types["acc"]),
        "scaleA": "0",
        "scaleB": "0",
        "alpha": words.number_text(float(options["alpha"])),
        "beta": words.number_text(float(options["beta"])),
        "bias_vector": str(int(options["bias"])),
        "activation_type": "none",
    }
    if options["bias"]:
        fields["bias_type"] = fields["d_type"]
    _complete(fields)
    return FrozenDict({name: fields[name] for name in BLAS_FIELDS if name in fields})


def _gemm(fields: Mapping[str, str], arch: str) -> Problem:
    batch = words.whole(fields, "batch_count", "1")
    op = ops.registry.get("batched_gemm" if batch > 1 else "gemm")
    return op.problem(
        **({"batch": batch} if batch > 1 else {}),
        m=words.whole(fields, "n"),
        n=words.whole(fields, "m"),
        k=words.whole(fields, "k"),
        b=words.dtype(fields, "a_type", arch),
        a=words.dtype(fields, "b_type", arch),
        **({"c": words.dtype(fields, "d_type", arch)} if fields.get("d_type") else {}),
        acc=words.accumulator(fields),
        ta=words.letter(fields, "transB"),
        tb=words.letter(fields, "transA"),
        alpha=words.real(fields, "alpha", "1"),
        beta=words.real(fields, "beta", "0"),
        bias=fields.get("bias_vector", "0") != "0",
    )


def _nearest(fields: Mapping[str, str], arch: str) -> tuple[Problem, list[str]]:
    """Return the problem of a call, with as few factors and output types replaced as necessary, and
    the names of the replaced fields."""
    asked = dict(fields)
    if fields.get("bias_source", "d") != "d":
        asked["bias_vector"] = "0"  # the gradient of a bias: an output, not an input
    plain = {"alpha": "1", "beta": "0" if words.real(fields, "beta", "0") == 0 else "1"}
    first: ProblemError | None = None
    for change in ({}, plain, {"d_type": ""}, {"d_type": ""} | plain):
        try:
            problem = _gemm(asked | change, arch)
        except ProblemError as error:
            first = first or error
            continue
        return problem, [name for name in change if _differs(name, asked, change)]
    assert first is not None
    raise first


def _differs(name: str, asked: Mapping[str, str], change: Mapping[str, str]) -> bool:
    if name == "d_type":
        return True
    return words.real(asked, name, change[name]) != float(change[name])


def _complete(fields: dict[str, str]) -> None:
    """Fill in fields that a log may lack, and drop fields without effect."""
    for name in ("transA", "transB", "m", "n", "k", "a_type", "compute_type"):
        if not fields.get(name):
            raise ProblemError(Reason("call-lacks", name=name))
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
        if words.whole(fields, name) == 0:
            raise ProblemError(Reason("call-empty", name=name))
    for name, (rows, _) in _stored(fields).items():
        fields[f"ld{name}"] = fields.get(f"ld{name}") or str(rows)
    batched = words.whole(fields, "batch_count") > 1
    for name, (_, columns) in _stored(fields).items():
        packed = words.whole(fields, f"ld{name}") * columns
        given = fields.get(f"stride_{name}") or str(packed)
        fields[f"stride_{name}"] = given if batched else "0"
    if fields["bias_vector"] == "0":
        fields.pop("bias_type", None)


def _stored(fields: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return rows and columns of each matrix as stored in memory."""
    m, n, k = (words.whole(fields, name) for name in ("m", "n", "k"))
    a = (m, k) if words.letter(fields, "transA") == "n" else (k, m)
    b = (k, n) if words.letter(fields, "transB") == "n" else (n, k)
    return {"a": a, "b": b, "c": (m, n), "d": (m, n)}


def _gaps(fields: Mapping[str, str]) -> list[str]:
    """Return the leading dimensions and strides that leave gaps, overlap or repeat a matrix."""
    used = _stored(fields)
    if words.real(fields, "beta", "0") == 0:
        del used["c"]
    found = []
    batched = words.whole(fields, "batch_count") > 1
    for name, (rows, columns) in used.items():
        leading = words.whole(fields, f"ld{name}")
        if leading != rows and columns > 1:
            found.append(f"ld{name}")
        # The leading dimension of a single column has no effect.
        step = leading * columns if columns > 1 else rows
        if batched and words.whole(fields, f"stride_{name}") not in (step, leading * columns):
            found.append(f"stride_{name}")
    return found


def _of_epilogue(fields: Mapping[str, str]) -> list[str]:
    found = []
    if fields.get("activation_type", "none") != "none":
        found.append("activation_type")
    if fields.get("bias_vector", "0") != "0":
        if fields.get("bias_source", "d") != "d":
            found.append("bias_source")
        elif fields.get("bias_type", fields["d_type"]) != fields["d_type"]:
            found.append("bias_type")
    if words.real(fields, "beta", "0") != 0 and fields["c_type"] != fields["d_type"]:
        found.append("c_type")
    return found
