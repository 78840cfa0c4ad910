"""A user's kernel file as a backend, measured, checked and tuned like a built-in one. In Python:

    op = "gemm"                             # or several: ("gemm", "batched_gemm")

    def prepare(problem, config, sets):     # sets: a dict of tensors by name per set
        def launch(index): ...              # compute sets[index], write sets[index]["d"]
        return launch

    space = {"block": [32, 64, 128]}        # optional: what can be tuned; or a function of problem

Also optional: `supports(problem)` returns a reason or None; `tensors` is "torch" (the default on a
GPU), "numpy" (the default on the CPU) or "address"; `devices` lists the kinds it runs on. If
`prepare` has a fourth parameter, `stream`, it gets the handle of the timed stream.

A file that also has `inputs` and `reference` defines its op (`ops/_own.py`); another file computes
the same op by referring to it: `op = "./softmax.py"`.

A CUDA or HIP source is described by a comment in it:

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
import contextlib
import ctypes
import hashlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from kernelmark import devices, ops
from kernelmark.backends._rules import refuse_unknown
from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.dtype import TORCH_NAMES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, ProblemError, Unsupported, UsageError
from kernelmark.core.files import parse_toml
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason, prefixed
from kernelmark.core.result import Config, ConfigValue, KernelInfo, Space
from kernelmark.core.units import join_commas
from kernelmark.devices.base import ArgumentSet, Device, Stream, Tensor
from kernelmark.devices.cpu import note_foreign_code
from kernelmark.gpu.driver import Driver, pack
from kernelmark.gpu.rtc import Binary, compile_source
from kernelmark.ops._own import Definition, OwnOp

PREPARE = ("problem", "config", "sets")


def known_ops(path: str, value: Any) -> tuple[str, ...]:
    """Return the ops that a file computes. Refuse an unknown op: every problem would be
    `unsupported`."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path}: op={value!r} is not a valid name", hint='write: op = "gemm"')
    for name in names:
        try:
            ops.registry.get(name)
        except UsageError as error:
            reason = prefixed(error.message, f"{path}: ")
            raise UsageError(reason, hint=error.hint) from None
    return tuple(names)


def known_kinds(path: str, value: Any) -> tuple[str, ...]:
    """Return the device kinds that a file runs on; all if it declares none."""
    kinds = devices.registry.names()
    if value is None:
        return tuple(kinds)
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Collection) or not names:
        raise UsageError(f"{path}: devices={value!r} is unknown", hint='write: devices = ("cpu",)')
    for name in names:
        if name not in kinds:
            raise UsageError(
                f"{path}: devices={name!r} is unknown", hint=f"known: {', '.join(kinds)}"
            )
    return tuple(names)


def known_space(path: str, values: Any) -> Space:
    """Return the space that a file's table declares."""
    if not isinstance(values, Mapping) or not all(
        isinstance(choices, Collection) and not isinstance(choices, str)
        for choices in values.values()
    ):
        raise UsageError(
            f"{path}: space is not a table of names and their values",
            hint='for example: space = {"rows": [64, 128, 256]}',
        )
    return Space(parameters={name: tuple(choices) for name, choices in values.items()})


def check_function(path: str, name: str, function: Any, parameters: tuple[str, ...]) -> None:
    """Raise an error if a function cannot be called with these parameters."""
    wrong = misfit(path, name, function, parameters)
    if wrong is not None:
        raise UsageError(wrong, hint=f"write: def {name}({', '.join(parameters)})")


def check_launch(file: str, launch: Any) -> None:
    """Raise an error if the result of `prepare` is not a function of an argument set's index."""
    if not callable(launch):
        raise CaseError(
            returned(file, "prepare", launch, "a function"),
            hint="return launch, a function of the set's index",
        )
    wrong = misfit(file, "launch", launch, ("index",))
    if wrong is not None:
        raise CaseError(wrong, hint="prepare has to return: def launch(index)")


