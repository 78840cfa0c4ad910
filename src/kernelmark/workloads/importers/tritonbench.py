"""tritonbench: its CSV, one column a metric of an implementation. Latencies are bare means.

The header is `x_val;{implementation}-{metric};…` and a last row holds averages, which are no
results. A cell of words is the reason why there is no number.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.problem import Problem
from kernelmark.core.result import ResultSet, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.workloads.importers._lines import lines_of, uneven_row
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    gathered,
    legal_name,
    name_words,
    problem_of,
)

_LATENCY = "-latency"
_NUMBER = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*(?:\(.*\)|ms)?\s*\Z")
# Its timers write over the cache before each launch.
_TIMING = Timing(cache=Cache.FLUSH)


class TritonBench(Importer):
    name = "tritonbench"
    summary = "CSV of tritonbench with latency columns, in milliseconds"
    facts = FormatFacts(
        versions="CSV between semicolons",
        exactness="latencies as written",
        checked="samples of our own in tests",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        first = head.partition(b"\n")[0]
        return name.endswith(".csv") and b";" in first and _LATENCY.encode() in first

    def read(self, path: Path, given: Given) -> ResultSet:
        return gathered(path, given, _rows(path), method="tritonbench latency")


def _rows(path: Path) -> Iterator[Found]:
    lines = lines_of(path)
    reader = csv.reader(lines.texts, delimiter=";")
    header = next(reader, [])
    columns = {
        i: name.removesuffix(_LATENCY)
        for i, name in enumerate(header)
        if name.endswith(_LATENCY) and i > 0
    }
    if not columns:
        raise UsageError(f"{path}: no column ends in {_LATENCY}")
    for row in reader:
        if not row or row[0].strip().lower() == "average":
            continue
        if len(row) != len(header):
            raise uneven_row(f"{path}: line {reader.line_num}", len(row), len(header))
        doubt = lines.doubt(reader.line_num)
        for i, implementation in columns.items():
            if row[i].strip():
                yield _found(_problem(path, row[0]), implementation, row[i].strip(), doubt)


def _found(problem: Problem, implementation: str, cell: str, doubt: str) -> Found:
    match = _NUMBER.match(cell)
    return Found(
        problem=problem,
        backend=implementation,
        timing=_TIMING,
        samples_s=(float(match[1]) * 1e-3,) if match else (),
        status=Status.OK if match else Status.RUNTIME_ERROR,
        error="" if match else cell,
        doubt=doubt,
    )


def _problem(path: Path, x_value: str) -> Problem:
    """`(256, 512, 64, None)` of gemm.csv is tritonbench_gemm x=256 x_2=512 x_3=64 x_4=None."""
    words = [w.strip() for w in x_value.strip().strip("()[]").split(",") if w.strip()]
    values = {"x" if i == 1 else f"x_{i}": word for i, word in enumerate(words, 1)}
    operator = legal_name("_".join(name_words(path)) or path.stem)
    return problem_of(f"tritonbench_{operator}", values)


importer = TritonBench()
