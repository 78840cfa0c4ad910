"""Texts of files, libraries and users."""

import re
import signal

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.core.text import csv_word, found_in, markdown_cell, printable
from kernelmark.report.tables import Column, Table, html_table, markdown, text


def test_found_or_not():
    assert found_in("m=8 ", ["gemm m=8 n=8", "gemm m=16 n=8"]) == [True, False]


@pytest.mark.parametrize("bad", ["(", "a{99999999999}", "[", "(?P<a>x)(?P<a>y)", "a" * 5000])
def test_what_is_none_is_a_sentence(bad):
    with pytest.raises(UsageError):
        found_in(bad, ["a"])


def test_one_that_would_never_end_is_a_sentence(monkeypatch):
    monkeypatch.setattr("kernelmark.core.text.LIMIT_S", 0.2)
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(UsageError):
        found_in("(a+)+$", ["a" * 200 + "b"])
    assert signal.getsignal(signal.SIGVTALRM) is before


@pytest.mark.parametrize("sign", ["\x1b[31m", "\x9b31m", "\r", "\x07", "\x08", "\u202e", "\x00"])
def test_no_control_character_reaches_a_terminal(sign):
    assert sign[0] not in printable(f"a{sign}b")
    table = Table(columns=(Column(name="x"),), rows=((f"a{sign}b",),), title=f"t{sign}")
    for made in (text(table), markdown(table), html_table(table)):
        assert sign[0] not in made


def test_lines_and_letters_stay():
    assert printable("é\tµ\n± 漢字") == "é\tµ\n± 漢字"


def test_a_lone_surrogate_can_be_printed():
    assert printable("a\ud800b").encode() == "a\ufffdb".encode()


@pytest.mark.parametrize("bad", ["a|b", "a\nb", "<img src=x>", "a\\|b", "[a](b)"])
def test_markdown_begins_no_column_row_tag_or_link(bad):
    table = Table(columns=(Column(name=bad),), rows=((bad,),), title=bad)
    for made in (markdown_cell(bad), *markdown(table).splitlines()):
        assert "<img" not in made
        plain = re.sub(r"\\.", "", made.removeprefix("| ").removesuffix(" |"))  # GFM's escapes
        assert not {"|", "["} & set(plain)
    assert len(markdown(table).splitlines()) == 5


def test_csv_word():
    assert "\x1b" not in csv_word("a\x1b[31m")
    assert csv_word("=1") == "'=1"
    assert csv_word("a=1") == "a=1"
