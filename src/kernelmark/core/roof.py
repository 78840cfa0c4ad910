"""Roof: a measured limit of a device, which percentages are relative to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kernelmark.core.immutable import OPTIONAL

Kind = Literal["flops", "bytes", "launches"]
# Suffixes of `how` in documents of versions without the fields `steady` and `limit`.
_WAS_UNSTEADY = ", not steady: other work ran"
_WAS_STAND_IN = " (no C compiler: the limit may be higher)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """A roofline ceiling: `flops` of a dtype on a unit (vector, matrix), `bytes` of a memory level,
    or `launches` of small kernels.

    `value` is per second; `how` describes how it was measured; `threads` are CPU threads. `steady`
    is false if repetitions did not agree, because other work ran. `limit` is false if a program
    that may be slower than the hardware was timed instead of the microbenchmark. `model` is the
    device's model; old documents do not have it.
    """

    device: str
    arch: str
    kind: Kind
    name: str  # f32, bf16, … or dram, l2, … or plain, graph
    value: float
    how: str
    measured: float  # seconds since the epoch, UTC
    unit: str = ""
    threads: int = 0
    model: str = field(default="", metadata={OPTIONAL: True})
    steady: bool = field(default=True, metadata={OPTIONAL: True})
    limit: bool = field(default=True, metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        for ending, name in ((_WAS_UNSTEADY, "steady"), (_WAS_STAND_IN, "limit")):
            if self.how.endswith(ending):
                object.__setattr__(self, "how", self.how.removesuffix(ending))
                object.__setattr__(self, name, False)

    @property
    def how_text(self) -> str:
        """`how`, followed by what makes the value doubtful."""
        doubts = [
            *([] if self.steady else ["not steady: other work ran"]),
            *([] if self.limit else ["the limit may be higher: there is no C++ compiler"]),
        ]
        return ", ".join([self.how, *doubts])
