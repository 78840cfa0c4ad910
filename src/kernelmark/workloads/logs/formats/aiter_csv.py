"""aiter-csv: aiter's tables of GEMMs, untuned and tuned.

Columns differ from operator to operator; M, N and K are always there, and Y = X·Wᵀ with X (M, K)
and W (N, K). Where no column names the dtype, the file's name does (a8w8, a4w4, bf16), or the
kernel's. A table says no counts: each row is one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from kernelmark import ops
from kernelmark.core.frozen import FrozenDict
from kernelmark.workloads.logs import blas, dtypes
from kernelmark.workloads.logs.base import BadLine, Given, LogReader, RowReader
from kernelmark.workloads.logs.table import Table, whole
from kernelmark.workloads.workload import Call

_SIZES = ("M", "N", "K")
# A header with one of these is aiter's; with sizes alone it is anybody's list.
_OWN = frozenset(
    ("cu_num", "q_dtype_w", "scaleAB", "bpreshuffle", "kernelId", "libtype", "outdtype", "gfx")
)
_WANTED = (*_SIZES, "B", "bias", "dtype", "outdtype", "q_dtype_w", "scaleAB", "bpreshuffle", "gfx")
_FAMILIES = ("a8w8", "a4w4", "bf16")


class AiterCsv(LogReader):
    name = "aiter-csv"
    summary = "aiter's CSV tables of GEMMs, untuned and tuned"

    def table(self, line: bytes, place: str) -> RowReader | None:
        columns = line.strip().decode("utf-8", "replace").split(",")
        if not _OWN & set(columns) or not set(_SIZES) <= set(columns):
            return None
        return _Rows(columns, place)


class _Rows(Table):
    def __init__(self, columns: Sequence[str], place: str) -> None:
        typed = bool({"dtype", "q_dtype_w"} & set(columns))
        super().__init__(columns, _WANTED if typed else (*_WANTED, "kernelName"))
        self._place = PurePath(place).name.lower()

    def row(self, cells: Mapping[str, str], given: Given) -> Iterator[Call]:
        arch = cells.get("gfx") or given.arch
        lost = []
        if _true(cells, "scaleAB"):
            lost += ["scaleA", "scaleB"]
        if _true(cells, "bpreshuffle"):
            lost.append("bpreshuffle")
        sizes = {name.lower(): whole(cells, name) for name in _SIZES}
        batch = whole(cells, "B") if cells.get("B") else 1
        name = cells.get("q_dtype_w") or cells.get("dtype") or self._family(cells, given)
        if name in ("a4w4", "a8w8") or dtypes.named(name, arch) in ("i8", "f4e2m1"):
            yield _quantised(name, batch, sizes, cells, lost)
            return
        dtype = dtypes.named(name, arch)
        if dtype.startswith("f8"):
            lost += ["scaleA", "scaleB"]
        problem = ops.registry.get("batched_gemm" if batch > 1 else "gemm").problem(
            **({"batch": batch} if batch > 1 else {}),
            **sizes,
            dtype=dtype,
            **({"c": dtypes.named(cells["outdtype"], arch)} if cells.get("outdtype") else {}),
            tb="t",
            bias=_true(cells, "bias"),
        )
        fields = dict(blas.fields_of(problem))
        if "scaleA" in lost:
            fields |= {"scaleA": "1", "scaleB": "1"}
        kept = tuple(dict.fromkeys(lost))
        yield Call(problem=problem, blas=FrozenDict(fields), lost=kept)

    def _family(self, cells: Mapping[str, str], given: Given) -> str:
        for text in (self._place, cells.get("kernelName", "").lower()):
            for family in _FAMILIES:
                if family in text:
                    return family if family != "a8w8" or "blockscale" not in text else "fp8"
        return given.dtype


def _quantised(
    name: str, batch: int, sizes: Mapping[str, int], cells: Mapping[str, str], lost: list[str]
) -> Call:
    """Operands in few bits with scales that the operation has itself."""
    four_bits = name == "a4w4" or (name != "a8w8" and dtypes.named(name) == "f4e2m1")
    problem = ops.registry.get("batched_gemm_quant").problem(
        batch=batch,
        **sizes,
        scheme="afp4wfp4" if four_bits else "a8w8",
        bias=_true(cells, "bias"),
    )
    return Call(problem=problem, lost=tuple(word for word in lost if not word.startswith("scale")))


def _true(cells: Mapping[str, str], name: str) -> bool:
    text = cells.get(name, "").lower()
    if text not in ("true", "false", "1", "0", ""):
        raise BadLine(f"has {name}={text[:24]}, which is neither True nor False")
    return text in ("true", "1")


reader = AiterCsv()
