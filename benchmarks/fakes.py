"""Fakes: kernels that do not do the work of every launch are refused, and honest ones are not.

    python benchmarks/fakes.py [-d cpu|cuda:0] [--tries 20] [--only TEXT ...] [-o results.json]
    python benchmarks/fakes.py --quick      one try each, few honest cases; writes no file
    python benchmarks/fakes.py --beside N   N honest cases beside a busy process, on the CPU

The fakes are the kernel files in tests/fakes. Those in its folder `limits` are known not to be
caught by a check in the same process: they are run and listed, and no bar counts them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from kernelmark import backends
from kernelmark.backends.numpy import set_threads
from kernelmark.core import codec
from kernelmark.core.dtype import DTYPES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import ProblemError, Unsupported, UsageError
from kernelmark.core.result import Case, Result
from kernelmark.core.timing import Cache, Timing
from kernelmark.devices.base import Device
from kernelmark.ops import registry as ops
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.execute import execute, find_backend
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.targets import find
from kernelmark_dev import evidence

ROOT = Path(__file__).parent.parent
FAKES = ROOT / "tests" / "fakes"
sys.path.insert(0, str(FAKES))
import _list as listing  # noqa: E402

BESIDE = "honest_beside.json"
RESULTS = {"cpu": "fakes_cpu.json", "gpu": "gpu_fakes.json"}
REASON_CHARACTERS = 160
# By value: a fake may also be faster than the hardware can be.
REFUSED = ("wrong", "impossible")
LIMIT_TRIES = 3
# What kernel files were seen to do.
KNOWN = (
    "prepared_answers",
    "kept_answers",
    "cpu_poisoned_only",
    "gpu_poisoned_only",
    "one_in_four",
    "gpu_one_in_four",
    "checked_positions",
    "first_set_computes_all",
    "zeroed_inputs",
    "replaced_inputs",
    "cpu_keeps_tenth",
    "gpu_keeps_tenth",
)
LEAST_HONEST = 200
# Honest cases of a backend at most. IREE compiles each of its own.
MOST_HONEST = {"cpu": {"iree": 12}, "gpu": {}}
MOST_OF_ANY = {"cpu": 110, "gpu": 72}
# One block is the hardest to judge: what is checked is drawn once. Long enough to launch every set
# of cold timing several times, as a fake that skips later launches of a set is honest until then.
TIMING = Timing(allocations=1, max_allocations=1, min_samples=16, min_sample_s=0.002, warmup_s=0.01)
SECONDS = {"cpu": {Cache.HOT: 0.03, Cache.COLD: 0.2}, "gpu": {Cache.HOT: 0.01, Cache.COLD: 0.02}}
HONEST_TIMING = Timing.preset("quick", allocations=2, max_allocations=2, max_s=0.02, warmup_s=0.01)
SHAPES: dict[str, list[dict[str, Any]]] = {
    "gemm": [
        {"m": 256, "n": 256, "k": 256},
        {"m": 192, "n": 320, "k": 512, "tb": "t"},
        {"m": 384, "n": 256, "k": 128, "ta": "t"},
        {"m": 7, "n": 13, "k": 5},
        {"m": 1, "n": 1, "k": 1},
        {"m": 1, "n": 1024, "k": 512, "tb": "t"},
        {"m": 100, "n": 72, "k": 200, "ta": "t", "tb": "t"},
        {"m": 128, "n": 96, "k": 160, "tb": "t", "bias": True},
        {"m": 128, "n": 96, "k": 160, "tb": "t", "beta": 2.0, "alpha": 0.5},
        {"m": 64, "n": 64, "k": 4096, "tb": "t"},
    ],
    "batched_gemm": [
        {"batch": 8, "m": 64, "n": 64, "k": 128, "tb": "t"},
        {"batch": 3, "m": 65, "n": 97, "k": 80},
        {"batch": 1, "m": 5, "n": 3, "k": 11},
    ],
    "batched_gemm_quant": [
        {"batch": 4, "m": 64, "n": 64, "k": 256, "scheme": "a8w8", "bias": True},
        {"batch": 3, "m": 5, "n": 72, "k": 400, "scheme": "a8w8", "c_order": "mbn"},
        {"batch": 4, "m": 64, "n": 192, "k": 512, "scheme": "a8w8_group", "bias": True},
        {"batch": 4, "m": 64, "n": 64, "k": 256, "scheme": "a16wfp4", "a_order": "mbk"},
        {"batch": 2, "m": 3, "n": 40, "k": 2080, "scheme": "afp4wfp4"},
    ],
    "attention": [
        {"batch": 2, "heads": 4, "seq": 128, "dim": 64},
        {"batch": 2, "heads": 4, "seq": 128, "dim": 64, "causal": True, "layout": "bshd"},
        {"heads_q": 8, "heads_kv": 2, "seq": 96, "dim": 64, "causal": True},
        {"batch": 2, "heads_q": 8, "heads_kv": 2, "seq_q": 1, "seq_kv": 512, "dim": 128},
        {"heads": 3, "seq_q": 17, "seq_kv": 65, "dim": 32},
    ],
    "conv": [
        {"n": 2, "c": 32, "h": 14, "w": 14, "k": 32, "r": 3, "s": 3, "pad": 1, "layout": "nhwc"},
        {"n": 2, "c": 32, "h": 15, "w": 13, "k": 32, "r": 3, "s": 3, "stride": 2},
        {"n": 2, "c": 32, "h": 10, "w": 10, "k": 64, "r": 1, "s": 1, "groups": 2},
        {"n": 1, "c": 3, "h": 9, "w": 11, "k": 5, "r": 3, "s": 2, "dilation": 2},
        {"n": 4, "c": 64, "h": 14, "w": 14, "k": 64, "r": 1, "s": 1, "layout": "nhwc"},
    ],
    "copy": [{"n": 1}, {"n": 1003}, {"n": 2**18}],
}
_BUSY = """
import os, random, sys, time
import numpy as np
os.sched_setaffinity(0, {int(sys.argv[1])})
values = np.ones(2**22)
while True:
    end = time.monotonic() + random.uniform(0, 0.5)
    while time.monotonic() < end:
        values += 1.0
    time.sleep(random.uniform(0, 0.5))
