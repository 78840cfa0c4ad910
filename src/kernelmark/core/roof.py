"""Roof: a measured limit of a device, that percentages are computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """A limit: `flops` of a dtype on a unit (vector, matrix), `bytes` of a memory level, or
    `launches` of small kernels.

    `value` is per second; `how` names what was run to find it; `threads` is the CPU's.
    """

    device: str
    arch: str
    kind: Literal["flops", "bytes", "launches"]
    name: str  # f32, bf16, … or dram, l2, … or plain, graph
    value: float
    how: str
    measured: float  # seconds since the epoch, UTC
    unit: str = ""
    threads: int = 0
