"""A CUDA or HIP source as a kernel file: a comment in it describes the launch.

    /* kmark
    op = "./softmax.py"               # or a built-in op
    name = "softmax-shared"           # in history; default: the file's name
    kernel = "softmax_rows"
    grid = ["rows"]                   # numbers, or formulas of the op's dims and the config
    block = ["threads"]
    shared = "4 * threads"            # bytes of dynamic shared memory; default: 0
    args = ["out", "x", "cols"]       # tensors by name, and numbers, in the declared types
    dtypes = ["f32"]                  # dtypes that it computes; default: all
    [space]
    threads = [128, 64, 256]          # the first is the default; a macro THREADS in the source
    */

It is compiled at run time by NVRTC or hipRTC, once per config.
"""

from __future__ import annotations

import ast
import ctypes
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, UsageError
from kernelmark.core.files import parse_toml
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, KernelInfo
from kernelmark.core.units import join_commas
from kernelmark.gpu.driver import Driver, pack
from kernelmark.gpu.rtc import Binary, compile_source

SUFFIXES = (".cu", ".hip")

_DESCRIPTION = re.compile(r"/\*\s*kmark\s*\n(.*?)\*/", re.DOTALL)
_KEYS = ("op", "name", "kernel", "grid", "block", "shared", "args", "dtypes", "space")
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("int", "int32_t"), ctypes.c_int32),
    **dict.fromkeys(("unsigned", "unsigned int", "uint32_t"), ctypes.c_uint32),
    **dict.fromkeys(("long", "long long", "int64_t", "ptrdiff_t"), ctypes.c_int64),
    **dict.fromkeys(("unsigned long", "unsigned long long", "uint64_t"), ctypes.c_uint64),
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "cdiv": lambda a, b: -(-a // b),
}
_FORMULAS = "formulas have + - * / // %, min, max and cdiv, dims and the space's parameters"


