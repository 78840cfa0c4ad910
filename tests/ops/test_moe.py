"""moe: routing, what is read of the experts, and the tolerance against simulated kernels."""

import itertools

import numpy as np
import pytest

from kernelmark import ops
from kernelmark.core.errors import ProblemError
from kernelmark.numerics.floats import decode, encode
from kernelmark.numerics.generate import Inputs, offset
from kernelmark.ops._checks import weight_bound
from kernelmark.ops.batched_gemm_quant import group_rounded
from kernelmark.ops.moe import routing

moe = ops.registry.get("moe")


def problem(**given):
    sizes = {"m": 24, "n": 48, "k": 64, "e": 8, "top_k": 2, "dtype": "bf16"}
    return moe.problem(**sizes | given)


def ids_of(which, number=0):
    spec = next(spec for spec in moe.tensors(which) if spec.name == "ids")
    return (
        Inputs(moe.tensors(which), 1, number).take("ids", np.arange(spec.count)).reshape(spec.shape)
    )


@pytest.mark.parametrize(("e", "top_k"), [(8, 2), (128, 8), (4, 4), (5, 1)])
def test_each_token_has_different_experts_however_often_inputs_are_rewritten(e, top_k):
    which = problem(m=1000, e=e, top_k=top_k)
    for number in range(5):
        found = ids_of(which, number)
        assert ((found >= 0) & (found < e)).all()
        assert all(len(set(row)) == top_k for row in found.tolist())
    assert top_k == e or not np.array_equal(ids_of(which, 0), ids_of(which, 1))


def test_experts_are_uniform_in_every_slot_and_tokens_independent():
    found = ids_of(problem(m=16384, e=16, top_k=4)).astype(int)
    for slot in range(4):
        counts = np.bincount(found[:, slot], minlength=16)
        assert abs(counts / 1024 - 1).max() < 0.2  # six standard deviations
    again = np.mean([len(set(a) & set(b)) for a, b in itertools.pairwise(found)])
    assert again == pytest.approx(4 * 4 / 16, abs=0.05)


def test_a_longer_batch_repeats_whole_tokens():
    found = ids_of(problem(m=20000, e=8, top_k=3))
    assert all(len(set(row)) == 3 for row in found.tolist())
    assert np.array_equal(found[:100], found[16384:16484])


def test_a_rewrite_starts_at_a_token():
    spec = next(spec for spec in moe.tensors(problem(top_k=3)) if spec.name == "ids")
    starts = {offset(spec, 1, number) for number in range(50)}
    assert len(starts) > 40
    assert all(start % 3 == 0 for start in starts)


def test_the_experts_that_are_read_are_counted_not_all():
    one = problem(m=1, e=256, top_k=8, n=32, k=64)
    expert = 3 * 32 * 64 * 2
    others = 64 * 2 * 2 + 8 * 4 * 2
    assert moe.bytes(one) == moe.least_bytes(one) == 8 * expert + others
    many = problem(m=4096, e=256, top_k=8, n=32, k=64)
    assert moe.bytes(many) - moe.least_bytes(many) == (256 - 8) * expert
    # The mean over many draws of two tokens is what is counted for two.
    two = problem(m=2, e=16, top_k=4, n=32, k=64)
    drawn = decode(routing(16, 4).bits, "i32").reshape(-1, 8)
    mean = np.mean([len(set(row)) for row in drawn])
    moved = sum(spec.nbytes for spec in moe.tensors(two) if spec.name not in ("w1", "w2"))
    assert abs((moe.bytes(two) - moved) / expert - mean) < 0.6


def test_sums_are_about_one():
    for terms in (1, 16, 768, 7168, 16384):
        assert 0.35 < weight_bound(terms) * terms**0.5 / 3 <= 1.5 or terms < 9


class Simulated:
    """A kernel that rounds wherever vLLM's does, with switches for what may go wrong."""

    def __init__(self, which, seed=1):
        self.problem = which
        self.inputs = Inputs(moe.tensors(which), seed, 0)
        self.kind = which.dtypes["x"]
        specs = moe.tensors(which)[:-1]
        self.arrays = {
            s.name: self.inputs.take(s.name, np.arange(s.count)).reshape(s.shape) for s in specs
        }

    def rounded(self, values):
        return decode(encode(np.asarray(values, np.float64), self.kind), self.kind)

    def run(self, *, up_first=False, drop_slot=None, unweighted=False, swap=False):
        a, n = self.arrays, self.problem.dims["n"]
        out = np.zeros(a["x"].shape)
        for t, slot in np.ndindex(a["ids"].shape):
            expert = int(a["ids"][t, slot]) ^ swap
            both = (a["w1"][expert].astype(np.float32) @ a["x"][t].astype(np.float32)).astype(float)
            gate, up = np.split(self.rounded(both), 2)
            if up_first:
                gate, up = up, gate
            silu = self.rounded(gate / (1 + np.exp(-gate)))
            h = self.rounded(silu * up)
            y = (a["w2"][expert].astype(np.float32) @ h.astype(np.float32)).astype(float)
            weight = 1.0 if unweighted else a["weights"][t, slot]
            if slot != drop_slot:
                out[t] = self.rounded(out[t] + self.rounded(weight * y))
        assert n == h.size
        return out.ravel()

    def worst(self, output):
        found = moe.reference(self.problem, self.inputs, np.arange(output.size))
        allowed = moe.tolerance(self.problem)
        limit = allowed.per_magnitude * found.magnitude + allowed.per_value * np.abs(found.value)
        return float((np.abs(output - found.value) / (limit + allowed.absolute)).max())


