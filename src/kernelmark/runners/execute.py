"""Execute one case in this process; every outcome becomes a `Result`."""

from __future__ import annotations

import dataclasses
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kernelmark import backends, ops
from kernelmark.backends.base import Backend, Kernel, is_out_of_memory
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import (
    CompileError,
    KernelmarkError,
    OutOfMemory,
    Unsupported,
    UsageError,
)
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import NO_REASON, Reason, prefixed, suffixed
from kernelmark.core.result import Case, Check, KernelInfo, Measurement, Result, Status
from kernelmark.core.timing import Timer, Timing
from kernelmark.core.units import join_and
from kernelmark.devices.base import ArgumentSet, Device
from kernelmark.measure.blocks import merge
from kernelmark.measure.protocol import Outcome, Pause, Steps, finish, measure_blocks
from kernelmark.ops.base import Op
from kernelmark.runners import external_timers

OnPhase = Callable[[str], None]
# Device seconds of a turn. At the power cap of an H200 (bf16 4096³, 30 ms of each in all) the means
# of one kernel by turns of 0.4 to 3 ms agreed within 0.7 %, by turns of 12 ms within 1.6 %; by
# turns of whole blocks only 39 of 60 pairs were within 1 %.
TURN_S = 0.002


def execute(
    case: Case,
    device: Device,
    process: int,
    on_phase: OnPhase,
    *,
    profile_s: float = external_timers.TIMEOUT_S,
    cutoff_s: float | None = None,
) -> Result:
    """Measure `case` on `device`. Every failure of the case becomes a result; none is raised. With
    timer=profiler or timer=iree-benchmark-module, the external program may take `profile_s`
    seconds. `cutoff_s` is that of a candidate of a search (`measure_blocks`)."""
    started = time.time()
    return finish(_execute(case, device, process, on_phase, started, profile_s, cutoff_s=cutoff_s))


def execute_in_turns(cases: Sequence[Case], device: Device, on_phase: OnPhase) -> list[Result]:
    """Measure several cases on `device` by turns: each sets up a block, their samples are taken
    A B, B A, A B, … and so on with the next block. On a CPU a turn is a whole block. A failure of
    one ends only that one. All results have the same `started`."""
    started = time.time()
    whole_blocks = device.info.kind == "cpu"
    running = {
        number: _execute(
            case,
            device,
            0,
            on_phase,
            started,
            external_timers.TIMEOUT_S,
            turn_s=math.inf if whole_blocks else TURN_S,
            between=whole_blocks,
        )
        for number, case in enumerate(cases)
    }
    results: dict[int, Result] = {}

    def is_at(number: int, pause: Pause) -> bool:
        """Go on with a case. Return whether it pauses there; it may also end."""
        try:
            return next(running[number]) is pause
        except StopIteration as end:
            results[number] = end.value
            del running[number]
            return False

    def run_block(number: int) -> None:
        """Run a case up to the end of its next block, or to its result."""
        try:
            while next(running[number]) is not Pause.BETWEEN:
                pass
        except StopIteration as end:
            results[number] = end.value
            del running[number]

    while whole_blocks and running:
        for number in list(running):
            run_block(number)
    forwards = True
    while running:
        timing = [number for number in list(running) if is_at(number, Pause.READY)]
        while timing:
            in_order = timing if forwards else timing[::-1]
            taken = {number for number in in_order if is_at(number, Pause.TURN)}
            timing = [number for number in timing if number in taken]
            forwards = not forwards
    return [results[number] for number in range(len(cases))]


