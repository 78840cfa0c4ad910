"""aiter-tables: aiter's CSV tables of tuned GEMMs and fused MoE (AITER_CONFIG_GEMM_BF16, …_FMOE).

    gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,…
    gfx,cu_num,B,M,N,K,kernelId,splitK,us,kernelName,…          batched, and a8w8 with q_dtype_w
    gfx,cu_num,token,model_dim,inter_dim,expert,topk,act_type,…,block_m,…,kernelName1,…  fused MoE

The first table chooses the library of a 16-bit GEMM: hipBLASLt's solutions, or aiter's Triton
kernel. The others choose a kernel of CK by a number that is compiled in, with its name, and the
split of k: a winner is written only if the table has a row with that number, or, without a number,
for its own shape. If there is no row for M, aiter looks up M padded to a tile and to a power of two
(gemm_common.cu), except for batched GEMMs.

A row of fused MoE serves all numbers of tokens up to its own, a power of two, that are above the
half of it; the largest rows, 32768 and 131072, serve all that follow. The lookup ignores act_type,
and the first of equal rows counts (get_2stage_cfgs). Older tables have no column gfx: aiter derives
it from cu_num. Columns that a table lacks or has in another order stay as they are in that file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kernelmark import ops
from kernelmark.backends.aiter import block_of
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
from kernelmark.workloads.formats.aiter_csv import GFX_OF_UNITS

_MEASURED = ("us", "kernelName", "tflops", "bw", "errRatio")
_SILU = "ActivationType.Silu"
_MOST_TOKENS = (32768, 131072)
_IGNORED = "flydsl_fallback"  # a tag of rows that aiter does not look up
_CK = ("kernelId", "splitK", *_MEASURED)
_DTYPES = {"bf16": "torch.bfloat16", "f16": "torch.float16"}


@dataclass(frozen=True, slots=True)
class _Table:
    """The columns of a lookup key, those of its values, and how CK's kernel names begin."""

    key: tuple[str, ...]
    values: tuple[str, ...]
    kernels: str = ""
    optional: tuple[str, ...] = ()  # columns that a file may lack

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.key, *self.values)

    def has(self, columns: Sequence[str]) -> bool:
        """Return whether a file with these columns is such a table."""
        if not self.optional:
            return tuple(columns) == self.columns
        needed = set(self.columns) - set(self.optional)
        return needed <= set(columns) <= set(self.columns) and len(set(columns)) == len(columns)


_SHAPE = ("gfx", "cu_num", "M", "N", "K")
_BATCHED = ("gfx", "cu_num", "B", "M", "N", "K")
_TABLES = {
    "gemm": _Table(
        (*_SHAPE, "bias", "dtype", "outdtype", "scaleAB", "bpreshuffle"),
        ("libtype", "solidx", "splitK", "us", "kernelName", "err_ratio", "tflops", "bw"),
    ),
    "batched_gemm": _Table(_BATCHED, _CK, "bf16_batched_"),
    "a8w8_batched": _Table(_BATCHED, _CK, "a8w8_batched_"),
    # Tables of preshuffled and block-scaled weights have the same columns and kernels of their own.
    "a8w8": _Table((*_SHAPE, "q_dtype_w"), _CK, "a8w8_rowwise_"),
    "moe": _Table(
        (
            *("gfx", "cu_num", "token", "model_dim", "inter_dim", "expert", "topk", "dtype"),
            *("q_dtype_a", "q_dtype_w", "q_type", "use_g1u1", "doweight_stage1"),
        ),
        (
            *("act_type", "block_m", "ksplit", "us1", "kernelName1", "err1", "us2", "kernelName2"),
            *("err2", "us", "run_1stage", "xbf16", "flat", "tflops", "bw", "_tag"),
        ),
        optional=("gfx", "xbf16", "flat", "_tag"),
    ),
}
# What a key of the op moe, which is neither quantised nor weighted first, has beside its sizes.
_MOE_KEY = {
    **dict.fromkeys(("dtype", "q_dtype_a", "q_dtype_w"), _DTYPES["bf16"]),
    "q_type": "QuantType.No",
    "use_g1u1": "1",
    "doweight_stage1": "0",
}


