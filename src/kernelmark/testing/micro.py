"""Contract tests of microbenchmarks. A plugin's tests inherit them:

@pytest.mark.parametrize("name", ["mine"])
class TestMine(MicroContract): ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelmark.core import codec
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Value
from kernelmark.core.micro import micro_case
from kernelmark.core.result import Result, Status
from kernelmark.micro import registry
from kernelmark.micro.base import EVERYWHERE, MODES, SPREAD, Microbenchmark
from kernelmark.micro.hardware import Hardware
from kernelmark.micro.session import execute, open_rig

RATES = ("B/s", "FLOP/s", "1/s", "B/clk", "FLOP/clk", "1/clk")
TIMES = ("s", "ns", "cycles")


def micro_result(
    benchmark: str = "cache",
    *,
    mode: str = "quick",
    parameters: Mapping[str, Value] | None = None,
    threads: int = 0,
    **fields: Any,
) -> Result:
    """Return a result of a microbenchmark, on a GPU unless `fields` has another device."""
    usual: dict[str, Any] = {
        "device": "cuda:0",
        "arch": "sm_90",
        "status": Status.OK,
        "started": 1.0,
    }
    return Result(case=micro_case(benchmark, mode, parameters or {}, threads), **usual | fields)


def check_spreads(benchmark: Microbenchmark, result: Result) -> None:
    """Check that each time and rate has the spread of its launches, unless it is listed in
    `no_spread`: otherwise a disturbed one would not be marked."""
    timed = [metric for metric in result.metrics if metric.unit in (*RATES, *TIMES)]
    # A clock that stands still has no spread.
    missing = {metric.name for metric in timed if metric.spread is None and metric.value > 0}
    assert missing <= set(benchmark.no_spread), result.error
    assert all(metric.spread is None or metric.spread >= 0 for metric in timed)
    spread = {metric.name for metric in timed if metric.spread is not None}
    assert not spread & set(benchmark.no_spread)
    if {metric.name for metric in timed} - set(benchmark.no_spread):
        assert SPREAD in benchmark.columns


class MicroContract:
    """Parametrise `name` with names in the registry of microbenchmarks. `parameters` makes one that
    is slow by default smaller, by name."""

    parameters: Mapping[str, Mapping[str, Any]] = FrozenDict({})

    def test_it_says_what_it_is(self, name: str) -> None:
        benchmark = registry.get(name)
        assert benchmark.name.replace("-", "_") == name
        assert benchmark.summary.endswith(".")
        assert len(benchmark.summary) < 100
        assert len(benchmark.measures) > 100
        assert len(benchmark.misleads) > 60
        assert set(benchmark.kinds) <= set(EVERYWHERE)

    def test_parameters_have_a_value_of_one_form_in_every_mode(self, name: str) -> None:
        benchmark = registry.get(name)
        for word, parameter in benchmark.parameters.items():
            values = [parameter.value(mode) for mode in MODES]
            assert len({type(value) for value in values}) == 1, word
            assert parameter.help
            for value in values:
                assert value != ()
                # The text form on a command line gives the same value.
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                chosen = benchmark.case_parameters("quick", {word: text})[word]
                assert str(chosen) == text

    def test_columns_are_explained_and_drawn_ones_exist(self, name: str) -> None:
        benchmark = registry.get(name)
        names = [column.name for column in benchmark.columns]
        assert len(set(names)) == len(names)
        assert all(column.help for column in benchmark.columns)
        figure = benchmark.figure
        drawn = [figure.x, *(panel.y for panel in figure.panels), *figure.where]
        drawn += [word for word in (figure.colour, figure.facet) if word]
        assert set(drawn) <= set(names)

    def test_every_limit_can_be_computed(self, name: str) -> None:
        rig = open_rig("cpu", 1)
        for column in registry.get(name).columns:
            limit = column.on(rig.hardware)
            assert limit.limit is None or limit.limit > 0
            assert limit.limit is None or limit.why
        rig.close()
        assert isinstance(rig.hardware, Hardware)

    def test_it_ends_with_a_result(self, name: str) -> None:
        """Check a real run on a CPU: a measurement, or a reason why there is none."""
        benchmark = registry.get(name)
        rig = open_rig("cpu", 1)
        try:
            result = execute(benchmark, rig, "brief", self.parameters.get(name, {}))
            assert not rig.ledger.buffers
        finally:
            rig.close()
        if "cpu" not in benchmark.kinds:
            assert result.status is Status.UNSUPPORTED
        else:
            self.check(result)
            check_spreads(benchmark, result)
        assert codec.loads(codec.dumps(result), Result) == result

    def check(self, result: Result) -> None:
        """Check the properties of every valid result."""
        assert result.status is Status.OK, result.error
        names = {column.name for column in result.columns}
        assert result.rows
        for row in result.rows:
            assert set(row) == names
        assert result.headlines
        assert len({metric.name for metric in result.metrics}) == len(result.metrics)
        for metric in result.metrics:
            assert metric.value > 0 or metric.name.endswith("confidence"), metric
        assert {"setup", "timed", "verify", "total"} <= set(result.cost)