"""
_opened: Device | None = None  # in the process that measures
Row = dict[str, Any]
Bar = tuple[str, str, bool]


def fake_cases(kind: str, tries: int, folder: Path = FAKES) -> list[Case]:
    """Each fake, hot and cold, `tries` times; those that were found in the wild are tried as often
    as asked, further ideas a quarter as often."""
    threads = 1 if kind == "cpu" else 0  # on a busy machine two BLAS threads wait for each other
    return [
        Case(
            problem=fake.problem,
            backend=backends.canonical(str(fake.path)),
            timing=dataclasses.replace(
                TIMING,
                cache=fake.cache,
                threads=threads,
                max_s=SECONDS[kind][fake.cache],
                seed=number,
            ),
        )
        for fake in listing.fakes(kind, folder)
        for number in range(tries if fake.path.stem in KNOWN else -(-tries // 4))
    ]


def honest_cases(info: DeviceInfo) -> list[Case]:
    """What every backend here computes, over ops, dtypes and shapes, by turns hot and cold, and
    flushed where launches are enqueued."""
    kind = _kind(info)
    caches = (Cache.HOT, Cache.COLD) if kind == "cpu" else tuple(Cache)
    chosen: list[Case] = []
    for backend in [*backends.registry.names(), *_honest_files(kind)]:
        turns = itertools.cycle(caches)
        found = [case for case in _of_backend(backend) if _can(case, info)]
        most = MOST_HONEST[kind].get(backend, MOST_OF_ANY[kind])
        step = max(1.0, len(found) / most)
        some = [found[int(i * step)] for i in range(min(len(found), most))]
        chosen += [
            dataclasses.replace(c, timing=dataclasses.replace(HONEST_TIMING, cache=next(turns)))
            for c in some
        ]
    return chosen


def beside_cases(tries: int) -> list[Case]:
    """Honest kernel files on one core, hot and cold, by turns until there are `tries`."""
    files = [*sorted((FAKES / "honest").glob("*.py")), ROOT / "examples" / "gemm_numpy.py"]
    plain = FAKES / "honest" / "plain.py"
    pairs = [*((path, "gemm") for path in files), *((plain, op) for op in listing.SHAPES["cpu"])]
    turns = itertools.product(range(tries), pairs, (Cache.HOT, Cache.COLD))
    return [
        Case(
            problem=ops.get(op).problem(dtype="f32", **listing.SHAPES["cpu"][op]),
            backend=backends.canonical(str(path)),
            timing=dataclasses.replace(
                TIMING, cache=cache, threads=1, max_s=SECONDS["cpu"][cache], seed=number
            ),
        )
        for number, (path, op), cache in itertools.islice(turns, tries)
    ]


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Another process that works for up to half a second and rests as long, on the core that one
    thread is timed on."""
    core = min(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", _BUSY, str(core)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _of_backend(backend: str) -> Iterator[Case]:
    if backend == "fake":
        return
    for op, shapes in SHAPES.items():
        for shape, dtype in itertools.product(shapes, DTYPES):
            try:
                problem = ops.get(op).problem(dtype=dtype, **shape)
            except ProblemError:
                continue  # the op has no such dtype
            yield Case(problem=problem, backend=backend)


def _honest_files(kind: str) -> list[str]:
    """Kernel files that say which problems they can do."""
    name = "gemm_numpy.py" if kind == "cpu" else "gemm_triton.py"
    return [backends.canonical(str(ROOT / "examples" / name))]


def _can(case: Case, info: DeviceInfo) -> bool:
    try:
        find_backend(case, info)
    except Unsupported:
        return False
    return True


def _kind(info: DeviceInfo) -> str:
    return "cpu" if info.kind == "cpu" else "gpu"


def run(device: str, cases: Sequence[Case], *, what: str) -> list[Result]:
    """Results as they come from workers, with a line now and then."""
    start = time.perf_counter()
    results: list[Result] = []
    for event in LocalRunner([device], timeout_s=120).run(cases):
        if isinstance(event, CaseFinished):
            results.append(event.result)
            if len(results) % 100 == 0:
                spent_s = time.perf_counter() - start
                print(f"{what}: {len(results)} of {len(cases)}, {spent_s:.0f} s", flush=True)
    return results


def run_here(device: str, cases: Sequence[Case]) -> list[Result]:
    """Results of cases measured in one process: a worker is replaced after every wrong result, and
    starting a thousand of them would take an hour. Only what failed otherwise ends the process, as
    it may have broken the device's context."""
    results: list[Result] = []
    begun, name = time.perf_counter(), ""
    pool = _process(device)
    for case in cases:
        if Path(case.backend).stem != name:
            name = Path(case.backend).stem
            print(f"{time.perf_counter() - begun:5.0f} s  {name}", flush=True)
        document = pool.submit(_execute, codec.to_document(case)).result()
        results.append(codec.from_document(document, Result))
        if results[-1].status.value not in ("ok", *REFUSED):
            print(f"         {results[-1].status}: {shortened(results[-1].error)}", flush=True)
            pool.shutdown()
            pool = _process(device)
    pool.shutdown()
    return results


def _process(device: str) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, initializer=_open, initargs=(device,))