def _table_of(problem: Problem) -> _Table:
    if problem.options.get("scheme") == "a8w8":
        return _TABLES["a8w8_batched" if problem.dims["batch"] > 1 else "a8w8"]
    if problem.op == "moe" and problem.options.get("w_order") == "tiled":
        return _TABLES["moe"]
    if problem.op not in ("gemm", "batched_gemm") or problem.dtypes["a"] not in _DTYPES:
        raise CannotWrite(f"aiter's tables have no entries for {problem.op} of these dtypes")
    check_weights("aiter-tables", problem)
    return _TABLES[problem.op]


class AiterTables(LineEmitter):
    name = "aiter_tables"
    summary = "aiter's CSV tables of tuned GEMMs and fused MoE: libraries, and kernels of CK"
    facts = FormatFacts(
        versions="aiter e4048607 (2026-08)",
        exactness="exact; a winner that aiter would use for an M without a gain is rejected; fused "
        "MoE of bf16 with silu",
        checked="aiter's own lookups executed before and after writing into its tables of GEMMs "
        "and fused MoE, without a difference; CK's tables compared with its code",
    )
    backends = ("aiter", "hipblaslt")
    options = FrozenDict({"cu_num": "the GPU's number of CUs, if the file's rows do not say it"})
    caution = ON_AMD
    kernels: Mapping[Key, Config] = MappingProxyType({})  # in the file, by the keys of their rows
    columns: tuple[str, ...] = ()  # of the file

    def emit(self, outcomes: Sequence[Outcome], into: Path, options: Options) -> Change:
        bound = copy.copy(self)  # with the rows of the file, from which CK's kernels are taken
        lines = (text_at(into) or "").splitlines()
        bound.columns = _columns(lines[0]) if lines else ()
        bound.kernels = {}
        for row in self.rows(lines):
            bound.kernels.setdefault(row.entry.key, row.entry.config)
        return super(AiterTables, bound).emit(outcomes, into, options)

    def rows(self, lines: Sequence[str]) -> list[Row]:
        columns = _columns(lines[0]) if lines else ()
        table = _table_with(columns)
        found = []
        for i, line in enumerate(lines[1:] if table else (), 1):
            cells = line.split(",")
            if table is None or len(cells) < len(table.key) - 1:
                continue
            values = dict.fromkeys(table.values, "")
            values |= dict(zip(columns, cells, strict=False))
            values.setdefault("gfx", GFX_OF_UNITS.get(values["cu_num"], ""))
            if values.get("_tag") == _IGNORED:
                continue
            key = FrozenDict({name: values.get(name, "") for name in table.key})
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
            if "token" in key:
                self._withhold_largest(chosen, key)
                continue
            for m in () if "B" in key else padded(int(key["M"]), int(key["N"])):
                winner = chosen.winners.pop(FrozenDict({**key, "M": str(m)}), None)
                if winner is not None:
                    reason = f"aiter also uses M={m} for M={key['M']}, which did not gain"
                    chosen.skipped.append(Skipped(name=winner.name, reason=reason))
        return chosen

    def _withhold_largest(self, chosen: Chosen, key: Key) -> None:
        """Withhold the winner that the largest number of tokens would get, which did not gain."""
        smaller, largest = map(str, _MOST_TOKENS)
        if key["token"] != largest or key in self.kernels:
            return
        winner = chosen.winners.pop(FrozenDict({**key, "token": smaller}), None)
        if winner is not None:
            reason = f"aiter also uses token={smaller} for token={largest}, which did not gain"
            chosen.skipped.append(Skipped(name=winner.name, reason=reason))

    def lookup_key(self, outcome: Outcome, options: Options) -> Key:
        problem, arch = outcome.problem, base_arch(outcome.arch)
        table = _table_of(problem)
        if not arch.startswith("gfx"):
            raise CannotWrite(f"aiter has no entries for {arch}")
        if not options.get("cu_num", "").isdecimal():
            raise UsageError(
                "aiter-tables: the number of CUs is not known", hint="give it: --with cu_num=304"
            )
        # Of some GPUs, aiter itself concludes from the number to the architecture.
        known = GFX_OF_UNITS.get(options["cu_num"], arch)
        if known != arch and arch in GFX_OF_UNITS.values():
            raise CannotWrite(
                f"it was tuned on {arch}, and cu_num={options['cu_num']} is a {known}"
            )
        if problem.op == "moe":
            return _moe_key(problem, arch, options["cu_num"], self.columns)
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
        if problem.op == "moe":
            values = self._experts(outcome, key)
        elif problem.op == "gemm":
            values = _library(outcome)
        else:
            values = self._kernel(outcome, key)
        values |= {"us": f"{us:.4f}", "err_ratio": "0.0", "errRatio": "0.0"}
        values["tflops"] = f"{op.flops(problem) / us / 1e6:.2f}"
        values["bw"] = f"{op.bytes(problem) / us / 1e3:.2f}"
        table = _table_of(problem)
        columns = self.columns if table.has(self.columns) else _order(table)
        line = ",".join({**key, **values}[name] for name in columns)
        return NewEntry(winner=outcome, config=_config(values), content=[line])

    def _experts(self, outcome: Outcome, key: Key) -> dict[str, str]:
        """Return CK's two kernels of a fused MoE. Their times are measured together."""
        config = outcome.tuned.config
        block = block_of(config) if outcome.tuned.backend == "aiter" else 0
        if not block:
            raise CannotWrite("aiter's table of fused MoE needs kernel=ck, kernel1 and kernel2")
        other = self.kernels.get(key, {}).get("act_type", _SILU)
        if other != _SILU:
            raise CannotWrite(f"aiter does not compare act_type: its row of {other} has the key")
        values = dict.fromkeys(("us1", "us2", "err1", "err2", "_tag"), "")
        values |= dict.fromkeys(("ksplit", "run_1stage", "xbf16", "flat"), "0")
        values |= {f"kernelName{i}": str(config[f"kernel{i}"]) for i in (1, 2)}
        return values | {"act_type": _SILU, "block_m": str(block)}

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
        tables = {_table_of(outcome.problem) for outcome in winners}
        if len(tables) > 1 or (content and not all(t.has(_columns(content[0])) for t in tables)):
            raise UsageError(
                "aiter-tables: the winners and the file are of several of aiter's tables",
                hint="keep a file for each table, as aiter does",
            )
        return [",".join(_order(tables.pop()))]

    def is_head(self, line: str) -> bool:
        return _table_with(_columns(line)) is not None


