from types import SimpleNamespace

import pytest

from kernelmark.core.result import KernelInfo
from kernelmark.core.timing import Timing
from kernelmark.devices import registry
from kernelmark.measure.protocol import SecondaryTimes

SOLUTION = KernelInfo(name="Cijk_MT128", resources={"solution_index": 7})


@pytest.mark.parametrize(
    ("info", "name"),
    [
        (KernelInfo(name="matmul"), "matmul: gemm+reduce"),
        (KernelInfo(), "gemm+reduce"),
        (KernelInfo(name="gemm+reduce"), "gemm+reduce"),
        (SOLUTION, "Cijk_MT128"),  # files for the library are written with this name
    ],
)
def test_the_names_of_launched_kernels_follow_that_of_the_backend(monkeypatch, info, name):
    device = registry.get("fake").open(0)
    monkeypatch.setattr(type(device), "kernel_names", lambda self, launch: ("gemm", "reduce"))
    kernel = SimpleNamespace(info=info, launch=lambda stream, index: None)
    named = SecondaryTimes(device, kernel, 1, Timing()).info()
    assert (named.name, named.resources) == (name, info.resources)
