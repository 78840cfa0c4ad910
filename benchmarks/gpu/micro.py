"""The microbenchmarks on a GPU: how long they take, how they agree with the classic suite on the
same GPU, how close they come to what the hardware can do, and how well they repeat.

    python benchmarks/gpu/micro.py [--device cuda:0] [--full] [-o results.json] [--points FILE]

The quick run begins with an empty cache, so that compiling counts. The points of that run go to a
second file, which `kmark micro show FILE` draws and `kmark micro compare` compares; it is not kept
in the repository, which has the figures alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _gpu import gpu_info
from repeats import Repeats

from kernelmark.api import micro as api
from kernelmark.api.results import Results
from kernelmark.core.micro import benchmark_name
from kernelmark.core.result import Result, Status
from kernelmark.micro import registry
from kernelmark.micro.session import execute, open_rig
from kernelmark.stores.roofs import roofs_of
from kernelmark_dev import evidence

FOLDER = Path(__file__).parent.parent / "results"
Bar = tuple[str, str, bool]
KIB, MIB = 2**10, 2**20
# The classic suite on an H200, built with nvcc 13 for sm_90 and run by us: benchmark, metric, its
# figure, whether more is better. Its latencies are of a chain of pointers (`p = *p`).
CLASSIC = (
    ("stream", "init", 4588e9, True),
    ("stream", "triad", 3907e9, True),
    ("stream", "schoenauer", 3907e9, True),
    ("latency", "l1_cycles", 34.2, False),
    ("latency", "l2_cycles", 282.6, False),
    ("memcpy", "h2d_pinned", 54.95e9, True),
    ("cache", "l1_bytes_per_s", 29.2e12, True),
)
SAID = {
    ("latency", "l1_cycles"): " (a chain of pointers, as there)",
    ("latency", "l2_cycles"): " (a chain of pointers, as there)",
}
# What the same figure is by another definition of ours, to be shown beside.
BESIDE = {("latency", "l1_cycles"): ("l1_index_cycles", "a chain of indices")}
# Its L2 read bandwidth by footprint. Block b reads the 512 KiB with the number b mod R: blocks b,
# b + R, … have the same data, at about the same time.
CLASSIC_L2 = ((4 * MIB, 10.3e12), (5 * MIB, 10.3e12), (16 * MIB, 9.7e12), (25 * MIB, 9.5e12))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A run of several benchmarks."""

    results: list[Result]
    seconds: float  # wall
    compilations: int  # what was not in the cache
    whole: Results


def run(device: str, mode: str, names: list[str]) -> Session:
    """A whole session, told as it goes."""
    begin = time.perf_counter()
    compiled: list[int] = []

    def on_result(result: Result) -> None:
        took = result.cost.get("total", 0.0)
        error = f"  {result.error.splitlines()[0]}" if result.error else ""
        name = f"{mode:5} {name_of(result):16} {result.status:12}"
        print(f"  {name} {took:6.2f} s{error}", flush=True)

    def tell(text: str) -> None:
        print(f"  {text}", flush=True)
        if ahead := re.match(r"compiled (\d+) kernel files", text):
            compiled.append(int(ahead[1]))

    whole = api.measure(names, device=device, mode=mode, tell=tell, on_result=on_result)
    found = whole.micro
    compiled += [result.kernel.resources.get("compilations", 0) for result in found]
    return Session(
        results=found, seconds=time.perf_counter() - begin, compilations=sum(compiled), whole=whole
    )


def name_of(result: Result) -> str:
    return benchmark_name(result.case.problem)


def metric(results: list[Result], benchmark: str, name: str) -> float | None:
    for result in results:
        if name_of(result) == benchmark and result.status is Status.OK:
            return next((m.value for m in result.metrics if m.name == name), None)
    return None


def number(row: Mapping[str, Any], name: str) -> float:
    """A number of a row; 0 where there is none."""
    return float(row[name] or 0.0)


