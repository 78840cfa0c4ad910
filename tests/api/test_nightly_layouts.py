"""Nights of a person's own kernel file, wherever it lies: a slowdown on the third night is told.

Times are scripted by the file's own text, so a side that measures the wrong version is found."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelmark import ops
from kernelmark.api import nightly, suspects
from kernelmark.api.nightly import Tools, load, run_night
from kernelmark.core.environment import Environment
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result, ResultSet, Run, RunState, Status
from kernelmark.stores import open_store
from kernelmark.testing.stores import measured

KERNEL = """
op = "gemm"
TIME_US = {time}

def prepare(problem, config, sets):
    return lambda index: None
"""
SUITE = '[[problems]]\nop = "gemm"\nm = 8\nn = 8\nk = 8\ndtype = "f32"\n'
BASE = '[base]\nrepo = "."\n'
# name: (folder of nightly.toml, kernel file, as the config names it, declared name, [base])
LAYOUTS = {
    "beside": ("", "rms.py", "./rms.py", "", True),
    "subfolder": ("", "kernels/rms.py", "./kernels/rms.py", "", True),
    "outside": ("bench", "kernels/rms.py", "../kernels/rms.py", "", True),
    "named": ("", "kernels/rms.py", "./kernels/rms.py", "rmsnorm", True),
    "no-base": ("", "kernels/rms.py", "./kernels/rms.py", "", False),
}
DAY_S = 86400.0


def timed(case, file: Path, wobble: float) -> Result:
    """A result with the time that is written in the file."""
    if not file.is_file():
        reason = Reason(f"there is no file {file}")
        return Result(
            case=case, device="fake", arch="fake", status=Status.UNSUPPORTED, error=reason
        )
    time_s = 1e-6 * float(re.search(r"TIME_US = (\S+)", file.read_text())[1]) * wobble
    blocks = [(time_s * f,) * 3 for f in (0.999, 1.0, 1.001)]
    made = measured(dataclasses.replace(case, backend=case.name or case.backend), *blocks)
    return dataclasses.replace(made, case=case, device="fake", arch="fake")


class Layout:
    """A repository with a kernel file, a nightly.toml and a store outside it."""

    def __init__(self, root: Path, name: str, store, patch) -> None:
        folder, kernel, named, declared, has_base = LAYOUTS[name]
        self.root, self.store, self.now, self.nights = root, store, 1e9, 0
        self.kernel = root / kernel
        self.declared = f'name = "{declared}"\n' if declared else ""
        self.told: list[str] = []
        self.posted: list[str] = []
        self.kernel.parent.mkdir(parents=True, exist_ok=True)
        self.config = root / folder / "nightly.toml"
        self.config.parent.mkdir(parents=True, exist_ok=True)
        (self.config.parent / "small.toml").write_text(SUITE)
        (root / ".gitignore").write_text("nightly.state\n")
        self.config.write_text(
            f'name = "n"\n[[run]]\nsuites = ["small.toml"]\nbackends = ["{named}"]\n'
            f'devices = ["fake"]\n{BASE if has_base else ""}[canaries]\nsuite = ""\n'
            '[notify]\nwebhook = "https://x"\n'
        )
        patch.setattr(nightly, "measure", self.measure)
        patch.setattr(suspects, "measure", self.measure)
        patch.setattr(suspects, "compare_sides", self.compare_sides)
        patch.setattr(suspects, "captured", lambda plan: (Environment(), Environment()))
        patch.setattr(nightly, "post_webhook", lambda url, text: self.posted.append(text))
        self.git("init", "-q")

    def git(self, *words: str) -> str:
        author = ("-c", "user.name=n", "-c", "user.email=n@example.org")
        command = ["git", "-C", str(self.root), *author, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, time_us: float) -> None:
        self.kernel.write_text(self.declared + KERNEL.format(time=time_us))
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", f"night {self.nights + 1}")

    def measure(self, plan, *, conduct, store, on_event=None, resumed=None):
        run = Run(
            id=f"run-{conduct.label}-{self.nights}",
            started=self.now,
            environment=Environment(commit=self.git("rev-parse", "HEAD"), devices=plan.devices),
            label=conduct.label,
            argv=conduct.argv,
            state=RunState.DONE,
        )
        wobble = (1.0, 1.003, 0.998)[self.nights % 3]
        made = tuple(timed(case, Path(case.backend), wobble) for case in plan.cases)
        store.add_result_set(ResultSet(run=run, results=made))
        results = tuple(store.result_set(run.id).results)
        return _Results(results, run)

    def compare_sides(self, plan, environments, **more):
        from kernelmark.api.ab import compare_sides

        def opener(side: int):
            folder = Path(plan.sides[side].folder)

            def measure(case, process=0):
                return timed(case, folder / case.backend, 1.0 + 0.0005 * ((process * 7 + side) % 3))

            return SimpleNamespace(ready=lambda: None, measure=measure, close=lambda: None)

        return compare_sides(plan, environments, **{**more, "opener": opener})

    def night(self, time_us: float):
        self.nights += 1
        self.now += DAY_S
        self.commit(time_us)
        tools = Tools(tell=self.told.append, now=lambda: self.now)
        return run_night(load(self.config), self.store, tools)


class _Results(tuple):
    def __new__(cls, results, run):
        made = super().__new__(cls, results)
        made.run = run
        return made


# `named` and `outside` are also in subfolders.
QUICK = ("outside", "named", "no-base")


@pytest.fixture(
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in LAYOUTS]
)
def layout(request, tmp_path, monkeypatch):
    assert ops.registry.get("gemm")
    root = tmp_path / "repository"
    root.mkdir()
    with open_store(tmp_path / "store.sqlite") as store:
        yield Layout(root, request.param, store, monkeypatch)


def state_of(store) -> list[str]:
    from kernelmark.api.compare import history

    return [one.screen.status.value for one in history(store, canaries="").stories]


def test_a_slowdown_on_the_third_night_is_told_and_stays(layout):
    codes = [layout.night(time).code for time in (1000.0, 1000.0)]
    assert codes == [0, 0]
    codes = [layout.night(1280.0) for _ in range(8)]
    assert 1 in [ended.code for ended in codes[:2]], (codes[0].summary, layout.told)
    assert [ended.code for ended in codes[1:]] == [1] * 7, (codes[-1].summary, layout.told)
    assert codes[0].code != 0
    assert state_of(layout.store) == ["slower"], "history says the same"
    assert len(layout.posted) == 8
    assert len(layout.posted[-1]) < len(layout.posted[0]), "later nights are reminders"
    assert layout.night(1000.0).code == 0
    assert "slower" not in state_of(layout.store)


def test_a_false_stop_is_never_stored(layout):
    for time in (1000.0, 1000.0, 1280.0, 1280.0):
        layout.night(time)
    statuses = {one.status for run in layout.store.runs() for one in layout.store.results(run.id)}
    assert statuses == {Status.OK}


def test_a_slowdown_after_quiet_nights_is_told_at_once(layout):
    assert [layout.night(1000.0).code for _ in range(6)] == [0] * 6
    assert [layout.night(1400.0).code for _ in range(4)] == [1] * 4
