"""What cuBLASLt and hipBLASLt share: one sequence of calls, written against a table of numbers.

Our matrices are row-major, the libraries' column-major: a row-major D is the column-major Dᵀ, so
the library computes Dᵀ = op(B)ᵀ · op(A)ᵀ with A and B exchanged and nothing copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelmark.backends.base import Kernel
from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.result import KernelInfo
from kernelmark.devices.base import ArgumentSet, Buffer, Stream

_P = ctypes.c_void_p


@dataclass(frozen=True, slots=True, kw_only=True)
class LtTable:
    """A library's prefix, enumerators and structure sizes."""

    prefix: str
    types: Mapping[str, int]
    compute: Mapping[str, int]  # by accumulator
    transpose: tuple[int, int]  # no, yes
    desc: Mapping[str, int]
    layout: Mapping[str, int]
    workspace_attribute: int
    epilogue_bias: int
    algo_bytes: int
    heuristic_bytes: int
    not_supported: int


class LtLibrary:
    """The library behind the table; every return code is checked."""

    def __init__(self, table: LtTable, library: ctypes.CDLL) -> None:
        self.table = table
        self._library = library
        self.handle = _P()
        self.call("Create", ctypes.byref(self.handle))

    def code(self, name: str, *arguments: object) -> int:
        return int(self._library[f"{self.table.prefix}{name}"](*arguments))

    def call(self, name: str, *arguments: object) -> None:
        code = self.code(name, *arguments)
        if code == self.table.not_supported:
            raise Unsupported(f"{self.table.prefix}{name}: the library does not support this")
        if code:
            raise CaseError(f"{self.table.prefix}{name} failed with status {code}")

    def version(self) -> int:
        """The library's own version number."""
        if self.table.prefix == "cublasLt":
            self._library.cublasLtGetVersion.restype = ctypes.c_size_t
            return int(self._library.cublasLtGetVersion())
        number = ctypes.c_int()
        self.call("GetVersion", self.handle, ctypes.byref(number))
        return number.value


class Matmul:
    """Descriptors of one problem: created once, used by every launch."""

    def __init__(self, library: LtLibrary, problem: Problem) -> None:
        self.library = library
        self.problem = problem
        table = library.table
        acc = problem.dtypes["acc"]
        self.scale_type = "i32" if acc == "i32" else "f16" if acc == "f16" else "f32"
        if acc == "f64":
            self.scale_type = "f64"
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        try:
            self._describe(table.compute[acc])
        except BaseException:
            self.close()
            raise

    def _describe(self, compute: int) -> None:
        table, problem = self.library.table, self.problem
        self.desc = self._create("MatmulDesc", compute, table.types[self.scale_type])
        # The library's A is our B and the other way round.
        self._set_desc("transa", ctypes.c_int32(table.transpose[problem.options["tb"] == "t"]))
        self._set_desc("transb", ctypes.c_int32(table.transpose[problem.options["ta"] == "t"]))
        m, n, k = (problem.dims[x] for x in "mnk")
        ta, tb = problem.options["ta"] == "t", problem.options["tb"] == "t"
        self.a = self._layout("b", *((k, n) if tb else (n, k)))
        self.b = self._layout("a", *((m, k) if ta else (k, m)))
        self.c = self._layout("c", n, m)
        self.d = self._layout("c", n, m)

    def _create(self, kind: str, *arguments: object) -> ctypes.c_void_p:
        handle = _P()
        self.library.call(f"{kind}Create", ctypes.byref(handle), *arguments)
        self._made.append((kind, handle))
        return handle

    def _layout(self, operand: str, rows: int, columns: int) -> ctypes.c_void_p:
        """A column-major layout of a dense operand of ours."""
        kind = self.library.table.types[self.problem.dtypes[operand]]
        layout = self._create(
            "MatrixLayout",
            kind,
            ctypes.c_uint64(rows),
            ctypes.c_uint64(columns),
            ctypes.c_int64(rows),
        )
        if "batch" in self.problem.dims:
            count = ctypes.c_int32(self.problem.dims["batch"])
            stride = ctypes.c_int64(rows * columns)
            attributes = self.library.table.layout
            for name, value in (("batch_count", count), ("batch_stride", stride)):
                self.library.call(
                    "MatrixLayoutSetAttribute",
                    layout,
                    attributes[name],
                    ctypes.byref(value),
                    ctypes.c_size_t(ctypes.sizeof(value)),
                )
        return layout

    def _set_desc(self, name: str, value: Any) -> None:
        self.library.call(
            "MatmulDescSetAttribute",
            self.desc,
            self.library.table.desc[name],
            ctypes.byref(value),
            ctypes.c_size_t(ctypes.sizeof(value)),
        )

    def set_bias(self, address: int) -> None:
        self._set_desc("epilogue", ctypes.c_uint32(self.library.table.epilogue_bias))
        kind = self.library.table.types[self.problem.dtypes["c"]]
        self._set_desc("bias_type", ctypes.c_int32(kind))
        self._set_desc("bias", _P(address))

    def heuristics(self, most: int, workspace_bytes: int) -> list[bytes]:
        """The library's choices, best first, as its opaque result structures."""
        table = self.library.table
        preference = self._create("MatmulPreference")
        limit = ctypes.c_uint64(workspace_bytes)
        self.library.call(
            "MatmulPreferenceSetAttribute",
            preference,
            table.workspace_attribute,
            ctypes.byref(limit),
            ctypes.c_size_t(8),
        )
        results = ctypes.create_string_buffer(table.heuristic_bytes * most)
        found = ctypes.c_int()
        layouts = (self.a, self.b, self.c, self.d)
        self.library.call(
            "MatmulAlgoGetHeuristic",
            self.library.handle,
            self.desc,
            *layouts,
            preference,
            most,
            results,
            ctypes.byref(found),
        )
        size = table.heuristic_bytes
        return [results.raw[i * size : (i + 1) * size] for i in range(found.value)]

    def factor(self, value: float) -> Any:
        """alpha or beta in the scale type."""
        kinds: dict[str, Any] = {"f32": ctypes.c_float, "i32": ctypes.c_int32}
        kinds["f64"] = ctypes.c_double
        if self.scale_type == "f16":
            import numpy as np

            return ctypes.c_uint16(int(np.float16(value).view(np.uint16)))
        return kinds[self.scale_type](int(value) if self.scale_type == "i32" else value)

    def close(self) -> None:
        for kind, handle in reversed(self._made):
            self.library.code(f"{kind}Destroy", handle)
        self._made.clear()


