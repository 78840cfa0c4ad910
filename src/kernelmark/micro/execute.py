"""Execute one microbenchmark on one rig, from setup to a judged result."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kernelmark.core import codec
from kernelmark.core.errors import CaseError, CompileError, OutOfMemory, Unsupported, UsageError
from kernelmark.core.metric import WIDE, Metric, PointColumn, impossible, with_spreads
from kernelmark.core.micro import micro_case
from kernelmark.core.reason import Reason, failed_checks
from kernelmark.core.result import KernelInfo, Result, Status
from kernelmark.core.units import counted
from kernelmark.core.wording import join_and
from kernelmark.devices import registry as devices
from kernelmark.micro import registry
from kernelmark.micro.base import Microbenchmark, MicroRun, Mode
from kernelmark.micro.rig import Rig
from kernelmark.runners.protocol import Message
from kernelmark.runners.targets import find
from kernelmark.runners.worker import Server


def open_rig(device: str, threads: int = 0) -> Rig:
    """Open the device of this name for microbenchmarks."""
    # A module that is loaded lazily at its first launch would wait for the gate that blocks the
    # launch.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    kind, info = find(device)
    if info.kind == "cpu":
        from kernelmark.devices.cpu import CpuDevice
        from kernelmark.micro._cpu_rig import CpuRig

        return CpuRig(CpuDevice(threads))
    if info.kind in ("cuda", "hip"):
        from kernelmark.devices._gpu import GpuDevice
        from kernelmark.micro._gpu_rig import GpuRig

        opened = kind.open(info.index)
        assert isinstance(opened, GpuDevice)
        return GpuRig(opened)
    known = ", ".join(name for name in devices.names() if name != "fake")
    raise UsageError(f"there are no microbenchmarks for {device}", hint=f"they run on: {known}")


def serve(server: Server, request: Message) -> Message:
    """Serve a request of `session` in a worker: run one microbenchmark. The rig stays open."""
    if not isinstance(server.opened, Rig):
        rig = open_rig(server.device, server.threads)
        rig.warm_up()
        server.opened = rig
    server.send_phase("benchmark")
    benchmark = registry.get(str(request["name"]))
    result = execute(benchmark, server.opened, request["mode"], request["parameters"])
    return {"result": codec.to_document(result)}


def serve_build(server: Server, request: Message) -> Message:
    """Serve a request of `session` in a worker: compile one kernel file into the cache."""
    from kernelmark.micro._gpu_rig import build

    server.send_phase("compile")
    with contextlib.suppress(CompileError):
        return {"fresh": not build(str(request["name"]), server.info.arch).cached}
    return {"fresh": False}


def execute(
    benchmark: Microbenchmark,
    rig: Rig,
    mode: Mode = "quick",
    chosen: Mapping[str, Any] | None = None,
) -> Result:
    """Run a microbenchmark. Any failure becomes the result's status."""
    parameters = benchmark.case_parameters(mode, chosen or {})
    settings = benchmark.settings(mode, chosen or {})
    started, begin = time.time(), time.perf_counter()
    ledger, run = rig.ledger, MicroRun(rig, benchmark.columns)
    compile_s, compilations = ledger.compile_s, ledger.compilations
    ledger.trace.clear()
    status, error = _measure(benchmark, run, settings)
    if run.phase:
        # The points of a benchmark that did not reach its end are no result.
        run.end()
        run.rows, run.metrics, run.notes = [], [], []
    cost = {
        **run.seconds,
        "compile": ledger.compile_s - compile_s,
        "total": time.perf_counter() - begin,
    }
    with contextlib.suppress(CaseError):
        rig.release()
    columns = tuple(column.on(rig.hardware) for column in benchmark.columns)
    metrics = _judged(benchmark, run, columns)
    if status is Status.OK and (reasons := impossible(columns, run.rows, metrics)):
        status, error = Status.WRONG, failed_checks(reasons)
    return Result(
        case=micro_case(benchmark.name, mode, parameters, rig.threads),
        device=rig.info.name,
        arch=rig.info.arch,
        status=status,
        started=started,
        kernel=KernelInfo(resources={"compilations": ledger.compilations - compilations}),
        columns=columns,
        rows=tuple(run.rows),
        metrics=metrics,
        trace=tuple(ledger.trace),
        notes=(*run.notes, *rig.notes, *_unsteady(run.rows)),
        error=Reason.of(error),
        cost=cost,
    )


def _measure(
    benchmark: Microbenchmark, run: MicroRun, settings: Mapping[str, Any]
) -> tuple[Status, str]:
    """Call the benchmark's function; return the status and the error."""
    rig = run.rig
    try:
        if rig.info.kind not in benchmark.kinds:
            kinds = tuple(benchmark.kinds)
            raise Unsupported(
                Reason(
                    f"{benchmark.name} runs on {join_and(kinds)}, not on {rig.info.kind}",
                    "device-unsupported",
                    backend=benchmark.name,
                    kinds=kinds,
                    kind=rig.info.kind,
                )
            )
        reason = rig.no_cycles if benchmark.by_cycles else None
        reason = reason or benchmark.unsupported(rig)
        if reason is not None:
            raise Unsupported(reason)
        rig.look()
        benchmark.measure(run, **settings)
        run.end()
    except (Unsupported, UsageError) as error:
        # A number that exceeds the kernel's parameter type is detected when it is packed.
        return Status.UNSUPPORTED, error.message
    except CompileError as error:
        return Status.COMPILE_ERROR, error.message
    except OutOfMemory as error:
        return Status.OUT_OF_MEMORY, error.message
    except MemoryError as error:
        return Status.OUT_OF_MEMORY, Reason(
            "the host is out of memory" + (f": {error}" if str(error) else "")
        )
    except ZeroDivisionError:
        # No setting used as a divisor is 0, so a clock did not advance.
        return Status.WRONG, Reason("the clock did not advance during a sample", "clock-stalled")
    except Exception as error:
        return Status.RUNTIME_ERROR, f"{type(error).__name__}: {error}"
    if run.wrong:
        return Status.WRONG, run.wrong
    return (Status.OK, "") if run.rows else (Status.RUNTIME_ERROR, "nothing was measured")


def _judged(
    benchmark: Microbenchmark, run: MicroRun, columns: Sequence[PointColumn]
) -> tuple[Metric, ...]:
    """Return the metrics with their spread, steadiness and host dependence."""
    return tuple(
        dataclasses.replace(
            metric,
            # A CPU's rounds are repeated until two agree; a GPU's launches are not.
            steady=metric.steady
            and not (run.rig.exclusive and metric.roof and (metric.spread or 0.0) > WIDE),
            host_paced=metric.name in benchmark.host_paced,
        )
        for metric in with_spreads(run.metrics, columns, run.rows)
    )


def _unsteady(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return a note if launches of the same work took very different times."""
    spreads = [spread for row in rows if isinstance(spread := row.get("spread"), float)]
    wide = [spread for spread in spreads if spread > WIDE]
    if not wide:
        return []
    summary = f"{len(wide)} of {counted(len(spreads), 'point')} spread by over {100 * WIDE:.0f} %"
    where = "--points shows the spread of each; a metric with such a spread is `disturbed`"
    return [f"{summary}: did other work run? {where}"]
