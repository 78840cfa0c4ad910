"""What a verdict says beyond its status: precision, hints, JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kernelmark import ops
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.judge.sandbox import is_numeric_library, mapped_libraries
from kernelmark.judge.verdict import CounterExample, Verdict

PROBLEM = ops.parse("gemm m=4 n=4 k=4 dtype=f32")


def verdict(**changes) -> Verdict:
    return Verdict(kernel="k.py", problem=PROBLEM, device="cpu", **changes)


@pytest.mark.parametrize(
    ("bits", "name"),
    [(53, "f64"), (24, "f32"), (19, "f32"), (11, "f16 or tf32"), (8, "bf16"), (4, "8 bits")],
)
def test_the_precision_is_the_format_whose_roundings_explain_the_errors(bits, name):
    assert verdict(delivered_roundoff=0.6 * 2.0**-bits).precision == name
    assert verdict(delivered_roundoff=None).precision == ""
    assert verdict(delivered_roundoff=3.0).precision not in ("f64", "bf16")


def test_a_refusal_has_its_counter_example_as_a_hint():
    example = CounterExample(problem=PROBLEM.key, seed="ab" * 16, number=7, family="uniform")
    refused = verdict(
        status=Status.WRONG, reason=Reason("it is wrong", "values-wrong"), counter_example=example
    )
    assert any(example.seed in hint and "7" in hint for hint in refused.hints)
    assert all(hint in refused.text() for hint in refused.hints)
    assert refused.document()["hints"] == refused.hints


def test_a_slower_kernel_far_from_a_roof_is_told_so():
    slow = verdict(reference="numpy", ratio=1.5, ratio_low=1.4, ratio_high=1.6, roof_share=0.3)
    assert any("numpy" in hint for hint in slow.hints)
    near = verdict(roof_share=0.95, roof_bound="memory")
    assert any("memory" in hint for hint in near.hints)
    assert near.document()["bottleneck"] == "memory"
    assert verdict().document()["bottleneck"] is None


def test_the_document_is_json():
    made = verdict(resources={"threads": 2, "kernels": ["a"] * 5, "libraries": ["libopenblas.so"]})
    assert json.loads(json.dumps(made.document()))["resources"]["threads"] == 2
    assert "libopenblas.so" in made.text()


def test_libraries_are_known_by_name_or_by_what_they_hold(tmp_path):
    def library(name: str, text: bytes) -> Path:
        (tmp_path / name).write_bytes(b"\x7fELF" + text)
        return tmp_path / name

    assert is_numeric_library(library("libopenblas.so.0", b""))
    assert is_numeric_library(library("libmine.so", b"..cblas_sgemm.."))
    assert not is_numeric_library(library("libother.so", b"memcpy"))
    assert not is_numeric_library(tmp_path / "missing.so")


def test_the_libraries_of_this_process_are_listed():
    assert any("libc" in name for name in mapped_libraries(os.getpid()))
    assert mapped_libraries(0) == set()
