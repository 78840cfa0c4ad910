"""The command in hints: as it was started, if the shell would not find `kmark`."""

from __future__ import annotations

import shlex
import shutil
import sys
from types import SimpleNamespace

import pytest

from kernelmark.cli import run_output
from kernelmark.cli.followups import started_as
from kernelmark.cli.run_output import NEXT, print_demo_hints

DEMO = SimpleNamespace(run=SimpleNamespace(id="20260101-000000-abcdef"), timed=[])


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A `kmark` in a virtual environment that is not active."""
    script = tmp_path / "my venv" / "bin" / "kmark"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!{sys.executable}\nfrom kernelmark.cli.main import main\nmain()\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return script


def test_the_command_is_named_as_it_was_started(installed, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["my venv/bin/kmark", "run"])
    assert shlex.split(started_as()) == ["my venv/bin/kmark"]
    monkeypatch.setattr(sys, "argv", [str(installed.with_name("__main__.py")), "run"])
    assert shlex.split(started_as()) == [sys.executable, "-m", "kernelmark"]
    monkeypatch.setenv("PATH", f"/usr/bin:{installed.parent}")
    assert started_as() == "kmark"


def test_the_commands_after_the_demo_can_be_run(installed, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["my venv/bin/kmark", "run", "-s", "demo"])
    print_demo_hints(DEMO, ())
    lines = capsys.readouterr().err.splitlines()
    commands = [line.strip() for line in lines if line.startswith("  ") and "#" not in line]
    assert len(commands) == len(NEXT)
    assert all(shutil.which(shlex.split(command)[0]) for command in commands)


def test_the_end_of_the_demo_does_not_repeat_its_answer(monkeypatch, capsys):
    monkeypatch.setattr(run_output, "answer", lambda rows: ["the answer of the run"])
    print_demo_hints(DEMO, ())
    assert "the answer of the run" not in capsys.readouterr().err
