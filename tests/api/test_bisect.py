"""Bisection over scripted candidates: what is found, left out, resumed and refuted."""

from __future__ import annotations

import math
import random

import pytest

from kernelmark import ops
from kernelmark.api.bisect import Question, bisect, comment, document, forget
from kernelmark.api.checkouts import BuildFailed, Configs, Wheels, Where, read_configs, read_wheels
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.result import Block, Case, Result, Status
from kernelmark.runners.ab import ROUND, Rule, Side
from kernelmark_dev.raising import raises
from kernelmark_dev.results import make_result


def measured(case: Case, seconds: float, process: int) -> Result:
    block = Block(process=process, allocation=0, samples_s=(seconds,))
    return make_result(case, block, device="fake")


class Scripted:
    """Candidates whose times are given by problem (m) and place; None is a failure."""

    def __init__(self, times, *, unbuildable=(), noise=0.002, seed=1, stop_at=None) -> None:
        self._times = times
        self.names = [f"c{i}" for i in range(len(next(iter(times.values()))))]
        self._unbuildable = set(unbuildable)
        self._noise, self._random = noise, random.Random(seed)
        self.opened: list[tuple[int, int]] = []
        self.stop_at = stop_at

    def case(self, case: Case, place: int) -> Case:
        return case

    def opener(self, base: int, head: int):
        if head in self._unbuildable:
            raise BuildFailed(f"c{head} does not build")
        self.opened.append((base, head))
        if self.stop_at == len(self.opened):
            raise KeyboardInterrupt
        source = self

        class Place:
            def __init__(self, place: int) -> None:
                self._place = place

            def ready(self) -> None: ...
            def close(self) -> None: ...
            def measure(self, case: Case, process: int = 0) -> Result:
                seconds = source._times[case.problem.dims["m"]][self._place]
                if seconds is None:
                    return Result(case=case, device="fake", status=Status.CRASHED, error="it fell")
                factor = math.exp(source._random.gauss(0, source._noise))
                return measured(case, 1e-5 * seconds * factor, process)

        return lambda side: Place((base, head)[side])


def question(source: Scripted, **more) -> Question:
    problems = (ops.parse(f"gemm m={m} n=8 k=8 dtype=f32") for m in source._times)
    cases = tuple(Case(problem=one, backend="fake", timing=ROUND) for one in problems)
    return Question(cases=cases, rule=Rule(), **more)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))


def test_the_culprit_with_its_ratio_against_the_one_before():
    source = Scripted({8: [1.0] * 12 + [1.05] * 8})
    found = bisect(source, question(source))
    assert found.state == "located"
    assert found.culprits == ("c12",)
    assert found.probability >= 0.95
    assert source.opened[-1] == (11, 12), "compared with the candidate before"
    (row,) = found.rows
    assert row.paired.ratio == pytest.approx(1.05, abs=0.005)
    assert "c12" in found.answer
    assert found.tests <= 8
    assert document(found)["rows"][0]["verdict"] == "slower"
    assert "c12" in comment(found, "kmark bisect").splitlines()[0]


def test_the_clearest_change_is_followed_and_all_are_confirmed():
    times = {8: [1.0] * 10, 16: [1.0] * 4 + [1.03] * 6, 24: [1.0] * 4 + [1.3] * 6}
    source = Scripted(times)
    found = bisect(source, question(source))
    assert found.culprits == ("c4",)
    assert "m=24" in found.change.problem
    assert {row.pair.base.problem.dims["m"] for row in found.rows} == {16, 24}


def test_what_got_faster_can_be_searched_too():
    source = Scripted({8: [1.0] * 5 + [0.9] * 5})
    assert bisect(source, question(source)).culprits == ("c5",)


def test_what_broke_comes_first_and_takes_one_round_a_candidate():
    source = Scripted({8: [1.0] * 9 + [None] * 7, 16: [1.0] * 2 + [1.5] * 14})
    found = bisect(source, question(source))
    assert found.culprits == ("c9",)
    assert found.rounds == 0


def test_ends_that_do_not_differ_are_nothing_to_do():
    source = Scripted({8: [1.0] * 6})
    with pytest.raises(NothingToDo):
        bisect(source, question(source))
    with pytest.raises(NothingToDo):
        bisect(Scripted({8: [1.0]}), question(source))


def test_candidates_that_cannot_be_built_or_measured_leave_a_range():
    times = [1.0] * 4 + [None] + [1.2] * 5
    source = Scripted({8: times}, unbuildable=[3])
    told: list[str] = []
    found = bisect(source, question(source), told.append)
    assert found.state == "range"
    assert found.culprits == ("c3", "c4", "c5")
    assert source.opened[-1] == (2, 5)
    assert any("left out c3" in line for line in told)