def _execute(
    case: Case,
    device: Device,
    process: int,
    on_phase: OnPhase,
    started: float,
    profile_s: float,
    turn_s: float = math.inf,
    *,
    between: bool = False,
    cutoff_s: float | None = None,
) -> Steps[Result]:
    clock = time.perf_counter()
    try:
        on_phase("load")
        backend = find_backend(case, device.info)
        if case.timing.timer is Timer.PROFILER:
            external_timers.find(device.info.name)  # fail before anything is measured
        if case.timing.timer is Timer.IREE:
            external_timers.check_case(case, backend)
        op = ops.registry.get(case.problem.op)

        def prepare(sets: Sequence[ArgumentSet]) -> Kernel:
            return backend.prepare(case.problem, case.config, device, sets)

        outcome = yield from measure_blocks(
            problem=case.problem,
            op=op,
            device=device,
            timing=_own_timing(case.timing),
            prepare=prepare,
            process=process,
            on_phase=on_phase,
            turn_s=turn_s,
            between=between,
            cutoff_s=cutoff_s,
        )
        measurement = outcome.measurement
        if case.timing.timer is Timer.PROFILER:
            on_phase("profile")
            measurement = _cross_check(case, device.info, measurement, profile_s)
        if case.timing.timer is Timer.IREE:
            on_phase("profile")
            measurement = external_timers.measure_with_tool(
                case, backend, device, process, timeout_s=profile_s
            )
    except (Exception, SystemExit) as error:
        status, text = explain(error)
        cost = {"total": time.perf_counter() - clock}
        return failure(case, device.info, status, text, started=started, cost=cost)
    outcome = dataclasses.replace(outcome, measurement=measurement)
    return result_of(outcome, case, op, device.info, started=started)


def result_of(outcome: Outcome, case: Case, op: Op, info: DeviceInfo, *, started: float) -> Result:
    """Return the result of a measured case."""
    passed = outcome.check.passed
    return Result(
        case=case,
        device=info.name,
        status=Status.OK if passed else Status.WRONG,
        arch=info.arch,
        flops=op.flops(case.problem),
        bytes=op.bytes(case.problem),
        measurement=outcome.measurement,
        check=outcome.check,
        kernel=outcome.kernel,
        error=NO_REASON if passed else outcome.check.detail or Reason("the output is wrong"),
        started=started,
        cost=outcome.cost,
    )


def _own_timing(timing: Timing) -> Timing:
    """Return the timing for kernelmark's own launches of a case that another program also times."""
    if timing.timer is Timer.IREE:
        return external_timers.checking_timing(timing)
    if timing.timer is not Timer.PROFILER:
        return timing
    # The profiler is only a cross-check: the device's best timer gives the time.
    return dataclasses.replace(timing, timer=Timer.AUTO)


def _cross_check(
    case: Case, info: DeviceInfo, measurement: Measurement, profile_s: float
) -> Measurement:
    """Add the time of the same case under the vendor's profiler, or a warning if profiling
    fails."""
    profiled = dataclasses.replace(case, timing=_own_timing(case.timing))
    try:
        profile = external_timers.profile(profiled, info.name, timeout_s=profile_s)
    except Exception as error:
        warning = Reason(
            f"not cross-checked: {explain(error)[1]}", "not-cross-checked", cause=explain(error)[1]
        )
        return dataclasses.replace(measurement, warnings=(*measurement.warnings, warning))
    also = {**measurement.also, "profiler_s": profile.seconds}
    if profile.spread > external_timers.STABLE:
        warning = Reason(
            f"runs under the profiler differ by {100 * profile.spread:.1f} %, more"
            f" than {100 * external_timers.STABLE:.0f} %: its time is no"
            " cross-check",
            "profiler-unstable",
            spread=profile.spread,
            limit=external_timers.STABLE,
        )
        measurement = dataclasses.replace(measurement, warnings=(*measurement.warnings, warning))
    cycles, clock_mhz = profile.metrics.get(external_timers.CYCLES), measurement.clock_mhz
    if cycles and clock_mhz:
        also["profiler_at_clock_s"] = cycles / (clock_mhz * 1e6)
    return dataclasses.replace(measurement, also=also)


def compile_ahead(case: Case, info: DeviceInfo) -> tuple[Status, Reason, float, KernelInfo]:
    """Fill the backend's compile cache without using the device. Return status, error, seconds and
    the kernel's info."""
    clock = time.perf_counter()
    status, text, kernel = Status.OK, NO_REASON, KernelInfo()
    try:
        kernel = find_backend(case, info).compile(case.problem, case.config, info)
    except (Exception, SystemExit) as error:
        status, text = explain(error)
    return status, text, time.perf_counter() - clock, kernel


