"""rocBLAS through ctypes: its own choice, or any solution by its name, as a config.

rocBLAS lists the numbers of its solutions and has no function for their names. If bit 4 of
TENSILE_DB is set when the process starts, Tensile prints the name of each solution that is looked
up, so a child process makes rocBLAS check each number: `python -m kernelmark.backends.rocblas
DEVICE PROBLEM`. The child uses real buffers, because rocBLAS 4.3 launches hipBLASLt's solutions
even if only a check was requested. The printed line also has Tensile's own index, which override
files use.

The sign of a number does not identify the library: rocBLAS 5 lists Tensile's solutions as negative
numbers, 4.4 and earlier as index + 1. hipBLASLt's are index + 1 in both. A list has solutions of
one library only: of hipBLASLt if rocBLAS uses it, which depends on the architecture and on
ROCBLAS_USE_HIPBLASLT.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import re
import subprocess
import sys
from collections.abc import Sequence

from kernelmark import ops
from kernelmark.backends import _lt, _rules, hipblaslt
from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, KernelmarkError, Unsupported, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, KernelInfo, Space
from kernelmark.core.units import duration_text
from kernelmark.devices.base import ArgumentSet, Device, Stream
from kernelmark.gpu import driver as drivers
from kernelmark.gpu import rocm
from kernelmark.host.processes import last_line, own_command, run_child

LIBRARIES = ("librocblas.so.5", "librocblas.so.4", "librocblas.so")
# rocblas_datatype, _operation, _gemm_algo, _gemm_flags and _status;
# tests/backends/test_rocm_headers.py compares them with ROCm's headers.
TYPES = {"f16": 150, "f32": 151, "f64": 152, "i8": 160, "i32": 162, "bf16": 168}
TRANSPOSE = (111, 112)
STANDARD, BY_INDEX = 0, 1
CHECK_ONLY = 8
NOT_SUPPORTED = (2, 14, 15)  # not implemented, excluded from build, architecture mismatch
MEMORY_ERROR = 5
_P = ctypes.c_void_p
_NAMES_TIMEOUT_S = 300.0
# Only names and numbers are read, so every solution is listed, whatever workspace it needs.
_HIPBLASLT_WORKSPACE = 2**32
_ASKED = "@"
_NAMED = re.compile(r"^Selection solution with index: (\d+) and name: '(.+)'$")
# Placeholder: listing solutions checks addresses but never reads from them.
_SOME_ADDRESS = 4096
# Numbers from -10 to -1 are rocBLAS's own kernels: -9 is gemv, which runs even if only checked.
_RESERVED = 10
# Architectures on which rocBLAS prefers gemv to any solution with a negative number if m or n is 1
# (rocblas_use_gemv_in_gemm).
_GEMV_ARCHS = re.compile(r"gfx(906|908|90a|10..|11..)")


@functools.cache
def _shared_object() -> ctypes.CDLL | None:
    return rocm.load(LIBRARIES)


def _call(name: str, *arguments: object) -> None:
    library = _shared_object()
    if library is None:
        raise UsageError(_not_found())
    status = int(library[f"rocblas_{name}"](*arguments))
    _lt.check_status(f"rocblas_{name}", status, NOT_SUPPORTED, MEMORY_ERROR)


def _not_found() -> Reason:
    return rocm.missing(LIBRARIES[-1])


class Handle:
    """A library handle on the device `index`."""

    def __init__(self, index: int) -> None:
        drivers.driver("hip").use(index)
        self.value = _P()
        _call("create_handle", ctypes.byref(self.value))

    def close(self) -> None:
        _call("destroy_handle", self.value)

    def workspace_bytes(self) -> int:
        """Return the size of the workspace: the library's default for the architecture, or
        ROCBLAS_DEVICE_MEMORY_SIZE. Solutions that need more are not listed."""
        size = ctypes.c_size_t()
        _call("get_device_memory_size", self.value, ctypes.byref(size))
        return size.value


class RocblasGemm:
    """The arguments of rocblas_gemm_ex or of its strided batch, which end with an algorithm.

    Our matrices are row-major, the library's column-major: A and B are exchanged."""

    def __init__(self, problem: Problem) -> None:
        m, n, k = (problem.dims[x] for x in "mnk")
        ta, tb = (problem.options[name] == "t" for name in ("ta", "tb"))
        self.batch = problem.dims.get("batch")
        self.name = "gemm_strided_batched_ex" if self.batch else "gemm_ex"
        acc = problem.dtypes["acc"]
        self._alpha, self._beta = (
            _lt.scalar(acc, float(problem.options[name])) for name in ("alpha", "beta")
        )
        self._start = (TRANSPOSE[tb], TRANSPOSE[ta], n, m, k)
        a, b, c = (TYPES[problem.dtypes[name]] for name in "abc")
        # Type, leading dimension and elements of the library's A, B, C and D.
        self._operands = (
            (b, k if tb else n, n * k),
            (a, m if ta else k, m * k),
            (c, n, m * n),
            (c, n, m * n),
        )
        self._compute = TYPES[acc]

    def arguments(self, handle: Handle, addresses: Sequence[int]) -> tuple[object, ...]:
        """Return the arguments up to the compute type; `addresses` are those of A, B, C and D."""
        operands = [
            (_P(address), kind, leading, *([ctypes.c_int64(count)] if self.batch else []))
            for address, (kind, leading, count) in zip(addresses, self._operands, strict=True)
        ]
        a, b, c, d = operands
        factors = ctypes.byref(self._alpha), ctypes.byref(self._beta)
        count = [self.batch] if self.batch else []
        start = (handle.value, *self._start)
        return (*start, factors[0], *a, *b, factors[1], *c, *d, *count, self._compute)


