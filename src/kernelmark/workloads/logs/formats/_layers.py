"""Tables of attention and of convolutions, and tables of problem keys."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelmark import ops
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.ops.conv import output_size
from kernelmark.workloads.logs.base import BadLine, Given
from kernelmark.workloads.logs.formats import _columns
from kernelmark.workloads.logs.formats._columns import COUNT, DTYPE, Cells, Header, Names
from kernelmark.workloads.logs.table import whole
from kernelmark.workloads.workload import BLAS_FIELDS, Call

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
    **DTYPE,
    "kv": ("kv_dtype", "kv"),
    "o": ("out_dtype", "output_dtype", "o_dtype", "o"),
    "causal": ("causal", "is_causal"),
    "layout": ("layout",),
    **COUNT,
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
    **DTYPE,
    "y": ("out_dtype", "output_dtype", "output_type"),
    "acc": ("acc_dtype", "acc"),
    "layout": ("layout",),
    **COUNT,
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
_LAYOUT = re.compile(r"(nchw|nhwc)(?:_([a-z]{4})(?![a-z]))?")
# The usual layouts of filters for each layout of images, in the letters of several libraries.
_FILTERS = {
    "nchw": ("kcrs", "fchw", "oihw", "kcyx"),
    "nhwc": ("krsc", "fhwc", "ohwi", "kyxc"),
}


def keys(top: Header) -> _columns.ShapeTable | None:
    """Return the reader of the rows under this header, if it is that of a workload file."""
    known = top.separator == "," and top.has("problem", "count")
    return Keys(top, top.columns(_KEYS)) if known else None


def table(top: Header) -> _columns.ShapeTable | None:
    """Return the reader of the rows under this header, if they are attention or convolutions."""
    if top.has(*_FOLDED.values()):
        return Attention(top, top.columns(_FOLDED_NAMES))
    if top.has(*_SUITE.values()) and not top.has("r") and not top.has("k"):
        return Convolutions(top, top.columns(_SUITE_NAMES), padded=True)
    columns = top.columns(_CONV)
    found = set(columns)
    if {"n", "c", "k", "r", "s"} <= found and ({"h", "w"} <= found or {"h_out", "w_out"} <= found):
        return Convolutions(top, columns)
    columns = top.columns(_ATTENTION)
    known = {"heads_q", "seq_q", "dim_qk"} <= set(columns)
    return Attention(top, columns) if known else None


class Attention(_columns.ShapeTable):
    def row(self, cells: Cells, given: Given) -> Iterator[Call]:
        times = _columns.count(cells)
        _columns.forward(cells)
        sizes = {name: whole(cells, name) for name in ("heads_q", "seq_q", "dim_qk")}
        sizes |= {"seq_kv": sizes["seq_q"]}
        sizes |= _columns.sizes(cells, "batch", "heads_kv", "seq_kv", "dim_v")
        words = {
            name: _columns.dtype(cells, name, given)
            for name in ("kv", "o")
            if not _columns.is_open(cells.get(name, ""))
        }
        layout = cells.get("layout", "").lower()
        if not _columns.is_open(layout):
            words["layout"] = layout
        problem = ops.registry.get("attention").problem(
            **sizes,
            **words,
            dtype=_columns.dtype(cells, "dtype", given),
            causal=_columns.flag(cells, "causal"),
        )
        yield Call(problem=problem, count=times)


class Convolutions(_columns.ShapeTable):
    """A reader of convolutions. `padded`: inputs have the padded size out · stride + filter - 1."""

    def __init__(self, top: Header, columns: list[str], *, padded: bool = False) -> None:
        super().__init__(top, columns)
        self._padded = padded

    def row(self, cells: Cells, given: Given) -> Iterator[Call]:
        times = _columns.count(cells)
        _columns.forward(cells)
        sizes = {name: whole(cells, name) for name in ("n", "c", "k", "r", "s")}
        for short, default in (("stride", 1), ("pad", 0), ("dilation", 1)):
            both = _columns.sizes(cells, short).get(short, default)
            sizes |= {f"{short}_h": both, f"{short}_w": both}
            sizes |= _columns.sizes(cells, f"{short}_h", f"{short}_w")
        sizes |= _columns.sizes(cells, "groups")
        for side, taps in (("h", "r"), ("w", "s")):
            sizes[side] = self._input(cells, sizes, side, taps)
        named = _LAYOUT.search(cells.get("name", "").lower())
        words, lost = _layout(cells.get("layout", "") or (named[0] if named else ""))
        for name in ("y", "acc"):
            if not _columns.is_open(cells.get(name, "")):
                words[name] = _columns.dtype(cells, name, given)
        problem = ops.registry.get("conv").problem(
            **sizes, **words, dtype=_columns.dtype(cells, "dtype", given)
        )
        said = _columns.sizes(cells, "h_out", "w_out")
        out = output_size(problem)
        given_out = said.get("h_out", out[0]), said.get("w_out", out[1])
        if given_out != out:
            raise BadLine(Reason("call-output", given=given_out, computed=out))
        yield Call(problem=problem, count=times, lost=lost)

    def _input(self, cells: Cells, sizes: dict[str, int], side: str, taps: str) -> int:
        """Return the height or width of the input: from the row, or computed from the output."""
        if cells.get(side):
            return whole(cells, side)
        out, step = whole(cells, f"{side}_out"), sizes[f"stride_{side}"]
        if self._padded:
            return out * step + sizes[taps] - 1
        reach = sizes[f"dilation_{side}"] * (sizes[taps] - 1) + 1
        return (out - 1) * step + reach - 2 * sizes[f"pad_{side}"]


def _layout(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the layout of images, and `lost`: "layout" if that of filters is not supported."""
    if _columns.is_open(text):
        return {}, ()
    found = _LAYOUT.search(text.lower())
    if found is None:
        known = tuple(_FILTERS)
        raise BadLine(Reason("cell-not-one-of", name="layout", given=text[:24], known=known))
    images, filters = found.groups()
    lost = () if filters is None or filters in _FILTERS[images] else ("layout",)
    return {"layout": images}, lost


class Keys(_columns.ShapeTable):
    """A reader of rows of a workload file."""

    def notes(self) -> tuple[str, ...]:
        return ()

    def row(self, cells: Cells, given: Given) -> Iterator[Call]:
        yield Call(
            problem=ops.parse(cells["problem"]),
            count=_columns.count(cells),
            blas=FrozenDict({name: cells[name] for name in BLAS_FIELDS if cells.get(name)}),
            lost=tuple(cells.get("lost", "").split()),
        )