def test_an_interrupted_search_goes_on_and_a_finished_one_is_forgotten():
    times = {8: [1.0] * 12 + [1.05] * 8}
    first = Scripted(times, stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        bisect(first, question(first))
    second = Scripted(times)
    found = bisect(second, question(second))
    assert found.culprits == ("c12",)
    assert (0, 19) not in second.opened, "the ends are known"
    assert first.opened[1] not in second.opened, "and the first candidate"
    third = Scripted(times)
    bisect(third, question(third))
    assert third.opened[0] == (0, 19)


def test_another_question_and_fresh_do_not_go_on():
    times = {8: [1.0] * 12 + [1.05] * 8}
    for more, fresh in (({"key": "other"}, False), ({}, True)):
        first = Scripted(times, stop_at=3)
        with pytest.raises(KeyboardInterrupt):
            bisect(first, question(first))
        if fresh:
            forget(question(first), first.names)
        second = Scripted(times)
        bisect(second, question(second, **more))
        assert second.opened[0] == (0, 19)
        forget(question(first), first.names)


def test_a_damaged_state_file_is_no_obstacle(tmp_path):
    first = Scripted({8: [1.0] * 4 + [1.5] * 4}, stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        bisect(first, question(first))
    (state,) = (tmp_path / "bisect").iterdir()
    state.write_text("{")
    second = Scripted({8: [1.0] * 4 + [1.5] * 4})
    assert bisect(second, question(second)).culprits == ("c4",)


def test_a_place_without_a_step_of_its_own_is_refuted():
    """A candidate whose build is slow for a reason of its own, in the middle of the good ones."""
    times = [1.0] * 16
    times[12:] = [1.05] * 4
    source = Scripted({8: times})
    real = source.opener
    misled = {"left": 1}

    def opener(base: int, head: int):
        made = real(base, head)
        if head == 8 and base == 0 and misled["left"]:
            misled["left"] -= 1
            return real(0, 15)  # the first time its rounds look slow
        return made

    source.opener = opener
    assert bisect(source, question(source)).culprits == ("c12",)


def test_a_budget_that_ends_says_that_nothing_is_decided(monkeypatch):
    source = Scripted({8: [1.0] * 50 + [1.05] * 50})
    calls = {"count": 0}

    def clock() -> float:
        calls["count"] += 1
        return calls["count"] / 100

    from kernelmark.api import bisect as module

    real = module.Budget
    monkeypatch.setattr(module, "Budget", lambda **given: real(**{"clock": clock, **given}))
    found = bisect(source, question(source, budget_s=0.5))
    assert found.state == "undecided"
    assert found.answer


def test_a_candidate_that_the_budget_left_unmeasured_is_measured_when_resumed(monkeypatch):
    from kernelmark.api import bisect as module

    now = {"s": 0.0}
    source = Scripted({8: [1.0] * 3 + [1.05] * 3})
    real_opener, real_budget = source.opener, module.Budget

    def opener(base, head):
        if (base, head) != (0, 5):
            now["s"] = 10.0  # the budget ends before the first candidate's first round
        return real_opener(base, head)

    source.opener = opener
    monkeypatch.setattr(
        module, "Budget", lambda **given: real_budget(**{"clock": lambda: now["s"], **given})
    )
    cut = bisect(source, question(source, budget_s=5.0))
    assert (cut.state, cut.tests) == ("undecided", 0)
    assert bisect(source, question(source)).culprits == ("c3",)


def test_candidates_from_files(tmp_path):
    rows = tmp_path / "rows.txt"
    rows.write_text("# good to bad\ntile=64\n\ntile=32 stages=2 # slow\n")
    assert read_configs(str(rows)) == [{"tile": 64}, {"tile": 32, "stages": 2}]
    rows.write_text('[{"tile": 64}, {"tile": 32}]')
    assert read_configs(str(rows)) == [{"tile": 64}, {"tile": 32}]
    rows.write_text("one.whl\nsub/two.whl\n")
    assert read_wheels(str(rows)) == [tmp_path / "one.whl", tmp_path / "sub" / "two.whl"]
    for text in ("[1]", "[", "tile"):
        rows.write_text(text)
        with pytest.raises(UsageError):
            read_configs(str(rows))
    with raises(UsageError, file=str(tmp_path / "none")):
        read_configs(str(tmp_path / "none"))


def test_a_list_of_wheels_that_is_none(tmp_path):
    wheel = tmp_path / "one.whl"
    wheel.write_bytes(b"PK\x03\x04\xb7")
    for given, kind in ((tmp_path, "folder"), (wheel, "wheel")):
        with pytest.raises(UsageError) as raised:
            read_wheels(str(given))
        assert kind in raised.value.message
        assert str(tmp_path) in raised.value.hint
    with pytest.raises(UsageError) as raised:
        Wheels([wheel, tmp_path / "two.whl"], Side(name="base"), Where(device="fake"))


def test_a_config_of_a_candidate_goes_over_the_common_one():
    source = Configs([{"tile": 64}, {}], Side(name="base"), Where(device="fake"))
    problem = ops.parse("gemm m=8 n=8 k=8 dtype=f32")
    case = Case(problem=problem, backend="fake", config={"tile": 1, "warps": 4})
    assert source.case(case, 0).config == {"tile": 64, "warps": 4}
    assert source.names == ["1: tile=64", "2: default"]
