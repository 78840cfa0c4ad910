"""Benchmark commands of others: their times are read, and planted noise comes back."""

from __future__ import annotations

import json
import math
import random
import re
import sys
from pathlib import Path
from statistics import NormalDist

import pytest

from kernelmark.api.commands import Command, EqualRuns, Reading, Rounds, compare
from kernelmark.core.errors import UsageError
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.paired import Looks

LINE = re.compile(r"(?P<name>\w+): (?P<time>[\d.,]+) (?P<unit>\w+)")


def printing(text: str, **settings: object) -> Command:
    code = f"import sys; sys.stdout.write({text!r})"
    return Command(words=(sys.executable, "-c", code), **settings)


def test_a_pattern_finds_names_times_and_units() -> None:
    command = printing("a: 1,500.5 us\nb: 2 ms\nb: 4 ms\nb: 3 ms\n", pattern=LINE)
    readings = command.run()
    assert {name: r.time_s for name, r in readings.items()} == pytest.approx(
        {"a": 1500.5e-6, "b": 3e-3}
    )
    nameless = printing("took 5 and 7", pattern=re.compile(r"(?P<time>\d)"), unit="ms")
    assert [r.time_s for r in nameless.run().values()] == pytest.approx([5e-3, 7e-3])


def test_what_importers_recognise_is_read_with_its_interval(tmp_path: Path) -> None:
    rows = [
        {"name": "BM_copy", "run_name": "BM_copy", "run_type": "iteration", "repetitions": 3}
        | {"repetition_index": i, "iterations": 10, "real_time": us, "cpu_time": us}
        | {"time_unit": "us"}
        for i, us in enumerate((10.0, 11.0, 12.0))
    ]
    text = json.dumps({"context": {"host_name": "x"}, "benchmarks": rows})
    (printed,) = printing(text).run().values()
    assert printed.time_s == pytest.approx(11e-6)
    assert printed.has_interval
    code = f"import sys; open(sys.argv[1], 'w').write({text!r})"
    (written,) = Command(words=(sys.executable, "-c", code, "{out.json}")).run().values()
    assert written == printed


@pytest.mark.parametrize(
    "command",
    [
        Command(words=("/does/not/exist",)),
        Command(words=(sys.executable, "-c", "raise SystemExit(3)")),
        Command(words=(sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=0.2),
        Command(words=(sys.executable, "-c", "", "{out.json}")),
        printing("hello"),
        printing("hello", pattern=LINE),
        printing("a: 5 parsec", pattern=LINE),
        printing("a: 5.5.5 us", pattern=LINE),
        printing("a: 0 us", pattern=LINE),
    ],
)
def test_a_run_without_a_time_is_refused(command: Command) -> None:
    with pytest.raises(UsageError):
        command.run()


def equal_runs(*, between: float, inside: float, drift: float, runs: int = 240) -> EqualRuns:
    """Runs with these planted deviations, with 95 % intervals that know only what is inside."""
    rng = random.Random(f"{between} {inside} {drift}")
    readings = []
    for number in range(runs):
        level = rng.gauss(0, between) + rng.gauss(0, inside) + drift * number / runs
        readings.append(
            Reading(
                time_s=math.exp(level),
                low_s=math.exp(level - 1.96 * inside),
                high_s=math.exp(level + 1.96 * inside),
            )
        )
    return EqualRuns(name="planted", readings=tuple(readings))


@pytest.mark.parametrize(("between", "inside"), [(0.0, 0.02), (0.03, 0.01), (0.02, 0.02)])
def test_planted_noise_gives_the_false_alarms_that_follow_from_it(
    between: float, inside: float
) -> None:
    """The difference of two runs is normal with twice the variance of one."""
    runs = equal_runs(between=between, inside=inside, drift=0.0)
    deviation = math.sqrt(2 * (between**2 + inside**2))

    def beyond(limit: float) -> float:
        return 2 * (1 - NormalDist(0, deviation).cdf(limit))

    assert runs.own_alarms == pytest.approx(beyond(2 * 1.96 * inside), abs=0.05)
    for threshold in (0.01, 0.05):
        assert runs.alarms(threshold) == pytest.approx(beyond(math.log1p(threshold)), abs=0.05)
    assert math.log1p(runs.least_change) == pytest.approx(2.576 * deviation, rel=0.15)


@pytest.mark.parametrize(
    ("noise", "cause"),
    [
        ({"between": 0.03, "inside": 0.005, "drift": 0.0}, "start"),
        ({"between": 0.0, "inside": 0.03, "drift": 0.0}, "inside"),
        ({"between": 0.002, "inside": 0.002, "drift": 0.2}, "drift"),
    ],
)
def test_the_cause_of_the_variance_is_named(noise: dict[str, float], cause: str) -> None:
    runs = equal_runs(**noise)
    shares = {"start": runs.start, "inside": runs.inside, "drift": runs.drift}
    assert shares[cause] > 0.8
    assert sum(shares.values()) == pytest.approx(1)


class Noisy(Command):
    """A command that is not run: it draws its time."""

    def __init__(self, level: float, seed: int) -> None:
        object.__setattr__(self, "rng", random.Random(seed))
        object.__setattr__(self, "level", level)

    def run(self):
        return {"it": Reading(time_s=self.level * math.exp(self.rng.gauss(0, 0.02)))}


def test_two_commands_are_judged_at_a_controlled_rate() -> None:
    looks = Looks(rounds=(10, 16, 24, 32), alpha=0.05)

    def status(ratio: float, seed: int) -> VerdictStatus:
        rounds = Rounds([Noisy(1.0, seed), Noisy(ratio, seed + 1000)])
        return compare(rounds, looks, 0.01)[0].paired.status

    equal = [status(1.0, seed) for seed in range(60)]
    wrong = sum(s in (VerdictStatus.SLOWER, VerdictStatus.FASTER) for s in equal)
    assert wrong <= 6  # 3 are expected; more has a chance of 0.7 %
    assert [status(1.1, seed) for seed in range(20)] == [VerdictStatus.SLOWER] * 20
    assert [status(0.9, seed) for seed in range(20)] == [VerdictStatus.FASTER] * 20


def test_names_that_some_runs_lack_are_kept_apart() -> None:
    rounds = Rounds([Noisy(1.0, 1)])
    rounds.runs[0] += [
        {"a": Reading(time_s=1.0)},
        {"a": Reading(time_s=1.1), "b": Reading(time_s=2)},
    ]
    assert rounds.names == (["a"], ["b"])
    assert [row.name for row in rounds.equal_runs()] == ["a"]


def test_the_budget_ends_before_a_round_that_would_exceed_it() -> None:
    rounds = Rounds([Noisy(1.0, 1)], budget_s=-1.0)
    assert not rounds.measure(4)
    assert rounds.runs == [[]]
