"""aiter-csv: aiter's tables of GEMMs and fused MoE, untuned and tuned.

Columns depend on the operator; M, N and K are always present, in lower case for one operator, and
Y = X·Wᵀ with X (M, K) and W (N, K). Without a column for the dtype, it is taken from the name of
the file (a8w8, a4w4, bf16) or of the kernel; otherwise the user must give it. A table has no counts
and aiter drops rows with the same key: each shape is one call, however many rows it has.

Tables of fused MoE have tokens, model_dim (hidden size), inter_dim (of an expert), experts and
topk, for weights in aiter's tiles. What they compute beyond the op moe (quantised weights, another
activation) is listed.

Tuned tables have the time of the chosen kernel in `us`; of a MoE it is that of both stages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from kernelmark import ops
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Status
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads import blas
from kernelmark.workloads.calls import ASSUMED_F8, NO_DTYPE, LogOptions, LogReader, RowReader, Table
from kernelmark.workloads.importers import (
    CUT,
    Importer,
    Repeats,
    ResultFile,
    ResultRow,
    exact_problem,
    legal_name,
    setting,
)
from kernelmark.workloads.source import BadLine, Fields
from kernelmark.workloads.workload import Call

_SIZES = ("M", "N", "K")
_ALL_SIZES = frozenset(("B", *_SIZES))
# A header with one of these is from aiter. Sizes alone may be any list, unless the file has a name
# of aiter: a8w8_blockscale_untuned_gemm_ds_v3.csv, dsv4_batched_gemm_…_mxscale_tuned.csv.
_OWN = frozenset(
    ("cu_num", "q_dtype_w", "scaleAB", "bpreshuffle", "kernelId", "libtype", "outdtype", "gfx")
)
_NAMED = re.compile(r"tuned_(?:batched_)?gemm|batched_gemm_.*tuned")
_WANTED = (
    *(*_SIZES, "B", "bias", "dtype", "outdtype", "q_dtype_w"),
    *("scaleAB", "bpreshuffle", "gfx", "cu_num", "kernelName"),
)
_MOE = ("token", "model_dim", "inter_dim", "expert", "topk")
# Columns of MoE tables with the values that the op moe has.
_MOE_PLAIN = {
    "act_type": "ActivationType.Silu",
    "q_type": "QuantType.No",
    "use_g1u1": "1",
    "doweight_stage1": "0",
}
_MOE_DTYPES = ("dtype", "q_dtype_a", "q_dtype_w")
# The kernel in tuned tables: names of config parameters by columns.
_CHOSEN = {
    "libtype": "library",
    "solidx": "solution_index",
    "kernelId": "kernel_id",
    "splitK": "split_k",
    "ksplit": "split_k",
    "block_m": "block_m",
    "run_1stage": "stages",
    "kernelName1": "kernel1",
    "kernelName2": "kernel2",
    "_tag": "tag",
}
# Rows with this tag are of a table of their own, which aiter reads if another kernel fails.
_FALLBACK = "flydsl_fallback"
_NO_KEY = {"kernelName", "xbf16", "flat"}
_ERRORS = ("errRatio", "err_ratio", "err1", "err2")
_MEASURED = frozenset((*_CHOSEN, *_ERRORS, "us", "us1", "us2", "tflops", "bw"))
# aiter's gfx_from_cu_num, for tables that have no architecture.
GFX_OF_UNITS = {"256": "gfx950", "80": "gfx942", "304": "gfx942"}
# aiter's tuners take the times of a trace, over copies of the operands (test_common.perftest).
_TIMING = Timing(cache=Cache.COLD, timer=Timer.PROFILER)
# Types of the operands by a word in the name, the least ambiguous first: names of kernels contain
# the output type too. Without q_dtype_w, aiter's tuners use int8 for a8w8, fp8 for the other two.
_FAMILIES = (
    (re.compile(r"a4w4|f4gemm"), "a4w4"),
    (re.compile(r"fp8gemm|a8w8.*(?:blockscale|bpreshuffle|mxscale)"), "fp8"),
    (re.compile(r"a8w8|i8gemm"), "a8w8"),
    (re.compile(r"bf16|a16w16"), "bf16"),
)


class AiterCsv(LogReader):
    name = "aiter-csv"
    summary = "aiter's CSV tables of GEMMs and fused MoE, untuned and tuned"
    facts = FormatFacts(
        versions="aiter e4048607 (2026-08), and its tuners before q_dtype_w",
        exactness="exact; a table without a dtype is rejected unless --dtype is given; of MoE, "
        "quantisation and other activations are listed",
        checked="all 90 tables of GEMMs of aiter e4048607 (59,625 rows) against an independent "
        "count, and the sizes in 61 of fused MoE (2,510); compared with the code of aiter's "
        "readers and tuners",
    )

    def table(self, line: bytes, file: str) -> RowReader | None:
        written = line.strip().decode("utf-8", "replace").split(",")
        columns = [name.upper() if name.upper() in _ALL_SIZES else name for name in written]
        names = set(columns)
        if set(_MOE) <= names:
            wanted = (*_MOE, *_MOE_PLAIN, *_MOE_DTYPES)
            return _Experts(columns, wanted, harmless=_MEASURED | {"gfx", "cu_num"})
        named = names <= _ALL_SIZES and _NAMED.search(PurePath(file).name.lower())
        if not set(_SIZES) <= names or not (_OWN & names or named):
            return None
        return _Rows(columns, file)


class _Rows(Table):
    once = True

    def __init__(self, columns: Sequence[str], file: str) -> None:
        super().__init__(columns, _WANTED, harmless=_MEASURED)
        self._file = PurePath(file).name.lower()
        self._archs: dict[str, None] = {}
        self._assumed_f8 = False

    def notes(self) -> tuple[str, ...]:
        notes = []
        if len(self._archs) > 1:
            notes.append(
                f"rows of {' and '.join(sorted(self._archs))}: a shape counts once for each dtype, "
                "and fp8 of gfx942 is another than OCP's; --arch reads the rows of one"
            )
        if self._assumed_f8:
            notes.append(ASSUMED_F8)
        return (*notes, *super().notes())

    def row(self, cells: Fields, options: LogOptions) -> Iterator[Call]:
        arch = self._arch(cells, options)
        sizes = {name.lower(): cells.whole(name) for name in _SIZES}
        batch = cells.whole("B", 1)
        lost = []
        if cells.flag("bpreshuffle") or "bpreshuffle" in self._file:
            lost.append("bpreshuffle")
        name = cells.get("q_dtype_w") or cells.get("dtype") or self._family(cells, options)
        if name in ("a4w4", "a8w8") or blas.dtype_named(name, arch) in ("i8", "f4e2m1"):
            yield _quantised(name, batch, sizes, cells, lost)
            return
        self._assumed_f8 |= name == "fp8" and not arch
        dtype = blas.dtype_named(name, arch)
        problem = ops.registry.get("batched_gemm" if batch > 1 else "gemm").problem(
            **({"batch": batch} if batch > 1 else {}),
            **sizes,
            dtype=dtype,
            **({"c": blas.dtype_named(cells["outdtype"], arch)} if cells.get("outdtype") else {}),
            tb="t",
            bias=cells.flag("bias"),
        )
        fields = dict(blas.fields_of(problem))
        if mode := self._scales(cells, dtype):
            lost = ["scaleA", "scaleB", *lost]
            fields |= {"scaleA": mode, "scaleB": mode}
        yield Call(problem=problem, blas=FrozenDict(fields), lost=tuple(lost))

    def _arch(self, cells: Fields, options: LogOptions) -> str:
        """Return the architecture of a row; raise BadLine if it is not the given one."""
        wished = options.arch.partition(":")[0]
        named = _arch_of(cells)
        if wished and named and named != wished:
            raise BadLine(f"is of {named[:24]}, not of {wished}")
        if named:
            self._archs[named] = None
        return named or wished

    def _scales(self, cells: Fields, dtype: str) -> str:
        """Return hipBLASLt's scale mode: 1 per tensor, 2 per row, 3 per block; "" for none."""
        if cells.flag("scaleAB"):
            return "1"
        if not dtype.startswith("f8"):
            return ""
        names = self._file + cells.get("kernelName", "").lower()
        return "3" if "blockscale" in names or "mxscale" in names else "2"

    def _family(self, cells: Fields, options: LogOptions) -> str:
        for text in (self._file, cells.get("kernelName", "").lower()):
            for pattern, family in _FAMILIES:
                if pattern.search(text):
                    return family
        if not options.dtype:
            raise BadLine(NO_DTYPE)
        return options.dtype


