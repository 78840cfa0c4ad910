"""Which HIP runtime is taken, in processes of their own: a library that was loaded stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Enough of a runtime to be asked how many devices it has.
RUNTIME = """
int hipInit(unsigned flags) { (void)flags; return 0; }
int hipGetDeviceCount(int *n) { *n = 1; return 0; }
#ifndef OLD
int hipGetDevicePropertiesR0600(void *p, int d) { (void)p, (void)d; return 1; }
#endif
"""
FIND = (
    "import sys\n"
    "from kernelmark.gpu.driver import find_library\n"
    "from kernelmark.gpu.library import HIP\n"
    "print(find_library(HIP)._name)\n"
    "assert 'torch' not in sys.modules\n"
)


def built(place: Path, *flags: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("the stand-in library needs a C compiler: cc, gcc or clang")
    place.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-x", "c", *flags, "-", "-o", str(place)]
    subprocess.run(command, input=RUNTIME.encode(), check=True, capture_output=True)
    return place


def said(script: str, *modules: Path, **variables: str) -> str:
    path = os.pathsep.join(map(str, [*modules, *filter(None, [os.environ.get("PYTHONPATH")])]))
    done = subprocess.run(
        [sys.executable, *(script.split() if script.startswith("-m") else ("-c", script))],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def system(tmp_path: Path) -> Path:
    return built(tmp_path / "rocm" / "lib" / "libamdhip64.so.7")


def wheel(folder: Path, name: str) -> Path:
    """An installed package that must not be imported; where its libraries are."""
    (folder / name / "lib").mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise ImportError('it was imported')\n")
    return folder / name / "lib"


def test_the_runtime_that_is_loaded_comes_first(system: Path, tmp_path: Path) -> None:
    lib = wheel(tmp_path / "site", "torch")
    built(lib / "libamdhip64.so")
    other = built(tmp_path / "elsewhere" / "libamdhip64.so.7.1.2")
    script = f"import ctypes\nkept = ctypes.CDLL({str(other)!r})\n{FIND}"
    found = said(script, tmp_path / "site", ROCM_PATH=str(tmp_path / "rocm"))
    assert found.strip() == str(other)


def test_torchs_own_runtime_comes_before_the_systems(system: Path, tmp_path: Path) -> None:
    lib = wheel(tmp_path / "site", "torch")
    # A torch without one leaves the choice as it was.
    found = said(FIND, tmp_path / "site", ROCM_PATH=str(tmp_path / "rocm"))
    assert found.strip() == str(system)
    own = built(lib / "libamdhip64.so")
    found = said(FIND, tmp_path / "site", ROCM_PATH=str(tmp_path / "rocm"))
    assert found.strip() == str(own)


def test_a_torch_that_takes_rocm_from_another_wheel(system: Path, tmp_path: Path) -> None:
    sdk = wheel(tmp_path / "sdk", "_rocm_sdk_core")
    own = built(sdk / "libamdhip64.so.7")
    wheel(tmp_path / "site", "torch")
    rocm = {"ROCM_PATH": str(tmp_path / "rocm")}
    assert said(FIND, tmp_path / "sdk", tmp_path / "site", **rocm).strip() == str(own)


def test_a_damaged_runtime_of_torch_is_passed_over(system: Path, tmp_path: Path) -> None:
    lib = wheel(tmp_path / "site", "torch")
    (lib / "libamdhip64.so").write_text("not a library")
    found = said(FIND, tmp_path / "site", ROCM_PATH=str(tmp_path / "rocm"))
    assert found.strip() == str(system)


def test_an_old_rocm_is_a_sentence_and_the_rest_is_listed(tmp_path: Path) -> None:
    built(tmp_path / "rocm" / "lib" / "libamdhip64.so.5", "-DOLD")
    rocm = {"ROCM_PATH": str(tmp_path / "rocm"), "COLUMNS": "250"}
    rocm |= {f"KERNELMARK_{word}": str(tmp_path / word) for word in ("STORE", "CACHE")}
    listed = said("-m kernelmark list devices", **rocm)
    place = tmp_path / "rocm" / "lib" / "libamdhip64.so.5"
    assert str(place) in listed
    assert "cpu" in listed
    assert "too old" in said("-m kernelmark doctor", **rocm)
