"""The spread of repeated launches, so that figures which other work disturbed are marked."""

import statistics

import pytest

from kernelmark.core.metric import WIDE, Metric, with_spreads
from kernelmark.core.result import Status
from kernelmark.micro import registry
from kernelmark.micro._rigs import Passes
from kernelmark.micro.base import SPREAD
from kernelmark.micro.rig import spread_of, widest
from kernelmark.micro.session import execute, open_rig
from kernelmark.testing.micro import RATES, TIMES

KIB, MIB = 2**10, 2**20
ON_CPU = {
    "cache": {"sizes": (16 * KIB,)},
    "incore": {"ops": ("fma_f32",)},
    "instructions": {"ops": ("fma_f32",)},
    "latency": {"sizes": (8 * KIB, 16 * KIB)},
    "memcpy": {"sizes": (MIB,)},
    "roofline": {"steps": (0, 512), "dtypes": ("f32",), "seconds": 0.01},
}


MANY = [1.0 + 0.01 * n for n in range(20)]


@pytest.mark.parametrize(
    ("durations", "shortest", "waited", "expected"),
    [
        ([1.0, 1.1, 1.3], False, (), 0.3 / 1.1),  # the range
        ([*MANY, 9.0], False, (), 0.10 / statistics.median([*MANY, 9.0])),  # of the middle half
        ([3.0, 1.0, 1.02, 5.0], True, (), 0.02),  # the longer ones are ignored
        # At least the fraction of the shortest in which the thread had no core; of a median, the
        # median of these fractions.
        ([3.2, 3.0, 3.1], True, (0.1, 0.6, 0.2), 0.6),
        ([3.0, 3.1, 3.2], True, (0.1, 0.6, 0.2), 0.1),
        ([3.0, 3.1, 3.2], False, (0.6, 0.5, 0.7), 0.6),
    ],
)
def test_spread_of(durations, shortest, waited, expected):
    assert spread_of(durations, shortest=shortest, waited=waited) == pytest.approx(expected)


@pytest.mark.parametrize("durations", [[], [1.0], [0.0, 0.0]])
@pytest.mark.parametrize("shortest", [False, True])
def test_a_spread_needs_two_durations(durations, shortest):
    assert spread_of(durations, shortest=shortest) is None


def test_widest_leaves_out_what_has_none():
    assert widest([None, 0.1, 0.3]) == 0.3
    assert widest([None]) is None


def test_a_metric_keeps_its_own_spread():
    rows = [{"ns": 2.0, "spread": 0.5}]
    columns = [SPREAD, *registry.get("latency").columns]
    own = Metric(name="x", value=2.0, unit="ns", spread=0.1)
    other = Metric(name="y", value=2.0, unit="ns")
    found = with_spreads([own, other], columns, rows)
    assert [one.spread for one in found] == [0.1, 0.5]


@pytest.mark.usefixtures("compiler")
class TestBusyCore:
    def test_threads_that_share_a_core_wait_for_it(self):
        rig = open_rig("cpu", 1)
        try:
            out, clocks = rig.memory(64), rig.memory(64)
            given = ("micro_ops.cu", "chain_add_i64_1", 2**20, 1, 3, 0, clocks, out)
            call = rig.call(*given, grid=2, types={"T": "u64"})
            waited = rig.passes([call], 1).waited
        finally:
            rig.close()
        assert 0.2 < waited[0] < 1.0

    @pytest.mark.parametrize("waited", [0.0, 0.7])
    @pytest.mark.parametrize("name", ON_CPU)
    def test_figures_of_a_core_that_other_work_used_are_disturbed(self, name, waited, monkeypatch):
        """All launches take equally long, so that only the time without a core shows it."""
        rig = open_rig("cpu", 1)
        plain = rig.passes

        def passes(calls, count, launches=1):
            done = plain(calls, count, launches)
            return Passes(whole_s=(1e-3,) * count, alone_s=done.alone_s, waited=(waited,) * count)

        monkeypatch.setattr(rig, "passes", passes)
        monkeypatch.setattr(rig, "cycles", lambda clocks, blocks: [1e6] * blocks)
        try:
            result = execute(registry.get(name), rig, "brief", ON_CPU[name])
        finally:
            rig.close()
        timed = [one for one in result.metrics if one.unit in (*RATES, *TIMES)]
        assert timed, result.error
        if waited:
            assert all(one.disturbed for one in timed)
            assert all(one.spread >= waited > WIDE for one in timed)
        elif name != "latency":  # which reads real clocks
            assert result.status is Status.WRONG or not any(one.disturbed for one in timed)