def completion(session: Session, mode: str, limit: float) -> list[Bar]:
    results, seconds = session.results, session.seconds
    bad = [name_of(r) for r in results if r.status not in (Status.OK, Status.UNSUPPORTED)]
    left_out = [name_of(r) for r in results if r.status is Status.UNSUPPORTED]
    told = f"{len(results)} in {seconds:.1f} s, {session.compilations} compilations included"
    told += f"; not here: {', '.join(left_out)}" if left_out else ""
    told += f"; failed: {', '.join(bad)}" if bad else ""
    asked = f"--{mode} ends within {limit:g} s, all benchmarks ok"
    return [(asked, told, not bad and seconds <= limit)]


def agreement(results: list[Result]) -> tuple[list[Bar], list[dict[str, Any]]]:
    bars: list[Bar] = []
    rows: list[dict[str, Any]] = []
    for benchmark, name, theirs, more in CLASSIC:
        ours = metric(results, benchmark, name)
        rows.append({"benchmark": benchmark, "metric": name, "classic": theirs, "ours": ours})
        said = SAID.get((benchmark, name), "")
        asked = f"{benchmark} {name}{said} within 3 % of the classic suite, or better"
        if ours is None:
            bars.append((asked, "not measured", False))
            continue
        ratio = ours / theirs
        told = f"{ours:.4g} against {theirs:.4g}, ratio {ratio:.3f}"
        other, what = BESIDE.get((benchmark, name), ("", ""))
        beside = metric(results, benchmark, other)
        if beside is not None:
            rows.append({"benchmark": benchmark, "metric": other, "classic": None, "ours": beside})
            told += f"; {what}, which is not there: {beside:.4g}"
        bars.append((asked, told, ratio >= 0.97 if more else ratio <= 1.03))
    found, more_rows = agreement_l2(results)
    return [*bars, found], [*rows, *more_rows]