def _table_with(columns: Sequence[str]) -> _Table | None:
    return next((table for table in _TABLES.values() if table.has(columns)), None)


def _order(table: _Table) -> tuple[str, ...]:
    """Return the columns of a new file; those of act_type and dtype are neighbours."""
    if "act_type" not in table.values:
        return table.columns
    at = table.key.index("dtype")
    values = [name for name in table.values if name != "act_type"]
    return (*table.key[:at], "act_type", *table.key[at:], *values)


def _moe_key(problem: Problem, arch: str, units: str, columns: Sequence[str]) -> Key:
    if columns and "gfx" not in columns and GFX_OF_UNITS.get(units) != arch:
        raise CannotWrite(f"the file has no column gfx: aiter takes cu_num={units} for another GPU")
    d = problem.dims
    sizes = {"token": padded_tokens(d["m"]), "model_dim": d["k"], "inter_dim": d["n"]}
    sizes |= {"expert": d["e"], "topk": d["top_k"]}
    facts = {"gfx": arch, "cu_num": units, **{name: str(size) for name, size in sizes.items()}}
    return FrozenDict({name: (facts | _MOE_KEY)[name] for name in _TABLES["moe"].key})


def padded_tokens(m: int) -> int:
    """Return the number of tokens of the row that aiter looks up for m tokens."""
    if m < _MOST_TOKENS[0]:
        return 1 << (m - 1).bit_length()
    return max(tokens for tokens in _MOST_TOKENS if m >= tokens)


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
    names = (
        *("libtype", "solidx", "kernelId", "splitK", "kernelName", "act_type", "block_m"),
        *("ksplit", "kernelName1", "kernelName2", "run_1stage"),
    )
    return FrozenDict({name: values[name] for name in names if name in values})


emitter = AiterTables()
