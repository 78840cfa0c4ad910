"""The suite of the five batched kernels."""

from collections import Counter

from kernelmark.workloads import suites


def test_sixty_one_shapes_of_five_kernels_in_three_families():
    problems = suites.load("batched-gemm-family").problems
    assert len(problems) == 61
    kernels = Counter(str(p.options.get("scheme", p.op)) for p in problems)
    assert kernels == {
        "a8w8": 12,
        "a8w8_group": 12,
        "a16wfp4": 12,
        "afp4wfp4": 12,
        "batched_gemm": 13,
    }
    families = {(p.dims["n"], p.dims["k"]) for p in problems}
    assert families == {(512, 128), (128, 512), (8192, 8192)}
    assert all(
        p.dtypes["a"] == "bf16" and p.options["tb"] == "t" for p in problems if "tb" in p.options
    )
