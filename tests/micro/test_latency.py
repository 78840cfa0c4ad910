"""The edges that `latency` finds in a curve, on a core whose curve is written down."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.units import bytes_text
from kernelmark.micro import registry
from kernelmark.micro.base import MicroRun
from kernelmark.micro.benchmarks import latency
from kernelmark.micro.benchmarks.latency import Hop, Level

KIB, MIB = 2**10, 2**20
SIZES = tuple(int(16 * KIB * 2 ** (n / 2)) // 128 * 128 for n in range(16))
INFO = DeviceInfo(name="cpu", kind="cpu", model="", arch="x86_64", units=1, cache_bytes=MIB)
COLUMNS = registry.get("latency").columns


def curve(end, width):
    """5 cycles up to `end`, 50 from `width` times that on."""

    def cycles(size):
        passed = np.log(max(size / end, 1.0)) / np.log(width)
        return 5.0 + 45.0 * min(1.0, passed)

    return cycles


def measured(monkeypatch, first, second, refine=6, wrong=None):
    """The run where the first memory has one curve and the second another."""
    memories = iter([(first, None), (second, wrong)])

    def chaser(rig, nbytes):
        cycles, error = next(memories)
        return SimpleNamespace(cycles=cycles, wrong=error)

    def hop(self, size):
        return Hop(cycles=self.chaser.cycles(size), seconds=1e-9)

    monkeypatch.setattr(latency, "Chaser", chaser)
    monkeypatch.setattr(latency.Curve, "hop", hop)
    monkeypatch.setattr(
        latency.Curve, "distribution", lambda self, size: np.full(16, self.chaser.cycles(size))
    )
    monkeypatch.setattr(latency.Curve, "index_hop", lambda self, size: None)
    device = SimpleNamespace(free_bytes=lambda: 2**40)
    rig = SimpleNamespace(block=1, info=INFO, device=device, look=lambda: None)
    run = MicroRun(rig, COLUMNS)
    registry.get("latency").measure(run, sizes=SIZES, samples=3, most=64, refine=refine)
    return run


def confidence(run):
    (value,) = (m.value for m in run.metrics if m.name == "level1_confidence")
    return value


SHARP = curve(200 * KIB, 1.01)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (SHARP, SHARP, 0.9),  # as confident as a core can be
        (curve(400 * KIB, 1.01), SHARP, 0.5),  # elsewhere in other memory
        (SHARP, lambda size: 5.0, 0.0),  # once only
        # A tenth of the rise is at 8 ** 0.1 times its beginning, half of it at 8 ** 0.5 times.
        (curve(100 * KIB, 8.0), curve(100 * KIB, 8.0), 8.0**-0.4),
    ],
)
def test_confidence_in_an_edge_of_a_core(monkeypatch, first, second, expected):
    run = measured(monkeypatch, first, second)
    assert confidence(run) == pytest.approx(expected, abs=0.05)


def test_a_sharp_edge_is_where_the_curve_rises(monkeypatch):
    (size,) = (m.value for m in measured(monkeypatch, SHARP, SHARP).metrics if "_size" in m.name)
    assert size == pytest.approx(200 * KIB, rel=0.05)


@pytest.mark.parametrize("refine", [0, 6])
def test_the_note_has_the_sizes_of_the_metrics(monkeypatch, refine):
    run = measured(monkeypatch, curve(200 * KIB, 2.5), curve(200 * KIB, 2.5), refine)
    sizes = [m.value for m in run.metrics if m.name.endswith("_size")]
    assert len(sizes) == (1 if refine else 0)
    (note,) = (text for text in run.notes if text.startswith("levels: "))
    ends = [part.partition(" up to ")[2] for part in note.removeprefix("levels: ").split("; ")]
    assert ends[: len(sizes)] == [bytes_text(size) for size in sizes]
    assert len(ends) == 2


def test_a_curve_without_levels_has_a_note(monkeypatch):
    run = measured(monkeypatch, lambda size: size / KIB, lambda size: size / KIB)
    assert any("no two sizes in a row" in text for text in run.notes)
    assert not any(text.startswith("levels:") for text in run.notes)


def test_a_wrong_chain_in_the_other_memory_counts(monkeypatch):
    assert measured(monkeypatch, SHARP, SHARP, wrong="lost").wrong == "lost"


@pytest.mark.parametrize(("second", "expected"), [((8192, 9000), 1.0), ((4096, 9000), 0.5)])
def test_an_edge_of_a_gpu_that_does_not_repeat_is_less_sure(monkeypatch, second, expected):
    near, far = (Level(first=n, last=2 * n, cycles=n) for n in (4096, 16384))
    searches = itertools.cycle([(8192, 9000), second])
    monkeypatch.setattr(latency.Curve, "search", lambda self, near, far: next(searches))
    monkeypatch.setattr(latency.Curve, "differ", lambda self, low, high: 1.0)
    whole = latency.Curve(rig=None, chaser=None, largest=32768, samples=1, most=64, bisections=1)
    edge = whole.edge(near, far)
    assert (edge.size, edge.confidence) == (second[0], pytest.approx(expected))


def test_a_cache_too_large_for_the_sizes_has_a_note():
    """Three times 256 MiB is more than any size there is."""
    info = dataclasses.replace(INFO, cache_bytes=256 * MIB)
    run = MicroRun(SimpleNamespace(block=1, info=info), COLUMNS)
    hop = Hop(cycles=4.0, seconds=1e-9)
    latency.report(run, {4096: hop, 512 * MIB: hop}, [], [], hop)
    assert "dram_ns" not in {m.name for m in run.metrics}
    assert any("no dram_ns: that takes 768.0 MiB" in note for note in run.notes)
