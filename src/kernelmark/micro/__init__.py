"""Microbenchmarks: measured peaks of a device, and the roofs that percentages are relative to.

    import kernelmark as km
    km.micro.cache(device="cuda:0").metric("l1_bytes_per_s")

Every benchmark is a function of this module, with parameters `device`, `mode` (brief, quick, full),
`threads` (of a CPU) and those of the benchmark. It runs in a separate process and returns a
`Result` with metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.core.result import Result
    from kernelmark.micro.base import Microbenchmark, Mode

registry: Registry[Microbenchmark[Any, Any]] = Registry("kernelmark.micro.benchmarks", "benchmark")


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
    return sorted({*globals(), *registry.names()})
