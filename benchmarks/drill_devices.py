"""Drills with several devices, one of which is no good."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drilling import Facts, case, expect, must, run
from kernelmark.core.result import Case
from kernelmark.runners.events import DeviceLost, Event

# Its cases differ by their config; on fake:3 every launch fails.
SICK = """
import sys
import numpy as np

op, devices, tensors = "gemm", ("fake",), "numpy"


def prepare(problem, config, sets):
    def launch(index):
        if "fake:3" in sys.argv:
            raise RuntimeError("uncorrectable memory error")
        np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
"""


def dead(count: int) -> Facts:
    """One of four devices cannot be opened: not too quick a run, as that takes three attempts."""
    cases = [case(i, "slow_compile", compile_s=0.15) for i in range(count)]
    return _three_of_four(cases, variables=_counted(3))


def sick(count: int) -> Facts:
    """One of four devices opens, and then fails every case."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sick.py"
        path.write_text(SICK, encoding="utf-8")
        cases = [dataclasses.replace(case(i), backend=str(path)) for i in range(count)]
        # Nothing hangs here, and several workers share the cores: a launch may take long.
        return _three_of_four(cases, timeout_s=60.0)


def _three_of_four(cases: list[Case], **options: object) -> Facts:
    with _four():
        results, events = run(cases, devices=["fake:0-3"], **options)
    must(_lost(events) == ["fake:3"], f"lost {_lost(events)}")
    used = Counter(result.device for result in results)
    must(set(used) == {"fake", "fake:1", "fake:2"}, f"used {set(used)}")
    return {**expect(results, cases, {}), "per_device": dict(used)}


@contextmanager
def _four() -> Iterator[None]:
    os.environ |= _counted(4)
    try:
        yield
    finally:
        del os.environ["KERNELMARK_FAKE_DEVICES"]


def _counted(count: int) -> dict[str, str]:
    return {"KERNELMARK_FAKE_DEVICES": str(count)}


def _lost(events: list[Event]) -> list[str]:
    return [event.device for event in events if isinstance(event, DeviceLost)]
