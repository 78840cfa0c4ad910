"""Public files of other tools, read by kernelmark and by a small parser of their own (csv, json).

    python benchmarks/formats_agree.py FOLDER [--per-format N] [--only NAME] [--record]

FOLDER has checkouts of public repositories: aiter, vLLM, SGLang, MIOpen (its find-db unpacked),
GEKO, Kernel Tuner's benchmark_hub, TraceLens, HolisticTraceAnalysis, rocprofiler-compute, and
projects with tunableop_results0.csv. Of each format a sample is compared that depends on the names
only: every time with its problem, kernel or configuration, every size of a table, and every entry
of a config file. A file is `equal`, `refused` with a sentence, or `different`; the exit status is 1
if one differs.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import Result
from kernelmark.devices import registry
from kernelmark.tune import simulate
from kernelmark.tune.install import aiter_config
from kernelmark.tune.install.emitters import nearest
from kernelmark.workloads import importers, logs
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent / "results" / "formats_agree.json"
ENDS = (".csv", ".json", ".json.gz", ".txt", ".log", ".yaml")
MOST_BYTES = 8 << 20
PER_FORMAT = 40
PER_SLOW_FORMAT = 5  # files of some megabytes each
WANTED_FILES, WANTED_FORMATS = 200, 12
SHOWN = 20

# What is compared: facts of a file, each as often as it occurs.
Facts = Counter[tuple[Any, ...]]


@dataclass(frozen=True)
class Format:
    """How a format is recognised, and its two readers."""

    is_of: Callable[[Path], bool]
    theirs: Callable[[Path], Iterable[tuple[Any, ...]]]
    ours: Callable[[Path], Iterable[tuple[Any, ...]]]
    sample: int = PER_FORMAT


def text_of(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; the names of columns are without blanks."""
    table = csv.reader(io.StringIO(text_of(path)))
    names = [name.strip() for name in next(table, [])]
    return [dict(zip(names, row, strict=False)) for row in table if row]


def rounded(time_s: float) -> float:
    """Seconds to nine digits: sums and products of the readers may differ in the last bit."""
    return float(f"{time_s:.9g}")


def results(path: Path) -> tuple[Result, ...]:
    return importers.read(path, importers.Overrides()).results


def samples(result: Result) -> list[float]:
    blocks = result.measurement.blocks if result.measurement else ()
    return [rounded(time_s) for block in blocks for time_s in block.samples_s]


def imported(name: str) -> Callable[[Path], bool]:
    def is_of(path: Path) -> bool:
        importer = importers.recognized(path)
        return importer is not None and importer.name == name

    return is_of


def by(key: Callable[[Result], tuple[Any, ...]]) -> Callable[[Path], Iterator[tuple[Any, ...]]]:
    """A reader of the times in a file, each after the key of its result."""

    def read(path: Path) -> Iterator[tuple[Any, ...]]:
        for result in results(path):
            for time_s in samples(result):
                yield (*key(result), time_s)

    return read


# aiter's tables

GEMM = ("M", "N", "K", "B")
MOE = {"token": "m", "model_dim": "k", "inter_dim": "n", "expert": "e", "topk": "top_k"}


def aiter_sizes(row: dict[str, str]) -> tuple[int, ...]:
    row = {(name.upper() if name.upper() in GEMM else name): text for name, text in row.items()}
    if "topk" in row:
        return tuple(int(row[name]) for name in MOE)
    return tuple(int(row.get(name) or 1) for name in GEMM)


def aiter_times(path: Path) -> Iterator[tuple[Any, ...]]:
    for row in rows(path):
        time_us = float(row["us"])
        if 0 < time_us < math.inf:
            yield (*aiter_sizes(row), rounded(time_us * 1e-6))


def our_sizes(dims: Any) -> tuple[int, ...]:
    if "top_k" in dims:
        return tuple(dims[name] for name in MOE.values())
    return tuple(dims.get(name, 1) for name in ("m", "n", "k", "batch"))


