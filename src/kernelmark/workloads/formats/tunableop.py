"""tunableop: files of PyTorch's TunableOp, with results or with recorded untuned calls.

    GemmTunableOp_BFloat16_TN,tn_1024_16_4096_ld_4096_4096_1024,Gemm_Hipblaslt_123,0.0123

A row has the operation, its sizes in BLAS order (older versions end after k) and, in results, the
solution and milliseconds, the time of that solution. Files have no counts: each row is one call.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.registry import FormatFacts
from kernelmark.core.timing import Cache, Timing
from kernelmark.workloads import blas
from kernelmark.workloads.calls import NOTHING, LogOptions, LogReader, Part
from kernelmark.workloads.importers import (
    Importer,
    Repeats,
    ResultFile,
    ResultRow,
    exact_problem,
    legal_name,
    legal_word,
    lost_bias,
    uneven_row,
)
from kernelmark.workloads.source import BadLine, parse_number
from kernelmark.workloads.workload import Call

_MARK = b"TunableOp_"
_VALIDATOR = b"Validator,"
_TIMING = Timing(cache=Cache.COLD)  # it rotates buffers that exceed the last-level cache
_TYPES = {
    "double": "f64_r",
    "float": "f32_r",
    "tf32": "f32_r",
    "Half": "f16_r",
    "BFloat16": "bf16_r",
    "Float8_e4m3fnuz": "f8_fnuz_r",
    "Float8_e5m2fnuz": "bf8_fnuz_r",
    "Float8_e4m3fn": "f8_r",
    "Float8_e5m2": "bf8_r",
    "Float": "f32_r",
    "Double": "f64_r",
}
_TYPE = "|".join(_TYPES)
_OPERATION = re.compile(rf"(\w*?)TunableOp_((?:(?:c10::)?(?:{_TYPE})_)+)([NTC]{{2}})\Z")
_SIZES = re.compile(
    r"([ntc])([ntc])_(\d+)_(\d+)_(\d+)(?:_B_(\d+))?(?:_ld_(\d+)_(\d+)_(\d+))?(?:_((?!ld_|B_)\D\w*))?\Z",
    re.IGNORECASE,
)


# What follows the sizes of a scaled GEMM: scales by row, and the type of the bias.
_SCALES = re.compile(rf"(?:\A|_)(?:rw_[01]|bias_(?:None|{_TYPE}))(?=_|\Z)")


class TunableOpLog(LogReader):
    name = "tunableop"
    summary = "PyTorch TunableOp files: results and untuned calls"
    facts = FormatFacts(
        versions="PyTorch, with and without leading dimensions in its parameters",
        exactness="exact, counts are not in the file",
        checked="compared with TunableGemm.h and torch.cuda.tunable; samples of our own in tests",
    )

    least = 2  # cells of a row

    def of_file(self, first: bytes) -> LogReader:
        # Untuned calls are written without validators, and results with a solution and a time.
        is_result = first.startswith(_VALIDATOR) or first.count(b",") == 3
        return _Results() if is_result else self

    def part(self, line: bytes) -> Part | None:
        if line.startswith(_VALIDATOR):
            return NOTHING
        at = line.find(_MARK)
        if at < 0 or line[:1] == b"#" or b" " in line[:at]:
            return None
        cells = line.split(b",", 3)
        kind = "cut" if len(cells) == 2 < self.least else "row"
        return kind, b",".join(cells[:2]).strip(), 1

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterator[Call]:
        if kind == "cut":
            raise BadLine("is cut: a result has a solution")
        operation, _, sizes = part.decode("utf-8", "replace").partition(",")
        yield _call(operation, sizes)


class _Results(TunableOpLog):
    least = 3


def _call(operation: str, sizes: str) -> Call:
    named = _OPERATION.match(operation)
    if named is None:
        raise BadLine(f"unknown operation {operation[:60]!r}")
    sized = _SIZES.match(sizes)
    if sized is None:
        raise BadLine(f"cannot be read: sizes {sizes[:60]!r}")
    if sized[1].upper() + sized[2].upper() != named[3]:
        raise BadLine(f"the operation is {named[3]}, and its sizes begin with {sizes[:2]}")
    types = re.findall(_TYPE, named[2])
    fields = _fields(named[1], types, sized)
    # These names distinguish OCP and FNUZ 8-bit floats: no architecture is needed.
    call = blas.call(fields)
    if more := _SCALES.sub("", sized[10] or ""):
        call = dataclasses.replace(call, lost=(*call.lost, f"parameters={more}"))
    if named[1].startswith("Scaled") and len(types) == 1:  # an old name, without output type
        call = dataclasses.replace(call, lost=(*call.lost, "d_type"))
    return call


def _fields(operation: str, types: list[str], sized: re.Match[str]) -> dict[str, str]:
    tokens = [_TYPES[name] for name in types]
    a, b = tokens[0], tokens[1] if len(tokens) > 1 else tokens[0]
    out = tokens[-1]
    if len(tokens) == 2:  # the type of both operands, then that of the output
        b = a
    names = ("transA", "transB", "m", "n", "k", "batch_count", "lda", "ldb", "ldc")
    fields = {name: value or "" for name, value in zip(names, sized.groups(), strict=False)}
    fields |= {"a_type": a, "b_type": b, "c_type": out, "d_type": out, "ldd": fields["ldc"]}
    fields["compute_type"] = "f64_r" if a == "f64_r" else "f32_r"
    if types[0] == "tf32":
        fields["compute_type"] = "xf32_r"
    fields["bias_vector"] = str(int(operation.startswith("GemmAndBias")))
    if operation.startswith("ScaledGemm"):
        _scale(fields, sized[10] or "")
        if len(tokens) == 1:
            fields |= {"c_type": "bf16_r", "d_type": "bf16_r"}
    return fields


def _scale(fields: dict[str, str], rest: str) -> None:
    """Set scale modes and bias from the rest of a row: rw_1 is a scale per row; bias_ is followed
    by None or the type of the bias."""
    rows = re.search(r"(?:\A|_)rw_([01])", rest)
    fields["scaleA"] = fields["scaleB"] = "2" if rows and rows[1] == "1" else "1"
    bias = re.search(rf"(?:\A|_)bias_({_TYPE})", rest)
    if bias:
        fields |= {"bias_vector": "1", "bias_type": _TYPES[bias[1]]}


class TunableOpTimes(Importer):
    name = "tunableop"
    summary = "results CSV of PyTorch's TunableOp: the time of each chosen solution"
    facts = FormatFacts(
        versions="PyTorch 2.3 to 2.13",
        exactness="every row with a time; of a key, the first row, as PyTorch; scales are part of "
        "the problem",
        checked="compared with Tunable.cpp; four public files (2,456 times) with an independent "
        "parser: the same times by size and solution",
    )
    method = "mean of TunableOp"
    is_log = True

    def recognizes(self, name: str, head: bytes) -> bool:
        rows = [line.split(b",") for line in head.splitlines()]
        return any(len(row) == 4 and _MARK in row[0] for row in rows)

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        arch = ""
        for text in file.lines():
            cells = text.strip().split(",")
            if cells[:2] == ["Validator", "GCN_ARCH_NAME"] and len(cells) == 3:
                arch = cells[2].partition(":")[0]
            if not text.strip() or cells[0] == "Validator":
                continue
            if len(cells) != 4:
                raise uneven_row(len(cells), 4)
            operation, sizes, solution, time_ms = cells
            library = solution.split("_")[1].lower() if solution.startswith("Gemm_") else "torch"
            # A solution that was never timed has the time that PyTorch starts from.
            timed = time_ms != "inf"
            call = _call(operation, sizes)
            yield ResultRow(
                problem=exact_problem(call),
                backend=legal_name(library),
                samples_s=(parse_number(time_ms, "the time") * 1e-3,) if timed else (),
                timing=_TIMING,
                config=FrozenDict({"solution": legal_word(solution)} | lost_bias(call)),
                arch=arch,
                # Tunable.cpp, ReadFile
                key=(operation, sizes),
                repeats=Repeats.FIRST,
            )


readers = (TunableOpLog(),)
importers = (TunableOpTimes(),)
