"""Our numbers and calls against ROCm's real headers, where they are.

Headers come from an installed ROCm or from $ROCM_HEADERS, a folder with hip/, hipblaslt/ and
rocblas/: `scripts/rocm-headers DIR` unpacks Debian's packages into one. They are compiled, not
linked. The sizes of the arguments that we pass are recorded from real calls into the model.
"""

import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelmark import devices, ops
from kernelmark.backends import _hipblaslt_ext, _lt, hipblaslt, rocblas
from kernelmark.core.errors import CaseError, UsageError
from kernelmark.gpu import driver as drivers
from kernelmark.gpu import library as hip_table
from kernelmark.gpu import rocm as rocm_install
from kernelmark.gpu.architectures import absent
from kernelmark.testing.backends import bench

from .header_names import DESC, TYPES

FOLDERS = ("/opt/rocm/include", "/usr/include")
PREFIX = """
#define __HIP_PLATFORM_AMD__ 1
#define __HIP_DISABLE_CPP_FUNCTIONS__ 1
#define ROCBLAS_BETA_FEATURES_API 1
#define ROCBLAS_NO_DEPRECATED_WARNINGS 1
#include <cstddef>
#include <initializer_list>
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>
#include <hipblaslt/hipblaslt.h>
#include <rocblas/rocblas.h>
#undef rocblas_gemm_ex
#undef rocblas_gemm_strided_batched_ex
template <class R, class... A>
constexpr bool takes(R (*)(A...), std::initializer_list<unsigned> sizes) {
  const unsigned own[] = {sizeof(A)..., 0};
  if (sizes.size() != sizeof...(A)) return false;
  unsigned i = 0;
  for (unsigned one : sizes)
    if (one != own[i++]) return false;
  return true;
}
"""
EPILOGUES = {
    ("none", True): "HIPBLASLT_EPILOGUE_BIAS",
    ("relu", False): "HIPBLASLT_EPILOGUE_RELU",
    ("relu", True): "HIPBLASLT_EPILOGUE_RELU_BIAS",
    ("gelu", False): "HIPBLASLT_EPILOGUE_GELU",
    ("gelu", True): "HIPBLASLT_EPILOGUE_GELU_BIAS",
    ("silu", False): "HIPBLASLT_EPILOGUE_SWISH_EXT",
    ("silu", True): "HIPBLASLT_EPILOGUE_SWISH_BIAS_EXT",
}
COMPUTE = {"f32": "32F", "f64": "64F", "i32": "32I"}
ATTRIBUTES = {
    "ecc": "EccEnabled",
    "clock_khz": "ClockRate",
    "concurrent_managed": "ConcurrentManagedAccess",
    "l2_bytes": "L2CacheSize",
    "major": "ComputeCapabilityMajor",
    "managed": "ManagedMemory",
    "threads_per_unit": "MaxThreadsPerMultiProcessor",
    "bus_bits": "MemoryBusWidth",
    "memory_clock_khz": "MemoryClockRate",
    "minor": "ComputeCapabilityMinor",
    "units": "MultiprocessorCount",
    "pageable_access": "PageableMemoryAccess",
    "registers_per_unit": "MaxRegistersPerMultiprocessor",
    "shared_per_block": "MaxSharedMemoryPerBlock",
    "warp_size": "WarpSize",
    "shared_per_unit": "MaxSharedMemoryPerMultiprocessor",
    "wall_clock_khz": "WallClockRate",
    "chiplets": "NumberOfXccs",
}
# What a ROCm from before does not have: its name, and the header's oldest version.
NEWER = {"HIP_R_4F_E2M1": 70000000, "hipDeviceAttributeNumberOfXccs": 70000000}


def includes():
    given = [os.environ.get("ROCM_HEADERS", ""), f"{os.environ.get('ROCM_PATH', '')}/include"]
    for folder in (*given, *FOLDERS):
        if folder and (Path(folder) / "hipblaslt" / "hipblaslt.h").is_file():
            return Path(folder)
    pytest.skip("needs ROCm's headers: scripts/rocm-headers DIR, then ROCM_HEADERS=DIR/usr/include")


