"""What `kmark list ops -o OP` says of an op's tensors is what the op itself says."""

from __future__ import annotations

import re

import pytest

from kernelmark import ops
from kernelmark.core.problem import Problem
from kernelmark.report.tensors import tensors_table
from kernelmark.workloads import suites

OPS = ops.registry.names()


def rows(op: str) -> list[tuple[str, ...]]:
    table = tensors_table(op)
    assert table is not None
    return list(table.rows)


def test_gemm_is_told_with_all_its_options():
    assert rows("gemm") == [
        ("a", "in", "m×k", "a=…", ""),
        ("a", "in", "k×m", "a=…", "ta=t"),
        ("b", "in", "k×n", "b=…", ""),
        ("b", "in", "n×k", "b=…", "tb=t"),
        ("c", "in", "m×n", "c=…", "beta≠0"),
        ("bias", "in", "n", "c=…", "bias=yes"),
        ("d", "out", "m×n", "c=…", ""),
    ]


def test_a_scheme_changes_which_tensors_there_are():
    found = rows("batched_gemm_quant")
    assert ("a", "in", "m×batch×k", "a=…", "a_order=mbk") in found
    assert (
        "b_scale",
        "in",
        "batch×n×(k//32)",
        "f8e8m0",
        "scheme=a16wfp4, scheme=afp4wfp4",
    ) in found
    (scale,) = [row for row in found if row[:3] == ("a_scale", "in", "batch×m")]
    assert scale[4] == "not with scheme=a8w8_group, scheme=a16wfp4"


def test_sizes_that_are_computed_are_told_as_they_are():
    (y,) = [row for row in rows("conv") if row[0] == "y" and not row[4]]
    height = "((h+2·pad_h-dilation_h·(r-1)-1)//stride_h+1)"
    assert y[2].startswith(f"n×k×{height}×")


@pytest.mark.parametrize("op", OPS)
def test_the_shapes_are_those_of_problems(op):
    """Evaluated for real problems, the text of a shape gives the op's own shape."""
    told = [row for row in rows(op) if not row[4] or row[4].startswith("not with")]
    usual = _defaults(op)
    checked = 0
    for problem in _problems(op):
        if dict(problem.options) != usual:
            continue
        specs = {spec.name: spec for spec in ops.registry.get(op).tensors(problem)}
        assert sorted(specs) == sorted(row[0] for row in told)
        for name, role, shape, kind, _ in told:
            sizes = shape.replace("·", "*").split("×")
            found = tuple(eval(size, {}, dict(problem.dims)) for size in sizes)
            assert found == specs[name].shape, problem.key
            assert role == specs[name].role
            parameter = re.fullmatch(r"(\w+)=…", kind)
            assert specs[name].dtype == (problem.dtypes[parameter[1]] if parameter else kind)
        checked += 1
    assert checked


def _problems(op: str) -> list[Problem]:
    return [p for suite in suites.names() for p in suites.load(suite, ops=[op]).problems]


def _defaults(op: str) -> dict[str, object]:
    """Options that most problems of the suites leave alone are those of the first that does."""
    problem = _problems(op)[0]
    bare = problem.key.split(" ")[: 1 + len(problem.dims) + len(problem.dtypes)]
    return dict(ops.parse(" ".join(bare)).options)


def test_an_op_that_no_suite_has_is_told_without(monkeypatch):
    monkeypatch.setattr("kernelmark.workloads.suites.names", list)
    assert tensors_table("gemm") is None
