"""shapes: lists of sizes, M,N,K per line; D is M×N and row-major.

    512 512 512        separated by commas, semicolons, spaces or x
    8 512 512 512      four numbers need their order: some tools write batch,M,N,K, some M,N,batch,K
    m,n,k,count        with a header, in any order, also batch, dtype, count, ta and tb

A table with a header may also be of attention or convolutions, and columns may have any of the
names below. Defaults are those of a layer of a network: weights stored N×K (tb=t), dtype as given
by the user. With ta and tb, or without letters, a GEMM is row-major, D = A·B. With transA and
transB, with a layout such as TN, or with letters in columns A and B, it is a column-major BLAS
call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelmark import ops
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.registry import FormatFacts
from kernelmark.ops.conv import output_size
from kernelmark.workloads import blas
from kernelmark.workloads.calls import (
    ASSUMED_DTYPE,
    ASSUMED_F8,
    OUTPUT_ALONE,
    LogOptions,
    LogReader,
    Part,
    RowReader,
    Table,
    header,
)
from kernelmark.workloads.source import BadLine, Fields
from kernelmark.workloads.workload import BLAS_FIELDS, Call

_ROW = re.compile(rb"\s*\d{1,18}(?:(?:\s*[,;xX]\s*|\s+)\d{1,18}){2,3}\s*[,;]?\s*\Z")
# Also matches rows with invalid numbers, so that the list continues after them.
_NUMBERS = re.compile(rb"\s*[-+]?\d[\d.]*(?:(?:\s*[,;xX]\s*|\s+)[-+]?\d[\d.]*)+\s*[,;]?\s*\Z")
_LONGEST = 200  # characters of a row
_SPLIT = re.compile(r"[\s,;xX]+")
_BACKWARD = re.compile(r"bwd|backward|wrw|grad", re.IGNORECASE)
_ANY = ("", "any", "-")  # cells without a value
_TYPED = ("dtype", "a", "b")

# Possible column names of each field, the least ambiguous first.
Names = Mapping[str, Sequence[str]]
_COUNT: Names = {
    "count": ("count", "calls", "call_count", "num_calls", "n_calls", "frequency", "occurrences")
}
_DTYPE: Names = {
    "dtype": (
        *("dtype", "type", "data_type", "datatype", "precision"),
        *("in_dtype", "input_dtype", "input_type"),
    )
}
_GEMM_SIZES = ("m", "n", "k")
_BATCH = ("batch", "batch_count", "batch_size", "num_batches")
_GEMM: Names = {
    **{name: (name,) for name in (*_GEMM_SIZES, "ta", "tb", "alpha", "beta")},
    **_DTYPE,
    **_COUNT,
    "a": ("a_type", "a_dtype", "dtype_a", "type_a", "a"),
    "b": ("b_type", "b_dtype", "dtype_b", "type_b"),
    "d": ("d_type", "d_dtype", "out_dtype", "outdtype", "output_dtype", "output_type", "d"),
    "c": ("c_type", "c_dtype", "dtype_c", "type_c", "c"),
    "acc": ("compute_type", "compute_dtype", "acc_dtype", "acc_type", "acc"),
    "bias": ("bias", "has_bias"),
}
_LETTERS: Names = {
    "transA": ("transa", "trans_a", "transposea", "transpose_a"),
    "transB": ("transb", "trans_b", "transposeb", "transpose_b"),
    "layout": ("layout", "trans", "transpose"),
}
# Further fields of a BLAS call, which have a meaning only with letters.
_OF_BLAS = (
    *("function", "lda", "ldb", "ldc", "ldd", "stride_a", "stride_b", "stride_c", "stride_d"),
    *("scale_type", "bias_type", "scaleA", "scaleB", "bias_vector", "activation_type"),
    *("grouped_gemm", "scaleC", "scaleD", "amaxD", "use_e", "gradient", "bias_source"),
    *("swizzle_a", "swizzle_b", "swizzleA", "swizzleB", "scaleAlpha_vector"),
)
_ATTENTION: Names = {
    "op": ("op",),
    "batch": ("batch", "b", "batch_size", "bs"),
    "heads_q": (
        *("heads_q", "num_heads_q", "nheads_q", "nhead_q", "num_q_heads", "q_heads", "hq", "h_q"),
        *("heads", "num_heads", "nheads", "nhead", "n_heads", "num_attention_heads", "h"),
    ),
    "heads_kv": (
        *("heads_kv", "num_heads_kv", "nheads_kv", "nhead_kv", "num_kv_heads", "kv_heads", "hkv"),
        *("h_kv", "num_heads_k", "nheads_k", "nhead_k", "num_key_value_heads", "hk"),
    ),
    "seq_q": (
        *("seq_q", "seqlen_q", "seq_len_q", "q_len", "sq", "s_q"),
        *("seq", "seqlen", "seq_len", "s"),
    ),
    "seq_kv": (
        *("seq_kv", "seqlen_kv", "seq_len_kv", "kv_len", "skv", "s_kv"),
        *("seq_k", "seqlen_k", "seq_len_k", "sk", "s_k"),
    ),
    "dim_qk": (
        *("dim_qk", "head_dim_qk", "hdim_qk", "head_dim_q", "hdim_q", "dim_q"),
        *("dim", "head_dim", "headdim", "hdim", "head_size", "d"),
    ),
    "dim_v": ("dim_v", "head_dim_v", "hdim_v", "d_v", "dv"),
    **_DTYPE,
    "kv": ("kv_dtype", "kv"),
    "o": ("out_dtype", "output_dtype", "o_dtype", "o"),
    "causal": ("causal", "is_causal"),
    "layout": ("layout",),
    **_COUNT,
}
# Batch and heads folded into one dim, as in compilers: (B, M, K1) · (B, K2, K1)ᵀ · (B, K2, N).
_FOLDED = {"heads_q": "b", "seq_q": "m", "dim_v": "n", "dim_qk": "k1", "seq_kv": "k2"}
_FOLDED_NAMES: Names = {
    **{field: (name,) for field, name in _FOLDED.items()},
    **{name: _ATTENTION[name] for name in ("op", "dtype", "o", "causal", "count")},
}
_CONV: Names = {
    "op": ("op",),
    "n": ("n", "batch", "batch_size", "b"),
    "c": ("c", "c_in", "in_channels", "channels"),
    "h": ("h", "h_in", "in_h", "height"),
    "w": ("w", "w_in", "in_w", "width"),
    "k": ("k", "k_out", "c_out", "out_channels", "filters", "f"),
    "r": ("r", "r_kh", "kh", "kernel_h", "filter_h"),
    "s": ("s", "s_kw", "kw", "kernel_w", "filter_w"),
    "h_out": ("h_out", "out_h"),
    "w_out": ("w_out", "out_w"),
    **{name: (name,) for name in ("stride_h", "stride_w", "stride")},
    "pad_h": ("pad_h", "padding_h"),
    "pad_w": ("pad_w", "padding_w"),
    "pad": ("pad", "padding"),
    **{name: (name,) for name in ("dilation_h", "dilation_w", "dilation")},
    "groups": ("groups", "group", "group_count"),
    **_DTYPE,
    "y": ("out_dtype", "output_dtype", "output_type"),
    "acc": ("acc_dtype", "acc"),
    "layout": ("layout",),
    **_COUNT,
}
# Columns of a benchmark suite for IREE: H and W of the output, P×Q the filter, S the stride.
_SUITE = {"n": "b", "h_out": "h", "w_out": "w", "c": "c", "r": "p", "s": "q", "k": "f"}
_SUITE |= {"stride": "s"}
_SUITE_NAMES: Names = {
    **{field: (name,) for field, name in _SUITE.items()},
    **{name: _CONV[name] for name in ("op", "dtype", "y", "count")},
    "layout": ("layout",),
    "name": ("name",),
}
_KEYS: Names = {name: (name.lower(),) for name in ("problem", "count", "lost", *BLAS_FIELDS)}
_LETTER = {"true": "T", "false": "N", "1": "T", "0": "N", "t": "T", "n": "N", "c": "C"}
_TWO_LETTERS = re.compile(r"[NTC]{2}\Z", re.IGNORECASE)
_IMAGES = re.compile(r"(nchw|nhwc)(?:_([a-z]{4})(?![a-z]))?")
# The usual layouts of filters for each layout of images, in the letters of several libraries.
_FILTERS = {"nchw": ("kcrs", "fchw", "oihw", "kcyx"), "nhwc": ("krsc", "fhwc", "ohwi", "kyxc")}
_BY_COLUMNS = (
    "transA and transB were read as in BLAS, of matrices stored by columns; if they are stored by "
    "rows, name the columns ta and tb"
)
_FOUR = "four numbers may be batch,M,N,K or M,N,batch,K: name them by a header or --key batch,m,n,k"


class Shapes(LogReader):
    name = "shapes"
    summary = "lists of sizes: M,N,K per line, or a table of GEMMs, attention or convolutions"
    facts = FormatFacts(
        versions="any",
        exactness="sizes are exact; a missing dtype is read as bf16, with a note; four numbers "
        "without a header are rejected without --key, which names them",
        checked="samples of our own in tests",
    )
    alone = True

    def rows(self, line: bytes) -> RowReader | None:
        row = _bare(line)
        return _List() if len(row) < _LONGEST and _NUMBERS.match(row) else None

    def table(self, line: bytes, file: str) -> RowReader | None:
        top = _Header.of(line)
        if top.separator == "," and top.has("problem", "count"):
            return _Keys(top, _KEYS)
        return _gemm_table(top) or _layer_table(top)


def _bare(line: bytes) -> bytes:
    return line.partition(b"#")[0].strip()


class _List(RowReader):
    """A reader of rows without a header."""

    def __init__(self) -> None:
        self._notes: dict[str, None] = {}

    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def part(self, line: bytes) -> Part | None:
        row = _bare(line)
        return ("list", row, 1) if len(row) < _LONGEST and _ROW.match(row) else None

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterator[Call]:
        if not options.dtype:
            self._notes[ASSUMED_DTYPE] = None
        sizes = [int(word) for word in _SPLIT.split(part.decode().strip(" \t,;\r")) if word]
        names: Sequence[str] = _GEMM_SIZES
        if len(sizes) == 4:
            names = options.key.lower().split(",")
            if sorted(names) != ["batch", *sorted(_GEMM_SIZES)]:
                raise BadLine(_FOUR)
        named = dict(zip(names, sizes, strict=True))
        problem = _row_major(named, dtype=options.list_dtype)
        yield Call(problem=problem, blas=blas.fields_of(problem))


@dataclass(frozen=True, slots=True)
class _Header:
    """The names in a header, as written and in lower case with underscores."""

    written: tuple[str, ...]
    names: tuple[str, ...]
    separator: str

    @classmethod
    def of(cls, line: bytes) -> _Header:
        written, separator = header(line)
        if not separator and not all(name.isidentifier() for name in written):
            written = []  # a sentence, not a header
        names = (re.sub(r"[\s.-]+", "_", name.lower()) for name in written)
        return cls(tuple(written), tuple(names), separator)

    def has(self, *names: str) -> bool:
        return set(names) <= set(self.names)

    def fields(self, field_of: Names) -> list[str]:
        """Return the field of each column, or "". A column that occurs twice has its field twice,
        which the table refuses."""
        fields = [""] * len(self.names)
        for field, names in field_of.items():
            name = next((name for name in names if name in self.names), None)
            for at, column in enumerate(self.names):
                if column == name and not fields[at]:
                    fields[at] = field
        return fields


class _Shapes(Table):
    """A reader of rows under a header with some known columns. Others are named in a note."""

    def __init__(self, top: _Header, names: Names) -> None:
        fields = top.fields(names)
        super().__init__(fields, {name for name in fields if name}, top.separator)
        pairs = zip(top.written, fields, strict=True)
        self.unread = [name for name, field in pairs if name and not field]
        self._assumes_dtype = self._assumes_f8 = False

    def note_dtype(self, cells: Fields, options: LogOptions) -> None:
        """Note if a row has no dtype, and none is given, or one that depends on the GPU."""
        texts = [cells.text(name) for name in _TYPED]
        typed = any(not _is_open(text) and not _is_letter(text) for text in texts)
        self._assumes_dtype |= not typed and not options.dtype
        is_open = any(map(blas.is_open_f8, (*texts, options.dtype)))
        self._assumes_f8 |= is_open and not options.arch

    def notes(self) -> tuple[str, ...]:
        notes = [ASSUMED_DTYPE] if self._assumes_dtype else []
        return (*notes, *([ASSUMED_F8] if self._assumes_f8 else []), *super().notes())


class _Keys(_Shapes):
    """A reader of rows of a workload file."""

    def notes(self) -> tuple[str, ...]:
        return ()

    def row(self, cells: Fields, options: LogOptions) -> Iterator[Call]:
        yield Call(
            problem=ops.parse(cells["problem"]),
            count=_count(cells),
            blas=FrozenDict({name: cells[name] for name in BLAS_FIELDS if cells.get(name)}),
            lost=tuple(cells.text("lost").split()),
        )


def _is_open(text: str) -> bool:
    """Return whether a cell has no value."""
    return text.lower() in _ANY


def _dtype(cells: Mapping[str, str], name: str, options: LogOptions) -> str:
    """Return the dtype in a cell; the given one if the cell has none."""
    text = cells.get(name, "")
    if _is_open(text):
        text = options.list_dtype
    if text.endswith("_r"):
        return blas.dtype({name: text}, name, options.arch)
    return blas.dtype_named(text, options.arch)


def _dtypes(cells: Fields, options: LogOptions, *names: str) -> dict[str, str]:
    """Return the dtypes in the cells that are not empty."""
    return {n: _dtype(cells, n, options) for n in names if not _is_open(cells.text(n))}


def _sizes(cells: Fields, *names: str) -> dict[str, int]:
    """Return the sizes in the cells that are not empty."""
    return {name: cells.whole(name) for name in names if cells.get(name)}


def _count(cells: Fields) -> int:
    count = cells.whole("count", 1)
    if not count:
        raise BadLine("count=0 is not possible")
    return count


def _refuse_backward(cells: Fields) -> None:
    op = cells.text("op")
    if _BACKWARD.search(op):
        raise BadLine(f"is a backward pass ({op[:40]}), which no op computes")


def _gemm_table(top: _Header) -> _Gemms | None:
    """Return the reader of the rows under this header, if they are GEMMs; else None."""
    # With a column a, the column b belongs to operand B; without, it is the batch.
    field_of = dict(_GEMM)
    field_of["b"] = (*field_of["b"], "b") if top.has("a") else field_of["b"]
    field_of["batch"] = _BATCH if top.has("a") else (*_BATCH, "b")
    if top.has("a") or any(name in top.names for names in _LETTERS.values() for name in names):
        field_of |= dict(_LETTERS) | {name: (name.lower(),) for name in _OF_BLAS}
    return _Gemms(top, field_of) if set(_GEMM_SIZES) <= set(top.fields(field_of)) else None


class _Gemms(_Shapes):
    def __init__(self, top: _Header, names: Names) -> None:
        super().__init__(top, names)
        # Libraries that write these two columns write column-major sizes.
        self._of_library = top.has("a_type", "compute_type")
        self._by_columns = False

    def notes(self) -> tuple[str, ...]:
        noted = self._by_columns and not self._of_library
        return (*((_BY_COLUMNS,) if noted else ()), *super().notes())

    def row(self, cells: Fields, options: LogOptions) -> Iterator[Call]:
        count = _count(cells)
        self.note_dtype(cells, options)
        if letters := _letters(cells):
            self._by_columns = True
            call = _column_major(cells, letters, options)
            yield Call(problem=call.problem, count=count, blas=call.blas, lost=call.lost)
            return
        values: dict[str, str | float | bool] = {
            name: cells[name].lower() for name in ("ta", "tb") if cells.get(name)
        }
        values |= {name: blas.real(cells, name) for name in ("alpha", "beta") if cells.get(name)}
        values |= _types(cells, options) | {"bias": cells.flag("bias")}
        sizes = {name: cells.whole(name) for name in _GEMM_SIZES} | _sizes(cells, "batch")
        problem = _row_major(sizes, **values)
        yield Call(problem=problem, count=count, blas=blas.fields_of(problem))


def _row_major(sizes: Mapping[str, int], **values: str | float | bool) -> Problem:
    """Return a row-major GEMM; by default with weights stored N×K, as in a layer."""
    if sizes.get("batch", 1) < 1:
        raise BadLine(f"batch={sizes['batch']} computes nothing")
    batched = sizes.get("batch", 1) > 1
    kept = {name: size for name, size in sizes.items() if batched or name != "batch"}
    op = ops.registry.get("batched_gemm" if batched else "gemm")
    return op.problem(**kept, **({"tb": "t"} | values))


def _letters(cells: Fields) -> dict[str, str]:
    """Return transA and transB; empty if the row is not a BLAS call."""
    text = cells.text("layout")
    if not _is_open(text):
        if not _TWO_LETTERS.match(text):
            raise BadLine(f"layout={text[:12]} is not one of NN, NT, TN, TT")
        return {"transA": text[0].upper(), "transB": text[1].upper()}
    if "transA" in cells or "transB" in cells:
        letters = {name: cells.text(name) for name in ("transA", "transB")}
        return {name: _LETTER.get(word.lower(), word) for name, word in letters.items()}
    if _is_letter(cells.text("a")) and _is_letter(cells.text("b")):
        return {"transA": cells["a"].upper(), "transB": cells["b"].upper()}
    return {}


def _is_letter(text: str) -> bool:
    return text.upper() in ("N", "T", "C")


def _column_major(cells: Fields, letters: Mapping[str, str], options: LogOptions) -> Call:
    types = _types(cells, options)
    # The operands of the row-major problem are those of BLAS in swapped order.
    swapped = {"a": types["b"], "b": types["a"]}
    usual = ops.registry.get("gemm").problem(m=1, n=1, k=1, **swapped).dtypes
    out = types.get("c", usual["c"])
    fields = {name: cells[name] for name in _OF_BLAS if cells.get(name)}
    fields |= {name: cells.text(name) for name in (*_GEMM_SIZES, "alpha", "beta")}
    fields |= letters
    fields["batch_count"] = cells.text("batch")
    if cells.flag("bias"):
        fields["bias_vector"] = "1"
    tokens = {"a_type": types["a"], "b_type": types["b"], "c_type": out, "d_type": out}
    tokens["compute_type"] = types.get("acc", usual["acc"])
    fields |= {name: blas.token(kind) for name, kind in tokens.items()}
    # Type names of the library are kept: f8_r is another type on another device.
    written = {"a_type": "a", "b_type": "b", "c_type": "c", "d_type": "d", "compute_type": "acc"}
    fields |= {
        name: cells[field] for name, field in written.items() if cells.text(field).endswith("_r")
    }
    return blas.call({name: text for name, text in fields.items() if text}, options.arch)


def _types(cells: Fields, options: LogOptions) -> dict[str, str]:
    """Return the dtypes of a and b, and those of c and acc if there are columns for them."""
    lettered = _is_letter(cells.text("a"))
    named = {field: "" if lettered and field in "ab" else cells.text(field) for field in "abcd"}
    # If only one operand has a type, the other has the same.
    named["a"] = named["a"] or named["b"] or cells.text("dtype")
    named["b"] = named["b"] or named["a"]
    named["c"] = named["d"] or named["c"]
    if _is_open(named["a"]) and not _is_open(named["c"]) and not options.dtype:
        raise BadLine(OUTPUT_ALONE)
    types = {name: _dtype(named, name, options) for name in "ab"}
    types |= _dtypes(Fields(named), options, "c")
    compute = cells.text("acc")
    if compute.endswith("_r"):
        return types | {"acc": blas.accumulator(compute)}
    return types | _dtypes(cells, options, "acc")


def _layer_table(top: _Header) -> _Shapes | None:
    """Return the reader of the rows under this header, if they are attention or convolutions."""
    if top.has(*_FOLDED.values()):
        return _Attention(top, _FOLDED_NAMES)
    if top.has(*_SUITE.values()) and not top.has("r") and not top.has("k"):
        return _Convolutions(top, _SUITE_NAMES, padded=True)
    fields = set(top.fields(_CONV))
    has_image = {"h", "w"} <= fields or {"h_out", "w_out"} <= fields
    if {"n", "c", "k", "r", "s"} <= fields and has_image:
        return _Convolutions(top, _CONV)
    fields = set(top.fields(_ATTENTION))
    return _Attention(top, _ATTENTION) if {"heads_q", "seq_q", "dim_qk"} <= fields else None


class _Attention(_Shapes):
    def row(self, cells: Fields, options: LogOptions) -> Iterator[Call]:
        count = _count(cells)
        self.note_dtype(cells, options)
        _refuse_backward(cells)
        sizes = {name: cells.whole(name) for name in ("heads_q", "seq_q", "dim_qk")}
        sizes |= {"seq_kv": sizes["seq_q"]}
        sizes |= _sizes(cells, "batch", "heads_kv", "seq_kv", "dim_v")
        dtypes = _dtypes(cells, options, "kv", "o")
        layout = cells.text("layout").lower()
        if not _is_open(layout):
            dtypes["layout"] = layout
        problem = ops.registry.get("attention").problem(
            **sizes, **dtypes, dtype=_dtype(cells, "dtype", options), causal=cells.flag("causal")
        )
        yield Call(problem=problem, count=count)


class _Convolutions(_Shapes):
    """A reader of convolutions. `padded`: inputs have the padded size out · stride + filter - 1."""

    def __init__(self, top: _Header, names: Names, *, padded: bool = False) -> None:
        super().__init__(top, names)
        self._padded = padded

    def row(self, cells: Fields, options: LogOptions) -> Iterator[Call]:
        count = _count(cells)
        self.note_dtype(cells, options)
        _refuse_backward(cells)
        sizes = {name: cells.whole(name) for name in ("n", "c", "k", "r", "s")}
        for short, default in (("stride", 1), ("pad", 0), ("dilation", 1)):
            pair = cells.whole(short, default)
            sizes |= {f"{short}_h": pair, f"{short}_w": pair}
            sizes |= _sizes(cells, f"{short}_h", f"{short}_w")
        sizes |= _sizes(cells, "groups")
        for side, taps in (("h", "r"), ("w", "s")):
            sizes[side] = self._input(cells, sizes, side, taps)
        named = _IMAGES.search(cells.text("name").lower())
        layouts, lost = _layout(cells.text("layout") or (named[0] if named else ""))
        layouts |= _dtypes(cells, options, "y", "acc")
        problem = ops.registry.get("conv").problem(
            **sizes, **layouts, dtype=_dtype(cells, "dtype", options)
        )
        computed = output_size(problem)
        written = cells.whole("h_out", computed[0]), cells.whole("w_out", computed[1])
        if written != computed:
            raise BadLine(f"has the output {written}, computed is {computed}")
        yield Call(problem=problem, count=count, lost=lost)

    def _input(self, cells: Fields, sizes: dict[str, int], side: str, taps: str) -> int:
        """Return the height or width of the input: from the row, or computed from the output."""
        if cells.get(side):
            return cells.whole(side)
        out, step = cells.whole(f"{side}_out"), sizes[f"stride_{side}"]
        if self._padded:
            return out * step + sizes[taps] - 1
        reach = sizes[f"dilation_{side}"] * (sizes[taps] - 1) + 1
        return (out - 1) * step + reach - 2 * sizes[f"pad_{side}"]


def _layout(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the layout of images, and `lost`: "layout" if that of filters is not supported."""
    if _is_open(text):
        return {}, ()
    layout = _IMAGES.search(text.lower())
    if layout is None:
        raise BadLine(f"layout={text[:24]} is not one of {', '.join(_FILTERS)}")
    images, filters = layout.groups()
    lost = () if filters is None or filters in _FILTERS[images] else ("layout",)
    return {"layout": images}, lost


readers = (Shapes(),)
