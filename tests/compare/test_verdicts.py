"""A whole comparison: counts, what changed, sentinels, the audit, and why there is nothing."""

from __future__ import annotations

import numpy as np
import pytest

from kernelmark.compare import alarms, rules
from kernelmark.compare.match import Pair
from kernelmark.compare.rules import load_rule
from kernelmark.compare.rules.ratio import rule as ratio
from kernelmark.compare.verdicts import compare
from kernelmark.core.environment import Environment
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.result import Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.core.verdict import Verdict, VerdictStatus
from kernelmark_dev.raising import raises

KEYS = [f"gemm m={m} n=1 k=1" for m in range(1, 9)]


@pytest.fixture
def found(make_result, make_set):
    base = [make_result(10.0, problem=key, binary="same") for key in KEYS[:6]]
    times = (10.0, 13.0, 20.0, 5.0, 11.2)
    head = [
        make_result(t, problem=key, binary="same" if i < 3 else "new")
        for i, (t, key) in enumerate(zip(times, KEYS, strict=False))
    ]
    head.append(make_result(status=Status.TIMEOUT, problem=KEYS[5]))
    head.append(make_result(1.0, problem=KEYS[6]))
    environment = Environment(libraries={"triton": "3.4"})
    newer = Environment(libraries={"triton": "3.5"})
    return compare(
        make_set(*base, id="golden", environment=environment),
        make_set(*head, id="tot", environment=newer),
        rule=ratio,
    )


def test_counts_and_order_of_worry(found):
    assert {s.value: n for s, n in found.counts.items()} == {
        "slower": 2,
        "faster": 1,
        "same": 1,
        "unsure": 1,
        "broken": 1,
        "new": 1,
    }
    assert [row.status.value for row in found.changed] == [
        "broken",
        "slower",
        "slower",
        "faster",
        "new",
    ]
    assert found.changed[1].verdict.ratio == pytest.approx(2.0)


def test_verdicts_name_their_runs_and_series(found):
    verdict = found.rows[1].verdict
    assert (verdict.base, verdict.head) == ("golden", "tot")
    assert verdict.series.endswith("| aarch64")
    assert found.environment == [("library triton", "3.4", "3.5")]


def test_same_binary_is_an_audit(found):
    assert (found.audit.compared, found.audit.alarms) == (3, 2)
    assert found.audit.rate == pytest.approx(2 / 3)


def test_a_sentinel_moved_only_if_every_backend_says_so(make_result, make_set):
    def run(name, *times):
        return make_set(
            *(
                make_result(t, problem=KEYS[0], backend=b)
                for b, t in zip("ab", times, strict=False)
            ),
            id=name,
        )

    def moved(base, head):
        return compare(base, head, rule=ratio, sentinels=[KEYS[0]]).moved

    assert moved(run("x", 10, 10), run("y", 20, 20)) == (f"{KEYS[0]}: slower",)
    assert moved(run("x", 10, 10), run("y", 20, 10)) == ()
    assert moved(run("x", 10, 10), run("y", 20, 5)) == ()
    assert moved(run("x", 10), run("y", 5)) == (f"{KEYS[0]}: faster",)
    assert compare(run("x", 10), run("y", 20), rule=ratio).moved == ()


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"problem": KEYS[1]}, "their problems differ"),
        ({"backend": "torch"}, "another backend"),
        ({"timing": Timing(cache=Cache.HOT)}, "another timing"),
        ({"config": {"tile": 1}}, "other configs"),
    ],
)
def test_nothing_in_common_says_why(make_result, make_set, changes, hint):
    base = make_set(make_result(1.0, problem=KEYS[0]))
    head = make_set(make_result(1.0, **{"problem": KEYS[0], **changes}), id="two")
    with pytest.raises(NothingToDo) as refused:
        compare(base, head, rule=ratio)
    assert hint in refused.value.hint
    assert refused.value.exit_code == 4


def test_an_empty_run_is_nothing(make_result, make_set):
    with raises(NothingToDo, base="one", head="two") as refused:
        compare(make_set(), make_set(make_result(1.0), id="two"), rule=ratio)
    assert "run one has no results" in refused.value.hint


def verdict(status: str, ratio_: float | None = None) -> Verdict:
    return Verdict(
        series="s", base="a", head="b", status=VerdictStatus(status), reason="", ratio=ratio_
    )


def test_fail_on():
    usual = alarms.FailOn()
    assert verdict("slower", 1.001) in usual
    assert verdict("broken") in usual
    assert verdict("gone") not in usual
    sized = alarms.parse(["slower:3%", "gone"])
    assert verdict("slower", 1.02) not in sized
    assert verdict("slower", 1.03) in sized
    assert verdict("slower", 103e-6 / 100e-6) in sized, "1.0299999999999998"
    assert verdict("slower", 1.0299999) not in sized
    assert verdict("gone") in sized
    assert verdict("broken") not in sized
    assert verdict("broken") not in alarms.parse(["none"])
    assert verdict("faster", 1 / 1.05) in alarms.parse(["faster:4"])
    assert "slower" not in usual


@pytest.mark.parametrize("word", ["slowish", "", "slower:", "slower:x%", "slower:-1%", "broken:3%"])
def test_fail_on_refuses(word):
    with pytest.raises(UsageError):
        alarms.parse([word])


def test_a_share_is_not_taken_for_a_percentage():
    with pytest.raises(UsageError) as refused:
        alarms.parse(["slower:0.03"])
    assert "slower:3%" in refused.value.hint
    assert verdict("slower", 1.0004) in alarms.parse(["slower:0.03%"])
    assert verdict("slower", 1.004) not in alarms.parse(["slower:0.5"])
    assert verdict("slower", 1.0) in alarms.parse(["slower:0"])