def declared(text: str, kernel: str) -> list[str] | None:
    """Return the C types of a kernel's parameters; None if there is no such kernel."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    match = re.search(rf"__global__[^;{{}}]*?\b{re.escape(kernel)}\s*\(([^)]*)\)", plain)
    if match is None:
        return None
    types = []
    for parameter in match[1].split(","):
        parts = re.sub(r"\b(const|__restrict__|volatile)\b", " ", parameter.replace("*", " * "))
        types.append(" ".join(parts.split()[:-1]))
    return [kind for kind in types if kind]


def module_of(path: Path) -> ModuleType:
    """Return the source as the module of a kernel file."""
    text = path.read_text(encoding="utf-8")
    comment = _DESCRIPTION.search(text)
    if comment is None:
        raise UsageError(
            f"{path} has no kmark comment that describes its launch",
            hint='it needs a comment: /* kmark, op = "…", kernel = "…", grid, block, args */',
        )
    try:
        description = parse_toml(comment[1])
    except ValueError as error:
        raise UsageError(f"{path}: its kmark comment is not valid TOML: {error}") from None
    _check(path, description)
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    source = _Source(path, text, description)
    for name, value in {
        "op": description["op"],
        "devices": ("cuda", "hip"),
        "tensors": "address",
        "supports": source.supports,
        "prepare": source.prepare,
        "compile_ahead": source.compile,
    }.items():
        setattr(module, name, value)
    if description.get("space"):
        module.space = description["space"]  # type: ignore[attr-defined]
    return module


def _check(path: Path, description: Mapping[str, Any]) -> None:
    file, hint = str(path), f"keys of the kmark comment: {', '.join(_KEYS)}"
    for key in description:
        if key not in _KEYS:
            raise UsageError(f"{file}: {key} is unknown", hint=hint)
    for key in ("op", "kernel", "grid", "block", "args"):
        if key not in description:
            raise UsageError(f"{file}: {key} is missing", hint=hint)
    for key in ("grid", "block", "args"):
        value = description[key]
        if not isinstance(value, list) or not value:
            raise UsageError(
                f"{file}: {key} = {value!r} is not a list of values",
                hint=f'for example: {key} = ["rows"]',
            )
        if key != "args" and len(value) > 3:
            raise UsageError(
                f"{file}: {key} has {len(value)} dimensions, and at most 3 are possible"
            )


class _Source:
    """One source with its launch description."""

    def __init__(self, path: Path, text: str, description: Mapping[str, Any]) -> None:
        self._path = path
        self._text = text
        self._description = description

    def supports(self, problem: Problem) -> str | None:
        """Return why the source does not compute a problem's dtypes, or None."""
        allowed = self._description.get("dtypes", ())
        wrong = [name for name in problem.dtypes.values() if allowed and name not in allowed]
        return f"{self._path.name} computes {', '.join(allowed)}, not {wrong[0]}" if wrong else None

    def compile(self, problem: Problem, config: Config, info: DeviceInfo) -> KernelInfo:
        return self._built(config, info.arch).kernel_info(self._kernel)

    def prepare(
        self, problem: Problem, config: Config, sets: Sequence[Mapping[str, int]], device: Any
    ) -> Callable[[int], None]:
        driver: Driver = device.driver
        values = {**problem.options, **problem.dims, **self._chosen(config)}
        grid, block = (self._three(key, values) for key in ("grid", "block"))
        shared = int(self._number("shared", self._description.get("shared", 0), values))
        arguments = [pack(*self._arguments(addresses, values)) for addresses in sets]
        binary = self._built(config, device.info.arch)
        function = driver.function(driver.load(binary.code), self._kernel)
        if shared > 48 * 1024:  # CUDA's default limit
            driver.allow_shared(function, shared)
        stream = device.stream

        def launch(index: int) -> None:
            driver.launch(function, grid, block, arguments[index], stream, shared)

        launch.info = binary.kernel_info(self._kernel)  # type: ignore[attr-defined]
        return launch

    @property
    def _kernel(self) -> str:
        return str(self._description["kernel"])

    def _chosen(self, config: Config) -> dict[str, Any]:
        first = {name: values[0] for name, values in self._description.get("space", {}).items()}
        return {**first, **config}

    def _built(self, config: Config, arch: str) -> Binary:
        macros = [f"-D{name.upper()}={_macro(v)}" for name, v in self._chosen(config).items()]
        return compile_source(self._text, arch=arch, name=self._path.name, options=tuple(macros))

    def _three(self, key: str, values: Mapping[str, Any]) -> tuple[int, ...]:
        sizes = [int(self._number(key, formula, values)) for formula in self._description[key]]
        if min(sizes) < 1:
            raise CaseError(f"{self._path.name}: {key}=[{join_commas(sizes)}] is not positive")
        return (*sizes, 1, 1)[:3]

    def _arguments(self, addresses: Mapping[str, int], values: Mapping[str, Any]) -> list[Any]:
        """Return a set's arguments in the kernel's declared types: a number of another width would
        be read together with adjacent bytes."""
        types, arguments = declared(self._text, self._kernel), self._description["args"]
        if types is None:
            raise CaseError(
                f"{self._path.name} has no kernel {self._kernel!r}",
                hint='write: extern "C" __global__ void NAME(…)',
            )
        if len(types) != len(arguments):
            raise CaseError(
                f"{self._path.name}: {self._kernel} takes {len(types)} arguments,"
                f" {len(arguments)} were given"
            )
        packed: list[Any] = []
        for argument, kind in zip(arguments, types, strict=True):
            is_tensor = argument in addresses
            if not (kind.endswith("*") if is_tensor else kind in _TYPES):
                raise CaseError(
                    f"{self._path.name}: {argument!r} in args cannot be a parameter of type {kind}",
                    hint=f"pointers: {', '.join(addresses)}; types of numbers: {', '.join(_TYPES)}",
                )
            if is_tensor:
                packed.append(ctypes.c_void_p(addresses[argument]))
                continue
            value = self._number("args", argument, values)
            packed.append(_TYPES[kind](value if kind in ("float", "double") else int(value)))
        return packed

    def _number(self, key: str, formula: Any, values: Mapping[str, Any]) -> Any:
        try:
            return _value(ast.parse(str(formula), mode="eval").body, values)
        except (SyntaxError, ValueError, TypeError, KeyError, ZeroDivisionError):
            names = ", ".join(values)
            raise CaseError(
                f"{self._path.name}: {key} has {formula!r}, which cannot be computed",
                hint=f"{_FORMULAS}; here: {names}",
            ) from None


def _value(node: ast.AST, values: Mapping[str, Any]) -> Any:
    """Return a formula's value; raise for anything but plain arithmetic."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand, values))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _FUNCTIONS[node.func.id](*(_value(argument, values) for argument in node.args))
    raise ValueError


def _macro(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
