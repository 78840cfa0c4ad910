"""Drills of alarms: nights of an own kernel in five layouts of repository, and two histories."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.server
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from drilling import Facts, must
from kernelmark.api.suspects import Doubt, Key, Rules, change_of, judge
from kernelmark.core.environment import Environment
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Result, Run, RunState, Status
from kernelmark.report.changes import Change
from kernelmark.stores import open_store
from kernelmark.stores.store import Store
from kernelmark.testing.stores import measured, problem
from kernelmark.web.app import create_app
from kernelmark.web.source import Source

# It sleeps: its times are those of the file on a busy machine too.
KERNEL = """
import time
import numpy as np

{name}op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])
        time.sleep({seconds})

    return launch
"""
CONFIG = """
name = "n"
[[run]]
suites = ["small.toml"]
backends = ["{kernel}"]
devices = ["cpu"]
timing = "short.toml"
[canaries]
suite = ""
[judge]
budget_s = 600
[notify]
webhook = "$DRILL_WEBHOOK"
{base}"""
SUITE = '[[problems]]\nop = "gemm"\nm = 8\nn = 8\nk = 8\ndtype = "f32"\n'
TIMING = 'preset = "quick"\nmax_s = 0.5\nwarmup_s = 0.02\nthreads = 1\n'
GOOD_S, SLOW_S = 0.010, 0.015
SLOW_NIGHTS = 4  # the third night and three more
REPEATED = 4  # nights in a row that a failure of the histories stays

# Folder of nightly.toml, kernel file, its path in the config, declared name, is there a [base]
LAYOUTS = {
    "beside the config": ("", "rms.py", "./rms.py", "", True),
    "in a subfolder": ("", "kernels/rms.py", "./kernels/rms.py", "", True),
    "outside the config's folder": ("bench", "kernels/rms.py", "../kernels/rms.py", "", True),
    "with a name": ("", "kernels/rms.py", "./kernels/rms.py", "rmsnorm", True),
    "without a base": ("", "kernels/rms.py", "./kernels/rms.py", "", False),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """A repository with a kernel file and a nightly.toml, and its store outside of it."""

    root: Path
    config: Path
    kernel: Path
    declared: str

    @staticmethod
    def make(root: Path, name: str) -> Layout:
        folder, kernel, path, declared, has_base = LAYOUTS[name]
        config = root / folder / "nightly.toml"
        for file in (config, root / kernel):
            file.parent.mkdir(parents=True, exist_ok=True)
        base = '[base]\nrepo = "."\n' if has_base else ""
        config.write_text(CONFIG.format(kernel=path, base=base))
        config.with_name("small.toml").write_text(SUITE)
        config.with_name("short.toml").write_text(TIMING)
        (root / ".gitignore").write_text("nightly.state\n__pycache__\n")
        layout = Layout(root, config, root / kernel, f'name = "{declared}"\n' if declared else "")
        layout.git("init", "-q")
        return layout

    def git(self, *words: str) -> None:
        author = ("-c", "user.name=n", "-c", "user.email=n@example.org")
        command = ["git", "-C", str(self.root), *author, *words]
        subprocess.run(command, check=True, capture_output=True)

    def commit(self, seconds: float, message: str) -> None:
        self.kernel.write_text(KERNEL.format(name=self.declared, seconds=seconds))
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)


def kmark(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "kernelmark", *words]
    env = {**os.environ, **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@contextlib.contextmanager
def webhook() -> Iterator[tuple[str, list[str]]]:
    """A server that collects the texts that are posted to it."""
    texts: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            texts.append(str(json.loads(body)["text"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", texts
    finally:
        server.shutdown()
        thread.join()


def own_nights(count: int) -> Facts:
    """`kmark nightly` on an own kernel that is half slower from the third night on."""
    # The layouts side by side, if there are cores for a command and its worker of each.
    with concurrent.futures.ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 3)) as pool:
        ended = dict(zip(LAYOUTS, pool.map(_layout, LAYOUTS), strict=True))
    wrong = [
        f"{name}: {codes}"
        for name, codes in ended.items()
        if 0 in codes[2:-1] or 1 not in codes[2:4] or set(codes[3:-1]) != {1} or codes[-1]
    ]
    must(not wrong, "; ".join(wrong))
    shown = {name: " ".join(map(str, codes)) for name, codes in ended.items()}
    return {"layouts": len(LAYOUTS), "exit codes of the nights": shown}


def _layout(name: str) -> list[int]:
    with webhook() as (url, texts), tempfile.TemporaryDirectory() as folder:
        return _nights(Path(folder), name, url, texts)


def _nights(folder: Path, name: str, url: str, texts: list[str]) -> list[int]:
    """The exit codes of two good nights, of the slow ones, and of one that repairs it."""
    root, store = folder / "repository", str(folder / "store.sqlite")
    root.mkdir()
    layout = Layout.make(root, name)
    # As in a fresh CI machine, with nothing in its cache.
    variables = {"DRILL_WEBHOOK": url, "KERNELMARK_STORE": store, "KERNELMARK_LOCKS": str(folder)}
    codes = []
    for number, seconds in enumerate([GOOD_S] * 2 + [SLOW_S] * SLOW_NIGHTS + [GOOD_S]):
        layout.commit(seconds, f"night {number + 1}")
        posted = len(texts)
        cache = str(folder / f"cache-{number}")
        done = kmark("nightly", str(layout.config), KERNELMARK_CACHE=cache, **variables)
        codes.append(done.returncode)
        must(done.returncode in (0, 1, 4), f"{name}: exit code {done.returncode}: {done.stderr}")
        told = "nothing was posted" if done.returncode and len(texts) == posted else ""
        check = kmark("history", "--check", "--store", store)
        if done.returncode != 4 and check.returncode != done.returncode:
            told = f"kmark history --check ends with {check.returncode}: {check.stderr[-300:]}"
        must(not told, f"{name}, night {number + 1}, exit code {done.returncode}: {told}")
    with open_store(store, readonly=True) as results:
        every = [r for run in results.runs() for r in results.results(run.id)]
    failed = [str(result.status) for result in every if result.status is not Status.OK]
    must(not failed, f"{name}: {len(failed)} of {len(every)} results are {failed[:1]}")
    return codes


def histories(count: int) -> Facts:
    """A crash and a slowdown of many nights: one answer of CLI, JSON, page and nightly, until they
    are accepted or repaired."""
    answers = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        with open_store(path) as store:
            nights = _Story(store)
            for _ in range(24):
                nights.add(1.0, 1.0)
            answers += _agree(path, store, nights, expected=0)
            for _ in range(12):
                nights.add(1.0, 1.17)
            answers += _agree(path, store, nights, expected=1)
            for _ in range(REPEATED):
                nights.add(None, 1.17)
                answers += _agree(path, store, nights, expected=2)
            _accept(path, "m=1")
            answers += _agree(path, store, nights, expected=1)
            _accept(path, "m=2")
            answers += _agree(path, store, nights, expected=0)
            for series in ("m=1", "m=2"):
                must(
                    kmark("history", "--unaccept", series, "--store", str(path)).returncode == 0, ""
                )
            answers += _agree(path, store, nights, expected=2)
            nights.add(1.0, 1.17)
            answers += _agree(path, store, nights, expected=1)
            nights.add(1.0, 1.0)
            answers += _agree(path, store, nights, expected=0)
    return {"stages": answers, "faces": 4, "other answers": 0}


class _Story:
    """Nights of two kernels; None is a crash."""

    def __init__(self, store: Store) -> None:
        self._store, self._source, self.number = store, random.Random(7), 0

    def add(self, *factors: float | None) -> None:
        self.number += 1
        environment = Environment(host="drill", commit=f"{self.number:040x}")
        run = Run(
            id=f"night-{self.number:03}",
            started=1.7e9 + 86400.0 * self.number,
            finished=1.7e9 + 86400.0 * self.number + 60.0,
            environment=environment,
            label="n",
            cases=len(factors),
            state=RunState.DONE,
        )
        self._store.add_run(run)
        results = [self._result(m, factor) for m, factor in enumerate(factors, 1)]
        self._store.add_results(run.id, results)
        self.newest = run.id

    def _result(self, m: int, factor: float | None) -> Result:
        case = Case(problem=problem(m), backend="numpy")
        times = [[1e-4 * self._source.uniform(0.995, 1.005) for _ in range(10)] for _ in range(3)]
        made = measured(case, *(tuple(t * (factor or 1.0) for t in block) for block in times))
        if factor is not None:
            return made
        return replace(made, status=Status.CRASHED, measurement=None, error=Reason("signal 11"))


def _accept(path: Path, series: str) -> None:
    words = ("history", "--accept", series, "--reason", "known", "--store", str(path))
    done = kmark(*words)
    must(done.returncode == 0, f"--accept {series}: {done.stderr}")


def _agree(path: Path, store: Store, nights: _Story, *, expected: int) -> int:
    """Count one stage; every face must have as many alarms as expected."""
    listed = kmark("history", "--check", "--json", "-", "--store", str(path))
    series: Sequence[dict[str, Any]] = json.loads(listed.stdout)["series"]
    alarms = {
        "--check": listed.returncode * expected if expected else listed.returncode,
        "JSON": sum(one["state"] in ("slower", "broken") for one in series),
        "page": _on_page(path),
        "nightly": _by_night(store, nights.newest) * expected,
    }
    other = {face: alarm for face, alarm in alarms.items() if alarm != expected}
    must(not other, f"night {nights.number}, {expected} alarms expected: {other}")
    return 1


def _on_page(path: Path) -> int:
    with open_store(path) as store:
        app = create_app(Source(store))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            end = time.monotonic() + 60.0
            while time.monotonic() < end:
                answer: dict[str, Any] = client.get("/index.json").json()["answer"]
                if "slower" in answer:
                    return int(answer["slower"]) + int(answer["broken"])
                time.sleep(0.1)
    return -1


def _by_night(store: Store, run_id: str) -> int:
    """The exit code of a night whose suspects are measured again as they were."""

    def confirm(doubts: Sequence[Doubt]) -> dict[Key, Change]:
        return {
            d.key: change_of(d.result, d.level_s, d.status, Reason("as before")) for d in doubts
        }

    return min(1, judge(store, [run_id], Rules(label="n", canaries=""), confirm).code)
