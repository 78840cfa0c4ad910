"""Times by other programs: ncu, rocprofv3 and iree-benchmark-module.

The vendor's profiler is a cross-check of the same case (timer=profiler). It runs each launch alone,
so its clock may be higher than that of back-to-back launches: compare cycles, which ncu also
reports. Clocks are not locked. rocprofv3 is run three times, and times that differ by more than 5 %
are reported as unstable, as in aiter's regression tests.

With timer=iree-benchmark-module, each block is one process of IREE's own benchmark program, and
each of its repetitions is a sample. The program calls the function repeatedly on one argument set,
so caches are hot. The time of a call includes its launches and the wait for their completion.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelmark import ops
from kernelmark.backends.base import Backend
from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import Block, Case, Measurement
from kernelmark.core.timing import Cache, Duty, Strain, Timer, Timing
from kernelmark.core.units import duration_text
from kernelmark.devices.base import Device
from kernelmark.gpu import rocm
from kernelmark.host.processes import own_command, run_child
from kernelmark.measure.blocks import measurement_warnings
from kernelmark.measure.sets import Arena, fill_inputs, make_arena
from kernelmark.measure.stop import block_seconds, interval_of, stop_reason
from kernelmark.runners.protocol import MARK, MARK_KERNEL

TIME = "gpu__time_duration.sum"
CYCLES = "sm__cycles_elapsed.max"
DRAM_READ = "dram__bytes_read.sum"
TIMEOUT_S = 300.0
ROCPROF_RUNS = 3
STABLE = 0.05  # maximum difference between runs, as a fraction of their mean
_KERNEL = "Kernel Name"
_SECONDS = {"second": 1.0, "msecond": 1e-3, "usecond": 1e-6, "nsecond": 1e-9}
_SECONDS |= {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Seconds of one launch under a profiler, summed over its kernels: the median over launches, or
    the mean of the medians of several runs. `between_s` is the shortest and longest launch: some
    kernels occasionally take a third longer. `spread` is the largest difference between runs,
    divided by their mean."""

    seconds: float
    between_s: tuple[float, float]
    metrics: dict[str, float]
    kernels: tuple[str, ...]
    spread: float = 0.0


def find(device: str) -> str:
    """Return the path of the profiler of `device`; raise Unsupported if none is installed."""
    if device.startswith("hip"):
        program = rocm.program("rocprofv3")
        if program is None:
            raise Unsupported(
                "rocprofv3 is neither on the PATH nor in an installation of ROCm",
                hint="install ROCm's profiler, or use another timer",
            )
        return program
    if not device.startswith("cuda"):
        raise Unsupported(
            Reason(
                f"{device} has no profiler timer",
                "timer-unsupported",
                device=device,
                timer="profiler",
            )
        )
    ncu = shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")
    if ncu is None:
        raise Unsupported(
            "ncu is not on the PATH", hint="install Nsight Compute, or use another timer"
        )
    return ncu


def profile(case: Case, device: str, *, timeout_s: float = TIMEOUT_S) -> Profile:
    """Profile one case on `device`."""
    return profile_all([case], device, timeout_s=timeout_s)[0]


