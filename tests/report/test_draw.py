"""No value of a table is cut at any width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.report.tables import Column, Line, Table, draw

WORDS = st.lists(
    st.sampled_from(["a", "m=4096", "12.5", "µs", "GFLOP/s", "–", "x" * 30, "y" * 100, "1.2 %"]),
    max_size=12,
).map(" ".join)
NAMES = st.sampled_from(["problem", "±", "of roof", "what it is, or why it is not there"])


@st.composite
def tables(draw_one):
    columns = draw_one(
        st.lists(
            st.builds(Column, name=NAMES, align=st.sampled_from(["left", "right"])), min_size=1
        )
    )
    row = st.tuples(*([WORDS] * len(columns)))
    return Table(
        columns=tuple(columns),
        rows=tuple(draw_one(st.lists(row, max_size=4))),
        title=draw_one(WORDS),
    )


@given(tables(), st.sampled_from([20, 40, 80, 200]))
def test_every_cell_is_there_and_no_line_is_too_long(check_drawn, table, width):
    check_drawn(table, [line.text for line in draw(table, width)], width)


def table_of(*rows: tuple[str, ...]) -> Table:
    columns = (
        Column(name="problem"),
        Column(name="backend"),
        Column(name="median", align="right"),
        Column(name="why"),
    )
    return Table(columns=columns, rows=rows)


def test_a_table_that_fits_is_one_line_a_row():
    table = table_of(("gemm", "numpy", "1.5 ms", "ok"), ("gemm", "iree", "12.5 ms", ""))
    lines = draw(table, 80)
    assert [line.kind for line in lines] == ["head", "head", "row", "row"]
    assert [line.row for line in lines] == [-1, -1, 0, 1]
    assert lines == draw(table)
    assert lines[2].text.index("1.5 ms") == lines[3].text.index("12.5 ms") + 1


def test_a_long_name_is_above_the_rows_that_share_it():
    name = "gemm m=4096 n=4096 k=4096 dtype=bf16"
    lines = draw(table_of((name, "numpy", "1.5 ms", "ok"), (name, "iree", "12.5 ms", "ok")), 40)
    assert [line.kind for line in lines] == ["head", "head", "name", "row", "row"]
    assert lines[2] == Line(text=name, kind="name", row=0)


def test_a_sentence_is_wrapped_in_its_column_or_below_its_row():
    table = table_of(("gemm", "numpy", "1.5 ms", "word " * 20))
    wrapped = draw(table, 80)
    assert len({line.text.index("word") for line in wrapped if "word" in line.text}) == 1
    below = draw(table, 40)
    assert "word" not in below[2].text
    assert below[3].text.split()[:2] == ["why:", "word"]


def test_a_column_of_usual_values_moves_before_names_if_that_is_enough():
    columns = (
        Column(name="problem"),
        Column(name="backend"),
        Column(name="median", align="right"),
        Column(name="status", usual="ok"),
    )
    rows = tuple(("p" * 40, backend, "1.5 ms", "ok") for backend in ("numpy", "./softmax_loop.py"))
    lines = [line.text for line in draw(Table(columns=columns, rows=rows), 32)]
    assert lines[2:] == ["p" * 40, "  numpy" + 14 * " " + "1.5 ms", "  ./softmax_loop.py  1.5 ms"]


def test_the_usual_value_of_a_column_is_not_repeated_below_each_row():
    columns = (
        Column(name="problem"),
        Column(name="median", align="right"),
        Column(name="status", usual="ok"),
    )
    rows = [("gemm", "1.5 ms", status) for status in ("ok", "ok, unreliable", "ok")]
    table = Table(columns=columns, rows=tuple(rows))
    assert [line.text.split()[-1] for line in draw(table, 40)[2:]] == ["ok", "unreliable", "ok"]
    narrow = [line.text.strip() for line in draw(table, 20)]
    assert [line for line in narrow if "status" in line] == ["status: ok,"]
    assert len([line for line in narrow if "1.5 ms" in line]) == 3


def test_a_column_without_a_label_is_only_its_value_below_a_row():
    named = Column(name="model, or why it is not there", label="")
    table = Table(columns=(Column(name="device"), named), rows=(("cpu", "Arm Neoverse-N1"),))
    assert named.name in draw(table)[0].text
    assert [line.text for line in draw(table, 30)][-1].strip() == "Arm Neoverse-N1"


def test_a_column_that_is_kept_leaves_the_grid_last():
    run = "20260101-000000-abcdef"
    columns = (
        Column(name="run", keep=True),
        Column(name="label"),
        Column(name="cases", align="right"),
        Column(name="results", usual="all ok"),
    )
    rows = ((run, "a-label", "9", "all ok"), (run, "", "9", "8 ok, 1 wrong"))
    lines = [line.text.split() for line in draw(Table(columns=columns, rows=rows), 40)]
    assert lines[0] == ["run", "label", "cases"]
    assert lines[2:] == [[run, "a-label", "9"], [run, "9"], ["results:", "8", "ok,", "1", "wrong"]]
    narrow = [line.text for line in draw(Table(columns=columns, rows=rows), 15)]
    assert run in narrow


@pytest.mark.parametrize("width", range(20, 60))
def test_a_number_stays_with_its_unit(width):
    table = Table(columns=(Column(name="samples"),), rows=(("12.34 µs " * 20,),))
    for line in draw(table, width)[2:]:
        words = line.text.split()
        assert words[::2] == ["12.34"] * (len(words) // 2)
