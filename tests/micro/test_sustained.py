"""Readings of a device while it works, and rates that do not depend on how long was measured."""

from types import SimpleNamespace

import pytest

from kernelmark.core.result import Telemetry
from kernelmark.gpu import telemetry
from kernelmark.micro import registry
from kernelmark.micro.benchmarks import matrix
from kernelmark.micro.rig import Samples, Timed, together
from kernelmark.micro.session import execute, open_rig
from kernelmark_dev import emulator

MIB = 2**20


@pytest.fixture
def rig(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
    # Launches of the roofline read 1 MiB, not the 64 that a GPU needs to get going.
    monkeypatch.setitem(matrix._MOST_FLOPS, True, 1.0)
    with emulator.emulated(block=64):
        made = open_rig("cuda:0")
        yield made
        made.close()


@pytest.fixture
def busy_or_not(rig, monkeypatch):
    """Readings that tell whether launches are under way; the energy counter can be taken away.
    The host's clock goes on by 10 ms whenever the rig reads it."""
    monkeypatch.setattr(telemetry, "REFRESH_S", 0.0)
    energy = {"counts": True}
    now = [0.0]

    def tick():
        now[0] += 0.01
        return now[0]

    monkeypatch.setattr("kernelmark.micro.rig.time", SimpleNamespace(monotonic=tick))

    def read():
        works = any(queue.work for queue in rig.device.driver.library._queues.values())
        return Telemetry(
            power_w=600.0 if works else 100.0,
            energy_j=500.0 * now[0] if energy["counts"] else None,
            throttle=("power cap",) if works else (),
        )

    monkeypatch.setattr(rig.device, "_watcher", telemetry.Watcher(read))
    return energy


ROOFLINE = {"steps": (0,), "dtypes": ("f64",), "seconds": 0.6, "powered": 0.0, "most": 64 * MIB}
MATRIX = {"seconds": 1e-4, "samples": 1, "sustained": 0.6, "dtypes": "bf16"}


class TestReadings:
    def test_each_look_is_a_new_one(self, rig, busy_or_not):
        first = rig.look()
        rig.sustain(rig.call("micro_launch.cu", "launch_nothing", grid=1, block=32), 0.1)
        assert rig.look().energy_j > first.energy_j

    @pytest.mark.parametrize(("name", "few"), [("roofline", ROOFLINE), ("matrix", MATRIX)])
    def test_power_and_throttling_are_of_the_work(self, rig, busy_or_not, name, few):
        """By the energy counter where there is one, which ticks 500 W here."""
        (row,) = execute(registry.get(name), rig, "quick", few).rows
        assert row["power_w"] == pytest.approx(500.0, rel=0.1)
        assert row["throttle"] == "power cap"

    def test_without_a_counter_the_last_reading_is_still_of_the_work(self, rig, busy_or_not):
        busy_or_not["counts"] = False
        (row,) = execute(registry.get("roofline"), rig, "quick", ROOFLINE).rows
        assert row["power_w"] == 600.0

    def test_a_matrix_point_that_does_not_run_on_tells_no_power(self, rig, busy_or_not):
        few = {**MATRIX, "sustained": 0.0}
        (row,) = execute(registry.get("matrix"), rig, "quick", few).rows
        assert row["power_w"] is None
        assert row["throttle"] is None

    def test_a_device_that_reports_its_power_is_timed_longer(self, rig, busy_or_not, monkeypatch):
        plain, lengths = rig.sustain, []

        def sustain(call, seconds):
            lengths.append(seconds)
            return plain(call, 1e-3)

        monkeypatch.setattr(rig, "sustain", sustain)
        few = {**ROOFLINE, "seconds": 0.1, "powered": 0.7}
        execute(registry.get("roofline"), rig, "quick", few)
        rig.device._watcher = telemetry.Watcher(Telemetry)
        execute(registry.get("roofline"), rig, "quick", few)
        assert lengths == [0.7, 0.1]

    def test_a_stretch_is_put_together(self):
        seen = [
            (0.0, Telemetry(power_w=1.0, energy_j=10.0, throttle=("a",))),
            (0.5, Telemetry(power_w=2.0, energy_j=20.0, throttle=("b", "a"))),
            (1.0, Telemetry(power_w=3.0, energy_j=310.0, temperature_c=50.0)),
        ]
        found = together(seen)
        assert (found.power_w, found.temperature_c) == (300.0, 50.0)
        assert found.throttle == ("a", "b")
        assert together(seen[:1]).power_w == 1.0
        # A counter that did not move, or too little time for it, says nothing.
        assert together([seen[0], (0.1, seen[2][1])]).power_w == 3.0
        assert together([seen[2], (9.0, seen[2][1])]).power_w == 3.0
        assert together([]) is None


class TestAtomics:
    START_S = 3e-6  # of a launch

    def rates(self, rig, monkeypatch, mode):
        """Metrics of a GPU where a launch costs START_S, and an operation a fixed time more."""
        rounds = {}
        plain_call, plain_time = rig.call, rig.time

        def call(file, kernel, *values, **more):
            made = plain_call(file, kernel, *values, **more)
            if kernel not in ("atomic_chain", "atomic_ping_pong"):
                rounds[id(made.arguments)] = values[3], made  # kept, so that no id comes twice
            return made

        def clocked(call, launches=1):
            if id(call.arguments) not in rounds:
                return plain_time(call, launches)
            each = 2e-6 if "add" in call.kernel else 2e-8  # shared memory is fast
            return Timed(elapsed_s=self.START_S + each * rounds[id(call.arguments)][0])

        atomics = registry.get("atomics")
        few = {"kernels": "add_u32", "units": 2, "turns": 2, "samples": 1}
        with monkeypatch.context() as patch:
            patch.setattr(rig, "call", call)
            patch.setattr(rig, "time", clocked)
            found = execute(atomics, rig, mode, few)
        return {m.name: m.value for m in found.metrics if m.unit == "1/clk"}

    def test_quick_and_full_agree(self, rig, monkeypatch):
        """Few rounds would measure the launch."""
        quick, full = (self.rates(rig, monkeypatch, mode) for mode in ("quick", "full"))
        assert len(quick) == 6
        for name, value in quick.items():
            assert value == pytest.approx(full[name], rel=0.01), name


def test_samples_are_unchanged_by_the_readings(rig):
    """A hook beside a timing is gone after it."""
    call = rig.call("micro_launch.cu", "launch_nothing", grid=1, block=32)
    run = rig.sustain(call, 0.01)
    assert isinstance(run.samples, Samples)
    assert rig._during_launches is None
