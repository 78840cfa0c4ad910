"""rocblas: GEMMs in the log of rocBLAS, at each logging layer.

    ROCBLAS_LAYER=1    trace lines: `rocblas_gemm_ex,T,N,…`, including pointers
    ROCBLAS_LAYER=2    a `rocblas-bench …` command per call
    ROCBLAS_LAYER=4    a map per distinct call with its count, when the process ends

and the tables that rocblas-gemm-tune reads and writes. Calls other than GEMMs are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelmark.core.registry import FormatFacts
from kernelmark.workloads import blas, calls
from kernelmark.workloads.calls import (
    HARMLESS,
    NOTHING,
    BlasTable,
    LogOptions,
    LogReader,
    Part,
    RowReader,
)
from kernelmark.workloads.formats.hipblaslt import MEASURED_COLUMNS
from kernelmark.workloads.source import BadLine
from kernelmark.workloads.workload import Call

_COMMAND = b"rocblas-bench "
_FUNCTION = b"rocblas_function"
_GEMM = b"gemm"
_MODE = b"rocblas_set_math_mode"
_OWN = {"input_type", "rocblas-Gflops"}
_PRECISIONS = {"h": "f16_r", "s": "f32_r", "d": "f64_r"}
# The fields of each kind of trace line, in order; - is a pointer or another unused field.
_EX = (
    *("transA", "transB", "m", "n", "k", "alpha", "-", "a_type", "lda", "stride_a"),
    *("-", "b_type", "ldb", "stride_b", "beta", "-", "c_type", "ldc", "stride_c"),
    *("-", "d_type", "ldd", "stride_d", "batch_count", "compute_type"),
)
_CHOICE = ("algo", "solution_index", "flags")  # which may follow these
# Values of flags that change no result; others round f16 inputs, or the output stochastically.
_EXACT_FLAGS = ("none", "use_cu_efficiency", "check_solution_index", "0", "2", "8", "10")
_HARMLESS = HARMLESS - {"flags"}
_PLAIN = (
    *("transA", "transB", "m", "n", "k", "alpha", "-", "lda", "stride_a"),
    *("-", "ldb", "stride_b", "beta", "-", "ldc", "stride_c", "batch_count"),
)


class RocblasLog(LogReader):
    name = "rocblas"
    summary = "rocBLAS logs: bench commands, profiles, traces, rocblas-gemm-tune tables"
    facts = FormatFacts(
        versions="rocBLAS b520bc83 (2024-10), rocm-libraries aec838a8 (2025-05)",
        exactness="exact for GEMMs; calls of other functions, such as gemv, are not counted; a "
        "math mode set in a trace is reported, not applied",
        checked="compared with its logging and client code; samples of our own in tests",
    )

    def part(self, line: bytes) -> Part | None:
        at = line.find(_COMMAND)
        if at >= 0:
            if line[:1] == b"#":
                return None
            if _GEMM not in line:
                return NOTHING
            return "bench", calls.without_solution(line[at:]), calls.count_before(line, at)
        if _FUNCTION in line and b"{" in line:
            return _profile(line) if _GEMM in line else NOTHING
        if line.startswith(b"rocblas_") and b"," in line:
            name = line[: line.find(b",")]
            if name == _MODE:
                return NOTHING if line.rstrip().endswith(b",0") else ("mode", b"", 1)
            return ("trace", _without_pointers(line), 1) if _GEMM in name else NOTHING
        return None

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterator[Call]:
        text = part.decode("utf-8", "replace")
        if kind == "mode":
            raise BadLine("sets a math mode: the calls after it may round their inputs")
        if kind == "trace":
            yield blas.call(_typed(_traced(text)), options.arch, harmless=_HARMLESS)
            return
        is_command = kind == "bench"
        pairs = calls.options(text.partition(" ")[2]) if is_command else calls.entries(text)
        for fields in calls.calls_of(pairs):
            fields = _defaults(fields) if is_command else fields
            yield blas.call(_typed(fields), options.arch, harmless=_HARMLESS)

    def table(self, line: bytes, file: str) -> RowReader | None:
        columns = line.strip().decode("utf-8", "replace").split(",")
        if not {"transA", "transB"} <= set(columns) or not _OWN & set(columns):
            return None
        return BlasTable(columns, MEASURED_COLUMNS | HARMLESS)


def _profile(line: bytes) -> Part | None:
    if line[:1] == b"#":
        return None
    part, count = calls.cut(line, b"call_count:")
    part, _ = calls.cut(part, b"solution_index:")
    good = count.isdigit() and len(count) < 18
    return ("profile", part, int(count)) if good else ("profile", line, 1)


def _without_pointers(line: bytes) -> bytes:
    cells = line.rstrip().split(b",")
    return b",".join(b"-" if cell[:2] == b"0x" else cell for cell in cells)


def _traced(text: str) -> dict[str, str]:
    function, *values = text.split(",")
    function = function.removeprefix("rocblas_").removesuffix("_64")
    strided, batched = "_strided_batched" in function, "_batched" in function
    fields = {"function": function}
    names = [
        name
        for name in (_EX if function.endswith("_ex") else _PLAIN)
        if (strided or not name.startswith("stride_")) and (batched or name != "batch_count")
    ]
    if len(values) < len(names):
        raise BadLine(f"{len(values)} values for {len(names)} fields")
    names += _CHOICE if function.endswith("_ex") else ()
    fields |= {name: value for name, value in zip(names, values, strict=False) if name != "-"}
    if not function.endswith("_ex"):
        fields["r"] = function[0]
    return fields


def _defaults(fields: dict[str, str]) -> dict[str, str]:
    """Return the fields with the client's defaults: people leave letters and types out. A logged
    command has the letters before the sizes, and types after them: one with letters that lacks
    types may be cut, and gets none."""
    letters = any(f"trans{name}" in fields for name in ("A", "B", "poseA", "poseB"))
    function = fields.get("f") or fields.get("function", "gemm")
    typed = any(f"{name}_type" in fields for name in "abcd") or "compute_type" in fields
    more = {name: "N" for name in "AB" if not {f"trans{name}", f"transpose{name}"} & fields.keys()}
    defaults = {f"trans{name}": letter for name, letter in more.items()}
    has_precision = "r" in fields or "precision" in fields or function[:1] in _PRECISIONS
    if not typed and not has_precision and not (letters and function.endswith("_ex")):
        defaults["r"] = "f32_r"
    return defaults | fields


def _typed(fields: dict[str, str]) -> dict[str, str]:
    """Return the fields with all types filled in. Functions for a single type give it once: as
    -r f32_r, or by their first letter."""
    function = fields.get("rocblas_function") or fields.get("f") or fields.get("function", "")
    function = function.removeprefix("rocblas_")
    precision = fields.get("r") or fields.get("precision", "")
    if not precision and function[:1] in _PRECISIONS and function[1:].startswith("gemm"):
        precision = function[0]
    precision = _PRECISIONS.get(precision, precision)
    types = {}
    if precision:
        types = {f"{name}_type": precision for name in "abcd"} | {"compute_type": precision}
    arguments = {name: value for name, value in fields.items() if name != "rocblas_function"}
    return _rounded(types | arguments | {"function": function or "gemm"})


def _rounded(fields: dict[str, str]) -> dict[str, str]:
    """Apply math_mode to the compute type: mode 1 rounds inputs to xf32 if A is f32, and has no
    other effect (tensile_host.cpp). Drop flags without effect."""
    if fields.get("flags") in _EXACT_FLAGS:
        del fields["flags"]
    mode = fields.pop("math_mode", "0")
    if mode not in ("0", "1"):
        raise BadLine(f"unknown math_mode {mode[:12]!r}")
    if mode == "1" and fields.get("a_type") in ("f32_r", "s"):
        fields["compute_type"] = "xf32_r"
    return fields


readers = (RocblasLog(),)
