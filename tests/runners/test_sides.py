"""Sides: from words to interpreters, and what their workers say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernelmark.core.environment import difference
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Case
from kernelmark.core.timing import Cache, Timing
from kernelmark.ops import parse
from kernelmark.runners.ab import Side, checkouts, environment_of, parse_sides
from kernelmark.runners.capture import environment, overridden_variables
from kernelmark.runners.jobs import MeasureCase
from kernelmark.runners.targets import find
from kernelmark_dev.raising import raises


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    """Another interpreter with the same libraries: a folder like a virtual environment's."""
    folder = tmp_path_factory.mktemp("venv")
    (folder / "bin").mkdir()
    script = folder / "bin" / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return folder


def test_names_interpreters_and_variables(venv):
    base, head = parse_sides(
        ["golden", f"tot={venv}"], ["tot:A_PATH=/x:/y=z", "tot:B=", "golden:A_PATH=1"]
    )
    assert base == Side(name="golden", variables={"A_PATH": "1"})
    assert head.python == str(venv / "bin" / "python")
    assert dict(head.variables) == {"A_PATH": "/x:/y=z", "B": ""}


def test_without_names_they_are_base_and_head():
    assert [side.name for side in parse_sides([], [])] == ["base", "head"]


@pytest.mark.parametrize(
    ("environments", "settings", "fields"),
    [
        (["one"], [], {"count": 1}),
        (["a", "b", "c"], [], {"count": 3}),
        (["a", "a"], [], {"name": "a"}),
        (["a=", "b"], [], {"given": "a="}),
        (["1a", "b"], [], {"given": "1a"}),
        (["a=/no/such/python", "b"], [], {"python": "/no/such/python"}),
        ([], ["X=1"], {"given": "X=1"}),
        ([], ["base:X"], {"given": "base:X"}),
        ([], ["base:1X=1"], {"given": "base:1X=1"}),
        ([], ["tot:X=1"], {"name": "tot", "variable": "X"}),
    ],
)
def test_what_is_refused(environments, settings, fields):
    with raises(UsageError, **fields):
        parse_sides(environments, settings)


def test_environments_differ_by_what_was_given(venv):
    base, head = parse_sides(["a", f"b={venv}"], ["b:MY_SWITCH=on", "b:OMP_NUM_THREADS=1"])
    seen = [environment_of(side, "cpu", ["numpy"]) for side in (base, head)]
    changed = {what: (was, now) for what, was, now in difference(*seen)}
    assert changed["variable MY_SWITCH"] == ("", "on")
    assert changed["variable OMP_NUM_THREADS"] == ("", "1")
    assert changed["library interpreter"] == (sys.executable, str(venv / "bin" / "python"))
    assert set(changed) == {"variable MY_SWITCH", "variable OMP_NUM_THREADS", "library interpreter"}
    assert seen[0].libraries["numpy"] == seen[1].libraries["numpy"]


def test_an_interpreter_that_cannot_work_is_refused(tmp_path):
    bad = tmp_path / "python"
    bad.write_text("#!/bin/sh\necho no numpy here >&2\nexit 3\n")
    bad.chmod(0o755)
    python = str(bad)
    with raises(UsageError, environment="b", python=python, exit_code=3):
        environment_of(Side(name="b", python=python), "fake", [])


def test_the_commit_of_a_checkout_that_a_variable_puts_in_front(tmp_path):
    def git(*words: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True)

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    found = checkouts({"PYTHONPATH": f"{tmp_path}:/no/such", "OTHER": str(tmp_path)})
    assert list(found) == ["checkout in PYTHONPATH"]
    assert len(found["checkout in PYTHONPATH"]) == 12
    (tmp_path / "file").write_text("2")
    assert checkouts({"PYTHONPATH": str(tmp_path)})["checkout in PYTHONPATH"].endswith("changes")


def test_a_side_that_sets_one_of_the_threads_variables_is_not_overruled_by_the_others(tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_text(
        "import os\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "op = 'gemm'\n"
        "def prepare(problem, config, sets):\n"
        "    names = [n for n in os.environ if n.endswith('_THREADS')]\n"
        "    text = ' '.join(f'{n}={os.environ[n]}' for n in sorted(names))\n"
        "    Path(__file__).with_suffix('.seen').write_text(text)\n"
        "    return lambda i: np.matmul(sets[i]['a'], sets[i]['b'], out=sets[i]['d'])\n"
    )
    case = Case(
        problem=parse("gemm m=8 n=8 k=8 a=f32 b=f32"),
        backend=str(kernel),
        timing=Timing.preset("quick", max_s=0.02, warmup_s=0.0, cache=Cache.HOT),
    )
    _, head = parse_sides([], ["head:OMP_NUM_THREADS=1"])
    pool = head.pool("cpu", 60.0)
    result = pool.call(MeasureCase(case=case))
    pool.close()
    assert result.status == "ok", result.error
    assert kernel.with_suffix(".seen").read_text() == "OMP_NUM_THREADS=1"


def test_a_variable_that_workers_do_not_get_is_told_and_not_recorded(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert overridden_variables([find("cpu")[1]])["OMP_NUM_THREADS"][0] == "77"
    assert "OMP_NUM_THREADS" not in environment([find("cpu")[1]], ["numpy"]).variables
    assert environment([find("fake")[1]], []).variables["OMP_NUM_THREADS"] == "77"


@pytest.mark.parametrize("when", ["kill -9 $$", "(sleep 1; kill -9 $$) &"])
def test_a_worker_that_is_killed_is_replaced_once(tmp_path, when):
    script = tmp_path / "python"
    script.write_text(
        f'#!/bin/sh\nif mkdir "{tmp_path}/once" 2>/dev/null; then {when} fi\n'.replace(
            "$$ fi", "$$; fi"
        )
        + f'exec "{sys.executable}" "$@"\n'
    )
    script.chmod(0o755)
    seen = environment_of(Side(name="a", python=str(script)), "fake", ["fake"])
    assert seen.libraries["interpreter"] == str(script)
