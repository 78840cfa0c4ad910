"""Every table of every command at 80 columns: no value is cut, no line is too long."""

from __future__ import annotations

import dataclasses
import platform
import sys
import time

import pytest

from kernelmark.cli import output
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.metric import Metric, PointColumn
from kernelmark.core.micro import MICRO_SUITE
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result, ResultSet, Run, RunState, Status
from kernelmark.devices import registry as devices
from kernelmark.report import tables as drawing
from kernelmark.stores import open_store
from kernelmark.testing.micro import micro_result
from kernelmark_dev.results import make_case, make_measurement, make_result, make_roof
from kernelmark_dev.tuning import fake_plans, make_folder

WIDTH = 80
LONG = "batched_gemm batch=1024 m=12288 n=12288 k=12288 a=f8e4m3 b=f8e5m2 c=bf16 ta=t tb=t"
DAY_S = 86400.0
CONFIG = {"tile_m": 128, "schedule": "ping-pong"}
THINGS = ("ops", "backends", "devices", "suites", "runs", "micro", "dtypes", "logs")
COMMANDS = {
    "show": ("show", "night-07"),
    "show samples": ("show", "night-07", "--samples"),
    "compare": ("compare", "night-00", "night-07"),
    "compare explain": ("compare", "night-00", "night-07", "--explain", "1"),
    "history": ("history", "--baseline", "night-00"),
    "history of a microbenchmark": ("history", "--micro", "cache"),
    "micro list": ("micro", "list"),
    "micro list one": ("micro", "list", "cache"),
    "micro show": ("micro", "show", "measured", "--points"),
    "micro compare": ("micro", "compare", "earlier", "measured"),
    "roofs": ("roofs", "--stored"),
    "doctor": ("doctor",),
    "list one op": ("list", "ops", "-o", "conv"),
    "tune show": ("tune", "show", "work"),
    **{f"list {what}": ("list", what) for what in (*THINGS, "strategies", "emitters")},
    "ab": (
        *("ab", "-p", "gemm m=8 n=8 k=8 dtype=f32", "-d", "fake", "-b", "fake", "--rounds", "4"),
        *("--env", "before-the-change", "--env", "after-the-change", "--alpha", "0.2"),
        *("--set", 'after-the-change:KERNELMARK_FAKE_SCRIPT={"slow":[1.05]}', "--max-s", "0.02"),
        *("--warmup-s", "0.01"),
    ),
    "run": (
        *("run", "-p", "gemm m=8 n=8 k=8 dtype=f32", "-d", "fake", "-b", "fake", "--max-s", "0.05"),
        *("--config", "time_us=20.0", "--no-store", "--warmup-s", "0.01"),
    ),
    "run dry": ("run", "-s", "demo", "-b", "numpy,iree", "--dry-run"),
}


