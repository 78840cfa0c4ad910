"""Fields of a logged call; a grouped GEMM repeats its sizes for each member."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kernelmark.core.reason import Reason
from kernelmark.workloads.logs.base import BadLine

_GROUPED = "grouped_gemm"
_OFF = ("0", "false")
# Fields that differ between the members of a group; they share all others.
_OF_MEMBERS = frozenset(
    (
        *("m", "n", "k", "lda", "ldb", "ldc", "ldd", "lde", "batch_count"),
        *("stride_a", "stride_b", "stride_c", "stride_d", "stride_e", "M", "N", "K"),
    )
)


def calls_of(pairs: Iterable[tuple[str, str]]) -> Iterator[dict[str, str]]:
    """Yield the fields of each call in a list of (name, value) pairs: one call, or the members of a
    group."""
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        given.setdefault(name, []).append(value)
    grouped = given.get(_GROUPED, ["0"])[0].lower() not in _OFF
    shared = {name: values[0] for name, values in given.items()}
    repeated = {name: values for name, values in given.items() if len(values) > 1}
    if not grouped:
        _same(repeated)
        yield shared
        return
    _same({name: values for name, values in repeated.items() if name not in _OF_MEMBERS})
    members = max(len(given.get("m", ())), len(given.get("M", ())), 1)
    for index in range(members):
        own = {
            name: _one(name, values, index, members)
            for name, values in repeated.items()
            if name in _OF_MEMBERS
        }
        yield shared | own


def _same(repeated: dict[str, list[str]]) -> None:
    for name, values in repeated.items():
        if len(set(values)) > 1:
            first, second = (value[:24] for value in values[:2])
            raise BadLine(Reason("call-twice", name=name, first=first, second=second))


def _one(name: str, values: Sequence[str], index: int, members: int) -> str:
    if len(values) != members:
        raise BadLine(Reason("group-members", name=name, count=len(values), members=members))
    return values[index]
