"""What hipBLASLt has in its C++ interface only, through ctypes: a split of k and a mapping of
workgroups at run time, and grouped GEMMs.

Its methods take C types, objects by address, and std::vector of addresses or of C structures, which
libstdc++ represents by three addresses. So they are called by their mangled symbols, with the
object's address first. Objects are constructed in buffers larger than they are: 80 bytes for Gemm
and GroupedGemm in ROCm 7.2. Both are for sums in f32 only.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kernelmark import ops
from kernelmark.backends import _lt
from kernelmark.backends.base import Kernel
from kernelmark.core.dtype import dtype
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ConfigValue, KernelInfo
from kernelmark.devices.base import ArgumentSet, Buffer, Device, Stream
from kernelmark.ops.grouped_gemm import group_ends

# In a config, as hipblaslt-bench calls them. 0 is the solution's own value.
PARAMETERS: Mapping[str, tuple[ConfigValue, ...]] = FrozenDict(
    {"splitk": (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32), "wgm": (0, 1, 2, 4, 8, 16, 32)}
)
_MOST = {"splitk": 2**16 - 1, "wgm": 2**15 - 1}  # of uint16_t and int16_t
_ROOM = 64  # pointers in the buffer of an object
# Of the names of classes. The older versions of classes with a V2 have other methods.
VERSIONS = ("", "V2")
DELETE = "_ZdlPv"  # operator delete(void*)
_P = ctypes.c_void_p
_STREAM = "P12ihipStream_t"
_MATRIX = "P29hipblasLtMatrixLayoutOpaque_t"


def symbols(version: str) -> dict[str, str]:
    """Return the mangled symbols of the methods called here; `version` is one of `VERSIONS`."""
    types = "18hipblasOperation_tS2_11hipDataTypeS3_S3_S3_20hipblasComputeType_t"
    described = f"P27hipblasLtMatmulDescOpaque_tPKvS4_{_MATRIX}S4_S6_S4_S4_S6_PvS6_"
    vectors = (
        "RSt6vectorIP27hipblasLtMatmulDescOpaque_tSaIS3_EERS1_IPvSaIS7_EESA_RS1_I"
        f"{_MATRIX}SaISC_EESA_SF_SA_SA_SF_SA_SF_"
    )
    tuning, preference = (
        f"{len(name)}{name}" for name in (f"GemmTuning{version}", f"GemmPreference{version}")
    )
    results = "RSt6vectorI33_hipblasLtMatmulHeuristicResult_tSaIS5_EE"
    algorithm, own = "22_hipblasLtMatmulAlgo_t", "12GemmInstance"
    return {
        name: f"_ZN13hipblaslt_ext{symbol}"
        for name, symbol in {
            "Tuning": f"{tuning}C1Ev",
            "~Tuning": f"{tuning}D1Ev",
            "setSplitK": f"{tuning}9setSplitKEt",
            "setWgm": f"{tuning}6setWgmEs",
            "Gemm": f"4GemmC1EPv{types}",
            "setProblem": f"4Gemm10setProblemE{described}",
            "isAlgoSupported": f"{own}15isAlgoSupportedER{algorithm}RNS_{tuning}ERm",
            "setMaxWorkspaceBytes": f"{own}20setMaxWorkspaceBytesEm",
            "initialize": f"{own}10initializeERK{algorithm}RNS_{tuning}EPvb{_STREAM}",
            "run": f"{own}3runE{_STREAM}P11ihipEvent_tS4_",
            "Preference": f"{preference}C1Ev",
            "~Preference": f"{preference}D1Ev",
            "setPreferredBytes": f"{preference}20setMaxWorkspaceBytesEm",
            "Grouped": f"11GroupedGemmC1EPv{types}",
            "setGroups": f"11GroupedGemm10setProblemE{vectors}",
            "algoGetHeuristic": f"{own}16algoGetHeuristicEiRKNS_{preference}E{results}",
        }.items()
    }


def values_of(config: Config) -> tuple[int, int]:
    """Return the split of k and the mapping of workgroups in a config, 0 where it has none."""
    values = []
    for name, most in _MOST.items():
        value = config.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise Unsupported(f"{name}={value!r} in the config is not a whole number up to {most}")
        values.append(value)
    return values[0], values[1]


class TunedKernel(_lt.LtKernel):
    """One algorithm of the library with a split of k and a mapping of workgroups."""

    def __init__(self, *arguments: Any, splitk: int, wgm: int) -> None:
        super().__init__(*arguments)
        self._gemms: list[Any] = []
        try:
            self._methods = _methods(self._library.shared)
            self._start(splitk, wgm)
        except BaseException:
            self.close()
            raise

    def _start(self, splitk: int, wgm: int) -> None:
        tuning = _buffer()
        self._methods["Tuning"](tuning)
        try:
            self._methods["setSplitK"](tuning, ctypes.c_uint16(splitk))
            self._methods["setWgm"](tuning, ctypes.c_int16(wgm))
            for call in self._calls:
                self._create(call)
                self._initialize(self._gemms[-1], call, tuning)
        finally:
            self._methods["~Tuning"](tuning)

    def _create(self, call: tuple[Any, ...]) -> None:
        """Create the object of the GEMM that `hipblasLtMatmul` computes with these arguments."""
        self._gemms.append(_construct(self._methods["Gemm"], self._matmuls[0]))
        status = self._methods["setProblem"](self._gemms[-1], *call[1:12])
        _check(self._library.table, "Gemm::setProblem", status)

    def _initialize(self, gemm: Any, call: tuple[Any, ...], tuning: Any) -> None:
        algorithm, workspace, nbytes = call[12:]
        needed = ctypes.c_size_t()
        status = self._methods["isAlgoSupported"](gemm, algorithm, tuning, ctypes.byref(needed))
        if status or needed.value > nbytes.value:
            raise Unsupported(
                f"{self.info.name} is not possible: "
                + (
                    f"it needs {needed.value} bytes of workspace, and has {nbytes.value}"
                    if not status
                    else f"the solution does not take these values (status {status})"
                )
            )
        self._methods["setMaxWorkspaceBytes"](gemm, nbytes)
        user_arguments, stream = ctypes.c_bool(True), None  # their defaults; for grouped GEMMs
        arguments = (gemm, algorithm, tuning, workspace, user_arguments, stream)
        _check(
            self._library.table, "GemmInstance::initialize", self._methods["initialize"](*arguments)
        )

    def launch(self, stream: Stream, set_index: int) -> None:
        status = self._methods["run"](self._gemms[set_index], ctypes.c_void_p(stream), None, None)
        _check(self._library.table, "GemmInstance::run", status)

    def close(self) -> None:
        for gemm in self._gemms:
            destroy(gemm)
        self._gemms.clear()
        super().close()


class Groups:
    """The GEMMs of the groups of a grouped GEMM that have rows, and objects of all of them."""

    def __init__(self, library: _lt.LtLibrary, problem: Problem) -> None:
        self.library, self._methods = library, _methods(library.shared)
        dims, kind = problem.dims, problem.dtypes["x"]
        ends = group_ends(problem).tolist()
        size = dtype(kind).bits // 8
        self._matmuls: list[_lt.LtMatmul] = []
        # Of the operands of each group, from their tensors'.
        self._offsets: list[tuple[int, int, int]] = []
        self._objects: list[Any] = []
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        try:
            for group, (first, end) in enumerate(itertools.pairwise([0, *ends])):
                if end == first:
                    continue
                sizes = {"m": end - first, "n": dims["n"], "k": dims["k"]}
                gemm = ops.registry.get("gemm").problem(**sizes, dtype=kind, tb="t")
                self._matmuls.append(_lt.LtMatmul(library, gemm))
                columns = dims["k"], dims["n"] * dims["k"], dims["n"]
                at = zip((first, group, first), columns, strict=True)
                self._offsets.append(tuple(i * count * size for i, count in at))
        except BaseException:
            self.close()
            raise

    def describe(self, x: int, w: int, out: int) -> Any:
        """Return an object for tensors at these addresses."""
        gemm = _construct(self._methods["Grouped"], self._matmuls[0])
        self._objects.append(gemm)
        at = [(x + i, w + j, out + k) for i, j, k in self._offsets]
        some, d = self._matmuls, _vector(each[2] for each in at)
        alpha, beta = (
            _vector([ctypes.addressof(value)] * len(at)) for value in (self._one, self._zero)
        )
        # The library's A is our W, and its B our X.
        status = self._methods["setGroups"](
            gemm,
            _vector(matmul.desc.value for matmul in some),
            *(alpha, _vector(each[1] for each in at), _vector(matmul.a.value for matmul in some)),
            *(_vector(each[0] for each in at), _vector(matmul.b.value for matmul in some)),
            *(beta, d, _vector(matmul.c.value for matmul in some)),
            *(d, _vector(matmul.d.value for matmul in some)),
        )
        _check(self.library.table, "GroupedGemm::setProblem", status)
        return gemm

    def algorithms(self, gemm: Any, most: int, workspace: int) -> list[bytes]:
        """Return the algorithms of the heuristic with at most `workspace` bytes, best first."""
        table, preference, results = self.library.table, _buffer(), (_P * 3)()
        self._methods["Preference"](preference)
        try:
            self._methods["setPreferredBytes"](preference, ctypes.c_size_t(workspace))
            status = self._methods["algoGetHeuristic"](gemm, most, preference, results)
            _check(table, "GemmInstance::algoGetHeuristic", status)
            start, end = results[0] or 0, results[1] or 0
            raw = ctypes.string_at(start, end - start) if start else b""
        finally:
            self._methods["~Preference"](preference)
            if results[0]:
                delete = self.library.shared[DELETE]
                delete.restype, delete.argtypes = None, (_P,)
                delete(results[0])
        return [raw[i:][: table.algo_bytes] for i in range(0, len(raw), table.heuristic_bytes)]

    def start(
        self, gemm: Any, algorithm: bytes, most: int, device: Device, workspaces: list[Buffer]
    ) -> None:
        """Allocate the workspace of an algorithm, at most `most` bytes, and write its arguments
        there on the device's stream."""
        tuning, held = _buffer(), ctypes.create_string_buffer(algorithm, len(algorithm))
        needed, table = ctypes.c_size_t(), self.library.table
        self._methods["Tuning"](tuning)
        try:
            status = self._methods["isAlgoSupported"](gemm, held, tuning, ctypes.byref(needed))
            _check(table, "GemmInstance::isAlgoSupported", status)
            if needed.value > most:
                raise Unsupported(f"it needs {needed.value} bytes of workspace, and has {most}")
            workspaces.append(device.allocate(max(1, needed.value)))
            self._methods["setMaxWorkspaceBytes"](gemm, needed)
            arguments = _P(workspaces[-1].address), ctypes.c_bool(False), _P(device.stream)
            status = self._methods["initialize"](gemm, held, tuning, *arguments)
            _check(table, "GemmInstance::initialize", status)
        finally:
            self._methods["~Tuning"](tuning)

    def run(self, gemm: Any, stream: Stream) -> None:
        status = self._methods["run"](gemm, _P(stream), None, None)
        _check(self.library.table, "GemmInstance::run", status)

    def close(self) -> None:
        for gemm in self._objects:
            destroy(gemm)
        self._objects.clear()
        for matmul in self._matmuls:
            matmul.close()


