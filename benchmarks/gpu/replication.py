"""Replication: does the interval of one default run hold for another run?

    python benchmarks/gpu/replication.py [-d cuda:0] [-o results.json] [--processes 12]
    python benchmarks/gpu/replication.py --part 1/3 --budget-s 500 -o part1.json.gz
    python benchmarks/gpu/replication.py --merge part1.json.gz part2.json.gz part3.json.gz
    python benchmarks/gpu/replication.py --gpus one.json.gz other.json.gz -o gpu_gpus.json

Every process is a fresh worker, started by the runner that `kmark run` uses, and measures all cases
once, in an order of its own. Asked: how often the 95 % interval of a run contains the mean over the
runs; how many rows `kmark compare` calls changed between two of these equal runs; how many
slowdowns of 3 % it finds. A slowdown is injected in two ways: truly, by launches that are followed
by a spin (some cases in some processes), and into the samples of a run that was measured without
one (all cases, an eighth of the rows of a run at a time, as few changed rows are harder to find).

A process takes about a minute, so that all of them may need several calls: `--part` measures some
of the processes and keeps all results in a file, `--merge` judges what such files hold.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import gzip
import itertools
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.api.compare import compare
from kernelmark.backends.base import Backend, Kernel
from kernelmark.compare.verdicts import ALARMS
from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.result import Case, Measurement, Result, ResultSet, Run, Status
from kernelmark.core.timing import Timing
from kernelmark.core.verdict import VerdictStatus
from kernelmark.devices.base import ArgumentSet
from kernelmark.devices.fake import SCRIPT_VARIABLE
from kernelmark.runners import execute
from kernelmark.runners.ab import Side, compile_ahead
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.targets import find
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_replication.json"
# The first three fall on several times by the state of the block scheduler: see placement.py.
GEMMS = (
    (7, 13824, 5120),
    (24, 7168, 18432),
    (1, 13824, 5120),
    (1, 4096, 4096),
    (4, 14336, 4096),
    (8, 8192, 8192),
    (12, 4096, 14336),
    (16, 6144, 4096),
    (16, 28672, 4096),
    (32, 5120, 5120),
    (48, 7168, 2048),
    (48, 12288, 4096),
    (64, 4096, 4096),
    (128, 8192, 1024),
    (256, 2048, 7168),
    (512, 4096, 4096),
    (1024, 1024, 1024),
    (2048, 4096, 4096),
)
OTHERS = (
    "attention heads=16 seq=1024 dim=128 dtype=bf16 causal=yes",
    "attention batch=4 heads=8 seq=512 dim=64 dtype=bf16",
    "attention heads=32 seq=2048 dim=128 dtype=bf16",
    "attention batch=8 heads=8 seq=1024 dim=64 dtype=bf16 causal=yes",
    "conv n=32 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 layout=nhwc dtype=f16",
    "conv n=32 c=256 h=28 w=28 k=512 r=1 s=1 layout=nhwc dtype=f16",
)
LIBRARIES = ("cublaslt", "torch", "triton")
EFFECT = 0.03
SLOWED_IN_SAMPLES = 8  # one row in so many, for each pair of runs
SLOWED_IN_LAUNCHES = 3  # one case in so many, for each process
SPUN_CASES = 12
CASE_S = 1.0  # a default case with all around it, until one was measured
JITTER = 0.004  # of fake devices

Sets = Sequence[ArgumentSet]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What one fresh process measured; `slowed` are the ids of cases with an injected slowdown."""

    number: int
    seconds: float
    results: tuple[Result, ...]
    slowed: frozenset[str] = frozenset()

    @property
    def by_case(self) -> dict[str, Result]:
        return {result.case.id: result for result in self.results}

    def document(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "seconds": self.seconds,
            "results": [codec.to_document(result) for result in self.results],
            "slowed": sorted(self.slowed),
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Process:
        return cls(
            number=document["number"],
            seconds=document["seconds"],
            results=tuple(codec.from_document(one, Result) for one in document["results"]),
            slowed=frozenset(document["slowed"]),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All processes: those of default runs, and those with kernels that spin. `sources` are
    digests of the code that measured them."""

    plain: tuple[Process, ...]
    spun: tuple[Process, ...]
    info: DeviceInfo
    libraries: Mapping[str, str]
    sources: tuple[str, ...] = (evidence.SOURCES,)


Keep = Callable[[list[Process]], object]
PARTS_SUFFIX = ".gz"


# -- measuring


def make_cases(info: DeviceInfo, timing: Timing, most: int | None = None) -> list[Case]:
    """(problem, backend) pairs; with `most`, evenly spread over them after the first three."""
    if info.kind == "fake":
        problems = [f"gemm m={8 * i} n=8 k=8 dtype=f32" for i in range(1, 17)]
        made = [Case(problem=ops.parse(p), backend="fake", timing=timing) for p in problems]
    else:
        made = [
            Case(problem=ops.parse(f"gemm m={m} n={n} k={k} a=bf16 b=bf16 tb=t"), backend=b)
            for m, n, k in GEMMS
            for b in LIBRARIES
        ]
        made += [Case(problem=ops.parse(p), backend=b) for p in OTHERS for b in LIBRARIES[1:]]
        made = [dataclasses.replace(case, timing=timing) for case in made]
    if most is None or most >= len(made):
        return made
    # The named problems on cuBLASLt are the first of each three.
    first = [case for at, case in enumerate(made) if at in (0, 3, 6)]
    rest = [case for case in made if case not in first]
    return first + spread_over(rest, most - len(first))


def spread_over(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of the items, evenly."""
    count = max(0, min(count, len(items)))
    return [items[at * len(items) // count] for at in range(count)]


def fake_variables(info: DeviceInfo, number: int) -> dict[str, str]:
    """Give each process of a fake device noise of its own."""
    script = {"jitter": JITTER, "seed": number}
    return {SCRIPT_VARIABLE: json.dumps(script)} if info.kind == "fake" else {}


def run_process(info: DeviceInfo, cases: Sequence[Case], number: int) -> Process:
    """Measure every case once in a fresh worker, in an order of its own."""
    begun = time.monotonic()
    shuffled = random.Random(number).sample(cases, len(cases))
    # jobs=0: all is compiled before, so that no compiler runs beside a timed kernel.
    runner = LocalRunner([info.name], timeout_s=120, jobs=0, variables=fake_variables(info, number))
    events = runner.run(shuffled)
    results = tuple(event.result for event in events if isinstance(event, CaseFinished))
    return Process(number=number, seconds=time.monotonic() - begun, results=results)


class SpunBackend:
    """A backend whose kernels are followed by a spin."""

    def __init__(self, inner: Backend, cycles: int) -> None:
        self._inner = inner
        self._cycles = cycles

    def prepare(self, problem: Any, config: Any, device: Any, sets: Sets) -> Kernel:
        from aa_worker import Spun

        return Spun(self._inner.prepare(problem, config, device, sets), device, self._cycles)


def serve_spun(name: str) -> None:
    """Measure the cases on stdin, each followed by its spin, by the worker's own function."""
    kind, info = find(name)
    device = kind.open(info.index)
    inner = execute.find_backend
    for document, cycles in json.load(sys.stdin):
        case = codec.from_document(document, Case)

        def found(case: Case, info: DeviceInfo, cycles: int = cycles) -> Any:
            return SpunBackend(inner(case, info), cycles)

        with mock.patch.object(execute, "find_backend", found):
            result = execute.execute(case, device, 0, lambda phase, **more: None)
        print(codec.dumps(result), flush=True)


def is_slowed(at: int, number: int) -> bool:
    """Whether the case at this place is slowed in this process."""
    return (at + number) % SLOWED_IN_LAUNCHES == 0


def spin_cycles(result: Result, least: int) -> int:
    """Cycles that make a launch and its spin of `least` cycles longer by EFFECT."""
    measurement = result.measurement
    assert measurement is not None
    hertz = (measurement.clock_mhz or 1000.0) * 1e6
    return round(EFFECT * (measurement.median_s * hertz + least))


def run_spun(info: DeviceInfo, known: Sequence[Result], number: int) -> Process:
    """Measure some cases in a fresh process, each followed by a spin, a third of them slowed."""
    from aa_worker import LEAST_CYCLES

    begun = time.monotonic()
    slowed = {r.case.id for at, r in enumerate(known) if is_slowed(at, number)}
    order = random.Random(number).sample(known, len(known))
    asked = [
        [codec.to_document(r.case), spin_cycles(r, LEAST_CYCLES) if r.case.id in slowed else 0]
        for r in order
    ]
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "-d", info.name, "--spun"],
        input=json.dumps(asked),
        env=os.environ | fake_variables(info, number),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    results = tuple(codec.loads(line, Result) for line in done.stdout.splitlines())
    seconds = time.monotonic() - begun
    return Process(number=number, seconds=seconds, results=results, slowed=frozenset(slowed))


def within(
    budget_s: float, begun: float, numbers: Sequence[int], one: Callable[[int], Process], keep: Keep
) -> list[Process]:
    """Processes one after the other, as long as another one of their duration fits."""
    made: list[Process] = []
    for number in numbers:
        expected = max((process.seconds for process in made), default=0.0)
        left = budget_s - (time.monotonic() - begun)
        if made and expected > left:
            print(f"{len(numbers) - len(made)} processes left out: {left:.0f} s are left")
            break
        made.append(one(number))
        statuses = collections.Counter(str(result.status) for result in made[-1].results)
        print(f"process {number}: {made[-1].seconds:.1f} s, {dict(statuses)}", flush=True)
        keep(made)
    return made


def measure(given: argparse.Namespace, info: DeviceInfo) -> Measured:
    """Run the processes of this part. A file of parts is written after each process, so that a call
    that is cut short leaves those before."""
    begun = time.monotonic()
    cases = make_cases(info, Timing.preset(given.timing), given.cases)
    cases = [case for case in cases if re.search(given.only, case.problem.key)]
    part, parts = given.part
    numbers = [n for n in range(given.processes) if n % parts == part - 1]
    spun_numbers = [n for n in range(given.spun_processes) if n % parts == part - 1]
    if info.kind != "fake":
        compile_ahead(Side(name="here"), cases, info.name, len(os.sched_getaffinity(0)))
    print(f"{len(cases)} cases compiled in {time.monotonic() - begun:.0f} s", flush=True)
    libraries = {} if info.kind == "fake" else evidence.libraries(*LIBRARIES)

    def measured(plain: Sequence[Process], spun: Sequence[Process]) -> Measured:
        found = Measured(plain=tuple(plain), spun=tuple(spun), info=info, libraries=libraries)
        if given.output.suffix == PARTS_SUFFIX:
            save(given.output, found)
        return found

    reserve_s = len(spun_numbers) * (10.0 + SPUN_CASES * CASE_S)
    plain = within(
        given.budget_s - reserve_s,
        begun,
        numbers,
        functools.partial(run_process, info, cases),
        lambda made: measured(made, ()),
    )
    first = plain[0].by_case if plain else {}
    good = [first[c.id] for c in cases if c.id in first and first[c.id].status is Status.OK]
    known = spread_over([r for r in good if r.measurement is not None], SPUN_CASES)
    spun = within(
        given.budget_s,
        begun,
        spun_numbers,
        functools.partial(run_spun, info, known),
        lambda made: measured(plain, made),
    )
    return measured(plain, spun)


# -- files of parts


def save(path: Path, measured: Measured) -> None:
    document: dict[str, Any] = {
        name: [process.document() for process in getattr(measured, name)]
        for name in ("plain", "spun")
    }
    document["info"] = codec.plain(measured.info)
    document |= {"libraries": dict(measured.libraries), "sources": list(measured.sources)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode()))


def read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def load(paths: Sequence[Path]) -> Measured:
    """The processes of all files, in order. Refused: the same process twice, and plain processes on
    several GPUs, which are not equally fast (`judge_gpus`)."""
    documents = [read(path) for path in paths]
    gpus = sorted({document["info"]["uuid"] for document in documents if document["plain"]})
    if len(gpus) > 1:
        raise SystemExit(f"the files were measured on several GPUs: {', '.join(gpus)}")
    sources = sorted({digest for document in documents for digest in document["sources"]})
    if len(sources) > 1:
        print(f"warning: the files were measured by different code: {', '.join(sources)}")
    found: dict[str, list[Process]] = {"plain": [], "spun": []}
    for name, processes in found.items():
        processes += [Process.of(one) for document in documents for one in document[name]]
        processes.sort(key=lambda process: process.number)
        numbers = [process.number for process in processes]
        if len(set(numbers)) < len(numbers):
            raise SystemExit(f"the files hold a process twice: {name} {numbers}")
    return Measured(
        plain=tuple(found["plain"]),
        spun=tuple(found["spun"]),
        info=codec.read(documents[0]["info"], DeviceInfo, "info"),
        libraries=documents[0]["libraries"],
        sources=tuple(sources),
    )


# -- judging


def measurements(processes: Sequence[Process]) -> dict[str, list[Measurement]]:
    """The measurements of each case, in the order of processes, where every process has one."""
    found: dict[str, list[Measurement]] = {}
    for case in processes[0].by_case:
        results = [process.by_case.get(case) for process in processes]
        ok = [
            r.measurement
            for r in results
            if r is not None and r.status is Status.OK and r.measurement is not None
        ]
        if len(ok) == len(processes):
            found[case] = ok
    return found


def covers(one: Measurement, value_s: float) -> bool:
    return one.low_s <= value_s <= one.high_s


def result_set(process: Process, results: Sequence[Result] | None = None) -> ResultSet:
    """A process as a run, as a store or a file would hold it."""
    run = Run(id=f"process-{process.number}", started=0.0, environment=Environment())
    return ResultSet(run=run, results=process.results if results is None else tuple(results))


def statuses(base: ResultSet, head: ResultSet) -> dict[str, VerdictStatus]:
    """The verdict of `kmark compare` by its default rule, by the id of the case."""
    return {row.pair.shown.case.id: row.status for row in compare(base, head).rows}


def scaled(result: Result, factor: float) -> Result:
    """The result that a kernel slower by `factor` would have had, with the same noise."""
    found = result.measurement
    if found is None:
        return result
    blocks = tuple(
        dataclasses.replace(b, samples_s=tuple(factor * t for t in b.samples_s))
        for b in found.blocks
    )
    modes = tuple(dataclasses.replace(m, value_s=factor * m.value_s) for m in found.modes)
    slower = dataclasses.replace(
        found, blocks=blocks, low_s=factor * found.low_s, high_s=factor * found.high_s, modes=modes
    )
    return dataclasses.replace(result, measurement=slower)


def judge_pairs(processes: Sequence[Process]) -> dict[str, Any]:
    """Alarms between equal runs, and slowdowns in samples that are found, over all pairs."""
    rows = failing = 0
    alarms: collections.Counter[str] = collections.Counter()
    slowed: collections.Counter[str] = collections.Counter()
    found: collections.Counter[str] = collections.Counter()
    pairs = list(itertools.combinations(processes, 2))
    for number, (base, head) in enumerate(pairs):
        seen = statuses(result_set(base), result_set(head))
        rows += len(seen)
        alarms.update(case for case, status in seen.items() if status in ALARMS)
        failing += VerdictStatus.SLOWER in seen.values()
        chosen = set(sorted(seen)[number % SLOWED_IN_SAMPLES :: SLOWED_IN_SAMPLES])
        changed = [scaled(r, 1 + EFFECT) if r.case.id in chosen else r for r in head.results]
        seen = statuses(result_set(base), result_set(head, changed))
        slowed.update(chosen)
        found.update(case for case in chosen if seen[case] is VerdictStatus.SLOWER)
    return {
        "pairs": len(pairs),
        "rows": rows,
        "alarms": sum(alarms.values()),
        "pairs_with_a_slower_row": failing,
        "alarms_by_case": dict(alarms),
        "slowed_in_samples": sum(slowed.values()),
        "found_in_samples": sum(found.values()),
        "missed_by_case": dict(slowed - found),
    }


def judge_spun(processes: Sequence[Process]) -> dict[str, Any]:
    """Slowdowns of launches that are found, over all pairs of processes with spinning kernels."""
    changed = found = same = alarms = 0
    ratios = []
    missed: list[str] = []
    for base, head in itertools.combinations(processes, 2):
        seen = compare(result_set(base), result_set(head))
        for row in seen.rows:
            case = row.pair.shown.case
            sides = case.id in base.slowed, case.id in head.slowed
            if sides[0] == sides[1]:
                same += 1
                alarms += row.status in ALARMS
                continue
            wanted = VerdictStatus.SLOWER if sides[1] else VerdictStatus.FASTER
            changed += 1
            found += row.status is wanted
            ratio = row.verdict.ratio or math.nan
            ratios.append(ratio if sides[1] else 1 / ratio)
            if row.status is not wanted:
                missed.append(f"{case.backend} {case.problem.key}: {row.status} {ratios[-1]:.4f}")
    return {
        "changed_rows": changed,
        "found": found,
        "median_ratio": statistics.median(ratios) if ratios else None,
        "equal_rows": same,
        "alarms_on_equal_rows": alarms,
        "missed": missed,
    }


def judge_gpus(paths: Sequence[Path]) -> dict[str, Any]:
    """How the mean over processes of each case differs between GPUs of one model."""
    medians: dict[str, dict[str, list[float]]] = {}
    for document in map(read, paths):
        of_gpu = medians.setdefault(document["info"]["uuid"][:8], {})
        for process in map(Process.of, document["plain"]):
            for result in process.results:
                if result.measurement is not None:
                    name = f"{result.case.backend} {result.case.problem.key}"
                    of_gpu.setdefault(name, []).append(result.measurement.median_s)
    pairs = []
    for one, other in itertools.combinations(sorted(medians), 2):
        ratios = {
            name: statistics.fmean(medians[one][name]) / statistics.fmean(medians[other][name])
            for name in medians[one].keys() & medians[other].keys()
        }
        widest = max(ratios, key=lambda name: abs(math.log(ratios[name])))
        pairs.append(
            {
                "gpus": [one, other],
                "cases": len(ratios),
                "median_ratio": round(statistics.median(ratios.values()), 4),
                "widest_ratio": round(ratios[widest], 4),
                "widest_case": widest,
            }
        )
    processes = {gpu: max(map(len, cases.values())) for gpu, cases in medians.items()}
    return {"processes": processes, "pairs": pairs}


def case_row(first: Result, found: Sequence[Measurement]) -> dict[str, Any]:
    """What the runs of one case gave; times in µs."""
    medians = [one.median_s for one in found]
    mean_s = statistics.fmean(medians)
    return {
        "problem": first.case.problem.key,
        "backend": first.case.backend,
        "kernel": first.kernel.name,
        "mean_us": mean_s * 1e6,
        "spread": max(medians) / min(medians) - 1,
        "covered": sum(covers(one, mean_s) for one in found),
        "half_width": statistics.median(one.rel_half_width for one in found),
        "multimodal": sum(bool(one.modes) for one in found),
        "runs": [
            {
                "us": [round(x * 1e6, 4) for x in (one.median_s, one.low_s, one.high_s)],
                "blocks_us": [round(block.median_s * 1e6, 4) for block in one.blocks],
                "modes": [[round(m.value_s * 1e6, 4), round(m.share, 3)] for m in one.modes],
                "stop": str(one.stop),
            }
            for one in found
        ],
    }


def figures_of(measured: Measured) -> dict[str, Any]:
    processes = measured.plain
    known = measurements(processes)
    first = processes[0].by_case
    rows = [case_row(first[case], found) for case, found in known.items()]
    widths = [one.rel_half_width for found in known.values() for one in found]
    all_results = [result for process in processes for result in process.results]
    named = [r.case.id for r in processes[0].results if r.case.id not in known]
    return {
        "sources_measured_with": list(measured.sources),
        "processes": len(processes),
        "cases": len(rows),
        "runs": len(widths),
        "seconds_of_a_process": [round(process.seconds, 1) for process in processes],
        "timing": codec.plain(processes[0].results[0].case.timing),
        "statuses": dict(collections.Counter(str(r.status) for r in all_results)),
        "left_out": sorted({f"{first[c].case.backend} {first[c].case.problem.key}" for c in named}),
        "covered": sum(row["covered"] for row in rows),
        "median_half_width": statistics.median(widths),
        "comparisons": judge_pairs(processes) if len(processes) > 1 else {},
        "injected": judge_spun(measured.spun) if len(measured.spun) > 1 else {},
        "rows": sorted(rows, key=lambda row: (row["covered"], -row["spread"])),
    }


def ratio_text(part: int, whole: int) -> str:
    return f"{part / whole:.2%} of {whole}" if whole else "none"


def bars_of(figures: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    rows, runs, processes = figures["rows"], figures["runs"], figures["processes"]
    backend_names = {row["backend"] for row in rows}
    worst = rows[0]
    bars = [
        (
            "≥ 60 cases × ≥ 12 fresh processes, every case ok in each",
            f"{len(rows)} cases of {', '.join(sorted(backend_names))} × {processes}; "
            f"{figures['statuses']}",
            len(rows) >= 60 and processes >= 12 and set(figures["statuses"]) == {"ok"},
        ),
        (
            "the 95 % interval of a run covers the mean over processes in ≥ 94 %",
            ratio_text(figures["covered"], runs),
            figures["covered"] >= 0.94 * runs,
        ),
        (
            "and in ≥ 80 % for each single case",
            f"{worst['covered']} of {processes} at worst, by {worst['backend']} {worst['problem']}",
            worst["covered"] >= 0.8 * processes,
        ),
        (
            "median half-width ≤ 1.5 %",
            f"{figures['median_half_width']:.2%}",
            figures["median_half_width"] <= 0.015,
        ),
    ]
    if found := figures["comparisons"]:
        bars += [
            (
                "kmark compare over all pairs of these runs: ≤ 1 % of rows alarm",
                f"{ratio_text(found['alarms'], found['rows'])}; "
                f"{found['pairs_with_a_slower_row']} of {found['pairs']} pairs would fail",
                found["alarms"] <= 0.01 * found["rows"],
            ),
            (
                "≥ 90 % of slowdowns of 3 % found, put into the samples of one of two runs",
                ratio_text(found["found_in_samples"], found["slowed_in_samples"]),
                found["found_in_samples"] >= 0.9 * found["slowed_in_samples"] > 0,
            ),
        ]
    if spun := figures["injected"]:
        bars.append(
            (
                "≥ 90 % of slowdowns of 3 % found, by a spin after each launch",
                f"{ratio_text(spun['found'], spun['changed_rows'])}; "
                f"{spun['alarms_on_equal_rows']} alarms in {spun['equal_rows']} equal rows",
                spun["found"] >= 0.9 * spun["changed_rows"] > 0,
            )
        )
    return bars


def report(given: argparse.Namespace, measured: Measured) -> None:
    figures = figures_of(measured)
    bars = bars_of(figures)
    evidence.write(
        given.output,
        title="Replication: one default run against many, over fresh processes",
        bars=bars,
        figures=figures,
        device=measured.info,
        libraries=measured.libraries,
    )
    for row in figures["rows"]:
        print(
            f"{row['covered']:3}/{figures['processes']} covered  spread {row['spread']:6.2%}  "
            f"± {row['half_width']:6.2%}  {row['mean_us']:9.2f} µs  "
            f"{'modes' if row['multimodal'] else '':5}  {row['backend']:8} {row['problem']}"
        )
    print(evidence.bars_text(bars))


def report_gpus(given: argparse.Namespace) -> None:
    figures = judge_gpus(given.gpus)
    info = codec.read(read(given.gpus[0])["info"], DeviceInfo, "info")
    evidence.write(
        given.output,
        title="GPUs of one model against each other, means over fresh processes",
        bars=[],
        figures=figures,
        device=info,
        libraries=read(given.gpus[0])["libraries"],
    )
    print(json.dumps(figures, indent=1))


def part_of(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 1/3")
    return int(number), int(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("-d", "--device", default="cuda:0")
    parser.add_argument("--timing", default="default")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--spun-processes", type=int, default=5, help="with spinning kernels")
    parser.add_argument("--cases", type=int, help="fewer cases than all")
    parser.add_argument("--only", default="", help="problems that match this regular expression")
    parser.add_argument("--budget-s", type=float, default=570.0, help="seconds for this call")
    parser.add_argument("--part", type=part_of, default=(1, 1), help="1/3: every third process")
    parser.add_argument("--merge", type=Path, nargs="+", help="judge the files of parts")
    parser.add_argument("--spun", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--gpus", type=Path, nargs="+", help="compare the GPUs of files of parts")
    given = parser.parse_args()
    if given.gpus:
        report_gpus(given)
        return
    if given.merge:
        report(given, load(given.merge))
        return
    info = gpu_info(given.device)
    if given.spun:
        serve_spun(given.device)
        return
    measured = measure(given, info)
    if given.output.suffix != PARTS_SUFFIX:
        report(given, measured)


if __name__ == "__main__":
    main()
