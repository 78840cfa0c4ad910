"""Where the data of a command goes."""

from __future__ import annotations

import pytest

from kernelmark.cli.options import Outputs
from kernelmark.cli.output import folded
from kernelmark.core.errors import UsageError
from kernelmark_dev.raising import raises


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
    with raises(UsageError, file=str(bad)):
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


LONG = "warning: " + "some words of a sentence that goes on and on, " * 4 + "/a/long/path" * 3


@pytest.mark.parametrize("width", [40, 80, 120])
def test_sentences_are_folded_between_words(width):
    lines = folded(LONG, width).split("\n")
    assert all(len(line) <= width for line in lines)
    assert " ".join(line.strip() for line in lines) == LONG
    assert folded("short: words", width) == "short: words"


@pytest.mark.parametrize(
    "text",
    [
        "  again: kmark run " + "-a m=512 " * 20,
        "interrupted; everything so far is stored: kmark run --resume " + "x" * 70,
        "note: " + "words " * 20 + "see: kmark show latest --samples --store here.sqlite",
    ],
)
def test_commands_stay_whole_to_be_copied(text):
    command = "kmark " + text.rpartition("kmark ")[2]
    assert any(line.endswith(command) for line in folded(text, 80).split("\n"))


@pytest.mark.parametrize("unit", ["%", "ms", "µs", "×"])
def test_a_number_stays_with_its_unit(unit):
    for width in range(20, 60):
        lines = folded(f"warning: some words and then {'x' * 9} by 12.5 {unit} of it", width)
        assert f"12.5 {unit}" in lines
