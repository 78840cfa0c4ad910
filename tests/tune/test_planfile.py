"""Plans as files: what is written reads back, and what is wrong is told with its key."""

import dataclasses
import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark import backends, ops
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Space
from kernelmark.runners.targets import find
from kernelmark.tune.plans import (
    _TOP,
    LEAST_ROUNDS,
    Acceptance,
    Budget,
    TunePlan,
    narrowed,
    plan_text,
    read_plan,
    space_of,
)

PROBLEM = ops.parse("gemm m=8 n=16 k=32 dtype=f32")
PLAN = TunePlan(
    name="SSS_NN_0",
    problem=PROBLEM,
    backend="fake",
    reference_backend="numpy",
    strategy="random",
    space=FrozenDict({"tile_m": (16, 32, 64, 128, 256), "warps": (1, 2, 4, 8)}),
)
SPACE = Space(
    parameters=PLAN.space,
    default=FrozenDict({"tile_m": 32}),
    opt_in=FrozenDict({"splitk": (0, 2, 4)}),
)

words = st.text(max_size=12)
names = st.text(min_size=1, max_size=12)
values = st.one_of(
    words, st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False).filter(abs)
).filter(lambda v: not (isinstance(v, float) and v in (float("inf"), float("-inf"))))
plans = st.builds(
    TunePlan,
    name=st.just("SSS_NN_0"),
    problem=st.just(PROBLEM),
    backend=st.sampled_from(["fake", "triton", "my kernel.py"]),
    reference_backend=st.sampled_from(["fake", "numpy"]),
    reference_config=st.dictionaries(names, values, max_size=3).map(FrozenDict),
    arch=words,
    strategy=st.sampled_from(["random", "exhaustive"]),
    seed=st.integers(0, 2**40),
    budget=st.builds(Budget, evaluations=st.integers(1, 10**6), minutes=st.floats(0, 1e6)),
    acceptance=st.builds(
        Acceptance,
        finalists=st.integers(1, 9),
        rounds=st.integers(LEAST_ROUNDS, 99),
        min_ratio=st.floats(0, 9),
        min_gain_us=st.floats(0, 9),
        seeds=st.integers(0, 9),
        neighbours=st.integers(0, 9),
    ),
    space=st.dictionaries(
        names, st.lists(values, min_size=1, max_size=40).map(tuple), max_size=4
    ).map(FrozenDict),
    count=st.integers(1, 10**9),
    share=st.floats(0, 1),
    threads=st.integers(0, 999),
    reference_s=st.floats(0, 1e3),
    blas=st.dictionaries(names, words, max_size=4).map(FrozenDict),
)


def typed(plan):
    """Equality tells 1 from True and from 1.0 here."""
    return {k: [(type(v), v) for v in vs] for k, vs in plan.space.items()}


@given(plans)
def test_what_is_written_reads_back(tmp_path_factory, plan):
    path = tmp_path_factory.mktemp("plans") / "SSS_NN_0.toml"
    path.write_text(plan_text(plan, space=SPACE), encoding="utf-8")
    again = read_plan(path)
    assert again == plan
    assert typed(again) == typed(plan)


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "SSS_NN_0.toml"
    path.write_text(plan_text(PLAN, space=SPACE))
    return path


def test_the_file_explains_itself(place):
    text = place.read_text()
    assert "tile_m = [16, 32, 64, 128, 256]" in text
    assert "# 20 combinations" in text
    assert "# The search starts from: tile_m = 32" in text
    assert max(map(len, text.splitlines())) <= 100
    for key in ("evaluations", "min_ratio", "seed", "strategy", "share"):
        assert re.search(rf"^{key} = ", text, flags=re.MULTILINE)


def test_a_parameter_is_searched_once_its_line_is_added(place):
    text = place.read_text()
    assert "splitk" not in read_plan(place).space
    place.write_text(text.replace("# splitk = [0, 2, 4]", "splitk = [2, 4]"))
    listed = narrowed(SPACE, read_plan(place).space)
    assert listed.parameters["splitk"] == (2, 4)
    assert listed.default == {"tile_m": 32, "splitk": 0}


def test_a_long_list_is_broken_over_lines(tmp_path):
    many = tuple(f"id={i} tile=20 split_k=1" for i in range(200))
    path = tmp_path / "SSS_NN_0.toml"
    path.write_text(plan_text(dataclasses.replace(PLAN, space={"algo": many})))
    assert max(map(len, path.read_text().splitlines())) <= 100
    assert read_plan(path).space["algo"] == many


