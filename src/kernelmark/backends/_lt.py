"""Code shared by cuBLASLt and hipBLASLt: one sequence of calls, driven by a table of constants.

Our matrices are row-major, the libraries' column-major: a row-major D is the column-major Dᵀ, so
the library computes Dᵀ = op(B)ᵀ · op(A)ᵀ with A and B exchanged and nothing copied.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmark import ops
from kernelmark.backends._rules import unknown_op, wrong_acc, wrong_dtypes
from kernelmark.backends.base import Kernel
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, OutOfMemory, Unsupported, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, KernelInfo, Space
from kernelmark.devices.base import ArgumentSet, Device, Stream

WORKSPACE = "workspace_kib"  # in a config, in the unit of the environment variables
_P = ctypes.c_void_p
_SCALES = {"a_scale": "b_scale", "b_scale": "a_scale"}  # our name to the library's: its A is our B
_VECTORS = {"bias": "bias", "d_scale": "d_scale", **_SCALES}
# hipBLASLt's heuristic returns no solution if the address of a bias or scale is null; it does not
# read from the address.
ANY_ADDRESS = 1 << 12
OPS = ("gemm", "batched_gemm", "gemm_epilogue")
# hipBLASLt has the numbers of cuBLASLt, and more.
TYPES: Mapping[str, int] = FrozenDict(
    {"f32": 0, "f64": 1, "f16": 2, "i8": 3, "i32": 10, "bf16": 14, "f8e4m3": 28, "f8e5m2": 29}
)
EPILOGUES: Mapping[tuple[str, bool], int] = {
    ("none", True): 4,
    ("relu", False): 2,
    ("relu", True): 6,
    ("gelu", False): 32,
    ("gelu", True): 36,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LtTable:
    """A library's prefix, enumerators and structure sizes."""

    prefix: str
    types: Mapping[str, int]
    compute: Mapping[str, int]  # by accumulator type
    transpose: tuple[int, int]  # no, yes
    desc: Mapping[str, int]
    layout: Mapping[str, int]
    workspace_attribute: int
    # PyTorch's workspace in KiB by the start of the architecture (getCUDABlasLtWorkspaceSize), and
    # the variables that change it, the first one set wins. The workspace limits which algorithms
    # the library offers: with another one, `{}` is not what an application runs.
    workspace_kib: Mapping[str, int]
    workspace_variables: tuple[str, ...]
    epilogues: Mapping[tuple[str, bool], int]  # by activation and bias
    scale_e8m0: int  # the scale mode VEC32_UE8M0: one e8m0 scale per 32 elements
    scale_rows: int  # OUTER_VEC_32F: one f32 scale for each row of A and column of B
    algo_bytes: int
    heuristic_bytes: int
    state_offset: int  # of the status in a heuristic result
    not_supported: int
    alloc_failed: int
    # The dtype of the unread C if D is an 8-bit float; empty: that of D.
    c_of_f8: str = ""


class LtLibrary:
    """The library loaded for a table; every return code is checked."""

    def __init__(self, table: LtTable, library: ctypes.CDLL) -> None:
        self.table = table
        self.shared = library
        self.handle = _P()
        self.call("Create", ctypes.byref(self.handle))

    def code(self, name: str, *arguments: object) -> int:
        return int(self.shared[f"{self.table.prefix}{name}"](*arguments))

    def call(self, name: str, *arguments: object) -> None:
        table, status = self.table, self.code(name, *arguments)
        check_status(table.prefix + name, status, (table.not_supported,), table.alloc_failed)


def check_status(call: str, status: int, not_supported: Sequence[int], out_of_memory: int) -> None:
    """Raise the error that a library's function returned, if any."""
    if status in not_supported:
        raise Unsupported(f"{call}: the library does not support this (status {status})")
    if status == out_of_memory:
        raise OutOfMemory(f"{call}: the library could not allocate memory")
    if status:
        raise CaseError(
            Reason(
                f"{call} failed with status {status}", "library-failed", call=call, status=status
            )
        )


