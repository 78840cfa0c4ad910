"""Reports: self-contained, escaped, with failures and commands."""

from __future__ import annotations

import html.parser
import importlib.util
import re

import pytest

from kernelmark.core.metric import Metric
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.report import page
from kernelmark.report.changes import Change
from kernelmark.report.results import result_rows
from kernelmark.report.summary import mark_text
from kernelmark.testing.micro import micro_result

EVIL = "<script>alert(1)</script>|`x`\x1b[31m\x00"
DRAWN = importlib.util.find_spec("vl_convert") is not None


class Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


@pytest.fixture
def part(make_result, make_set, make_roof):
    found = [
        make_result(f"gemm m={m} n=64 k=64 dtype=f32", backend=backend, median_s=1e-6 * m * factor)
        for m in (64, 128, 512)
        for backend, factor in (("one", 1.0), ("two", 0.5))
    ]
    found.append(make_result(status=Status.CRASHED, median_s=None, error=EVIL))
    made = make_set(*found)
    roofs = [make_roof("flops", "f32", 1e12), make_roof("bytes", "dram", 1e11)]
    return page.Part(results=made, rows=result_rows(made, roofs), roofs=roofs, notes=(EVIL,))


@pytest.mark.parametrize(
    "drawn",
    [
        pytest.param(
            "drawn",
            marks=pytest.mark.skipif(
                not DRAWN, reason="needs vl-convert-python, which make test installs"
            ),
        ),
        "plain",
    ],
)
def test_a_page_needs_nothing_from_elsewhere_and_runs_nothing(part, drawn):
    text = page.html_page([part, part], EVIL, drawn=drawn == "drawn")
    seen = Elements()
    seen.feed(text)
    assert "script" not in seen.names
    assert all(link.startswith("#") for link in seen.links)
    assert not re.search(r"@import|url\(", text)
    assert seen.names.count("svg") == (6 if drawn == "drawn" else 0)
    assert "&lt;script&gt;" in text
    assert not (set(map(chr, range(32))) - {"\n", "\t"}) & set(text)


def test_it_says_who_is_fastest_what_failed_and_how_to_repeat_it(part):
    text = page.html_page([part], "title", drawn=False)
    assert "two is fastest in 3 of 3 problems" in text
    assert "crashed, 1 case" in text
    assert text.count("aarch64") >= 1


def test_markdown_cells_hold_no_markup(part):
    text = page.markdown_page([part], EVIL)
    assert "<script>" not in text
    assert "two is fastest in 3 of 3 problems" in text


def test_sentences_begin_with_a_capital_but_backends_do_not(make_result, make_set, make_roof):
    made = make_set(make_result(backend="iree"), make_result(backend="torch", median_s=0.02))
    part = page.Part(results=made, rows=result_rows(made, [make_roof("flops", "f32", 1e12)]))
    for text in (page.html_page([part], "t", drawn=False), page.markdown_page([part], "t")):
        assert "iree ran 2.0" in text
        assert "Iree" not in text
        assert "Furthest from its roof" in text


def test_a_page_explains_the_mark_of_warnings(make_result, make_set):
    few = Reason("few blocks", "few-blocks", blocks=4, wanted=8)
    made = make_set(make_result(warnings=(few,)), make_result(backend="other"))
    part = page.Part(results=made, rows=result_rows(made))
    for text in (page.html_page([part], "t", drawn=False), page.markdown_page([part], "t")):
        assert mark_text(part.rows) in text
    calm = make_set(make_result())
    assert mark_text(result_rows(calm)) == ""


def test_figures_that_have_nothing_to_draw_are_left_out(make_result, make_set):
    alone = make_set(make_result())
    part = page.Part(results=alone, rows=result_rows(alone))
    assert set(page.figure_specs(part)) == {"roofline"}
    empty = make_set()
    assert page.figure_specs(page.Part(results=empty, rows=[])) == {}
    assert "no results" in page.html_page([page.Part(results=empty, rows=[])], "t", drawn=False)


def test_microbenchmarks_are_in_the_report(make_set):
    metric = Metric(name="read", value=5e9, unit="B/s")
    made = make_set(micro_result("stream", metrics=(metric,)))
    part = page.Part(results=made, rows=result_rows(made))
    for text in (page.html_page([part], "t", drawn=False), page.markdown_page([part], "t")):
        assert "5.000 GB/s" in text


def test_several_runs_begin_with_what_changed_between_them(part):
    changes = [
        Change(
            problem="gemm m=<b>",
            backend="one",
            status=VerdictStatus.SLOWER,
            reason=Reason.of(""),
            base=1e-5,
            head=2e-5,
            ratio=2.0,
        )
    ]
    text = page.html_page([part, part], "two", drawn=False, changes=changes)
    assert text.index("got slower") < text.index("<h2>Run ")
    assert "<b>" not in text
    plain = page.markdown_page([part, part], "two", changes)
    assert plain.index("got slower") < plain.index("## Run ")
