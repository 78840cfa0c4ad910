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
from kernelmark.cli.app import command
from kernelmark.cli.errors import command_path
from kernelmark.core.messages import SETTINGS

GEMM = ("run", "-o", "gemm", "--dtype", "f32", "-a", "n=8", "-a", "k=8")


@pytest.mark.parametrize(
    ("words", "reason", "fields"),
    [
        (("-a", "m=0"), "dim-below", {"given": "m=0", "least": 1}),
        (("-a", f"m={2**40}"), "dim-too-large", {"name": "m"}),
        (("-a", "m=8", "-a", "zz=8"), "unknown-name", {"what": "parameter", "name": "zz"}),
        (("-a", "m=8", "-b", "nump"), "unknown-name", {"what": "backend", "name": "nump"}),
        (("-a", "m=8", "-b", "~nobody_here/x"), "unknown-name", {"name": "~nobody_here/x"}),
        (("-a", "m=8", "-b", "n" * 300), "unknown-name", {"name": "n" * 300}),
        (("-a", "m=8", "-d", "gpu"), "unknown-device", {"device": "gpu"}),
        (("-a", "m=8", "-d", "cpu:9"), "device-missing", {"device": "cpu:9"}),
        (("-a", "m=8", "--threads", "100000"), "too-many-threads", {"threads": 100000}),
        (("-a", "m=8", "--max-blocks", "1"), "timing-blocks", {"least": 3}),
        (("-a", "m=8", "--timeout", "-1"), "limit-not-positive", {}),
        (("-a", "m=8", "--timeout", "nan"), "not-possible", {"name": "--timeout", "value": "nan"}),
        (("-a", "m=8", "--timeout", "inf"), "not-possible", {"name": "--timeout", "value": "inf"}),
        (("-a", "m=8", "--label", "a.json"), "name-like-file", {"name": "a.json"}),
        (("-a", "m=8", "-b", " , "), "list-empty", {}),
        (("-a", "m=8", "--filter", "("), "not-a-regex", {"pattern": "("}),
        (("-a", "m=8", "--json", "/no/x.json"), "file-without-folder", {"folder": "/no"}),
        (("-a", "m=8", "--json=-", "--csv=-"), "stdout-shared", {"options": ("--json", "--csv")}),
        (("-a", "m=8", "--retry-failed"), "option-needs", {"other": "--resume"}),
        (("-a", "m=[8:2"), "axis-bracket", {"axis": "m=[8:2"}),
        (("-a", "m"), "axis-form", {"axis": "m"}),
        (("-a", "m=8", "--config", "tile"), "not-of-form", {"given": "tile"}),
    ],
)
def test_a_wrong_option_of_a_run_has_a_code(refused, words, reason, fields):
    refused(*GEMM, *words, reason=reason, **fields)


@pytest.mark.parametrize(
    ("words", "reason", "fields"),
    [
        (("history", "--pin", "a.csv=latest"), "name-like-file", {"name": "a.csv"}),
        (("run", "-o", "gem", "-a", "m=8"), "unknown-name", {"what": "op", "name": "gem"}),
        (("run", "-o", "gemm", "-a", "m=8", "--dtype", "f33"), "unknown-name", {"name": "f33"}),
        (("run", "-s", "nosuch"), "unknown-name", {"what": "suite", "name": "nosuch"}),
        (("run", "-s", "./nosuch.toml"), "file-missing", {"file": "nosuch.toml"}),
        (("run", "-p", "gemm m=8 n"), "problem-not-name-value", {"word": "n"}),
        (("run",), "nothing-asked", {}),
        (("run", "-p", "gemm m=8 n=8 k=8"), "parameter-missing", {"name": "dtype"}),
        (("run", "--resume", "--no-store"), "options-exclusive", {"options": ("--no-store",)}),
        (("list", "suites", "-o", "gemm"), "options-exclusive", {"options": ("-o",)}),
        (("show", "nosuch.json"), "file-missing", {"file": "nosuch.json"}),
        (("import", "nosuch.json"), "file-missing", {"file": "nosuch.json"}),
    ],
)
def test_is_refused_with_a_code(refused, words, reason, fields):
    refused(*words, reason=reason, **fields)


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
        refused("run", *words, str(file), reason="file-not-toml", file=str(file))
        for words in (("-s",), ("-s", "demo", "--timing"))
    ]
    assert told[0].err == told[1].err  # the hint too


