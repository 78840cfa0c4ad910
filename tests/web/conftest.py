"""A store whose history is known: a step, a failure, a canary, names that attack."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from kernelmark import ops
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.result import Case, KernelInfo, Measurement, Result, Run, RunState, Status
from kernelmark.stores import open_store
from kernelmark.stores.store import Store
from kernelmark.web.app import create_app
from kernelmark.web.source import Source
from kernelmark_dev.results import make_check, make_measurement, make_result, make_roof

RUNS = 8
DAY_S = 86400.0
FIRST = 1.79e9
PROBLEMS = tuple(f"gemm m={m} n=512 k=512 dtype=f32" for m in (128, 256, 512))
BACKENDS = ("numpy", "torch")
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
CPU = DeviceInfo(name="cpu", kind="cpu", model=f"a CPU {HOSTILE}", arch="x86_64", units=2)


def a_measurement(median_s: float, source: random.Random) -> Measurement:
    blocks = [[median_s * source.uniform(0.999, 1.001) for _ in range(5)] for _ in range(3)]
    return make_measurement(*blocks, low_s=median_s * 0.99, high_s=median_s * 1.01)


def a_result(
    problem: str, backend: str, median_s: float | None, source: random.Random, **more: Any
) -> Result:
    parsed = ops.parse(problem)
    op = ops.registry.get(parsed.op)
    made = make_result(
        Case(problem=parsed, backend=backend),
        arch="x86_64",
        flops=op.flops(parsed),
        bytes=op.bytes(parsed),
        measurement=None if median_s is None else a_measurement(median_s, source),
        check=make_check(positions=9),
        kernel=KernelInfo(name=HOSTILE, resources={"registers": 64}),
    )
    return dataclasses.replace(made, **more)


def a_run(number: int, **more: Any) -> Run:
    libraries = {"torch": "2.8" if number < RUNS - 1 else "2.9", HOSTILE: HOSTILE}
    made = Run(
        id=f"run-{number:03}",
        started=FIRST + number * DAY_S,
        finished=FIRST + number * DAY_S + 60,
        environment=Environment(host="here", devices=(CPU,), libraries=libraries),
        label="nightly",
        suite="demo",
        argv=("run", "-s", "demo", HOSTILE),
        cases=len(PROBLEMS) * len(BACKENDS),
        state=RunState.DONE,
    )
    return dataclasses.replace(made, **more)


def results_of(number: int) -> list[Result]:
    """Torch is 10 % slower at m=512 in the last run, and crashes there at m=128."""
    source = random.Random(number)
    made = []
    for size, problem in enumerate(PROBLEMS, 1):
        for backend in BACKENDS:
            time_s: float | None = 1e-3 * size * source.uniform(0.998, 1.002)
            more: dict[str, Any] = {}
            if number == RUNS - 1 and backend == "torch" and size == 3:
                time_s = 1.1e-3 * size
            if number == RUNS - 1 and backend == "torch" and size == 1:
                time_s, more = None, {"status": Status.CRASHED, "error": f"signal 11 {HOSTILE}"}
                more["check"] = None
            made.append(a_result(problem, backend, time_s, source, **more))
    return made


def fill(store: Store, runs: int = RUNS) -> None:
    place = {"arch": "x86_64", "threads": CPU.units, "measured": FIRST}
    flops = make_roof("flops", "f32", 4e11, **place)
    memory = make_roof("bytes", "dram", 2e10, **place)
    store.add_roofs([flops, memory], host="here")
    for number in range(runs):
        store.add_run(a_run(number))
        store.add_results(f"run-{number:03}", results_of(number))


def fill_long(store: Store, results: int) -> None:
    """One run with more results than a page shows, in no order of their times."""
    source = random.Random(1)
    times = source.sample(range(1, results + 1), results)
    problems = [f"gemm m={8 * n} n=64 k=64 dtype=f32" for n in range(1, results + 1)]
    store.add_run(a_run(0, cases=results))
    made = [
        a_result(problem, BACKENDS[n % 2], 1e-4 * time, source)
        for n, (problem, time) in enumerate(zip(problems, times, strict=True))
    ]
    store.add_results("run-000", made)


@pytest.fixture(scope="session")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "results.sqlite"
    with open_store(path) as opened:
        fill(opened)
    return path


@pytest.fixture
def store(filled_store: Path, tmp_path: Path) -> Iterator[Store]:
    with open_store(shutil.copy(filled_store, tmp_path)) as opened:
        yield opened


@pytest.fixture
def source(store: Store) -> Source:
    made = Source(store)
    made.refresh()
    return made


Serve = Callable[..., TestClient]


class Tags(HTMLParser):
    """The tags of a page with their attributes, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture
def serve(source: Source) -> Serve:
    """A client of the dashboard; without its thread, so that nothing changes by itself."""

    def made(**options: Any) -> TestClient:
        app = create_app(source, **options)
        return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)

    return made


@pytest.fixture
def client(serve: Serve) -> TestClient:
    return serve()
