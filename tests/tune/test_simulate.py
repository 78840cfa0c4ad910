"""Simulated spaces, read from what other tuners write."""

import gzip
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernelmark as km
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.tune.simulate import folder, quality, read, simulate
from kernelmark.tune.strategies import registry

CACHE = {
    "device_name": "a GPU",
    "kernel_name": "k",
    "tune_params_keys": ["block", "mode"],
    "tune_params": {"block": [64, 32, 128], "mode": ["a", "b"]},
    "objective": "time",
    "cache": {
        "32,a": {"block": 32, "mode": "a", "time": 2.0},
        "64,a": {"block": 64, "mode": "a", "time": 0.5},
        "64,b": {"block": 64, "mode": "b", "time": "CompilationFailedConfig"},
        "128,a": {"block": 128, "mode": "a", "time": 0.1, "__error__": "x"},
        "128,b": {"block": 128, "mode": "b", "time": 1e20},
    },
}


def times(space):
    return {
        tuple(space.points.config(i).values()): space.seconds(i) for i in range(len(space.points))
    }


def test_a_kernel_tuner_cache(tmp_path):
    path = tmp_path / "k.json"
    path.write_text(json.dumps(CACHE))
    space = read(path)
    assert space.name == "k"
    assert space.points.values == ((64, 32, 128), ("a", "b"))  # the file's order, not sorted
    assert times(space) == dict(
        zip(
            ((32, "a"), (64, "a"), (64, "b"), (128, "a"), (128, "b")),
            (2e-3, 5e-4, None, None, None),
            strict=True,
        )
    )
    assert space.best_s == 5e-4


def test_a_cache_of_an_open_session_lacks_its_last_brackets_and_one_may_be_packed(tmp_path):
    (tmp_path / "k.json").write_text(json.dumps(CACHE)[:-2] + ",\n")
    (tmp_path / "k.json.gz").write_bytes(gzip.compress(json.dumps(CACHE).encode()))
    for name in ("k.json", "k.json.gz"):
        space = read(tmp_path / name)
        assert (space.name, len(space.points)) == ("k", 5)


def t4(value, unit, invalidity="correct", block=32):
    return {
        "configuration": {"block": block, "pad": True},
        "times": {"compilation": 3.0, "runtimes": [value]},
        "invalidity": invalidity,
        "correctness": 1,
        "measurements": [
            {"name": "power", "value": 5, "unit": "W"},
            {"name": "time", "value": value, "unit": unit},
        ],
        "objectives": ["time"],
    }


def test_t4_results(tmp_path):
    path = tmp_path / "t4.json"
    results = [
        t4(2.0, "ms", block=64),
        t4(3.0, "s", block=32),
        t4(1.0, "", "compile", block=16),
        t4(4.0, "", block=8),
    ]
    document = {
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "milliseconds"},
        "results": results,
    }
    path.write_text(json.dumps(document))
    space = read(path)
    assert space.points.values[0] == (8, 16, 32, 64)
    assert times(space) == {(64, True): 2e-3, (32, True): 3.0, (16, True): None, (8, True): 4e-3}


@pytest.mark.parametrize("unit", ["miliseconds", "milliseconds", "ms", "Milliseconds"])
def test_t4_results_as_they_spell_their_unit(tmp_path, unit):
    path = tmp_path / "t4.json"
    path.write_text(json.dumps({"metadata": {"timeunit": unit}, "results": [t4(4.0, "")]}))
    assert times(read(path)) == {(32, True): 4e-3}
    path.write_text(json.dumps({"results": [with_objective("latency", 7.0, "us", timed=False)]}))
    assert list(times(read(path)).values()) == pytest.approx([7e-6])


def with_objective(name, value, unit="", *, timed=True):
    row = t4(2.0, "ms", block=int(1000 * value))
    if not timed:
        row["measurements"] = []
    row["measurements"].append({"name": name, "value": value, "unit": unit})
    return row | {"objectives": [name]}


@pytest.mark.parametrize(("name", "timed"), [("score", True), ("energy", True), ("GB/s", False)])
def test_an_objective_that_is_no_time_is_refused(tmp_path, name, timed):
    """The best of these may be the highest, and none of them is milliseconds."""
    rows = [with_objective(name, value, timed=timed) for value in (0.014, 0.517)]
    path = tmp_path / "t4.json"
    path.write_text(json.dumps({"metadata": {"timeunit": "ms"}, "results": rows}))
    with pytest.raises(CodecError):
        read(path)
    cache = {
        str(value): {"block": value, name: value} | ({"time": 1.0} if timed else {})
        for value in (1, 2)
    }
    document = {"tune_params_keys": ["block"], "tune_params": {"block": [1, 2]}, "cache": cache}
    path.write_text(json.dumps(document | {"objective": name}))
    with pytest.raises(CodecError):
        read(path)


def test_a_rate_is_read_by_the_time_it_was_computed_from(tmp_path):
    rows = [with_objective("GFLOP/s", 0.5)]
    path = tmp_path / "t4.json"
    path.write_text(json.dumps({"metadata": {"timeunit": "ms"}, "results": rows}))
    assert list(times(read(path)).values()) == [2e-3]
    path.write_text(json.dumps(CACHE | {"objective": "TB/s"}))
    assert read(path).best_s == 5e-4