def our_shapes(path: Path) -> set[tuple[int, ...]]:
    reading = logs.read([str(path)], form="aiter-csv")
    if reading.skipped:
        raise KernelmarkError("rows were rejected")
    return {our_sizes(call.problem.dims) for call in reading.workload.calls}


def is_aiter_table(path: Path) -> bool:
    return path.suffix == ".csv" and logs.recognized(str(path)) == "aiter-csv"


# TunableOp


def tunable_times(path: Path) -> Iterator[tuple[Any, ...]]:
    """Sizes are of column-major matrices: those of row-major ones are n, m, k."""
    for line in text_of(path).splitlines():
        cells = line.split(",")
        if cells[0] != "Validator" and 0 < float(cells[3]) < math.inf:
            yield (*tunable_sizes(cells[1]), cells[2].lower(), rounded(float(cells[3]) * 1e-3))


def tunable_sizes(text: str) -> tuple[int, ...]:
    _, n, m, k, *more = text.split("_")
    batch = int(more[more.index("B") + 1]) if "B" in more else 1
    return int(m), int(n), int(k), batch


def tunable_shapes(path: Path) -> set[tuple[int, ...]]:
    cells = [line.split(",") for line in text_of(path).splitlines()]
    return {tunable_sizes(row[1]) for row in cells if row[0] != "Validator"}


def our_tunable_shapes(path: Path) -> set[tuple[int, ...]]:
    reading = logs.read([str(path)], form="tunableop")
    if reading.skipped:
        raise KernelmarkError("rows were rejected")
    return {our_sizes(call.problem.dims) for call in reading.workload.calls}


# GEKO and Triton


def is_geko_list(path: Path) -> bool:
    return path.suffix == ".yaml" and logs.recognized(str(path)) == "geko"


def geko_sizes(path: Path) -> set[tuple[int, ...]]:
    """Sizes are M, N, batch and K of column-major matrices, a list on each line."""
    found = re.findall(r"^\s*-\s*\[([\d,\s]+)\]", text_of(path), re.MULTILINE)
    sizes = (tuple(map(int, text.split(","))) for text in found)
    return {(n, m, k, batch) for m, n, batch, k in sizes}


def our_geko_sizes(path: Path) -> set[tuple[int, ...]]:
    return {our_sizes(c.problem.dims) for c in logs.read([str(path)], form="geko").workload.calls}


def report_times(path: Path) -> Iterator[tuple[Any, ...]]:
    for row in rows(path):
        for name, text in row.items():
            match = re.search(r"\(([^()/]+)\)", name)
            if match and match[1] in UNITS_S and text:
                yield (rounded(float(text) * UNITS_S[match[1]]),)


# Profilers


def trace_times(path: Path) -> Iterator[tuple[Any, ...]]:
    document = json.loads(text_of(path), strict=False)
    for event in document["traceEvents"] if isinstance(document, dict) else document:
        is_kernel = isinstance(event, dict) and str(event.get("cat", "")).lower() == "kernel"
        if is_kernel and float(event.get("dur", 0)) > 0:
            yield event["name"], rounded(float(event["dur"]) * 1e-6)


def rocprof_times(path: Path) -> Iterator[tuple[Any, ...]]:
    """The launches of rocprofv3 and of rocprof 1; rows of several counters are of one launch."""
    seen = set()
    for row in rows(path):
        old = "BeginNs" in row
        begin, end = (
            (row["BeginNs"], row["EndNs"])
            if old
            else (row["Start_Timestamp"], row["End_Timestamp"])
        )
        name = row["KernelName"] if old else row["Kernel_Name"]
        launch = row.get("Process_Id"), row.get("Dispatch_Id"), begin
        if "Counter_Name" in row and launch in seen:
            continue
        seen.add(launch)
        if int(end) > int(begin):
            yield name, rounded((int(end) - int(begin)) * 1e-9)


# Google Benchmark, Kernel Tuner, MIOpen

UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def google_times(path: Path) -> Iterator[tuple[Any, ...]]:
    """The times of each benchmark together: its name becomes a problem, in another spelling."""
    groups: dict[str, list[float]] = {}
    for entry in json.loads(text_of(path))["benchmarks"]:
        if entry.get("run_type", "iteration") == "iteration" and not entry.get("error_occurred"):
            seconds = entry["real_time"] * UNITS_S[entry.get("time_unit", "ns")]
            if seconds > 0:
                groups.setdefault(entry.get("run_name", entry["name"]), []).append(rounded(seconds))
    return ((tuple(times),) for times in groups.values())


def our_google_times(path: Path) -> Iterator[tuple[Any, ...]]:
    return ((tuple(times),) for times in map(samples, results(path)) if times)


def space_times(path: Path) -> Iterator[tuple[Any, ...]]:
    """Milliseconds of every configuration; None for those that failed."""
    document = json.loads(text_of(path))
    seen = set()
    for config, time_ms in t4_rows(document) if "results" in document else cache_rows(document):
        if config not in seen:  # the first of a configuration counts
            seen.add(config)
            valid = isinstance(time_ms, int | float) and 0 < time_ms < 1e9
            yield config, rounded(time_ms * 1e-3) if valid else None


def cache_rows(document: dict[str, Any]) -> Iterator[tuple[frozenset[Any], Any]]:
    names = document.get("tune_params_keys") or list(document["tune_params"])
    for row in document["cache"].values():
        yield frozenset((name, row[name]) for name in names), row.get("time")


def t4_rows(document: dict[str, Any]) -> Iterator[tuple[frozenset[Any], Any]]:
    for entry in document["results"]:
        times = {item["name"]: item["value"] for item in entry["measurements"]}
        time_ms = times.get("time") if entry.get("invalidity", "correct") == "correct" else None
        yield frozenset(entry["configuration"].items()), time_ms


def our_space(path: Path) -> Iterator[tuple[Any, ...]]:
    space = simulate.read(path)
    points = space.points
    for codes, time_s in zip(points.codes, space.times_s, strict=True):
        settings = [values[code] for values, code in zip(points.values, codes, strict=True)]
        config = frozenset(zip(points.names, settings, strict=True))
        yield config, None if math.isnan(time_s) else rounded(float(time_s))


def is_space(mark: str) -> Callable[[Path], bool]:
    def is_of(path: Path) -> bool:
        if not path.name.endswith((".json", ".json.gz")):
            return False
        document = json.loads(text_of(path))
        return isinstance(document, dict) and mark in document

    return is_of


_RECORD = re.compile(r"(\d+)-(\d+)-(\d+)-(\d+)x(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-.*-([FBW])(?:_.*)?\Z")


def find_db_times(path: Path) -> Iterator[tuple[Any, ...]]:
    """Channels, image, filter, filters, batch, and each solver with its time. MIOpen names the
    input of what the convolution computes first: backwards, that is its output."""
    for line in text_of(path).splitlines():
        key, _, record = line.partition("=")
        match = _RECORD.match(key)
        if match is None:
            continue  # three dimensions
        c, h, w, r, s, k, out_h, out_w, n = map(int, match.groups()[:9])
        if match[10] != "F":
            c, h, w, k = k, out_h, out_w, c
        solvers: dict[str, float] = {}
        for item in record.split(";"):
            name, _, text = item.partition(":")
            values = text.split(",")
            if name.startswith("miopenConvolution"):  # version 1.0 has the solver second
                name, *values = values
            solvers.setdefault(name, float(values[0]))
        for name, time_ms in solvers.items():
            if time_ms > 0:
                yield n, c, h, w, k, r, s, name, rounded(time_ms * 1e-3)


def our_find_db_times(path: Path) -> Iterator[tuple[Any, ...]]:
    for result in results(path):
        dims = result.case.problem.dims
        if "t" in dims:
            continue
        sizes = tuple(dims[name] for name in ("n", "c", "h", "w", "k", "r", "s"))
        for time_s in samples(result):
            yield (*sizes, result.case.config["solver"], time_s)


# Configs of Triton kernels