def returned(file: str, name: str, value: Any, expected: str) -> Reason:
    """Return the reason for refusing a value that a file's function returned."""
    return Reason(f"{file}: {name} returned {type(value).__name__}, not {expected}")


def not_function(file: str, name: str, value: Any) -> Reason:
    """Return the reason for refusing a name that is not a function."""
    return Reason(f"{file}: {name} is {type(value).__name__}, not a function")


def misfit(file: str, name: str, function: Any, parameters: tuple[str, ...]) -> Reason | None:
    """Return why `function` cannot be called with these parameters, or None."""
    if not callable(function):
        return not_function(file, name, function)
    form = _signature(function)
    if form is None:
        return None
    more = dict.fromkeys(handle_names(function)) if name == "prepare" else {}
    try:
        form.bind(*parameters, **more)
    except TypeError:
        return Reason(
            f"{file}: {name}({join_commas(form.parameters)}) cannot be called with"
            f" {join_commas(parameters)}"
        )
    return None


def handle_names(prepare: Callable[..., Any]) -> list[str]:
    """Return which optional parameters a `prepare` has: `stream`, the handle of the timed stream,
    and `device`."""
    form = _signature(prepare)
    return [name for name in ("stream", "device") if form is not None and name in form.parameters]


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # compiled code may have no signature
        return None


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


def declared_launch(text: str, kernel: str) -> list[str] | None:
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
        types, arguments = declared_launch(self._text, self._kernel), self._description["args"]
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


_KINDS = ("torch", "numpy", "address")
# A launch on the fake device: long, so that few are needed, as each also runs on the CPU.
_FAKE_LAUNCH_S = 10e-3
# Top-level modules that kernelmark and the libraries it calls import: a file of such a name beside
# a kernel file must not replace them.
_OF_TOOLS = {
    *sys.stdlib_module_names,
    *("kernelmark", "numpy", "scipy", "ml_dtypes", "pynvml", "amdsmi"),
    *("aiter", "cupy", "iree", "torch", "triton"),
}
_SHOWN = 12  # maximum values of a parameter that a refusal lists


class _Neighbours(importlib.abc.MetaPathFinder):
    """Finds the other modules that kernel files import: beside the file, then in the working
    directory if the file is below it. They come before installed packages, so that each side of a
    comparison imports its own version, and after PYTHONPATH, which the user set."""

    def __init__(self) -> None:
        self.folders: list[str] = []

    def add(self, file: Path) -> None:
        here = Path.cwd()
        folders = [file.resolve().parent, *([here] if file.resolve().is_relative_to(here) else [])]
        self.folders = list(dict.fromkeys([*map(str, folders), *self.folders]))
        if self not in sys.meta_path:
            # Built-in and frozen modules come first, the search path and editable installs last.
            sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if path is not None or name in _OF_TOOLS:
            return None
        first = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        places = [*first, *self.folders, *sys.path]
        return importlib.machinery.PathFinder.find_spec(name, places, target)


_neighbours = _Neighbours()


class ReadConfig(dict[str, ConfigValue]):
    """A config that records which names are read, to find misspelt names in the config of a file
    without a `space`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.read: dict[str, None] = {}  # in order of reading

    @property
    def unread(self) -> set[str]:
        return super().keys() - self.read.keys()

    def __getitem__(self, name: str) -> ConfigValue:
        self.read[name] = None
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read[str(name)] = None
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read[name] = None
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.read[name] = None
        return super().pop(name, *default)

    def __iter__(self) -> Iterator[str]:
        self._read_all()
        return super().__iter__()

    def keys(self) -> Any:
        self._read_all()
        return super().keys()

    def values(self) -> Any:
        self._read_all()
        return super().values()

    def items(self) -> Any:
        self._read_all()
        return super().items()

    def _read_all(self) -> None:
        self.read |= dict.fromkeys(super().keys())


class FileKernel(Kernel):
    """The callable that a user's `prepare` returned."""

    def __init__(self, info: KernelInfo, launch: Callable[[int], Any]) -> None:
        self.info = info
        self._launch = launch

    def launch(self, stream: Stream, set_index: int) -> None:
        self._launch(set_index)  # on the stream that `prepare` got: a device has only one


