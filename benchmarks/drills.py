"""Drills: break workers, devices and the parent on purpose, and count what is lost.

    python benchmarks/drills.py [--quick] [--only NAME]

Most drills run real worker processes with the fake backend, whose cases behave as their config
says. Writes the rows of the drills that it ran to benchmarks/results/drills.json; ends with exit
code 1 when a drill fails.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import drill_devices
import drill_inputs
import drill_lines
import drill_nights
import drill_planted
import drill_signals
import drill_stores
from drilling import Facts, Failed, case, expect, must, run
from kernelmark.core import codec
from kernelmark.core.result import Case, Result
from kernelmark.devices import registry
from kernelmark.runners.events import CasePhase, Event
from kernelmark.stores import open_store
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent / "results" / "drills.json"


def every_behaviour(count: int) -> Facts:
    """Every bad behaviour, each between good cases."""
    wanted = {
        "crash": "crashed",
        "abort": "crashed",
        "hang": "timeout",
        "oom": "out_of_memory",
        "memory_hog": "out_of_memory",
        "wrong": "wrong",
        "nan": "wrong",
        "unwritten": "wrong",
        "overrun": "wrong",
        "raise": "runtime_error",
        "compile_error": "compile_error",
    }
    names = [name for bad in wanted for name in (bad, "ok")]
    cases = [case(i, name, hog_bytes=1 << 27) for i, name in enumerate(names)]
    results, _ = run(cases)
    return expect(results, cases, wanted)


def killed_from_outside(count: int) -> Facts:
    """kill -9 of the worker in the middle of every fifth case."""
    cases = [case(i, "hang" if i % 5 == 3 else "ok") for i in range(count)]
    killed: list[str] = []

    def kill(event: Event) -> None:
        if not isinstance(event, CasePhase) or event.phase not in ("warmup", "timing"):
            return
        if event.case.config["behaviour"] == "hang" and event.case.id not in killed:
            killed.append(event.case.id)
            for pid in worker_pids():
                os.kill(pid, signal.SIGKILL)

    results, _ = run(cases, kill, timeout_s=60.0)
    return {**expect(results, cases, {"hang": "crashed"}), "kills": len(killed)}


def killed_by_the_kernel(count: int) -> Facts:
    """A case eats the memory of its control group until the kernel kills the worker."""
    group = memory_group(400 << 20)
    if group is None:
        return {"skipped": "no memory control group can be made here"}
    cases = hungry()
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[2]); import drills\n"
        "from pathlib import Path; from kernelmark.core import codec\n"
        "(Path(sys.argv[1]) / 'cgroup.procs').write_text(str(__import__('os').getpid()))\n"
        "results, _ = drills.run(drills.hungry())\n"
        "print(json.dumps([codec.to_document(r) for r in results]))\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(group), str(Path(__file__).parent)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        group.rmdir()
    must(done.returncode == 0, f"the run itself died: {done.returncode} {done.stderr[-300:]}")
    results = [codec.from_document(d, Result) for d in json.loads(done.stdout)]
    return expect(results, cases, {"memory_hog": "out_of_memory"})


def hungry() -> list[Case]:
    return [case(0), case(1, "memory_hog", hog_bytes=1 << 40), case(2)]


def memory_group(limit_bytes: int) -> Path | None:
    """A new memory control group under this one, where that is allowed."""
    for base, file in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(base) / f"kernelmark-drill-{os.getpid()}"
        try:
            if not Path(base).is_dir():
                continue
            group.mkdir()
            (group / file).write_text(str(limit_bytes))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        return group
    return None


def garbage_on_output(count: int) -> Facts:
    """Something else writes into the worker's output in the middle of a case."""
    with tempfile.TemporaryDirectory() as folder:
        once = Path(folder) / "once"
        program = Path(folder) / "python"
        program.write_text(
            f"#!/bin/sh\nif mkdir {once} 2>/dev/null; then (sleep 2; echo garbage) & fi\n"
            f'exec {sys.executable} "$@"\n'
        )
        program.chmod(0o755)
        cases = [case(0), case(1, "hang"), case(2)]
        results, _ = run(cases, python=str(program), timeout_s=60.0)
    return expect(results, cases, {"hang": "crashed"})


def compilers(count: int) -> Facts:
    """Slow compilers run in parallel and ahead; one that never ends meets its own limit."""
    cases = [case(i, "slow_compile", compile_s=0.5) for i in range(8)]
    cases += [case(100, "compile_error"), case(101, "slow_compile", compile_s=3600.0)]
    start = time.monotonic()
    options = {"jobs": 4, "compile_timeout_s": 6.0}
    results, _ = run(cases, **options)
    facts = expect(results[:-1], cases[:-1], {"compile_error": "compile_error"})
    must(results[-1].status.value == "timeout", "the endless compiler is a timeout")
    return {**facts, "seconds_with_4_jobs": round(time.monotonic() - start, 2)}


