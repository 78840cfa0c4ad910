"""`do_bench` and `perf_report` are called as those of `triton.testing`."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

import kernelmark as km
from kernelmark.core.errors import UsageError

X = np.ones((64, 64), np.float32)
SHORT = {"warmup": 1, "rep": 10}


def test_the_parameters_are_those_of_triton():
    testing = pytest.importorskip("triton.testing")
    theirs, ours = (inspect.signature(f).parameters for f in (testing.do_bench, km.do_bench))
    assert {name: p.default for name, p in ours.items()} == {
        n: p.default for n, p in theirs.items()
    }
    assert list(ours) == list(theirs)


def test_every_summary_is_of_the_same_kind_as_that_of_triton():
    times = km.do_bench(lambda: X @ X, return_mode="all", **SHORT)
    assert isinstance(times, list)
    assert all(0 < time < 1e4 for time in times)
    low, high = km.do_bench(lambda: X @ X, quantiles=[0.2, 0.8], **SHORT)
    assert 0 < low <= high
    assert isinstance(km.do_bench(lambda: X @ X, quantiles=[0.5], **SHORT), float)
    assert isinstance(km.do_bench(lambda: X @ X, **SHORT), float)
    with pytest.raises(UsageError):
        km.do_bench(lambda: X @ X, return_mode="mode")


def test_gradients_are_reset_before_each_call():
    tensor = SimpleNamespace(grad=1.0)
    seen = set()

    def call():
        seen.add(tensor.grad)
        tensor.grad = 2.0

    km.do_bench(call, grad_to_none=[tensor], **SHORT)
    assert seen == {None}


def test_a_function_that_raises_is_an_error():
    with pytest.raises(UsageError):
        km.do_bench(lambda: 1 / 0, **SHORT)


def test_a_report_stores_each_point(tmp_path):
    grid = SimpleNamespace(
        x_names=["N"],
        x_vals=[8, 16],
        line_arg="provider",
        line_vals=["a", "b"],
        line_names=["A", "B"],
        plot_name="matmul-small",
        args={},
    )

    @km.perf_report(grid)
    def bench(N, provider):
        values = np.ones((N, N), np.float32)
        return km.do_bench(lambda: values @ values, **SHORT)

    store = str(tmp_path / "store.sqlite")
    bench.run(store=store)
    loaded = km.load("latest", store=store)
    points = {(one.case.problem.key, one.case.backend) for one in loaded}
    assert points == {(f"matmul_small n={n}", b) for n in (8, 16) for b in "AB"}
    assert all(one.median_s > 0 for one in loaded)


def test_a_report_without_do_bench_is_refused():
    grid = SimpleNamespace(
        x_names=["n"],
        x_vals=[1],
        line_arg="p",
        line_vals=[1],
        line_names=["A"],
        plot_name="x",
        args={},
    )
    with pytest.raises(UsageError):
        km.perf_report(grid)(lambda n, p: 1.0).run(store=False)
