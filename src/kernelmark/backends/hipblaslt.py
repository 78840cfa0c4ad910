"""hipBLASLt through ctypes: the heuristic's choice, or any solution by its name, as a config.

A solution's index changes with every build of the library, so a config contains the name and the
index is looked up. The C interface lists every solution (a heuristic query for many appends all
supported ones to its ranking) but has no names. Two C++ functions return names, and are called by
their mangled symbols: they take C types only, and return a std::string, whose 32 bytes in
libstdc++'s C++11 ABI are returned like a C structure. A library without them runs only the
heuristic's choice.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.backends import _hipblaslt_ext, _lt, _rules
from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, KernelInfo, Space
from kernelmark.devices.base import ArgumentSet, Device
from kernelmark.gpu import driver as drivers
from kernelmark.gpu import rocm
from kernelmark.gpu.library import path_of

LIBRARIES = ("libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so")
# More than any build has for one type of GEMM; hipblaslt-bench requests as many.
EVERY_SOLUTION = 65536
SOLUTION_NAME = "_ZN13hipblaslt_ext23getSolutionNameFromAlgoB5cxx11EPvR22_hipblasLtMatmulAlgo_t"
FOLDER_VARIABLE = "HIPBLASLT_TENSILE_LIBPATH"
_REVISION_BYTES = 128

# From hipDataType, hipblasComputeType_t, hipblasOperation_t and hipblaslt.h;
# tests/backends/test_rocm_headers.py compares them with ROCm 6.4, 7.1 and 7.2.
TABLE = _lt.LtTable(
    prefix="hipblasLt",
    types={**_lt.TYPES, "f4e2m1": 33, "f8e4m3fnuz": 1000, "f8e5m2fnuz": 1001},
    compute={"f32": 2, "f64": 7, "i32": 9},
    transpose=(111, 112),
    desc={
        "transa": 0,
        "transb": 1,
        "epilogue": 2,
        "bias": 3,
        "bias_type": 4,
        "a_scale": 5,
        "b_scale": 6,
        "d_scale": 8,
        "a_scale_mode": 31,
        "b_scale_mode": 32,
    },
    layout={"batch_count": 0, "batch_stride": 1},
    workspace_attribute=1,
    workspace_kib={"": 76 * 1024},
    workspace_variables=("CUBLASLT_WORKSPACE_SIZE", "HIPBLASLT_WORKSPACE_SIZE"),
    epilogues={**_lt.EPILOGUES, ("silu", False): 65536, ("silu", True): 65540},
    scale_e8m0=2,
    scale_rows=3,
    algo_bytes=24,
    heuristic_bytes=56,
    state_offset=32,
    not_supported=7,
    alloc_failed=2,
)
_EXAMPLES = (
    "gemm *",
    "batched_gemm *",
    "gemm_epilogue *",
    "grouped_gemm *",
    "!*acc=f16*",
    "!*i8 *bias=yes*",
    "!*scale=block*",
)


class _String(ctypes.Structure):
    """libstdc++'s std::string; a short text is stored in `local`, and `data` points to it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("local", ctypes.c_ubyte * 16),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A solution of the loaded library."""

    name: str
    index: int
    algorithm: bytes
    tensile_index: int | None = None  # in rocBLAS's Tensile library, if Tensile printed the name


@functools.cache
def _shared_object() -> ctypes.CDLL | None:
    return rocm.load(LIBRARIES)


@functools.cache
def library(index: int) -> _lt.LtLibrary:
    """Return the library with a handle on the device `index`."""
    shared_object = _shared_object()
    if shared_object is None:
        raise UsageError(_not_found())
    # hipblasLtCreate ends the process if there is no device.
    if reason := drivers.unavailable("hip"):
        raise UsageError(
            Reason(
                f"backend hipblaslt is not available: {reason}",
                "backend-unavailable",
                backend="hipblaslt",
                cause=reason,
            )
        )
    drivers.driver("hip").use(index)
    return _lt.LtLibrary(TABLE, shared_object)


@functools.cache
def library_of(index: int, folder: str) -> _lt.LtLibrary:
    """Return the library with the kernels of a folder that TensileCreateLibrary made, and a handle
    on the device `index`.

    The library reads that folder once, so this is a copy of it, which shares nothing with the first
    but the HIP runtime: its calls are on the same streams."""
    if (path := path_of(library(index).shared, f"{TABLE.prefix}Create")) is None:
        raise UsageError(_not_found())
    copied = Path(folder) / f"{path.stem}-copy.so"
    shutil.copy(path, copied)
    before = os.environ.get(FOLDER_VARIABLE)
    os.environ[FOLDER_VARIABLE] = folder
    try:
        return _lt.LtLibrary(TABLE, ctypes.CDLL(str(copied)))
    finally:
        os.environ.pop(FOLDER_VARIABLE)
        if before is not None:
            os.environ[FOLDER_VARIABLE] = before


