"""`kmark nightly` as a user meets it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from kernelmark.api.nightly import load

EXAMPLES = Path(__file__).parents[3] / "examples" / "nightly"
FILE = """
name = "night"
store = "own.sqlite"
[[run]]
suites = ["small.toml"]
backends = ["fake"]
devices = ["fake"]
timing = "timing.toml"
[base]
set = { KERNELMARK_FAKE_SCRIPT = '{"slow":[1.0]}' }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "small.toml").write_text(
        '[[problems]]\nop = "gemm"\nm = 8\nn = 8\nk = 8\ndtype = "f32"\n'
    )
    (tmp_path / "timing.toml").write_text("max_s = 0.02\nwarmup_s = 0.01\n")
    (tmp_path / "nightly.toml").write_text(FILE)
    return tmp_path


@pytest.mark.slow
def test_nights_on_a_device_that_gets_slower(folder, kmark, monkeypatch):
    file = str(folder / "nightly.toml")
    codes = [kmark("nightly", file, "-q").code for _ in range(5)]
    assert codes == [0] * 5
    monkeypatch.setenv("KERNELMARK_FAKE_SCRIPT", '{"slow":[1.03]}')
    ended = kmark("nightly", file, "--md", str(folder / "out.md"))
    assert ended.code == 1, ended.err
    assert "paired rounds" in ended.err
    text = (folder / "out.md").read_text()
    assert text.startswith("### kernelmark: 1 of 1 kernel got slower")
    assert "kmark ab --env base=" in text
    assert kmark("show", "night", "--store", str(folder / "own.sqlite")).code == 0


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(folder, kmark, stopped):
    text = FILE.replace("[[run]]", "[setup]\ncommands = ['true']\n[[run]]")
    (folder / "nightly.toml").write_text(text)
    (folder / "timing.toml").write_text("max_s = 1\nwarmup_s = 0.01\n")
    file = str(folder / "nightly.toml")
    assert "the same command goes on" in stopped(("nightly", file), "run 1", signal.SIGTERM)
    ended = kmark("nightly", file)
    assert ended.code == 0, ended.err
    assert "going on with the night" in ended.err
    assert "set-up: true" not in ended.err


def test_dry_run_measures_nothing(folder, kmark):
    ended = kmark("nightly", str(folder / "nightly.toml"), "--dry-run")
    assert ended.code == 0
    assert [line.split()[0] for line in ended.out.splitlines()] == ["run", "judge:"]
    assert not (folder / "own.sqlite").exists()
    assert not (folder / "nightly.state").exists()


def test_what_is_refused(folder, refused):
    none = str(folder / "none.toml")
    refused("nightly", none, file=none)
    (folder / "bad.toml").write_text(FILE.replace("backends", "backend"))
    bad = str(folder / "bad.toml")
    ended = refused("nightly", bad, file=bad, key="run.backend")
    assert " backends?" in ended.err.splitlines()[1]
    (folder / "secret.toml").write_text(FILE + '[notify]\nwebhook = "$NO_SUCH_HOOK"\n')
    ended = refused("nightly", str(folder / "secret.toml"), "--dry-run")
    assert "NO_SUCH_HOOK" in ended.err


def test_the_example_is_one():
    found = load(EXAMPLES / "nightly.toml")
    assert found.base.is_configured
    assert found.run[0].devices == ("cuda:0",)
