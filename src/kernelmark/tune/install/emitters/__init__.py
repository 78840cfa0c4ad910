"""Emitters: winners in the native formats of libraries, one module per format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.tune.install.emitters.base import Emitter

registry: Registry[Emitter] = Registry("kernelmark.tune.install.emitters", "emitter")