def buckets(path: Path) -> Iterator[tuple[Any, ...]]:
    """The settings of each bucket of aiter."""
    for name, settings in json.loads(text_of(path)).items():
        if isinstance(settings, dict):
            yield name, *sorted(settings.items())


def our_buckets(path: Path) -> Iterator[tuple[Any, ...]]:
    for name, settings in aiter_config.read(path).items():
        yield name, *sorted(settings.items())


SIZES = (1, 2, 7, 16, 33, 64, 100, 500, 1024, 3000, 5000, 100_000)


def config_facts(path: Path) -> Iterator[tuple[Any, ...]]:
    """What a file's name says, and its entry with the nearest M, the first of two."""
    text = path.name.removesuffix(".json")
    if down := text.endswith("_down"):
        text = text.removesuffix("_down")
    block = re.search(r",block_shape=\[(\d+), ?(\d+)\]", text)
    text = re.sub(r",block_shape=\[.*?\]", "", text)
    name = dict(item.split("=") for item in text.split(","))
    scales = tuple(map(int, block.groups())) if block else None
    yield int(name.get("E", 0)), int(name["N"]), int(name.get("K", 0)), name["device_name"]
    yield name.get("dtype", ""), scales, name.get("per_channel_quant") == "True", down
    entries = {int(m): e for m, e in json.loads(text_of(path)).items() if m.isdecimal()}
    for m in SIZES:
        best = None
        for candidate in entries:
            if best is None or abs(candidate - m) < abs(best - m):
                best = candidate
        yield m, None if best is None else tuple(sorted((entries[best] or {}).items()))


def our_config_facts(style: nearest.Style) -> Callable[[Path], Iterator[tuple[Any, ...]]]:
    def read(path: Path) -> Iterator[tuple[Any, ...]]:
        shape = nearest.parse_name(path.name)
        if shape is None:
            raise KernelmarkError("its name is no name of a config file")
        yield shape.experts, shape.n, shape.k, shape.device
        yield shape.dtype, shape.block, shape.per_channel, shape.down
        entries = nearest.parse(text_of(path), path.name, style)
        for m in SIZES:
            key = nearest.nearest(entries, m)
            yield m, None if key is None else tuple(sorted(entries[key].items()))

    return read


def is_config(first: str, style: str) -> Callable[[Path], bool]:
    return lambda path: path.name.startswith(f"{first}=") and style in str(path).lower()


def kernel(result: Result) -> tuple[Any, ...]:
    return (result.kernel.name if result.kernel else "",)


def tunable_key(result: Result) -> tuple[Any, ...]:
    return (*our_sizes(result.case.problem.dims), str(result.case.config["solution"]).lower())


FORMATS: dict[str, Format] = {
    "aiter (configs)": Format(
        lambda p: p.suffix == ".json" and "configs/gemm" in str(p), buckets, our_buckets
    ),
    "aiter-csv (calls)": Format(
        is_aiter_table, lambda p: set(map(aiter_sizes, rows(p))), our_shapes, 20
    ),
    "aiter-csv (times)": Format(
        imported("aiter-csv"), aiter_times, by(lambda r: our_sizes(r.case.problem.dims)), 20
    ),
    "geko (calls)": Format(is_geko_list, geko_sizes, our_geko_sizes),
    "googlebench": Format(imported("googlebench"), google_times, our_google_times),
    "kernel-tuner": Format(is_space("cache"), space_times, our_space, PER_SLOW_FORMAT),
    "miopen-find-db": Format(imported("miopen-find-db"), find_db_times, our_find_db_times),
    "rocprof": Format(imported("rocprof"), rocprof_times, by(kernel)),
    "sglang": Format(is_config("N", "sglang"), config_facts, our_config_facts("sglang")),
    "sglang-moe": Format(is_config("E", "sglang"), config_facts, our_config_facts("sglang")),
    "t4": Format(is_space("results"), space_times, our_space, PER_SLOW_FORMAT),
    "torch-trace": Format(imported("torch-trace"), trace_times, by(kernel), PER_SLOW_FORMAT),
    "triton-perf-report": Format(imported("triton-perf-report"), report_times, by(lambda r: ())),
    "tunableop (calls)": Format(
        lambda p: "tunableop" in p.name, tunable_shapes, our_tunable_shapes
    ),
    "tunableop (times)": Format(imported("tunableop"), tunable_times, by(tunable_key)),
    "vllm": Format(is_config("N", "vllm"), config_facts, our_config_facts("vllm")),
    "vllm-moe": Format(is_config("E", "vllm"), config_facts, our_config_facts("vllm")),
}


