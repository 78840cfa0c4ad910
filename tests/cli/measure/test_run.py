"""`kmark run`, `show`, `export` and `import` for real, mostly on the fake device."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmark.core import codec
from kernelmark.core.result import ResultSet, RunState, Status
from kernelmark.report.results import MARK
from kernelmark.stores import open_store

HOT = ("--cache", "hot")  # thousands of cold sets of such small problems would take seconds
MARKED = f"{MARK} after ± marks"
# A pipe that is closed is noticed at the first write, not when all is flushed at the end.
UNBUFFERED = (
    "import sys\nfrom kernelmark.cli.main import main\n"
    "sys.stdout.reconfigure(write_through=True)\nmain(sys.argv[1:])"
)


def test_table_on_stdout_and_words_on_stderr(kmark, fake_words):
    ended = kmark(*fake_words, "--label", "first")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert len(lines) == 4
    assert lines[0].split()[:2] == ["problem", "backend"]
    assert "gemm m=8 n=8 k=8 dtype=f32" in lines[2]
    assert "20.00 µs" in lines[2]
    assert "[1/2] ok" in ended.err
    assert "(first): 2 ok; stored in" in ended.err


def test_quiet_says_nothing(kmark, fake_words):
    ended = kmark(*fake_words, "--quiet")
    assert ended.err == ""
    assert "20.00 µs" in ended.out


def test_no_store_writes_no_store_and_loads_no_database(fake_words, tmp_path):
    program = (
        "import sys\nfrom kernelmark.cli.main import main\n"
        f"try: main({[*fake_words, '--no-store', '--json', str(tmp_path / 'r.json')]!r})\n"
        "except SystemExit as ended: print(ended.code, 'sqlalchemy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 False"
    assert codec.loads((tmp_path / "r.json").read_text(), ResultSet).results
    assert not (tmp_path / "store.sqlite").exists()


def test_markdown_on_stdout_explains_its_marks_alone(kmark, fake_words):
    words = (*fake_words, "-q", "--config", "block_noise=0.9")
    ended = kmark(*words, "--md", "-")
    assert MARKED in ended.out
    assert MARKED not in ended.err
    assert "warning: " not in ended.err
    ended = kmark(*words, "--json", "-")
    assert MARKED in ended.err


def test_every_output_at_once(kmark, fake_words, tmp_path):
    files = [tmp_path / name for name in ("r.json", "r.csv", "r.md")]
    ended = kmark(
        *fake_words, "--json", str(files[0]), "--csv", str(files[1]), "--md", str(files[2])
    )
    assert ended.code == 0
    assert "median" in ended.out
    assert len(codec.loads(files[0].read_text(), ResultSet).results) == 2
    assert len(list(csv.DictReader(io.StringIO(files[1].read_text())))) == 2
    assert files[2].read_text().startswith("| problem |")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(("behaviour", "status"), [("wrong", "wrong"), ("crash", "crashed")])
def test_failures_are_rows_and_code_3(kmark, fake_words, behaviour, status):
    ended = kmark(*fake_words, "--config", f"behaviour={behaviour}")
    assert ended.code == 3
    assert [line.split()[-1] for line in ended.out.splitlines()[2:]] == [status, status]
    assert f"{status}, " in ended.err
    assert "again: kmark run -p 'gemm m=8 n=8 k=8 dtype=f32' -b fake -d fake" in ended.err
    assert f"--config behaviour={behaviour}" in ended.err


def test_the_command_that_is_shown_repeats_the_failure(kmark, fake_words):
    first = kmark(*fake_words, "--config", "behaviour=compile_error")
    line = next(x for x in first.err.splitlines() if "again: " in x)
    again = kmark(*shlex.split(line.partition("again: kmark ")[2]))
    assert again.code == 3
    assert "compile_error" in again.out


def test_unsupported_beside_what_was_measured_is_no_failure(kmark):
    shape = ("-o", "gemm", "-a", "m=8", "-a", "n=8", "-a", "k=8", "--dtype", "f32,bf16")
    ended = kmark("run", *shape, "-b", "numpy", "--roofs", "none", "--max-s", "0.02", *HOT)
    assert ended.code == 0
    assert "unsupported, 1 case: " in ended.err
    assert "bf16" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        ("-p", "gemm m=8 n=8 k=8 dtype=bf16"),
        ("-p", "gemm m=8 n=8 k=8 dtype=f32", "--timer", "graph"),
        ("-s", "sentinels", "--limit", "1", "--timer", "graph"),
        pytest.param(
            ("-s", "smoke", "-o", "gemm", "--limit", "1", "--dtype", "bf16"),
            marks=pytest.mark.slow,  # measures the canaries
        ),
    ],
)
def test_nothing_but_unsupported_is_nothing_measured(kmark, words):
    """Sentinels beside a suite are no answer to what was asked for."""
    ended = kmark("run", *words, "-b", "numpy", "--roofs", "none", "--max-s", "0.02", *HOT)
    assert ended.code == 4
    assert "unsupported" in ended.out
    assert "unsupported, 1 case" in ended.err


def test_a_document_of_nothing_measured_is_written(kmark):
    words = ("run", "-p", "gemm m=8 n=8 k=8 dtype=bf16", "-b", "numpy", "--roofs", "none")
    ended = kmark(*words, "--json", "-")
    assert ended.code == 4
    assert codec.loads(ended.out, ResultSet).results[0].status is Status.UNSUPPORTED
    assert kmark("show").code == 0


def test_a_hang_is_ended_by_the_timeout(kmark, fake_words):
    ended = kmark(*fake_words, "--limit", "1", "--config", "behaviour=hang", "--timeout", "1")
    assert ended.code == 3
    assert "timeout" in ended.out


def test_dry_run_tells_what_cannot_be_done(kmark):
    shape = ("-o", "gemm", "-a", "m=[64,128]", "-a", "n=64", "-a", "k=64")
    ended = kmark("run", "-b", "numpy", *shape, "--dtype", "f32,bf16", "--dry-run")
    assert ended.code == 0
    assert "4 cases on cpu" in ended.err
    assert re.search(r"2 cases .*unsupported: .*bf16", ended.err)


@pytest.mark.usefixtures("no_store_yet")
def test_dry_run_needs_no_store(kmark, fake_words):
    assert kmark(*fake_words, "--dry-run").code == 0


def test_dry_run_lists_and_runs_nothing(kmark, fake_words, tmp_path):
    ended = kmark(*fake_words, "--dry-run")
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 4
    assert "2 cases on fake, about " in ended.err
    assert "1 case on fake" in kmark(*fake_words, "--limit", "1", "--dry-run").err
    assert not (tmp_path / "store.sqlite").exists()


def test_comma_lists_and_repeats_mean_the_same(kmark):
    words = ("run", "-s", "smoke", "--dtype", "f32", "--dry-run")
    comma = kmark(*words, "-o", "gemm,conv", "-b", "fake,numpy")
    repeated = kmark(*words, "-o", "gemm", "-o", "conv", "-b", "fake", "-b", "numpy")
    assert comma.out == repeated.out
    assert " fake " in comma.out
    assert "\nconv" in comma.out


def test_show_is_what_run_printed(kmark, stored):
    for ref in ("latest", "mine"):
        shown = kmark("show", ref)
        assert shown.code == 0
        assert shown.out == stored
        assert "(mine): 2 ok; stored in" in shown.err


def test_show_narrows_and_details(kmark, stored, refused):
    assert kmark("show", "--filter", "m=16").out.count("gemm") == 1
    assert kmark("show", "-b", "fake", "-o", "gemm", "--status", "ok").out.count("gemm") == 2
    refused("show", "-b", "torch", code=4, what="result")
    refused("show", "--status", "fine", what="status", name="fine")
    detail = kmark("show", "--samples", "--filter", "m=8 ").out
    for word in ("blocks", "samples", "check", "kernel", "cost", "95 % interval", "again"):
        assert word in detail
    case = kmark("show", "--csv", "-").out.splitlines()[1].split(",")[2]
    assert "blocks" in kmark("show", "--case", case[:8]).out


def test_export_and_import_are_exact(kmark, stored, tmp_path):
    exported = kmark("export", "mine")
    assert exported.err == ""
    file = tmp_path / "mine.json"
    file.write_text(exported.out)
    other = str(tmp_path / "other.sqlite")
    brought = kmark("import", str(file), "--store", other)
    assert brought.code == 0
    assert "2 results added" in brought.err
    assert "2 results" not in kmark("import", str(file), "--store", other).err
    assert kmark("export", "mine", "--store", other).out == exported.out
    assert kmark("show", str(file)).out == kmark("show", "mine").out
    assert kmark("export", "mine", "--csv", "-").out.startswith("run,label,case,")
    assert kmark("export", "mine", "--md", "-").out.startswith("| problem")


def test_import_reads_stdin(stored, kmark, tmp_path, monkeypatch):
    text = kmark("export").out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert kmark("import", "-", "--store", str(tmp_path / "other.sqlite")).code == 0


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m kernelmark list suites | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_reader_of_much_that_goes_away_is_no_error(kmark, stored, tmp_path):
    read, write = os.pipe()
    os.close(read)
    words = ("show", "mine", "--samples")
    done = subprocess.run(
        [sys.executable, "-c", UNBUFFERED, *words], stdout=write, stderr=-1, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_run_that_nobody_listens_to_goes_on_to_its_end(fake_words, tmp_path):
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "kernelmark", *fake_words]
    done = subprocess.run(words, stdout=write, stderr=write, check=False)
    os.close(write)
    assert done.returncode == 0
    with open_store(tmp_path / "store.sqlite") as store:
        assert store.run("latest").state is RunState.DONE
        assert len(list(store.results(store.run("latest").id))) == 2


def test_a_run_without_a_stderr_is_a_run(fake_words):
    command = shlex.join([sys.executable, "-m", "kernelmark", *fake_words, "--no-store"])
    done = subprocess.run(["bash", "-c", f"{command} 2>&-"], stdout=-1, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.count("20.00 µs") == 2


def full(*given: object, **named: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_loses_no_table_and_names_the_file(kmark, fake_words, tmp_path, monkeypatch):
    monkeypatch.setattr("kernelmark.core.files.write_whole", full)
    ended = kmark(*fake_words, "--json", str(tmp_path / "r.json"))
    assert ended.code == 2
    assert "20.00 µs" in ended.out
    assert "2 ok; stored in" in ended.err
    assert f"{tmp_path}/r.json" in ended.reason
    exported = kmark("export", "--csv", str(tmp_path / "r.csv"))
    assert exported.code == 2
    assert f"{tmp_path}/r.csv" in exported.reason
    monkeypatch.undo()


def test_one_unwritable_file_does_not_keep_the_others(kmark, stored, tmp_path, monkeypatch):
    other = tmp_path / "r.csv"
    words = ("--store", str(tmp_path / "store.sqlite"))
    ended = kmark("export", "--json", "/dev/full", "--csv", str(other), *words)
    assert ended.code == 2
    assert "/dev/full" in ended.reason
    assert other.read_text().startswith("run,label")


def test_a_full_stdout_is_told_once():
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m kernelmark list suites > /dev/full"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("kmark: stdout ")
    assert "Exception ignored" not in done.stderr


def on_terminal(words: tuple[str, ...], **variables: str) -> str:
    """What a terminal would receive."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelmark", *words],
        stdout=child,
        stderr=child,
        stdin=child,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", **variables},
    )
    os.close(child)
    received = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # it has ended
            break
        if not part:
            break
        received += part
    os.close(parent)
    assert process.wait() == 0
    return received.decode()


