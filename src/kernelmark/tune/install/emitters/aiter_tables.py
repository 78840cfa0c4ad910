"""aiter-tables: aiter's CSV tables of tuned GEMMs (AITER_CONFIG_GEMM_BF16 and the like).

    gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,…
    gfx,cu_num,B,M,N,K,kernelId,splitK,us,kernelName,…          batched, and a8w8 with q_dtype_w

The first table chooses the library of a 16-bit GEMM: hipBLASLt's solutions, or aiter's Triton
kernel. The others choose a kernel of CK by a number that is compiled in, with its name, and the
split of k: a winner is written only if the table has a row with that number, or, without a number,
for its own shape. If there is no row for M, aiter looks up M padded to a tile and to a power of two
(gemm_common.cu), except for batched GEMMs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config
from kernelmark.tune.install.emitters.base import (
    ON_AMD,
    CannotWrite,
    Change,
    Chosen,
    Entry,
    Key,
    LineEmitter,
    LineFile,
    NewEntry,
    Options,
    Row,
    Skipped,
    Winners,
    check_weights,
    text_at,
)
from kernelmark.tune.install.emitters.blas import base_arch, blas_call, solution_index
from kernelmark.tune.results import Outcome

_MEASURED = ("us", "kernelName", "tflops", "bw", "errRatio")
_CK = ("kernelId", "splitK", *_MEASURED)
_DTYPES = {"bf16": "torch.bfloat16", "f16": "torch.float16"}


@dataclass(frozen=True, slots=True)
class _Table:
    """The columns of a lookup key, those of its values, and how CK's kernel names begin."""

    key: tuple[str, ...]
    values: tuple[str, ...]
    kernels: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.key, *self.values)


_SHAPE = ("gfx", "cu_num", "M", "N", "K")
_BATCHED = ("gfx", "cu_num", "B", "M", "N", "K")
_TABLES = {
    "gemm": _Table(
        (*_SHAPE, "bias", "dtype", "outdtype", "scaleAB", "bpreshuffle"),
        ("libtype", "solidx", "splitK", "us", "kernelName", "err_ratio", "tflops", "bw"),
    ),
    "batched_gemm": _Table(_BATCHED, _CK, "bf16_batched_"),
    "a8w8_batched": _Table(_BATCHED, _CK, "a8w8_batched_"),
    "a8w8": _Table((*_SHAPE, "q_dtype_w"), _CK, "a8w8_"),
}


def _table_of(problem: Problem) -> _Table:
    if problem.options.get("scheme") == "a8w8":
        return _TABLES["a8w8_batched" if problem.dims["batch"] > 1 else "a8w8"]
    if problem.op not in ("gemm", "batched_gemm") or problem.dtypes["a"] not in _DTYPES:
        raise CannotWrite(f"aiter's tables have no entries for {problem.op} of these dtypes")
    check_weights("aiter-tables", problem)
    return _TABLES[problem.op]