class LtKernel(Kernel):
    """One algorithm of the library, bound to every argument set."""

    def __init__(
        self,
        matmuls: Sequence[Matmul],
        algorithm: bytes,
        sets: Sequence[ArgumentSet],
        workspace: Buffer,
        info: KernelInfo,
    ) -> None:
        self.info = info
        self._matmuls = matmuls
        first = matmuls[0]
        self._library = first.library
        self._algorithm = ctypes.create_string_buffer(algorithm, len(algorithm))
        options = first.problem.options
        self._alpha = first.factor(float(options["alpha"]))
        self._beta = first.factor(float(options["beta"]))
        self._workspace = workspace
        self._calls = [self._arguments(i, arguments) for i, arguments in enumerate(sets)]

    def _arguments(self, index: int, arguments: ArgumentSet) -> tuple[object, ...]:
        matmul = self._matmuls[min(index, len(self._matmuls) - 1)]
        d = arguments["d"].address
        c = arguments["c"].address if "c" in arguments else d
        return (
            self._library.handle,
            matmul.desc,
            ctypes.byref(self._alpha),
            _P(arguments["b"].address),
            matmul.a,
            _P(arguments["a"].address),
            matmul.b,
            ctypes.byref(self._beta),
            _P(c),
            matmul.c,
            _P(d),
            matmul.d,
            self._algorithm,
            _P(self._workspace.address),
            ctypes.c_size_t(self._workspace.nbytes),
        )

    def launch(self, stream: Stream, set_index: int) -> None:
        self._library.call("Matmul", *self._calls[set_index], _P(stream))

    def close(self) -> None:
        close_all(self._matmuls)


def matmuls_for(library: LtLibrary, problem: Problem, sets: Sequence[ArgumentSet]) -> list[Matmul]:
    """One description, or one a set where each has a bias vector of its own."""
    if not problem.options["bias"]:
        return [Matmul(library, problem)]
    made: list[Matmul] = []
    try:
        for arguments in sets:
            made.append(Matmul(library, problem))
            made[-1].set_bias(arguments["bias"].address)
    except BaseException:
        close_all(made)
        raise
    return made


def close_all(matmuls: Sequence[Matmul]) -> None:
    for matmul in matmuls:
        matmul.close()


def supports(problem: Problem, table: LtTable, name: str) -> str | None:
    """What the library's types and epilogues cannot express; the rest it says itself."""
    if problem.op not in ("gemm", "batched_gemm"):
        return f"{name} multiplies matrices; it has no {problem.op}"
    for operand in ("a", "b", "c"):
        if problem.dtypes[operand] not in table.types:
            return f"{name} has no {problem.dtypes[operand]} on this device"
    if problem.dtypes["acc"] not in table.compute:
        return f"{name} does not accumulate in {problem.dtypes['acc']}"
    if problem.dtypes["acc"] == "i32" and problem.options["bias"]:
        return f"{name} has no bias for integer results"
    return None
