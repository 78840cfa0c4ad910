"""The shim builds, exports what kernelmark calls, and answers it over the modelled CUDA GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelmark.backends import hipblaslt
from kernelmark.gpu import rtc
from kernelmark.gpu.library import HIP, HIP_ARCH_OFFSET, HIP_PROPERTIES_BYTES, path_of

HERE = Path(__file__).parent
MODEL = HERE.parent / "devices" / "fakegpu.c"
# By source file: the library it becomes and the CUDA header it needs.
LIBRARIES = {
    "hip": ("libamdhip64.so.7", "cuda.h"),
    "hiprtc": ("libhiprtc.so.7", "nvrtc.h"),
    "hipblaslt": ("libhipblaslt.so.1", "cublasLt.h"),
    "rocblas": ("librocblas.so.5", "cublasLt.h"),
}
CUDA_MACHINE = 190  # EM_CUDA of an ELF header
CAPTURE_UNSUPPORTED = 900  # hipErrorStreamCaptureUnsupported


def folders() -> list[Path]:
    spec = importlib.util.spec_from_file_location("includes", HERE / "includes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = os.environ.get("CPATH", "").split(os.pathsep)
    return [*map(Path, filter(None, given)), *module.folders()]


def need(source: str) -> None:
    """Skip where the library of `source` cannot be built."""
    missing = [tool for tool in ("make", "g++") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {missing[0]} on PATH")
    header = LIBRARIES[source][1]
    if not any((folder / header).exists() for folder in folders()):
        pytest.skip(f"needs {header}: install the CUDA toolkit, or set CPATH to its folder")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hipshim")


def built(build: Path, source: str) -> Path:
    need(source)
    options = [f"BUILD={build}", f"PYTHON={sys.executable}", f"ONLY={source}"]
    made = subprocess.run(["make", "-C", HERE, *options], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert "warning" not in made.stderr
    return build / "lib" / LIBRARIES[source][0]


def exported(path: Path, symbol: str) -> bool:
    try:
        ctypes.CDLL(str(path))[symbol]
    except AttributeError:
        return False
    return True


def test_the_runtime_exports_the_symbols_of_the_table(build: Path) -> None:
    path = built(build, "hip")
    missing = [name for name, symbol in HIP.symbols.items() if not exported(path, symbol)]
    assert missing == ["reset_persisting"]  # HIP has no such function either


COMPILE = """
from kernelmark.backends import hipblaslt
from kernelmark.gpu import rtc
from kernelmark.kernels.rtc import source
print(rtc.compile_source(source("device.cu"), arch="gfx942").code[:20].hex())
"""


def test_hip_sources_are_compiled_for_the_nvidia_gpu(build: Path, tmp_path: Path) -> None:
    nvrtc = rtc._library("cuda")
    if nvrtc is None:
        pytest.skip(str(rtc.unavailable("cuda")))
    path = built(build, "hiprtc")
    place = path_of(nvrtc, "nvrtcVersion")
    assert place is not None
    cache = {"KERNELMARK_CACHE": str(tmp_path / "cache"), "LD_LIBRARY_PATH": str(place.parent)}
    header = bytes.fromhex(run(COMPILE, path, **cache))
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == CUDA_MACHINE


@pytest.mark.parametrize(
    ("source", "symbols"),
    [
        ("hipblaslt", ("hipblasLtCreate", "hipblasLtMatmul", hipblaslt.SOLUTION_NAME)),
        (
            "rocblas",
            (
                *("rocblas_create_handle", "rocblas_get_device_memory_size"),
                *("rocblas_gemm_ex", "rocblas_gemm_ex_get_solutions"),
            ),
        ),
    ],
)
def test_the_blas_libraries_export_their_calls(
    build: Path, source: str, symbols: tuple[str, ...]
) -> None:
    path = built(build, source)
    assert [name for name in symbols if not exported(path, name)] == []


@pytest.mark.parametrize(
    ("source", "facts"),
    [
        (
            "hip",
            {
                "sizeof(Properties)": HIP_PROPERTIES_BYTES,
                "offsetof(Properties, arch)": HIP_ARCH_OFFSET,
            },
        ),
        (
            "hipblaslt",
            {
                "sizeof(_hipblasLtMatmulAlgo_t)": hipblaslt.TABLE.algo_bytes,
                "sizeof(Result)": hipblaslt.TABLE.heuristic_bytes,
                "offsetof(Result, state)": hipblaslt.TABLE.state_offset,
            },
        ),
    ],
)
def test_the_structures_have_the_sizes_of_rocm(source: str, facts: Mapping[str, int]) -> None:
    need(source)
    checks = "".join(f'static_assert({what} == {value}, "");\n' for what, value in facts.items())
    text = f'#include "{HERE / source}.cpp"\n#include <cstddef>\n{checks}'
    include = [word for folder in folders() for word in ("-isystem", str(folder))]
    command = ["g++", "-std=c++17", "-fsyntax-only", *include, "-x", "c++", "-"]
    checked = subprocess.run(command, input=text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


NUMBERS = """
int main() {
  for (const int number : {7, 8, -17}) printf("%d ", index_of(number));
  printf("%d\\n", number_of(7));
}
"""


@pytest.fixture(scope="module")
def numbers(build: Path) -> Path:
    """A program that prints the index of three solutions and the number of one."""
    need("rocblas")
    program = build / "numbers"
    text = f'#include "{HERE / "rocblas"}.cpp"\n{NUMBERS}'
    include = [word for folder in folders() for word in ("-isystem", str(folder))]
    command = ["g++", "-std=c++17", *include, "-x", "c++", "-", "-o", str(program), "-ldl"]
    subprocess.run(command, input=text, check=True, text=True)
    return program


@pytest.mark.parametrize(
    ("variables", "printed"),
    [
        ({}, "0 0 7 -17"),
        ({"SHIM_ROCBLAS": "4.3"}, "7 8 0 7"),
        ({"ROCBLAS_USE_HIPBLASLT": "1"}, "6 7 0 8"),
        ({"ROCBLAS_USE_HIPBLASLT": "1", "SHIM_ROCBLAS": "4.3"}, "6 7 0 8"),
    ],
)
def test_rocblas_numbers_solutions_of_one_library(
    numbers: Path, variables: dict[str, str], printed: str
) -> None:
    ran = subprocess.run([numbers], env=variables, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == printed.split()


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of two CUDA GPUs, under the name that the shim loads."""
    need("hip")
    folder = tmp_path_factory.mktemp("cuda")
    command = ["g++", "-x", "c", "-O1", "-shared", "-fPIC", MODEL, "-o", folder / "libcuda.so.1"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


# A process of its own: a library that a test has loaded would be taken for the vendor's.
PROBE = """
import ctypes, json
from kernelmark.gpu.driver import GpuError, driver
found = {}
try:
    hip = driver("hip")
    found["where"] = hip.where
    found["count"] = hip.count()
    found["arch"], found["full"] = hip.arch(0), hip.full_arch(0)
    hip.use(0)
    sent = ctypes.create_string_buffer(bytes(range(256)), 256)
    back = ctypes.create_string_buffer(256)
    address = hip.allocate(256)
    hip.copy_to_device(address, ctypes.addressof(sent), 256)
    stream = hip.stream()
    hip.call("synchronize")
    hip.copy_to_host(ctypes.addressof(back), address, 256)
    found["copied"] = back.raw == sent.raw
    hip.begin_capture(stream)
    hip.fill(address, 7, 256, stream)
    graph = hip.instantiate(hip.end_capture(stream))
    hip.launch_graph(graph, stream)
    hip.call("stream_synchronize", ctypes.c_void_p(stream))
    hip.copy_to_host(ctypes.addressof(back), address, 256)
    found["replayed"] = back.raw == bytes([7]) * 256
    found["refused"] = hip.code("module_unload", None) != 0 and not hip.code("last_error")
except GpuError as error:
    found["code"] = error.code
print(json.dumps(found))
"""


def run(code: str, library: Path, **variables: str) -> str:
    """Return what a Python process prints that looks for ROCm where `library` is."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    surroundings = {**kept, "ROCM_PATH": str(library.parent.parent), **variables}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=surroundings, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def probe(library: Path, cuda: Path, **variables: str) -> dict[str, Any]:
    return dict(json.loads(run(PROBE, library, LD_LIBRARY_PATH=str(cuda), **variables)))


def test_the_hip_binding_runs_through_the_shim(build: Path, cuda: Path) -> None:
    path = built(build, "hip")
    found = probe(path, cuda)
    assert Path(found.pop("where")).resolve() == path.resolve()
    assert found == {
        "count": 2,
        "arch": "gfx942",
        "full": "gfx942:sramecc+:xnack-",
        "copied": True,
        "replayed": True,
        "refused": True,
    }


def test_one_visible_device_is_the_only_one(build: Path, cuda: Path) -> None:
    path = built(build, "hip")
    assert probe(path, cuda, HIP_VISIBLE_DEVICES="1")["count"] == 1


def test_no_visible_device_is_none(build: Path, cuda: Path) -> None:
    path = built(build, "hip")
    assert probe(path, cuda, HIP_VISIBLE_DEVICES="").get("count", 0) == 0


def test_capture_can_be_refused(build: Path, cuda: Path) -> None:
    path = built(build, "hip")
    found = probe(path, cuda, SHIM_NO_CAPTURE="1")
    assert found["code"] == CAPTURE_UNSUPPORTED
    assert found["copied"]
