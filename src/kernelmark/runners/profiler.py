"""Cross-check by the vendor's profiler: the same case under ncu, beside our own time.

A profiler runs each launch alone, so its clock may be higher than that of launches without a
pause: compare in cycles, which `Profile` gives too. Clocks are left as they are.
"""

from __future__ import annotations

import csv
import io
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core import codec
from kernelmark.core.children import run_child
from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.result import Case
from kernelmark.core.units import duration_text
from kernelmark.runners.protocol import MARK

TIME = "gpu__time_duration.sum"
CYCLES = "sm__cycles_elapsed.max"
DRAM_READ = "dram__bytes_read.sum"
TIMEOUT_S = 300.0
_KERNEL = "Kernel Name"
_SECONDS = {"second": 1.0, "msecond": 1e-3, "usecond": 1e-6, "nsecond": 1e-9}
_SECONDS |= {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a profiler says of one launch, summed over its kernels; the median over launches, and
    the shortest and longest of them: some kernels alone take a third longer now and then."""

    seconds: float
    between_s: tuple[float, float]
    metrics: dict[str, float]
    kernels: tuple[str, ...]


def find(device: str) -> str:
    """Where the profiler of `device` is; `Unsupported` if it has none here."""
    if not device.startswith("cuda"):
        raise Unsupported(f"the profiler timer needs an NVIDIA GPU, not {device}")
    ncu = shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")
    if ncu is None:
        raise Unsupported(
            "ncu is not on the PATH", hint="install Nsight Compute, or use another timer"
        )
    return ncu


def profile(
    case: Case,
    device: str,
    *,
    launches: int = 3,
    metrics: Sequence[str] = (TIME, CYCLES),
    timeout_s: float = TIMEOUT_S,
) -> Profile:
    """The case under ncu on `device`."""
    return profile_all([case], device, launches=launches, metrics=metrics, timeout_s=timeout_s)[0]


def profile_all(
    cases: Sequence[Case],
    device: str,
    *,
    launches: int = 3,
    metrics: Sequence[str] = (TIME, CYCLES),
    timeout_s: float = TIMEOUT_S,
) -> list[Profile]:
    """Each case under one ncu on `device`: starting the profiler is what takes long."""
    ncu = find(device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases.jsonl"
        file.write_text("\n".join(map(codec.dumps, cases)), encoding="utf-8")
        command = [ncu, "--csv", "--page", "raw", "--profile-from-start", "off"]
        command += ["--clock-control", "none", "--cache-control", "none"]
        command += ["--metrics", ",".join(metrics), sys.executable]
        command += ["-m", "kernelmark.runners.profiled", "--device", device]
        command += ["--launches", str(launches), str(file)]
        return parse(_output(command, timeout_s), launches)


def _output(command: Sequence[str], timeout_s: float) -> str:
    try:
        done = run_child(command, timeout_s=timeout_s)
    except OSError as error:
        raise CaseError(f"ncu cannot be started: {error}") from None
    except subprocess.TimeoutExpired:
        raise CaseError(f"ncu took over {duration_text(timeout_s)}") from None
    out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    if done.returncode:
        tail = (err or out).strip().splitlines()[-1:]
        raise CaseError(f"ncu failed: {' '.join(tail)}")
    return out


def parse(text: str, launches: int) -> list[Profile]:
    """ncu's raw CSV: a row of names, a row of units, then a row a kernel; cut by our marks."""
    lines = text.splitlines()
    counts = [int(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
    rows = list(csv.reader(io.StringIO("\n".join(x for x in lines if x.startswith('"')))))
    if len(rows) < 3:
        raise CaseError("ncu saw no kernel", hint="does the profiler have permission?")
    names, units, found = rows[0], rows[1], rows[2:]
    for name in (_KERNEL, TIME):
        if name not in names:
            raise CaseError(f"ncu's table has no column {name}")
    for row in rows:
        if len(row) != len(names):
            raise CaseError(f"ncu's table has a row of {len(row)} cells where {len(names)} belong")
    if len(found) != launches * sum(counts):
        raise CaseError(f"ncu saw {len(found)} kernels where {launches * sum(counts)} were started")
    profiles = []
    for per_launch in counts:
        mine, found = found[: launches * per_launch], found[launches * per_launch :]
        profiles.append(_summed(names, units, mine, per_launch))
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
        raise CaseError(f"ncu says {text!r} where a number belongs")
    return value * _SECONDS.get(unit, 1.0) * _BYTES.get(unit, 1.0)
