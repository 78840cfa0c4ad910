"""Memory: predictions from other problems, fitting to a space, files, and defaults by it."""

import math

import pytest

from kernelmark import ops
from kernelmark.backends import _memory, registry, triton
from kernelmark.backends._memory import Searched
from kernelmark.backends.triton import gemm as planner
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Space, config_key
from kernelmark.gpu.architectures import absent

SM_90 = absent("sm_90")


def gemm(m, rest="a=bf16 b=bf16 tb=t"):
    return ops.parse(f"gemm m={m} n=4096 k=4096 {rest}")


def searched(problem, arch="sm_90", **times):
    """A search of configs t=NAME."""
    configs = {FrozenDict({"t": int(name[1:])}): seconds for name, seconds in times.items()}
    found = {config_key(config): (config, seconds) for config, seconds in configs.items()}
    return Searched(problem=problem, backend="triton", arch=arch, times=found)


def order(problem, *searches):
    return [config["t"] for config, _ in _memory.predicted(problem, "sm_90", searches)]


def test_the_nearest_problem_decides():
    near, far = searched(gemm(96), t1=3.0, t2=1.0), searched(gemm(4096), t1=1.0, t2=9.0)
    assert order(gemm(100), near, far) == [2, 1]
    assert order(gemm(3000), near, far) == [1, 2]


def test_the_same_architecture_counts_more_than_another():
    here, there = searched(gemm(64), t1=1.0, t2=2.0), searched(gemm(64), "gfx942", t1=2.0, t2=1.0)
    assert order(gemm(64), there, here) == [1, 2]
    assert order(gemm(64), there) == [2, 1]


@pytest.mark.parametrize(
    ("rest", "distance"),
    [
        ("a=bf16 b=bf16 tb=t", 0.0),
        ("a=bf16 b=bf16 tb=t bias=yes", 0.0),
        ("a=f16 b=f16 tb=t", math.sqrt(3) / 2),  # of a, b and c
        ("a=f8e4m3 b=f8e4m3 c=bf16 tb=t", math.inf),
        ("a=bf16 b=bf16 tb=n", math.inf),
    ],
)
def test_what_can_be_compared(rest, distance):
    assert _memory.apart(gemm(64), gemm(64, rest)) == pytest.approx(distance)


def test_a_config_is_fitted_to_the_space_of_another_problem():
    space = Space(
        parameters={"t": (16, 64), "group": (1, 4), "flag": (False, True)},
        default=FrozenDict({"t": 16, "group": 1, "flag": False}),
        forbids=lambda config: "too large" if config["t"] == 64 and config["flag"] else None,
        canonical=lambda config: FrozenDict({**config, "group": 1}),
    )
    fitted = _memory.fitted(FrozenDict({"t": 128, "group": 4}), space)
    assert fitted == {"t": 64, "group": 1, "flag": False}
    assert _memory.fitted(FrozenDict({"t": 64, "flag": True}), space) is None
    assert _memory.fitted(FrozenDict({"unknown": 1}), space) is None


@pytest.mark.parametrize("name", ["m.json", "m.json.gz"])
def test_a_file_keeps_the_times_to_four_digits(tmp_path, name):
    searches = [searched(gemm(64), t1=1e-6, t2=2.34567e-6), searched(gemm(65), t2=3e-6)]
    _memory.save(tmp_path / name, searches)
    again = _memory.load(tmp_path / name)
    assert [s.problem for s in again] == [s.problem for s in searches]
    config, seconds = again[0].times[config_key({"t": 2})]
    assert (config, seconds) == ({"t": 2}, pytest.approx(2.346e-6))
    assert len(again[1].times) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": "kernelmark memory 9", "configs": [], "problems": []}',
        b'{"format": "kernelmark memory 1", "configs": [], "problems": [{"problem": "gemm m=1 n=1 '
        b'k=1 dtype=f32", "backend": "x", "arch": "y", "configs": [0], "us": [1]}]}',
        b'{"format": "kernelmark memory 1", "configs": [{}], "problems": [{"problem": "gemm m=1 n=1'
        b' k=1 dtype=f32", "backend": "x", "arch": "y", "configs": [0], "us": [-1]}]}',
    ],
)
def test_a_damaged_file_is_refused(tmp_path, data):
    path = tmp_path / "m.json"
    path.write_bytes(data)
    with pytest.raises(CodecError, match=r"m\.json"):
        _memory.load(path)


def test_a_truncated_or_missing_file_is_refused(tmp_path):
    path = tmp_path / "m.json.gz"
    _memory.save(path, [searched(gemm(64), t1=1e-6)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CodecError):
        _memory.load(path)
    with pytest.raises(UsageError):
        _memory.load(tmp_path / "none.json.gz")


def test_the_last_time_of_a_config_counts():
    first, second = searched(gemm(64), t1=1.0, t2=2.0), searched(gemm(64), t2=3.0)
    other = searched(gemm(64), "gfx942", t1=5.0)
    one, another = _memory.merged([first, other, second])
    assert [seconds for _, seconds in one.times.values()] == [1.0, 3.0]
    assert another == other


def test_a_search_of_several_backends_is_one_of_each():
    configs = [
        FrozenDict({"backend": "triton", "triton.t": 1}),
        FrozenDict({"backend": "cublaslt", "cublaslt.a": 2}),
    ]
    both = Searched(
        problem=gemm(64),
        backend="cublaslt,triton",
        arch="sm_90",
        times={config_key(config): (config, 1e-6) for config in configs},
    )
    (own,) = _memory.of_backend(both, "triton")
    assert (own.backend, list(own.times)) == ("triton", [config_key({"t": 1})])
    assert _memory.of_backend(both, "torch") == []


def by_rules(problem):
    return planner.default(problem, SM_90)


def test_a_default_is_what_the_shipped_times_predict(monkeypatch, request):
    backend = registry.get("triton")
    rules = by_rules(gemm(300))
    best = FrozenDict({**rules, "num_stages": 2, "group_m": 8})
    times = {config_key(c): (c, s) for c, s in ((rules, 2e-5), (best, 1e-5))}
    known = Searched(problem=gemm(2048), backend="triton", arch="sm_90", times=times)
    monkeypatch.setattr(_memory, "shipped", lambda name, arch: (known,))
    triton._default.cache_clear()
    request.addfinalizer(triton._default.cache_clear)
    chosen = backend.default(gemm(300), SM_90)
    assert chosen["num_stages"] == 2
    # The group of the larger problem is mapped to the least one with the same order of tiles.
    space = backend.space(gemm(300), SM_90)
    assert space.forbids(chosen) is None
    assert space.default == chosen
    # Nothing is known of transposed operands: the rules decide.
    other = gemm(300, "a=bf16 b=bf16 tb=n")
    assert backend.default(other, SM_90) == by_rules(other)


def test_the_shipped_times_of_sm_90_are_small_and_of_many_shapes():
    path = _memory.SHIPPED / "triton-sm_90.json.gz"
    assert path.stat().st_size < 200_000
    assert len(_memory.shipped("triton", "sm_90a")) >= 300