def runs_gemv(problem: Problem, arch: str) -> bool:
    """Return whether rocBLAS runs gemv instead of the requested solution."""
    return 1 in (problem.dims["m"], problem.dims["n"]) and bool(_GEMV_ARCHS.fullmatch(arch))


def _listed(handle: Handle, index: int, problem: Problem) -> list[int]:
    """Return the numbers of the solutions that can solve a problem and would really run."""
    gemm = RocblasGemm(problem)
    size, nowhere = ctypes.c_int(), (_SOME_ADDRESS,) * 4
    arguments = (*gemm.arguments(handle, nowhere), BY_INDEX, 0)
    _call(f"{gemm.name}_get_solutions", *arguments, None, ctypes.byref(size))
    listed = (ctypes.c_int * max(1, size.value))()
    _call(f"{gemm.name}_get_solutions", *arguments, listed, ctypes.byref(size))
    # 0 pads the list if there are fewer.
    numbers = [x for x in dict.fromkeys(listed[: size.value]) if x > 0 or x < -_RESERVED]
    if runs_gemv(problem, drivers.driver("hip").arch(index)):
        return [number for number in numbers if number > 0]
    return numbers


def _named(index: int, problem: Problem) -> dict[int, hipblaslt.Solution]:
    """Return the solutions already named for this kind of problem, by negative number: rocBLAS 5
    numbers its whole library, so a number has one name for all sizes."""
    return _names_of(index, problem.op, problem.dtypes, *(problem.options[x] for x in ("ta", "tb")))


@functools.cache
def _names_of(*kind: object) -> dict[int, hipblaslt.Solution]:
    return {}


@functools.lru_cache(maxsize=8)
def _numbers(index: int, problem: Problem) -> tuple[int, ...]:
    handle = Handle(index)
    try:
        return tuple(_listed(handle, index, problem))
    finally:
        handle.close()


def chosen(index: int, problem: Problem, config: Config) -> hipblaslt.Solution:
    """Return the solution of a config. A name that is known from other sizes needs no child
    process: one per size took half of the tuning time."""
    name = config.get("solution")
    same = (item for item in _named(index, problem).values() if item.name == name)
    number = next(same, None)
    if number is None or "solution_index" in config:
        return hipblaslt.chosen(solutions(index, problem), config)
    numbers = _numbers(index, problem)
    if number.index not in numbers:
        raise Unsupported(
            f"the library has no solution called {name!r} among its {len(numbers)}"
            " for this problem: it is of another build, or of another problem"
        )
    return number


@functools.lru_cache(maxsize=8)
def solutions(index: int, problem: Problem) -> tuple[hipblaslt.Solution, ...]:
    """Return every solution that rocBLAS on device `index` has a name for."""
    numbers = _numbers(index, problem)
    if not numbers:
        return ()
    names = _named(index, problem)
    if not names.keys() >= set(numbers):
        named = _tensile_solutions(index, problem) or _hipblaslt_solutions(index, problem)
        names.update({number: name for number, name in named.items() if number < 0})
        names = {**names, **named}
    return tuple(names[number] for number in numbers if number in names)


def _hipblaslt_solutions(index: int, problem: Problem) -> dict[int, hipblaslt.Solution]:
    try:
        numbers = hipblaslt.solutions(index, problem, _HIPBLASLT_WORKSPACE)
    except KernelmarkError:  # a rocBLAS built without hipBLASLt, or with another copy
        return {}
    return {
        item.index + 1: dataclasses.replace(item, index=item.index + 1)
        for item in numbers
        if item.name
    }


def _tensile_solutions(index: int, problem: Problem) -> dict[int, hipblaslt.Solution]:
    command = own_command("kernelmark.backends.rocblas", str(index), problem.key)
    try:
        done = run_child(
            command, timeout_s=_NAMES_TIMEOUT_S, env={**os.environ, "TENSILE_DB": "0x4"}
        )
    except subprocess.TimeoutExpired:
        limit = duration_text(_NAMES_TIMEOUT_S)
        raise CaseError(
            f"rocBLAS could not list its solutions: rocBLAS did not end within {limit}"
        ) from None
    if done.returncode:
        raise CaseError(f"rocBLAS could not list its solutions: {last_line(done.stderr)}")
    return {
        number: hipblaslt.Solution(name=name, index=number, algorithm=b"", tensile_index=at)
        for number, (name, at) in parse_names(done.stdout.decode(errors="replace")).items()
    }