def test_toml_with_an_illegal_problem(refused, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[[problems]]\nop = "gemm"\nm = 0\nn = 8\nk = 8\ndtype = "f32"\n')
    refused("run", "-s", str(file), reason="dim-below", given="m=0")


def test_nothing_to_do_is_code_4(refused, tmp_path, monkeypatch):
    words = ("run", "-s", "smoke", "--filter", "zzz")
    refused(*words, code=4, reason="filter-matches-none", filter="zzz")
    monkeypatch.delenv("KERNELMARK_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    refused("show", code=4, reason="store-missing")
    refused("list", "runs", code=4, reason="store-missing")


def test_a_bad_request_makes_no_store(refused, tmp_path):
    refused(*GEMM, "-a", "m=0", reason="dim-below")
    assert not (tmp_path / "store.sqlite").exists()


@pytest.mark.parametrize("words", [(*GEMM, "-a", "m=8"), ("show",), ("list", "runs")])
def test_stores_that_cannot_be_used(refused, tmp_path, words):
    text = tmp_path / "text.sqlite"
    text.write_text("this is not a database at all, only some words in a file")
    refused(*words, "--store", str(text), reason="store-not-sqlite", store=str(text))
    refused(*words, "--store", str(tmp_path), reason="file-is-folder", file=str(tmp_path))
    refused(*words, "--store", "mysql://somewhere/x", reason="unknown-name", name="mysql")


def test_unwritable_store(refused, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    if os.access(locked, os.W_OK):  # root may write anywhere but under /proc
        refused(*GEMM, "-a", "m=8", "--store", "/proc/y.db", reason="store-not-opened")
    else:
        path = f"{locked}/s.db"
        refused(*GEMM, "-a", "m=8", "--store", path, reason="store-folder-unwritable", store=path)


def test_a_store_of_a_newer_schema(refused, stored, fake_words, tmp_path):
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE meta SET value = '9999' WHERE key = 'schema'")
    connection.close()
    for words in (("show",), ("list", "runs"), fake_words):
        refused(*words, reason="store-too-new", schema=9999)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "document-empty"),
        ('{"kernelmark":"results","version":1,"run":{"id":', "document-not-json"),
        ("[1, 2]", "not-a-document"),
        ('{"kernelmark":"results","version":99}', "document-version"),
        ('{"kernelmark":"case","version":1}', "document-of-other-kind"),
        ('{"kernelmark":"results","version":1,"run":{},"results":[]}', "field-missing"),
        ('{"kernelmark":"results","version":1,"extra":1}', "field-unknown"),
        ("\0\1\2", "document-not-json"),
    ],
)
def test_files_that_are_no_results(kmark, tmp_path, content, reason):
    file = tmp_path / "results.json"
    file.write_text(content)
    for words in (("import", str(file)), ("show", str(file)), ("export", str(file))):
        ended = kmark(*words)
        assert ended.code == 2
        assert ended.out == ""
        assert ended.reason.root.code == reason
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

    monkeypatch.setattr("kernelmark.cli.listing.dtypes", fail)
    ended = refused("list", "dtypes")
    assert "RuntimeError: surprise" in ended.err
    assert "--debug" in ended.err
    monkeypatch.setattr("kernelmark.cli.listing.dtypes", Path("/nonexistent/file").read_text)
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
    refused(*words, reason="not-possible", name=words[-2])


def test_an_endless_integer_in_a_suite_is_a_sentence(refused, tmp_path):
    path = tmp_path / "endless.toml"
    path.write_text(f'why="x"\nsource="y"\n[[problems]]\nop="gemm"\nm={"9" * 5000}\n')
    refused("run", "-s", str(path), reason="file-not-toml", file=str(path))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (-1, "block-no-time"),
        (0, "block-no-time"),
        (1e40, "field-impossible"),
        ("nan", "block-no-time"),
    ],
)
def test_a_results_file_with_numbers_that_cannot_be_is_refused(
    kmark, refused, stored, tmp_path, value, reason
):
    good = tmp_path / "good.json"
    assert kmark("export", "--json", str(good)).code == 0
    document = json.loads(good.read_text())
    bad = tmp_path / "bad.json"
    block = document["results"][0]["measurement"]["blocks"][0]
    for change in (
        {"samples_s": [value]},
        {"samples_s": [1e-5, value]},
    ):
        changed = json.loads(json.dumps(document))
        changed["results"][0]["measurement"]["blocks"][0] = {**block, **change}
        bad.write_text(json.dumps(changed))
        for words in (("show", str(bad)), ("import", str(bad)), ("compare", str(good), str(bad))):
            refused(*words, reason=reason)


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


def test_no_sentence_names_an_option_that_help_does_not_show():
    """A hidden option works, but nobody finds out how: a field of --timing FILE.toml does."""
    shown = {
        name
        for parameter in command().commands["run"].params
        if not getattr(parameter, "hidden", False)
        for name in parameter.opts
    }
    words = {word for names in SETTINGS.values() for word in names[1].split()}
    assert {word for word in words if word.startswith("--")} <= shown


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
    hint = refused("run", "-o", "gemm", "-b", "nonesuch", reason="unknown-name").err
    assert all(suffix in hint for suffix in backends.FILES)


@pytest.mark.parametrize(("command", "choice"), [("list", "backends"), ("plot", "roofline")])
def test_the_choices_of_a_missing_argument_are_in_the_hint(refused, command, choice) -> None:
    sentence, hint = refused(command).err.splitlines()
    assert sentence.endswith("'")
    assert choice in hint