def list_grouped(
    library: _lt.LtLibrary, problem: Problem, most: int, workspace: int
) -> list[bytes]:
    """Return the algorithms for a grouped GEMM with at most `workspace` bytes, best first."""
    groups = Groups(library, problem)
    try:
        return groups.algorithms(groups.describe(*[_lt.ANY_ADDRESS] * 3), most, workspace)
    finally:
        groups.close()


class GroupedKernel(Kernel):
    """One algorithm for all groups. A set has its own workspace, which holds its arguments."""

    def __init__(
        self,
        groups: Groups,
        algorithm: bytes,
        sets: Sequence[ArgumentSet],
        device: Device,
        info: KernelInfo,
    ) -> None:
        self.info, self._groups, self._device = info, groups, device
        self._gemms: list[Any] = []
        self._workspaces: list[Buffer] = []
        most = info.resources["workspace_bytes"]
        try:
            for arguments in sets:
                addresses = (arguments[name].address for name in ("x", "w", "out"))
                self._gemms.append(groups.describe(*addresses))
                groups.start(self._gemms[-1], algorithm, most, device, self._workspaces)
            device.synchronize()
        except BaseException:
            self.close()
            raise

    def launch(self, stream: Stream, set_index: int) -> None:
        self._groups.run(self._gemms[set_index], stream)

    def close(self) -> None:
        self._groups.close()
        for workspace in self._workspaces:
            self._device.free(workspace)
        self._workspaces.clear()