def compiled(lines):
    """The compiler's complaints about assertions on the headers."""
    folder, compiler = includes(), shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: c++ or g++")
    command = [compiler, "-std=c++17", "-fsyntax-only", "-w", f"-I{folder}", "-x", "c++", "-"]
    text = PREFIX + "\n".join(lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return "\n".join(line for line in done.stderr.splitlines() if "error" in line)


def equal(pairs):
    lines = []
    for name, number in pairs.items():
        line = f'static_assert(({name}) == {number}, "{name} is not {number}");'
        if name in NEWER:
            line = f"#if HIP_VERSION >= {NEWER[name]}\n{line}\n#endif"
        lines.append(line)
    return lines


def test_hipblaslt_s_numbers():
    table = hipblaslt.TABLE
    pairs = {f"HIP_{TYPES[name]}": number for name, number in table.types.items()}
    pairs |= {f"HIPBLAS_COMPUTE_{COMPUTE[name]}": n for name, n in table.compute.items()}
    pairs |= dict(zip(("HIPBLAS_OP_N", "HIPBLAS_OP_T"), table.transpose, strict=True))
    pairs |= {f"HIPBLASLT_MATMUL_DESC_{DESC[name]}": n for name, n in table.desc.items()}
    pairs |= {EPILOGUES[which]: number for which, number in table.epilogues.items()}
    pairs |= {
        "HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT": table.layout["batch_count"],
        "HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": table.layout["batch_stride"],
        "HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": table.workspace_attribute,
        "HIPBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0": table.scale_e8m0,
        "HIPBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F": table.scale_rows,
        "HIPBLAS_STATUS_NOT_SUPPORTED": table.not_supported,
        "HIPBLAS_STATUS_ALLOC_FAILED": table.alloc_failed,
        "HIPBLAS_STATUS_SUCCESS": 0,
        "sizeof(hipblasLtMatmulAlgo_t)": table.algo_bytes,
        "sizeof(hipblasLtMatmulHeuristicResult_t)": table.heuristic_bytes,
        "offsetof(hipblasLtMatmulHeuristicResult_t, algo)": 0,
        "offsetof(hipblasLtMatmulHeuristicResult_t, state)": table.state_offset,
        "offsetof(hipblasLtMatmulAlgo_t, data)": 0,
    }
    assert compiled(equal(pairs)) == ""


def test_hipblaslt_s_methods(tmp_path):
    """The compiler's own mangled symbols, and sizes, of the C++ methods that are called."""
    folder, compiler = includes(), shutil.which("c++") or shutil.which("g++")
    if compiler is None or shutil.which("nm") is None:
        pytest.skip("needs a C++ compiler and nm")
    code = """#define __HIP_PLATFORM_AMD__ 1
#include <hipblaslt/hipblaslt-ext.hpp>
using namespace hipblaslt_ext;
template <class T> constexpr bool fits = sizeof(T) <= ROOM && alignof(T) <= alignof(void *);
static_assert(fits<Gemm> && fits<GroupedGemm> && fits<GemmTuning> && fits<GemmPreference>);
int calls(hipblasLtMatmulAlgo_t algo, size_t bytes, void *p, hipblasLtMatmulDesc_t desc,
          hipblasLtMatrixLayout_t layout, hipStream_t stream) {
  Gemm gemm(p, HIPBLAS_OP_N, HIPBLAS_OP_N, HIP_R_32F, HIP_R_32F, HIP_R_32F, HIP_R_32F,
            HIPBLAS_COMPUTE_32F);
  GemmTuning tuning;
  tuning.setSplitK(2), tuning.setWgm(8);
  hipblasStatus_t status = gemm.setProblem(desc, p, p, layout, p, layout, p, p, layout, p, layout);
  status = gemm.isAlgoSupported(algo, tuning, bytes);
  gemm.setMaxWorkspaceBytes(bytes);
  status = gemm.initialize(algo, tuning, p, true, nullptr);
  GemmPreference preference;
  preference.setMaxWorkspaceBytes(bytes);
  std::vector<hipblasLtMatmulHeuristicResult_t> results;
  std::vector<hipblasLtMatmulDesc_t> descs;
  std::vector<hipblasLtMatrixLayout_t> layouts;
  std::vector<void *> data;
  static_assert(sizeof data == 3 * sizeof(void *));
  GroupedGemm grouped(p, HIPBLAS_OP_N, HIPBLAS_OP_N, HIP_R_32F, HIP_R_32F, HIP_R_32F, HIP_R_32F,
                      HIPBLAS_COMPUTE_32F);
  status = grouped.setProblem(descs, data, data, layouts, data, layouts, data, data, layouts, data,
                              layouts);
  status = grouped.algoGetHeuristic(1, preference, results);
  return gemm.run(stream, nullptr, nullptr) + status;
}"""
    room = ctypes.sizeof(_hipblaslt_ext._buffer())
    source, built = tmp_path / "ext.cpp", tmp_path / "ext.o"
    source.write_text(code)
    command = [compiler, "-std=c++17", "-w", f"-DROOM={room}", f"-I{folder}", "-c", source]
    subprocess.run([*command, "-o", built], check=True)
    listed = subprocess.run(["nm", "-u", built], check=True, capture_output=True, text=True)
    undefined = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert set(_hipblaslt_ext.symbols("").values()) <= undefined


def test_rocblas_s_numbers():
    pairs = {f"rocblas_datatype_{name}_r": number for name, number in rocblas.TYPES.items()}
    names = ("rocblas_operation_none", "rocblas_operation_transpose")
    pairs |= dict(zip(names, rocblas.TRANSPOSE, strict=True))
    names = (
        "rocblas_status_not_implemented",
        "rocblas_status_excluded_from_build",
        "rocblas_status_arch_mismatch",
    )
    pairs |= dict(zip(names, rocblas.NOT_SUPPORTED, strict=True))
    pairs |= {
        "rocblas_gemm_algo_standard": rocblas.STANDARD,
        "rocblas_gemm_algo_solution_index": rocblas.BY_INDEX,
        "rocblas_gemm_flags_check_solution_index": rocblas.CHECK_ONLY,
        "rocblas_gemm_flags_none": 0,
        "rocblas_status_memory_error": rocblas.MEMORY_ERROR,
        "rocblas_pointer_mode_host": 0,
    }
    assert compiled(equal(pairs)) == ""


def test_hip_s_numbers():
    hip = hip_table.HIP
    pairs = {f"hipDeviceAttribute{ATTRIBUTES[name]}": n for name, n in hip.attributes.items()}
    pairs |= {
        "hipErrorOutOfMemory": hip.out_of_memory,
        "hipErrorNoDevice": hip.no_device,
        "hipErrorPeerAccessAlreadyEnabled": hip.peer_already_enabled,
        "hipStreamNonBlocking": drivers._NON_BLOCKING,
        "hipStreamCaptureModeRelaxed": drivers._CAPTURE_RELAXED,
        "hipHostMallocMapped": drivers._HOST_MAPPED,
        "sizeof(hipDeviceProp_tR0600)": hip_table.HIP_PROPERTIES_BYTES,
        "offsetof(hipDeviceProp_tR0600, gcnArchName)": hip_table.HIP_ARCH_OFFSET,
        "sizeof(hipDeviceProp_tR0600::gcnArchName)": hip_table.HIP_ARCH_BYTES,
    }
    assert compiled(equal(pairs)) == ""


class Recorder:
    """A library whose calls leave the sizes of their arguments behind."""

    def __init__(self, library):
        self.library = library
        self.seen = {}

    def __getitem__(self, name):
        return _Recorded(name, self.library[name], self.seen)

    def __getattr__(self, name):
        return getattr(self.library, name)


class _Recorded:
    def __init__(self, name, function, seen):
        object.__setattr__(self, "call", (name, function, seen))

    def __setattr__(self, name, value):
        setattr(self.call[1], name, value)

    def __call__(self, *arguments):
        name, function, seen = self.call
        seen.setdefault(name, set()).add(tuple(map(_size, arguments)))
        return function(*arguments)


def _size(argument):
    """Bytes of an argument as ctypes passes it."""
    simple = isinstance(argument, ctypes._SimpleCData)
    return ctypes.sizeof(argument) if simple else 4 if isinstance(argument, int) else 8


@pytest.mark.slow
def test_calls_have_the_declared_arguments(rocm, monkeypatch):
    recorder = Recorder(rocm)
    monkeypatch.setattr(drivers, "find_library", lambda table: recorder)
    monkeypatch.setattr(rocm_install, "load", lambda names: recorder)
    device = devices.registry.get("hip").open(0)
    for key in (
        "gemm m=4 n=4 k=4 dtype=f32",
        "batched_gemm batch=2 m=4 n=4 k=4 dtype=f32 beta=1.0",
    ):
        problem = ops.parse(key)
        for backend in (hipblaslt.backend, rocblas.backend):
            assert backend.space(problem, device.info) is not None
            with bench(backend, problem, device) as made:
                made.kernel.launch(device.stream, 0)
            assert backend.version()
    rest = "m=4 n=4 k=4 dtype=f32 bias=yes"
    for key in (f"gemm {rest}", f"gemm_epilogue {rest} act=gelu"):
        with bench(hipblaslt.backend, ops.parse(key), device):
            pass
    device.close()
    called = {name: sizes for name, sizes in recorder.seen.items() if not name.startswith("_Z")}
    assert len([name for name in called if name.startswith("hipblasLt")]) >= 14
    assert len([name for name in called if name.startswith("rocblas_")]) >= 9
    assert len([name for name in called if not name.startswith(("hipblasLt", "rocblas"))]) >= 20
    lines = [
        f'static_assert(takes({name}, {{{", ".join(map(str, one))}}}), "{name}{one}");'
        for name, sizes in called.items()
        for one in sizes
    ]
    assert compiled(lines) == ""


@pytest.mark.slow
@pytest.mark.parametrize("module", [hipblaslt, rocblas], ids=["hipblaslt", "rocblas"])
def test_a_real_library_without_a_device_is_an_answer_in_our_words(module):
    """hipblasLtCreate of the real library would end this process."""
    reason = drivers.unavailable("hip")
    if module._shared_object() is None or rocm_install.runtime() is None:
        pytest.skip("needs ROCm's libraries: install ROCm, or set ROCM_PATH to where it is")
    if reason is None:
        pytest.skip("there is an AMD GPU: this tests what the library says without one")
    assert module.backend.available() == reason
    with pytest.raises((UsageError, CaseError)):
        module.backend.space(ops.parse("gemm m=4 n=4 k=4 dtype=f32"), absent("gfx942"))


@pytest.mark.slow
def test_the_real_library_s_objects_fit_and_hold_what_they_are_given():
    """No GPU: a description of a GEMM only keeps its numbers and addresses."""
    if (shared := hipblaslt._shared_object()) is None:
        pytest.skip("needs ROCm's libraries: install ROCm, or set ROCM_PATH to where it is")
    methods = _hipblaslt_ext._methods(shared)
    tuning = _hipblaslt_ext._buffer()
    methods["Tuning"](tuning)
    methods["setSplitK"](tuning, ctypes.c_uint16(12))
    own = next(
        x for x in _hipblaslt_ext.VERSIONS if hasattr(shared, _hipblaslt_ext.symbols(x)["Tuning"])
    )
    own = f"GemmTuning{own}"
    assert shared[f"_ZNK13hipblaslt_ext{len(own)}{own}9getSplitKEv"](tuning) == 12
    methods["~Tuning"](tuning)
    handle, desc, layout = (
        ctypes.create_string_buffer(1 << 16),
        ctypes.c_void_p(),
        ctypes.c_void_p(),
    )
    assert shared.hipblasLtMatmulDescCreate(ctypes.byref(desc), 2, 0) == 0
    sizes = ctypes.c_uint64(64), ctypes.c_uint64(64), ctypes.c_int64(64)
    assert shared.hipblasLtMatrixLayoutCreate(ctypes.byref(layout), 0, *sizes) == 0
    numbers = map(ctypes.c_int, (*hipblaslt.TABLE.transpose[:1] * 2, 0, 0, 0, 0, 2))
    gemm, one, data = _hipblaslt_ext._buffer(), ctypes.c_float(1), ctypes.c_void_p(1 << 20)
    methods["Gemm"](gemm, ctypes.c_void_p(ctypes.addressof(handle)), *numbers)
    matrix = data, layout
    described = desc, ctypes.byref(one), *matrix, *matrix, ctypes.byref(one), *matrix, *matrix
    assert methods["setProblem"](gemm, *described) == 0
    assert shared["_ZN13hipblaslt_ext12GemmInstance12getGemmCountEv"](gemm) == 1
    assert not any(gemm[len(gemm) // 2 :]), "the object is larger than its header says"
    _hipblaslt_ext.destroy(gemm)
    lt = object.__new__(_lt.LtLibrary)  # hipblasLtCreate would end this process
    lt.table, lt.shared, lt.handle = hipblaslt.TABLE, shared, ctypes.c_void_p()
    lt.handle.value = ctypes.addressof(handle)
    groups = _hipblaslt_ext.Groups(lt, ops.parse("grouped_gemm m=40 n=8 k=16 e=6 dtype=bf16"))
    gemm = groups.describe(1 << 20, 1 << 21, 1 << 22)
    assert shared["_ZN13hipblaslt_ext12GemmInstance12getGemmCountEv"](gemm) == 6
    assert not any(gemm[len(gemm) // 2 :])
    groups.close()


@pytest.mark.slow
def test_the_real_libraries_export_what_is_called_by_name():
    """The C++ function has a mangled name, which no header check can see."""
    has_runtime, has_lt = exports(hip_table.HIP.libraries), exports(hipblaslt.LIBRARIES)
    assert not [name for name in hip_table.HIP.symbols.values() if not has_runtime(name)]
    assert has_lt(hipblaslt.SOLUTION_NAME)
    known = map(_hipblaslt_ext.symbols, _hipblaslt_ext.VERSIONS)
    assert any(all(map(has_lt, methods.values())) for methods in known)


def exports(names):
    """Return whether the library of the first of these names that is there has a symbol. One in
    $ROCM_LIBRARIES is read, not loaded: it may be of another architecture than this machine."""
    folder = os.environ.get("ROCM_LIBRARIES", "")
    for name in names if folder and shutil.which("readelf") else ():
        if (file := Path(folder, name)).exists():
            command = ["readelf", "-W", "--dyn-syms", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows = [line.split() for line in done.stdout.splitlines()]
            found = {row[7].partition("@")[0] for row in rows if len(row) > 7 and row[6] != "UND"}
            return found.__contains__
    if (library := rocm_install.load(names)) is not None:
        return functools.partial(hasattr, library)
    pytest.skip("needs ROCm's libraries: install ROCm, or set ROCM_LIBRARIES to their folder")
