"""cuBLASLt through ctypes: the heuristic's choice, or any algorithm as a config."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from kernelmark.backends import _lt, _rules
from kernelmark.backends._cublaslt_space import ATTRIBUTES, every_algorithm, traits
from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, KernelInfo, Space
from kernelmark.devices.base import ArgumentSet, Device
from kernelmark.gpu.library import missing_library

MOST_ALGORITHMS = 256
_HEURISTIC = 8  # algorithms that the heuristic returns at most, whatever is requested

# From library_types.h, cublas_api.h and cublasLt.h; tests/backends/test_cuda_headers.py compares
# them with CUDA 12.9 and 13.8.
TABLE = _lt.LtTable(
    prefix="cublasLt",
    types=_lt.TYPES,
    compute={"f16": 64, "f32": 68, "f64": 70, "i32": 72},
    transpose=(0, 1),
    desc={
        "transa": 3,
        "transb": 4,
        "epilogue": 7,
        "bias": 8,
        "a_scale": 17,
        "b_scale": 18,
        "d_scale": 20,
        "bias_type": 26,
        "a_scale_mode": 31,
        "b_scale_mode": 32,
    },
    layout={"batch_count": 5, "batch_stride": 6},
    workspace_attribute=1,
    workspace_kib={"": 8320, "sm_90": 32 * 1024, "sm_10": 32 * 1024, "sm_12": 32 * 1024},
    workspace_variables=("CUBLASLT_WORKSPACE_SIZE",),
    epilogues=_lt.EPILOGUES,
    scale_e8m0=2,
    scale_rows=3,
    algo_bytes=64,
    heuristic_bytes=96,
    state_offset=72,
    not_supported=15,
    alloc_failed=3,
    c_of_f8="bf16",
)

_EXAMPLES = (
    *("gemm *", "batched_gemm *", "gemm_epilogue *"),
    *("!*scale=block*", "!*fnuz*", "!*i8 alpha=*", "!*act=silu*", "!*f4e2m1*"),
)


def _candidates() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    wheels = [str(p) for f in folders for p in Path(f).glob("*/lib/libcublasLt.so.*[0-9]")]
    return sorted(wheels, reverse=True) + [f"libcublasLt.so.{v}" for v in (13, 12, 11)]


@functools.cache
def _shared_object() -> ctypes.CDLL | None:
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@functools.cache
def _library() -> _lt.LtLibrary:
    shared_object = _shared_object()
    if shared_object is None:
        raise UsageError(Reason("libcublasLt not found", "library-missing", library="libcublasLt"))
    return _lt.LtLibrary(TABLE, shared_object)


def describe(algorithm: bytes) -> str:
    """Format an algorithm as text that `parse` reads: id=66 tile=20 …"""
    buffer = ctypes.create_string_buffer(algorithm, TABLE.algo_bytes)
    parts = []
    for name, (number, kind) in ATTRIBUTES.items():
        value, written = kind(), ctypes.c_size_t()
        code = _library().code(
            "MatmulAlgoConfigGetAttribute",
            buffer,
            number,
            *_lt.reference_to(value),
            ctypes.byref(written),
        )
        if code == 0:
            parts.append(f"{name}={value.value}")
    return " ".join(parts)


def parse(text: str, matmul: _lt.LtMatmul) -> bytes:
    """Return the algorithm described by text from `describe`, for this problem's types."""
    try:
        attributes = {name: int(value) for name, value in (w.split("=") for w in text.split())}
    except ValueError:
        raise UsageError(f"{text!r} is not a cuBLASLt algorithm", hint="id=… tile=… …") from None
    if "id" not in attributes:
        raise UsageError(f"{text!r} names no algorithm", hint="begin with id=…")
    algorithm = ctypes.create_string_buffer(TABLE.algo_bytes)
    _library().call(
        "MatmulAlgoInit", _library().handle, *_types(matmul), attributes["id"], algorithm
    )
    for name, (number, kind) in ATTRIBUTES.items():
        if name in attributes and name != "id":
            attribute = (algorithm, number, *_lt.reference_to(kind(attributes[name])))
            _library().call("MatmulAlgoConfigSetAttribute", *attribute)
    return algorithm.raw


