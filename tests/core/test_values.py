"""The small values: frozen mappings, dtypes, timing, results, environments, errors, spaces."""

import dataclasses
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core import errors
from kernelmark.core.dtype import DTYPES, dtype
from kernelmark.core.environment import DeviceInfo, Environment, difference
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import parse_key
from kernelmark.core.result import Case, Check, Space, Status, config_key
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import PRESETS, Cache, Timing
from kernelmark_dev.raising import raises
from kernelmark_dev.results import make_measurement, make_result

GEMM = parse_key("gemm m=4 a=f32")


@given(st.dictionaries(st.text(max_size=3), st.integers(), max_size=5))
def test_frozen_dict_is_the_dict_but_hashable(items):
    frozen = FrozenDict(items)
    backwards = FrozenDict(reversed(items.items()))
    assert frozen == items
    assert list(frozen.items()) == list(items.items())
    assert frozen == backwards
    assert hash(frozen) == hash(backwards)
    assert pickle.loads(pickle.dumps(frozen)) == frozen


def test_frozen_dict_cannot_be_changed():
    source = {"a": 1}
    frozen = FrozenDict(source)
    source["a"] = 2
    assert frozen["a"] == 1
    with pytest.raises(TypeError):
        frozen["a"] = 3
    with pytest.raises(AttributeError):
        frozen.more = 3
    with pytest.raises(AttributeError):
        frozen._items = {}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_know_their_sizes(name):
    kind = dtype(name)
    assert str(kind) == name
    assert kind.nbytes(16) == 2 * kind.bits
    assert kind.nbytes(1) == math.ceil(kind.bits / 8)
    assert (kind.unit_roundoff == 0) == (kind.kind == "int")


def test_figures_of_well_known_dtypes():
    assert dtype("f32").unit_roundoff == 2.0**-24
    assert dtype("bf16").unit_roundoff == 2.0**-8
    assert dtype("f32").smallest_step == 2.0**-149
    assert dtype("f8e4m3").smallest_step == 2.0**-9
    assert dtype("f4e2m1").nbytes(3) == 2
    spec = TensorSpec(name="a", shape=(3, 5), dtype="f4e2m1")
    assert (spec.count, spec.nbytes) == (15, 8)
    assert TensorSpec(name="s", shape=(), dtype="f32").count == 1


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"max_s": math.inf}, {"field": "max_s"}),
        ({"max_s": 1e40}, {"field": "max_s"}),
        ({"warmup_s": 1e6}, {"field": "warmup_s"}),
        ({"processes": 2**64}, {"field": "processes"}),
        ({"seed": 2**64}, {"field": "seed"}),
        ({"cache": "warm"}, {"field": "cache", "given": "'warm'"}),
        ({"timer": "wall"}, {"field": "timer", "given": "'wall'"}),
        ({"strain": "some"}, {"field": "strain", "given": "'some'"}),
        ({"duty": "never"}, {"field": "duty", "given": "'never'"}),
        ({"processes": 0}, {"field": "processes", "least": 1}),
        ({"allocations": 0}, {"field": "allocations", "least": 1}),
        ({"min_samples": 0}, {"field": "min_samples", "least": 1}),
        ({"allocations": 5, "max_allocations": 4}, {"least": 5}),
        ({"threads": -1}, {"field": "threads", "least": 0}),
        ({"seed": -1}, {"field": "seed", "least": 0}),
        ({"max_s": 0.0}, {}),
        ({"max_s": math.nan}, {}),
        ({"target_rel_ci": 0.0}, {}),
        ({"min_sample_s": -1.0}, {}),
        ({"warmup_s": -0.1}, {}),
        ({"warmup_s": math.nan}, {}),
    ],
)
def test_illegal_timings_are_refused(changes, fields):
    with raises(UsageError, **fields):
        Timing(**changes)


def test_timing_identity_holds_only_what_changes_the_meaning():
    base = Timing()
    assert Timing(cache="hot").cache is Cache.HOT
    for name in ("cache", "timer", "strain", "duty", "threads"):
        value = {"cache": "hot", "timer": "gate", "strain": "compute", "duty": "burst"}.get(name, 3)
        assert dataclasses.replace(base, **{name: value}).identity != base.identity
    same = dataclasses.replace(base, processes=4, max_s=9.0, seed=5, min_samples=9)
    assert same.identity == base.identity


def test_presets():
    assert Timing.preset("quick").max_s < Timing.preset("default").max_s
    assert Timing.preset("full", threads=3).threads == 3
    with raises(UsageError, what="timing preset", name="slow") as caught:
        Timing.preset("slow")
    assert all(name in caught.value.hint for name in PRESETS)


