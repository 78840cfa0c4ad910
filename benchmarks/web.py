"""The dashboard of a million results: how fast its pages are, and what pushing runs loses.

    python benchmarks/web.py            1,000,000 results, writes benchmarks/results/web.json
    python benchmarks/web.py --quick    20,000 results, 8 pushed runs; writes only with --json

Runs of 1,000 cases; results repeat in another order from run to run, as making each anew takes
longer than storing it. Pages are painted by Chromium, each time one that the server has not made
before. An interaction is what a person does on a page, until the frame that shows the rows asked
for. The machine that paints and asks is the one that serves.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import http.client
import itertools
import os
import random
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import fastapi
import uvicorn

from kernelmark import ops
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.metric import Roof
from kernelmark.core.result import (
    Block,
    Case,
    Check,
    KernelInfo,
    Measurement,
    Result,
    Run,
    RunState,
    Status,
    StopReason,
    Telemetry,
)
from kernelmark.devices import registry
from kernelmark.stores import new_run_id, open_store, writing
from kernelmark.stores.packing import checksum_result
from kernelmark.stores.store import Scope, Store
from kernelmark_dev import evidence

CASES = 1000  # in a run
VARIANTS = 12  # measurements of a case that runs choose among
BACKENDS = ("torch", "triton", "cublaslt", "rtc")
PAINT_MS, INTERACTION_MS, REQUESTS_PER_S = 300, 100, 200
CLIENTS, PUSHED_RUNS = 8, 100
LOAD_S = 10.0
_LOOK_MS = 300.0  # that a person looks at a page at least before acting on it
STARTED = 1.7e9
DAY_S = 86400.0
RESULTS = Path(__file__).parent / "results" / "web.json"
GPU = DeviceInfo(
    name="cuda:0",
    kind="cuda",
    model="a GPU",
    arch="sm_90",
    units=132,
    memory_bytes=2**37,
    cache_bytes=2**26,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20,000 results")
    parser.add_argument("--rows", type=int, help="number of results")
    parser.add_argument("--json", type=Path, help="file to write to")
    options = parser.parse_args()
    rows = options.rows or (20_000 if options.quick else 1_000_000)
    target = options.json or (None if options.quick or options.rows else RESULTS)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), rows, PUSHED_RUNS if not options.quick else CLIENTS)
    for name, value in figures.items():
        print(
            f"{name:<40}{value:>14,.2f}" if isinstance(value, float) else f"{name:<40}{value:>14}"
        )
    found = bars(figures)
    if target:
        evidence.write(
            target,
            title=f"The dashboard of {figures['results']:,} results",
            bars=found,
            figures={**figures, "load_1min": os.getloadavg()[0], "cores": os.cpu_count()},
            device=registry.get("cpu").infos()[0],
            libraries={"fastapi": fastapi.__version__, "uvicorn": uvicorn.__version__},
        )
    print(f"\n{evidence.bars_text(found)}")
    return 0 if options.quick or all(holds for _, _, holds in found) else 1


def measure(folder: Path, rows: int, pushed_runs: int) -> dict[str, Any]:
    place = folder / "results.sqlite"
    began = time.perf_counter()
    with open_store(place) as store:
        fill(store, max(1, rows // CASES))
    figures: dict[str, Any] = {
        "results": max(1, rows // CASES) * CASES,
        "fill_s": time.perf_counter() - began,
        "file_bytes": place.stat().st_size,
    }
    with serving(place) as (_, url):
        began = time.perf_counter()
        while b'"grid"' not in get(url, "/index.json"):
            time.sleep(0.05)
        figures["judged_s"] = time.perf_counter() - began
        figures |= load(url)
        figures |= paint(place, url)
    return figures | push(folder, pushed_runs)


def bars(figures: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """(what is asked, what was measured, whether it holds)."""
    found = []
    for kind, most, words in (
        ("paint", PAINT_MS, "first paint of a page that the server has not made before"),
        ("interaction", INTERACTION_MS, "an interaction: filter, next rows, sort, search"),
    ):
        times = {name: value for name, value in figures.items() if name.startswith(f"{kind}_")}
        if not times:
            continue  # no Chromium
        worst = max(times, key=lambda name: times[name])
        name = worst.removeprefix(f"{kind}_").removesuffix("_ms").replace("_", " ")
        shown = f"at most {times[worst]:.0f} ms ({name}), median of each"
        found.append((f"{words}: under {most} ms", shown, times[worst] < most))
    rate, errors = figures["overview_per_s"], figures["overview_errors"]
    found.append(
        (
            f"overview: at least {REQUESTS_PER_S} requests a second without errors",
            f"{rate:,.0f} a second, {errors} errors, "
            f"99 % within {figures['overview_p99_ms']:.0f} ms",
            rate >= REQUESTS_PER_S and not errors,
        )
    )
    lost, doubled = figures["push_lost"], figures["push_doubled"]
    changed, failed = figures["push_changed"], figures["push_failed_clients"]
    found.append(
        (
            f"{figures['push_runs']} runs of {CASES:,} results pushed by {CLIENTS} clients, "
            "the server killed and restarted in between: none lost, doubled or changed",
            f"{lost} lost, {doubled} doubled, {changed} changed, {failed} clients failed, "
            f"{figures['push_per_s']:,.0f} results a second",
            not (lost or doubled or changed or failed),
        )
    )
    return found


# -- a store


def cases() -> list[Case]:
    """Problems of three ops by four backends."""
    sizes = [64 * (1 + n) for n in range(60)]
    texts = [f"gemm m={m} n=4096 k={k} dtype=bf16" for m in sizes for k in (1024, 4096)]
    texts += [f"batched_gemm batch={b} m=512 n=512 k=128 dtype=bf16" for b in range(2, 67)]
    texts += [f"attention batch={b} heads=32 seq=1024 dim=128 dtype=bf16" for b in range(1, 66)]
    problems = [ops.parse(text) for text in texts]
    every = [Case(problem=p, backend=backend) for p in problems for backend in BACKENDS]
    assert len(every) >= CASES
    return every[:CASES]


def a_result(case: Case, level_s: float, source: random.Random, samples: int = 7) -> Result:
    typical_s = level_s * source.gauss(1, 0.005)
    blocks = tuple(
        Block(
            process=0,
            allocation=i,
            samples_s=tuple(typical_s * source.uniform(0.997, 1.003) for _ in range(samples)),
            clocks_mhz=tuple(source.uniform(1740, 1760) for _ in range(samples)),
            telemetry=Telemetry(clock_mhz=1750.0, power_w=600.0),
        )
        for i in range(3)
    )
    op = ops.registry.get(case.problem.op)
    return Result(
        case=case,
        device=GPU.name,
        arch=GPU.arch,
        status=Status.OK,
        flops=op.flops(case.problem),
        bytes=op.bytes(case.problem),
        measurement=Measurement(
            blocks=blocks,
            low_s=typical_s * 0.996,
            high_s=typical_s * 1.004,
            method="graph",
            launches=20,
            sets=3,
            footprint_bytes=2**28,
            stop=StopReason.PRECISE,
            warmup_s=0.3,
            timed_s=0.8,
        ),
        check=Check(positions=512, worst=0.2, max_abs=1e-3, unwritten=0, guards_intact=True),
        kernel=KernelInfo(name="kernel", resources={"registers": 168}),
    )


def variants(source: random.Random, samples: int = 7) -> list[list[Result]]:
    """A few measurements of each case; the last two are 8 % slower, and failed."""
    made = []
    for case in cases():
        op = ops.registry.get(case.problem.op)
        least_s = max(op.flops(case.problem) / 7.9e14, op.bytes(case.problem) / 4.2e12) + 2e-6
        level_s = least_s / source.uniform(0.5, 0.8)
        good = [a_result(case, level_s, source, samples) for _ in range(VARIANTS)]
        failed = dataclasses.replace(
            good[0], status=Status.CRASHED, measurement=None, check=None, error="signal 11"
        )
        made.append([*good, a_result(case, 1.08 * level_s, source, samples), failed])
    return made


def a_run(number: int, source: random.Random, gpu: DeviceInfo = GPU) -> Run:
    started = STARTED + number * DAY_S
    libraries = {"torch": f"2.{number // 100}", "triton": f"3.{number // 150}"}
    return Run(
        id=new_run_id(started, source),
        started=started,
        finished=started + 3600,
        environment=Environment(host=f"host-{gpu.arch}", devices=(gpu,), libraries=libraries),
        suite="bench",
        label=f"nightly-{gpu.arch}",
        cases=CASES,
        state=RunState.DONE,
    )


def fill(store: Store, count: int, archs: Sequence[str] = (GPU.arch,), samples: int = 7) -> None:
    """Runs of all cases, one a night on each architecture; in the last night, some are slower and
    some crash."""
    source = random.Random(1)
    gpus = [dataclasses.replace(GPU, arch=arch) for arch in archs]
    for gpu in gpus:
        roof = Roof(
            device=gpu.name,
            arch=gpu.arch,
            kind="flops",
            name="bf16",
            value=7.9e14,
            how="",
            measured=1.0,
        )
        memory = dataclasses.replace(roof, kind="bytes", name="dram", value=4.2e12)
        store.add_roofs([roof, memory], host=f"host-{gpu.arch}")
    made = variants(source, samples)
    width = len(made[0])
    flat = [result for each in made for result in each]
    # Packed once: rows of runs and architectures differ in these and their checksums.
    numbers = store._catalogue.numbers(flat, store._write)
    packed = writing.result_rows(flat, numbers, (0, ""), 0)
    series = [result.case.series for result in flat]
    for number in range(count):
        gpu = gpus[number % len(gpus)]
        run = a_run(number // len(gpus), source, gpu)
        store.add_run(run)
        run_no = store._number(run.id)
        rows = []
        for case in range(CASES):
            chosen = case * width + source.randrange(VARIANTS)
            if number >= count - len(gpus) and case % 97 == 0:
                chosen = case * width + width - (1 if case % 2 else 2)
            _, case_no, device, process, _, timing_no, status, *rest = packed[chosen]
            *values, _ = rest
            times, modes = tuple(values[:5]), tuple(values[8:])
            texts = (device, gpu.arch, status, *modes)
            checksum = checksum_result(run.id, series[chosen], texts, times)
            head = (run_no, case_no, device, process, gpu.arch, timing_no, status)
            rows.append((*head, *values, checksum))
        store._write(functools.partial(writing.insert_results, rows=rows, replace=False))


# -- a server


@contextlib.contextmanager
def serving(place: Path | str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    words = [sys.executable, "-m", "kernelmark", "serve", "--port", str(port)]
    process = subprocess.Popen([*words, "--store", str(place)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"http://\S+?:\d+", process.stderr.readline())
        assert found
        while not _answers(found[0]):
            time.sleep(0.02)
        yield process, found[0]
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return bool(get(url, "/healthz"))
    except OSError:
        return False


def get(url: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def load(url: str) -> dict[str, Any]:
    """As many requests for the overview as the server answers, by clients that keep connections."""
    times: list[float] = []
    errors: list[object] = []
    ends = time.perf_counter() + LOAD_S

    def ask() -> None:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        while time.perf_counter() < ends:
            began = time.perf_counter()
            try:
                connection.request("GET", "/", headers={"accept-encoding": "gzip"})
                answer = connection.getresponse()
                body = answer.read()
                if answer.status != 200 or not body:
                    errors.append(answer.status)
            except (OSError, http.client.HTTPException) as error:
                errors.append(error)
                connection.close()
            times.append(time.perf_counter() - began)

    get(url, "/")
    threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "overview_per_s": len(times) / LOAD_S,
        "overview_errors": len(errors),
        "overview_p50_ms": 1e3 * statistics.median(times),
        "overview_p99_ms": 1e3 * sorted(times)[int(0.99 * len(times))],
    }


# -- a browser

_FCP = """() => new Promise((done) => {
  const found = performance.getEntriesByName("first-contentful-paint");
  if (found.length) return done(found[0].startTime);
  new PerformanceObserver((list, observer) => {
    for (const one of list.getEntriesByName("first-contentful-paint")) {
      observer.disconnect();
      done(one.startTime);
    }
  }).observe({ type: "paint", buffered: true });
})"""
_SORT = """() => new Promise((done) => {
  const heads = document.querySelectorAll("table[data-sortable] thead th.num");
  const began = performance.now();
  heads[0].click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
})"""
# An action on a page, until the frame after its <main> has been filled anew.
_ACT = """(action) => new Promise((done) => {
  const main = document.querySelector("main");
  const began = performance.now();
  new MutationObserver((_, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
  }).observe(main, { childList: true });
  const [selector, value] = action;
  const control = document.querySelector(selector);
  if (value === null) control.click();
  else {
    control.value = value;
    if (control.matches("select")) control.dispatchEvent(new Event("change"));
    else control.form.requestSubmit();
  }
})"""


def paint(place: Path, url: str, times: int = 7) -> dict[str, Any]:
    """Milliseconds from the request of a page to its first paint, and of interactions."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("note: there is no Chromium: nothing is painted", file=sys.stderr)
        return {}
    from playwright.sync_api import sync_playwright

    with open_store(place, readonly=True) as store:
        runs = [run.id for run in store.runs(limit=3 * times + 3)]
    made = cases()
    pick = itertools.count()

    def series() -> str:
        case = made[(37 * next(pick)) % len(made)]
        return f"/series/{case.id}?{urlencode({'arch': GPU.arch})}"

    def result() -> str:
        n = next(pick)
        case = made[(37 * n) % len(made)]
        return f"/result/{runs[n % times]}/{case.id}?{urlencode({'device': GPU.name})}"

    cold: dict[str, Callable[[], str]] = {
        "overview": lambda: "/",
        "kernels": lambda: f"/kernels?q={next(pick) % 9}",
        "runs": lambda: f"/runs?offset={next(pick)}",
        "run": lambda: f"/run/{runs[next(pick) % len(runs)]}",
        "compare": lambda: (
            f"/compare?base={runs[(n := next(pick)) % times + 1]}&head={runs[n % times]}"
        ),
        "series": series,
        "result": result,
        "roofline": lambda: f"/roofline?run={runs[next(pick) % times]}&op=attention",
        "charts": lambda: f"/charts?run={runs[next(pick) % times]}",
        "micro": lambda: "/micro",
        "devices": lambda: f"/devices?offset={next(pick)}",
        "search": lambda: f"/search?q=batch={next(pick) % 60 + 2}",
    }
    figures: dict[str, Any] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})

        def painted(address: str) -> float:
            page.goto(url + address)
            return float(page.evaluate(_FCP))

        painted("/")  # the browser's own start
        for name, address in cold.items():
            pick = itertools.count()
            found = [painted(address()) for _ in range(times)]
            figures[f"paint_{name}_ms"] = statistics.median(found)
            figures[f"slowest_paint_{name}_ms"] = max(found)
        # By name: the page to start from, the control, and the value it is given; None clicks it.
        ways: dict[str, Callable[[int], tuple[str, str, str | None]]] = {
            "filter": lambda n: (f"/kernels?q={n}", "[name=backend]", BACKENDS[n % 4]),
            "next_rows": lambda n: (f"/kernels?offset={50 * n}", "a[rel=next]", None),
            "sort": lambda n: (f"/kernels?op=gemm&q={n}", "th.k-share a", None),
            "filter_run": lambda n: (f"/run/{runs[0]}?q={n}", "[name=backend]", "torch"),
            "search": lambda n: ("/runs", ".search input", f"m={64 * (n + 1)}"),
        }
        for name, way in ways.items():
            found = []
            for n in range(times):
                address, *action = way(n)
                painted(address)
                page.wait_for_timeout(_LOOK_MS)
                found.append(float(page.evaluate(_ACT, action)))
            figures[f"interaction_{name}_ms"] = statistics.median(found)
        page.goto(f"{url}/search?q=attention")
        figures["interaction_sort_in_place_ms"] = statistics.median(
            float(page.evaluate(_SORT)) for _ in range(times)
        )
        browser.close()
    return figures