def _not_found() -> Reason:
    return rocm.missing(LIBRARIES[-1])


def index_of(algorithm: bytes) -> int:
    """Return the solution index of an algorithm, like hipblaslt_ext::getIndexFromAlgo."""
    return int.from_bytes(algorithm[:4], "little", signed=True)


def name_of(lt: _lt.LtLibrary, algorithm: bytes) -> str:
    """Return a solution's name; empty if the library exports no function for it."""
    try:
        function = lt.shared[SOLUTION_NAME]
    except AttributeError:
        return ""
    function.restype = _String
    name = function(lt.handle, ctypes.create_string_buffer(algorithm, len(algorithm)))
    if name.size < ctypes.sizeof(name) - _String.local.offset:
        return bytes(name.local)[: name.size].decode()
    text = ctypes.string_at(name.data, name.size).decode()
    delete = lt.shared[_hipblaslt_ext.DELETE]  # of the C++ runtime that the library is linked to
    delete.restype, delete.argtypes = None, (ctypes.c_void_p,)
    delete(name.data)
    return text


@functools.lru_cache(maxsize=8)
def solutions(index: int, problem: Problem, workspace: int) -> tuple[Solution, ...]:
    """Return every solution that the library on device `index` has for a problem with at most
    `workspace` bytes, best first.

    Call this once per problem: the library checks each of its solutions against the problem."""
    lt = library(index)
    grouped = problem.op == "grouped_gemm"
    list_algorithms = _hipblaslt_ext.list_grouped if grouped else _lt.list_algorithms
    return tuple(
        Solution(name=name_of(lt, algorithm), index=index_of(algorithm), algorithm=algorithm)
        for algorithm in list_algorithms(lt, problem, EVERY_SOLUTION, workspace)
    )


def check_present(info: DeviceInfo) -> None:
    """Raise an error if the GPU is not present: the solutions of another GPU would be listed."""
    if reason := drivers.unavailable("hip"):
        raise Unsupported(reason)
    here = drivers.driver("hip").arch(info.index)
    if here != info.arch:
        raise Unsupported(f"{info.name} is {here} here, not {info.arch}")


def chosen(listed: Sequence[Solution], config: Config) -> Solution:
    """Return the solution of a config; refuse a name that the library does not have, and an index
    that now belongs to another name."""
    name, index = config.get("solution"), config.get("solution_index")
    now = next((solution.name for solution in listed if solution.index == index), "")
    if name is None:
        raise Unsupported(
            f"solution index {index} alone is no config, as indices change with every build of the"
            " library: give the solution's name" + (f", which is {now!r} here" if now else "")
        )
    if index is not None and now != name:
        raise Unsupported(
            f"solution index {index} is "
            + (
                f"{now!r} in this build of the library"
                if now
                else "of no solution for this problem"
            )
            + f", not {name!r}: indices change with every build; give the solution's name alone"
        )
    for solution in listed:
        if solution.name == name and index in (None, solution.index):
            return solution
    raise Unsupported(
        f"the library has no solution called {name!r} among its {len(listed)}"
        " for this problem: it is of another build, or of another problem"
    )