class AiterTables(LineEmitter):
    name = "aiter_tables"
    summary = "aiter's CSV tables of tuned GEMMs: libraries, and kernels of CK (also: aiter-tables)"
    facts = FormatFacts(
        versions="aiter e4048607 (2026-08)",
        exactness="exact; a winner that aiter would use for an M without a gain is rejected",
        checked="compared with aiter's lookups; all other rows are unchanged; read back in tests",
    )
    backends = ("aiter", "hipblaslt")
    options = FrozenDict({"cu_num": "the GPU's number of CUs, if the file's rows do not say it"})
    caution = ON_AMD
    kernels: Mapping[Key, Config] = MappingProxyType({})  # in the file, by the keys of their rows

    def emit(self, outcomes: Sequence[Outcome], into: Path, options: Options) -> Change:
        bound = copy.copy(self)  # with the rows of the file, from which CK's kernels are taken
        there = self.rows((text_at(into) or "").splitlines())
        bound.kernels = {row.entry.key: row.entry.config for row in there}
        return super(AiterTables, bound).emit(outcomes, into, options)

    def rows(self, lines: Sequence[str]) -> list[Row]:
        table = next(
            (t for t in _TABLES.values() if lines and _columns(lines[0]) == t.columns), None
        )
        found = []
        for i, line in enumerate(lines[1:] if table else (), 1):
            cells = line.split(",")
            if table is None or len(cells) < len(table.key):
                continue
            cells += [""] * (len(table.columns) - len(cells))
            key = FrozenDict(zip(table.key, cells, strict=False))
            values = dict(zip(table.values, cells[len(table.key) :], strict=False))
            entry = Entry(key=key, config=_config(values), kernel="")
            found.append(Row(first=i, end=i + 1, entry=entry))
        return found

    def complete(self, document: LineFile, options: Options) -> Options:
        units = {row.entry.key["cu_num"] for row in document.rows}
        if "cu_num" in options or len(units) != 1:
            return options
        return FrozenDict({**options, "cu_num": units.pop()})

    def choose(self, outcomes: Sequence[Outcome], key_of: Callable[[Outcome], Key]) -> Chosen:
        """Choose the outcomes to write, without those that aiter would also use for a smaller M
        that did not gain."""
        chosen = super().choose(outcomes, key_of)
        for key in chosen.unchanged:
            for m in () if "B" in key else padded(int(key["M"]), int(key["N"])):
                winner = chosen.winners.pop(FrozenDict({**key, "M": str(m)}), None)
                if winner is not None:
                    reason = f"aiter also uses M={m} for M={key['M']}, which did not gain"
                    chosen.skipped.append(Skipped(name=winner.name, reason=reason))
        return chosen

    def lookup_key(self, outcome: Outcome, options: Options) -> Key:
        problem, arch = outcome.problem, base_arch(outcome.arch)
        table = _table_of(problem)
        if not arch.startswith("gfx"):
            raise CannotWrite(f"aiter has no entries for {arch}")
        if not options.get("cu_num", "").isdecimal():
            raise UsageError(
                "aiter-tables: the number of CUs is not known", hint="give it: --with cu_num=304"
            )
        facts = {name.upper(): str(size) for name, size in problem.dims.items()}
        facts |= {"gfx": arch, "cu_num": options["cu_num"], "B": str(problem.dims.get("batch", 1))}
        facts |= {"q_dtype_w": "torch.int8", "scaleAB": "False", "bpreshuffle": "False"}
        facts["bias"] = str(bool(problem.options["bias"]))
        if problem.op == "gemm":
            facts |= {"dtype": _DTYPES[problem.dtypes["a"]]}
            facts |= {"outdtype": _DTYPES.get(problem.dtypes["c"], "torch.float32")}
        return FrozenDict({name: facts[name] for name in table.key})

    def entry(self, outcome: Outcome, key: Key) -> NewEntry:
        problem, us = outcome.problem, outcome.tuned.median_s * 1e6
        op = ops.registry.get(problem.op)
        values = _library(outcome) if problem.op == "gemm" else self._kernel(outcome, key)
        values |= {"us": f"{us:.4f}", "err_ratio": "0.0", "errRatio": "0.0"}
        values["tflops"] = f"{op.flops(problem) / us / 1e6:.2f}"
        values["bw"] = f"{op.bytes(problem) / us / 1e3:.2f}"
        line = ",".join((*key.values(), *(values[name] for name in _table_of(problem).values)))
        return NewEntry(winner=outcome, config=_config(values), content=[line])

    def _kernel(self, outcome: Outcome, key: Key) -> dict[str, str]:
        """Return CK's kernel and split of k, with a name from the file."""
        config, begin = outcome.tuned.config, _table_of(outcome.problem).kernels
        if config.get("kernel") != "ck" or outcome.tuned.backend != "aiter":
            raise CannotWrite(f"aiter's table chooses only kernels of CK for {outcome.problem.op}")
        number, split = config.get("kernel_id"), config.get("split_k", "tuned")
        own = self.kernels.get(key, FrozenDict())
        rows = [own] if number is None else self.kernels.values()
        row = next(
            (
                row
                for row in rows
                if str(row.get("kernelName", "")).startswith(begin)
                and str(number) in (row["kernelId"], "None")
            ),
            None,
        )
        if row is None:
            which = "this shape" if number is None else f"kernel_id={number}"
            raise CannotWrite(f"the file has no row of {which} with the name of a kernel {begin}…")
        if split == "tuned":
            split = row["splitK"] if number is None else 0
        return {
            **{name: str(row[name]) for name in ("kernelId", "kernelName")},
            "splitK": str(split),
        }

    def head(self, winners: Winners, content: Sequence[str], options: Options) -> list[str]:
        columns = {_table_of(outcome.problem).columns for outcome in winners}
        if content:
            columns.add(_columns(content[0]))
        if len(columns) > 1:
            raise UsageError(
                "aiter-tables: the winners and the file are of several of aiter's tables",
                hint="keep a file for each table, as aiter does",
            )
        return [",".join(columns.pop())]

    def is_head(self, line: str) -> bool:
        return any(_columns(line) == table.columns for table in _TABLES.values())


def _library(outcome: Outcome) -> dict[str, str]:
    """Return the library and its solution for a 16-bit GEMM."""
    problem, tuned = outcome.problem, outcome.tuned
    options = problem.options
    if options["alpha"] != 1 or options["beta"] != 0:
        raise CannotWrite("aiter's GEMMs have no alpha and beta")
    if tuned.backend == "aiter":
        if tuned.config.get("kernel") != "triton":
            raise CannotWrite(
                f"aiter's table has no entry for kernel={tuned.config.get('kernel')}: that of asm "
                "needs the name of a kernel, which aiter chose by itself"
            )
        return {"libtype": "triton", "solidx": "0", "splitK": "0", "kernelName": "auto"}
    call = blas_call(outcome)
    dense = {"lda": call["k"], "ldb": call["k"], "ldd": call["m"]}
    other = next((name for name, size in dense.items() if call[name] != size), "")
    plain = {"scaleA": "0", "scaleB": "0", "compute_type": "f32_r"}
    plain["activation_type"] = "none"
    other = other or next((n for n, text in plain.items() if call.get(n, text) != text), "")
    if other:
        raise CannotWrite(f"its call has {other}={call[other]}, which aiter's key does not have")
    return {
        "libtype": "hipblaslt",
        "solidx": str(solution_index(outcome)),
        "splitK": "0",
        "kernelName": tuned.kernel.name,
    }


def padded(m: int, n: int) -> tuple[int, int]:
    """Return the two M that aiter looks up if it has no row for m: up to the next tile, and up to
    the next power of two."""
    tile = next((tile for most, tile in ((256, 16), (1024, 32), (4096, 64)) if m <= most), 128)
    power = 8192 if m > 8192 and n > 4096 else 1 << (m - 1).bit_length()
    return -(-m // tile) * tile, power


def _columns(line: str) -> tuple[str, ...]:
    return tuple(line.strip().split(","))


def _config(values: Mapping[str, str]) -> Config:
    names = ("libtype", "solidx", "kernelId", "splitK", "kernelName")
    return FrozenDict({name: values[name] for name in names if name in values})


emitter = AiterTables()
