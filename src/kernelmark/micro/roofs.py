"""Measure roofs: the microbenchmarks that provide them, by kind of device."""

from __future__ import annotations

from kernelmark.core.metric import Roof
from kernelmark.core.micro import benchmark_name
from kernelmark.core.reason import BRIEF, format_reason
from kernelmark.core.result import Result, Status
from kernelmark.core.units import duration_text
from kernelmark.micro.hardware import Sheet
from kernelmark.micro.session import Tell, run

# In the order they run, with parameters. A metric's `roof` says which roof it provides.
_Sources = dict[str, dict[str, str]]
_CPU: _Sources = {"vector": {}, "stream": {"kernels": "read,copy,triad"}}
_GPU_NAMES = ("incore", "matrix", "cache", "l2_cache", "stream", "small_kernels")
_GPU: _Sources = {name: {} for name in _GPU_NAMES}
SOURCES = {"cpu": _CPU, "cuda": _GPU, "hip": _GPU}


def measure(device: str, threads: int, tell: Tell) -> list[Result]:
    """Run the microbenchmarks that provide a device's roofs; report failures."""
    sources = SOURCES[device.partition(":")[0]]
    results: list[Result] = []
    # In one worker: starting another takes half as long as a benchmark on a CPU.
    for result in run(
        list(sources),
        device=device,
        threads=threads,
        mode="brief",
        own_parameters=sources,
        tell=tell,
    ):
        results.append(result)
        name, spent = benchmark_name(result.case.problem), result.cost.get("total", 0.0)
        tell(f"roofs: {len(results)} of {len(sources)}: {name}, {duration_text(spent)}")
        if result.status is not Status.OK:
            # In brief: in full it may have the stacks of a worker that did not answer.
            reason = format_reason(result.error, BRIEF)
            tell(f"{name} gives no roof: {result.status.value}, {reason}")
    return results


def sheet_value(roof: Roof, sheet: Sheet | None) -> float | None:
    """Return the vendor's figure for the same quantity, to be shown alongside."""
    if sheet is None:
        return None
    if roof.kind == "flops":
        return (sheet.matrix if roof.unit == "matrix" else sheet.vector).get(roof.name)
    return sheet.dram if roof.kind == "bytes" and roof.name == "dram" else None