def test_a_short_file_is_a_plan(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'problem = "gemm m=8 n=16 k=32 dtype=f32"\nbackend = "fake"\nstrategy = "random"'
    )
    plan = read_plan(path)
    assert (plan.name, plan.reference_backend, plan.budget) == ("mine", "fake", Budget())


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("seed = 1", "sead = 1", "sead"),
        ("seed = 1", 'seed = "1"', "seed"),
        ("seed = 1", "seed = true", "seed"),
        ("seed = 1", "seed = ", "line"),
        ("evaluations = 100", "evaluations = 0", "budget.evaluations"),
        ("evaluations = 100", "evaluation = 9", "budget.evaluation"),
        *(
            ("minutes = 0.0", f"minutes = {value}", "budget.minutes")
            for value in ("-1", "inf", "nan", 10**400)
        ),
        ("rounds = 6", "rounds = 0", "acceptance.rounds"),
        ("rounds = 6", "rounds = 3", r"acceptance\.rounds.*3.*6"),
        ("min_ratio = 1.03", 'min_ratio = "3 %"', "acceptance.min_ratio"),
        ('strategy = "random"', 'strategy = "rando"', "strategy"),
        ('backend = "fake"', 'backend = "fak"', "backend"),
        ('backend = "numpy"', "backend = 3", "reference.backend"),
        ('"gemm m=8', '"gemm m=-8', "problem"),
        ('name = "SSS_NN_0"', 'name = "other"', "other"),
        *(
            ("warps = [1, 2, 4, 8]", f"warps = {value}", "space.warps")
            for value in ("0.0", "[]", "[[1]]")
        ),
        ("[reference.config]", "[reference.config]\na = [1]", "reference.config.a"),
        ("[budget]", "[budgets]", "budgets"),
        ("\n[space]\n", "\n[blas]\nm = 3\n[space]\n", "blas.m"),
        ("share = 0.0", "share = 12.5", "share"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_key(place, old, new, key):
    text = place.read_text()
    assert old in text
    place.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=key) as refused:
        read_plan(place)
    assert str(place) in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.hint


@given(st.text() | st.binary().map(lambda b: b.decode("latin-1")))
def test_no_text_does_worse_than_a_usage_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("bad") / "x.toml"
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(UsageError):
        read_plan(path)


@given(st.dictionaries(st.sampled_from(_TOP), values | st.lists(values), max_size=6))
def test_no_document_does_worse_than_a_usage_error(tmp_path_factory, document):
    from kernelmark.tune.plans import list_text, table_text

    path = tmp_path_factory.mktemp("bad") / "x.toml"
    lines = [
        list_text(k, v) if isinstance(v, list) else table_text({k: v})[0]
        for k, v in document.items()
    ]
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    assert tomllib.loads(path.read_text(encoding="utf-8")) == document
    with pytest.raises(UsageError):
        read_plan(path)


FAKE = find("fake")[1]
COLUMN = ops.parse("gemm m=64 n=1 k=64 dtype=f32")


def test_a_plan_narrows_the_backends_space(place):
    whole = backends.find("fake").space(PROBLEM, FAKE)
    place.write_text(place.read_text().replace("[16, 32, 64, 128, 256]", "[64, 32.0]"))
    space = space_of(read_plan(place), FAKE, str(place))
    assert space.parameters == {**whole.parameters, "tile_m": (64, 32)}
    assert all(isinstance(v, int) for v in space.parameters["tile_m"])
    inside = [config for config in whole if config["tile_m"] in (32, 64)]
    assert {frozenset(c.items()) for c in space} == {frozenset(c.items()) for c in inside}


def test_a_parameter_that_is_not_named_has_all_its_values(place):
    whole = backends.find("fake").space(PROBLEM, FAKE)
    place.write_text(re.sub(r"^(tile_m|warps) = .*\n", "", place.read_text(), flags=re.MULTILINE))
    assert read_plan(place).space == {}
    assert space_of(read_plan(place), FAKE).parameters == whole.parameters


@pytest.mark.parametrize(
    ("new", "key"), [("warps = [5,", "space.warps"), ("warp = [1,", "space.warp")]
)
def test_values_outside_of_the_space_are_told(place, new, key):
    place.write_text(place.read_text().replace("warps = [1,", new))
    with pytest.raises(UsageError, match=f"{place}.*{key}"):
        space_of(read_plan(place), FAKE, str(place))


def test_true_is_not_one():
    space = Space(parameters={"persistent": (False, True), "stages": (1, 2)})
    with pytest.raises(UsageError, match=r"space\.stages.*true"):
        narrowed(space, {"stages": (True,)})
    with pytest.raises(UsageError, match=r"space\.persistent.*1"):
        narrowed(space, {"persistent": (1,)})


def test_a_space_that_nothing_is_left_of_is_refused():
    space = Space(
        parameters={"a": (1, 2)}, forbids=lambda config: "no" if config["a"] == 1 else None
    )
    with pytest.raises(UsageError):
        narrowed(space, {"a": (1,)})


@pytest.mark.parametrize(("backend", "problem"), [("numpy", PROBLEM), ("iree", COLUMN)])
def test_a_backend_with_nothing_to_tune_is_told(backend, problem):
    plan = TunePlan(name="x", problem=problem, backend=backend, reference_backend=backend)
    with pytest.raises(UsageError, match=backend):
        space_of(plan, find("cpu")[1])