def parse_names(text: str) -> dict[int, tuple[str, int]]:
    """Parse the names and indices that Tensile printed, by solution number."""
    names: dict[int, tuple[str, int]] = {}
    number = 0
    for line in text.splitlines():
        if line.startswith(_ASKED):
            number = int(line.removeprefix(_ASKED))
        elif match := _NAMED.match(line):
            names.setdefault(number, (match[2], int(match[1])))
    return names


def main(arguments: Sequence[str]) -> None:
    """Make Tensile print the name of each solution of a problem, after its number."""
    index, problem = int(arguments[0]), ops.parse(arguments[1])
    handle, gemm = Handle(index), RocblasGemm(problem)
    library, hip = _shared_object(), drivers.driver("hip")
    assert library is not None
    function = library[f"rocblas_{gemm.name}"]
    specs = ops.registry.get(problem.op).tensors(problem)
    places = {spec.name: hip.allocate(max(1, spec.nbytes)) for spec in specs}
    d = places["d"]
    common = gemm.arguments(handle, (places["b"], places["a"], places.get("c", d), d))
    for number in _listed(handle, index, problem):
        sys.stdout.write(f"{_ASKED}{number}\n")
        sys.stdout.flush()
        function(*common, BY_INDEX, number, CHECK_ONLY)


class RocblasKernel(Kernel):
    """A rocBLAS GEMM with one solution, or with rocBLAS's own choice."""

    def __init__(
        self,
        problem: Problem,
        solution: hipblaslt.Solution | None,
        device: Device,
        sets: Sequence[ArgumentSet],
    ) -> None:
        gemm = RocblasGemm(problem)
        self._name = gemm.name
        algorithm = (BY_INDEX, solution.index, 0) if solution else (STANDARD, 0, 0)
        with contextlib.ExitStack() as undo:
            memory = undo.enter_context(contextlib.ExitStack())  # outlives the handle that uses it
            self._handle = Handle(device.info.index)
            undo.callback(self._handle.close)
            size = self._handle.workspace_bytes()
            if size:
                # rocBLAS's own workspace would grow by an allocation inside a launch. Use the same
                # size, since it determines which solutions rocBLAS can run.
                workspace = device.allocate(size)
                memory.callback(device.free, workspace)
                address, count = _P(workspace.address), ctypes.c_size_t(size)
                _call("set_workspace", self._handle.value, address, count)
            self._gemm = gemm  # owns alpha and beta
            self._calls = [
                (*gemm.arguments(self._handle, _addresses(item)), *algorithm) for item in sets
            ]
            self._undo = undo.pop_all()
        resources = {"workspace_bytes": size}
        if solution:
            resources["solution_index"] = solution.index
            if solution.tensile_index is not None:
                resources["tensile_index"] = solution.tensile_index
        name = solution.name if solution else f"rocblas_{gemm.name}"
        self.info = KernelInfo(name=name, resources=resources)

    def launch(self, stream: Stream, set_index: int) -> None:
        _call("set_stream", self._handle.value, _P(stream))
        _call(self._name, *self._calls[set_index])

    def close(self) -> None:
        self._undo.close()


def _addresses(arguments: ArgumentSet) -> tuple[int, int, int, int]:
    d = arguments["d"].address
    c = arguments["c"].address if "c" in arguments else d
    return arguments["b"].address, arguments["a"].address, c, d


class Rocblas(Backend):
    """rocBLAS. `{}` is its own choice; {"solution": NAME} any other. An index may be added; it is
    refused if it belongs to another solution."""

    name = "rocblas"
    summary = f"AMD's rocBLAS: its own choice or any solution; {_rules.ON_AMD}"
    device_kinds = ("hip",)
    supports_examples = FrozenDict(
        {"gfx942": ("gemm *", "batched_gemm *", "!*dtype=f8*", "!*bias=yes*")}
    )

    def available(self) -> str | None:
        return _not_found() if _shared_object() is None else drivers.unavailable("hip")

    def version(self) -> str:
        """Return the version as TunableOp writes it: 5.2.0.5b515cf1bc."""
        size = ctypes.c_size_t()
        _call("get_version_string_size", ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value + 1)
        _call("get_version_string", text, size)
        return text.value.decode()

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        reason = _rules.wrong_device(self.name, self.device_kinds, info)
        if reason := reason or _rules.unknown_op(self.name, ("gemm", "batched_gemm"), problem):
            return reason
        if any(kind not in TYPES for kind in problem.dtypes.values()):
            return _rules.wrong_dtypes(self.name, problem)
        if problem.options["bias"]:
            return Reason(
                f"{self.name} applies no bias to {problem.op}",
                "epilogue-missing",
                backend=self.name,
                names=("bias",),
                op=problem.op,
            )
        return None

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        hipblaslt.check_present(info)
        names = (item.name for item in solutions(info.index, problem))
        return _lt.list_space("solution", names, FrozenDict())

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        _rules.refuse_unknown(self.name, config, ("solution", "solution_index"))
        solution = None
        if config:
            solution = chosen(device.info.index, problem, config)
        return RocblasKernel(problem, solution, device, sets)


backend = Rocblas()

if __name__ == "__main__":
    main(sys.argv[1:])