def find_backend(case: Case, info: DeviceInfo) -> Backend:
    """Return the case's backend; raise Unsupported with the reason if it cannot run the case."""
    try:
        backend = backends.find(case.backend)
    except UsageError as error:
        raise Unsupported(error.message, error.hint) from None
    if info.kind not in backend.device_kinds:
        raise Unsupported(
            Reason(
                f"{case.backend} runs on {join_and(backend.device_kinds)}, not on {info.kind}",
                "device-unsupported",
                backend=case.backend,
                kinds=backend.device_kinds,
                kind=info.kind,
            )
        )
    rule = backend.supports
    if not info.memory_bytes:  # an absent GPU, whose runtime may not be installed
        rule = getattr(backend, "refuses", rule)
    reason = backend.available() or rule(case.problem, info)
    if reason is not None:
        raise Unsupported(reason)
    return backend


def explain(error: BaseException) -> tuple[Status, Reason]:
    """Return the status and the reason for an exception."""
    if isinstance(error, Unsupported):
        return Status.UNSUPPORTED, _with_hint(error)
    if isinstance(error, CompileError):
        return Status.COMPILE_ERROR, _with_hint(error)
    if isinstance(error, OutOfMemory):
        return Status.OUT_OF_MEMORY, _with_hint(error)
    if is_out_of_memory(error):  # an out-of-memory error of a library
        return Status.OUT_OF_MEMORY, Reason.of(_one_line(error))
    if isinstance(error, KernelmarkError):
        return Status.RUNTIME_ERROR, _with_hint(error)
    frames = traceback.extract_tb(error.__traceback__)
    line = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    name = type(error).__name__
    return Status.RUNTIME_ERROR, Reason(
        _one_line(error) + (f" ({line})" if line else ""),
        "raised",
        type=name,
        text=_one_line(error),
        place=line,
    )


def _with_hint(error: KernelmarkError) -> Reason:
    """Return an error's reason, extended by its hint: a result has one reason for both."""
    if not error.hint:
        return error.message
    return suffixed(error.message, f"; {error.hint}")


def failure(
    case: Case,
    info: DeviceInfo,
    status: Status,
    error: Reason,
    *,
    started: float,
    cost: Mapping[str, float] | None = None,
) -> Result:
    """Return a result without a measurement, with the FLOPs and bytes of its problem."""
    flops = nbytes = 0
    try:
        op = ops.registry.get(case.problem.op)
        flops, nbytes = op.flops(case.problem), op.bytes(case.problem)
    except Exception:
        pass  # the op or the problem may have caused the failure, which `error` describes
    return Result(
        case=case,
        device=info.name,
        status=status,
        arch=info.arch,
        flops=flops,
        bytes=nbytes,
        error=error,
        started=started,
        cost=cost or {},
    )


def join(parts: Sequence[Result]) -> Result:
    """Join the results of a case's processes. The first failed one determines the status; the times
    of the others are kept as data."""
    if len(parts) == 1:
        return parts[0]
    bad = next((i for i, part in enumerate(parts) if part.status is not Status.OK), None)
    chosen = parts[-1] if bad is None else parts[bad]
    measured = [part.measurement for part in parts if part.measurement is not None]
    cost: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.cost.items():
            cost[name] = cost.get(name, 0.0) + seconds
    target = chosen.case.timing.target_rel_ci
    return dataclasses.replace(
        chosen,
        measurement=merge(measured, target) if measured else None,
        check=_worst([part.check for part in parts if part.check is not None]),
        kernel=next((p.kernel for p in parts if p.kernel != KernelInfo()), chosen.kernel),
        error=NO_REASON if bad is None else _of_process(bad, chosen),
        started=parts[0].started,
        cost=FrozenDict(cost),
    )


def _of_process(index: int, result: Result) -> Reason:
    every = result.case.timing.processes
    return prefixed(result.error, f"process {index + 1} of {every}: ")


def _worst(checks: Sequence[Check]) -> Check | None:
    if not checks:
        return None
    return next((c for c in checks if not c.passed), max(checks, key=lambda c: c.worst))


def _one_line(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, KernelmarkError):
        text = str(error.message)
    else:
        text = f"{name}: {error}" if str(error) else name
    return " ".join(text.split())[:600] or name