class HipblasLt(Backend):
    """hipBLASLt. `{}` is the heuristic's first choice; {"solution": NAME} any other. An index may
    be added; it is refused if it belongs to another solution. `splitk` and `wgm` replace the
    solution's own split of k and mapping of workgroups."""

    name = "hipblaslt"
    summary = f"AMD's hipBLASLt: heuristic choice or any solution; {_rules.ON_AMD}"
    device_kinds = ("hip",)
    supports_examples = FrozenDict(
        {
            "gfx90a": (*_EXAMPLES, "!*=f8*", "!*=f4*"),
            "gfx942": (*_EXAMPLES, "!*dtype=f8e4m3 *", "!*scale=mx*"),
            "gfx950": (*_EXAMPLES, "!*fnuz*", "!*swizzle*"),
        }
    )

    def available(self) -> str | None:
        return _not_found() if _shared_object() is None else drivers.unavailable("hip")

    def version(self) -> str:
        """Return number and git revision, as TunableOp writes them: 100201-5b515cf1bc."""
        lt, number = library(0), ctypes.c_int()
        revision = ctypes.create_string_buffer(_REVISION_BYTES)
        lt.call("GetVersion", lt.handle, ctypes.byref(number))
        lt.call("GetGitRevision", lt.handle, revision)
        return f"{number.value}-{revision.value.decode()}"

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        reason = _rules.wrong_device(self.name, self.device_kinds, info)
        reason = reason or _rules.wrong_narrow_type(self.name, problem, info)
        if problem.op == "batched_gemm_quant":
            return reason or _wrong_scheme(problem)
        if problem.op == "grouped_gemm":
            # A GPU that is absent, which has no UUID, is planned for: another library runs it.
            shared_object = _shared_object() if info.uuid else None
            lacks = None if shared_object is None else _hipblaslt_ext.missing(shared_object)
            return reason or lacks
        reason = reason or _rules.wrong_scales(self.name, problem, info)
        return reason or _lt.supports(problem, TABLE, self.name, (*_lt.OPS, "grouped_gemm"))

    def settings(self, info: DeviceInfo) -> Config:
        return _lt.settings(TABLE, info)

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        check_present(info)
        fixed = self.settings(info)
        workspace = _lt.workspace_bytes(TABLE, fixed, info)
        listed = solutions(info.index, problem, workspace)
        space = _lt.list_space("solution", (item.name for item in listed), fixed)
        # No file of a library can hold them: they are searched if the plan lists values.
        if space is None or problem.op == "grouped_gemm":
            return space
        if _hipblaslt_ext.missing(library(info.index).shared):
            return space
        return dataclasses.replace(space, opt_in=_hipblaslt_ext.PARAMETERS)

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        known = ("solution", "solution_index", _lt.WORKSPACE, *_hipblaslt_ext.PARAMETERS)
        _rules.refuse_unknown(self.name, config, known)
        lt = library(device.info.index)
        workspace = _lt.workspace_bytes(TABLE, config, device.info)
        splitk, wgm = _hipblaslt_ext.values_of(config)
        if problem.op == "grouped_gemm":
            if splitk or wgm:
                raise Unsupported("splitk and wgm in the config are not for grouped_gemm")
            return self._grouped(problem, config, device, sets, workspace)

        def choose(matmul: _lt.LtMatmul) -> tuple[bytes, KernelInfo]:
            if config.keys() & {"solution", "solution_index"}:
                listed = solutions(device.info.index, problem, workspace)
                algorithm = chosen(listed, config).algorithm
            else:
                algorithm = matmul.first_choice(workspace)
            index = index_of(algorithm)
            resources = {"workspace_bytes": workspace, "solution_index": index}
            name = name_of(lt, algorithm) or f"solution {index}"
            if splitk or wgm:
                name += f" (splitk={splitk} wgm={wgm})"
            return algorithm, KernelInfo(name=name, resources=resources)

        if not (splitk or wgm):
            return _lt.prepare(lt, problem, device, sets, choose)
        make = functools.partial(_hipblaslt_ext.TunedKernel, splitk=splitk, wgm=wgm)
        return _lt.prepare(lt, problem, device, sets, choose, make)

    def _grouped(
        self,
        problem: Problem,
        config: Config,
        device: Device,
        sets: Sequence[ArgumentSet],
        workspace: int,
    ) -> Kernel:
        index, lt = device.info.index, library(device.info.index)
        if config.keys() & {"solution", "solution_index"}:
            algorithm = chosen(solutions(index, problem, workspace), config).algorithm
        else:
            offered = _hipblaslt_ext.list_grouped(lt, problem, 1, workspace)
            if not offered:
                raise Unsupported("hipBLASLt offers no algorithm for this grouped GEMM")
            algorithm = offered[0]
        number, groups = index_of(algorithm), _hipblaslt_ext.Groups(lt, problem)
        resources = {"workspace_bytes": workspace, "solution_index": number}
        info = KernelInfo(name=name_of(lt, algorithm) or f"solution {number}", resources=resources)
        return _hipblaslt_ext.GroupedKernel(groups, algorithm, sets, device, info)


def _wrong_scheme(problem: Problem) -> str | None:
    """Return why hipBLASLt cannot compute a scaled GEMM, or None: it supports MXFP4 without a
    batch."""
    if problem.options["scheme"] != "afp4wfp4":
        scheme = problem.options["scheme"]
        return Reason(f"scheme={scheme} is not possible with hipblaslt")
    if problem.dims["batch"] != 1:
        why = "with hipblaslt, which scales the blocks of one GEMM"
        return Reason(f"batch={problem.dims['batch']} is not possible {why}")
    return None


backend = HipblasLt()