def settings(table: LtTable, info: DeviceInfo) -> Config:
    """Return the workspace that an environment variable sets, if it is not PyTorch's default."""
    name = next((name for name in table.workspace_variables if os.environ.get(name)), None)
    if name is None:
        return FrozenDict()
    text = os.environ[name]
    if not text.isdecimal():
        raise UsageError(f"{name}={text!r} is not a size", hint="write whole KiB, as 77824")
    kib = int(text)
    return FrozenDict() if kib == _usual_kib(table, info) else FrozenDict({WORKSPACE: kib})


def workspace_bytes(table: LtTable, config: Config, info: DeviceInfo) -> int:
    """Return the workspace of a config, an environment variable, or PyTorch's default."""
    kib = {WORKSPACE: _usual_kib(table, info), **settings(table, info), **config}[WORKSPACE]
    if isinstance(kib, bool) or not isinstance(kib, int) or kib < 0:
        raise Unsupported(f"{WORKSPACE}={kib!r} in the config is not a whole number of KiB")
    return kib * 1024


def _usual_kib(table: LtTable, info: DeviceInfo) -> int:
    return table.workspace_kib[max(filter(info.arch.startswith, table.workspace_kib), key=len)]


def reference_to(value: Any) -> tuple[Any, ctypes.c_size_t]:
    """Return the two arguments by which the library reads or writes an attribute."""
    return ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))


def scalar(kind: str, value: float) -> Any:
    """Return alpha or beta in the dtype `kind`."""
    if kind == "f16":
        return ctypes.c_uint16(int(np.float16(value).view(np.uint16)))
    if kind == "i32":
        return ctypes.c_int32(int(value))
    return ctypes.c_double(value) if kind == "f64" else ctypes.c_float(value)


