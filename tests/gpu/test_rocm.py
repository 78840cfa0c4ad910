"""Which ROCm is used, in processes of their own: a library that was loaded stays."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Enough of a runtime to be asked how many devices it has.
RUNTIME = """
const char *hipGetErrorName(int e) { (void)e; return "error"; }
const char *hipGetErrorString(int e) { (void)e; return "error"; }
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


def built(place, *flags):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("the stand-in library needs a C compiler: cc, gcc or clang")
    place.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-x", "c", *flags, "-", "-o", str(place)]
    subprocess.run(command, input=RUNTIME.encode(), check=True, capture_output=True)
    return place


def said(script, *modules, **variables):
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
def system(tmp_path):
    return built(tmp_path / "rocm" / "lib" / "libamdhip64.so.7")


def wheel(folder, name):
    """An installed package that must not be imported; where its libraries are."""
    (folder / name / "lib").mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text("raise ImportError('it was imported')\n")
    return folder / name / "lib"


def test_the_runtime_that_is_loaded_comes_first(system, tmp_path):
    lib = wheel(tmp_path / "site", "torch")
    built(lib / "libamdhip64.so")
    other = built(tmp_path / "elsewhere" / "libamdhip64.so.7.1.2")
    script = f"import ctypes\nkept = ctypes.CDLL({str(other)!r})\n{FIND}"
    found = said(script, tmp_path / "site", ROCM_PATH=str(tmp_path / "rocm"))
    assert found.strip() == str(other)


def test_torchs_own_runtime_comes_before_the_systems(system, tmp_path):
    lib = wheel(tmp_path / "site", "torch")
    # A torch without one leaves the choice as it was.
    found = said(FIND, tmp_path / "site", ROCM_PATH=str(tmp_path / "rocm"))
    assert found.strip() == str(system)
    own = built(lib / "libamdhip64.so")
    found = said(FIND, tmp_path / "site", ROCM_PATH=str(tmp_path / "rocm"))
    assert found.strip() == str(own)


def test_a_torch_that_takes_rocm_from_another_wheel(system, tmp_path):
    sdk = wheel(tmp_path / "sdk", "_rocm_sdk_core")
    own = built(sdk / "libamdhip64.so.7")
    wheel(tmp_path / "site", "torch")
    rocm = {"ROCM_PATH": str(tmp_path / "rocm")}
    assert said(FIND, tmp_path / "sdk", tmp_path / "site", **rocm).strip() == str(own)


def test_a_damaged_runtime_of_torch_is_passed_over(system, tmp_path):
    lib = wheel(tmp_path / "site", "torch")
    (lib / "libamdhip64.so").write_text("not a library")
    found = said(FIND, tmp_path / "site", ROCM_PATH=str(tmp_path / "rocm"))
    assert found.strip() == str(system)


# The parts of an installation that are used, and what a test shows of each.
SHOW = """
import json
from kernelmark.backends import hipblaslt, rocblas
from kernelmark.gpu import rocm, rtc
from kernelmark.gpu.driver import find_library
from kernelmark.gpu.library import HIP
# The libraries come first: the runtime must be chosen all the same.
parts = [hipblaslt._shared_object(), rocblas._shared_object(), rtc._library("hip")]
parts.append(find_library(HIP))
print(json.dumps({
    "paths": [part and part._name for part in parts],
    "rocprofv3": rocm.program("rocprofv3"),
    "why": rocm.chosen() and rocm.chosen().why,
    "missing": str(rocm.missing("libhipblaslt.so")),
}))
"""
HIP, RTC, LT, BLAS = "libamdhip64.so.7", "libhiprtc.so.7", "libhipblaslt.so.1", "librocblas.so.5"


def install(root, names=(LT, BLAS, RTC, HIP), tool=True):
    """An installation in one folder."""
    for name in names:
        built(root / "lib" / name)
    if tool:
        (root / "bin").mkdir(exist_ok=True)
        (root / "bin" / "rocprofv3").write_text("#!/bin/sh\n")
        (root / "bin" / "rocprofv3").chmod(0o755)
    return root


def therock(site, libraries="_rocm_sdk_libraries", nonce=""):
    """ROCm's wheels: runtime, compiler and tools in one, libraries in another."""
    for name in (f"_rocm_sdk_core{nonce}", f"{libraries}{nonce}"):
        wheel(site, name)
    core = install(site / f"_rocm_sdk_core{nonce}", (RTC, HIP))
    return core, install(site / f"{libraries}{nonce}", (LT, BLAS), tool=False)


def shown(*modules, **variables):
    return json.loads(said(SHOW, *modules, PATH="/usr/bin:/bin", **variables))


def assert_all_in(found, core, libraries):
    assert found["paths"] == [
        *(str(libraries / "lib" / name) for name in (LT, BLAS)),
        *(str(core / "lib" / name) for name in (RTC, HIP)),
    ]
    assert found["rocprofv3"] == str(core / "bin" / "rocprofv3")


def test_rocm_path_is_one_installation(tmp_path):
    root = install(tmp_path / "rocm")
    found = shown(ROCM_PATH=str(root))
    assert_all_in(found, root, root)
    assert "ROCM_PATH" in found["why"]


@pytest.mark.parametrize(
    ("libraries", "nonce"),
    [
        ("_rocm_sdk_libraries", ""),
        ("_rocm_sdk_libraries_gfx94X_dcgpu", ""),
        ("_rocm_sdk_libraries_gfx950", "_7_1_0"),
    ],
)
@pytest.mark.parametrize("torch", [False, True])
def test_rocms_wheels_are_one_installation(tmp_path, libraries, nonce, torch):
    core, other = therock(tmp_path / "site", libraries, nonce)
    if torch:
        wheel(tmp_path / "site", "torch")
    hidden = {} if torch else {"ROCM_PATH": ""}
    assert_all_in(shown(tmp_path / "site", **hidden), core, other)


