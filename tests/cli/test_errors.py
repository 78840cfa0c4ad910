"""Everything a user can get wrong: one sentence, a hint, the right code, no traceback."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmark import backends
from kernelmark.cli.app import command_path

GEMM = ("run", "-o", "gemm", "--dtype", "f32", "-a", "n=8", "-a", "k=8")


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (("-a", "m=0"), {"given": "m=0", "least": 1}),
        (("-a", "m=-3"), {"given": "m=-3", "least": 1}),
        (("-a", f"m={2**40}"), {}),
        (("-a", "m=8", "-a", "zz=8"), {"what": "parameter", "name": "zz"}),
        (("-a", "m=8", "-b", "nump"), {"what": "backend", "name": "nump"}),
        (("-a", "m=8", "-b", "~nobody_here/x"), {"name": "~nobody_here/x"}),
        (("-a", "m=8", "-b", "n" * 300), {"name": "n" * 300}),
        (("-a", "m=8", "-d", "gpu"), {"device": "gpu"}),
        (("-a", "m=8", "-d", "cpu:9"), {"device": "cpu:9"}),
        (("-a", "m=8", "--threads", "100000"), {"threads": 100000}),
        (("-a", "m=8", "--max-blocks", "1"), {"least": 3}),
        (("-a", "m=8", "--timeout", "-1"), {}),
        (("-a", "m=8", "--timeout", "nan"), {"name": "--timeout", "value": "nan"}),
        (("-a", "m=8", "--timeout", "inf"), {"name": "--timeout", "value": "inf"}),
        (("-a", "m=8", "--label", "a.json"), {"name": "a.json"}),
        (("-a", "m=8", "-d", ""), {}),
        (("-a", "m=8", "-b", " , "), {}),
        (("-a", "m=8", "--filter", "("), {"pattern": "("}),
        (("-a", "m=8", "--json", "/no/x.json"), {"folder": "/no"}),
        (("-a", "m=8", "--json=-", "--csv=-"), {"options": ("--json", "--csv")}),
        (("-a", "m=8", "--retry-failed"), {"other": "--resume"}),
        (("-a", "m=[8:2"), {"axis": "m=[8:2"}),
        (("-a", "m"), {"axis": "m"}),
        (("-a", "m=8", "--config", "tile"), {"given": "tile"}),
    ],
)
def test_a_wrong_option_of_a_run_has_a_code(refused, words, fields):
    refused(*GEMM, *words, **fields)


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (("history", "--pin", "a.csv=latest"), {"name": "a.csv"}),
        (("run", "-o", "gem", "-a", "m=8"), {"what": "op", "name": "gem"}),
        (("run", "-o", "gemm", "-a", "m=8", "--dtype", "f33"), {"name": "f33"}),
        (("run", "-s", "nosuch"), {"what": "suite", "name": "nosuch"}),
        (("run", "-s", "./nosuch.toml"), {"file": "nosuch.toml"}),
        (("run", "-p", "gemm m=8 n"), {"word": "n"}),
        (("run",), {}),
        (("run", "-p", "gemm m=8 n=8 k=8"), {"name": "dtype"}),
        (("run", "--resume", "--no-store"), {"options": ("--no-store",)}),
        (("run", "--timing", "slow", "-s", "smoke"), {"name": "slow"}),
        (("list", "suites", "-o", "gemm"), {"options": ("-o",)}),
        (("show", "nosuch.json"), {"file": "nosuch.json"}),
        (("import", "nosuch.json"), {"file": "nosuch.json"}),
    ],
)
def test_is_refused_with_a_code(refused, words, fields):
    refused(*words, **fields)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((*GEMM, "-a", "m=8", "--threads", "-1"), "'--threads': -1 "),
        ((*GEMM, "-a", "m=8", "--max-s", "-1"), "'--max-s': -1 "),
        ((*GEMM, "-a", "m=8", "--threads", "x"), "'--threads': 'x' "),
        (("list", "runs", "--limit", "-1"), "'--limit': -1 "),
        ((*GEMM, "-a", "m=8", "--target-ci", "0"), "'--target-ci': 0 "),
        ((*GEMM, "-a", "m=8", "--target-ci", "5"), "'--target-ci': 5 "),
        (("run", "--limit", "many", "-s", "smoke"), "--limit"),
        (("run", "--nonsense"), "--nonsense"),
        (("rum",), "rum"),
        (("list",), "WHAT"),
        (("list", "stars"), "stars"),
        (("import",), "FILE"),
    ],
)
def test_what_the_parser_refuses_is_named(refused, words, named):
    assert named in refused(*words).err.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("run", "-s", "./nosuch.toml"), "kmark list suites"),
        (("micro", "cache", "--quick", "--full"), "kmark micro --help"),
        (("history", "--micro"), "kmark history --help"),
        (("roofs", "--device"), "kmark roofs --help"),
        (("run", "-s", "latin.toml"), "kmark list suites"),
        (("run", "-s", "folder.toml"), "kmark list suites"),
        (("ab", "-s", "smoke,nosuch.toml", "-b", "numpy"), "kmark list suites"),
        (("import", "nosuch.json"), "kmark import --help"),
        (("show", "nosuch.json"), "kmark list runs"),
        ((*GEMM, "-a", "m=8", "--json", "no/such/x.json"), "mkdir -p no/such"),
        ((*GEMM, "-a", "m=8", "--target-ci", "5"), " 0.05 "),
        (("ab", "-b", "numpy", "-s", "smoke", "--delta", "5"), " 0.05 "),
        ((*GEMM, "-a", "m=8", "-b", "./mine"), " ./mine.py? "),
        ((*GEMM, "-a", "m=8", "-b", "./yours"), ".py"),
        (("ab", "-b", "mine", "-s", "smoke"), " mine.py? "),
        (("tune", "plan", "work", "-b", "mine", "-s", "smoke"), " mine.py? "),
    ],
)
def test_the_hint_fits_the_mistake(refused, tmp_path, monkeypatch, words, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'why = "\xe9t\xe9"')
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "mine.py").write_text("op = 'gemm'\n")
    assert hint in refused(*words).err.splitlines()[1]


def test_a_device_without_a_driver_points_to_the_doctor(refused, monkeypatch):
    from kernelmark.devices import registry

    monkeypatch.setattr(type(registry.get("cuda")), "available", lambda self: "cuda: no driver")
    for device in ("cuda", "cuda:0"):
        assert "kmark doctor" in refused(*GEMM, "-a", "m=8", "-d", device).err.splitlines()[1]


def test_kmark_alone_is_its_help(kmark):
    alone = kmark()
    assert (alone.code, alone.err) == (0, "")
    assert alone.out == kmark("--help").out
    assert "lint-configs" in alone.out


def test_truncated_toml(refused, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('why = "x"\n[[problems]]\nop = "gemm"\nm = [1, 2\n')
    told = [
        refused("run", *words, str(file), file=str(file))
        for words in (("-s",), ("-s", "demo", "--timing"))
    ]
    assert told[0].err == told[1].err  # the hint too


def test_toml_with_an_illegal_problem(refused, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[[problems]]\nop = "gemm"\nm = 0\nn = 8\nk = 8\ndtype = "f32"\n')
    refused("run", "-s", str(file), given="m=0")


def test_nothing_to_do_is_code_4(refused, tmp_path, monkeypatch):
    words = ("run", "-s", "smoke", "--filter", "zzz")
    refused(*words, code=4, filter="zzz")
    monkeypatch.delenv("KERNELMARK_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    refused("show", code=4, reason="store-missing")
    refused("list", "runs", code=4, reason="store-missing")


def test_a_bad_request_makes_no_store(refused, tmp_path):
    refused(*GEMM, "-a", "m=0")
    assert not (tmp_path / "store.sqlite").exists()


@pytest.mark.parametrize("words", [(*GEMM, "-a", "m=8"), ("show",), ("list", "runs")])
def test_stores_that_cannot_be_used(refused, tmp_path, words):
    text = tmp_path / "text.sqlite"
    text.write_text("this is not a database at all, only some words in a file")
    refused(*words, "--store", str(text), reason="store-not-sqlite", store=str(text))
    refused(*words, "--store", str(tmp_path), file=str(tmp_path))
    refused(*words, "--store", "mysql://somewhere/x", name="mysql")


def test_unwritable_store(refused, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    if os.access(locked, os.W_OK):  # root may write anywhere but under /proc
        refused(*GEMM, "-a", "m=8", "--store", "/proc/y.db")
    else:
        path = f"{locked}/s.db"
        refused(*GEMM, "-a", "m=8", "--store", path, store=path)


def test_a_store_of_a_newer_schema(refused, stored, fake_words, tmp_path):
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE meta SET value = '9999' WHERE key = 'schema'")
    connection.close()
    for words in (("show",), ("list", "runs"), fake_words):
        refused(*words, reason="store-too-new", schema=9999)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", ""),
        ('{"kernelmark":"results","version":1,"run":{"id":', ""),
        ("[1, 2]", ""),
        ('{"kernelmark":"results","version":99}', "99"),
        ('{"kernelmark":"case","version":1}', "case"),
        ('{"kernelmark":"results","version":1,"run":{},"results":[]}', "argv"),
        ('{"kernelmark":"results","version":1,"extra":1}', "extra"),
        ("\0\1\2", ""),
    ],
)
def test_files_that_are_no_results(kmark, tmp_path, content, named):
    file = tmp_path / "results.json"
    file.write_text(content)
    for words in (("import", str(file)), ("show", str(file)), ("export", str(file))):
        ended = kmark(*words)
        assert ended.code == 2
        assert ended.out == ""
        assert named in ended.reason
        assert "Traceback" not in ended.err
        assert ended.err.startswith("kmark: ")
    assert not (tmp_path / "store.sqlite").exists()


def test_debug_anywhere_adds_the_traceback(kmark, refused):
    plain = refused("run", "-s", "nosuch")
    for words in (("--debug", "run", "-s", "nosuch"), ("run", "-s", "nosuch", "--debug")):
        ended = kmark(*words)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith("Traceback")
        assert ended.err.endswith(plain.err)


def test_the_entry_point_and_the_commands_import_in_one_direction():
    program = "import sys, kernelmark.cli.app; assert 'kernelmark.cli.main' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_error_nobody_expected_is_one_sentence_too(refused, monkeypatch):
    def fail():
        raise RuntimeError("surprise\nwith more lines")

    monkeypatch.setattr("kernelmark.cli.store.listing.dtypes", fail)
    ended = refused("list", "dtypes")
    assert "RuntimeError: surprise" in ended.err
    assert "--debug" in ended.err
    monkeypatch.setattr("kernelmark.cli.store.listing.dtypes", Path("/nonexistent/file").read_text)
    assert "/nonexistent/file: " in refused("list", "dtypes").err


@pytest.mark.parametrize(
    "words",
    [
        ("list", "runs", "--limit", "99999999999999999999"),
        ("run", "-s", "smoke", "--max-s", "1e999"),
        ("run", "-s", "smoke", "--timeout", "nan"),
        ("run", "-s", "smoke", "--seed", "99999999999999999999"),
        ("tune", "run", ".", "--timeout", "1e999"),
    ],
)
def test_numbers_that_no_option_can_mean_are_refused(refused, words):
    refused(*words, name=words[-2])


def test_an_endless_integer_in_a_suite_is_a_sentence(refused, tmp_path):
    path = tmp_path / "endless.toml"
    path.write_text(f'why="x"\nsource="y"\n[[problems]]\nop="gemm"\nm={"9" * 5000}\n')
    refused("run", "-s", str(path), file=str(path))


@pytest.mark.parametrize("value", [-1, 0, 1e40, -9e9, 2**64, "nan", "inf"])
def test_a_results_file_with_numbers_that_cannot_be_is_refused(
    kmark, refused, stored, tmp_path, value
):
    good = tmp_path / "good.json"
    assert kmark("export", "--json", str(good)).code == 0
    document = json.loads(good.read_text())
    bad = tmp_path / "bad.json"
    block = document["results"][0]["measurement"]["blocks"][0]
    for change in ({"samples_s": [value]}, {"samples_s": [1e-5, value]}):
        changed = json.loads(json.dumps(document))
        changed["results"][0]["measurement"]["blocks"][0] = {**block, **change}
        bad.write_text(json.dumps(changed))
        for words in (("show", str(bad)), ("import", str(bad)), ("compare", str(good), str(bad))):
            refused(*words)


def test_texts_of_a_results_file_do_not_reach_the_terminal_as_commands(kmark, stored, tmp_path):
    good = tmp_path / "good.json"
    assert kmark("export", "--json", str(good)).code == 0
    text = good.read_text().replace('"backend": "fake"', '"backend": "\\u001b]0;x\\u0007=1|<b>"')
    (tmp_path / "bad.json").write_text(text)
    outs = [str(tmp_path / name) for name in ("o.md", "o.csv")]
    ended = kmark("show", str(tmp_path / "bad.json"), "--md", outs[0], "--csv", outs[1])
    assert ended.code == 0
    for shown in (ended.out, ended.err, (tmp_path / "o.md").read_text()):
        assert "\x1b" not in shown
        assert "\x07" not in shown
    assert "<b>" not in (tmp_path / "o.md").read_text()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("run", "exclude"), "kmark history --exclude"),
        (("run", "gemm"), "-o gemm"),
        (("run", "demo", "-b", "numpy"), "-s demo"),
        (("ab", "numpy"), "-b numpy"),
        (("run", "mine.py"), "-b mine.py"),
    ],
)
def test_a_word_without_its_option_is_told_where_it_belongs(refused, words, meant):
    assert meant in refused(*words).err


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["run", "-b", "numpy"], "kmark run"),
        (["--debug", "tune", "plan", "folder"], "kmark tune plan"),
        (["iree", "ab", "run"], "kmark iree ab"),
        (["iree", "nothing"], "kmark iree"),
        (["nothing"], "kmark"),
        ([], "kmark"),
    ],
)
def test_a_command_is_named_with_its_group(words: list[str], path: str) -> None:
    assert command_path(words) == path


@pytest.mark.parametrize(
    ("word", "close"), [("op", "did you mean ops?"), ("lgs", "did you mean logs?"), ("bogus", "")]
)
def test_a_word_is_suggested_only_if_it_is_close(refused, word: str, close: str) -> None:
    hint = refused("list", word).err.splitlines()[1]
    assert close in hint
    assert ("did you mean" in hint) == bool(close)


def test_a_backend_may_be_a_kernel_file_of_any_kind(refused) -> None:
    hint = refused("run", "-o", "gemm", "-b", "nonesuch", name="nonesuch").err
    assert all(suffix in hint for suffix in backends.FILES)


@pytest.mark.parametrize(("command", "choice"), [("list", "backends"), ("plot", "roofline")])
def test_the_choices_of_a_missing_argument_are_in_the_hint(refused, command, choice) -> None:
    sentence, hint = refused(command).err.splitlines()
    assert sentence.endswith("'")
    assert choice in hint


def test_an_axis_without_its_option_and_an_unknown_op_get_the_hint_that_helps(kmark):
    for words, named in (
        (("run", "-o", "gemm", "m=8", "n=8"), "-a NAME=VALUE"),
        (("run", "-o", "softmax", "-a", "m=8"), "docs/own-kernel.md"),
    ):
        answer = kmark(*words)
        assert answer.code == 2
        assert named in answer.err