class LtMatmul:
    """Descriptors of one problem: created once, used by every launch."""

    def __init__(self, library: LtLibrary, problem: Problem) -> None:
        self.library = library
        self.problem = problem
        # alpha and beta have the accumulator's dtype: f32 for batched_gemm_quant, which has no acc.
        self.scale_type = problem.dtypes.get("acc", "f32")
        # batched_gemm_quant always stores B as n×k.
        self._ta = problem.options.get("ta", "n") == "t"
        self._tb = problem.options.get("tb", "t") == "t"
        self._created: list[tuple[str, ctypes.c_void_p]] = []
        try:
            self._describe(library.table.compute[self.scale_type])
        except BaseException:
            self.close()
            raise

    def _describe(self, compute: int) -> None:
        table, problem = self.library.table, self.problem
        self.desc = self._create("MatmulDesc", compute, table.types[self.scale_type])
        # The library's A is our B, and its B our A.
        self._set_desc("transa", ctypes.c_int32(table.transpose[self._tb]))
        self._set_desc("transb", ctypes.c_int32(table.transpose[self._ta]))
        m, n, k = (problem.dims[x] for x in "mnk")
        self.a = self._layout(problem.dtypes["b"], *((k, n) if self._tb else (n, k)))
        self.b = self._layout(problem.dtypes["a"], *((m, k) if self._ta else (k, m)))
        self.c = self._layout(self.c_type, n, m)
        self.d = self._layout(problem.dtypes["c"], n, m)

    def _create(self, kind: str, *arguments: object) -> ctypes.c_void_p:
        handle = _P()
        self.library.call(f"{kind}Create", ctypes.byref(handle), *arguments)
        self._created.append((kind, handle))
        return handle

    @property
    def c_type(self) -> str:
        """Return the dtype of the library's C, which gemm_epilogue does not have."""
        d, other = self.problem.dtypes["c"], self.library.table.c_of_f8
        unread = self.problem.op == "gemm_epilogue" and d.startswith("f8")
        return other if other and unread else d

    def _layout(self, dtype_name: str, rows: int, columns: int) -> ctypes.c_void_p:
        """Return a column-major layout of one of our dense operands."""
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        layout = self._create("MatrixLayout", self.library.table.types[dtype_name], *sizes)
        if "batch" in self.problem.dims:
            count = ctypes.c_int32(self.problem.dims["batch"])
            stride = ctypes.c_int64(rows * columns)
            attributes = self.library.table.layout
            for name, value in (("batch_count", count), ("batch_stride", stride)):
                attribute = (layout, attributes[name], *reference_to(value))
                self.library.call("MatrixLayoutSetAttribute", *attribute)
        return layout

    def _set_desc(self, name: str, value: Any) -> None:
        attribute = (self.desc, self.library.table.desc[name], *reference_to(value))
        self.library.call("MatmulDescSetAttribute", *attribute)

    def expect(self, vectors: Collection[str]) -> None:
        """Set the epilogue, and placeholder addresses for those of `vectors` that the descriptor
        points to: a bias and scales."""
        table, problem = self.library.table, self.problem
        epilogue = str(problem.options.get("act", "none")), "bias" in vectors
        if epilogue in table.epilogues:
            self._set_desc("epilogue", ctypes.c_uint32(table.epilogues[epilogue]))
        if "bias" in vectors:
            kind = problem.dtypes.get("bias_type", problem.dtypes["c"])
            self._set_desc("bias_type", ctypes.c_int32(table.types[kind]))
        for ours, theirs in _SCALES.items():
            if ours in vectors and problem.options.get("scale") != "tensor":
                rows = problem.options.get("scale") == "row"
                mode = table.scale_rows if rows else table.scale_e8m0
                self._set_desc(f"{theirs}_mode", ctypes.c_int32(mode))
        for ours, theirs in _VECTORS.items():
            if ours in vectors:
                self._set_desc(theirs, _P(ANY_ADDRESS))

    def bind(self, arguments: ArgumentSet) -> None:
        """Set the addresses of the vectors of an argument set."""
        self.expect(arguments)
        for ours, theirs in _VECTORS.items():
            if ours in arguments:
                self._set_desc(theirs, _P(arguments[ours].address))

    def heuristics(self, most: int, workspace: int) -> list[bytes]:
        """Return the heuristic's algorithms with at most `workspace` bytes, best first, as the
        library's opaque result structures."""
        table = self.library.table
        preference = self._create("MatmulPreference")
        limit = reference_to(ctypes.c_uint64(workspace))
        attribute = (preference, table.workspace_attribute, *limit)
        self.library.call("MatmulPreferenceSetAttribute", *attribute)
        results = ctypes.create_string_buffer(table.heuristic_bytes * most)
        count = ctypes.c_int()
        described = (self.desc, self.a, self.b, self.c, self.d, preference)
        returned = (most, results, ctypes.byref(count))
        self.library.call("MatmulAlgoGetHeuristic", self.library.handle, *described, *returned)
        size, raw = table.heuristic_bytes, results.raw
        return [raw[i * size : (i + 1) * size] for i in range(count.value)]

    def first_choice(self, workspace: int) -> bytes:
        """Return the algorithm that the heuristic prefers with at most `workspace` bytes."""
        table = self.library.table
        results = self.heuristics(1, workspace)
        call = f"{table.prefix}MatmulAlgoGetHeuristic"
        if not results:
            raise Unsupported(f"{call} offers no algorithm for this problem")
        status = int.from_bytes(results[0][table.state_offset :][:4], "little")
        if status:
            raise CaseError(
                Reason(
                    f"{call} failed with status {status}",
                    "library-failed",
                    call=call,
                    status=status,
                )
            )
        return results[0][: table.algo_bytes]

    def close(self) -> None:
        for kind, handle in reversed(self._created):
            self.library.code(f"{kind}Destroy", handle)
        self._created.clear()


class LtKernel(Kernel):
    """One algorithm of the library, bound to every argument set."""

    def __init__(
        self,
        matmuls: Sequence[LtMatmul],
        algorithm: bytes,
        sets: Sequence[ArgumentSet],
        device: Device,
        info: KernelInfo,
    ) -> None:
        self.info = info
        self._matmuls = matmuls
        first = matmuls[0]
        self._library = first.library
        self._algorithm = ctypes.create_string_buffer(algorithm, len(algorithm))
        options = first.problem.options
        self._alpha = scalar(first.scale_type, float(options.get("alpha", 1.0)))
        self._beta = scalar(first.scale_type, float(options.get("beta", 0.0)))
        self._device = device
        self._workspace = device.allocate(info.resources["workspace_bytes"])
        try:
            self._calls = [self._arguments(i, arguments) for i, arguments in enumerate(sets)]
        except BaseException:
            device.free(self._workspace)
            raise

    def _arguments(self, index: int, arguments: ArgumentSet) -> tuple[object, ...]:
        matmul = self._matmuls[min(index, len(self._matmuls) - 1)]
        d = arguments["d"].address
        # cuBLASLt 13 accepts D's address for an unread C only if both have one layout (status 7).
        unread = d if matmul.c_type == matmul.problem.dtypes["c"] else None
        c = arguments["c"].address if "c" in arguments else unread
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
        try:
            _close_all(self._matmuls)
        finally:
            self._device.free(self._workspace)


