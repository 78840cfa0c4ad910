"""kernelmark measures, explains, compares and tunes GPU and CPU kernels.

    import kernelmark as km
    km.run("gemm", m=[256, 512], n=512, k=512, dtype="f32")

Everything is loaded when it is first used: importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from kernelmark import backends, devices, micro, ops
    from kernelmark.api import tuning
    from kernelmark.api.bench import bench, compare_kernels
    from kernelmark.api.do_bench import do_bench, perf_report
    from kernelmark.api.judge import judge
    from kernelmark.api.plot import plot
    from kernelmark.api.results import Results, load
    from kernelmark.api.run import run, suite, suites
    from kernelmark.core.errors import KernelmarkError
    from kernelmark.core.problem import Problem
    from kernelmark.core.result import Case, Measurement, Result, Run, Status
    from kernelmark.core.timing import Timing
    from kernelmark.ops import parse
    from kernelmark.stores import open_store

    __version__: str

__all__ = [
    "Case",
    "KernelmarkError",
    "Measurement",
    "Problem",
    "Result",
    "Results",
    "Run",
    "Status",
    "Timing",
    "__version__",
    "backends",
    "bench",
    "compare_kernels",
    "devices",
    "do_bench",
    "judge",
    "load",
    "micro",
    "open_store",
    "ops",
    "parse",
    "perf_report",
    "plot",
    "run",
    "suite",
    "suites",
    "tuning",
]

_HOMES = {
    "Case": "kernelmark.core.result",
    "KernelmarkError": "kernelmark.core.errors",
    "Measurement": "kernelmark.core.result",
    "Problem": "kernelmark.core.problem",
    "Result": "kernelmark.core.result",
    "Results": "kernelmark.api.results",
    "Run": "kernelmark.core.result",
    "Status": "kernelmark.core.result",
    "Timing": "kernelmark.core.timing",
    "bench": "kernelmark.api.bench",
    "compare_kernels": "kernelmark.api.bench",
    "do_bench": "kernelmark.api.do_bench",
    "judge": "kernelmark.api.judge",
    "load": "kernelmark.api.results",
    "load_ipython_extension": "kernelmark.notebook",
    "open_store": "kernelmark.stores",
    "parse": "kernelmark.ops",
    "perf_report": "kernelmark.api.do_bench",
    "plot": "kernelmark.api.plot",
    "run": "kernelmark.api.run",
    "suite": "kernelmark.api.run",
    "suites": "kernelmark.api.run",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value: object = getattr(_load(_HOMES[name]), name)
    elif name in ("backends", "devices", "micro", "ops"):
        value = _load(f"kernelmark.{name}")
    elif name == "tuning":
        value = _load("kernelmark.api.tuning")
    elif name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value = version("kernelmark")
        except PackageNotFoundError:  # run from a source tree or a bundle without metadata
            value = "unknown"
    else:
        raise AttributeError(f"module 'kernelmark' has no attribute {name!r}")
    globals()[name] = value
    return value


def _load(module: str) -> ModuleType:
    from kernelmark.host.processes import existing_objects_frozen

    # A hundred modules make enough objects for a full collection.
    with existing_objects_frozen():
        return importlib.import_module(module)


def __dir__() -> list[str]:
    return __all__
