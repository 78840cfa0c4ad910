"""Search strategies, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.tune.strategies.base import Strategy

registry: Registry[Strategy] = Registry("kernelmark.tune.strategies", "strategy")