def test_every_preset_has_its_name_and_settings():
    assert rules.names() == ["golden-tot", "ratio", "robust"]
    for name in rules.names():
        preset = rules.preset(name)
        assert preset.name == name
        assert preset.settings
        assert preset.judge([]) == []


def test_ratio_limits(make_result):
    def status(head):
        return ratio.judge([Pair(base=make_result(100.0), head=make_result(head))])[0].status.value

    assert [status(t) for t in (115.1, 115.0, 110.1, 110.0, 91.0, 90.0)] == [
        "slower",
        "unsure",
        "unsure",
        "same",
        "same",
        "faster",
    ]


def test_a_ratio_is_shown_with_the_digits_that_decide(make_result):
    pair = Pair(base=make_result(100.0), head=make_result(115.001))
    (found,) = ratio.judge([pair])
    assert found.reason == "1.15001 is above 1.15"
    assert dict(found.facts)["ratio"] == "1.15001"


def held(rule, make_result, make_set, *, sentinel, head):
    """Which of a slower, a faster, a broken and a sentinel's row are held."""
    base = [make_result(10.0, 10.01, 9.99, problem=key) for key in KEYS[:4]]
    made = [
        make_result(t, t * 1.001, t * 0.999, problem=k) for t, k in zip(head, KEYS, strict=False)
    ]
    made += [make_result(status=Status.CRASHED, problem=KEYS[2])]
    made += [make_result(sentinel, sentinel, sentinel, problem=KEYS[3])]
    sides = make_set(*base, id="golden"), make_set(*made, id="tot")
    both = [compare(*pair, rule=rule, sentinels=[KEYS[3]]) for pair in (sides, sides[::-1])]
    assert [bool(r.held) for r in both[0].rows] == [bool(r.held) for r in both[1].rows]
    return [bool(row.held) for row in both[0].rows]


@pytest.mark.parametrize("rule", ["robust", "ratio"])
def test_changes_are_held_where_a_sentinel_moved(make_result, make_set, rule):
    told = held(rules.preset(rule), make_result, make_set, sentinel=20.0, head=(20.0, 5.0))
    assert told == [True, True, False, True]
    told = held(rules.preset(rule), make_result, make_set, sentinel=10.0, head=(20.0, 5.0))
    assert not any(told)


def test_golden_tot_holds_nothing(make_result, make_set, tmp_path):
    rule = rules.preset("golden-tot")
    assert not any(held(rule, make_result, make_set, sentinel=20.0, head=(20.0, 5.0)))
    mine = tmp_path / "mine.toml"
    mine.write_text('rule = "golden-tot"\n[[where]]\nproblem = "m=1 "\nrule = "robust"\n')
    rule = load_rule(str(mine))
    told = held(rule, make_result, make_set, sentinel=20.0, head=(20.0, 5.0))
    assert told == [True, False, False, False]


def test_fail_on_held():
    assert not alarms.parse(["slower"]).held
    assert alarms.parse(["held"]) == alarms.FailOn(held=True)
    both = alarms.parse(["slower:3%", "held"])
    assert both.held
    assert verdict("slower", 1.02) not in both
    assert verdict("broken") in both
    assert verdict("broken") not in alarms.parse(["slower", "held"])


def test_fail_on_undecided():
    assert verdict("unsure") not in alarms.FailOn()
    both = alarms.parse(["undecided"])
    assert all(verdict(status) in both for status in ("unsure", "slower", "broken"))
    sized = alarms.parse(["slower:3%", "undecided"])
    assert verdict("unsure") in sized
    assert verdict("slower", 1.02) not in sized
    assert verdict("broken") in sized


def test_what_failed_alike_on_both_sides_is_told_once(make_result, make_set):
    def side(name, error):
        return make_set(
            make_result(1.0, problem=KEYS[0]),
            make_result(status=Status.UNSUPPORTED, problem=KEYS[1], error=error),
            id=name,
        )

    row = compare(side("a", "not f8"), side("b", "not f8"), rule=ratio).rows[1]
    assert row.judgement.reason.code == "both-failed"
    row = compare(side("a", "not f8"), side("b", "no tile"), rule=ratio).rows[1]
    assert row.judgement.reason


def test_times_are_medians_and_the_ratio_is_theirs(make_result, make_set):
    base, head = make_result(10.0, 11.0, 19.0), make_result(10.0, 12.0, 13.0)
    judged = (
        compare(make_set(base), make_set(head, id="two"), rule=rules.preset("robust"))
        .rows[0]
        .judgement
    )
    assert (judged.base_s, judged.head_s) == pytest.approx((11e-6, 12e-6))
    assert judged.ratio == pytest.approx(12 / 11)


@pytest.mark.parametrize("name", ["ratio", "golden-tot"])
def test_other_rules_judge_mixtures_by_means(make_mixed, name):
    rule = load_rule(name)
    rng = np.random.default_rng(5)
    base, head = make_mixed(rng), make_mixed(rng, 1.3)
    (same,) = rule.judge([Pair(base=base, head=make_mixed(rng))])
    assert same.status is VerdictStatus.SAME
    (slower,) = rule.judge([Pair(base=base, head=head)])
    assert slower.status is VerdictStatus.SLOWER
    assert slower.ratio == pytest.approx(1.3, rel=0.02)
    assert len([fact for fact, _ in slower.facts if fact.startswith("modes of ")]) == 2
