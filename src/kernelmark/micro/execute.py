"""Execute one microbenchmark on one rig, from setup to a judged result."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernelmark.core import codec
from kernelmark.core.errors import (
    CaseError,
    CompileError,
    OutOfMemory,
    Unsupported,
    UsageError,
)
from kernelmark.core.metric import WIDE, Metric, PointColumn, impossible, with_spreads
from kernelmark.core.micro import micro_case
from kernelmark.core.reason import Reason
from kernelmark.core.result import KernelInfo, Result, Status
from kernelmark.core.units import counted
from kernelmark.devices import registry as devices
from kernelmark.micro import registry
from kernelmark.micro.base import Findings, Microbenchmark, Mode, Settings
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
    raise UsageError(Reason("micro-device", device=device), hint=f"they run on: {known}")


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
    benchmark: Microbenchmark[Any, Any],
    rig: Rig,
    mode: Mode = "quick",
    chosen: Mapping[str, Any] | None = None,
) -> Result:
    """Run a microbenchmark. Any failure becomes the result's status."""
    settings = benchmark.settings(mode, chosen or {})
    return _Execution(benchmark, rig, mode, settings).result()


class _Execution:
    """One execution and its cost so far."""

    def __init__(
        self, benchmark: Microbenchmark[Any, Any], rig: Rig, mode: Mode, settings: Settings
    ) -> None:
        self._benchmark = benchmark
        self._rig = rig
        self._mode = mode
        self._settings = settings
        self._cost: dict[str, float] = {}
        self._started = time.time()

    def result(self) -> Result:
        begin = time.perf_counter()
        ledger = self._rig.ledger
        compile_s, compilations = ledger.compile_s, ledger.compilations
        ledger.trace.clear()
        status, error, findings = self._run_and_catch()
        self._cost["compile"] = ledger.compile_s - compile_s
        self._cost["total"] = time.perf_counter() - begin
        with contextlib.suppress(CaseError):
            self._rig.release()
        return self._build_result(status, error, findings, ledger.compilations - compilations)

    def _run_and_catch(self) -> tuple[Status, str, Findings]:
        try:
            return self._run()
        except (Unsupported, UsageError) as error:
            # A number that exceeds the kernel's parameter type is detected when it is packed.
            return Status.UNSUPPORTED, error.message, Findings()
        except CompileError as error:
            return Status.COMPILE_ERROR, error.message, Findings()
        except OutOfMemory as error:
            return Status.OUT_OF_MEMORY, error.message, Findings()
        except MemoryError as error:
            return Status.OUT_OF_MEMORY, Reason("host-memory", error=str(error)), Findings()
        except ZeroDivisionError:
            # No setting used as a divisor is 0, so a clock did not advance.
            return Status.WRONG, Reason("clock-stalled"), Findings()
        except Exception as error:
            return Status.RUNTIME_ERROR, f"{type(error).__name__}: {error}", Findings()

    def _run(self) -> tuple[Status, str, Findings]:
        benchmark, rig = self._benchmark, self._rig
        if rig.info.kind not in benchmark.kinds:
            kinds = tuple(benchmark.kinds)
            raise Unsupported(
                Reason(
                    "device-unsupported", backend=benchmark.name, kinds=kinds, kind=rig.info.kind
                )
            )
        reason = rig.no_cycles if benchmark.by_cycles else None
        reason = reason or benchmark.unsupported(rig)
        if reason is not None:
            raise Unsupported(reason)
        rig.look()
        with self._phase("setup"):
            state = benchmark.setup(rig, self._settings)
        with self._phase("timed"):
            raw = benchmark.timed(rig, state)
        rig.look()
        with self._phase("verify"):
            wrong = benchmark.verify(rig, state, raw)
        findings = benchmark.metrics(rig, state, raw)
        if wrong is not None:
            return Status.WRONG, wrong, findings
        if not findings.rows:
            return Status.RUNTIME_ERROR, "nothing was measured", findings
        return Status.OK, "", findings

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._cost[name] = time.perf_counter() - begin

    def _build_result(
        self, status: Status, error: str, findings: Findings, compilations: int
    ) -> Result:
        rig, info = self._rig, self._rig.info
        columns = tuple(column.on(rig.hardware) for column in self._benchmark.columns)
        rows, metrics = tuple(findings.rows), self._metrics(columns, findings)
        if status is Status.OK:
            found = impossible(columns, rows, metrics)
            if found:
                status, error = Status.WRONG, Reason("check-failed", findings=found)
        return Result(
            case=micro_case(self._benchmark.name, self._mode, self._settings.plain(), rig.threads),
            device=info.name,
            arch=info.arch,
            status=status,
            started=self._started,
            kernel=KernelInfo(resources={"compilations": compilations}),
            columns=columns,
            rows=rows,
            metrics=metrics,
            trace=tuple(rig.ledger.trace),
            notes=(*findings.notes, *rig.notes, *_unsteady(rows)),
            error=Reason.of(error),
            cost=self._cost,
        )

    def _metrics(self, columns: Sequence[PointColumn], findings: Findings) -> tuple[Metric, ...]:
        """Return the metrics with their spread, steadiness and host dependence."""
        paced = self._benchmark.host_paced
        return tuple(
            dataclasses.replace(
                metric,
                steady=metric.steady
                and not (self._rig.exclusive and metric.roof and (metric.spread or 0.0) > WIDE),
                host_paced=metric.name in paced,
            )
            for metric in with_spreads(findings.metrics, columns, findings.rows)
        )


def _unsteady(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return a note if launches of the same work took very different times."""
    found = (row.get("spread") for row in rows)
    spreads = [spread for spread in found if isinstance(spread, float)]
    wide = [spread for spread in spreads if spread > WIDE]
    if not wide:
        return []
    summary = f"{len(wide)} of {counted(len(spreads), 'point')} spread by over {100 * WIDE:.0f} %"
    where = "--points shows the spread of each; a metric with such a spread is `disturbed`"
    return [f"{summary}: did other work run? {where}"]
