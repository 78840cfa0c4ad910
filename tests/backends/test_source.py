"""A CUDA source as a kernel file, on an emulated GPU: launched, checked, and what is refused."""

import re
from pathlib import Path

import pytest

from kernelmark import backends, devices, ops
from kernelmark.backends import _file
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Case, Status
from kernelmark.core.timing import Timing
from kernelmark.gpu import rtc
from kernelmark.runners.execute import compile_ahead, execute
from kernelmark_dev.emulator import emulated

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "".join(
    (DOCS / f"{name}.md").read_text("utf-8") for name in ("own-kernel", "own-kernel-gpu")
)
DEFINITION = re.search(r"```python\n(# softmax.py\n.*?)```", PAGE, re.DOTALL)
SOURCE = re.search(r"```cuda\n(.*?)```", PAGE, re.DOTALL)
BRIEF = Timing(cache="hot", allocations=1, max_allocations=1, max_s=0.01, warmup_s=0.01)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's definition and source; ops that it defines are forgotten afterwards."""
    monkeypatch.setattr(ops.registry, "_loaded", dict(ops.registry._loaded))
    (tmp_path / "softmax.py").write_text(DEFINITION[1])
    (tmp_path / "softmax.cu").write_text(SOURCE[1])
    return tmp_path


@pytest.fixture
def gpu():
    with emulated():
        device = devices.registry.get("cuda").open(0)
        yield device
        device.close()


def measured(folder, gpu, config=None, key="softmax rows=2 cols=70"):
    name = str(folder / "softmax.cu")
    backends.find(name)
    case = Case(problem=ops.parse(key), backend=name, config=config or {}, timing=BRIEF)
    return execute(case, gpu, 0, lambda phase: None)


@pytest.mark.parametrize("config", [{}, {"threads": 32}])
def test_it_is_launched_and_checked(folder, gpu, config):
    found = measured(folder, gpu, config)
    assert found.status is Status.OK, found.error
    assert found.kernel.name == "softmax_rows"


def test_a_wrong_one_is_wrong(folder, gpu):
    place = folder / "softmax.cu"
    place.write_text(place.read_text().replace("/ sum;", "/ (sum + 1);"))
    assert measured(folder, gpu).status is Status.WRONG


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (('args = ["out", "x", "cols"]', 'args = ["out", "x"]'), Status.RUNTIME_ERROR),
        (('args = ["out", "x", "cols"]', 'args = ["out", "cols", "x"]'), Status.RUNTIME_ERROR),
        (('grid = ["rows"]', 'grid = ["rows - 2"]'), Status.RUNTIME_ERROR),
        (('grid = ["rows"]', 'grid = ["__import__(1)"]'), Status.RUNTIME_ERROR),
        (('grid = ["rows"]', 'grid = ["lines"]'), Status.RUNTIME_ERROR),
        (('kernel = "softmax_rows"', 'kernel = "softmax_row"'), Status.RUNTIME_ERROR),
        (('dtypes = ["f32"]', 'dtypes = ["f16"]'), Status.UNSUPPORTED),
    ],
)
def test_a_launch_that_does_not_fit_is_told(folder, gpu, change, status):
    place = folder / "softmax.cu"
    assert change[0] in place.read_text()
    place.write_text(place.read_text().replace(*change))
    found = measured(folder, gpu)
    assert found.status is status
    assert "softmax.cu" in found.error


@pytest.mark.parametrize("config", [{"threads": 33}, {"thread": 64}])
def test_a_config_that_its_space_lacks_is_unsupported(folder, gpu, config):
    assert measured(folder, gpu, config).status is Status.UNSUPPORTED


@pytest.mark.parametrize(
    "text",
    [
        "extern void f();",
        "/* kmark\nop = \n*/",
        '/* kmark\nop = "gemm"\n*/',
        '/* kmark\nop = "gemm"\nkernel = "f"\ngrid = 1\nblock = [1]\nargs = ["a"]\n*/',
        '/* kmark\nop = "gemm"\nkernel = "f"\ngrid = [1]\nblock = [1]\nargs = ["a"]\nwarps = 1\n*/',
        '/* kmark\nop = "gemm"\nkernel = "f"\ngrid = [1,1,1,1]\nblock = [1]\nargs = ["a"]\n*/',
    ],
)
def test_a_description_that_is_none_is_refused(tmp_path, text):
    place = tmp_path / "f.cu"
    place.write_text(text)
    with pytest.raises(UsageError):
        backends.find(str(place))


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ('extern "C" __global__ void f(float* a, int n) {}', ["float *", "int"]),
        ("__global__ void __launch_bounds__(256) f(const float *__restrict__ a)", ["float *"]),
        ("__global__ void g(int); __global__ void f(unsigned long long n)", ["unsigned long long"]),
        ("// __global__ void f(int n)\n__global__ void f(size_t n)", ["size_t"]),
        ("__global__ void f()", []),
        ("void f(int n)", None),
    ],
)
def test_the_declaration_says_in_which_types_numbers_are_passed(text, types):
    assert _file.declared_launch(text, "f") == types


@pytest.mark.skipif(
    rtc.unavailable("cuda") is not None, reason=rtc.unavailable("cuda") or "available"
)
def test_it_compiles_for_a_gpu_that_is_not_here(folder):
    from kernelmark.gpu.architectures import absent

    name = str(folder / "softmax.cu")
    backends.find(name)
    case = Case(problem=ops.parse("softmax rows=2 cols=70"), backend=name, timing=BRIEF)
    status, error, _, kernel = compile_ahead(case, absent("sm_90"))
    assert status is Status.OK, error
    assert kernel.binary_hash