def measured(backend: str, median_s: float, status: Status = Status.OK) -> Result:
    few = (Reason("few blocks", "few-blocks", blocks=3, wanted=4),)
    return make_result(
        make_case(LONG, backend, config=CONFIG),
        status=status,
        arch=devices.get("cpu").infos()[0].arch,
        flops=10**13,
        bytes=10**10,
        measurement=make_measurement(
            *[[median_s * f for f in (0.99, 1.0, 1.02) * 8]] * 3,
            sets=3,
            footprint_bytes=123_456_789,
            warnings=few if backend == "iree" else (),
            also={"hot_s": median_s / 2, "host_s": 2 * median_s},
        ),
        error="" if status is Status.OK else "a reason of many words, one after the other " * 4,
        cost={"timed": 0.2, "total": 0.5},
    )


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store and a tuning folder with long names in all of it."""
    folder = tmp_path_factory.mktemp("filled")
    info = dataclasses.replace(
        devices.get("cpu").infos()[0], model="a processor of many words " * 3
    )
    with open_store(folder / "store.sqlite") as store:
        roof = make_roof(
            "flops",
            "f32",
            1.2345e11,
            arch=info.arch,
            how="kmark micro incore (peak_f32), quick, the best of f32_8 1.2 TFLOP/s, f32_16 1 B/s",
            measured=time.time(),
            unit="vector",
            threads=info.units,
        )
        store.add_roofs([roof], host=platform.node())
        for night in range(8):
            environment = Environment(
                devices=(info,),
                host=platform.node(),
                libraries={"a-library-with-a-long-name": f"2.{night // 4}.0+rocm7.0.0.gitabcdef"},
            )
            run = Run(
                id=f"night-{night:02}",
                started=(night + 1) * DAY_S,
                finished=(night + 1.1) * DAY_S,
                environment=environment,
                label="a-label-of-a-nightly-run-on-the-large-machine",
                suite="a-suite-of-many-problems",
                state=RunState.DONE,
            )
            time_s = 0.00123 * (1.0 + 0.5 * (night > 3) + 0.001 * night)
            found = [measured(name, time_s * n) for n, name in enumerate(("numpy", "iree", "x"), 1)]
            found.append(measured("torch", time_s, Status.OK if night < 7 else Status.CRASHED))
            store.add_result_set(ResultSet(run=run, results=tuple(found)))
        store.add_result_set(micro_run(info, "earlier", 2.0))
        store.add_result_set(micro_run(info, "measured", 3.0))
    make_folder(folder / "work", fake_plans(3))
    return folder


def micro_run(info: DeviceInfo, name: str, value: float) -> ResultSet:
    metric = Metric(
        name="l1_bytes_per_s_of_every_core_together",
        value=value * 1e12,
        unit="B/s",
        spread=0.4,
        limit=5e12,
    )
    refusal = "needs an instruction that this processor lacks, whatever the system that runs on it"
    columns = tuple(PointColumn(name=f"a_long_column_{i}", unit="B/s") for i in range(9))
    points = tuple({column.name: 1.5e12 * (n + 1) for column in columns} for n in range(3))
    found = (
        micro_result("cache", device="cpu", metrics=(metric,), columns=columns, rows=points),
        micro_result("matrix", device="cpu", status=Status.UNSUPPORTED, error=refusal),
    )
    environment = Environment(devices=(info,), host=platform.node())
    run = Run(id=name, started=value * DAY_S, environment=environment, suite=MICRO_SUITE)
    return ResultSet(run=run, results=found)


@pytest.fixture
def drawn(monkeypatch):
    """Every table that is drawn on a terminal of 80 columns."""
    found = []
    draw = drawing.draw

    def kept(table, *given):
        found.append(table)
        return draw(table, *given)

    monkeypatch.setattr(drawing, "draw", kept)
    monkeypatch.setattr(output, "fancy", lambda stream: stream is sys.stdout)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")
    return found


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_nothing_is_cut_at_80_columns(kmark, filled, drawn, check_drawn, monkeypatch, words):
    monkeypatch.chdir(filled)
    monkeypatch.setenv("KERNELMARK_STORE", str(filled / "store.sqlite"))
    ended = kmark(*words)
    assert ended.code in (0, 1), ended.err
    assert drawn
    for table in drawn:
        check_drawn(table, ended.out.splitlines(), WIDTH)


def test_wide_shows_all_columns_side_by_side(kmark, filled, drawn, monkeypatch):
    monkeypatch.chdir(filled)
    words = ("compare", "night-00", "night-07", "--store", "store.sqlite")
    folded, wide = kmark(*words), kmark("--wide", *words)
    assert wide.out == kmark(*words, "--wide").out
    rows = len(drawn[0].rows)
    assert len(wide.out.splitlines()) == rows + 2 < len(folded.out.splitlines())
    monkeypatch.setattr(output, "fancy", lambda stream: False)
    assert kmark(*words).out == wide.out  # a pipe has no width
