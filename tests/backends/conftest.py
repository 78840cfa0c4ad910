"""The model of ROCm's libraries that backends and tuning are tested with."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmark import devices
from kernelmark.backends import hipblaslt, rocblas
from kernelmark.devices._gpu import GpuDevice
from kernelmark.gpu import driver as drivers
from kernelmark.gpu import pack, rtc
from kernelmark.kernels import rtc as kernels

ARCH = "gfx90a"
NAMES = ("libamdhip64.so.7", "libhipblaslt.so.1", "librocblas.so.5")


@pytest.fixture(scope="session")
def rocm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ROCM_PATH with libraries built from fakerocm.c, and a bundle of the device's kernels."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler to build the model of ROCm with")
    folder = tmp_path_factory.mktemp("rocm")
    (folder / "lib").mkdir()
    source = str(Path(__file__).parent / "fakerocm.c")
    # Without a vendor's name: a process takes what it has loaded under that for the vendor's own.
    built = str(folder / "model.so")
    flags = ["-O1", "-shared", "-fPIC", source, "-o", built, "-lm"]
    subprocess.run([compiler, *flags], check=True, capture_output=True)
    shutil.copy(built, folder / "lib" / NAMES[0])
    for name in NAMES[1:]:  # one library, so that they share memory and streams
        (folder / "lib" / name).symlink_to(NAMES[0])
    header = b"\x7fELF\2\1\1" + bytes(11) + (224).to_bytes(2, "little") + bytes(44)
    for name in ("device.cu", "project.cu"):
        pack.add(folder / "pack", rtc.cache_key(kernels.source(name), ARCH, ()), ARCH, header)
    return folder


@pytest.fixture
def rocm(rocm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """The libraries in this process, found by the driver and by the backends."""
    library = ctypes.CDLL(str(rocm_folder / "model.so"))
    caches = (
        *(drivers.driver, hipblaslt._shared_object, hipblaslt.library, hipblaslt.solutions),
        *(rocblas._shared_object, rocblas.solutions),
    )
    for one in caches:
        one.cache_clear()
    monkeypatch.setattr(drivers, "find_library", lambda table: library)
    for backend in (hipblaslt, rocblas):
        monkeypatch.setattr(backend, "first_of", lambda places: library)
    monkeypatch.setenv("ROCM_PATH", str(rocm_folder))  # where child processes find them
    monkeypatch.setenv("KERNELMARK_PACK", str(rocm_folder / "pack"))
    yield library
    library.fake_reset()
    for one in caches:
        one.cache_clear()


@pytest.fixture
def gpu(rocm: ctypes.CDLL) -> Iterator[GpuDevice]:
    """The first GPU of the model."""
    opened = devices.registry.get("hip").open(0)
    assert isinstance(opened, GpuDevice)
    yield opened
    opened.close()
