"""Emitters: winners in the native formats of libraries."""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import TYPE_CHECKING

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.tune.install.emitters.base import Emitter

# The modules that describe several formats, in a dict `emitters`. Any other one is called as its
# format, which is its `emitter`.
_SHARED = {
    **dict.fromkeys(("hipblaslt", "rocblas"), "blas"),
    **dict.fromkeys(("cublaslt", "python"), "own"),
    **dict.fromkeys(("sglang", "sglang_moe", "vllm", "vllm_moe"), "nearest"),
}


class _Formats(Registry["Emitter"]):
    """The formats by name."""

    @cached_property
    def _files(self) -> frozenset[str]:
        modules = super()._files
        return frozenset((modules - {*_SHARED.values()}) | _SHARED.keys())

    def _load(self, name: str) -> Emitter:
        if name not in _SHARED or name not in self._files:
            return super()._load(name)
        module = importlib.import_module(f"{self.package}.{_SHARED[name]}")
        emitter: Emitter = module.emitters[name]
        return emitter


registry: Registry[Emitter] = _Formats("kernelmark.tune.install.emitters", "emitter")