def test_a_terminal_gets_a_bar_and_colour(fake_words):
    drawn = on_terminal((*fake_words, "--no-store"))
    assert "2/2" in drawn
    assert "left" in drawn
    assert "\x1b[1m" in drawn


def test_help_keeps_to_no_color_too():
    plain = on_terminal(("run", "--help"), NO_COLOR="1")
    assert "--suite" in plain
    assert not re.search("\x1b\\[[0-9;]*m", plain)


def test_a_narrow_terminal_keeps_numbers_whole(stored):
    narrow = on_terminal(("show", "mine"), COLUMNS="60", NO_COLOR="1")
    assert not re.search("\x1b\\[[0-9;]*m", narrow)
    lines = [line.rstrip() for line in narrow.replace("\r", "").splitlines()]
    assert "gemm m=8 n=8 k=8 dtype=f32" in lines
    backend = next(
        at for at, line in enumerate(lines) if line.split()[:2] == ["fake", "[time_us=20.0]"]
    )
    assert any("20.00 µs" in line for line in lines[backend : backend + 2])


def test_json_is_one_document_with_a_version(kmark, stored):
    document = json.loads(kmark("export", "--json", "-").out)
    assert (document["kernelmark"], document["version"]) == ("results", 1)
    assert document["run"]["argv"][0] == "run"


def test_files_appear_whole(tmp_path):
    from kernelmark.cli.output import write

    target = tmp_path / "x.txt"
    write(str(target), "one")
    write(str(target), "two")
    assert target.read_text() == "two"
    assert [path.name for path in Path(tmp_path).iterdir() if path.is_file()] == ["x.txt"]