class _Experts(Table):
    once = True
    optional = ("_tag",)

    def row(self, cells: Fields, options: LogOptions) -> Iterator[Call]:
        tokens, hidden, size, experts, chosen = (cells.whole(name) for name in _MOE)
        dtype = blas.dtype_named(cells.required("dtype"))
        lost = [
            name for name, usual in _MOE_PLAIN.items() if cells.text(name, usual).strip() != usual
        ]
        lost += [n for n in _MOE_DTYPES[1:] if cells.text(n) not in ("", "None", cells["dtype"])]
        facts = {name: cells[name].strip() for name in lost}
        problem = ops.registry.get("moe").problem(
            m=tokens,
            n=size,
            k=hidden,
            e=experts,
            top_k=chosen,
            dtype=dtype,
            # Tiles of quantised weights have other columns.
            w_order="rows" if lost else "tiled",
        )
        yield Call(
            problem=problem, blas=FrozenDict(), lost=tuple(f"{n}={t}" for n, t in facts.items())
        )


class AiterTimes(Importer):
    name = "aiter-csv"
    summary = "aiter's tuned tables: the time of the chosen kernel of each GEMM or fused MoE"
    facts = FormatFacts(
        versions="aiter e4048607 (2026-08)",
        exactness="every row with a time; two rows of a key are rejected, and of fused MoE the "
        "first is read, as by aiter; what an op does not compute is part of the problem",
        checked="83 tuned tables of aiter e4048607 (51,796 rows): the same times as with Python's "
        "csv",
    )
    method = "mean of aiter's tuner"
    is_log = True

    def recognizes(self, name: str, head: bytes) -> bool:
        columns = head.partition(b"\n")[0].strip().split(b",")
        return b"us" in columns and AiterCsv().table(b",".join(columns), name) is not None

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        reader = AiterCsv().table("".join(file.texts[:1]).encode(), file.name)
        columns, table = file.table(least=reader.least if isinstance(reader, Table) else 0)
        if not isinstance(reader, Table):
            raise BadLine("line 1 is no header of aiter's tables", hint=CUT)
        if "us" not in columns:
            raise BadLine("a table without times", hint="--workload DIR imports its calls")
        options = LogOptions(arch=file.overrides.arch)
        sizes = {name.lower(): name for name in _ALL_SIZES}
        # Of fused MoE, aiter keeps the first row of a key. Tables of GEMMs with two rows of a key
        # are an error of pandas' to_dict("index"), after equal rows were dropped.
        is_moe = isinstance(reader, _Experts)
        keys = {*_WANTED, *_MOE, *_MOE_PLAIN, *_MOE_DTYPES, *reader.unread} - _NO_KEY
        for cells in table:
            # The table's readers have sizes in capitals.
            named = {sizes.get(name, name): text for name, text in cells.items()}
            (call,) = reader.row(Fields(named, cells.where), options)
            failed = cells.text("us") == "inf"
            kernels = (cells.text(name) for name in ("kernelName", "kernelName1", "kernelName2"))
            yield ResultRow(
                problem=exact_problem(call),
                backend="aiter",
                samples_s=() if failed else (cells.number("us") * 1e-6,),
                status=Status.RUNTIME_ERROR if failed else Status.OK,
                error=Reason("the table has inf") if failed else NO_REASON,
                timing=_TIMING,
                config=FrozenDict(
                    {
                        name: setting(cells[column])
                        for column, name in _CHOSEN.items()
                        if cells.text(column)
                    }
                    # What this reader does not know may have changed what was computed.
                    | {
                        legal_name(column.lower()): setting(cells[column])
                        for column in reader.unread
                        if cells.text(column)
                    }
                ),
                kernel=" ".join(filter(None, kernels)),
                device=_gpu(cells),
                arch=_arch_of(cells),
                key=(
                    *(text.strip() for name, text in named.items() if name in keys),
                    *([_FALLBACK] if cells.text("_tag") == _FALLBACK else []),
                ),
                repeats=Repeats.FIRST if is_moe else Repeats.REFUSED,
            )


def _arch_of(cells: Fields) -> str:
    """Return the architecture of a row's GPU; "" if it is unknown."""
    return cells.text("gfx") or GFX_OF_UNITS.get(cells.text("cu_num"), "")


def _gpu(cells: Fields) -> str:
    """Return a description of a row's GPU, as `gfx942 with 304 CUs`: a table may have rows of
    several GPUs for one shape, and has no names of devices."""
    units = cells.text("cu_num")
    gpu = _arch_of(cells) or ("GPU" if units else "")
    return f"{gpu} with {units} CUs" if units else gpu


def _quantised(
    name: str, batch: int, sizes: Mapping[str, int], cells: Fields, lost: Sequence[str]
) -> Call:
    """Return the call of a batched GEMM with quantised operands and scales."""
    four_bits = name == "a4w4" or (name != "a8w8" and blas.dtype_named(name) == "f4e2m1")
    problem = ops.registry.get("batched_gemm_quant").problem(
        batch=batch, **sizes, scheme="afp4wfp4" if four_bits else "a8w8", bias=cells.flag("bias")
    )
    return Call(problem=problem, lost=tuple(lost))


readers = (AiterCsv(),)
importers = (AiterTimes(),)
