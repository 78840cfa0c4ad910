import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.workloads import generate
from kernelmark.workloads.generate import Dice, Sizes, draw, grid
from kernelmark_dev.raising import raises

OPS = ("gemm", "batched_gemm", "attention", "conv")
DTYPE = {"dtype": "bf16"}
GOLDEN = [(128, 128, 128), (3, 3904, 2608), (5648, 176, 160)]


@pytest.mark.parametrize("op", OPS)
def test_random_problems_are_valid_distinct_and_repeatable(op):
    sizes = Sizes(low=64, high=4096)
    made = draw(op, count=40, seed=5, sizes=sizes, fixed=DTYPE)
    problems = [ops.registry.get(op).problem(**g) for g in made]
    assert len(set(problems)) == 40
    assert made == draw(op, count=40, seed=5, sizes=sizes, fixed=DTYPE)
    assert made != draw(op, count=40, seed=6, sizes=sizes, fixed=DTYPE)


@pytest.mark.parametrize("op", OPS)
def test_categories_take_turns_and_hold(op):
    known = generate.categories(op)
    the_op = ops.registry.get(op)
    for index, given_ in enumerate(draw(op, count=4 * len(known), seed=1, fixed=DTYPE)):
        category = list(known.values())[index % len(known)]
        assert category.holds(the_op, given_)


def test_the_draws_are_fixed_for_ever():
    # a suite that names a generator must be the same list in every version
    names = ["square", "skinny", "tall"]
    three, more = (draw("gemm", count=n, seed=1, names=names, fixed=DTYPE) for n in (3, 50))
    assert [(g["m"], g["n"], g["k"]) for g in three] == GOLDEN
    assert more[:3] == three


def test_the_categories_mean_what_they_say():
    def of(name):
        op = ops.registry.get("gemm")
        found = []
        for g in draw("gemm", count=30, seed=2, names=[name], fixed=DTYPE):
            p = op.problem(**g)
            found.append((p.dims["m"], p.dims["n"], p.dims["k"], op.flops(p) / op.bytes(p)))
        return found

    assert all(m == n == k for m, n, k, _ in of("square"))
    assert all(16 * m <= min(n, k) for m, n, k, _ in of("skinny"))
    assert all(m >= 16 * max(n, k) for m, n, k, _ in of("tall"))
    assert all(i <= 16 for *_, i in of("memory-bound"))
    assert all(i >= 256 for *_, i in of("compute-bound"))


def test_sizes_are_log_uniform():
    dice = Dice(1)
    sizes = Sizes(low=1, high=1024, multiple=1)
    drawn = [dice.size(sizes) for _ in range(4000)]
    below = sum(d < 32 for d in drawn) / len(drawn)
    assert min(drawn) == 1
    assert 900 < max(drawn) <= 1024
    assert 0.45 < below < 0.55  # 32 is the middle of 1…1024 in logarithms


@given(
    seed=st.integers(0, 2**32),
    low=st.integers(1, 5000),
    span=st.integers(0, 5000),
    multiple=st.integers(1, 256),
)
@settings(max_examples=200)
def test_sizes_stay_in_their_bounds(seed, low, span, multiple):
    size = Dice(seed).size(Sizes(low=low, high=low + span, multiple=multiple))
    assert low <= size <= low + span


def test_sizes_are_multiples_where_they_can_be_and_fixed_parameters_are_kept():
    made = draw("gemm", count=30, seed=1, names=["square"], sizes=Sizes(multiple=32), fixed=DTYPE)
    assert all(g["m"] % 32 == 0 for g in made)
    fixed = {"dtype": "f32", "tb": "t", "n": 1000}
    made = draw("gemm", count=5, seed=1, names=["skinny"], fixed=fixed)
    assert all(fixed.items() <= g.items() for g in made)


def test_a_grid_is_the_ladder_cubed():
    made = grid("gemm", sizes=Sizes(low=64, high=600), factor=2, fixed=DTYPE)
    assert len(made) == 4**3
    assert {g["m"] for g in made} == {64, 128, 256, 512}
    squares = grid("gemm", sizes=Sizes(low=64, high=600), names=["square"], fixed=DTYPE)
    assert [g["k"] for g in squares] == [64, 128, 256, 512]


def test_a_grid_of_batched_products_has_a_batch():
    sizes = Sizes(low=64, high=64)
    assert grid("batched_gemm", sizes=sizes, fixed=DTYPE)[0]["batch"] == 8
    assert grid("batched_gemm", sizes=sizes, fixed={**DTYPE, "batch": 3})[0]["batch"] == 3


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (lambda: draw("gemm", count=0, seed=1), {"name": "count", "value": 0}),
        (lambda: draw("gemm", count=10**9, seed=1), {"count": 10**9}),
        (lambda: draw("gemm", count=5, seed=1, names=["round"]), {"op": "gemm", "name": "round"}),
        (lambda: draw("softmax", count=5, seed=1), {"op": "softmax"}),
        (lambda: grid("conv"), {"op": "conv"}),
        (lambda: grid("gemm", factor=1), {"name": "factor", "value": 1}),
        (lambda: grid("gemm", sizes=Sizes(low=1, high=10**200)), {}),
        (lambda: Sizes(low=8, high=4), {"low": 8, "high": 4}),
        (lambda: Sizes(multiple=0), {"name": "multiple", "value": 0}),
        (
            lambda: draw("gemm", count=9, seed=1, names=["square"], sizes=Sizes(low=8, high=9)),
            {"category": "square", "op": "gemm", "found": 2},
        ),
        (
            lambda: draw(
                "gemm",
                count=1,
                seed=1,
                names=["compute-bound"],
                sizes=Sizes(low=8, high=9),
                fixed=DTYPE,
            ),
            {"category": "compute-bound", "op": "gemm", "found": 0},
        ),
    ],
)
def test_what_cannot_be_made_is_one_sentence(make, fields):
    with raises(UsageError, **fields) as caught:
        make()
    assert "\n" not in caught.value.message


def test_what_the_op_refuses_is_refused():
    with raises(ProblemError, what="dtype", name="f17"):
        draw("gemm", count=1, seed=1, names=["memory-bound"], fixed={"dtype": "f17"})