def profile_all(
    cases: Sequence[Case],
    device: str,
    *,
    launches: int = 3,
    metrics: Sequence[str] = (TIME, CYCLES),
    timeout_s: float = TIMEOUT_S,
) -> list[Profile]:
    """Profile all cases in one process, since starting the profiler takes most of the time.
    rocprofv3 is run three times."""
    from kernelmark.core import codec

    tool = find(device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases.jsonl"
        file.write_text("\n".join(map(codec.dumps, cases)), encoding="utf-8")
        profiled = own_command("kernelmark.runners.profiled", "--device", device)
        profiled += ["--launches", str(launches), str(file)]
        if device.startswith("hip"):
            runs = []
            for number in range(ROCPROF_RUNS):
                output = Path(folder) / f"run{number}"
                command = [tool, "--kernel-trace", "--output-format", "csv", "-d", str(output)]
                command += ["-o", "kmark", "--", *profiled]
                _run(command, timeout_s / ROCPROF_RUNS)
                runs.append(read_trace(output, len(cases), launches))
            return [_averaged(profiles) for profiles in zip(*runs, strict=True)]
        command = [tool, "--csv", "--page", "raw", "--profile-from-start", "off"]
        command += ["--clock-control", "none", "--cache-control", "none"]
        command += ["--metrics", ",".join(metrics), *profiled]
        return parse(_run(command, timeout_s), launches)


def _run(command: Sequence[str], timeout_s: float) -> str:
    """Run a profiler and return its standard output."""
    name = Path(command[0]).name
    try:
        done = run_child(command, timeout_s=timeout_s)
    except OSError as error:
        raise CaseError(f"{name} cannot be started: {error}") from None
    except subprocess.TimeoutExpired:
        raise CaseError(f"{name} did not end within {duration_text(timeout_s)}") from None
    out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    if done.returncode:
        last = "".join((err or out).strip().splitlines()[-1:])
        raise CaseError(
            f"{name} failed with exit code {done.returncode}" + (f": {last}" if last else "")
        )
    return out


def read_trace(folder: Path, cases: int, launches: int) -> list[Profile]:
    """Parse the trace that rocprofv3 wrote into `folder`: a CSV file or, by default since ROCm 7, a
    rocpd database. The mark kernels separate the launches."""
    from kernelmark.workloads.formats.rocprof import timeline

    files = sorted((*folder.rglob("*kernel_trace.csv"), *folder.rglob("*.db")))
    if not files:
        raise CaseError("rocprofv3 wrote no kernel trace", hint="does it know --kernel-trace?")
    groups: list[list[tuple[str, float]]] = [[]]
    for kernel, seconds in timeline(files[0]):
        # A code object's symbol ends with .kd, and a demangled name with its parameters.
        if kernel.removesuffix(".kd").partition("(")[0] == MARK_KERNEL:
            groups.append([])
        else:
            groups[-1].append((kernel, seconds))
    windows = groups[1::2]
    if len(groups) != 2 * cases * launches + 1:
        raise CaseError(
            f"rocprofv3 recorded {len(groups) - 1} {MARK_KERNEL} kernels, but"
            f" {2 * cases * launches} were launched"
        )
    if [] in windows:
        raise CaseError(f"rocprofv3 saw no kernel in launch {windows.index([]) + 1}")
    return [_traced(windows[i * launches : (i + 1) * launches]) for i in range(cases)]


def _traced(windows: Sequence[Sequence[tuple[str, float]]]) -> Profile:
    """Return the profile of one run. A launch's time is the sum over its kernels, such as a split-K
    kernel and its reduction."""
    totals = sorted(sum(seconds for _, seconds in window) for window in windows)
    kernels = tuple(kernel for kernel, _ in windows[0])
    between = (totals[0], totals[-1])
    return Profile(seconds=totals[len(totals) // 2], between_s=between, metrics={}, kernels=kernels)


def _averaged(runs: Sequence[Profile]) -> Profile:
    times = [run.seconds for run in runs]
    mean = sum(times) / len(times)
    return dataclasses.replace(
        runs[0],
        seconds=mean,
        between_s=(min(r.between_s[0] for r in runs), max(r.between_s[1] for r in runs)),
        spread=(max(times) - min(times)) / mean,
    )


def parse(text: str, launches: int) -> list[Profile]:
    """Parse ncu's raw CSV: a row of names, a row of units, then a row per kernel. The marks
    separate the cases."""
    lines = text.splitlines()
    counts = [int(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
    rows = list(csv.reader(io.StringIO("\n".join(x for x in lines if x.startswith('"')))))
    if len(rows) < 3:
        raise CaseError("ncu saw no kernel", hint="does the profiler have permission?")
    names, units, kernels = rows[0], rows[1], rows[2:]
    for name in (_KERNEL, TIME):
        if name not in names:
            raise CaseError(f"ncu's table has no column {name}")
    for row in rows:
        if len(row) != len(names):
            raise CaseError(f"ncu's table has a row of {len(row)} cells where {len(names)} belong")
    started = launches * sum(counts)
    if len(kernels) != started:
        raise CaseError(f"ncu recorded {len(kernels)} kernels, but {started} were launched")
    profiles = []
    for per_launch in counts:
        own, kernels = kernels[: launches * per_launch], kernels[launches * per_launch :]
        profiles.append(_summed(names, units, own, per_launch))
    return profiles


def _summed(names: list[str], units: list[str], rows: list[list[str]], per_launch: int) -> Profile:
    columns = {name: i for i, name in enumerate(names)}
    totals: dict[str, list[float]] = {name: [] for name in names if "__" in name and "." in name}
    for start in range(0, len(rows), per_launch):
        group = rows[start : start + per_launch]
        for name, values in totals.items():
            column = columns[name]
            values.append(sum(_number(row[column], units[column]) for row in group))
    metrics = {name: sorted(values)[len(values) // 2] for name, values in totals.items()}
    kernels = tuple(row[columns[_KERNEL]] for row in rows[:per_launch])
    return Profile(
        seconds=metrics[TIME],
        between_s=(min(totals[TIME]), max(totals[TIME])),
        metrics=metrics,
        kernels=kernels,
    )


def _number(text: str, unit: str) -> float:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise CaseError(f"ncu's table has {text!r} where a number belongs")
    return value * _SECONDS.get(unit, 1.0) * _BYTES.get(unit, 1.0)


# Estimated start-up time of the program until it measures.
_START_S = 0.1
_MOST_WARMUP_S = 0.1


def check_case(case: Case, backend: Backend) -> None:
    """Raise Unsupported for a case that the program cannot time."""
    timing = case.timing
    if not hasattr(backend, "benchmark"):
        raise Unsupported(f"timer={timing.timer} is for the backend iree, not for {case.backend}")
    needed = {"cache": Cache.HOT, "strain": Strain.NONE, "duty": Duty.SUSTAINED}
    options = [f"--{name} {v}" for name, v in needed.items() if getattr(timing, name) != v]
    if options:
        raise Unsupported(
            f"timer={timing.timer} calls one argument set again and again: caches"
            " are hot, and nothing runs between calls",
            hint=f"use {' '.join(options)}",
        )


def checking_timing(timing: Timing) -> Timing:
    """Return the shortest timing, for kernelmark's own launches that check the output."""
    return dataclasses.replace(
        timing, timer=Timer.AUTO, allocations=1, max_allocations=1, max_s=0.05, warmup_s=0.0
    )


def measure_with_tool(
    case: Case, backend: Backend, device: Device, process: int, *, timeout_s: float
) -> Measurement:
    """Time a case that `check_case` accepts, on the inputs of its first argument set."""
    timing, end = case.timing, time.monotonic() + timeout_s
    # The program may run a repetition for twice its --benchmark_min_time.
    block_s = block_seconds(timing, _START_S) / 2
    warmup_s = min(timing.warmup_s, _MOST_WARMUP_S)
    blocks: list[Block] = []
    timed_s, stop = 0.0, None
    with tempfile.TemporaryDirectory(prefix="kmark-iree-") as folder:
        files, nbytes = _write_inputs(case, device, Path(folder))
        while stop is None:
            rounds = backend.benchmark(  # type: ignore[attr-defined]
                case.problem,
                case.config,
                device,
                files,
                repetitions=timing.min_samples,
                repetition_s=block_s / timing.min_samples,
                warmup_s=warmup_s,
                timeout_s=max(1.0, end - time.monotonic()),
            )
            timed_s += rounds.timed_s
            blocks.append(
                Block(
                    process=process,
                    allocation=len(blocks),
                    samples_s=rounds.samples_s,
                    # Most of the machine's load is the program itself, not other processes.
                    telemetry=dataclasses.replace(device.telemetry(), load=None),
                )
            )
            # The program decides how long it runs. Even if it exceeds the time limit, the minimum
            # number of blocks is measured.
            if len(blocks) >= timing.allocations:
                stop = stop_reason(blocks, timing=timing, timed_s=timed_s, next_s=block_s)
    interval = interval_of(blocks, timing)
    return Measurement(
        blocks=tuple(blocks),
        low_s=interval.low_s,
        high_s=interval.high_s,
        method=str(timing.timer),
        launches=1,
        sets=1,
        footprint_bytes=nbytes,
        stop=stop,
        warmup_s=warmup_s * len(blocks),
        timed_s=timed_s,
        warnings=tuple(
            measurement_warnings(
                blocks, interval, timing, stop=stop, threads=timing.threads or device.info.units
            )
        ),
        modes=interval.modes,
    )


def _write_inputs(case: Case, device: Device, folder: Path) -> tuple[list[Path], int]:
    """Write the tensors of one argument set to files; return the files in order and their total
    bytes."""
    tensors = ops.registry.get(case.problem.op).tensors(case.problem)
    buffer, sets = make_arena(device, tensors, 1, np.random.default_rng(case.timing.seed))
    try:
        fill_inputs(device, Arena(buffer=buffer, sets=sets, numbers=[0]), case.timing.seed)
        device.synchronize()
        files = []
        for spec in tensors:
            tensor = sets[0][spec.name]
            files.append(folder / f"{spec.name}.bin")
            files[-1].write_bytes(device.read(buffer, tensor.offset, spec.nbytes).tobytes())
    finally:
        device.free(buffer)
    return files, sum(spec.nbytes for spec in tensors)