def agreement_l2(results: list[Result]) -> tuple[Bar, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    points = next((r.rows for r in results if name_of(r) == "l2-cache"), ())
    ratios: dict[str, list[float]] = {"together": [], "apart": []}
    for size, theirs in CLASSIC_L2:
        for units, found in ratios.items():
            own = [p for p in points if p["units"] == units]
            near = [p for p in own if abs(number(p, "size_bytes") / size - 1) < 0.02]
            ours = number(near[0], "bytes_per_s") if near else None
            row = {"benchmark": "l2-cache", "units": units, "size_bytes": size}
            rows.append(row | {"classic": theirs, "ours": ours})
            if ours is not None:
                found.append(ours / theirs)
    shown = "; ".join(
        f"units {units}: ratios {min(found):.3f} to {max(found):.3f}"
        for units, found in ratios.items()
        if found
    )
    asked = (
        "L2 read at 4–25 MB within 3 % of 10.3–9.5 TB/s, or better, units together: the original's "
        "definition, where several blocks read the same data at about the same time; apart, each "
        "in an order of its own, is ours alone"
    )
    return (asked, shown or "not measured", min(ratios["together"], default=0.0) >= 0.97), rows


def efficiency(results: list[Result], units: int) -> list[Bar]:
    bars: list[Bar] = []
    rate = metric(results, "cache", "l1_bytes_per_clk") or 0.0
    bars.append(("L1 sweep ≥ 95 % of 128 B/clk/SM", f"{rate:.1f} B/clk", rate >= 0.95 * 128))
    per_clk = metric(results, "incore", "per_clk_f32") or 0.0
    peak = metric(results, "incore", "peak_f32") or 0.0
    shown = f"{per_clk:.1f} FLOP/clk/SM of 256, {peak / 1e12:.2f} TFLOP/s on {units} SMs"
    asked = "FP32 FMA peak ≥ 95 % of SMs × lanes × 2 × clock"
    bars.append((asked, shown, per_clk >= 0.95 * 256))
    asked = "bf16 matrix peak ≥ 90 % of the data sheet's rate at the measured clock"
    row = bf16(results)
    if row is None:
        return [*bars, (asked, "not measured", False)]
    power, throttle = row["power_w"], row["throttle"]
    shown = (
        f"{number(row, 'share'):.1%} at {number(row, 'clock_mhz'):.0f} MHz, "
        f"{number(row, 'flops_per_s') / 1e12:.0f} TFLOP/s in a burst, "
        f"{number(row, 'sustained_per_s') / 1e12:.0f} sustained at "
        f"{number(row, 'sustained_mhz'):.0f} MHz, "
        f"{'power not read' if power is None else f'{power:.0f} W'}, "
        f"{'throttling not read' if throttle is None else throttle or 'not throttled'}"
    )
    return [*bars, (asked, shown, number(row, "share") >= 0.9)]


def bf16(results: list[Result]) -> Mapping[str, Any] | None:
    rows = [r for result in results if name_of(result) == "matrix" for r in result.rows]
    return next((r for r in rows if r["dtype"] == "bf16"), None)


def occupancy(results: list[Result]) -> dict[str, Any]:
    """Where init and triad were fastest, and what they were with all threads that fit."""
    rows = [r for result in results if name_of(result) == "stream" for r in result.rows]
    most = max((number(row, "threads") for row in rows), default=0.0)
    found: dict[str, Any] = {}
    for kernel in ("init", "triad"):
        own = [row for row in rows if row["kernel"] == kernel]
        if own:
            best = max(own, key=lambda row: number(row, "bytes_per_s"))
            full = {row["grid"]: row["bytes_per_s"] for row in own if row["threads"] == most}
            share = number(best, "threads") / most
            found[kernel] = {"best": dict(best) | {"occupancy": share}, "full_occupancy": full}
    return found


def sustained(device: str) -> dict[str, Any]:
    """bf16 products for two seconds: the clock and the power meanwhile."""
    rig = open_rig(device)
    chosen = {"dtypes": ("bf16",), "sustained": 2.0}
    result = execute(registry.get("matrix"), rig, "quick", chosen)
    rig.close()
    trace = [dataclasses.asdict(seen) for seen in result.trace]
    return {"row": dict(bf16([result]) or {}), "error": result.error, "trace": trace}


def repeatability(
    briefs: list[list[Result]], quicks: list[list[Result]]
) -> tuple[list[Bar], dict[str, Any]]:
    """Headline metrics and roofs of brief sessions, as `kmark roofs` has them, and all other
    metrics of quick ones."""
    heads, roofs, launches = (Repeats(len(briefs)) for _ in range(3))
    for results in briefs:
        for result in results:
            if result.status is Status.OK:
                for one in result.headlines:
                    heads.add(f"{name_of(result)} {one.name}", one.value)
        for roof in (roof for result in results for roof in roofs_of(result)):
            kind = launches if roof.kind == "launches" else roofs
            kind.add(" ".join(filter(None, (roof.kind, roof.name, roof.unit))), roof.value)
    others, every = Repeats(len(quicks)), set()
    for results in quicks:
        for result in results:
            for one in result.metrics if result.status is Status.OK else ():
                every.add(name := f"{name_of(result)} {one.name}")
                if not one.headline:
                    others.add(name, one.value)
    times, count = len(briefs), f"{len(heads.values)} of {len(every)}"
    told = f"{heads.told('metrics')}; of {len(others.spread)} other metrics in {len(quicks)} "
    told += f"quick runs {len(others.wide)} are over 2 %: see the figures"
    asked = f"{times} runs, every headline metric ({count} metrics) within 2 %"
    bars: list[Bar] = [(asked, told, heads.complete and not heads.wide)]
    told = f"{roofs.told('roofs')}; beside: {launches.told('of launches, by the host')}"
    asked = f"{times} runs, every roof of FLOP/s and bytes/s within 2 %"
    bars.append((asked, told, roofs.complete and not roofs.wide))
    figures = {"headline": count, **heads.figures, "others": others.figures}
    return bars, figures | {"roofs": roofs.figures, "launch_roofs": launches.figures}


def repeated(
    device: str, names: list[str], times: Mapping[str, int], first: list[Result] | None
) -> tuple[list[Bar], dict[str, Any]]:
    """So many brief and quick sessions; `first` is one of the quick ones."""
    sessions: dict[str, list[list[Result]]] = {"brief": [], "quick": [first] if first else []}
    for mode, found in sessions.items():
        while len(found) < times[mode]:
            one = run(device, mode, names)
            found.append(one.results)
            print(f"  {mode} {len(found)} of {times[mode]}: {one.seconds:.1f} s", flush=True)
    return repeatability(sessions["brief"], sessions["quick"])


def planted(device: str) -> list[Bar]:
    """A clock that is read in the wrong unit: the result must not be ok."""
    rig = open_rig(device)
    plain = rig.time

    def mistaken(call: Any, launches: int = 1) -> Any:
        timed = plain(call, launches)
        return dataclasses.replace(timed, elapsed_s=timed.elapsed_s / 1e3)

    rig.time = mistaken
    result = execute(registry.get("cache"), rig, "brief", {"seconds": 1e-6})
    rig.close()
    findings = result.error.fields.get("findings", ())
    wrong = result.status is Status.WRONG and any(f.code == "above-physical" for f in findings)
    shown = f"{result.status}: {result.error[:90]}"
    return [("a planted unit error never ends as ok", shown, wrong)]


def guarded(name: str, work: Any) -> Any:
    """Run one part; print its failure and return None, so that the other parts still run."""
    try:
        return work()
    except Exception as error:
        print(f"  {name} failed: {type(error).__name__}: {error}", flush=True)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--full", action="store_true", help="the long run too (minutes)")
    parser.add_argument("--repeats", type=int, default=5, help="brief runs (headline metrics)")
    parser.add_argument("--quick-repeats", type=int, default=5, help="quick runs (all metrics)")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER / "gpu_micro.json")
    parser.add_argument("--points", type=Path, default=FOLDER / "points" / "gpu_micro.json")
    given = parser.parse_args()
    os.environ["CUDA_MODULE_LOADING"] = "EAGER"  # as the workers have it; read when CUDA starts
    info = gpu_info(given.device)
    names = api.names_for(given.device)
    bars: list[Bar] = []
    figures: dict[str, Any] = {}

    def write() -> None:
        """After each part: what comes later must not cost what is there."""
        title = "Microbenchmarks: time, agreement, efficiency, repeatability"
        evidence.write(given.output, title=title, bars=bars, figures=figures, device=info)

    with tempfile.TemporaryDirectory(prefix="kernelmark-") as folder:
        # An empty cache, kept for the later parts: the first run pays for compiling.
        os.environ["KERNELMARK_CACHE"] = folder
        quick = guarded("quick", lambda: run(given.device, "quick", names))
        if quick is not None:
            keep(quick.whole, given.points)
            bars += completion(quick, "quick", 90.0)
            found, rows = agreement(quick.results)
            bars += found + efficiency(quick.results, info.units)
            figures |= {"quick_s": quick.seconds, "classic": rows, **of_session(quick)}
            write()
        first = quick.results if quick else None
        times = {"brief": given.repeats, "quick": given.quick_repeats}
        again = guarded("repeats", lambda: repeated(given.device, names, times, first))
        if again is not None:
            bars += again[0]
            figures["repeats"] = again[1]
        figures["sustained_bf16"] = guarded("sustained", lambda: sustained(given.device))
        bars += guarded("planted", lambda: planted(given.device)) or []
        write()
        full = guarded("full", lambda: run(given.device, "full", names)) if given.full else None
        if full is not None:
            bars += completion(full, "full", 360.0)
            figures |= {"full_s": full.seconds, "full": of_session(full)}
            keep(full.whole, given.points.with_name(f"{given.points.stem}_full.json"))
            write()
    print(evidence.bars_text(bars))


def keep(results: Results, place: Path) -> None:
    """The points, for `kmark micro show`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    results.to_json(place)


def of_session(session: Session) -> dict[str, Any]:
    results = session.results
    return {
        "compilations": session.compilations,
        "cost_s": {name_of(r): r.cost.get("total") for r in results},
        "metrics": {f"{name_of(r)} {m.name}": m.value for r in results for m in r.metrics},
        "occupancy": occupancy(results),
        "errors": {name_of(r): r.error for r in results if r.error},
        "notes": {name_of(r): list(r.notes) for r in results if r.notes},
    }


if __name__ == "__main__":
    main()