def _with_fake_time(device: Device, launch: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return a launch that advances the clock of the fake device: a launch of zero duration would
    be repeated until the case times out."""
    from kernelmark.devices.fake import FakeDevice

    assert isinstance(device, FakeDevice)

    def timed(index: int) -> None:
        launch(index)
        device.advance(_FAKE_LAUNCH_S)

    return timed


class FileBackend(Backend):
    """A backend for one kernel file with `op` and `prepare`."""

    summary = "your own kernel"

    def __init__(self, path: str) -> None:
        self.name = path
        self._path = Path(path)
        self._module = _load(self._path)
        self._digest = hashlib.sha256(self._path.read_bytes()).hexdigest()[:16]
        self.device_kinds = known_kinds(path, getattr(self._module, "devices", None))
        self._ops = self._defined(path) or known_ops(path, self._module.op)
        self._check_functions(path)
        self._tensors = str(getattr(self._module, "tensors", ""))
        if self._tensors and self._tensors not in _KINDS:
            raise UsageError(
                f"{path}: tensors={self._tensors!r} is unknown", hint=f"known: {', '.join(_KINDS)}"
            )

    def _defined(self, path: str) -> tuple[str, ...]:
        """Return the op that this file, or the file that it refers to, defines; () if none."""
        named = getattr(self._module, "op", None)
        if isinstance(named, str) and named.endswith(".py"):
            other = self._path.parent / named
            return (define(str(other), _load(other)),)
        return (define(path, self._module),) if getattr(self._module, "inputs", None) else ()

    @property
    def ops(self) -> tuple[str, ...]:
        """Return the names of the ops that the file computes."""
        return self._ops

    def _check_functions(self, path: str) -> None:
        check_function(path, "prepare", self._module.prepare, PREPARE)
        supports = getattr(self._module, "supports", None)
        if supports is not None:
            check_function(path, "supports", supports, ("problem",))
        space = getattr(self._module, "space", None)
        if callable(space):
            check_function(path, "space", space, ("problem",))
        elif space is not None:
            known_space(path, space)

    def available(self) -> str | None:
        return None

    def version(self) -> str:
        return self._digest

    def libraries(self) -> dict[str, str]:
        """Return the versions of the file and of the distributions that it imports: their kernels
        may change between runs although the file does not."""
        return {self._path.name: self._digest, **_owners(_imported(self._module))}

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        if problem.op not in self._ops:
            return Reason(f"{self._path.name} computes {join_commas(self._ops)}, not {problem.op}")
        rule = getattr(self._module, "supports", None)
        reason = None if rule is None else rule(problem)
        if reason is not None and not isinstance(reason, str):
            raise CaseError(
                returned(self._path.name, "supports", reason, "text or None"),
                hint="return why the problem is unsupported, or None",
            )
        return reason

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        space = getattr(self._module, "space", None)
        if space is None:
            return None
        return known_space(self.name, space(problem) if callable(space) else space)

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        has_space = self._check_against_space(problem, config, device.info)
        form = self._tensors or ("numpy" if device.info.kind in ("cpu", "fake") else "torch")
        views = [{name: view(t, device, form) for name, t in tensors.items()} for tensors in sets]
        if form == "torch" and device.info.kind in ("cuda", "hip"):
            use_stream(device)
        prepare = self._module.prepare
        handles = {"stream": device.stream, "device": device}
        more = {name: handles[name] for name in handle_names(prepare)}
        tracked = ReadConfig(config)
        launch = prepare(problem, tracked, views, **more)
        check_launch(self._path.name, launch)
        misspelt = not has_space and bool(tracked.unread)
        if device.info.kind in ("cuda", "hip") or misspelt:
            # A first call may compile or allocate, which is not allowed during capture, and may be
            # the first that reads the config.
            launch(0)
            device.synchronize()
        if misspelt and tracked.unread:
            self._refuse_unread(config, tuple(tracked.read))
        info = getattr(launch, "info", KernelInfo(name=self._path.stem))
        if device.info.kind == "fake":
            launch = _with_fake_time(device, launch)
        return FileKernel(info, launch)

    def check_config(self, problem: Problem, config: Config, info: DeviceInfo) -> None:
        self._check_against_space(problem, config, info)

    def _refuse_unread(self, config: Config, read: tuple[str, ...]) -> None:
        """Raise Unsupported for config names that the file, which has no space, does not read."""
        reads = f"prepare and launch read only {', '.join(read)}" if read else "reads no config"
        refuse_unknown(self._path.name, config, read, why=f"it declares no space, and {reads}")

    def _check_against_space(self, problem: Problem, config: Config, info: DeviceInfo) -> bool:
        """Raise Unsupported for names or values outside the file's space: they would be ignored, or
        never tuned. Return whether the file declares a space."""
        space = self.space(problem, info) if config else None
        if space is None:
            return False
        refuse_unknown(self._path.name, config, tuple(space.parameters))
        for name, value in config.items():
            choices = space.parameters[name]
            if not any(_same(value, choice) for choice in choices):
                listed, more = join_commas(map(_text, choices[:_SHOWN])), len(choices) - _SHOWN
                rest = f" or {more} more" if more > 0 else ""
                raise Unsupported(
                    f"{self._path.name}: {name} is one of {listed}{rest}, not {_text(value)}"
                )
        return True


class SourceBackend(FileBackend):
    """A CUDA or HIP source, which can be compiled ahead, also for an absent GPU."""

    def compile(self, problem: Problem, config: Config, info: DeviceInfo) -> KernelInfo:
        kernel_info: KernelInfo = self._module.compile_ahead(problem, config, info)
        return kernel_info


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(
            f"there is no file {path}",
            hint="-b takes the name of a backend or of a kernel file (.py, .cu, .hip)",
        )
    if path.suffix in SUFFIXES:
        return module_of(path)
    name = f"kernelmark_user_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    _neighbours.add(path)
    sys.modules[name] = module  # Triton looks up a kernel's source through its module
    try:
        with contextlib.redirect_stdout(sys.stderr):  # `--json -` writes to stdout
            note_foreign_code()
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{path} cannot be imported: {type(error).__name__}: {error}",
            hint=f"fix it until this works: python {path}",
        ) from error
    needed = ("prepare",) if hasattr(module, "inputs") else ("op", "prepare")
    for name in needed:
        if not hasattr(module, name):
            raise UsageError(f"{path} defines no {name!r}", hint="it needs: op = …, def prepare(…)")
    return module


def define(path: str, module: ModuleType) -> str:
    """Register the op that a file defines, and return its name."""
    name = getattr(module, "op", None) or re.sub(r"\W", "_", Path(path).stem.lower())
    if not isinstance(name, str) or not re.match(r"[a-z][a-z0-9_]*\Z", name):
        raise UsageError(
            f"{path}: op={name!r} is not a valid name", hint='for example: op = "softmax"'
        )
    for needed in ("inputs", "reference"):
        if not callable(getattr(module, needed, None)):
            raise UsageError(
                f"{path} defines no {needed!r}",
                hint="an op of your own needs: def inputs(…), def reference(…)",
            )
    registered = ops.registry.get(name) if name in ops.registry else None
    if registered is not None and not isinstance(registered, OwnOp):
        raise UsageError(
            f"{path}: op {name!r} is built in", hint="give the op that it defines another name"
        )
    resolved = str(Path(path).resolve())
    if registered is not None and registered.path != resolved:
        raise UsageError(
            f"op {name!r} is defined by {registered.path} and by {resolved}",
            hint=f'use the op of the first file in the second: op = "{registered.path}"',
        )
    fields = {key: getattr(module, key, None) for key in ("output", "flops", "nbytes")}
    for key, function in fields.items():
        if function is not None and not callable(function):
            raise UsageError(not_function(path, key, function))
    bounds = {key: getattr(module, key, None) for key in ("rtol", "atol")}
    for key, value in bounds.items():
        if value is not None and (not isinstance(value, int | float) or not value >= 0):
            raise UsageError(f"{path}: {key}={value!r} is not a number of at least 0")
    definition = Definition(
        inputs=module.inputs,
        reference=module.reference,
        convert=torch_tensor if getattr(module, "tensors", "") == "torch" else None,
        **fields,
        **bounds,
    )
    try:
        op = OwnOp(name, definition, path=resolved)
    except ProblemError as error:
        reason = prefixed(error.message, f"{path}: ")
        raise UsageError(reason, hint=error.hint) from None
    ops.registry.add(name, op)
    return name


def _imported(module: ModuleType) -> set[str]:
    """Return the packages that a file's global names refer to, directly or by their objects."""
    named = {getattr(value, "__module__", None) or "" for value in vars(module).values()}
    named |= {value.__name__ for value in vars(module).values() if isinstance(value, ModuleType)}
    return {name.partition(".")[0] for name in named}


def _owners(packages: set[str]) -> dict[str, str]:
    """Return name and version of the installed distributions that provide these packages."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if not packages.isdisjoint(_packages(distribution)):
            versions.setdefault(distribution.name.lower(), distribution.version)
    return versions


def _packages(distribution: importlib.metadata.Distribution) -> set[str]:
    """Return the packages of a distribution, like `importlib.metadata.packages_distributions`,
    which is slow: it builds a path for every installed file, with torch a third of a second."""
    if declared := distribution.read_text("top_level.txt"):
        return set(declared.split())
    lines = (distribution.read_text("RECORD") or "").splitlines()
    files = (line.rsplit(",", 2)[0] for line in lines)
    return {file.split("/")[0].removesuffix(".py") for file in files if file.endswith(".py")}


def _same(value: ConfigValue, other: ConfigValue) -> bool:
    """Return whether two values are equal, like 10 and 10.0; 1 and True are not."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _text(value: ConfigValue) -> str:
    """Format a value for --config."""
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def view(tensor: Tensor, device: Device, form: str) -> Any:
    """Return a view of a tensor's memory in the form that a kernel takes: address, torch, cupy or
    numpy."""
    on_gpu = device.info.kind in ("cuda", "hip")
    if form == "address":
        return tensor.address
    if form == "torch":
        if on_gpu:
            from kernelmark.backends.torch.gpu import Viewer

            return Viewer(device.info.index).view(tensor)
        from kernelmark.backends.torch.cpu import view as cpu_view

        return cpu_view(tensor)
    if form == "cupy":
        return cupy_array(tensor, device.info.index)
    if on_gpu:
        raise Unsupported("NumPy arrays cannot be on a GPU", hint='set tensors = "torch"')
    from kernelmark.devices.cpu import array

    return array(tensor)


def torch_tensor(values: Any) -> Any:
    """Return a torch tensor that shares the memory of a NumPy array."""
    import torch

    return torch.from_numpy(values)


def cupy_array(tensor: Tensor, index: int) -> Any:
    """Return a CuPy array on a tensor's memory, without ownership."""
    import cupy

    spec = tensor.spec
    dtype = np.dtype(TORCH_NAMES[spec.dtype])  # NumPy has the same names
    nbytes = dtype.itemsize * math.prod(spec.shape)
    memory = cupy.cuda.UnownedMemory(tensor.address, nbytes, tensor, index)
    return cupy.ndarray(spec.shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))


def use_stream(device: Device) -> None:
    """Make the timed stream torch's current one."""
    import torch

    torch.cuda.set_device(device.info.index)
    torch.cuda.set_stream(torch.cuda.ExternalStream(device.stream))