SESSION = """
import json, sys
from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.result import Case, Run
from kernelmark.runners.events import CaseStarted
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.session import run_cases
from kernelmark.stores import open_store
where, log, devices = sys.argv[1], sys.argv[2], sys.argv[3]
cases = [codec.from_document(d, Case) for d in json.loads(sys.stdin.read())]
def told(event):
    if isinstance(event, CaseStarted):
        with open(log, "a") as out:
            out.write(event.case.id + "\\n")
with open_store(where) as store:
    known = {run.id: run for run in store.runs()}
    run = known.get("drill") or Run(id="drill", started=1.0, environment=Environment())
    run_cases(run=run, cases=cases, runner=LocalRunner([devices], jobs=0), store=store,
              on_event=told, resume=run.id in known)
"""


def parent_killed(count: int) -> Facts:
    """kill -9 of the parent at random moments, again and again; each time the run is resumed."""
    seeded = random.Random(1)
    cases = [case(i, time_us=200.0) for i in range(count)]
    text = json.dumps([codec.to_document(c) for c in cases])
    kills = lost_seen = 0
    with tempfile.TemporaryDirectory() as folder:
        where, log = str(Path(folder) / "results.sqlite"), str(Path(folder) / "started")
        command = [sys.executable, "-c", SESSION, where, log, "fake:0-1"]
        before: dict[str, Result] = {}
        while True:
            env = {**os.environ, "KERNELMARK_FAKE_DEVICES": "2"}
            process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=env)
            assert process.stdin is not None
            process.stdin.write(text)
            process.stdin.close()
            try:
                code = process.wait(timeout=seeded.uniform(1.0, 2.5) if kills < 10 else 300)
                must(code == 0, f"a resumed run ended with exit code {code}")
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                after = stored(where)
                kept = all(after.get(i) == result for i, result in before.items())
                must(kept, "a stored result was changed or lost")
                before = after
                continue
            break
        final = stored(where)
        started = Counter(Path(log).read_text().split())
        must(len(final) == len(cases), f"{len(final)} of {len(cases)} cases have a result")
        must(all(final[i] == r for i, r in before.items()), "a stored result was changed")
        lost_seen = sum(started.values()) - len(cases)
        must(lost_seen <= 2 * kills, f"{lost_seen} cases were lost by {kills} kills, two devices")
    return {"cases": count, "kills": kills, "devices": 2, "measured_again": lost_seen}


def stored(where: str) -> dict[str, Result]:
    if not Path(where).exists():
        return {}
    with open_store(where) as store:
        if not store.runs():
            return {}
        return {result.case.id: result for result in store.results("drill")}