@contextmanager
def described(library: LtLibrary, problem: Problem) -> Iterator[LtMatmul]:
    """Yield the descriptors of a problem, with placeholders for its vectors."""
    matmul = LtMatmul(library, problem)
    try:
        matmul.expect([spec.name for spec in ops.registry.get(problem.op).tensors(problem)])
        yield matmul
    finally:
        matmul.close()


def list_algorithms(library: LtLibrary, problem: Problem, most: int, workspace: int) -> list[bytes]:
    """Return the algorithms that the heuristic offers for a problem with at most `workspace` bytes,
    best first."""
    with described(library, problem) as matmul:
        return [result[: library.table.algo_bytes] for result in matmul.heuristics(most, workspace)]


def list_space(name: str, values: Iterable[str], fixed: Config) -> Space | None:
    """Return the space of a list's distinct values, of which the first is the default; None if it
    is empty. All configs have the entries of `fixed`."""
    distinct = tuple(dict.fromkeys(filter(None, values)))
    if not distinct:
        return None
    constant = {key: (value,) for key, value in fixed.items()}
    return Space(parameters={name: distinct, **constant}, default={name: distinct[0], **fixed})


def prepare(
    library: LtLibrary,
    problem: Problem,
    device: Device,
    sets: Sequence[ArgumentSet],
    choose: Callable[[LtMatmul], tuple[bytes, KernelInfo]],
    make: Callable[..., Kernel] = LtKernel,
) -> Kernel:
    """Return a kernel that runs the algorithm that `choose` returns for the problem's
    descriptors, with the workspace in its resources. `make` is called as `LtKernel` is."""
    matmuls = _matmuls(library, problem, sets)
    try:
        algorithm, info = choose(matmuls[0])
        return make(matmuls, algorithm, sets, device, info)
    except BaseException:
        _close_all(matmuls)
        raise


def _matmuls(library: LtLibrary, problem: Problem, sets: Sequence[ArgumentSet]) -> list[LtMatmul]:
    """Return one `LtMatmul` for all sets, or one per set if it contains addresses of the set's
    tensors."""
    own = [arguments for arguments in sets if arguments.keys() & _VECTORS.keys()]
    matmuls: list[LtMatmul] = []
    try:
        for arguments in own or [{}]:
            matmuls.append(LtMatmul(library, problem))
            matmuls[-1].bind(arguments)
    except BaseException:
        _close_all(matmuls)
        raise
    return matmuls


def _close_all(matmuls: Sequence[LtMatmul]) -> None:
    for matmul in matmuls:
        matmul.close()


def supports(problem: Problem, table: LtTable, name: str, known: Sequence[str] = OPS) -> str | None:
    """Return what the library's types and epilogues cannot express, or None; the library reports
    other limits itself."""
    if reason := unknown_op(name, known, problem):
        return reason
    for operand in ("a", "b", "c"):
        if problem.dtypes[operand] not in table.types:
            return wrong_dtypes(name, problem)
    if reason := wrong_acc(name, problem, table.compute):
        return reason
    if problem.dtypes["acc"] == "i32" and problem.options["bias"]:
        return Reason(
            f"{name} applies no bias to {problem.op} with acc=i32",
            "epilogue-missing",
            backend=name,
            names=("bias",),
            op=problem.op,
            given="acc=i32",
        )
    act = str(problem.options.get("act", "none"))
    if act != "none" and (act, False) not in table.epilogues:
        return Reason(f"{name} has no epilogue that applies {act}")
    return None
