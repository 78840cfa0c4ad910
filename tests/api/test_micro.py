"""How long microbenchmarks are expected to take."""

from __future__ import annotations

import pytest

from kernelmark.api.micro import Pace


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))


def played(*seconds: tuple[str, float]) -> None:
    now = 0.0

    def clock() -> float:
        return now

    pace = Pace([name for name, _ in seconds], "cpu/0/quick", clock)
    for name, took_s in seconds:
        now += took_s
        pace.take(name)
    pace.save()


def test_they_are_expected_to_take_what_they_took():
    assert Pace(["stream"], "cpu/0/quick").left_s is None
    played(("stream", 4.0), ("vector", 1.0))
    pace = Pace(["stream", "vector"], "cpu/0/quick")
    assert pace.left_s == pytest.approx(5.0)
    pace.take("stream")
    assert pace.left_s == pytest.approx(1.0)
    assert Pace(["stream"], "cpu/0/full").left_s is None


def test_one_that_was_never_seen_is_taken_to_be_like_the_others():
    played(("stream", 4.0), ("vector", 2.0))
    assert Pace(["stream", "vector", "cache"], "cpu/0/quick").left_s == pytest.approx(9.0)


def test_the_expectation_lasts_until_the_last_one():
    names = ["cache", "latency", "stream", "vector"]
    played(("cache", 4.0), ("latency", 2.0))
    pace = Pace(names, "cpu/0/quick", lambda: 0.0)
    for name in names[:2]:
        pace.take(name)
    assert pace.left_s == pytest.approx(2 * 1.5)  # each took 0 s now: means of 2 s and 1 s
    pace.take("stream")
    assert pace.left_s == pytest.approx(1.0)


def test_a_few_that_were_seen_are_no_measure_of_many():
    played(("latency", 5.0))
    names = ["cache", "latency", "stream", "vector"]
    pace = Pace(names, "cpu/0/quick")
    assert pace.left_s is None
    pace.take("cache")
    assert pace.left_s is not None
