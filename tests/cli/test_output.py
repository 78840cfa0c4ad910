"""Where the data of a command goes."""

from __future__ import annotations

import pytest

from kernelmark.cli.output import Outputs
from kernelmark.core.errors import UsageError


def test_only_what_was_asked_for_is_made(tmp_path, capsys):
    def never():
        raise AssertionError("nobody asked for this")

    Outputs(csv=str(tmp_path / "it.csv")).put(json=never, csv=lambda: "a,b\n", md=never)
    assert (tmp_path / "it.csv").read_text() == "a,b\n"
    assert capsys.readouterr().out == ""


def test_one_that_cannot_be_written_keeps_no_other_from_it(tmp_path, capsys):
    bad, good = tmp_path / "gone" / "it.json", tmp_path / "it.md"
    bad.parent.mkdir()
    outputs = Outputs(json=str(bad), csv="-", md=str(good))
    bad.parent.rmdir()
    with pytest.raises(UsageError, match=r"it\.json cannot be written"):
        outputs.put(json=lambda: "{}", csv=lambda: "a\n", md=lambda: "| a |\n")
    assert good.read_text() == "| a |\n"
    assert capsys.readouterr().out == "a\n"


def test_stdout_is_written_before_files(tmp_path):
    made = []

    def text(name):
        return lambda: made.append(name) or ""

    Outputs(json=str(tmp_path / "a"), csv=str(tmp_path / "b"), md="-").put(
        json=text("json"), csv=text("csv"), md=text("md")
    )
    assert made[0] == "md"