def test_the_wheel_of_the_chosen_gpu_family_comes_first(tmp_path):
    core, _ = therock(tmp_path / "site", "_rocm_sdk_libraries_gfx110X_all")
    _, chosen = therock(tmp_path / "site", "_rocm_sdk_libraries_gfx94X_dcgpu")
    family = {"ROCM_SDK_TARGET_FAMILY": "gfx94X-dcgpu"}
    assert_all_in(shown(tmp_path / "site", ROCM_PATH="", **family), core, chosen)


def test_torchs_wheel_is_one_installation(tmp_path):
    lib = wheel(tmp_path / "site", "torch")
    for name in (LT, BLAS, RTC, HIP):  # torch's wheel has them without versions
        built(lib / f"{name.partition('.so')[0]}.so")
    system = install(tmp_path / "rocm")
    therock(tmp_path / "site")
    found = shown(tmp_path / "site", ROCM_PATH=str(system))
    assert {Path(path).parent for path in found["paths"]} == {lib}
    # Torch has no profiler, which runs in a process of its own.
    assert found["rocprofv3"] in (
        str(system / "bin" / "rocprofv3"),
        str(tmp_path / "site" / "_rocm_sdk_core" / "bin" / "rocprofv3"),
    )


def test_two_installations_are_never_mixed(tmp_path):
    """The wheels without their libraries, and a ROCm that has them."""
    core = install(tmp_path / "site" / "_rocm_sdk_core", (RTC, HIP))
    wheel(tmp_path / "site", "torch")
    system = install(tmp_path / "rocm")
    found = shown(tmp_path / "site", ROCM_PATH=str(system))
    assert found["paths"] == [None, None, *(str(core / "lib" / name) for name in (RTC, HIP))]
    assert str(core) in found["missing"]


def test_the_installation_of_a_runtime_that_is_loaded(tmp_path):
    core, libraries = therock(tmp_path / "site")
    system = install(tmp_path / "rocm")
    load = f"import ctypes\nkept = ctypes.CDLL({str(core / 'lib' / HIP)!r})\n"
    found = json.loads(said(load + SHOW, ROCM_PATH=str(system), PATH="/usr/bin:/bin"))
    assert_all_in(found, core, libraries)


def test_the_loaders_installation(tmp_path):
    root = install(tmp_path / "rocm")
    found = shown(ROCM_PATH="", LD_LIBRARY_PATH=str(root / "lib"))
    # The runtime was loaded by its name.
    assert found["paths"].pop() == HIP
    assert found["paths"] == [str(root / "lib" / name) for name in (LT, BLAS, RTC)]
    assert found["rocprofv3"] == str(root / "bin" / "rocprofv3")


def test_a_compiler_is_found_without_a_runtime(tmp_path):
    root = install(tmp_path / "rocm", (RTC,))
    found = shown(ROCM_PATH=str(root))
    assert found["paths"] == [None, None, str(root / "lib" / RTC), None]
    assert found["why"] is None


def test_doctor_shows_the_installation(tmp_path):
    core, libraries = therock(tmp_path / "site")
    places = {f"KERNELMARK_{word}": str(tmp_path / word) for word in ("STORE", "CACHE")}
    places |= {"ROCM_PATH": "", "PATH": "/usr/bin:/bin", "COLUMNS": "250"}
    document = tmp_path / "doctor.json"
    said(f"-m kernelmark doctor --json {document}", tmp_path / "site", **places)
    rocm = json.loads(document.read_text())["rocm"]
    assert str(core) in rocm.pop("ROCm")
    assert rocm == {
        "HIP": str(core / "lib" / HIP),
        "hipRTC": str(core / "lib" / RTC),
        "hipBLASLt": str(libraries / "lib" / LT),
        "rocBLAS": str(libraries / "lib" / BLAS),
        "rocprofv3": str(core / "bin" / "rocprofv3"),
        "amd-smi": None,
    }
    assert str(libraries / "lib" / LT) in said("-m kernelmark doctor", tmp_path / "site", **places)


def test_a_library_of_ones_own_uses_the_installations_runtime(tmp_path):
    """LD_LIBRARY_PATH names one build; a folder with a runtime is another installation."""
    root, other = install(tmp_path / "rocm"), install(tmp_path / "other")
    mine = built(tmp_path / "mine" / LT)
    path = os.pathsep.join(map(str, (other / "lib", mine.parent)))
    found = shown(ROCM_PATH=str(root), LD_LIBRARY_PATH=path)
    expected = [root / "lib" / name for name in (BLAS, RTC, HIP)]
    assert found["paths"] == [str(mine), *map(str, expected)]


def test_an_old_rocm_is_a_sentence_and_the_rest_is_listed(tmp_path):
    built(tmp_path / "rocm" / "lib" / "libamdhip64.so.5", "-DOLD")
    rocm = {"ROCM_PATH": str(tmp_path / "rocm"), "COLUMNS": "250"}
    rocm |= {f"KERNELMARK_{word}": str(tmp_path / word) for word in ("STORE", "CACHE")}
    listed = said("-m kernelmark list devices", **rocm)
    place = tmp_path / "rocm" / "lib" / "libamdhip64.so.5"
    assert str(place) in listed
    assert "cpu" in listed
    assert "too old" in said("-m kernelmark doctor", **rocm)
