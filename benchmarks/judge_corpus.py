"""Judge the attacks and the honest kernels of `attacks/`, several times each.

    python benchmarks/judge_corpus.py --tries 20 --json benchmarks/results/judge_cpu.json
    python benchmarks/judge_corpus.py --tries 20 --jobs 14 --state build/corpus.jsonl --minutes 9

Verdicts are appended to the file of `--state`, and a later call with it continues where the one
before stopped; the figures are those of the whole file. With `--jobs`, so many verdicts are made at
a time. Each job has a core of its own for the kernel. If there are fewer than two cores for each
job, the judges share the cores that remain. Verdicts a minute are those of one job.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.judge.processes import Templates
from kernelmark.judge.referee import judge
from kernelmark_dev import evidence
from kernelmark_dev.attacks import FOLDER, Attack, attacks, honest

TRIES, FILES, HONEST, RATE = 20, 60, 200, 20.0
# A verdict that was started ends within this time: its requests have limits.
LAST_VERDICT_S = 90.0

Key = tuple[str, str, int]  # file, problem, try
Work = tuple[Attack, int, bool]
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=1, help="of each attack (default: 1)")
    parser.add_argument("--rounds", type=int, default=6, help="of a verdict (default: 6)")
    parser.add_argument("--only", default="", help="judge files with this in their name")
    parser.add_argument("--jobs", type=int, default=1, help="verdicts at a time (default: 1)")
    parser.add_argument("--state", type=Path, help="file of verdicts, to continue it")
    parser.add_argument("--minutes", type=float, default=0.0, help="start no verdict after them")
    parser.add_argument("--json", type=Path, help="write the evidence to this file")
    parser.add_argument("--skip-attacks", action="store_true")
    parser.add_argument("--skip-honest", action="store_true")
    options = parser.parse_args()
    if min(options.tries, options.rounds, options.jobs) < 1:
        parser.error("--tries, --rounds and --jobs must be at least 1")
    if options.jobs > len(os.sched_getaffinity(0)):
        parser.error(f"--jobs must be at most {len(os.sched_getaffinity(0))}, one for each core")
    try:
        rows = read_state(options.state, options.rounds)
    except UsageError as error:
        parser.error(f"{error.message}; {error.hint}")
    work = _work(options)
    keys = {_key(item) for item in work} | {_key_of(row) for row in rows}
    judged = {_key_of(row) for row in rows}
    remaining = [item for item in work if _key(item) not in judged]
    end = time.time() + 60 * options.minutes if options.minutes else float("inf")
    path = options.state or Path(os.devnull)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as state:
        if state.tell() == 0:
            state.write(json.dumps(_header(options.rounds)) + "\n")
        for row in _judge_all(remaining, options, end):
            rows.append(row)
            state.write(json.dumps(row) + "\n")
            state.flush()
            print(_line(row, f"{len(rows)}/{len(keys)}"), flush=True)
    figures = summarise(rows)
    figures |= {"machine": platform.machine(), "tries": options.tries, "rounds": options.rounds}
    figures |= {"jobs": options.jobs, "not_judged": len(keys) - len(rows)}
    bars = bars_of(figures)
    _print(figures)
    print(evidence.bars_text(bars))
    if options.json:
        evidence.write(
            options.json,
            title="kmark judge: attacks and honest kernels on a CPU",
            bars=bars,
            figures=figures,
            libraries=evidence.libraries("numpy"),
        )
    return 1 if figures["attacks_won"] or figures["honest_refused"] or figures["errors"] else 0


def _work(options: argparse.Namespace) -> list[Work]:
    """Return what to judge: every file before any second try, so that a run which is stopped has
    tried all files about as often."""
    tries = range(0 if options.skip_attacks else options.tries)
    work = [(attack, number, True) for number in tries for attack in attacks()]
    kernels = [] if options.skip_honest else honest()
    count = 0 if options.skip_attacks else len(attacks())
    work[count:count] = [(kernel, 0, False) for kernel in kernels]
    return [item for item in work if options.only in item[0].name]


# -- the file of verdicts


def _header(rounds: int) -> dict[str, Any]:
    return {"sources": evidence.SOURCES, "corpus": evidence.sources(FOLDER), "rounds": rounds}


def read_state(path: Path | None, rounds: int) -> list[Row]:
    """Return the verdicts of a file; raise UsageError if other code made them."""
    if path is None or not path.exists() or not path.stat().st_size:
        return []
    try:
        header, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    except ValueError:
        raise UsageError(
            f"{path} has a damaged line", hint="remove the line, or the file"
        ) from None
    if header != _header(rounds):
        raise UsageError(
            f"{path} has verdicts of other code, attacks or --rounds", hint="choose another file"
        )
    return rows


def _key(item: Work) -> Key:
    attack, number, _ = item
    return attack.path.relative_to(FOLDER).as_posix(), attack.problem, number


def _key_of(row: Row) -> Key:
    return row["file"], row["problem"], row["try"]


# -- verdicts


def _judge_all(work: Sequence[Work], options: argparse.Namespace, end: float) -> Iterator[Row]:
    """Yield verdicts as they are made, `jobs` at a time, until the end."""
    items = [(item, options.rounds, end) for item in work]
    if options.jobs <= 1:
        yield from filter(None, map(_judged, items))
        _templates().close()
        return
    context = multiprocessing.get_context("spawn")
    cores_of = context.Queue()
    for cores in split_cores(sorted(os.sched_getaffinity(0)), options.jobs):
        cores_of.put(cores)
    with context.Pool(options.jobs, _pin, (cores_of,)) as pool:
        rows = pool.imap_unordered(_judged, items)
        while True:
            try:
                row = rows.next(None if end == float("inf") else end + LAST_VERDICT_S - time.time())
            except StopIteration:
                return
            except multiprocessing.TimeoutError:
                print("verdicts that did not end were given up", flush=True)
                return
            if row is not None:
                yield row


def split_cores(cores: Sequence[int], jobs: int) -> list[list[int]]:
    """Return the cores of each job, its kernel's first: at least two, if need be shared."""
    if len(cores) >= 2 * jobs:
        return [
            list(cores[n * len(cores) // jobs : (n + 1) * len(cores) // jobs]) for n in range(jobs)
        ]
    shared = list(cores[jobs:])
    return [[core, *(shared or [cores[(n + 1) % jobs]])] for n, core in enumerate(cores[:jobs])]


def _pin(cores_of: Any) -> None:
    os.sched_setaffinity(0, cores_of.get())


@functools.cache
def _templates() -> Templates:
    return Templates()


def _judged(item: tuple[Work, int, float]) -> Row | None:
    """Judge a file; return None after the end."""
    (attack, number, is_attack), rounds, end = item
    if time.time() > end:
        return None
    file, problem, _ = _key((attack, number, is_attack))
    row: Row = {"file": file, "problem": problem, "try": number, "attack": is_attack}
    start = time.time()
    try:
        verdict = judge(attack.question(rounds=rounds), _templates())
    except KernelmarkError as error:
        row |= {"status": "error", "code": type(error).__name__, "reason": str(error.message)}
    else:
        row |= {
            "status": "accepted" if verdict.accepted else verdict.status.value,
            "code": verdict.code,
            "reason": str(verdict.reason)[:200],
            "won": is_attack and attack.won(verdict),
            "defended": attack.is_defended(verdict.lacks),
            "ratio": None if verdict.ratio is None else round(verdict.ratio, 3),
            "singles": "single launches" in verdict.passed,
            "lacks": list(verdict.lacks),
        }
    return row | {"seconds": round(time.time() - start, 3)}


# -- figures


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of verdicts: by file, and of all."""
    judged = [row for row in rows if row["status"] not in ("error", "unsupported")]
    mine = [row for row in judged if row["attack"]]
    others = [row for row in judged if not row["attack"]]
    undefended = [row for row in mine if not row["defended"]]
    by_file: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["attack"]:
            by_file[row["file"]].append(row)
    files = {
        file: {
            "tries": len(group),
            "accepted": sum(row["status"] == "accepted" for row in group),
            "won": sum(row.get("won", False) for row in group),
            "codes": dict(Counter(row["code"] for row in group)),
            "ratios": [row["ratio"] for row in group if row.get("ratio") is not None],
            "median_s": statistics.median(row["seconds"] for row in group),
        }
        for file, group in sorted(by_file.items())
    }
    spent_s = {
        "attacks": sum(r["seconds"] for r in mine),
        "honest": sum(r["seconds"] for r in others),
    }
    count = {"attacks": len(mine), "honest": len(others)}
    spent_s["all"], count["all"] = sum(spent_s.values()), sum(count.values())
    return {
        "attacks": files,
        "least_tries": min((len(group) for group in by_file.values()), default=0),
        "attack_tries": len(mine),
        "attacks_won": sum(row["won"] and row["defended"] for row in mine),
        "true_times": sum(row["status"] == "accepted" and not row["won"] for row in mine),
        "undefended_files": sorted({row["file"] for row in undefended}),
        "undefended_won": sum(row["won"] for row in undefended),
        "honest": len(others),
        "honest_refused": sum(row["status"] != "accepted" for row in others),
        "honest_without_singles": sum(
            row["status"] == "accepted" and not row["singles"] for row in others
        ),
        "refusals": [row for row in others if row["status"] != "accepted"],
        "unsupported": sum(row["status"] == "unsupported" for row in rows),
        "errors": [row for row in rows if row["status"] == "error"],
        "lacks": sorted({sentence for row in judged for sentence in row["lacks"]}),
        "verdicts_per_minute": {
            name: round(60 * count[name] / spent_s[name], 1) for name in count if spent_s[name]
        },
    }


def bars_of(figures: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Return the bars of the issue, for evidence."""
    won, refused = figures["attacks_won"], figures["honest_refused"]
    least, files = figures["least_tries"], len(figures["attacks"])
    rates = figures["verdicts_per_minute"]
    return [
        (
            f"{FILES} or more attack files, {TRIES} tries each: none deceives the judge",
            f"{won} of {figures['attack_tries']} tries of {files} files, {least} tries or more of"
            f" each; {figures['true_times']} accepted at their true time{_undefended(figures)}",
            not won and files >= FILES and least >= TRIES,
        ),
        (
            f"{HONEST} or more honest kernels: none refused",
            f"{refused} of {figures['honest']}",
            not refused and figures["honest"] >= HONEST,
        ),
        (
            f"{RATE:.0f} or more verdicts a minute of one job, on honest kernels",
            f"{rates.get('honest', 'none')}; {rates.get('all', 'none')} on all files",
            rates.get("honest", 0.0) >= RATE,
        ),
    ]


def _undefended(figures: dict[str, Any]) -> str:
    """Return a note on attacks whose defence the host lacks: they do not count as accepted."""
    if not figures["undefended_files"]:
        return ""
    names = ", ".join(figures["undefended_files"])
    return f"; besides, {figures['undefended_won']} where the host lacks the defence: {names}"


def _line(row: Row, progress: str) -> str:
    mark = "WON " if row.get("won") else ""
    if not row["attack"] and row["status"] not in ("accepted", "unsupported"):
        mark = "REFUSED "
    ratio = "" if row.get("ratio") is None else f" ratio {row['ratio']}"
    detail = "" if row["status"] == "accepted" else f"  {row['reason'][:80]}"
    return (
        f"{progress:>9s} {mark}{row['file']:26s} {row['problem']:32s} {row['code']:18s}"
        f" {row['seconds']:5.1f} s{ratio}{detail}"
    )


def _print(figures: dict[str, Any]) -> None:
    print("this host lacks nothing" if not figures["lacks"] else "this host lacks:")
    for sentence in figures["lacks"]:
        print(f"  {sentence}")
    for row in figures["errors"]:
        print(f"error: {row['file']} {row['problem']}: {row['reason']}")
    for file, counts in figures["attacks"].items():
        if counts["won"]:
            print(
                f"accepted: {file}, {counts['won']} of {counts['tries']} tries {counts['ratios']}"
            )
    for row in figures["refusals"]:
        print(f"refused: {row['file']} {row['problem']}: {row['code']}, {row['reason']}")
    print(
        f"{figures['attacks_won']} of {figures['attack_tries']} tries of"
        f" {len(figures['attacks'])} attacks deceived the judge; {figures['honest_refused']} of"
        f" {figures['honest']} honest kernels refused; {figures['honest_without_singles']} without"
        f" a comparison of single launches; {figures['unsupported']} not for their problem;"
        f" {figures['not_judged']} verdicts are left to be made"
    )


if __name__ == "__main__":
    raise SystemExit(main())
