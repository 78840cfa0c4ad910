"""Run microbenchmarks: one benchmark on a rig, and sessions of several."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import (
    CaseError,
    CodecError,
    CompileError,
    OutOfMemory,
    Unsupported,
    UsageError,
)
from kernelmark.core.metric import WIDE, Metric, PointColumn, impossible, with_spreads
from kernelmark.core.micro import benchmark_name, micro_case
from kernelmark.core.reason import Reason, failed_checks, shorten
from kernelmark.core.result import KernelInfo, Result, Status
from kernelmark.core.units import counted, duration_text, join_and
from kernelmark.devices import registry as devices
from kernelmark.kernels import rtc
from kernelmark.micro import registry
from kernelmark.micro.base import EVERYWHERE, MODES, Microbenchmark, MicroRun, Mode
from kernelmark.micro.rig import Rig
from kernelmark.runners import places
from kernelmark.runners.jobs import Failure, Job
from kernelmark.runners.local import compile_pool
from kernelmark.runners.locks import hold_lock
from kernelmark.runners.pool import Finished, Limits, Pool, Returned, Slot
from kernelmark.runners.process import WorkerSpec
from kernelmark.runners.protocol import Message
from kernelmark.runners.targets import check_threads, find
from kernelmark.runners.worker import Server

TIMEOUT_S = {"brief": 120.0, "quick": 180.0, "full": 900.0}
# Opening a rig compiles the code of a CPU's benchmarks.
_OPEN_TIMEOUT_S = 120.0
_COMPILE_TIMEOUT_S = 300.0
# Files that take longest to compile.
_LONG = ("micro_matrix.cu", "micro_ops.cu", "micro_roofline.cu")
Tell = Callable[[str], None]
# The microbenchmarks that provide roofs, in the order they run, with parameters: the `roof` of a
# metric says which one. A CPU's caches are left out, as their sizes differ between cores.
_CPU_ROOFS: dict[str, dict[str, str]] = {"vector": {}, "stream": {"kernels": "read,copy,triad"}}
_GPU_ROOFS: dict[str, dict[str, str]] = {
    name: {} for name in ("incore", "matrix", "cache", "l2_cache", "stream", "small_kernels")
}
ROOF_SOURCES = {"cpu": _CPU_ROOFS, "cuda": _GPU_ROOFS, "hip": _GPU_ROOFS}


def plain_name(text: str) -> str:
    """Return the registry's name for what a user types: l2-cache and l2_cache are the same."""
    return text.strip().replace("-", "_")


def named(text: str) -> Microbenchmark:
    """Return the benchmark of this name; for an unknown name, raise an error that lists the known
    ones as `kmark micro list` does."""
    plain = plain_name(text)
    if plain in registry:
        return registry.get(plain)
    names = [name.replace("_", "-") for name in registry.names()]
    close = difflib.get_close_matches(plain.replace("_", "-"), names, n=1, cutoff=0.7)
    meant = f"did you mean {close[0]}? " if close else ""
    raise UsageError(f"unknown benchmark {text!r}", hint=f"{meant}known: {', '.join(names)}")


def run(
    names: Sequence[str],
    *,
    device: str = "cpu",
    threads: int = 0,
    mode: Mode = "quick",
    parameters: Mapping[str, Any] | None = None,
    own_parameters: Mapping[str, Mapping[str, Any]] | None = None,
    timeout_s: float | None = None,
    tell: Tell | None = None,
) -> Generator[Result, None, None]:
    """Yield each benchmark's result as it ends, also failures. Illegal input raises before any
    benchmark runs. `parameters` apply to every benchmark, `own_parameters` to one, by its name."""
    if mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}", hint=f"known: {', '.join(MODES)}")
    chosen = {
        name: {**(parameters or {}), **(own_parameters or {}).get(plain_name(name), {})}
        for name in names
    }
    for name in names:
        named(name).settings(mode, chosen[name])
    _, info = find(device)
    if info.kind not in EVERYWHERE:
        raise UsageError(
            f"there are no microbenchmarks for {device}",
            hint=f"they run on: {', '.join(EVERYWHERE)}",
        )
    check_threads(info, threads)
    jobs = [
        _RunMicro(name=plain_name(name), mode=mode, parameters=chosen[name], threads=threads)
        for name in names
    ]
    limits = Limits(timeout_s=timeout_s or TIMEOUT_S[mode], compile_timeout_s=_OPEN_TIMEOUT_S)
    return _run_all(Pool([_slot(info, limits)]), jobs, tell or (lambda text: None))


