"""hipblaslt: the file that HIPBLASLT_TUNING_OVERRIDE_FILE names.

    Git Version: <revision>
        transA,…,solution_index,solution_name      a header before every line of values
        T,N,…,5223,Cijk_Alik_Bljk_…

The lookup key has ten fields only, without leading dimensions, bias, scale, epilogue and type of D,
so calls that differ in those share an entry. Newer libraries read the column solution_name if it
follows the index, and use an index only if it still has that name; older ones reject a file of
another revision.

Since pull request 10424 of rocm-libraries (2026), the library writes such files itself if
HIPBLASLT_TUNING_MODE=tune. Their rows have a schema_version and a longer key, and are read by
column names; rows without one are read as before. In that mode, the library ignores the override
file.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config
from kernelmark.tune.install.emitters._blas import base_arch, blas_call
from kernelmark.tune.install.emitters._lines import LineEmitter, Row
from kernelmark.tune.install.emitters.base import (
    ON_AMD,
    Entry,
    Fields,
    Override,
    Unfit,
    option,
    solution_index,
)
from kernelmark.tune.records.outcome import Outcome

# The reader requires these columns in this order, and skips a row that lacks one.
_NEEDED = (
    *("transA", "transB", "batch_count", "m", "n", "k"),
    *("a_type", "b_type", "c_type", "compute_type", "solution_index"),
)
_KEY = _NEEDED[:-1]
_COLUMNS = (
    *("transA", "transB", "batch_count", "m", "n", "k"),
    *("alpha", "lda", "stride_a", "beta", "ldb", "stride_b", "ldc", "stride_c", "ldd", "stride_d"),
    *("a_type", "b_type", "c_type", "d_type", "compute_type"),
    *("scaleA", "scaleB", "activation_type", "bias_vector", "bias_type"),
)
_VERSION = "Git Version:"
_INDENT = "    "
_NAMES = ("kernel_name", "solution_name")
_ARCH = "gcnArchName"
_SCHEMA = "schema_version"


class Hipblaslt(LineEmitter):
    name = "hipblaslt"
    summary = "hipBLASLt's override file (HIPBLASLT_TUNING_OVERRIDE_FILE), with kernel names"
    facts = FormatFacts(
        versions="rocm-libraries aec838a8 (2025-05), solution_name of 2026, pull request 10424",
        exactness="exact for the key its reader uses",
        checked="compared with its reader's code; read back in tests",
    )
    backends = ("hipblaslt",)
    options = FrozenDict(
        {"git_version": "the library's git revision, if the outcomes do not say it"}
    )
    caution = ON_AMD
    override = Override(backend="hipblaslt", variables={"HIPBLASLT_TUNING_OVERRIDE_FILE": "{path}"})

    def rows(self, lines: Sequence[str], path: Path) -> list[Row]:
        rows = []
        for i, line in enumerate(lines[:-1]):
            if "transA" in line and (entry := _entry(line, lines[i + 1])) is not None:
                rows.append(Row(first=i, end=i + 2, entry=entry))
        return rows

    def lookup_key(self, outcome: Outcome, given: Fields) -> Fields:
        call = blas_call(outcome)
        return FrozenDict({name: call[name] for name in _KEY})

    def entry(self, outcome: Outcome, fields: Fields) -> tuple[Config, list[str]]:
        index = solution_index(outcome)
        if index <= 0:
            raise Unfit(Reason("index-skipped", index=index))
        call = blas_call(outcome)
        us = outcome.tuned.median_s * 1e6
        columns = [name for name in _COLUMNS if name != "bias_type" or name in call]
        cells = {name: call.get(name, "0") for name in columns}
        cells |= {"us": f"{us:.6g}", "solution_index": str(index)}
        cells |= {"solution_name": outcome.tuned.kernel.name, _ARCH: outcome.arch}
        lines = [_INDENT + ",".join(cells), _INDENT + ",".join(cells.values())]
        return FrozenDict({"solution_index": index}), lines

    def head(self, winners: Sequence[Outcome], lines: Sequence[str], given: Fields) -> list[str]:
        if any(_SCHEMA in _cells(line) for line in lines):
            raise UsageError(
                Reason("hipblaslt-own-cache"),
                hint="write to another file, and unset HIPBLASLT_TUNING_MODE to use it",
            )
        revisions = {_revision(outcome.tuned.version) for outcome in winners}
        asked = option(self, given, "git_version")
        found = next((line for line in lines if line.startswith(_VERSION)), None)
        if found is not None:
            revisions.add(found.removeprefix(_VERSION).strip())
        if asked:
            revisions.add(asked)
        revisions.discard("")
        archs = sorted({base_arch(o.arch) for o in winners} | _archs(lines))
        if len(archs) > 1:
            raise UsageError(
                Reason("archs-mixed", format=self.name, archs=tuple(archs)),
                hint="an entry does not say of which architecture it is: keep a file for each",
            )
        if len(revisions) > 1:
            raise UsageError(
                Reason("revisions-differ", revisions=tuple(sorted(revisions))),
                hint="solution indices belong to one build: tune again with this one",
            )
        if not revisions:
            raise UsageError(
                Reason("revision-unknown", format=self.name),
                hint="give it: --with git_version=…",
            )
        return [f"{_VERSION} {revisions.pop()}"]

    def is_head(self, line: str) -> bool:
        return line.startswith(_VERSION)


def _archs(lines: Sequence[str]) -> set[str]:
    """Return the architectures in the rows that have that column."""
    found = set()
    for header, values in itertools.pairwise(lines):
        names, cells = _cells(header), _cells(values)
        if "transA" in names and _ARCH in names and len(cells) > names.index(_ARCH):
            found.add(base_arch(cells[names.index(_ARCH)]))
    return found - {""}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _revision(version: str) -> str:
    """Return the git revision of a version: 5b515cf1bc of 100201-5b515cf1bc, "" of a number."""
    number, _, revision = version.partition("-")
    return revision or ("" if number.replace(".", "").isdecimal() else number)


def _entry(header: str, values: str) -> Entry | None:
    """Parse the entry of a row; return None if the library's reader skips it. The reader takes the
    needed columns in their order, or by name if the row has a schema."""
    pairs = list(zip(_cells(header), _cells(values), strict=False))
    by_name = dict(pairs)
    kernel = next((value for name, value in pairs if name in _NAMES and value), "")
    taken: list[str] = []
    if _SCHEMA in by_name:
        taken = [by_name[name] for name in _NEEDED if name in by_name]
    else:
        for name, value in pairs:
            if name in _NEEDED[len(taken) : len(taken) + 1]:
                taken.append(value)
    if len(taken) < len(_NEEDED):
        return None
    try:
        index = int(taken[-1])
    except ValueError:
        return None
    if index <= 0:
        return None
    fields = FrozenDict(zip(_KEY, taken, strict=False))
    return Entry(fields=fields, config=FrozenDict({"solution_index": index}), kernel=kernel)


emitter = Hipblaslt()
