"""Microbenchmarks: what a device can do, and the roofs that percentages are computed from.

import kernelmark as km
km.micro.cache(device="cuda:0").metric("l1_bytes_per_s")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.micro.base import Microbenchmark

registry: Registry[Microbenchmark[Any, Any]] = Registry("kernelmark.micro.benchmarks", "benchmark")
