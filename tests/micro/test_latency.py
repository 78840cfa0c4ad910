"""The edges that `latency` finds in a curve, on a core whose curve is written down."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kernelmark.core.units import bytes_text
from kernelmark.micro import _chase, registry
from kernelmark.micro.benchmarks import latency

KIB = 2**10
SIZES = tuple(int(16 * KIB * 2 ** (n / 2)) // 128 * 128 for n in range(16))
CORE = SimpleNamespace(block=1, info=SimpleNamespace(cache_bytes=2**20))


def curve(end, width):
    """5 cycles up to `end`, 50 from `width` times that on."""

    def cycles(size):
        passed = np.log(max(size / end, 1.0)) / np.log(width)
        return 5.0 + 45.0 * min(1.0, passed)

    return cycles


def measured(monkeypatch, first, second, refine=6):
    """(findings, edges) where the first memory has one curve and the second another."""
    kinds = {1: first, 2: second}
    monkeypatch.setattr(_chase, "Chaser", lambda rig, nbytes: SimpleNamespace(which=2, wrong=None))
    monkeypatch.setattr(
        latency.Latency,
        "_at",
        lambda self, rig, state, size: _chase.Hop(
            cycles=kinds[state.chaser.which](size), seconds=1e-9
        ),
    )
    monkeypatch.setattr(
        latency.Latency,
        "_spread",
        lambda self, rig, state, size: np.full(16, kinds[state.chaser.which](size)),
    )
    monkeypatch.setattr(latency.Latency, "_index_hop", lambda self, rig, state: None)
    state = latency._State(
        chaser=SimpleNamespace(which=1, wrong=None),
        sizes=SIZES,
        samples=3,
        most=64,
        refine=refine,
        notes=[],
    )
    benchmark = registry.get("latency")
    raw = benchmark.timed(CORE, state)
    return benchmark.metrics(CORE, state, raw), raw.edges


def test_a_sharp_edge_that_is_found_again_is_as_sure_as_a_core_can_be(monkeypatch):
    same = curve(200 * KIB, 1.01)
    _, (edge,) = measured(monkeypatch, same, same)
    assert edge.size == pytest.approx(200 * KIB, rel=0.05)
    assert edge.confidence == 0.9


def test_an_edge_that_is_elsewhere_in_other_memory_is_not_sure(monkeypatch):
    _, (edge,) = measured(monkeypatch, curve(400 * KIB, 1.01), curve(200 * KIB, 1.01))
    assert edge.confidence == pytest.approx(0.5, abs=0.05)


def test_an_edge_that_is_there_once_only_is_worth_nothing(monkeypatch):
    _, (edge,) = measured(monkeypatch, curve(200 * KIB, 1.01), lambda size: 5.0)
    assert edge.confidence == 0.0


def test_a_slow_rise_has_no_one_place(monkeypatch):
    slow = curve(100 * KIB, 8.0)
    _, (edge,) = measured(monkeypatch, slow, slow)
    # A tenth of the rise is at 8 ** 0.1 times its beginning, half of it at 8 ** 0.5 times.
    assert edge.confidence == pytest.approx(8.0**-0.4, abs=0.05)


@pytest.mark.parametrize("refine", [0, 6])
def test_the_note_has_the_sizes_of_the_metrics(monkeypatch, refine):
    same = curve(200 * KIB, 2.5)
    found, edges = measured(monkeypatch, same, same, refine)
    sizes = [m.value for m in found.metrics if m.name.endswith("_size")]
    assert sizes == [edge.size for edge in edges]
    (note,) = (text for text in found.notes if text.startswith("levels: "))
    ends = [part.partition(" up to ")[2] for part in note.removeprefix("levels: ").split("; ")]
    assert ends[: len(sizes)] == [bytes_text(size) for size in sizes]
    assert len(ends) == 2


def test_no_levels_are_told_in_words(monkeypatch):
    found, _ = measured(monkeypatch, lambda size: size / KIB, lambda size: size / KIB)
    assert any("no two sizes in a row" in text for text in found.notes)
    assert not any(text.startswith("levels:") for text in found.notes)


def test_what_is_wrong_in_the_other_memory_counts(monkeypatch):
    same = curve(200 * KIB, 1.01)
    measured(monkeypatch, same, same)
    monkeypatch.setattr(_chase, "Chaser", lambda rig, n: SimpleNamespace(which=2, wrong="lost"))
    state = latency._State(
        chaser=SimpleNamespace(which=1, wrong=None),
        sizes=SIZES,
        samples=3,
        most=64,
        refine=2,
        notes=[],
    )
    benchmark = registry.get("latency")
    assert benchmark.verify(CORE, state, benchmark.timed(CORE, state)) == "lost"
