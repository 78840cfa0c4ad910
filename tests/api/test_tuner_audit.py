"""The verdicts of an audit, and the choices that it writes."""

import json

import pytest

from kernelmark import ops
from kernelmark.api.tuner_audit import (
    audit,
    contests,
    flip_rate,
    judge,
    read_file,
    regret,
    stable_choice,
    stable_text,
)
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Case, Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.runners.ab import Pair, Row, Rule
from kernelmark.stats.paired import Looks, paired_verdict
from kernelmark.tune.recorded.audited import AuditPlan, RowVerdict
from kernelmark.tune.recorded.base import Applied, AuditFacts, Contender
from kernelmark_dev.results import make_result

PROBLEM = ops.parse("gemm m=8 n=16 k=8 dtype=f32")
CHOICE = Contender(backend="fake", config=FrozenDict({"seed": 9}))
ROUNDS = 12


def contender(seed):
    return Contender(backend="fake", config=FrozenDict({"seed": seed}))


def case(side):
    return Case(problem=PROBLEM, backend=side.backend, config=side.config)


def pair(other, factor, *, noise=0.001, failed=False):
    """A contender that takes `factor` times as long as the choice."""
    base = [1e-5 * factor * (1 + noise * (-1) ** i) for i in range(ROUNDS)]
    head = [1e-5] * ROUNDS
    paired = paired_verdict(base, head)
    results = [
        make_result(case(side), times, device="fake")
        for side, times in ((other, base), (CHOICE, head))
    ]
    if failed:
        results[1] = make_result(case(CHOICE), status=Status.WRONG, error="off")
    return Row(
        pair=Pair(base=case(other), head=case(CHOICE)),
        status=VerdictStatus.BROKEN if failed else paired.status,
        reason=paired.reason,
        base_s=tuple(base),
        head_s=() if failed else tuple(head),
        base=results[0],
        head=results[1],
        paired=None if failed else paired,
    )


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ((1.2, 1.3), RowVerdict.BEST),
        ((1.2, 1.0), RowVerdict.TIED),
        ((0.8, 1.3), RowVerdict.SLOWER),
        ((1.2, 0.9), RowVerdict.BEATEN),
        ((0.8, 0.7), RowVerdict.SLOWER),
    ],
)
def test_verdicts(factors, verdict):
    """The first contender is the default."""
    measured = {contender(i): pair(contender(i), factor) for i, factor in enumerate(factors)}
    assert judge(measured, contender(0))[0] is verdict


def test_a_choice_that_fails_and_one_that_was_not_reached():
    measured = {contender(0): pair(contender(0), 1.0, failed=True)}
    assert judge(measured, contender(0)) == (RowVerdict.FAILED, "off")
    assert stable_choice(CHOICE, measured, None) == contender(0)
    assert judge({}, None)[0] is RowVerdict.UNSURE


def test_the_regret_spans_all_contenders():
    pairs = [pair(contender(0), 0.9), pair(contender(1), 0.8, noise=0.02), pair(contender(2), 2)]
    found = regret(pairs)
    assert found.value == pytest.approx(0.25, rel=0.05)
    assert found.low <= 0.25 <= found.high
    assert found.high == max(p.paired.high for p in pairs) - 1
    assert regret([pair(contender(0), 2)]).value == 0
    assert regret([]) is None


def test_the_winner_flips_between_equal_contenders_only():
    assert flip_rate([pair(contender(0), 1.5)]) == 0
    assert flip_rate([pair(contender(0), 1.0)]) == pytest.approx(0.5)
    assert flip_rate([pair(contender(0), 0.5)]) == 0


def test_ties_are_broken_by_a_fixed_rule():
    """The default, else the first by its text; a choice that is not beaten stays."""
    fast = {contender(i): pair(contender(i), 0.8) for i in (3, 1, 2)}
    assert stable_choice(CHOICE, fast, contender(3)) == contender(3)
    assert stable_choice(CHOICE, fast, None) == contender(1)
    mixed = fast | {contender(0): pair(contender(0), 0.9)}
    assert stable_choice(CHOICE, mixed, contender(0)) == contender(1)
    tied = {contender(i): pair(contender(i), 1.0) for i in (3, 1, 2)}
    assert stable_choice(CHOICE, tied, contender(3)) == CHOICE


class Worker:
    """Takes `time_us` of a config, with a fixed noise."""

    def __init__(self):
        self.launches = 0

    def ready(self):
        pass

    def measure(self, case, process=0):
        self.launches += 1
        noise = 1 + 0.0005 * (self.launches * 7 % 11)
        return make_result(case, 1e-6 * case.config["time_us"] * noise, device="fake")

    def close(self):
        pass


PLAN = AuditPlan(
    device="fake",
    facts=AuditFacts(kernel="fake", key="gemm m,n,k"),
    rule=Rule(looks=Looks(rounds=(12,))),
)


def cache(tmp_path, *times):
    """A cache whose recorded choice is the last config, with one config for each time."""
    pairs = [
        [{"kwargs": {"time_us": us, "seed": i}}, 0.001 if i + 1 == len(times) else 0.01]
        for i, us in enumerate(times)
    ]
    path = tmp_path / "mm.autotune.json"
    path.write_text(json.dumps({"key": [8, 16, 8, "torch.float32"], "configs_timings": pairs}))
    return path


def test_a_slow_choice_is_replaced_and_then_stays(tmp_path):
    path = cache(tmp_path, 20.0, 15.0, 25.0)
    for verdict, changed in ((RowVerdict.SLOWER, True), (RowVerdict.BEST, False)):
        file = read_file(path, PLAN)
        report = audit([file], PLAN, opener=lambda side: Worker())
        (row,) = report.rows
        assert (row.verdict, row.is_changed) == (verdict, changed)
        assert row.stable.config["time_us"] == 15.0
        assert report.code == int(changed)
        assert row.applied is Applied.UNKNOWN
        path.write_text(stable_text(file, report))


def test_rows_that_cannot_be_measured_stay_in_the_report(tmp_path):
    path = cache(tmp_path, 20.0, 25.0)
    for facts in (AuditFacts(), AuditFacts(kernel="fake", key="gemm m")):
        plan = AuditPlan(device="fake", facts=facts)
        report = audit([read_file(path, plan)], plan, opener=lambda side: Worker())
        assert [row.verdict for row in report.rows] == [RowVerdict.UNMEASURED]
        assert report.rows[0].reason
        assert report.code == 4


def test_a_config_is_not_compared_with_itself(tmp_path):
    """The only config is the default, and a cache can have no other one."""
    (contest,) = contests(read_file(cache(tmp_path, 20.0), PLAN).rows, PLAN)
    assert contest.reason
    (contest,) = contests(read_file(cache(tmp_path, 20.0, 30.0, 25.0), PLAN).rows, PLAN)
    assert [c.config["time_us"] for c in contest.contenders] == [20.0, 30.0]


def test_a_log_is_not_written_back(tmp_path):
    path = tmp_path / "run.log"
    path.write_text(
        "Triton autotuning for function mm,\nwith key as (8, 16, 8),\nfinished after 1s,\n"
        "best config selected: time_us: 20;\n"
    )
    file = read_file(path, PLAN)
    with pytest.raises(UsageError):
        stable_text(file, audit([file], AuditPlan(device="fake"), opener=lambda side: Worker()))
