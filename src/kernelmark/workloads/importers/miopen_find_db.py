"""miopen-find-db: times of MIOpen's solvers in *.ufdb.txt and *.fdb.txt, in milliseconds.

    KEY=SOLVER:TIME,WORKSPACE,ALGORITHM;SOLVER:…

Files before version 2.0 have ALGORITHM:SOLVER,TIME,WORKSPACE,… instead. A two-dimensional forward
convolution is a problem of the op conv; others are identified by their sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import ResultSet
from kernelmark.workloads.importers._lines import CUT, lines_of
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    build_run,
    number,
    problem_of,
    unexpected,
)
from kernelmark.workloads.logs.base import BadLine
from kernelmark.workloads.logs.formats.miopen_find_db import Key, parse_key, reader

_NAME = re.compile(r"(gfx(?:[89][0-9a-f]{2}|1[0-9a-f]{3}))(?:_[0-9]+|[0-9a-f]+)\.")
_MS = 1e-3
_ENDS = (".fdb.txt", ".ufdb.txt")
_OLD = re.compile(r"miopenConvolution\w+Algo\w+\Z")


class MiopenFindDb(Importer):
    name = "miopen-find-db"
    summary = "MIOpen's find-db: the times of its solvers in *.ufdb.txt and *.fdb.txt"
    facts = FormatFacts(
        versions="MIOpen 2d1fd997 (2024-10), find-db 1.0 and 2.0",
        exactness="every solver of every record, with its single stored time",
        checked="compared with DbRecord and FindDbData; 1,331,862 times of five of its own files "
        "against an independent count",
    )
    is_log = True

    def recognizes(self, name: str, head: bytes) -> bool:
        first = head.partition(b"\n")[0]
        return name.endswith(_ENDS) or (b"miopenConvolution" in first and bool(reader.part(first)))

    def read(self, path: Path, given: Given) -> ResultSet:
        return build_run(path, given, _rows(path), method="MIOpen find")


def _rows(path: Path) -> Iterator[Found]:
    arch = _NAME.match(path.name)
    lines = lines_of(path)
    for number_, line in enumerate(lines.texts, 1):
        if not line.strip():
            continue
        place = f"{path}: line {number_}"
        key, equals, record = line.partition("=")
        if not equals or not record:
            raise unexpected(place, "KEY=SOLVER:TIME,…", line, CUT)
        try:
            problem = _problem(parse_key(key))
        except BadLine as error:
            reason = Reason("line-refused", where=place, cause=error.message)
            raise UsageError(reason, hint=CUT) from None
        for solver, ms in _times(record, place):
            yield Found(
                problem=problem,
                backend="miopen",
                config=FrozenDict({"solver": solver}),
                samples_s=(ms * _MS,),
                arch=arch[1] if arch else "",
                doubt=lines.doubt(number_),
            )


def _times(record: str, place: str) -> Iterator[tuple[str, float]]:
    """Yield (solver, milliseconds). The first entry of a solver counts, as in MIOpen."""
    seen = set()
    for item in record.split(";"):
        name, _, text = item.partition(":")
        values = text.split(",")
        if _OLD.match(name):
            name, *values = values
        if not name or len(values) < 3:
            raise unexpected(place, "a solver with its time", item, CUT)
        if name not in seen:
            seen.add(name)
            yield name, number(values[0], place)


def _problem(key: Key) -> Problem:
    try:
        problem = key.problem()
        if not key.bias:
            return problem
    except UsageError:
        pass
    values: dict[str, str | int | float | bool] = dict(key.sizes)
    values |= {f"out_{i}": size for i, size in enumerate(key.output)}
    values |= {"layout": "-".join(key.layouts), "dtypes": key.dtype + key.more, "bias": key.bias}
    return problem_of(f"miopen_conv_{key.direction}", values)


importer = MiopenFindDb()