def compared(path: Path, how: Format) -> tuple[str, int]:
    """How a file compares, and the number of facts in it."""
    try:
        ours = Facts(how.ours(path))
    except KernelmarkError:
        return "refused", 0
    theirs = Facts(how.theirs(path))
    if ours == theirs:
        return "equal", theirs.total()
    only = [
        f"{name}: {next(iter(rest))}"
        for name, rest in (("kernelmark", ours - theirs), ("independent", theirs - ours))
        if rest
    ]
    return f"different: {(ours - theirs).total()}, {(theirs - ours).total()}; {'; '.join(only)}", 0


def files(folder: Path) -> list[Path]:
    """The files that may be of a format, in an order that their names shuffle."""
    paths = [p for p in folder.rglob("*") if p.name.endswith(ENDS) and p.is_file()]
    paths = [p for p in paths if 0 < p.stat().st_size < MOST_BYTES]
    order = {p: hashlib.sha256(str(p.relative_to(folder)).encode()).hexdigest() for p in paths}
    return sorted(paths, key=order.__getitem__)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-format", type=int, metavar="N", help="files of each (default: 40)")
    parser.add_argument("--only", default="", help="only formats whose name contains this")
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    every = files(options.folder)
    figures: dict[str, dict[str, int]] = {}
    different = []
    paths: set[Path] = set()  # calls and times may be of one file
    for name, how in FORMATS.items():
        if options.only not in name:
            continue
        began, counts = time.monotonic(), Counter[str]()
        for path in every:
            if counts["equal"] + counts["different"] >= (options.per_format or how.sample):
                break
            try:
                if not how.is_of(path):
                    continue
            except (KernelmarkError, OSError, ValueError, EOFError):
                continue
            outcome, facts = compared(path, how)
            counts[outcome.partition(":")[0]] += 1
            counts["facts"] += facts
            if outcome != "refused":
                paths.add(path)
            if outcome.startswith("different"):
                different.append(f"{path}: {name}: {outcome}")
        figures[name] = {key: counts[key] for key in ("equal", "refused", "different", "facts")}
        print(f"{name:20} {time.monotonic() - began:6.1f} s  {figures[name]}", flush=True)
    print("\n".join(text[:600] for text in different[:SHOWN]))
    if options.record:
        record(figures, len(paths))
    return 1 if different else 0


def record(figures: dict[str, dict[str, int]], compared_files: int) -> None:
    equal = {name.partition(" ")[0] for name, row in figures.items() if row["equal"]}
    differ = sum(row["different"] for row in figures.values())
    # The folder is of this machine.
    sys.argv[1:] = ["FOLDER", "--record"]
    facts = sum(row["facts"] for row in figures.values())
    refused = sum(row["refused"] for row in figures.values())
    evidence.write(
        RESULTS,
        title="Public files of other tools, compared with independent parsers",
        bars=[
            (
                f"at least {WANTED_FILES} public files of {WANTED_FORMATS} formats: every time by "
                "its problem, kernel or configuration, and every size and entry, as read by "
                "parsers of their own; a file is equal or refused",
                f"{compared_files} files of {len(equal)} formats with {facts:,} facts: "
                f"{differ} different; {refused} more files refused",
                not differ and compared_files >= WANTED_FILES and len(equal) >= WANTED_FORMATS,
            )
        ],
        figures={"formats": figures},
        device=registry.get("cpu").infos()[0],
    )


if __name__ == "__main__":
    raise SystemExit(main())
