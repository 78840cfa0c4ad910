"""hipblaslt-bench: what hipblaslt-bench and rocblas-bench print. Each row is a bare mean.

A header line, `[0]:transA,…,us`, comes before its line of values and varies with the options. BLAS
stores by columns: (m, n, k) with transA, transB is the row-major problem m=n, n=m with the operands
and letters swapped, which is the same bytes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from kernelmark import ops
from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ResultSet
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    gathered,
    number,
    problem_of,
    text_of,
)

_HEADER = re.compile(r"\s*(?:\[\d+\]:)?\s*(trans[A_a].*,us(?:,.*)?)\Z")
_SOLUTION = re.compile(r"\s*--Solution index:\s*(\d+)")
_KERNEL = re.compile(r"\s*--(?:kernel|Solution) name:\s*(\S.*)")
_DTYPES = {
    "f64_r": "f64",
    "f32_r": "f32",
    "f16_r": "f16",
    "bf16_r": "bf16",
    "i8_r": "i8",
    "i32_r": "i32",
}
_F8 = {"f8_r": "f8e4m3", "bf8_r": "f8e5m2"}
_COMPUTE = {"xf32_r": "f32", **{name: name.removesuffix("_r") for name in ("f64_r", "f32_r")}}
_COMPUTE |= {"i32_r": "i32", "f32_f16_r": "f32", "f32_bf16_r": "f32", "f16_r": "f16"}
# Columns that, unless they are one of these, make it another problem than a plain product.
_PLAIN = {
    "grouped_gemm": ("0", ""),
    "activation_type": ("none", ""),
    "scaleA": ("0", ""),
    "scaleB": ("0", ""),
    "scaleC": ("0", ""),
    "scaleD": ("0", ""),
    "amaxD": ("0", ""),
    "swizzle_a": ("0", ""),
    "swizzle_b": ("0", ""),
}
Cells = Mapping[str, str]


class HipblasltBench(Importer):
    name = "hipblaslt-bench"
    summary = "output of hipblaslt-bench and rocblas-bench"

    def recognizes(self, name: str, head: bytes) -> bool:
        return b"transA" in head and (b"hipblaslt-Gflops" in head or b"rocblas-Gflops" in head)

    def read(self, path: Path, given: Given) -> ResultSet:
        return gathered(path, given, _rows(path, given.arch), method="mean of hipblaslt-bench")


def _rows(path: Path, arch: str) -> Iterator[Found]:
    header: list[str] | None = None
    pending: tuple[Cells, str] | None = None
    config: dict[str, int] = {}
    kernel = ""
    for line, text in enumerate(text_of(path).splitlines(), 1):
        match = _HEADER.match(text)
        if match or text.lstrip().startswith("Winner"):
            if pending:
                yield _found(*pending, arch, config, kernel)
            pending, config, kernel = None, {}, ""
            if not match:
                return  # the winner repeats a row
            header = match[1].split(",")
        elif header is not None and pending is None and text.count(",") >= 5:
            cells = next(csv.reader([re.sub(r"\(([^)]*)\)", r'"(\1)"', text.strip())]))
            if len(cells) != len(header):
                raise UsageError(
                    f"{path}: line {line} has {len(cells)} values for {len(header)} columns"
                )
            pending = dict(zip(header, cells, strict=True)), f"{path}: line {line}"
        elif found := _SOLUTION.match(text):
            config = {"solution_index": int(found[1])}
        elif found := _KERNEL.match(text):
            kernel = found[1]
    if pending:
        yield _found(*pending, arch, config, kernel)


def _found(cells: Cells, place: str, arch: str, config: Config, kernel: str) -> Found:
    time_s = number(cells["us"], place) * 1e-6
    rotates = cells.get("rotating_buffer", "0") not in ("0", "")
    by_device = cells.get("use_gpu_timer", "0") not in ("0", "")
    return Found(
        problem=_problem(cells, place, arch),
        backend="rocblas" if "rocblas-Gflops" in cells else "hipblaslt",
        samples_s=(time_s,) if time_s > 0 else (),
        timing=Timing(
            cache=Cache.COLD if rotates else Cache.HOT,
            timer=Timer.GATE if by_device else Timer.LOOP,
        ),
        config=config,
        kernel=kernel,
    )


def _problem(cells: Cells, place: str, arch: str) -> Problem:
    if all(cells.get(name, "") in plain for name, plain in _PLAIN.items()):
        try:
            return _product(cells, place, arch)
        except (ProblemError, KeyError, ValueError):
            pass  # what our op refuses (a complex factor, a foreign dtype) is still a result
    kept = {name: cells[name] for name in cells if name in _PLAIN and cells[name] not in ("", "0")}
    names = ("transA", "transB", "batch_count", "m", "n", "k", "a_type", "b_type", "c_type")
    kept |= {name: cells[name] for name in (*names, "d_type", "compute_type") if name in cells}
    return problem_of("blas_matmul", kept)


def _product(cells: Cells, place: str, arch: str) -> Problem:
    batch = int(number(cells.get("batch_count", "1"), place))
    op = ops.registry.get("batched_gemm" if batch > 1 else "gemm")
    return op.problem(
        **({"batch": batch} if batch > 1 else {}),
        m=int(number(cells["n"], place)),
        n=int(number(cells["m"], place)),
        k=int(number(cells["k"], place)),
        a=_dtype(cells["b_type"], arch),
        b=_dtype(cells["a_type"], arch),
        c=_dtype(cells["d_type"], arch),
        acc=_COMPUTE[cells["compute_type"]],
        ta="n" if cells["transB"].strip() == "N" else "t",
        tb="n" if cells["transA"].strip() == "N" else "t",
        alpha=float(cells.get("alpha", "1")),
        beta=float(cells.get("beta", "0")),
        bias=cells.get("bias_vector", "0") not in ("0", ""),
    )


def _dtype(name: str, arch: str) -> str:
    """The same letters mean another 8-bit float on gfx940 to gfx942."""
    if name in _F8:
        return _F8[name] + ("fnuz" if arch.startswith("gfx94") else "")
    return _DTYPES[name]


importer = HipblasltBench()