def run_fleet(
    names: Sequence[str],
    infos: Sequence[DeviceInfo],
    *,
    mode: Mode = "quick",
    parameters: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> Generator[Result, None, None]:
    """Yield the results of each benchmark on each device, which work at the same time. A device
    that is lost has failures."""
    for name in names:
        named(name).settings(mode, parameters or {})
    limits = Limits(timeout_s=timeout_s or TIMEOUT_S[mode], compile_timeout_s=_OPEN_TIMEOUT_S)
    slots = [_slot(info, limits) for info in infos]
    left = {
        slot: deque(
            _RunMicro(
                name=plain_name(name), mode=mode, parameters=dict(parameters or {}), lock=True
            )
            for name in names
        )
        for slot in slots
    }
    if places.current() is None and infos[0].kind in ("cuda", "hip"):
        build_all(infos[0])
    with Pool(slots) as pool:
        while any(left.values()) or pool.measuring:
            for slot, jobs in left.items():
                while slot.lost and jobs:
                    failed = Failure(status=Status.CRASHED, error=slot.lost)
                    yield jobs.popleft().fail(slot.info, failed, time.time())
                if slot.idle and jobs:
                    pool.submit(slot, jobs.popleft())
            outcome = pool.poll()
            if isinstance(outcome, Finished):
                yield outcome.value
            elif isinstance(outcome, Returned) and isinstance(outcome.job, _RunMicro):
                left[outcome.slot].appendleft(outcome.job)


def _slot(info: DeviceInfo, limits: Limits) -> Slot:
    # A benchmark opens the device in the worker, and modules must be loaded before they are
    # launched (see `open_rig`). The driver reads this variable when it is first called.
    eager = {"CUDA_MODULE_LOADING": os.environ.get("CUDA_MODULE_LOADING", "EAGER")}
    spec = WorkerSpec(device=info.name, variables=eager, opens_device=False)
    return Slot(devices.get(info.kind), info, spec, limits)


def _run_all(pool: Pool, jobs: Sequence[_RunMicro], tell: Tell) -> Generator[Result, None, None]:
    info = pool.devices[0].info
    if places.current() is not None:  # the worker locks the device and compiles, on its node
        with pool:
            for job in jobs:
                yield pool.call(dataclasses.replace(job, lock=True))
        return
    if info.kind in ("cuda", "hip"):
        begin = time.monotonic()
        if fresh := build_all(info):
            tell(f"compiled {fresh} kernel files in {time.monotonic() - begin:.1f} s")
    with (
        hold_lock(info, lambda who: tell(f"waiting for {who}, which is timing on {info.name}")),
        pool,
    ):
        for job in jobs:
            yield pool.call(job)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RunMicro(Job[Result]):
    """Run a microbenchmark; with `lock`, the worker holds the lock of the device meanwhile."""

    name: str
    mode: Mode
    parameters: dict[str, Any]
    threads: int = 0
    lock: bool = False

    @property
    def request(self) -> Message:
        return {
            "kind": "call",
            "function": "kernelmark.micro.session:serve",
            "name": self.name,
            "mode": self.mode,
            "parameters": self.parameters,
            "lock": self.lock,
        }

    def threads_on(self, info: DeviceInfo) -> int:
        return self.threads

    def read(self, info: DeviceInfo, reply: Message, started: float) -> Result:
        try:
            return codec.from_document(reply["result"], Result)
        except (CodecError, LookupError) as error:
            text = Reason(f"the worker's result cannot be read: {error}")
            return self.fail(info, Failure(status=Status.CRASHED, error=text), started)

    def fail(self, info: DeviceInfo, failure: Failure, started: float) -> Result:
        benchmark = registry.get(self.name)
        return Result(
            case=micro_case(
                benchmark.name,
                self.mode,
                benchmark.case_parameters(self.mode, self.parameters),
                (self.threads or info.units) if info.kind == "cpu" else 0,
            ),
            device=info.name,
            arch=info.arch,
            status=failure.status,
            started=started,
            error=failure.error,
            cost={"total": time.time() - started},
        )

    def spoils(self, value: Result) -> bool:
        # A kernel that faulted invalidates its process's GPU context permanently.
        return value.status is Status.RUNTIME_ERROR and not value.device.startswith("cpu")


def measure_roof_sources(device: str, threads: int, tell: Tell) -> list[Result]:
    """Run the microbenchmarks that provide a device's roofs; report failures."""
    sources = ROOF_SOURCES[device.partition(":")[0]]
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
            reason = shorten(result.error)
            tell(f"{name} gives no roof: {result.status.value}, {reason}")
    return results


def kernel_files() -> list[str]:
    """Return the kernel files of microbenchmarks, the longest to compile first."""
    names = [name for name in rtc.names() if name.startswith("micro_")]
    return sorted(names, key=lambda name: (name not in _LONG, name))


def build_all(info: DeviceInfo) -> int:
    """Compile the kernel files that are not in the cache, on all cores; return their number. A file
    that fails to compile fails again when it is used."""
    jobs = [_BuildKernel(name=name) for name in kernel_files()]
    with compile_pool(info, len(os.sched_getaffinity(0)), _COMPILE_TIMEOUT_S) as pool:
        return sum(fresh for _, fresh in pool.run_all(jobs, pool.compilers))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _BuildKernel(Job[bool]):
    """Compile a kernel file into the cache; the value is whether it had to be compiled."""

    name: str

    @property
    def request(self) -> Message:
        return {
            "kind": "call",
            "function": "kernelmark.micro.session:serve_build",
            "name": self.name,
        }

    def read(self, info: DeviceInfo, reply: Message, started: float) -> bool:
        return bool(reply.get("fresh"))

    def fail(self, info: DeviceInfo, failure: Failure, started: float) -> bool:
        return False


def open_rig(device: str, threads: int = 0) -> Rig:
    """Open the device of this name for microbenchmarks."""
    # A module that is loaded lazily at its first launch would wait for the gate that blocks the
    # launch.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    kind, info = find(device)
    if info.kind == "cpu":
        from kernelmark.devices.cpu import CpuDevice
        from kernelmark.micro._rigs import CpuRig

        return CpuRig(CpuDevice(threads))
    if info.kind in ("cuda", "hip"):
        from kernelmark.devices._gpu import GpuDevice
        from kernelmark.micro._rigs import GpuRig

        opened = kind.open(info.index)
        assert isinstance(opened, GpuDevice)
        return GpuRig(opened)
    device_names = ", ".join(name for name in devices.names() if name != "fake")
    raise UsageError(
        f"there are no microbenchmarks for {device}", hint=f"they run on: {device_names}"
    )


def serve(server: Server, request: Message) -> Message:
    """Serve a request of `session` in a worker: run one microbenchmark. The rig stays open."""
    if not isinstance(server.opened, Rig):
        rig = open_rig(server.device, server.threads)
        rig.warm_up()
        server.opened = rig
    benchmark = registry.get(str(request["name"]))
    with contextlib.ExitStack() as stack:
        if request.get("lock"):
            waiting = server.send_waiting
            stack.enter_context(hold_lock(server.info, waiting))
        server.send_phase("benchmark")
        result = execute(benchmark, server.opened, request["mode"], request["parameters"])
    return {"result": codec.to_document(dataclasses.replace(result, device=server.name))}


def serve_build(server: Server, request: Message) -> Message:
    """Serve a request of `session` in a worker: compile one kernel file into the cache."""
    from kernelmark.micro._rigs import build

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
