"""Conversion of a comparison of variants to a run, for `kmark show`, `compare` and `history`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

from kernelmark.backends.iree.configs import config_text
from kernelmark.core.reason import Reason
from kernelmark.core.result import KernelInfo, ResultSet, Status
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.iree.ab import Outcome, Report
from kernelmark.runners.capture import environment
from kernelmark.workloads.importers import (
    Overrides,
    ResultFile,
    ResultRow,
    build_run,
    problem_of,
)


def result_set(report: Report, label: str = "") -> ResultSet:
    """Return the run: per variant one end-to-end result and one of its kernels. A variant that was
    only compiled has one skipped result, with its resources."""
    device = "cpu" if report.driver == "local-task" else report.driver
    if report.driver in ("cuda", "hip") and not report.not_run:
        device = f"{device}:0"
    here = [] if report.not_run or device == "vulkan" else [device]
    rows = [row for one in report.outcomes for row in _rows(report, one)]
    facts = Overrides(label=label, device=device, arch=report.target, started=time.time())
    file = ResultFile(report.plan.module, facts)
    file.environment = environment(here, ["iree"])
    made = build_run(file, rows, "iree-benchmark-module")
    kernels = {one.variant.name: _kernel(one) for one in report.outcomes}
    results = tuple(
        dataclasses.replace(one, kernel=kernels[str(one.case.config["variant"])])
        for one in made.results
    )
    return dataclasses.replace(made, results=results)


def _rows(report: Report, one: Outcome) -> Iterator[ResultRow]:
    """Yield a row per round, or one row without a time if the variant was not timed."""
    status, error = one.status, Reason.of(one.error)
    if report.not_run and status is Status.OK:
        status, error = Status.SKIPPED, Reason("compiled-not-run", cause=report.not_run)
    for part, times in (("end_to_end", one.end_to_end), ("kernels", one.kernels)):
        if times is None and part == "kernels":
            continue
        words = {"module": report.plan.module.stem, "digest": f"x{report.module_sha256[:8]}"}
        words |= {"function": report.function or "none", "part": part}
        for samples in [block.samples_s for block in times.blocks] if times else [()]:
            yield ResultRow(
                problem=problem_of("iree_module", words),
                backend="iree",
                config={"variant": one.variant.name},
                timing=Timing(cache=Cache.HOT, timer=Timer.LOOP, threads=report.plan.threads),
                samples_s=samples,
                status=status,
                error=error,
            )


def _kernel(one: Outcome) -> KernelInfo:
    if one.built is None:
        return KernelInfo()
    used: dict[str, int] = {}
    for dispatch in one.built.dispatches:
        for name, amount in dispatch.resources.items():
            used[name] = max(used.get(name, 0), amount)
    return KernelInfo(
        name="+".join(dispatch.name for dispatch in one.built.dispatches),
        compile_s=one.built.compile_s,
        binary_hash=one.built.sha256,
        resources=used,
        configs={dispatch.name: config_text(dispatch.config) for dispatch in one.built.dispatches},
    )
