"""The source line behind a compiler's complaint."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark.core.reason import Reason
from kernelmark.gpu.clang import explain

SOURCE = '#line 1 "common.h"\nheader one\nheader two\n\n#line 1 "mine.cu"\nbody one\nbody two\n'


@pytest.mark.parametrize(
    ("log", "place"),
    [
        ("mine.cu(2): error: expected a ;", "mine.cu:2: body two"),
        ("mine.cu(1): catastrophic error: cannot open", "mine.cu:1: body one"),
        ("common.h(2): error: expected a ;", "common.h:2: header two"),
        ("mine.cu:2:7: error: expected ';'", "mine.cu:2: body two"),
        ("/tmp/x/mine.cu:1:1: fatal error: no", "mine.cu:1: body one"),
        ("warning first\nmine.cu(1): warning: odd\nmine.cu(2): error: bad", "mine.cu:2: body two"),
    ],
)
def test_the_first_error_comes_with_its_line(log: str, place: str) -> None:
    told = explain(log, SOURCE, "mine.cu").splitlines()
    assert "error" in told[0]
    assert told[1] == f"  {place}"
    assert told[2:] == log.splitlines()


def test_a_source_of_one_piece_needs_no_directive() -> None:
    assert "  k.cu:2: second" in explain("k.cu(2): error: no", "first\nsecond\n", "k.cu")


@pytest.mark.parametrize("log", ["other.h(1): error: no", "mine.cu(99): error: no"])
def test_no_line_is_shown_where_it_is_not_known(log: str) -> None:
    assert explain(log, SOURCE, "mine.cu") == f"{log}\n{log}"


def test_a_log_without_a_place_is_shown() -> None:
    expected = Reason("source-not-compiled", file="mine.cu", error="out of memory")
    assert explain("out of memory", SOURCE, "mine.cu") == expected


@given(st.text(), st.text(), st.text())
@settings(deadline=None)
def test_any_log_gives_some_text(log: str, source: str, name: str) -> None:
    assert explain(log, source, name)
