"""The peak of a dtype is that of its fastest instruction."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernelmark.micro import _chains
from kernelmark.micro.benchmarks.incore import benchmark

# An MI300X: one number a lane is half of what pairs reach.
PER_S = {"fma_f32": 81e12, "fma_f32x2": 163e12, "fma_f64": 81e12}


@pytest.mark.parametrize(("names", "f32"), [(list(PER_S), 163e12), (["fma_f32"], 81e12)])
def test_pairs_count_where_there_are_any(monkeypatch, names, f32):
    def peak(rig, buffers, op, **given):
        per_s = PER_S[op.name]
        return _chains.Peak(per_s=per_s, spread=0.01, per_clk=per_s / 1e9, clk_spread=0.02)

    monkeypatch.setattr(_chains, "peak", peak)
    rig = SimpleNamespace(block=64, kernels=lambda file: {f"chain_{name}_8" for name in names})
    state = SimpleNamespace(buffers=None, seconds=1e-3, samples=1)
    found = benchmark._peaks(rig, state)
    assert (found["f32"].per_s, found["f32"].per_clk) == (f32, f32 / 1e9)
    assert set(found) == {"f32", "f64"} - ({"f64"} if len(names) == 1 else set())


def test_a_step_of_pairs_is_four_operations():
    assert _chains.OPS["fma_f32x2"].flops == 2 * _chains.OPS["fma_f32"].flops


def test_the_multiply_add_of_whole_numbers_is_known_exactly():
    op = _chains.OPS["mad_i32"]
    x = op.seed
    for _ in range(16):
        x = (x * op.other + op.other) % 2**32
    assert int(op.after(16)) == x
