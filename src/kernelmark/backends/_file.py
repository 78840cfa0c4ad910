"""A user's Python kernel file as a backend, measured, checked and tuned like a built-in one.

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
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from kernelmark import ops
from kernelmark.backends import _file_rules as rules
from kernelmark.backends import _source
from kernelmark.backends._rules import refuse_unknown
from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.dtype import TORCH_NAMES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, ProblemError, Unsupported, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason, prefixed
from kernelmark.core.result import Config, ConfigValue, KernelInfo
from kernelmark.core.space import Space
from kernelmark.core.units import join_commas
from kernelmark.devices.base import ArgumentSet, Device, Stream, Tensor
from kernelmark.ops._own import Definition, OwnOp

_KINDS = ("torch", "numpy", "address")
# A launch on the fake device: long, so that few are needed, as each also runs on the CPU.
_FAKE_LAUNCH_S = 10e-3
_SHOWN = 12  # maximum values of a parameter that a refusal lists


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
        self.device_kinds = rules.known_kinds(path, getattr(self._module, "devices", None))
        self._ops = self._defined(path) or rules.known_ops(path, self._module.op)
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
        rules.check_function(path, "prepare", self._module.prepare, rules.PREPARE)
        supports = getattr(self._module, "supports", None)
        if supports is not None:
            rules.check_function(path, "supports", supports, ("problem",))
        space = getattr(self._module, "space", None)
        if callable(space):
            rules.check_function(path, "space", space, ("problem",))
        elif space is not None:
            rules.known_space(path, space)

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
                rules.returned(self._path.name, "supports", reason, "text or None"),
                hint="return why the problem is unsupported, or None",
            )
        return reason

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        space = getattr(self._module, "space", None)
        if space is None:
            return None
        return rules.known_space(self.name, space(problem) if callable(space) else space)

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
        more = {name: handles[name] for name in rules.handles(prepare)}
        tracked = ReadConfig(config)
        launch = prepare(problem, tracked, views, **more)
        rules.check_launch(self._path.name, launch)
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
                known, more = join_commas(map(_text, choices[:_SHOWN])), len(choices) - _SHOWN
                others = f" or {more} more" if more > 0 else ""
                raise Unsupported(
                    f"{self._path.name}: {name} is one of {known}{others}, not {_text(value)}"
                )
        return True


class SourceBackend(FileBackend):
    """A CUDA or HIP source, which can be compiled ahead, also for an absent GPU."""

    def compile(self, problem: Problem, config: Config, info: DeviceInfo) -> KernelInfo:
        made: KernelInfo = self._module.compile_ahead(problem, config, info)
        return made


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(
            f"there is no file {path}",
            hint="-b takes the name of a backend or of a kernel file (.py, .cu, .hip)",
        )
    if path.suffix in _source.SUFFIXES:
        return _source.module_of(path)
    name = f"kernelmark_user_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Triton looks up a kernel's source through its module
    try:
        with contextlib.redirect_stdout(sys.stderr):  # `--json -` writes to stdout
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
    place = str(Path(path).resolve())
    if registered is not None and registered.place != place:
        raise UsageError(
            f"op {name!r} is defined by {registered.place} and by {place}",
            hint=f'use the op of the first file in the second: op = "{registered.place}"',
        )
    fields = {key: getattr(module, key, None) for key in ("output", "flops", "nbytes")}
    for key, function in fields.items():
        if function is not None and not callable(function):
            raise UsageError(rules.not_function(path, key, function))
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
        op = OwnOp(name, definition, place=place)
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


def _same(one: ConfigValue, other: ConfigValue) -> bool:
    """Return whether two values are equal, like 10 and 10.0; 1 and True are not."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


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
