"""tritonbench: CSV and JSON of TritonBench. A latency is a median; samples are not in the file.

The CSV has a column for each metric of an implementation, `{implementation}-{metric}`; the JSON of
--output-json has a key, `tritonbench_{operator}_{mode}[x_{x_val}-{implementation}]_{metric}`.
Averages in both are ignored. The reason of a failure is in the implementation's first metric.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import ResultSet, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.workloads.importers._lines import EACH, lines_of, uneven_row
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    build_run,
    fields_of,
    json_object,
    legal_name,
    name_words,
    problem_of,
    text_of,
    unexpected,
)

_LATENCY = "-latency"
_NUMBER = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*(?:\(.*\)|ms)?\s*\Z")
_DAMAGED = re.compile(r"-?[0-9][0-9.,]*\s*[a-zµμ]{0,2}\Z")
# TritonBench flushes the cache before each launch.
_TIMING = Timing(cache=Cache.FLUSH)


# The name of an implementation is split at a hyphen: `[x_8-triton]_tma-latency`.
_KEY = re.compile(r"(tritonbench_[^\[]+)\[x_(.*)-([^\]-]*)\]_(.+)\Z", re.DOTALL)
_KEY_BYTES = re.compile(rb'"tritonbench_[^"\[]+\[')
# Rows of the table that are not inputs.
_NO_INPUTS = ("average", "hashes")


class TritonBench(Importer):
    name = "tritonbench"
    summary = "CSV or JSON of tritonbench with latencies, in milliseconds"
    facts = FormatFacts(
        versions="tritonbench db2155c8 (2025-08): CSV between semicolons, JSON of --output-json "
        "and of its nightly runs",
        exactness="latencies as written; an implementation that failed is a failed result",
        checked="files that tritonbench's own BenchmarkOperatorResult wrote, CSV and JSON: every "
        "latency and failure",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        if name.endswith(".json"):
            return bool(_KEY_BYTES.search(head))
        first = head.partition(b"\n")[0]
        return name.endswith(".csv") and b";" in first and _LATENCY.encode() in first

    def read(self, path: Path, given: Given) -> ResultSet:
        rows = _document(path) if text_of(path).lstrip()[:1] == "{" else _table(path)
        return build_run(path, given, rows, method="tritonbench latency")


def _table(path: Path) -> Iterator[Found]:
    lines = lines_of(path)
    reader = csv.reader(lines.texts, delimiter=";")
    header = next(reader, [])
    if not any(name.endswith(_LATENCY) for name in header[1:]):
        raise UsageError(Reason("column-missing", file=str(path), column=f"*{_LATENCY}"))
    operator = legal_name("_".join(name_words(path)) or path.stem)
    for row in reader:
        if not row or row[0].strip().lower() in _NO_INPUTS:
            continue
        line = reader.line_num
        if row == header:
            raise UsageError(Reason("table-twice", file=str(path), line=line), hint=EACH)
        if len(row) != len(header):
            raise uneven_row(f"{path}: line {line}", len(row), len(header))
        problem = _problem(f"tritonbench_{operator}", row[0])
        cells = list(zip(header[1:], row[1:], strict=True))
        yield from _found(f"{path}: line {line}", problem, cells, lines.doubt(line))


def _document(path: Path) -> Iterator[Found]:
    document = json_object(path)
    # TritonBench's nightly run writes the metrics of all operators to one file.
    metrics: Mapping[str, Any] = document
    if "metrics" in document:
        metrics = fields_of(document["metrics"], f"{path}: metrics")
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for key, value in metrics.items():
        match = _KEY.match(key)
        if match and match[2] not in _NO_INPUTS:
            column = f"{match[3]}-{match[4]}"
            cell = "" if value is None else str(value)
            rows.setdefault((match[1], match[2]), []).append((column, cell))
    if not any(name.endswith(_LATENCY) for cells in rows.values() for name, _ in cells):
        reason = Reason("key-missing", file=str(path), key=f"tritonbench_*_{_LATENCY[1:]}")
        raise UsageError(reason, hint="run it with: --metrics latency")
    for (operator, x_value), cells in rows.items():
        problem = _problem(operator, x_value)
        yield from _found(f"{path}: {problem.key}", problem, cells, "")


def _found(
    place: str, problem: Problem, cells: Iterable[tuple[str, str]], doubt: str
) -> Iterator[Found]:
    """Yield a row per implementation of one input; `cells` are named
    `{implementation}-{metric}`."""
    row = {name: cell.strip() for name, cell in cells}
    for name, cell in row.items():
        if not name.endswith(_LATENCY):
            continue
        implementation = name.removesuffix(_LATENCY)
        match = _NUMBER.match(cell)
        if not match and _DAMAGED.match(cell):
            hint = "write the file again with tritonbench"
            raise unexpected(f"{place}, {name}", "milliseconds", cell, hint)
        error = "" if match else cell or _failure(implementation, row)
        if match or error:
            yield Found(
                problem=problem,
                backend=implementation,
                timing=_TIMING,
                samples_s=(float(match[1]) * 1e-3,) if match else (),
                status=Status.OK if match else Status.RUNTIME_ERROR,
                error=error,
                doubt=doubt,
            )


def _failure(implementation: str, row: Mapping[str, str]) -> str:
    """Return the text in the first metric of an implementation, the reason of its failure; "" if
    there are numbers or nothing."""
    others = [name for name in row if name.startswith(f"{implementation}-")]
    cells = [row[name] for name in others if row[name]]
    return cells[0] if len(cells) == 1 and not _NUMBER.match(cells[0]) else ""


def _problem(operator: str, x_value: str) -> Problem:
    """Return the problem of an input: `(256, 512, 64, None)` in gemm.csv is tritonbench_gemm x=256
    x_2=512 x_3=64 x_4=None."""
    words = [w.strip() for w in x_value.strip().strip("()[]").split(",") if w.strip()]
    values = {"x" if i == 1 else f"x_{i}": word for i, word in enumerate(words, 1)}
    return problem_of(operator, values)


importer = TritonBench()
