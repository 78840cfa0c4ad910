"""hipblaslt and rocblas: override files that give BLAS calls a solution of the library.

A solution is an index that belongs to one build of the library, so a file also has the revision of
that build or the name of each index's kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.registry import FormatFacts
from kernelmark.tune.install.emitters.base import (
    ON_AMD,
    CannotWrite,
    Entry,
    Key,
    LineEmitter,
    NewEntry,
    Options,
    Override,
    Row,
    Winners,
)
from kernelmark.tune.results import Outcome
from kernelmark.workloads.blas import fields_of, number_text

Call = Mapping[str, str]
_GEMMS = ("gemm", "batched_gemm")
# Parts of solution names by hipBLASLt's scale mode: a scalar for each of A and B, or a vector.
_SCALE_PARTS = {"1": "SAB", "2": "SABV"}
_SHAPE = ("transA", "transB", "m", "n", "k", "batch_count")


def blas_call(outcome: Outcome) -> Call:
    """Return all fields of an outcome's call, with BLAS names, in column-major order: those that
    its log had, completed from the problem."""
    op, options = outcome.problem.op, outcome.problem.options
    is_scaled = options.get("scale") == "row" and options.get("act") == "none"
    if op not in _GEMMS and not (op == "gemm_epilogue" and is_scaled):
        raise CannotWrite(f"a file of a BLAS library has no entries for {op}")
    try:
        computed = fields_of(outcome.problem)
    except ProblemError as error:
        raise CannotWrite(f"{op} {error.message}") from None
    call = {**computed, **outcome.blas}
    _check_scales(call, outcome.tuned.kernel.name)
    # Importers replace output types that a problem cannot have.
    if call["d_type"] not in (computed["d_type"], computed["d_type"].replace("_fnuz", "")):
        raise _differs("d_type", call, computed)
    # Logs have f8_r for both kinds of FP8, but the library reads it as the one without fnuz.
    call |= {name: word for name, word in computed.items() if "fnuz" in word}
    for name in _SHAPE:
        if call[name] != computed[name]:
            raise _differs(name, call, computed)
    return FrozenDict(call)


def _differs(name: str, logged: Call, tuned: Call) -> CannotWrite:
    return CannotWrite(f"its call has {name}={logged[name]}, but the tuned GEMM has {tuned[name]}")


def _check_scales(call: Call, kernel: str) -> None:
    """Raise CannotWrite for a kernel that does not apply the scales of the call. A tuned GEMM has
    no scales, and TensileLite runs it with solutions of any scale mode; a call with scales
    needs a solution with its UseScaleAB, which is part of the name."""
    modes = {call["scaleA"], call["scaleB"]}
    if modes == {"0"}:
        return
    part = _SCALE_PARTS.get(max(modes)) if len(modes - {"0"}) == 1 else None
    if part not in kernel.split("_"):
        needed = f" (_{part}_ is not in its name)" if part else ""
        raise CannotWrite(
            f"its call has scaleA={call['scaleA']} and scaleB={call['scaleB']}, which the tuned "
            f"kernel does not apply{needed}"
        )


def solution_index(outcome: Outcome) -> int:
    """Return the library's index of the winner as it was in the final. Raise CannotWrite without a
    kernel name, by which the index can be checked later."""
    tuned = outcome.tuned
    if at_run_time := [name for name in ("splitk", "wgm") if tuned.config.get(name)]:
        raise CannotWrite(f"a file of a library has no {' and '.join(at_run_time)} of a call")
    # Some backends have the solution's name as config; the kernel then has the index.
    index = tuned.config.get("solution_index", tuned.kernel.resources.get("solution_index"))
    if not isinstance(index, int) or isinstance(index, bool):
        raise CannotWrite("its solution_index is not known")
    if not tuned.kernel.name:
        raise CannotWrite(
            "its kernel's name is not known, and its index alone may change its meaning"
        )
    if any(sign in tuned.kernel.name for sign in ",\n\r"):
        raise CannotWrite(f"its kernel's name has a comma or a line break: {tuned.kernel.name!r}")
    return index


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def base_arch(name: str) -> str:
    """Return the architecture without features: gfx950 for gfx950:sramecc+:xnack-."""
    return name.split(":")[0]


class HipblasltEmitter(LineEmitter):
    """The file that HIPBLASLT_TUNING_OVERRIDE_FILE names.

        Git Version: <revision>
            transA,…,solution_index,solution_name      a header before every line of values
            T,N,…,5223,Cijk_Alik_Bljk_…

    The lookup key has ten fields only, without leading dimensions, bias, scale, epilogue and type
    of D, so calls that differ in those share an entry. Newer libraries read the column
    solution_name if it follows the index, and use an index only if it still has that name; older
    ones reject a file of another revision.

    Since pull request 10424 of rocm-libraries (2026), the library writes such files itself if
    HIPBLASLT_TUNING_MODE=tune. Their rows have a schema_version and a longer key, and are read by
    column names; rows without one are read as before. In that mode, the library ignores the
    override file.
    """

    name = "hipblaslt"
    summary = "hipBLASLt's override file (HIPBLASLT_TUNING_OVERRIDE_FILE), with kernel names"
    facts = FormatFacts(
        versions="rocm-libraries aec838a8 (2025-05), solution_name of 2026, pull request 10424",
        exactness="exact for the key its reader uses",
        checked="its parser of aec838a8 compiled and executed, for both kinds of 8-bit floats: "
        "every winner, and no neighbour; read back in tests",
    )
    backends = ("hipblaslt",)
    options = FrozenDict(
        {"git_version": "the library's git revision, if the outcomes do not say it"}
    )
    caution = ON_AMD
    override = Override(backend="hipblaslt", variables={"HIPBLASLT_TUNING_OVERRIDE_FILE": "{path}"})

    # The reader requires these columns in this order, and skips a row that lacks one.
    key_columns = (
        *("transA", "transB", "batch_count", "m", "n", "k"),
        *("a_type", "b_type", "c_type", "compute_type"),
    )
    columns = (
        *("transA", "transB", "batch_count", "m", "n", "k", "alpha", "lda", "stride_a"),
        *("beta", "ldb", "stride_b", "ldc", "stride_c", "ldd", "stride_d"),
        *("a_type", "b_type", "c_type", "d_type", "compute_type"),
        *("scaleA", "scaleB", "activation_type", "bias_vector", "bias_type"),
        # After those of the call: µs, the solution, and the architecture that it is for.
        *("us", "solution_index", "solution_name", "gcnArchName"),
    )
    version = "Git Version:"
    schema = "schema_version"

    def rows(self, lines: Sequence[str]) -> list[Row]:
        rows = []
        for i, (names, values) in enumerate(itertools.pairwise(lines)):
            if "transA" in names and (entry := self._parse_row(_cells(names), _cells(values))):
                rows.append(Row(first=i, end=i + 2, entry=entry))
        return rows

    def _parse_row(self, names: Sequence[str], values: Sequence[str]) -> Entry | None:
        """Parse a row; return None if the library's reader skips it. The reader takes the needed
        columns in their order, or by name if the row has a schema."""
        pairs = list(zip(names, values, strict=False))
        by_name = dict(pairs)
        needed = (*self.key_columns, "solution_index")
        kernel = next((v for n, v in pairs if n in ("kernel_name", "solution_name") and v), "")
        taken: list[str] = []
        if self.schema in by_name:
            taken = [by_name[name] for name in needed if name in by_name]
        else:
            for name, value in pairs:
                if name in needed[len(taken) : len(taken) + 1]:
                    taken.append(value)
        try:
            index = int(taken[len(self.key_columns)])
        except (ValueError, IndexError):
            return None
        if index <= 0:
            return None
        key = FrozenDict(zip(self.key_columns, taken, strict=False))
        return Entry(key=key, config=FrozenDict({"solution_index": index}), kernel=kernel)

    def lookup_key(self, outcome: Outcome, options: Options) -> Key:
        call = blas_call(outcome)
        if call["compute_type"] == "f16_r":  # its reader skips such rows
            raise cannot_compute(self.name, call["compute_type"])
        return FrozenDict({name: call[name] for name in self.key_columns})

    def entry(self, outcome: Outcome, key: Key) -> NewEntry:
        index = solution_index(outcome)
        if index <= 0:
            raise CannotWrite(f"the library's reader skips the index {index}")
        cells = dict(blas_call(outcome)) | {
            "us": f"{outcome.tuned.median_s * 1e6:.6g}",
            "solution_index": str(index),
            "solution_name": outcome.tuned.kernel.name,
            "gcnArchName": outcome.arch,
        }
        columns = [name for name in self.columns if name != "bias_type" or name in cells]
        values = [cells.get(name, "0") for name in columns]
        lines = ["    " + ",".join(line) for line in (columns, values)]
        config = FrozenDict({"solution_index": index})
        return NewEntry(winner=outcome, config=config, content=lines)

    def head(self, winners: Winners, content: Sequence[str], options: Options) -> list[str]:
        if any(self.schema in _cells(line) for line in content):
            raise UsageError(
                "hipblaslt: the file is a tuning cache of the library's own, with a longer key",
                hint="write to another file, and unset HIPBLASLT_TUNING_MODE to use it",
            )
        archs = sorted({base_arch(o.arch) for o in winners} | self._archs(content))
        if len(archs) > 1:
            raise UsageError(
                f"{self.name}: winners and rows of the file are of {' and '.join(archs)}",
                hint="an entry does not say of which architecture it is: keep a file for each",
            )
        heads = [line for line in content if self.is_head(line)]
        revisions = {
            *(_revision(outcome.tuned.version) for outcome in winners),
            *(line.removeprefix(self.version).strip() for line in heads[:1]),
            options.get("git_version", ""),
        } - {""}
        if len(revisions) > 1:
            raise UsageError(
                f"the git revisions of hipBLASLt differ: {', '.join(sorted(revisions))}",
                hint="solution indices belong to one build: tune again with this one",
            )
        if not revisions:
            raise UsageError(
                f"{self.name}: the library's git revision is not known",
                hint="give it: --with git_version=…",
            )
        return [f"{self.version} {revisions.pop()}"]

    def _archs(self, content: Sequence[str]) -> set[str]:
        """Return the architectures in the rows that have that column."""
        rows = (
            dict(zip(_cells(names), _cells(values), strict=False))
            for names, values in itertools.pairwise(content)
            if "transA" in _cells(names)
        )
        return {base_arch(row.get("gcnArchName", "")) for row in rows} - {""}

    def is_head(self, line: str) -> bool:
        return line.startswith(self.version)


def _revision(version: str) -> str:
    """Return the git revision of a version: 5b515cf1bc of 100201-5b515cf1bc, "" of a number."""
    number, _, revision = version.partition("-")
    return revision or ("" if number.replace(".", "").isdecimal() else number)


class RocblasEmitter(LineEmitter):
    """The CSV of rocblas-gemm-tune, which ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH names.

        transA,transB,M,N,batch_count,K,alpha,beta,lda,ldb,ldc,input_type,output_type,…
        N,N,320,588,1,4096,1,0,320,6144,320,f32_r,f32_r,f32_r,3788

    The reader parses by position: 15 values, or 18 with strides before input_type. It does not trim
    values (" N" is read as transposed), skips lines without a comma, and accepts only positive
    indices: those of the Tensile library, starting at 1. The backend records the Tensile index of
    each solution that Tensile names; hipBLASLt's have none and cannot be written. Kernel names are
    in comment lines.
    """

    name = "rocblas"
    summary = "rocBLAS's override CSV (ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH), as rocblas-gemm-tune"
    facts = FormatFacts(
        versions="rocBLAS b520bc83 (2024-10), and the indices of 5.0",
        exactness="exact; hipBLASLt's solutions and rounded inputs are rejected",
        checked="compared with its reader's code; read back in tests",
    )
    backends = ("rocblas",)
    caution = ON_AMD
    override = Override(
        backend="rocblas", variables={"ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH": "{path}"}
    )

    shape = ("transA", "transB", "M", "N", "batch_count", "K", "alpha", "beta", "lda", "ldb", "ldc")
    strides = ("stride_a", "stride_b", "stride_c")
    types = ("input_type", "output_type", "compute_type")
    columns = (*shape, *types, "solution_index")
    batched_columns = (*shape, *strides, *types, "solution_index")
    # Columns that are called otherwise in a BLAS call.
    call_fields = FrozenDict(
        {"M": "m", "N": "n", "K": "k", "input_type": "a_type", "output_type": "c_type"}
    )
    comment = "# kernel: "
    reserved = 10  # rocBLAS reserves the indices down to -10
    rounded = ("xf32_r", "f32_f16_r", "f32_bf16_r")

    def rows(self, lines: Sequence[str]) -> list[Row]:
        rows = []
        for i, (before, line) in enumerate(itertools.pairwise(["", *lines])):
            entry = self._parse_row(line, before)
            if entry is not None:
                rows.append(Row(first=i - bool(entry.kernel), end=i + 1, entry=entry))
        return rows

    def _parse_row(self, line: str, before: str) -> Entry | None:
        values = line.split(",")
        forms = {len(form): form for form in (self.columns, self.batched_columns)}
        if "transA" in line or len(values) not in forms:
            return None
        cells = dict(zip(forms[len(values)], values, strict=True))
        try:
            index, batch = int(cells["solution_index"]), int(cells["batch_count"])
            m, n, k, lda, ldb, ldc = (int(cells[x]) for x in ("M", "N", "K", "lda", "ldb", "ldc"))
            cells["beta"] = number_text(float(cells["beta"]))
        except ValueError:
            return None
        if index <= 0:
            return None
        for name in ("transA", "transB"):
            cells[name] = "N" if cells[name] == "N" else "T"
        dense = {
            "stride_a": lda * (m if cells["transA"] == "T" else k),
            "stride_b": ldb * (k if cells["transB"] == "T" else n),
            "stride_c": ldc * n,
        }
        cells = {name: str(value) for name, value in dense.items()} | cells
        cells["batch_count"] = str(batch)
        named = before.startswith(self.comment)
        return Entry(
            key=self._key(cells),
            config=FrozenDict({"solution_index": index}),
            kernel=before.removeprefix(self.comment).strip() if named else "",
        )

    def _key(self, cells: Mapping[str, str]) -> Key:
        """Return the lookup key of a row: without alpha, and with strides only for a batch."""
        batched = cells["batch_count"] != "1"
        strides = {name: cells[name] if batched else "" for name in self.strides}
        key = {name: cells[name] for name in (*self.shape, *self.types) if name != "alpha"}
        return FrozenDict(key | strides)

    def lookup_key(self, outcome: Outcome, options: Options) -> Key:
        call = blas_call(outcome)
        types = (call["a_type"], call["b_type"])
        if types[0] != types[1]:
            raise CannotWrite(f"{self.name} has the same type for A and B, not {', '.join(types)}")
        if "f8" in types[0]:  # its reader skips such rows
            raise CannotWrite(f"{self.name}'s reader has no {types[0]}")
        if call["compute_type"] in self.rounded:
            raise cannot_compute(self.name, call["compute_type"])
        return self._key(self._call_cells(call))

    def _call_cells(self, call: Call) -> dict[str, str]:
        return {name: call[self.call_fields.get(name, name)] for name in self.batched_columns[:-1]}

    def entry(self, outcome: Outcome, key: Key) -> NewEntry:
        index = self._file_index(outcome)
        cells = self._call_cells(blas_call(outcome)) | {"solution_index": str(index)}
        columns = self.columns if cells["batch_count"] == "1" else self.batched_columns
        row = ",".join(cells[name] for name in columns)
        return NewEntry(
            winner=outcome,
            config=FrozenDict({"solution_index": index}),
            content=[f"{self.comment}{outcome.tuned.kernel.name}", row],
        )

    def _file_index(self, outcome: Outcome) -> int:
        """Return the index of a winner in the file, where Tensile's solutions start at 1."""
        index = solution_index(outcome)
        tensile = outcome.tuned.kernel.resources.get("tensile_index")
        if tensile is not None:
            return tensile + 1
        # Without a recorded index, only negative indices are known to be Tensile's.
        if index < -self.reserved:
            return -index - self.reserved
        own = ": it is rocBLAS's own" if index <= 0 else ""
        raise CannotWrite(
            f"the file has only Tensile's solutions, and solution {index} is not known to be "
            f"one{own}"
        )

    def head(self, winners: Winners, content: Sequence[str], options: Options) -> list[str]:
        return [",".join(self.columns)]

    def is_head(self, line: str) -> bool:
        return tuple(line.split(",")) in (self.columns, self.batched_columns)


def cannot_compute(emitter: str, compute: str) -> CannotWrite:
    return CannotWrite(f"{emitter} has no entries that compute in {compute}")


emitters = {each.name: each for each in (HipblasltEmitter(), RocblasEmitter())}