CASES = [
    {"dtype": "bf16"},
    {"dtype": "f16", "n": 300, "k": 700},
    {"dtype": "f32", "m": 8},
    {"dtype": "bf16", "top_k": 8, "m": 10},
    {"dtype": "bf16", "n": 8, "k": 8, "top_k": 1},
]


@pytest.mark.parametrize("given", CASES, ids=str)
def test_a_right_kernel_passes_with_room_that_is_not_everything(given):
    simulated = Simulated(problem(**given))
    worst = simulated.worst(simulated.run())
    assert 0.003 < worst <= 1


QUANTISED = [
    {"w": "f8e4m3", "scale": "tensor"},
    {"w": "f8e4m3fnuz", "scale": "row"},
    {"w": "i8", "scale": "row", "dtype": "f16"},
    {"w": "f8e4m3", "scale": "block", "n": 256, "k": 384},
]


class SimulatedQuantised(Simulated):
    """A kernel with quantised weights, as vLLM's: x and the hidden row are quantised first."""

    def run(self, *, rolled=None, swap=False):
        a, d, scale = self.arrays, self.problem.dims, self.problem.options["scale"]
        small, out = self.problem.dtypes["w"], np.zeros(self.arrays["x"].shape)
        weights = {}
        for name in ("w1", "w2"):
            factors = a[f"{name}_scale"]
            if scale == "block":
                factors = factors.repeat(128, 1).repeat(128, 2)
            else:
                factors = factors.reshape(*factors.shape, *[1] * (3 - factors.ndim))
            weights[name] = a[name] * (np.roll(factors, 1, axis=0) if rolled == name else factors)

        def quantised(row):
            group = 128 if scale == "block" else len(row)
            return group_rounded(row[None, :], group, small)[0]

        for t, slot in np.ndindex(a["ids"].shape):
            expert = int(a["ids"][t, slot]) ^ swap
            both = self.rounded(weights["w1"][expert] @ quantised(a["x"][t]))
            gate, up = np.split(both, 2)
            h = self.rounded(self.rounded(gate / (1 + np.exp(-gate))) * up)
            y = weights["w2"][expert] @ quantised(h)
            out[t] = self.rounded(out[t] + self.rounded(a["weights"][t, slot] * y))
        assert d["n"] == h.size
        return out.ravel()


@pytest.mark.parametrize("given", QUANTISED, ids=str)
def test_a_quantised_kernel_passes_and_one_with_another_expert_s_factors_does_not(given):
    simulated = SimulatedQuantised(problem(**given))
    assert 0.003 < simulated.worst(simulated.run()) <= 1
    for fault in ({"rolled": "w1"}, {"rolled": "w2"}, {"swap": True}):
        assert simulated.worst(simulated.run(**fault)) > 1.2, fault


def test_weights_of_8_bits_are_counted_as_such():
    plain, small = problem(k=128, n=128), problem(k=128, n=128, w="f8e4m3", scale="block")
    assert small.dtypes["w"] == "f8e4m3"
    assert moe.flops(plain) == moe.flops(small)
    factors = 8 * 4 * (2 * 1 + 1 * 1)
    tables = 8 * 3 * 128 * 128
    assert moe.bytes(plain) - moe.bytes(small) == tables * 2 - tables - factors


@pytest.mark.parametrize(
    "given",
    [
        {"w": "f8e4m3"},
        {"scale": "block", "n": 64, "k": 128},
        {"scale": "tensor", "w": "i8"},
        {"scale": "row", "dtype": "f32"},
        {"scale": "row", "w_order": "tiled"},
        {"scale": "row", "w": "bf16"},
    ],
    ids=str,
)
def test_scales_that_do_not_exist_are_refused(given):
    with pytest.raises(ProblemError):
        problem(**given)


@pytest.mark.parametrize("given", CASES, ids=str)
@pytest.mark.parametrize(
    "fault", [{"up_first": True}, {"drop_slot": 0}, {"unweighted": True}, {"swap": True}], ids=str
)
def test_a_wrong_kernel_does_not(given, fault):
    simulated = Simulated(problem(**given))
    assert simulated.worst(simulated.run(**fault)) > 2
