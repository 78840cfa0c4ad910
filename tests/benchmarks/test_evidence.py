"""kernelmark_dev.evidence: what a result file tells of what made it."""

import json
import re

import pytest

from kernelmark_dev import evidence


def a_package(folder):
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("one = 1\n")
    (folder / "inner" / "kernel.cu").write_text("void f();\n")
    return folder


def test_a_document_tells_when_and_from_which_sources(tmp_path):
    path = tmp_path / "one.json"
    evidence.write(path, title="One", bars=[("a", "b", True)], figures={}, libraries={"x": "1"})
    document = json.loads(path.read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", document["date"])
    assert re.fullmatch(r"\d\d:\d\d:\d\dZ", document["time"])
    assert document["sources"] == evidence.SOURCES
    assert re.fullmatch(r"[0-9a-f]{12}", document["sources"])
    assert document["libraries"] == {"x": "1"}


def test_equal_sources_have_one_digest_wherever_they_lie(tmp_path):
    one, two = a_package(tmp_path / "one"), a_package(tmp_path / "two")
    assert evidence.sources(one) == evidence.sources(two)
    (two / "__pycache__").mkdir()
    (two / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"\0")
    (two / "fast.so").write_bytes(b"\0")
    (two / ".x.swp").write_bytes(b"\0")
    assert evidence.sources(one) == evidence.sources(two)


@pytest.mark.parametrize("change", ["edit", "rename", "add", "move a byte to the name"])
def test_any_change_of_a_source_shows(tmp_path, change):
    folder = a_package(tmp_path / "one")
    before = evidence.sources(folder)
    kernel = folder / "inner" / "kernel.cu"
    if change == "edit":
        kernel.write_text("void g();\n")
    elif change == "rename":
        kernel.rename(folder / "inner" / "other.cu")
    elif change == "add":
        (folder / "empty.toml").touch()
    else:
        kernel.write_text("oid f();\n")
        kernel.rename(folder / "inner" / "kernel.cuv")
    assert evidence.sources(folder) != before


def test_a_state_goes_on_after_a_line_that_is_half_written(tmp_path):
    state = tmp_path / "state.jsonl"
    assert evidence.load_state(None) == evidence.load_state(state) == {}
    evidence.append_state(state, {"key": "a", "status": "ok"})
    with state.open("a", encoding="utf-8") as file:
        file.write('{"key": "b", "sta')
    assert list(evidence.load_state(state)) == ["a"]
    evidence.append_state(state, {"key": "c", "status": "ok"})
    assert list(evidence.load_state(state)) == ["a", "c"]


def test_a_bar_that_does_not_hold_is_the_exit_status(tmp_path, capsys):
    path = tmp_path / "one.json"
    for holds in (True, False):
        bars = [("a", "b", True), ("c", "d", holds)]
        assert evidence.conclude(path, title="One", bars=bars, figures={}) == (not holds)
        assert json.loads(path.read_text())["bars"][1]["holds"] is holds
    assert "c: d" in capsys.readouterr().out