def _construct(constructor: Any, matmul: _lt.LtMatmul) -> Any:
    """Return an object for GEMMs with the types of a description."""
    problem, table, gemm = matmul.problem, matmul.library.table, _buffer()
    types = [table.types[problem.dtypes[name]] for name in ("b", "a", "c", "c")]
    # The constructor that takes descriptions reads an empty vector in aec838a8 (2025-05).
    numbers = (*table.transpose[:1] * 2, *types, table.compute[matmul.scale_type])
    constructor(gemm, matmul.library.handle, *map(ctypes.c_int, numbers))
    return gemm


def _vector(addresses: Iterable[int | None]) -> Any:
    """Return a std::vector of addresses, which may be read only."""
    values = list(addresses)
    held = (_P * len(values))(*values)
    start = ctypes.addressof(held)
    end = start + ctypes.sizeof(held)
    vector: Any = (_P * 3)(start, end, end)
    vector.held = held  # as long as the vector
    return vector


def _check(table: _lt.LtTable, call: str, status: int) -> None:
    name = f"hipblaslt_ext::{call}"
    _lt.check_status(name, status, (table.not_supported,), table.alloc_failed)


def missing(shared: Any) -> str | None:
    """Return None if the library exports the methods, or a sentence on what it lacks."""
    first = None
    for version in VERSIONS:
        lacking = [symbol for symbol in symbols(version).values() if not hasattr(shared, symbol)]
        if not lacking:
            return None
        first = first or lacking[0]
    return (
        "this build of hipBLASLt has no splitk, wgm and grouped GEMM for other programs: it lacks"
        f" {first}"
    )


def _methods(shared: Any) -> dict[str, Any]:
    """Return the methods of the library by name; raise Unsupported if it exports not all."""
    if reason := missing(shared):
        raise Unsupported(reason)
    names = next(n for n in map(symbols, VERSIONS) if all(hasattr(shared, s) for s in n.values()))
    return {name: shared[symbol] for name, symbol in names.items()}


def destroy(gemm: Any) -> None:
    """Call an object's destructor. It is virtual and not exported: the first entry of the table
    that the object begins with."""
    table = ctypes.c_void_p.from_address(gemm[0])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(table.value or 0)(ctypes.addressof(gemm))


def _buffer() -> Any:
    return (ctypes.c_void_p * _ROOM)()
