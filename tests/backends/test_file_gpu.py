"""A user's own file on a GPU that is modelled in C: its launches reach the stream that is timed."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelmark.core.result import Case, Status
from kernelmark.core.timing import Timing
from kernelmark.devices import registry as devices
from kernelmark.gpu import driver as drivers
from kernelmark.gpu import pack, rtc
from kernelmark.kernels import rtc as kernels
from kernelmark.ops import parse
from kernelmark.runners.execute import execute

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-kernel-gpu.md").read_text(encoding="utf-8")
IMAGE = b"\x7fELF\2\1\1" + bytes(11) + bytes([190]) + bytes(45)  # all that the model looks at
GEMM_S = 20e-6  # what the model's gemm takes
# The page's library, and the model that it launches on.
LIBRARY = """
#include "fakegpu.c"

void my_gemm(void *a, void *b, void *d, int m, int n, int k, void *stream) {
  static unsigned char image[64] = {0x7f, 'E', 'L', 'F', 2, 1, 1, [18] = 190};
  static P module, function;
  void *arguments[] = {&a, &b, &d, &m, &n, &k};
  if (!function) {
    cuModuleLoadData(&module, image);
    cuModuleGetFunction(&function, module, "gemm");
  }
  cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, stream, arguments, NULL);
}
"""


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """The model behind CUDA's names, its library in the working folder."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("the model GPU needs a C compiler: cc, gcc or clang")
    (tmp_path / "mygemm.c").write_text(LIBRARY)
    include = f"-I{ROOT / 'tests' / 'devices'}"
    command = [compiler, "-O1", "-shared", "-fPIC", include, "mygemm.c", "-o", "libmygemm.so"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    for name in ("device.cu", "project.cu"):
        pack.add(tmp_path, rtc.cache_key(kernels.source(name), "sm_90", ()), "sm_90", IMAGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELMARK_PACK", str(tmp_path))
    library = ctypes.CDLL("./libmygemm.so")
    monkeypatch.setattr(drivers, "find_library", lambda table: library)
    drivers.driver.cache_clear()
    device = devices.get("cuda").open(0)
    yield device
    device.close()
    drivers.driver.cache_clear()


def measured(text, device):
    Path("mylibrary.py").write_text(text, encoding="utf-8")
    problem = parse("gemm m=192 n=160 k=8 dtype=f32")
    timing = Timing(max_s=0.02, warmup_s=0.005, allocations=3)
    case = Case(problem=problem, backend="./mylibrary.py", timing=timing)
    return execute(case, device, 0, lambda phase: None)


def page_file():
    found = re.search(r"```python\n(# mylibrary\.py\n.*?)```", PAGE, flags=re.DOTALL)
    assert found
    return found[1]


def test_the_file_of_the_page_is_captured_and_right(gpu):
    result = measured(page_file(), gpu)
    assert result.status is Status.OK, result.error
    assert result.measurement is not None
    assert result.measurement.method == "graph"
    assert result.measurement.median_s == pytest.approx(GEMM_S, rel=1e-3)


def test_a_launch_on_another_stream_is_not_ok(gpu):
    result = measured(page_file().replace("*sizes, stream", "*sizes, 0"), gpu)
    assert result.status in (Status.WRONG, Status.RUNTIME_ERROR)
