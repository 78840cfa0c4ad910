"""hipblaslt: calls in the log of hipBLASLt, at every level that includes sizes.

HIPBLASLT_LOG_MASK=32         a `hipblaslt-bench …` command per call
HIPBLASLT_LOG_MASK=64, 128    a map per distinct call with its count, when the process ends; 128
                              adds the kernel. PyTorch's TunableOp writes shorter maps
HIPBLASLT_LOG_LEVEL=4         trace lines: `…[rocblaslt_matmul] A=… Adesc=[…] …`
HIPBLASLT_TUNING_FILE         a table, as hipblaslt-bench prints it

hipblaslt-bench: output of hipblaslt-bench and rocblas-bench. Each row is a bare mean. A header
line, `[0]:transA,…,us` (version 600: `[0]transA`), precedes its line of values and varies with the
options: rocblas-bench names sizes M, N and K, and types only with --log_datatype. A call that is
not a plain GEMM becomes a problem with the names and values of its arguments.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelmark.core.errors import ProblemError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, Status
from kernelmark.core.timing import Cache, Timer, Timing
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
from kernelmark.workloads.formats import cublaslt
from kernelmark.workloads.importers import (
    CUT,
    Importer,
    ResultFile,
    ResultRow,
    config_of,
    legal_name,
    problem_of,
    uneven_row,
)
from kernelmark.workloads.source import BadLine, Fields, check_columns
from kernelmark.workloads.workload import BLAS_FIELDS, Call

_COMMAND = b"hipblaslt-bench "
_MAPS = (b"- { function: m", b"- {function: m")
_PREFIX = 200  # bytes of a line before the name of the function
_LEVEL = b"[HIPBLASLT]"
_TRACED = b"[rocblaslt_matmul]"
_API = b"[Api]"
_TABLE = {"transA", "transB", "m", "n", "k"}
_RANK = re.compile(rb".*[\]:]")  # [0]: before a header; hipblaslt-bench 600 printed no colon
_GFLOPS = "hipblaslt-Gflops"
_OWN = {"grouped_gemm", "solution_index", _GFLOPS}
_POINTER = re.compile(rb"=0x[0-9a-f]+")
_COUNT = b"call_count:"
_INDEX = b"solution_index:"
_KERNEL = b"kernel_name:"
_SILENT = (b"Git Version:", b"hipBLASLt version:", b"hipBLASLt git version:", b"Rotating buffer")
_MARKS = ("hipblaslt-Gflops", "rocblas-Gflops", "rocblas-GB/s")
_HEADER = re.compile(r"\s*(?:\[(\d{1,9})\]:?)?\s*(\w+(?:,[^,\s]+)*,us(?:,\S*)?)\s*\Z")
# What begins a header, and values of a GEMM.
_BEGUN = re.compile(r"\s*(?:\[\d{1,9}\]:?\s*(?:\w+,|tr)|transA,transB,)")
_VALUES = re.compile(r"\s*[NTC],[NTC],\d+,")
_SOLUTION = re.compile(r"\s*--Solution index:\s*(\d{1,9})(?!\d)")
_KERNEL_NAME = re.compile(r"\s*--(?:kernel|Solution) name:\s*(\S.*)")
_DEVICE = re.compile(r"Device ID (\d{1,9}) : (\S.*?)(?: (gfx\w+)\S*)?\s*\Z")
# The columns of arguments end before the first of these.
_MEASURED = (
    *("rotating_buffer", "cold_iters", "lowest-avg-freq", "avg-freq_0", "avg-MCLK"),
    *("splitK", "wgm", *_MARKS, "hipblaslt-GB/s", "us"),
)
# Columns of a table that do not change what is computed.
MEASURED_COLUMNS = frozenset(
    (
        *(*_MEASURED, "hot_iters", "lowest-median-freq", "median-freq_0", "median-MCLK"),
        *(
            "CPU-Gflops",
            "CPU-us",
            "gcnArchName",
            *("norm_error", *(f"norm_error_{number}" for number in range(1, 5)), "atol", "rtol"),
            "kernel",
            "soulution_index",
            "CUs",
        ),
        # Of GEKO's summary: the chosen kernel, and the share of its time.
        *("solution", "solutionIdx", "lib_source", "total (us)", "% of total"),
    )
)
# Columns that make a call more than a plain GEMM, unless they are 0, none or empty.
_SET = (
    *("grouped_gemm", "activation_type", "scaleA", "scaleB", "scaleC", "scaleD", "amaxD"),
    *("swizzle_a", "swizzle_b", "bias_vector"),
)
_SIZES = ("m", "n", "k", "batch_count")
_GEMM = (
    *("transA", "transB", "batch_count", "m", "n", "k", "a_type", "b_type", "c_type", "d_type"),
    "compute_type",
)
_CONFIG = {
    "splitK": "splitk",
    "wgm": "wgm",
    "sol_idx_global": "solution_index",
    "soulution_index": "solution_index",  # as older clients spelled it
}
# Columns that are no config: of the problem, the timing and the measurement.
_NO_CONFIG = frozenset(
    (
        *(*BLAS_FIELDS, *blas.EXTRAS, *MEASURED_COLUMNS, *_CONFIG, "use_gpu_timer"),
        *("swizzle_a", "swizzle_b", "bias_source", "iters", "error", "samples", "cv"),
    )
)
_NO_ARGUMENT = re.compile(
    r"freq|MCLK|efficiency|gran\b|granularity|tiles_per|num_cu|bytes|norm|-us$"
)
# Columns of the client's own verification (-v), and what they have if it failed.
_ERRORS = ("norm_error", *(f"norm_error_{number}" for number in range(1, 5)))
_VERIFIED = (*_ERRORS, "atol", "rtol")
_FAILED = ("failed", "nan", "-nan", "inf", "-inf")
# Limits of hipblaslt-bench's norm_check (norm.hpp), by the type of D.
_NORM_LIMITS = {
    "f64_r": 1e-12,
    "f32_r": 1e-5,
    "i32_r": 1e-4,
    "bf16_r": 0.1,
    **dict.fromkeys(("f16_r", "i8_r"), 0.01),
    **dict.fromkeys(("f8_r", "f8_fnuz_r"), 0.125),
    **dict.fromkeys(("bf8_r", "bf8_fnuz_r"), 0.25),
}
# Compute types whose roundings are those of a narrower type.
_NARROW = {"xf32_r": "f16_r", "f16_r": "f16_r", "f32_f16_r": "f16_r", "f32_bf16_r": "bf16_r"}
_TWO_RUNS = "import each run of the client in a file of its own"
_NO_TYPES = "rocblas-bench --log_function_name --log_datatype prints them"


class HipblasltLog(LogReader):
    name = "hipblaslt"
    summary = "hipBLASLt logs: masks 32, 64 and 128, trace lines, tuning files"
    facts = FormatFacts(
        versions="hipBLASLt 7d9fb683 (2024-10), rocm-libraries aec838a8 (2025-05)",
        exactness="exact; what a call does beyond the GEMM is listed; tables with only d_type "
        "are rejected unless --dtype is given",
        checked="compared with its logging and client code; samples of our own in tests",
    )

    without_sizes = (b"[Api][rocblaslt_matmul]", "HIPBLASLT_LOG_MASK=32")

    def part(self, line: bytes) -> Part | None:
        # Test the most frequent prefixes first: this runs for a million lines.
        first = line[:1]
        if first == b"h" and line.startswith(_COMMAND):
            return "bench", calls.without_solution(line), 1
        if first == b"-" and line.startswith(_MAPS):
            return _profile(line)
        if first == b"[" and line.find(_TRACED, 0, _PREFIX) >= 0:
            # Level 5 logs a call twice, first with pointers to its descriptors.
            api = line.find(_API, 0, _PREFIX) >= 0
            return NOTHING if api else ("trace", _without_pointers(line), 1)
        return self._anywhere(line)

    def _anywhere(self, line: bytes) -> Part | None:
        """Return the part of a call that follows other text: a time, a rank, a progress bar."""
        if (at := line.find(_COMMAND)) >= 0:
            if line.startswith(b"#"):
                return None
            return "bench", calls.without_solution(line[at:]), calls.count_before(line, at)
        if (at := line.find(b"{")) >= 0 and b"transA" in line:
            other = line.startswith(b"#") or b"TunableOp_" in line[:at]
            return None if other or b"rocblas_function" in line else _profile(line[at:])
        if _LEVEL in line:
            traced = _TRACED in line and _API not in line
            return ("trace", _without_pointers(line), 1) if traced else NOTHING
        return NOTHING if line.startswith(_SILENT) else None

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterator[Call]:
        text = part.decode("utf-8", "replace")
        if kind == "trace":
            yield blas.call(_traced(text), options.arch)
            return
        if kind == "cut":
            raise BadLine("is cut: it lacks the closing brace")
        if kind == "bench":
            pairs = calls.options(text.partition(" ")[2])
        else:
            pairs = calls.entries(text if "}" in text else text + "}")
        for fields in calls.calls_of(pairs):
            yield blas.call(_checked(fields, kind), options.arch, harmless=HARMLESS)

    def table(self, line: bytes, file: str) -> RowReader | None:
        columns = _RANK.sub(b"", line, count=1).strip().decode("utf-8", "replace").split(",")
        names = set(columns)
        if _GFLOPS in names:  # M, N and K in 2022; in other tables, those of rocblas-gemm-tune
            names |= {name.lower() for name in columns}
        if not names >= _TABLE or not _OWN & names:
            return None
        return BlasTable(columns, MEASURED_COLUMNS | HARMLESS)


def _profile(line: bytes) -> Part:
    """Return the map up to the kernel and the count, if it ends with these; else use
    `_any_order`."""
    at = line.rfind(_COUNT)
    end = line[at + len(_COUNT) :]
    if at < 0 or b"}" not in end:
        return _any_order(line)
    try:
        count = int(end.rstrip(b"} \r"))
    except ValueError:
        return _any_order(line)
    chosen = line.rfind(_INDEX, 0, at)
    if chosen < 0:
        return "profile", line[:at], count
    if line.count(b",", chosen, at) == 3 and line.find(_KERNEL, chosen, at) >= 0:
        return "extended", line[:chosen], count
    return _any_order(line)


def _any_order(line: bytes) -> Part:
    """Return the part of a map that does not end with its count, from another version or tool."""
    if b"}" not in line:
        return "cut", b"", 1
    kind = "extended" if _KERNEL in line else "profile"
    part, count = calls.cut(line, _COUNT)
    for name in (_INDEX, b"solution_Name:", b"solution_name:", _KERNEL):
        part, _ = calls.cut(part, name)
    if not count:
        return kind, part, 1
    return (kind, part, int(count)) if count.isdigit() and len(count) < 18 else (kind, line, 1)


def _without_pointers(line: bytes) -> bytes:
    """Return only the descriptors and the factors: the rest differs in every line."""
    pieces = line.split(b"desc=[", 4)
    bias = pieces[-1].find(b" biasPointer=")
    if len(pieces) != 5 or bias < 0:
        return _POINTER.sub(b"", line)
    _, a, b, c, d = pieces
    factors = d.find(b" alpha", bias)
    stream = d.find(b" stream=", bias)
    return b"Adesc=[%b] Bdesc=[%b] Cdesc=[%b] Ddesc=[%b]%b" % (
        a[: a.find(b"]")],
        b[: b.find(b"]")],
        c[: c.find(b"]")],
        d[:bias],
        b"" if factors < 0 else d[factors : stream if stream > 0 else None],
    )


def _traced(text: str) -> dict[str, str]:
    """Return the fields of a call from its matrix descriptors, which have stored rows and
    columns."""
    matrices, compute, factors = cublaslt.descriptions(text)
    for name, matrix in zip("ABCD", matrices, strict=True):
        if (order := matrix.get("order", "col")) != "col":
            raise BadLine(f"the order {order[:24]} of {name} is not supported")
    fields = cublaslt.blas_fields(matrices, compute)
    fields |= {name: factors[name] for name in ("alpha", "beta") if name in factors}
    if "alphaVector" in factors:
        fields["scaleAlpha_vector"] = "1"
    return fields


def _checked(fields: dict[str, str], kind: str) -> dict[str, str]:
    """Return the fields with types and bias filled in. Maps of PyTorch do not log `bias_vector`:
    with a bias, they have its type and no beta."""
    if kind != "bench":
        bias = "bias_type" in fields and "beta" not in fields and "bias_vector" not in fields
        return fields | {"bias_vector": "1"} if bias else fields
    # Command lines written by people rely on the client's defaults. Logs have every option, the
    # method first and leading dimensions before types: one with those may have been cut.
    precision = fields.get("precision") or fields.get("r")
    first = next((name for name in fields if name in ("transA", "transB", "m", "sizem")), "")
    is_logged = any(name in fields for name in ("api_method", "lda", "ldb", "ldc", "ldd"))
    typed = any(f"{name}_type" in fields for name in "abcd")  # after the letters
    if not precision and is_logged:
        return {"transA": "N", "transB": "N"} | fields if typed else fields
    if not precision and not typed and first.startswith("trans"):
        return fields
    types = {f"{name}_type": precision or "f16_r" for name in "abcd"}
    return {"transA": "N", "transB": "N", "compute_type": "f32_r"} | types | fields


class HipblasltBench(Importer):
    name = "hipblaslt-bench"
    summary = "output of hipblaslt-bench and rocblas-bench"
    facts = FormatFacts(
        versions="hipBLASLt 7d9fb683 (2024-10), rocBLAS b520bc83 (2024-10)",
        exactness="every row; arguments that a problem does not have are part of the config; a "
        "call without types that occurs twice is rejected; an error above the limit of "
        "hipblaslt-bench's norm_check is wrong",
        checked="compared with their argument models; samples of our own in tests",
    )
    method = "mean of hipblaslt-bench"

    def recognizes(self, name: str, head: bytes) -> bool:
        return any(mark.encode() in head for mark in _MARKS)

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        untyped: set[str] = set()
        kernels: dict[tuple[str, Config], str] = {}
        rows = _printed(file)
        several = len({printed.device for printed in rows}) > 1
        for printed in rows:
            file.at = printed.at
            row = _row(printed, file.overrides.arch, printed.device if several else "")
            row = dataclasses.replace(row, doubt=printed.doubt)
            problem = row.problem
            if problem.op.startswith("blas_") and "a_type" not in problem.options:
                if problem.key in untyped:
                    raise BadLine("a second row of this call: its types may differ", hint=_NO_TYPES)
                untyped.add(problem.key)
            kernel = kernels.setdefault((problem.key, row.config), row.kernel)
            if kernel and row.kernel not in ("", kernel):
                raise BadLine(f"another kernel of one config: {row.kernel[:60]}", hint=_TWO_RUNS)
            yield row


@dataclass(slots=True)
class _Printed:
    """A line of values, with the kernel from the lines below it."""

    cells: Fields
    at: str
    first: str  # its first cell, by which a damaged row is known
    config: dict[str, int] = field(default_factory=dict)
    kernel: str = ""
    doubt: Reason = NO_REASON
    device: str = ""  # the devices that were listed before it
    arch: str = ""  # theirs, if they have one in common


def _printed(file: ResultFile) -> list[_Printed]:
    header: list[str] | None = None
    rows: list[_Printed] = []
    is_open, rank = False, 0  # whether lines below the last row belong to it
    # The winner repeats a row of its problem, unless only winners were printed.
    has_rows, is_winner = False, False
    devices: dict[str, re.Match[str]] = {}
    listed = 0  # rows before the devices
    for text in file.lines():
        if match := _DEVICE.match(text):
            if match[1] in devices or listed < len(rows):
                devices, listed = {}, len(rows)
            devices[match[1]] = match
            continue
        match = _HEADER.match(text) if any(mark in text for mark in _MARKS) else None
        if match or text.lstrip().startswith("Winner"):
            is_open, header = False, _columns(match[2]) if match else None
            rank = int(match[1] or 0) if match else 0
            is_winner = is_winner or not match
            continue
        if _BEGUN.match(text) or (_VALUES.match(text) and header is None and not rows):
            raise BadLine("a header, or its values, that cannot be read", hint=CUT)
        # The repeated headers of the table may have been removed.
        again = is_open and header is not None and len(_split(text)) == len(header)
        if again or (header is not None and not is_open and text.count(",") >= 5):
            cells = _cells(text, header or [])
            if again or not (is_winner and has_rows):
                config = {"rank": rank} if rank else {}
                rows.append(_Printed(cells, file.at, _split(text)[0], config, doubt=file.doubt))
                rows[-1].device = "; ".join(f"{n}: {found[2]}" for n, found in devices.items())
                archs = {found[3] or "" for found in devices.values()}
                rows[-1].arch = archs.pop() if len(archs) == 1 else ""
                is_open = True
            else:
                header = None
            if not again:
                has_rows, is_winner = not is_winner, False
        elif is_open and (match := _SOLUTION.match(text)):
            rows[-1].config = {"solution_index": int(match[1])}
            rows[-1].doubt = file.doubt
        elif is_open and (match := _KERNEL_NAME.match(text)):
            rows[-1].kernel = match[1]
            rows[-1].doubt = file.doubt
        elif file.doubt and text.strip() and (rows or header is not None):
            # A truncated row may not look like one.
            raise BadLine("the file ends within a table", hint=CUT)
        elif is_open and text.count(",") > 1 and _split(text)[0] == rows[-1].first:
            raise uneven_row(len(_split(text)), len(rows[-1].cells))
    return rows


def _columns(text: str) -> list[str]:
    """Return the columns of a header. Before they were named CPU-us, the times of the CPU had a
    second column `us`, after CPU-Gflops; any other column may occur once."""
    names = [name.lower() if name in ("M", "N", "K") else name for name in text.split(",")]
    names = [
        "CPU-us" if name == "us" and i and names[i - 1] == "CPU-Gflops" else name
        for i, name in enumerate(names)
    ]
    if fault := check_columns(names):
        raise BadLine(fault, hint="name each column once")
    return names


def _split(text: str) -> list[str]:
    """Return the cells of a line; a complex number such as (1,0) is one cell."""
    return next(csv.reader([re.sub(r"\(([^)]*)\)", r'"(\1)"', text.strip())]))


def _cells(text: str, header: list[str]) -> Fields:
    cells = _split(text)
    if len(cells) != len(header):
        raise uneven_row(len(cells), len(header))
    return Fields({name: cell.strip() for name, cell in zip(header, cells, strict=True)})


def _row(printed: _Printed, arch: str, device: str) -> ResultRow:
    cells = printed.cells
    own_arch = cells.text("gcnArchName").partition(":")[0] or printed.arch
    problem = row_problem(cells, arch or own_arch)
    for name in _SIZES:  # a size that is not whole would become an option
        if name in cells:
            cells.whole(name)
    tuned: dict[str, int | str] = {
        name: int(cells.number(column))
        for column, name in _CONFIG.items()
        if cells.text(column, "0") != "0"
    }
    error = _verification(cells)
    return ResultRow(
        status=Status.WRONG if error else Status.OK,
        error=error,
        problem=problem,
        backend="hipblaslt" if "hipblaslt-Gflops" in cells else "rocblas",
        samples_s=(cells.number("us") * 1e-6,),
        timing=bench_timing(cells),
        config=FrozenDict({**printed.config, **tuned, **row_config(cells, problem)}),
        kernel=printed.kernel,
        device=device or _gpu(cells),
        arch=own_arch,
    )


def _verification(cells: Fields) -> Reason:
    """Return why the client's verification failed, if it did: it prints an error, but no verdict
    on it."""
    for name in _VERIFIED:
        if cells.text(name).lower() in _FAILED:
            return Reason(f"the client's {name} is {cells[name]}")
    kinds = cells.text("d_type"), _NARROW.get(cells.text("compute_type"), "")
    limit = max((_NORM_LIMITS.get(kind, 0.0) for kind in kinds), default=0.0) or math.inf
    for name in _ERRORS:
        if cells.text(name) and abs(cells.number(name)) >= limit:
            return Reason(f"the client's {name} is {cells[name]}, and its limit {limit:g}")
    return NO_REASON


def _gpu(cells: Fields) -> str:
    """Return the GPU in the columns of a row, as `gfx942 with 304 CUs`."""
    arch, units = cells.text("gcnArchName").partition(":")[0], cells.text("CUs")
    return f"{arch} with {units} CUs" if arch and units else ""


def row_config(cells: Fields, problem: Problem) -> dict[str, int | str]:
    """Return the arguments that a problem does not have, and that may have chosen another kernel
    or time: a workspace, the type of a bias, and every column that is not known."""
    parts = {**problem.dims, **problem.dtypes, **problem.options}
    has_bias = cells.text("bias_vector", "0") != "0"
    names = [n for n in cells if n not in _NO_CONFIG and not _NO_ARGUMENT.search(n)]
    names += ["bias_type"] if has_bias else []
    names += ["c_type"] if cells.text("c_type") != cells.text("d_type") else []
    names += ["function"] if blas.has_pointers(cells.text("function")) else []
    names += ["scale_type"] if cells.text("scale_type") != cells.text("compute_type") else []
    # How much of the rotating buffer the caches hold changes the time.
    names += ["rotating_buffer"] if cells.text("rotating_buffer", "0") != "0" else []
    return config_of(
        (name, cells[name]) for name in names if cells.text(name) and legal_name(name) not in parts
    )


def bench_timing(cells: Fields) -> Timing:
    """Return how the client timed a row."""
    return Timing(
        cache=Cache.HOT if cells.text("rotating_buffer", "0") == "0" else Cache.COLD,
        timer=Timer.LOOP if cells.text("use_gpu_timer", "0") == "0" else Timer.GATE,
    )


def row_problem(cells: Fields, arch: str) -> Problem:
    """Return the problem of a row: a GEMM, or, if the op does not compute it exactly (a complex
    factor, an unknown dtype), a problem with the fields that differ."""
    lost: tuple[str, ...] = ("alpha", "beta")
    with contextlib.suppress(ProblemError):
        call = blas.call(cells, arch, harmless=set(cells) - _unknown_arguments(cells))
        # What is part of the config: see row_config.
        lost = tuple(name for name in call.lost if name not in ("bias_type", "function"))
        if not lost:
            return call.problem
    if "transB" not in cells or "k" not in cells:
        # The arguments, which end before the columns of the measurement.
        function = cells.get("function", "call")
        end = next((i for i, name in enumerate(cells) if name in _MEASURED), len(cells))
        arguments = {name: cells[name] for name in list(cells)[:end] if name != "function"}
        return problem_of(f"blas_{function}", arguments)
    usual = {"alpha": "1", "beta": "0"}
    differing = {name: cells[name] for name in cells if name in _SET and cells[name] != "0"}
    differing |= {name: cells.text(name) for name in lost if cells.get(name) != usual.get(name)}
    # What the op computes of a call is no part of the other problem's sizes and types.
    differing |= {
        name: cells[name]
        for name, text in usual.items()
        if cells.text(name, text).removesuffix(".0") != text
    }
    differing = {name: text for name, text in differing.items() if text}
    return problem_of(
        "blas_matmul", differing | {name: cells[name] for name in _GEMM if name in cells}
    )


def arguments_of(cells: Fields) -> list[str]:
    """Return the columns from the letters to the measurement."""
    names = list(cells)
    begin = names.index("transA") if "transA" in names else len(names)
    arguments = itertools.takewhile(
        lambda name: name.removesuffix("_reference").removesuffix("_tuned") not in _MEASURED,
        names[begin:],
    )
    return list(arguments)


def _unknown_arguments(cells: Fields) -> set[str]:
    """Return the columns between the letters and the measurement that may change what was
    computed."""
    return set(arguments_of(cells)) - HARMLESS - MEASURED_COLUMNS - set(_CONFIG)


readers = (HipblasltLog(),)
importers = (HipblasltBench(),)
