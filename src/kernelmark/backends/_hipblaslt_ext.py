"""A GEMM of hipBLASLt's C++ interface through ctypes: it takes a split of k and a mapping of
workgroups at run time, which the C interface does not.

Its methods take and return C types only, so they are called by their mangled symbols, with the
object's address first. Objects are constructed in buffers larger than they are: 80 bytes for Gemm
and 8 for GemmTuning in ROCm 7.2. Only solutions that read both values from their arguments take
them, and only for sums in f32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from kernelmark.backends import _lt
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Config, ConfigValue
from kernelmark.devices.base import Stream

# In a config, as hipblaslt-bench calls them. 0 is the solution's own value.
PARAMETERS: Mapping[str, tuple[ConfigValue, ...]] = FrozenDict(
    {"splitk": (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32), "wgm": (0, 1, 2, 4, 8, 16, 32)}
)
_MOST = {"splitk": 2**16 - 1, "wgm": 2**15 - 1}  # of uint16_t and int16_t
_ROOM = 64  # pointers in the buffer of an object
# The class of both values, the older name second. Where it is there, GemmTuning has no methods.
TUNINGS = ("GemmTuning", "GemmTuningV2")
_STREAM = "P12ihipStream_t"
_MATRIX = "P29hipblasLtMatrixLayoutOpaque_t"


def symbols(tuning: str) -> dict[str, str]:
    """Return the mangled symbols of the methods called here; `tuning` is one of `TUNINGS`."""
    types = "18hipblasOperation_tS2_11hipDataTypeS3_S3_S3_20hipblasComputeType_t"
    described = f"P27hipblasLtMatmulDescOpaque_tPKvS4_{_MATRIX}S4_S6_S4_S4_S6_PvS6_"
    algorithm, own = "22_hipblasLtMatmulAlgo_t", f"{len(tuning)}{tuning}"
    return {
        name: f"_ZN13hipblaslt_ext{symbol}"
        for name, symbol in {
            "Tuning": f"{own}C1Ev",
            "~Tuning": f"{own}D1Ev",
            "setSplitK": f"{own}9setSplitKEt",
            "setWgm": f"{own}6setWgmEs",
            "Gemm": f"4GemmC1EPv{types}",
            "setProblem": f"4Gemm10setProblemE{described}",
            "isAlgoSupported": f"12GemmInstance15isAlgoSupportedER{algorithm}RNS_{own}ERm",
            "setMaxWorkspaceBytes": "12GemmInstance20setMaxWorkspaceBytesEm",
            "initialize": f"12GemmInstance10initializeERK{algorithm}RNS_{own}EPvb{_STREAM}",
            "run": f"12GemmInstance3runE{_STREAM}P11ihipEvent_tS4_",
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


class Kernel(_lt.LtKernel):
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
        handle, *described = call[:12]
        problem, table, gemm = self._matmuls[0].problem, self._library.table, _buffer()
        types = [table.types[problem.dtypes[name]] for name in ("b", "a", "c", "c")]
        compute = table.compute[self._matmuls[0].scale_type]
        # The constructor that takes descriptions reads an empty vector in aec838a8 (2025-05).
        numbers = map(ctypes.c_int, (table.transpose[0], table.transpose[0], *types, compute))
        self._methods["Gemm"](gemm, handle, *numbers)
        self._gemms.append(gemm)
        self._check("Gemm::setProblem", self._methods["setProblem"](gemm, *described))

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
        self._check("GemmInstance::initialize", self._methods["initialize"](*arguments))

    def _check(self, call: str, status: int) -> None:
        table = self._library.table
        name = f"hipblaslt_ext::{call}"
        _lt.check_status(name, status, (table.not_supported,), table.alloc_failed)

    def launch(self, stream: Stream, set_index: int) -> None:
        status = self._methods["run"](self._gemms[set_index], ctypes.c_void_p(stream), None, None)
        self._check("GemmInstance::run", status)

    def close(self) -> None:
        for gemm in self._gemms:
            destroy(gemm)
        self._gemms.clear()
        super().close()


def _methods(shared: Any) -> dict[str, Any]:
    """Return the methods of the library by name; raise Unsupported if it exports not all."""
    known = [symbols(tuning) for tuning in TUNINGS]
    for names in known:
        if all(hasattr(shared, symbol) for symbol in names.values()):
            return {name: shared[symbol] for name, symbol in names.items()}
    raise Unsupported(
        "this build of hipBLASLt takes no splitk and wgm at run time: it has no "
        + next(symbol for symbol in known[0].values() if not hasattr(shared, symbol))
    )


def destroy(gemm: Any) -> None:
    """Call an object's destructor. It is virtual and not exported: the first entry of the table
    that the object begins with."""
    table = ctypes.c_void_p.from_address(gemm[0])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(table.value or 0)(ctypes.addressof(gemm))


def _buffer() -> Any:
    return (ctypes.c_void_p * _ROOM)()