def test_a_timing_file_sets_any_field(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('preset = "full"\nstrain = "bandwidth"\nmax_s = 3\nprocesses = 2\n')
    changes = {"strain": "bandwidth", "max_s": 3, "processes": 2, "seed": 7}
    assert Timing.load(str(file), seed=7) == Timing.preset("full", **changes)
    assert Timing.load("quick") == Timing.preset("quick")
    with pytest.raises(UsageError):
        Timing.load(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    "text",
    ["max_s = ", "maxs = 3", "max_s = '3'", "threads = 1.5", "seed = true", "preset = 'slow'"],
)
def test_a_timing_file_with_a_mistake_is_refused(tmp_path, text):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        Timing.load(str(file))
    assert caught.value.hint or text == "max_s = "


def test_a_case_is_known_by_what_changes_its_meaning():
    one = Case(problem=GEMM, backend="numpy", config={"a": 1, "b": 2})
    other = Case(problem=GEMM, backend="numpy", config={"b": 2, "a": 1}, timing=Timing(max_s=9.0))
    assert one.id == other.id
    assert one.id != Case(problem=GEMM, backend="torch", config=one.config).id
    assert one.id != Case(problem=GEMM, backend="numpy").id
    assert config_key({}) == "{}"


@pytest.mark.parametrize("value", [math.nan, math.inf, None, [1], {}])
def test_a_config_holds_only_what_can_be_written(value):
    with raises(UsageError, name="tile"):
        Case(problem=GEMM, backend="numpy", config={"tile": value})


def test_the_headline_is_the_median_over_blocks_of_their_medians():
    found = make_measurement((1.0, 1.0, 1.0, 1.0, 50.0), 2.0, 9.0, low_s=1.0, high_s=3.0)
    assert found.median_s == 2.0
    assert found.samples == 7
    assert found.rel_half_width == pytest.approx(1 / math.sqrt(3))


def test_rates_come_from_the_headline():
    case = Case(problem=GEMM, backend="numpy")
    result = make_result(case, 2.0, flops=10, bytes=4, arch="x86_64")
    assert (result.flops_per_s, result.bytes_per_s) == (5.0, 2.0)
    assert result.series.endswith("| x86_64")
    failed = dataclasses.replace(result, measurement=None, status=Status.CRASHED)
    assert failed.flops_per_s is None


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"worst": 1.0001}, False),
        ({"worst": math.nan}, False),
        ({"unwritten": 1}, False),
        ({"guards_intact": False}, False),
    ],
)
def test_a_check_passes_only_if_all_is_well(changes, passed):
    fine = {"positions": 1, "worst": 1.0, "max_abs": 0.0, "unwritten": 0, "guards_intact": True}
    assert Check(**(fine | changes)).passed is passed


def test_environments_differ_by_what_differs():
    device = DeviceInfo(name="cpu", kind="cpu", model="A", arch="x86_64")
    base = Environment(devices=(device,), libraries={"numpy": "2.0"}, variables={"OMP": "1"})
    newer = (dataclasses.replace(device, driver="9"),)
    head = dataclasses.replace(base, devices=newer, libraries={"numpy": "2.1", "torch": "3"})
    assert base.fingerprint == dataclasses.replace(base).fingerprint != head.fingerprint
    assert difference(base, base) == []
    assert difference(base, head) == [
        ("device cpu", "A (x86_64), driver ", "A (x86_64), driver 9"),
        ("library numpy", "2.0", "2.1"),
        ("library torch", "", "3"),
    ]
    # One without libraries was not recorded, and differs by the rest.
    base = Environment(host="a", libraries={"numpy": "2.0"}, variables={"OMP": "1"})
    assert difference(base, Environment(host="a")) == []
    assert difference(Environment(host="b"), base) == [("host", "b", "a")]


def test_errors_survive_pickling_with_their_hints():
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert len(kinds) > 8
    for kind in kinds:
        again = pickle.loads(pickle.dumps(kind("what", hint="do this")))
        assert (type(again), again.message, again.hint) == (kind, "what", "do this")
        assert again.exit_code in (2, 3, 4)
        assert str(again) == "what\nhint: do this"
        assert str(kind("what")) == "what"


def test_a_space_gives_its_legal_combinations_in_order():
    space = Space(
        parameters={"a": (1, 2), "b": (1, 2)},
        forbids=lambda config: "a equals b" if config["a"] == config["b"] else None,
    )
    assert space.size == 4
    assert list(space) == [{"a": 1, "b": 2}, {"a": 2, "b": 1}]
    assert list(Space(parameters={})) == [{}]
