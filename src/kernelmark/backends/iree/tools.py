"""Run IREE's own programs, each in a new process: every run allocates anew, and a kernel that
crashes does not end kernelmark."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.backends.iree.compiler import signal_name
from kernelmark.backends.iree.targets import Target
from kernelmark.core.errors import CaseError
from kernelmark.core.units import duration_text
from kernelmark.host.processes import run_child

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_MODULE = "iree-benchmark-module"
_LOG_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchTime:
    """The time of a kernel per call of the function, summed over its dispatches, and their
    number."""

    seconds: float
    calls: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The times of one process of iree-benchmark-module: a sample per repetition, and the time of
    each kernel. `dispatches` is empty if the driver does not attribute time to kernels. `timed_s`
    is the total over all iterations of all repetitions."""

    samples_s: tuple[float, ...]
    dispatches: Mapping[str, DispatchTime]
    timed_s: float = 0.0

    @property
    def kernel_s(self) -> float:
        return sum(dispatch.seconds for dispatch in self.dispatches.values())


def command(name: str, binary: Path, function: str, target: Target, threads: int) -> list[str]:
    """Return the command that calls a function of a module with one of IREE's programs."""
    import iree._runtime_libs

    program = Path(next(iter(iree._runtime_libs.__path__))) / name
    device = [f"--device={target.driver}"]
    if threads and not target.gpu:
        device.append(f"--task_topology_group_count={threads}")
    return [str(program), f"--module={binary}", f"--function={function}", *device]


def run_tool(words: Sequence[str], timeout_s: float) -> str:
    """Return a program's standard output; raise CaseError if it fails or exceeds the timeout."""
    name = Path(words[0]).name
    try:
        done = run_child(words, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        raise CaseError(
            f"{name} did not end within {duration_text(timeout_s)}",
            hint="allow more with --timeout",
        ) from None
    if done.returncode:
        log = done.stderr.decode(errors="replace").strip()[-_LOG_CHARACTERS:]
        code = done.returncode
        if code < 0:
            signal = signal_name(-code)
            raise CaseError(f"{name} was ended by {signal}" + (f": {log}" if log else ""))
        raise CaseError(f"{name} failed with exit code {code}" + (f": {log}" if log else ""))
    return done.stdout.decode(errors="replace")


def parse_round(text: str) -> Round:
    """Parse the JSON of iree-benchmark-module: repetitions, and a row for each kernel."""
    try:
        rows: list[dict[str, Any]] = json.loads(text[text.index("{") :])["benchmarks"]
    except (ValueError, KeyError) as error:
        raise CaseError(f"{_MODULE}: not JSON: {error}") from None
    failed = next((row for row in rows if row.get("error_occurred")), None)
    if failed is not None or not rows:
        message = failed.get("error_message", "") if failed else "no benchmark ran"
        raise CaseError(f"{_MODULE} failed" + (f": {message}" if message else ""))
    single = [row for row in rows if row["run_type"] == "iteration"]
    calls = [row for row in single if "calls" not in row]
    kernels = {
        row["run_name"].partition("/")[2]: DispatchTime(
            seconds=_row_seconds(row), calls=float(row["calls"])
        )
        for row in single
        if "calls" in row
    }
    return Round(
        samples_s=tuple(map(_row_seconds, calls)),
        dispatches=kernels,
        timed_s=sum(_row_seconds(row) * row.get("iterations", 1) for row in calls),
    )


def _row_seconds(row: Mapping[str, Any]) -> float:
    return float(row["real_time"]) * _SECONDS[row["time_unit"]]