def two_runs_at_once(count: int) -> Facts:
    """Two processes run on one device: no case of one overlaps a case of the other."""
    with tempfile.TemporaryDirectory() as folder:
        processes, places = [], []
        for which in range(2):
            where = str(Path(folder) / f"{which}.sqlite")
            cases = [case(1000 * which + i, time_us=100.0) for i in range(count)]
            command = [sys.executable, "-c", SESSION, where, os.devnull, "fake"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
            assert process.stdin is not None
            process.stdin.write(json.dumps([codec.to_document(c) for c in cases]))
            process.stdin.close()
            processes.append(process)
            places.append(where)
        must(all(p.wait(timeout=300) == 0 for p in processes), "both runs end well")
        spans = sorted(
            (r.started, r.started + r.cost["total"], which)
            for which, where in enumerate(places)
            for r in stored(where).values()
        )
    must(len(spans) == 2 * count, "every case has a result")
    overlaps = sum(a[1] > b[0] + 1e-3 for a, b in itertools.pairwise(spans))
    changes = sum(a[2] != b[2] for a, b in itertools.pairwise(spans))
    must(overlaps == 0, f"{overlaps} cases were timed at the same time")
    must(changes > 1, "the runs did not really go on at the same time")
    return {"cases": len(spans), "overlaps": overlaps, "turns": changes}


DRILLS: dict[str, Callable[[int], Facts]] = {
    "every behaviour": every_behaviour,
    "worker killed from outside": killed_from_outside,
    "worker killed by the kernel": killed_by_the_kernel,
    "garbage on the worker's output": garbage_on_output,
    "compilers": compilers,
    "parent killed and resumed": parent_killed,
    "two runs at once": two_runs_at_once,
    "dead device": drill_devices.dead,
    "sick device": drill_devices.sick,
    "signals": drill_signals.signals,
    "damaged files": drill_inputs.damaged_files,
    "planted code": drill_planted.planted_code,
    "damaged stores": drill_stores.damaged_stores,
    "pushes to a killed dashboard": drill_stores.pushes_killed,
    "killed commands": drill_signals.kills,
    "planted files": drill_planted.planted_files,
    "command lines": drill_lines.command_lines,
    "nights of an own kernel": drill_nights.own_nights,
    "open regressions": drill_nights.histories,
}


ASKED = {
    "every behaviour": "crash, abort, hang, lack of memory, wrong answers, errors: each is a row"
    " with its own status, and the good cases between are ok",
    "worker killed from outside": "kill -9 of the worker in every fifth case: these are crashed,"
    " all others ok",
    "worker killed by the kernel": "the kernel kills the worker for its memory: that case is"
    " out_of_memory, the others ok",
    "garbage on the worker's output": "something else writes into the worker's output: that case is"
    " crashed, the others ok",
    "compilers": "slow compilers run in parallel, and one that never ends is a timeout",
    "parent killed and resumed": "kill -9 of the parent, then --resume, again and again: nothing"
    " stored is lost or changed, and at most the case in flight on each device is measured again",
    "two runs at once": "two runs on one device: no two cases are timed at the same time",
    "dead device": "one of four devices cannot be opened: its cases move to the others",
    "sick device": "one of four devices opens and then fails every case: these are ok on the"
    " others, and the device is given up",
    "signals": "SIGINT, SIGTERM, SIGHUP, SIGQUIT at random moments of run, ab, micro, tune, import,"
    " gate, bisect, nightly, push and serve: exit code 130, no process is left after 2 s, nothing"
    " stored is lost",
    "damaged files": "mutated files of every format: each is read or refused in one sentence, and"
    " no time or size that cannot be is read",
    "planted code": "code of another user in the cache, a pack or the temporary folder, or behind"
    " that user's link: it is not loaded",
    "damaged stores": "flipped bits, random bytes, a lost end, lost or swapped pages of a store:"
    " what is read is the same, or it is refused; never other data",
    "pushes to a killed dashboard": "kill -9 of the dashboard at random moments of pushes: each run"
    " arrives once, whole and the same",
    "killed commands": "kill -9 at random moments of run, ab, micro, tune, import, gate, nightly"
    " and push, and the same command again: nothing is lost, doubled, changed or left running",
    "planted files": "modules, libraries, .pth, conftest and sitecustomize in the current folder,"
    " TMPDIR, the cache, a checkout and a working tree: none is run",
    "command lines": "mutated command lines, half of which reach past the checks of arguments: each"
    " ends by itself with a documented exit code and without an internal error",
    "nights of an own kernel": "a slowdown on the third night, in five layouts of repository: never"
    " exit code 0, an alarm on the third or fourth night and every night after, until repaired",
    "open regressions": "a crash and a slowdown of many nights: alarms of kmark history, its JSON,"
    " the dashboard and nightly until they are repaired or accepted, and again if that is undone",
}


def worker_pids() -> list[int]:
    words = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    rows = [line.split(None, 1) for line in listed.splitlines()]
    return [int(pid) for pid, words in rows if "runners.worker" in words]


def bars(rows: list[Facts]) -> list[tuple[str, str, bool]]:
    """(what is asked, what was measured, whether it holds) of every drill that could be made."""
    made = [row for row in rows if "skipped" not in row]
    return [(str(row["asked"]), measured(row), bool(row["passed"])) for row in made]


def measured(row: Facts) -> str:
    """The facts of a drill in one line."""
    words = []
    for name, value in row.items():
        if name in ("drill", "passed", "seconds", "errors", "asked", "sources"):
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{what} {count}" for what, count in value.items())
        words.append(f"{name.replace('_', ' ')}: {value}")
    return "; ".join(words)


def record(rows: list[Facts]) -> None:
    """Write the rows, and those of earlier runs for other drills."""
    known: dict[str, Facts] = {}
    if RESULTS.exists():
        document = json.loads(RESULTS.read_text(encoding="utf-8"))
        about = {"sources": document["sources"], "date": document["date"]}
        known = {row["drill"]: {**about, **row} for row in document["figures"]["drills"]}
    # "asked" is of the time of measuring: a drill may ask for more by now.
    now = {"sources": evidence.SOURCES, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    known |= {str(row["drill"]): {"asked": ASKED[str(row["drill"])], **row, **now} for row in rows}
    every = [known[name] for name in DRILLS if name in known]
    sys.argv[1:] = []  # the command for all rows, of which this run may have made some
    evidence.write(
        RESULTS,
        title="Drills: what is lost when workers, devices and the parent are broken",
        bars=bars(every),
        figures={"drills": every},
        device=registry.get("cpu").infos()[0],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cases; writes no file")
    parser.add_argument("--only", default="", help="only drills whose name contains this")
    given = parser.parse_args()
    count = 20 if given.quick else 100
    rows: list[Facts] = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["KERNELMARK_CACHE"] = cache
        os.environ["KERNELMARK_LOCKS"] = cache  # not to wait for who else times on this machine
        for name, drill in DRILLS.items():
            if given.only not in name:
                continue
            start, facts, passed = time.monotonic(), {}, True
            try:
                facts = drill(count)
            except Failed as error:
                facts, passed = {"failed": str(error)}, False
            seconds = round(time.monotonic() - start, 1)
            rows.append({"drill": name, "passed": passed, "seconds": seconds, **facts})
            print(
                f"{'pass' if passed else 'FAIL'}  {name:32} {seconds:6.1f} s  {facts}", flush=True
            )
    if not given.quick:
        record(rows)
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
