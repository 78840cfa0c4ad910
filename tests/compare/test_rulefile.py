"""Rules in TOML: what they mean, and what is refused with the place."""

from __future__ import annotations

import pytest

from kernelmark.compare.match import Pair
from kernelmark.compare.rules import load_rule
from kernelmark.compare.verdicts import compare
from kernelmark.core.errors import UsageError
from kernelmark_dev.raising import raises

MINE = """
rule = "golden-tot"
slack_us = 1.0

[[where]]
op = "attention"
rule = "ratio"
warn = 1.2
fail = 1.3

[[where]]
backend = "iree"
problem = "m=1 "
slack_us = 5.0
"""


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_presets_by_name():
    assert load_rule("robust").name == "robust"
    assert load_rule("golden-tot").settings["slack_us"] == 0.5


def test_rows_find_their_rule(written, make_result):
    rule = load_rule(written(MINE))
    assert rule.name == "mine"

    def pair(**what):
        base, head = make_result(10.0, 10.0, 10.0, **what), make_result(12.0, 12.0, 12.0, **what)
        return Pair(base=base, head=head)

    found = rule.judge(
        [
            pair(),
            pair(problem="attention seq=1"),
            pair(backend="iree"),
            pair(backend="iree", problem="gemm m=12 n=1 k=1"),
            Pair(base=make_result(1.0), head=None),
        ]
    )
    assert [one.status.value for one in found] == ["slower", "same", "same", "slower", "gone"]
    assert found[1].reason


_WHERE = 'rule = "robust"\n[[where]]\n'


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("delta = 0.1", {"name": "rule"}),
        ('rule = "nosuch"', {"what": "rule", "name": "nosuch"}),
        ("rule = 3", {"what": "rule", "name": 3}),
        ('rule = "robust"\nslack = 1', {"name": "slack", "of": "robust"}),
        ('rule = "robust"\ndelta = "x"', {"name": "delta", "given": "'x'"}),
        ('rule = "robust"\ndelta = true', {"name": "delta", "given": "True"}),
        ('rule = "robust"\ndelta = false', {"name": "delta", "given": "False"}),
        ('rule = "robust"\ndelta = -0.1', {"name": "delta", "given": "-0.1"}),
        ('rule = "robust"\ndelta = inf', {"name": "delta", "given": "inf"}),
        ('rule = "robust"\nwhere = 3', {"key": "where"}),
        (f"{_WHERE}delta = 0.1", {}),
        (f"{_WHERE}op = 3", {"name": "op", "given": "3"}),
        (f'{_WHERE}problem = "("', {"pattern": "("}),
        (f'{_WHERE}op = "x"\nwarn = 2', {"name": "warn", "of": "robust"}),
        (f'{_WHERE}opp = "gemm"', {"name": "opp", "of": "robust"}),
        (f'{_WHERE}op = "gemm"\nrule = "ratio"\nwarn = 0.5', {"name": "warn", "given": "0.5"}),
        ('rule = "rob', {}),
        ('rule = "golden-tot"\nruns = 0.5', {"name": "runs", "given": "0.5"}),
        ('rule = "golden-tot"\nruns = 2.5', {"name": "runs", "given": "2.5"}),
        ('rule = "golden-tot"\nfactor = 0.9', {"name": "factor", "given": "0.9"}),
        ('rule = "golden-tot"\nwithin = 5', {"name": "within", "given": "5"}),
        ('rule = "robust"\nq = 5', {"name": "q", "given": "5"}),
        ('rule = "robust"\ndelta = 3', {"name": "delta", "given": "3"}),
        ('rule = "ratio"\nwarn = 0.5', {"name": "warn", "given": "0.5"}),
        ('rule = "ratio"\nfail = 1.05', {"warn": 1.1, "fail": 1.05}),
    ],
)
def test_refused(written, text, fields):
    with raises(UsageError, **fields) as refused:
        load_rule(written(text))
    assert "mine.toml" in refused.value.message
    tables = "[[where]]" in text
    assert ("where 1" in refused.value.message) == tables


def test_whole_numbers_may_be_written_as_any_number(written, make_result):
    rule = load_rule(written('rule = "golden-tot"\nruns = 2.0\n'))
    pair = Pair(base=make_result(10.0, 10.0, 20.0), head=make_result(10.0, 10.0, 20.0))
    assert rule.judge([pair])[0].base_s == pytest.approx(10e-6)


def test_tables_that_take_no_row_are_told(written, make_result, make_set):
    text = 'rule = "robust"\n' + "".join(
        f'[[where]]\n{words}\nrule = "ratio"\n'
        for words in ('op = "gem"', 'op = "gemm"', 'problem = "m=1 "\nbackend = "numpy"')
    )
    sides = [make_set(make_result(1.0), id=name) for name in ("a", "b")]
    assert compare(*sides, rule=load_rule(written(text))).notes == (
        'mine: where 1 (op = "gem") fits no row of this comparison',
        'mine: where 3 (backend = "numpy", problem = "m=1 ") takes no row: tables above it take '
        "those that fit",
    )


def test_no_such_rule(tmp_path):
    with raises(UsageError, file=str(tmp_path / "none.toml")):
        load_rule(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("given", "meant"), [("robst", "robust"), ("golden_to", "golden-tot"), ("fastest", None)]
)
def test_a_rule_close_to_a_known_one_is_suggested(given, meant):
    with raises(UsageError, name=given) as refused:
        load_rule(given)
    assert (f"did you mean {meant}? " in str(refused.value.hint)) == (meant is not None)
