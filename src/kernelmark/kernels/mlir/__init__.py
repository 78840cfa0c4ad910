"""MLIR of the ops, generated per problem. One file per op; each defines `source`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.kernels.mlir.base import Source

registry: Registry[Source] = Registry("kernelmark.kernels.mlir", "source")
