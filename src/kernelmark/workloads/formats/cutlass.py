"""cutlass: the table that cutlass_profiler prints and writes to --output: a row for each kernel.

    Problem,Provider,OperationKind,Operation,Disposition,Status,gemm_kind,m,n,k,A,B,C,…,Runtime,GB/s
    1,CUTLASS,gemm,cutlass_simt_sgemm_128x128_8x2_nn_align1,passed,success,universal,…,481.022,6.2

A tensor is dtype:layout, and Runtime is the mean in milliseconds. Rows of one problem are kernels:
as calls, they are one call. GEMMs and forward convolutions are read, of dense tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelmark import ops
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Status
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.ops.conv import output_size
from kernelmark.workloads import blas
from kernelmark.workloads.calls import LogOptions, LogReader, RowReader, Table
from kernelmark.workloads.importers import (
    CUT,
    EACH_TABLE,
    Importer,
    ResultFile,
    ResultRow,
    exact_problem,
    legal_name,
    problem_of,
    setting,
)
from kernelmark.workloads.source import BadLine, Fields
from kernelmark.workloads.workload import Call

_HEAD = ("Problem", "Provider", "OperationKind", "Operation", "Disposition", "Status")
_MARK = "Provider,OperationKind,Operation,"
_TOKENS = {
    **{f"{kind}": f"{kind}_r" for kind in ("f64", "f32", "f16", "bf16")},
    "s8": "i8_r",
    "s32": "i32_r",
    "tf32": "f32_r",
    "e4m3": "f8_r",
    "fe4m3": "f8_r",
    "e5m2": "bf8_r",
    "fe5m2": "bf8_r",
}
_KINDS = ("gemm", "universal", "batched", "array")
_SIZES = {
    **{name: name for name in ("n", "c", "h", "w", "k", "r", "s")},
    **{
        f"{name}_{side}": f"{name}_{side}"
        for name in ("pad", "stride", "dilation")
        for side in "hw"
    },
}
_GEMM = ("gemm_kind", "m", "n", "k", "A", "B", "C", "D", "alpha", "beta", "batch_count", "accum")
_CONV = (
    *("conv_kind", *_SIZES, "p", "q", "g", "Activation", "Filter", "Output", "conv_mode"),
    *("alpha", "beta", "accum"),
)
_PROBLEM = frozenset((*_GEMM, *_CONV, "op_class", "OperationKind"))
_MEASURED = ("Bytes", "Flops", "Flops/Byte", "Runtime", "GB/s", "GFLOPs")
_TILES = tuple(f"{name}_{axis}" for name in ("cta", "warps", "inst") for axis in "mnk")
# Columns that are no config; the last ones are part of a kernel's name.
_NO_CONFIG = frozenset((*_HEAD, *_PROBLEM, *_MEASURED, *_TILES, "stages", "min_cc", "max_cc"))
_WHOLE = frozenset(("m", "n", "k", "batch_count", "p", "q", "g", *_SIZES))
_NO_TIME = ("nan", "-nan", "inf", "-inf")
_RAN = ("passed", "not_verified", "not_run", "not_supported")
# The profiler rotates copies of the tensors that exceed the last-level cache, and times a loop.
_TIMING = Timing(cache=Cache.COLD, timer=Timer.LOOP)


class _NoOp(BadLine):
    """A row that no op computes."""


class CutlassLog(LogReader):
    name = "cutlass"
    summary = "CUTLASS profiler CSV: its GEMMs and forward convolutions"
    facts = FormatFacts(
        versions="cutlass_profiler 2.x to 4.4",
        exactness="exact for dense GEMMs and forward conv2d; other kinds of operations, and "
        "complex and sparse tensors, are rejected row by row; each problem is one call",
        checked="the layout of tables in public repositories, with rows of our own",
    )

    def table(self, line: bytes, file: str) -> RowReader | None:
        columns = line.strip().decode("utf-8", "replace").split(",")
        return _Rows(columns, _PROBLEM) if set(_HEAD) <= set(columns) else None


class _Rows(Table):
    once = True

    def row(self, cells: Fields, options: LogOptions) -> Iterator[Call]:
        yield _call(cells, options.arch)


def _call(cells: Fields, arch: str) -> Call:
    kind = cells.required("OperationKind")
    if kind == "conv2d":
        return _conv(cells)
    if kind != "gemm" or cells.text("gemm_kind", "gemm") not in _KINDS:
        raise _NoOp(f"is a {kind} of kind {cells.text('gemm_kind', kind)[:24]}: no op computes it")
    return _gemm(cells, arch)


def _gemm(cells: Fields, arch: str) -> Call:
    """Return a GEMM as a BLAS call: with D stored by rows, that of D transposed."""
    types, by_rows = {}, {}
    # A kernel whose C is void reads no C: beta has no effect.
    is_void = bool(cells.get("D")) and cells.required("C").partition(":")[0] == "void"
    for name in ("A", "B", *("C" if not is_void else ""), *("D" if cells.get("D") else "")):
        types[name], layout = _tensor(cells, name)
        if layout not in ("row", "column"):
            raise _NoOp(f"{name} has the layout {layout[:24]}: no op computes it")
        by_rows[name] = layout == "row"
    out = "D" if "D" in types else "C"
    first, second, m, n = ("B", "A", "n", "m") if by_rows[out] else ("A", "B", "m", "n")
    # Stored by columns, an operand of the call is what it is; of the transposed call, by rows.
    letters = ["N" if by_rows[name] == by_rows[out] else "T" for name in (first, second)]
    accumulator = _token(cells.required("accum"), "accum")
    # Tensor cores have no f32: f32 and tf32 are rounded.
    is_rounded = "tf32" in (cells["A"][:4], cells["accum"]) or (
        types["A"] == "f32_r" and cells.text("op_class") == "tensorop"
    )
    lost = ("c_layout",) if by_rows.get("C", by_rows[out]) != by_rows[out] else ()
    call = blas.call(
        {
            "m": cells.required(m),
            "n": cells.required(n),
            "k": cells.required("k"),
            "transA": letters[0],
            "transB": letters[1],
            "a_type": types[first],
            "b_type": types[second],
            "c_type": types.get("C", types[out]),
            "d_type": types[out],
            "compute_type": "xf32_r" if is_rounded else accumulator,
            "batch_count": cells.text("batch_count", "1"),
            "alpha": cells.text("alpha", "1"),
            "beta": "0" if is_void else cells.text("beta", "0"),
        },
        arch,
    )
    return Call(problem=call.problem, blas=call.blas, lost=(*call.lost, *lost))


def _conv(cells: Fields) -> Call:
    if cells.required("conv_kind") != "fprop":
        raise _NoOp(f"is a {cells['conv_kind'][:12]}, which no op computes")
    if cells.text("conv_mode", "cross") != "cross":
        raise _NoOp("is a convolution with flipped filters, which no op computes")
    tensors = [_tensor(cells, name) for name in ("Activation", "Filter", "Output")]
    dtypes = [blas.dtype({"type": token}, "type", "") for token, _ in tensors]
    if {layout for _, layout in tensors} != {"nhwc"} or dtypes[0] != dtypes[1]:
        raise _NoOp("has layouts or dtypes that no op computes")
    sizes = {ours: cells.whole(theirs) for ours, theirs in _SIZES.items()}
    problem = ops.registry.get("conv").problem(
        **sizes,
        groups=cells.whole("g", 1),
        dtype=dtypes[0],
        y=dtypes[2],
        acc=blas.accumulator(_token(cells.required("accum"), "accum")),
        layout="nhwc",
    )
    computed = output_size(problem)
    output = cells.whole("p", computed[0]), cells.whole("q", computed[1])
    if output != computed:
        raise BadLine(f"has the output {output}, computed is {computed}")
    factors = {"alpha": "1", "beta": "0"}
    lost = [name for name, usual in factors.items() if blas.real(cells, name, usual) != int(usual)]
    rounded = tensors[0][0] == "f32_r" and cells.text("op_class") == "tensorop"
    return Call(problem=problem, lost=(*lost, *(["compute_type"] if rounded else [])))


def _tensor(cells: Fields, name: str) -> tuple[str, str]:
    """Return the BLAS token and the layout of a tensor, as f16:nhwc."""
    kind, _, layout = cells.required(name).partition(":")
    return _token(kind, name), layout


def _token(kind: str, name: str) -> str:
    if kind not in _TOKENS:
        raise _NoOp(f"{name} is {kind[:24]}, a dtype that kernelmark does not have")
    return _TOKENS[kind]


class CutlassProfiler(Importer):
    name = "cutlass"
    summary = "CUTLASS profiler CSV: every kernel of every problem"
    facts = FormatFacts(
        versions="cutlass_profiler 2.x to 4.4",
        exactness="every row; kernels that failed or have no time are failed results; what no op "
        "computes is a problem with the names of the profiler's arguments",
        checked="the layout of tables in public repositories, with rows of our own",
    )
    method = "mean of cutlass_profiler"
    is_log = True

    def recognizes(self, name: str, head: bytes) -> bool:
        return _MARK.encode() in head

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        begin = next((i for i, text in enumerate(file.texts) if _MARK in text), 0)
        columns, table = file.table(begin)
        if lacking := [name for name in (*_HEAD, "Bytes", "Runtime") if name not in columns]:
            raise BadLine(f"line {begin + 1}: the column {lacking[0]} is missing", hint=CUT)
        for cells in table:
            if cells["Provider"] == "Provider":
                raise BadLine("a second table begins", hint=EACH_TABLE)
            yield _result(cells, _problem(cells, file.overrides.arch))


def _problem(cells: Fields, arch: str) -> Problem:
    """Return the problem of a row: of an op, or, if no op computes it, one with its arguments."""
    try:
        return exact_problem(_call(cells, arch))
    except _NoOp:
        arguments = {name: cells[name] for name in cells if name in _PROBLEM and cells.text(name)}
        for name in arguments.keys() & _WHOLE:  # one that is not whole would become an option
            cells.whole(name)
        return problem_of(f"cutlass_{cells.required('OperationKind')}", arguments)


def _result(cells: Fields, problem: Problem) -> ResultRow:
    status, error = Status.OK, NO_REASON
    config = {"kernel": cells["Operation"]}
    # Tags of the user, and arguments that a kernel may be profiled with several values of.
    config |= {name: cells[name] for name in cells if name not in _NO_CONFIG and cells.text(name)}
    if cells.text("Runtime").lower() in _NO_TIME:
        status, error = Status.RUNTIME_ERROR, Reason(f"the profiler's time is {cells['Runtime']}")
    elif cells["Status"] != "success":
        status, error = (
            Status.RUNTIME_ERROR,
            Reason(f"the profiler reported {cells['Status'][:40]}"),
        )
    elif cells["Disposition"] not in _RAN:
        status, error = Status.WRONG, Reason(f"the profiler reported {cells['Disposition'][:40]}")
    return ResultRow(
        problem=problem,
        backend=legal_name(cells.required("Provider")),
        samples_s=(cells.number("Runtime") * 1e-3,) if status is not Status.RUNTIME_ERROR else (),
        timing=_TIMING,
        config=FrozenDict({legal_name(name): setting(text) for name, text in config.items()}),
        status=status,
        error=error,
        kernel=cells["Operation"],
    )


readers = (CutlassLog(),)
importers = (CutlassProfiler(),)
