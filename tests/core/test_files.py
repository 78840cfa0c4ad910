"""Files that appear whole or not at all, and their texts."""

import csv
import errno
import io
import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core import files
from kernelmark.core.errors import UsageError
from kernelmark.core.text import printable
from kernelmark_dev.raising import raises

CELLS = st.one_of(
    st.none(), st.integers(), st.floats(allow_nan=False), st.text(st.characters(codec="utf-8"))
)


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "it.bin"
    files.write_whole(path, b"one")
    files.write_whole(path, b"two", sync=True)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 21)
    (tmp_path / "small").write_bytes(b"x" * (1 << 21))
    assert files.read_whole(tmp_path / "small") == b"x" * (1 << 21)
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 40)
    for path in (tmp_path / "hole", Path("/dev/zero")):
        with pytest.raises(OSError, match=str(path)) as refused:
            files.read_whole(path)
        assert refused.value.errno == errno.EFBIG


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    files.write_whole(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode & 0o777 == 0o640


def test_what_was_there_stays_if_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "it.bin"
    path.write_bytes(b"old")

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        files.write_whole(path, b"new", sync=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@given(st.lists(st.fixed_dictionaries({"a": CELLS, "b, c": CELLS}), min_size=1))
def test_csv_holds_what_it_was_given(records):
    names = ["a", "b, c"]
    rows = list(csv.reader(io.StringIO(files.csv_text(records, names), newline="")))
    assert rows[0] == names
    assert len(rows) == len(records) + 1
    for record, row in zip(records, rows[1:], strict=True):
        for value, cell in zip((record[name] for name in names), row, strict=True):
            if isinstance(value, float):
                assert float(cell) == value
            elif isinstance(value, str):
                plain = printable(value)
                assert cell in (plain, f"'{plain}")  # the latter where it looks like a formula
            else:
                assert cell == ("" if value is None else str(value))


@pytest.mark.parametrize("formula", ["=1+1", "+cmd|x", "-a", "@SUM(A1)", "\t=1"])
def test_csv_holds_no_formulas(formula):
    (row,) = csv.reader(io.StringIO(files.csv_text([{"a": formula}]).split("\n", 1)[1]))
    assert row == [f"'{formula}"]
    for number in ("-1.5", "+3", "-inf", "-1e-6"):
        assert files.csv_text([{"a": number}]) == f"a\n{number}\n"
    assert (files.csv_text([], ["a", "b"]), files.csv_text([])) == ("a,b\n", "")


@given(st.lists(st.text(alphabet='\r\n", a'), min_size=1))
def test_csv_of_one_column_has_a_row_for_each_record(cells):
    text = files.csv_text([{"a": cell} for cell in cells])
    assert [row for (row,) in csv.reader(io.StringIO(text, newline=""))] == [
        "a",
        *(printable(cell) for cell in cells),
    ]


def test_json_is_plain_and_has_no_nan():
    assert json.loads(files.json_text({"é": [1, None]})) == {"é": [1, None]}
    assert "é" in files.json_text("é")
    with pytest.raises(ValueError, match="not JSON compliant"):  # Python's words
        files.json_text(math.nan)


@pytest.mark.parametrize(
    ("data", "hint"), [(None, "make it"), (b"\xff", None), (b"a = [", "mend it")]
)
def test_a_toml_file_that_cannot_be_loaded_is_refused_by_the_name_it_was_given(
    tmp_path, data, hint
):
    path = tmp_path / "one.toml"
    if data is not None:
        path.write_bytes(data)
    with raises(UsageError, file="~/one.toml") as refused:
        files.load_toml(path, missing="make it", hint="mend it", shown="~/one.toml")
    assert refused.value.hint == hint
    path.write_text("a = 1")
    assert files.load_toml(path, missing="") == {"a": 1}


@pytest.mark.parametrize(("text", "line"), [("a = 1\nb = [1,\n", 2), ("a = '", 1)])
def test_a_toml_file_that_ends_too_early_has_the_number_of_its_last_line(tmp_path, text, line):
    path = tmp_path / "one.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        files.load_toml(path, missing="")
    assert f"line {line}" in refused.value.message


def test_a_file_may_be_named_like_a_user_who_does_not_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert files.user_path("~/a") == Path("/somewhere/a")
    assert files.user_path("~nobody-of-this-name.json") == Path("~nobody-of-this-name.json")


@pytest.mark.parametrize(
    "document",
    [
        {"a": 1, "é": [1, 2.5, None, True, "x\ny"], "b": {}, "c": [], "d": [[], {"e": [{}]}]},
        {7: {"x": [1]}, None: [[2]], 2.5: {}, True: {"y": {"z": 0}}},
        [[1, 2], [{"a": [3]}], "text"],
        [], {}, "", 1e-300, -0.0,
    ],
)  # fmt: skip
def test_json_is_what_the_library_writes_with_an_indentation(document):
    expected = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    assert files.json_text(document) == expected