# -- pushing


def push(folder: Path, count: int) -> dict[str, Any]:
    """Runs pushed by several clients at once, while the server is killed and started again."""
    here, there = folder / "here.sqlite", folder / "there.sqlite"
    with open_store(here) as store:
        fill(store, count)
        ids = [run.id for run in store.runs()]
    with open_store(there) as store:
        token = store.create_token("bench", Scope.WRITE)
    began = time.perf_counter()
    clients: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        process, url = stack.enter_context(serving(there))
        for first in range(CLIENTS):
            words = [sys.executable, "-m", "kernelmark", "push", url, *ids[first::CLIENTS]]
            words += ["--store", str(here), "--patience", "600", "-q"]
            environment = {**os.environ, "KERNELMARK_TOKEN": token}
            clients.append(subprocess.Popen(words, env=environment))
        while _count(there) < 0.4 * count * CASES:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        at_kill = _count(there)
        stack.enter_context(serving(there, int(url.rpartition(":")[2])))
        failed = sum(client.wait() != 0 for client in clients)
    spent = time.perf_counter() - began
    return {
        "push_runs": count,
        "push_s": spent,
        "push_per_s": count * CASES / spent,
        "push_stored_at_kill": at_kill,
        "push_failed_clients": failed,
        **_difference(here, there, ids),
    }


def _count(place: Path) -> int:
    with contextlib.closing(sqlite3.connect(place, timeout=60)) as connection:
        found = connection.execute("SELECT count(*) FROM results WHERE metrics IS NULL").fetchone()
        return int(found[0])


def _difference(here: Path, there: Path, ids: Sequence[str]) -> dict[str, int]:
    lost = changed = 0
    with open_store(here, readonly=True) as a, open_store(there, readonly=True) as b:
        for run_id in ids:
            sent = {(r.case.id, r.device): r for r in a.result_set(run_id).results}
            got = {(r.case.id, r.device): r for r in b.result_set(run_id).results}
            lost += len(sent.keys() - got.keys())
            changed += sum(sent[key] != got[key] for key in sent.keys() & got.keys())
    return {
        "push_lost": lost,
        "push_changed": changed,
        "push_doubled": _count(there) - (len(ids) * CASES - lost),
    }


if __name__ == "__main__":
    sys.exit(main())
