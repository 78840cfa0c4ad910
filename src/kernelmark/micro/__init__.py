"""Microbenchmarks: measured peaks of a device, and the roofs that percentages are relative to.

    import kernelmark as km

    km.micro.cache(device="cuda:0").metric("l1_bytes_per_s")

Every benchmark is a function of this module, with parameters `device`, `mode` (brief, quick, full),
`threads` (of a CPU) and those of the benchmark. It runs in a separate process and returns a
`Result` with metrics.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernelmark.core.errors import UsageError
from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.core.result import Result
    from kernelmark.micro.base import Microbenchmark, Mode

# Benchmarks in the file of another one, with which they share kernels and code.
_SHARED_FILES = {
    "instructions": "incore",
    "l2_cache": "cache",
    "loaded_latency": "latency",
    "peer": "memcpy",
    "roofline": "matrix",
    "shared": "cache",
    "strides": "cache",
    "tlb": "latency",
    "um_stream": "stream",
    "vector": "matrix",
}


class _Benchmarks(Registry["Microbenchmark"]):
    """Microbenchmarks by name: each is an attribute with its own name in a file of the package."""

    @cached_property
    def _files(self) -> frozenset[str]:
        return super()._files | _SHARED_FILES.keys()

    def _load(self, name: str) -> Microbenchmark:
        if name not in self._files:
            return super()._load(name)  # of another distribution, or unknown
        file = f"{self.package}.{_SHARED_FILES.get(name, name)}"
        benchmark: Microbenchmark | None = getattr(importlib.import_module(file), name, None)
        if benchmark is None:
            raise UsageError(
                f"{file} has no microbenchmark {name!r}",
                hint="a file that is not one of them begins with an underscore",
            )
        return benchmark


registry = _Benchmarks("kernelmark.micro.benchmarks", "benchmark")


def __getattr__(name: str) -> Callable[..., Result]:
    if name.startswith("_") or name not in registry:
        raise AttributeError(f"module 'kernelmark.micro' has no attribute {name!r}")
    benchmark = registry.get(name)

    def measure(
        *, device: str = "cpu", mode: Mode = "quick", threads: int = 0, **parameters: Any
    ) -> Result:
        from kernelmark.micro.session import run

        (result,) = run([name], device=device, mode=mode, threads=threads, parameters=parameters)
        return result

    measure.__name__ = name
    measure.__doc__ = benchmark.summary
    return measure


def __dir__() -> list[str]:
    return ["registry", *registry.names()]