def _types(matmul: _lt.LtMatmul) -> tuple[int, ...]:
    """Return the types that choose an algorithm: compute, scale, A, B, C, D of the library."""
    types, dtypes = TABLE.types, matmul.problem.dtypes
    kinds = (matmul.scale_type, dtypes["b"], dtypes["a"], matmul.c_type, dtypes["c"])
    return TABLE.compute[matmul.scale_type], *(types[kind] for kind in kinds)


@functools.lru_cache(maxsize=64)
def _listed(problem: Problem, workspace: int) -> tuple[str, ...]:
    """Return the algorithms for a problem as texts, those of the heuristic first."""
    chosen = _lt.list_algorithms(_library(), problem, MOST_ALGORITHMS, workspace)
    if not chosen:
        return ()
    with _lt.described(_library(), problem) as matmul:
        every = [algorithm.text for algorithm in every_algorithm(matmul, _types(matmul))]
    return tuple(dict.fromkeys((*map(describe, chosen), *every)))


class CublasLt(Backend):
    """cuBLASLt. `{}` is the heuristic's first choice; {"algo": "id=66 tile=20 …"} any other."""

    name = "cublaslt"
    summary = "NVIDIA's cuBLASLt: heuristic choice or any algorithm it offers"
    device_kinds = ("cuda",)
    supports_examples = FrozenDict(
        {"sm_90": (*_EXAMPLES, "!*scale=mx*"), "sm_100": (*_EXAMPLES, "!*scale=mx", "!*scale=row")}
    )

    def available(self) -> str | None:
        if _shared_object() is None:
            return missing_library("libcublasLt.so", "install CUDA, or a torch built for CUDA")
        return None

    def version(self) -> str:
        library = _shared_object()
        if library is None:
            return "0.0.0"
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        number = int(library.cublasLtGetVersion())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        if reason := (
            _rules.wrong_device(self.name, self.device_kinds, info)
            or _rules.wrong_scales(self.name, problem, info)
            or _lt.supports(problem, TABLE, self.name)
            or _rules.wrong_bias_type(self.name, problem)
        ):
            return reason
        if problem.options.get("scale") == "row" and info.arch != "sm_90":
            return Reason(f"{self.name} applies scale=row on sm_90 only, not on {info.arch}")
        narrow = [problem.dtypes[x] for x in "ab" if problem.dtypes[x].startswith("f8")]
        if narrow and (problem.options["ta"] == "t" or problem.options["tb"] != "t"):
            return Reason(
                f"{self.name} multiplies {narrow[0]} only as ta=n tb=t",
                "layout-unsupported",
                backend=self.name,
                dtype=narrow[0],
                layout="ta=n tb=t",
            )
        return None

    def settings(self, info: DeviceInfo) -> Config:
        return _lt.settings(TABLE, info)

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        fixed = self.settings(info)
        workspace = _lt.workspace_bytes(TABLE, fixed, info)
        space = _lt.list_space("algo", _listed(problem, workspace), fixed)
        if space is None:
            return None
        few = space.parameters["algo"][1:_HEURISTIC]
        seeds = tuple(FrozenDict({"algo": text, **fixed}) for text in few)
        return dataclasses.replace(space, seeds=seeds, traits=FrozenDict({"algo": traits}))

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        _rules.refuse_unknown(self.name, config, ("algo", _lt.WORKSPACE))
        workspace = _lt.workspace_bytes(TABLE, config, device.info)

        def choose(matmul: _lt.LtMatmul) -> tuple[bytes, KernelInfo]:
            if "algo" in config:
                algorithm = parse(str(config["algo"]), matmul)
            else:
                algorithm = matmul.first_choice(workspace)
            resources = {"workspace_bytes": workspace}
            return algorithm, KernelInfo(name=describe(algorithm), resources=resources)

        return _lt.prepare(_library(), problem, device, sets, choose)


backend = CublasLt()
