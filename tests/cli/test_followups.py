"""Commands that kmark prints: they find the same store and repeat what was asked for."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import sys
from types import SimpleNamespace

import pytest

from kernelmark.cli.measure.run import NEXT, print_demo_hints
from kernelmark.cli.output import redacted, rerun_words, started_as, store_words, without_password
from kernelmark.core.environment import Environment
from kernelmark.core.result import Run
from kernelmark.stores import open_store

HANG = ("--limit", "1", "--config", "behaviour=hang", "--timeout", "0.3")


@pytest.fixture
def other_store(run_once, tmp_path):
    """A store with a run that is not the one of $KERNELMARK_STORE."""
    return str(shutil.copy(run_once[0], tmp_path / "other.sqlite"))


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("my store.sqlite", "my store.sqlite"),
        ("sqlite:////data/a:b@c.sqlite", "sqlite:////data/a:b@c.sqlite"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://me:se/cr?et@host:5432/db", "postgresql://me@host:5432/db"),
        ("postgresql+psycopg://:secret@host/db?schema=a", "postgresql+psycopg://@host/db?schema=a"),
        ("postgres://host/db?password=secret&schema=a", "postgres://host/db?schema=a"),
        ("postgresql://host/db?PassWord=secret", "postgresql://host/db"),
    ],
)
def test_a_store_is_named_without_its_password(given, shown):
    assert without_password(given) == shown
    assert store_words(given) == ("--store", shown)
    assert redacted(["run", "--store", given, "-q"]) == ("run", "--store", shown, "-q")
    assert redacted(["run", f"--store={given}"]) == ("run", f"--store={shown}")


def test_what_was_not_given_is_not_said():
    assert store_words(None) == ()
    assert rerun_words(("run", "-s", "demo", "--timing", "quick")) == ()
    assert rerun_words(("tune", "run", "x", "--timeout", "3")) == ()
    given = ("run", "--timeout", "9", "--roofs=none", "--timeout=3", "--no-store")
    assert rerun_words(given) == ("--timeout", "3", "--roofs", "none", "--no-store")


def test_commands_after_a_failure_name_the_store_and_the_timeout(kmark, fake_words, tmp_path):
    place = str(tmp_path / "my store.sqlite")
    ended = kmark(*fake_words, *HANG, "--store", place, "--roofs", "none")
    assert ended.code == 3
    again = next(line for line in ended.err.splitlines() if "again: " in line)
    words = shlex.split(again.partition("again: kmark ")[2])
    assert words[-6:] == ["--timeout", "0.3", "--roofs", "none", "--store", place]
    repeated = kmark(*words)
    assert repeated.code == 3
    assert "timeout" in repeated.out
    shown = kmark("show", "--store", place).err
    assert again in shown.splitlines()
    run_id = kmark("list", "runs", "--store", place).out.splitlines()[2].split()[0]
    retried = ("run", "--resume", run_id, "--retry-failed", "--timeout", "0.3")
    resumed = kmark(*retried, "--store", place)
    assert again in resumed.err.splitlines()
    assert (
        f"--timeout 0.3 --roofs none --store '{place}'"
        in kmark("show", "--case", _case(kmark, place), "--store", place).out
    )


def _case(kmark, place: str) -> str:
    return kmark("show", "--csv", "-", "--store", place).out.splitlines()[1].split(",")[2]


def test_no_store_is_said_where_none_was_given(kmark, fake_words):
    ended = kmark(*fake_words, "--limit", "1", "--config", "behaviour=wrong")
    assert "again: kmark run" in ended.err
    assert "--store" not in ended.err
    assert "--timeout" not in ended.err


def test_commands_that_show_more_name_the_store(kmark, fake_words, tmp_path):
    place = str(tmp_path / "other.sqlite")
    words = [word if word != "m=[8,16]" else "m=[8,16,24,32]" for word in fake_words]
    crashed = kmark(*words, "--config", "behaviour=crash", "--store", place)
    more = re.search(r"and 1 more: kmark (show \S+ --status crashed --store \S+)", crashed.err)
    assert more, crashed.err
    assert kmark(*shlex.split(more[1])).out.count("  crashed\n") == 4
    wrong = kmark(*fake_words, "--config", "behaviour=wrong", "--limit", "1", "--store", place)
    whole = re.search(r"details: kmark (.*)", wrong.err)
    assert whole, wrong.err
    assert kmark(*shlex.split(whole[1])).code == 0
    none = kmark("show", "-b", "torch", "--store", place)
    assert re.search(rf"kmark show \S+ --store {place}$", none.err.strip()), none.err


def test_commands_that_measure_a_compared_row_again_name_the_store(kmark, fake_words, tmp_path):
    place = str(tmp_path / "other.sqlite")
    for label, time in (("one", "20.0"), ("two", "40.0")):
        words = [word.replace("20.0", time) for word in fake_words]
        assert kmark(*words, "--label", label, "--store", place).code == 0
    both = ("compare", "one", "two", "--match", "problem", "--store", place)
    made = kmark(*both, "--md", "-").out
    assert re.search(rf"^kmark compare .* --store {place}$", made, flags=re.MULTILINE)
    again = re.findall(r"^kmark run .*$", made, flags=re.MULTILINE)
    assert len(again) == 2, made
    rows = json.loads(kmark(*both, "--json", "-").out)["rows"]
    shown = kmark(*both, "--explain", "1").out
    for command in (*again, *(row["again"] for row in rows)):
        assert command.endswith(f" --store {place}")
    assert again[0] in shown or again[1] in shown
    assert kmark(*shlex.split(again[0])[1:]).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("micro", "show"),
        ("micro", "compare", "latest~1", "latest"),
        ("history", "--micro", "cache"),
    ],
)
def test_a_store_without_microbenchmarks_is_told_how_to_measure_them(refused, other_store, words):
    assert "kmark micro cache" in refused(*words, "--store", other_store, code=4).err


@pytest.mark.slow
def test_an_interrupted_run_is_resumed_from_its_store(kmark, stopped, tmp_path):
    place = str(tmp_path / "other.sqlite")
    words = (
        *("run", "-o", "gemm", "-b", "fake", "--dtype", "f32", "--roofs", "none"),
        *("-a", "m=[8:24:8]", "-a", "n=8", "-a", "k=8", "--store", place),
        *("--config", "time_us=1000.0", "--max-s", "0.4", "--warmup-s", "0.1"),
    )
    rest = stopped(words, "] ok", signal.SIGINT)
    command = re.search(r"kmark (run --resume .*)", rest)
    assert command, rest
    assert kmark(*shlex.split(command[1])).code == 0


def test_a_password_is_neither_stored_nor_printed(kmark, fake_words, tmp_path, monkeypatch):
    """PostgreSQL is not needed to see what would be kept of the command line."""
    from kernelmark.stores import engine as places

    real = places.locate
    secret = "postgresql://me:secret@host/db"

    def locate(where):
        return real(str(tmp_path / "other.sqlite") if where == secret else where)

    monkeypatch.setattr("kernelmark.stores.store.locate", locate)
    ended = kmark(*fake_words, "--config", "behaviour=wrong", "--store", secret)
    assert ended.code == 3
    assert "--store postgresql://me@host/db" in ended.err
    assert "secret" not in ended.err + ended.out
    with open_store(tmp_path / "other.sqlite") as store:
        assert "secret" not in " ".join(store.run("latest").argv)


def test_a_run_of_another_command_is_told_without_password(refused, tmp_path):
    argv = ("ab", "-b", "numpy", "-s", "smoke", "--store", "postgresql://me:secret@host/db")
    with open_store(tmp_path / "store.sqlite") as store:
        store.add_run(Run(id="old", started=1.0, environment=Environment(), argv=argv))
    told = refused("run", "--resume", "old", run="old", command="ab").err
    assert "--store postgresql://me@host/db" in told


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