def _open(device: str) -> None:
    kind, info = find(device)
    global _opened
    _opened = kind.open(info.index, 1 if info.kind == "cpu" else 0)
    if info.kind == "cpu":
        set_threads(1)  # two BLAS threads on one core wait for each other


def _execute(document: dict[str, Any]) -> dict[str, Any]:
    assert _opened is not None
    case = codec.from_document(document, Case)
    return codec.to_document(execute(case, _opened, 0, lambda phase: None))


def rows_of(results: Iterable[Result], *, by_file: bool) -> list[Row]:
    """A row for each fake, or for each honest backend and dtype, with its statuses."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        case = result.case
        more = str(case.timing.cache) if by_file else next(iter(case.problem.dtypes.values()))
        groups.setdefault((Path(case.backend).stem, case.problem.op, more), []).append(result)
    names = ("fake", "op", "cache") if by_file else ("backend", "op", "dtype")
    return [
        {
            **dict(zip(names, key, strict=True)),
            "statuses": dict(Counter(str(r.status) for r in some)),
            "median_us": _median_us(some),
            "reason": next((shortened(r.error) for r in some if r.error), ""),
        }
        for key, some in sorted(groups.items())
    ]


def _median_us(results: Iterable[Result]) -> float | None:
    times = [r.measurement.median_s for r in results if r.measurement is not None]
    return round(1e6 * statistics.median(times), 2) if times else None


def gains_of(results: Sequence[Result]) -> Row:
    """What launches on unchanged inputs gained, as fractions, and how many times depend on data."""
    checks = [r.check for r in results if r.check is not None]
    gains = [c.fresh_ratio - 1 for c in checks if c.fresh_ratio is not None]
    codes = [w.code for r in results if r.measurement is not None for w in r.measurement.warnings]
    quantiles = np.quantile(gains, (0, 0.05, 0.5, 0.95, 1)).round(4).tolist() if gains else []
    names = ("min", "p5", "median", "p95", "max")
    return {
        **dict(zip(names, quantiles, strict=False)),
        "data_dependent": codes.count("data-dependent"),
        "audited_slower": codes.count("audited-slower"),
    }


def shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS else f"{line[: REASON_CHARACTERS - 1]}…"


def fake_bars(results: Sequence[Result], tries: int) -> list[Bar]:
    files = len({r.case.backend for r in results})
    passed = sum(r.status.value == "ok" for r in results)
    other = sum(r.status.value not in ("ok", *REFUSED) for r in results)
    return [
        (
            f"{files} fakes, hot and cold, {tries} tries each, or a quarter: none ok",
            f"{passed} of {len(results)} ok",
            bool(results) and not passed,
        ),
        ("none of them failed instead of being refused", f"{other} failed", not other),
    ]


def honest_bar(results: Sequence[Result], least: int) -> Bar:
    fine = sum(r.status.value == "ok" for r in results)
    return (
        f"{least} honest cases or more, all backends, ops and dtypes here: none refused",
        f"{len(results) - fine} of {len(results)} refused",
        fine == len(results) >= least,
    )


def report(title: str, rows: Iterable[Row]) -> None:
    print(title)
    for row in rows:
        name = " ".join(str(value) for value in list(row.values())[:3])
        statuses = ", ".join(f"{status} {count}" for status, count in row["statuses"].items())
        print(f"  {name:50} {statuses:30} {row['reason'][:90]}")


def beside(tries: int, info: DeviceInfo, output: Path) -> int:
    """Try honest kernels beside a busy process, and write the figures."""
    with busy_process():
        results = run_here("cpu", beside_cases(tries))
    refused = [r for r in results if r.status.value != "ok"]
    unreliable = sum(r.measurement is not None and not r.measurement.reliable for r in results)
    bars = [
        (
            f"{tries} honest cases beside a process that is busy by turns: none refused",
            f"{len(refused)} refused, {unreliable} unreliable",
            not refused,
        )
    ]
    print(evidence.bars_text(bars))
    figures = {
        "cases": rows_of(results, by_file=True),
        "unreliable": unreliable,
        "refused": [f"{r.case.series}: {r.status} {shortened(r.error)}" for r in refused],
    }
    title = "Honest kernels beside a busy process, on a CPU"
    evidence.write(output, title=title, bars=bars, figures=figures, device=info)
    return 0 if not refused else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-d", "--device", default="cpu")
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="fakes by name")
    parser.add_argument(
        "--beside", type=int, metavar="N", help="only N honest cases, beside a busy process (CPU)"
    )
    parser.add_argument("--quick", action="store_true", help="one try each; writes no file")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    try:
        info = find(given.device)[1]
    except UsageError as error:
        print(f"{error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    kind, tries = _kind(info), 1 if given.quick else given.tries
    if given.beside:
        return beside(given.beside, info, given.output or ROOT / "benchmarks" / "results" / BESIDE)

    cases = fake_cases(kind, tries)
    if given.only:
        cases = [c for c in cases if any(text in c.backend for text in given.only)]
    results = run_here(given.device, cases)
    rows = rows_of(results, by_file=True)
    report("fakes", rows)
    bars = fake_bars(results, tries)
    figures: dict[str, Any] = {"tries": tries, "fakes": rows}

    if not given.only:
        honest = honest_cases(info)[:: 8 if given.quick else 1]
        # A library may refuse what its backend has no rule for: nothing was computed there.
        found = run(given.device, honest, what="honest")
        fine = [r for r in found if r.status.value != "unsupported"]
        bad = [r for r in fine if r.status.value != "ok"]
        figures["honest"] = rows_of(fine, by_file=False)
        figures["refused"] = [f"{r.case.series}: {r.status} {shortened(r.error)}" for r in bad]
        figures["honest_gains"] = gains_of(fine)
        print("gains of honest kernels", figures["honest_gains"])
        report("honest cases that are not ok", rows_of(bad, by_file=False))
        bars.append(honest_bar(fine, 1 if given.quick else LEAST_HONEST))
        # Last, and in workers of their own: they leave threads and a wrong clock behind.
        limits = fake_cases(kind, min(tries, LIMIT_TRIES), FAKES / "limits")
        figures["limits"] = rows_of(run(given.device, limits, what=""), by_file=True)
        report("known not to be caught", figures["limits"])

    print(evidence.bars_text(bars))
    if not (given.quick or given.only):
        evidence.write(
            given.output or ROOT / "benchmarks" / "results" / RESULTS[kind],
            title=f"Fakes: kernels that do not do the work, on a {kind.upper()}",
            bars=bars,
            figures=figures,
            device=info,
            libraries=evidence.libraries("torch", "triton", "cublaslt"),
        )
    return 0 if all(holds for *_, holds in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