def write_pair(path, name="pair"):
    idx = np.array([[0, 0], [0, 1], [1, 0], [2, 1]])
    np.savez(path / f"{name}.npz", idx=idx, time_ms=np.array([4.0, np.nan, 1.0, 2.0]))
    file = path / f"{name}.json"
    document = {
        "name": name,
        "params": {"x": [1, 2, 4], "y": [0, 1]},
        "const": {"z": 7},
        "restrictions": ["x*y<=4"],
    }
    file.write_text(json.dumps(document))
    return file


def test_the_compact_pair(tmp_path):
    space = read(write_pair(tmp_path))
    assert times(space) == {(1, 0): 4e-3, (1, 1): None, (2, 0): 1e-3, (4, 1): 2e-3}
    assert space.restrictions == ("x*y<=4",)
    assert space.constants == {"z": 7}
    assert [s.name for s in folder(tmp_path)] == ["pair"]


def test_quality_counts_from_the_first_point_that_works(tmp_path):
    space = read(write_pair(tmp_path))
    asked = simulate(space, registry.get("exhaustive").begin(space.points, budget=9, seed=0), 9)
    assert asked == [0, 1, 2, 3]
    assert [quality(space, asked, n) for n in (1, 2, 3, 4)] == [0.25, 0.25, 1.0, 1.0]
    assert quality(space, [1], 5) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"cache": 3}',
        '{"cache": {}, "tune_params_keys": ["a"], "tune_params": {"a": [1]}}',
        '{"results": [{"configuration": 4}]}',
        '{"cache": {"1": {"a": 1, "time": "x"}}, "tune_params": {"a": [1]}}',
        "[" * 100_000,
        *(
            f'{{"cache": {{"1": {{"a": 1, "time": {10**zeros}}}}}, "tune_params": {{"a": [1]}}}}'
            for zeros in (400, 4200)
        ),
        '{"cache": {"1": {"a": 1}}, "tune_params": {"a": [1]}, "objective": []}',
    ],
)
def test_what_is_no_measured_space_is_refused(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(CodecError) as refused:
        read(tmp_path / "bad.json")
    assert "bad.json" in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("name", ["none.json", ""])
def test_a_file_that_is_not_there_is_one_sentence(tmp_path, name):
    with pytest.raises(UsageError, match=str(tmp_path / name)):
        read(tmp_path / name)


def test_a_packed_cache_with_a_wrong_byte_is_refused(tmp_path):
    data = bytearray(gzip.compress(json.dumps(CACHE).encode()))
    data[12] ^= 0xFF
    (tmp_path / "k.json.gz").write_bytes(data)
    with pytest.raises(CodecError, match=re.escape("k.json.gz")) as refused:
        read(tmp_path / "k.json.gz")
    assert "write or copy it again" in (refused.value.hint or "")
    failed = {"cache": {"32,a": {"block": 32, "mode": "a", "time": "Failed"}}}
    (tmp_path / "failed.json").write_text(json.dumps(CACHE | failed))
    with pytest.raises(CodecError, match=re.escape("failed.json")) as refused:
        read(tmp_path / "failed.json")
    assert "at least one configuration has a time" in (refused.value.hint or "")


@pytest.mark.parametrize("codes", [[[0, 0], [0, 5]], [[0, 0], [-1, 0]], [[0], [1]], [[0, 0]]])
def test_a_table_that_does_not_fit_its_parameters_is_refused(tmp_path, codes):
    file = write_pair(tmp_path)
    np.savez(tmp_path / "pair.npz", idx=np.array(codes), time_ms=np.array([1.0, 2.0]))
    with pytest.raises(CodecError, match=re.escape("pair.npz")):
        read(file)
    (tmp_path / "pair.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(CodecError, match=re.escape("pair.json")):
        read(file)


def test_strategies_are_tried_from_python(tmp_path):
    space = km.tuning.read_space(write_pair(tmp_path))
    for name in registry.names():
        points = km.tuning.try_strategy(space, name, budget=9)
        assert sorted(points) == [0, 1, 2, 3]
        assert km.tuning.quality(space, points) == 1.0
        assert points == km.tuning.try_strategy(space, name, budget=9)
    assert len(km.tuning.try_strategy(space, "random", budget=2, seed=3)) == 2
    with pytest.raises(UsageError, match="strategy"):
        km.tuning.try_strategy(space, "nonsense", budget=2)
    with pytest.raises(UsageError, match="0") as refused:
        km.tuning.try_strategy(space, "random", budget=0)
    assert refused.value.hint == "for example: budget=100, seed=1"


KEYS = ["cache", "results", "params", "tune_params", "configuration", "time", "a"]
ANY_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(st.sampled_from(KEYS), c, max_size=4),
    max_leaves=12,
)


@given(ANY_JSON)
def test_any_json_is_read_or_refused(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(value))
    try:
        space = read(path)
    except CodecError:
        return
    assert math.isfinite(space.best_s)
