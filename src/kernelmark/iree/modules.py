"""Compilation of a module in several variants, and its runs.

iree-run-module returns the outputs and iree-benchmark-module the times. Both run in a child
process, so that a crashing kernel ends its variant only, and each round of timings has its own
allocations.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernelmark.backends.iree.compiler import (
    DUMP_PREFIX,
    MODULE_LIMIT_S,
    ToolRound,
    compiler_present,
    dump_flag,
    explain,
    load_configs,
    parse_round,
    run_dumping,
    run_limited,
    run_tool,
    tool,
    tool_command,
)
from kernelmark.backends.iree.spec import MAIN, PREPROCESSING_FLAG, SPEC_FLAG
from kernelmark.backends.iree.targets import Target, kernel_resources, target_named
from kernelmark.core.dtype import DTYPES, dtype
from kernelmark.core.errors import CaseError, CompileError, UsageError, located
from kernelmark.core.files import user_path
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.units import counted, join_commas
from kernelmark.iree.signature import Signature, TensorType, parse_type
from kernelmark.kernels.mlir.base import DTYPE_OF
from kernelmark.numerics.floats import decode, encode, storage

_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
_OBJECTS = (".o", ".so", ".bc", ".hsaco", ".co", ".cubin", ".ptx", ".spv")
_TARGETS = "for example: cpu, gfx942, gfx1100, sm_80, vulkan, vulkan:rdna3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to compile a module: compiler flags, specs and external kernel objects. A `candidate`
    may fail, and is measured in full only if it is among the fastest."""

    name: str
    flags: tuple[str, ...] = ()
    specs: tuple[Path, ...] = ()
    objects: tuple[Path, ...] = ()
    candidate: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments for iree-compile."""
        folders = dict.fromkeys(path.parent for path in self.objects)
        return (
            *self.flags,
            *(f"{flag}={path}" for path in self.specs for flag in _spec_flags(path)),
            *(f"--iree-hal-executable-object-search-path={folder}" for folder in folders),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDispatch:
    """A kernel that the compiler created. `config` is its translation info and lowering configs as
    the compiler prints them (pipeline, tile sizes, intrinsic)."""

    name: str
    config: tuple[str, ...] = ()
    resources: Mapping[str, int] = field(default_factory=FrozenDict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModule:
    """A compiled variant. `sources` are the dispatches before lowering, by file name."""

    variant: Variant
    binary: Path
    sha256: str
    compile_s: float
    dispatches: tuple[ModuleDispatch, ...]
    sources: Mapping[str, str]


def parse_variant(text: str) -> Variant:
    """Parse `NAME:WORDS`: flags, specs (.mlir) and objects, separated as in a shell."""
    name, colon, rest = text.partition(":")
    if not _NAME.match(name) or not colon:
        raise UsageError(
            f"{text!r} is not NAME:FLAGS",
            hint="for example: --variant base: --variant tiled:'--iree-opt-data-tiling spec.mlir'",
        )
    with located(f"--variant {name}"):
        return _parse_words(name, split_words(rest))


def _parse_words(name: str, parts: Sequence[str]) -> Variant:
    flags, specs, objects = [], [], []
    for word in parts:
        if word.startswith("-"):
            flags.append(word)
            continue
        path = user_path(word.removeprefix("+")).absolute()
        if not path.is_file():
            raise UsageError(f"there is no file {path}")
        if path.suffix == ".mlir":
            specs.append(path)
        elif path.suffix in _OBJECTS:
            objects.append(path)
        else:
            suffixes = f"a spec is .mlir, a kernel object one of {', '.join(_OBJECTS)}"
            raise UsageError(f"{path.name} is neither a spec nor a kernel object", hint=suffixes)
    return Variant(name=name, flags=tuple(flags), specs=tuple(specs), objects=tuple(objects))


def load_candidates(folder: Path, base: Variant) -> tuple[Variant, ...]:
    """Return a variant for each spec in a folder, with the flags and objects of `base`. Numbers in
    the names of files count as numbers: 10_spec.mlir follows 9_spec.mlir."""
    files = sorted(
        folder.glob("*.mlir"),
        key=lambda path: [
            (not word.isdigit(), word.zfill(20)) for word in _NUMBER.split(path.stem)
        ],
    )
    if not files:
        raise UsageError(f"there is no .mlir file in {folder}")
    return tuple(
        dataclasses.replace(
            base,
            name=re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem),
            specs=(*base.specs, path.absolute()),
            candidate=True,
        )
        for path in files
    )


_NUMBER = re.compile(r"(\d+)")


def split_words(text: str) -> list[str]:
    """Split as a shell does. Raise UsageError if a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError:
        raise UsageError(
            f"a quote in {text!r} is not closed", hint="close it, or leave it out"
        ) from None


def build_variant(module: Path, variant: Variant, target: Target, folder: Path) -> BuiltModule:
    """Compile `module` into `folder`. Raise CompileError if the compiler fails."""
    if not compiler_present():
        raise UsageError(
            "iree-base-compiler is not installed", hint='pip install "kernelmark[iree]"'
        )
    folder.mkdir(parents=True, exist_ok=True)
    binary, dumps = folder / f"{variant.name}.vmfb", folder / variant.name
    flags = (*target.device_flags, *variant.arguments)
    start = time.perf_counter()
    done = run_dumping(
        [tool("iree-compile"), str(module), *flags, "-o", str(binary)],
        str(dumps),
        (dump_flag(dumps), f"--iree-hal-dump-executable-sources-to={dumps}"),
        limit_s=MODULE_LIMIT_S,
    )
    compile_s = time.perf_counter() - start
    if done.returncode or not binary.is_file():
        _refuse_unknown_target(target)
        source = module.read_text(encoding="utf-8", errors="replace")
        log = done.stderr.decode(errors="replace")
        raise CompileError(
            explain(done.returncode, log, source), hint=f"flags: {shlex.join(flags)}"
        )
    code = binary.read_bytes()
    used = kernel_resources(code)
    return BuiltModule(
        variant=variant,
        binary=binary,
        sha256=hashlib.sha256(code).hexdigest(),
        compile_s=compile_s,
        dispatches=tuple(
            ModuleDispatch(name=name, config=config, resources=FrozenDict(used.get(name, {})))
            for name, config in load_configs(dumps).items()
        ),
        sources={
            path.name: path.read_text(encoding="utf-8")
            for path in sorted(dumps.glob("*.mlir"))
            if not path.name.startswith(DUMP_PREFIX)
        },
    )


@functools.cache
def _refuse_unknown_target(target: Target) -> None:
    """Raise UsageError if the compiler has no such target: then it fails on an empty module.

    Called only after a compilation failed, because it takes a second.
    """
    tool_command = [tool("iree-compile"), "-", *target.device_flags, "--compile-to=stream"]
    done = run_limited(tool_command, input=b"module {}")
    if done.returncode:
        log = done.stderr.decode(errors="replace")
        cause = explain(done.returncode, log, "").splitlines()[0]
        raise UsageError(f"IREE's compiler has no target {target.name}: {cause}", hint=_TARGETS)


def specs_applied(built: BuiltModule, plain: BuiltModule) -> bool:
    """Return whether specs changed any dispatch, compared with the same flags without them."""
    return (built.dispatches, built.sources) != (plain.dispatches, plain.sources)


def lower_module(module: Path, flags: Sequence[str]) -> bytes:
    """Return the module after the import of its dialects (torch, TOSA, StableHLO …), as MLIR of
    linalg ops on tensors. Raise CompileError if the compiler fails."""
    command = [tool("iree-compile"), str(module), "--iree-hal-target-device=local", *flags]
    done = run_limited([*command, "--compile-to=input"], limit_s=MODULE_LIMIT_S)
    if done.returncode:
        log = done.stderr.decode(errors="replace")
        raise CompileError(explain(done.returncode, log, ""))
    return done.stdout


@functools.cache
def _spec_flags(path: Path) -> tuple[str, ...]:
    """Return the flags for a spec, by the entry points that it defines: a tuning spec may also have
    that of a preprocessing spec."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if "iree_codegen.tuning_spec" in text:
        more = (PREPROCESSING_FLAG,) if f"@{MAIN}" in text else ()
        return (SPEC_FLAG, *more)
    if "@__kernel_config" in text:
        return ("--iree-codegen-transform-dialect-library",)
    return (PREPROCESSING_FLAG,)


def resolve_target(name: str) -> Target:
    """Return the target named cpu, gfx942, sm_80 or vulkan. Raise UsageError for an unknown one."""
    goal = target_named(name)
    if goal is None:
        raise UsageError(f"unknown target {name!r} of iree", hint=_TARGETS)
    return goal


def plain_variant(variant: Variant) -> Variant:
    """Return the variant without its specs, as the baseline for `specs_applied`."""
    return dataclasses.replace(variant, name=f"{variant.name}.no-spec", specs=())


def same_but_specs(variant: Variant, builds: Sequence[BuiltModule]) -> BuiltModule | None:
    """Return a build without specs that has the flags and objects of `variant`, or None."""
    return next(
        (
            built
            for built in builds
            if not built.variant.specs
            and (built.variant.flags, built.variant.objects) == (variant.flags, variant.objects)
        ),
        None,
    )


_FORM = "SHAPExTYPE, SHAPExTYPE=VALUES or @FILE.npy"
_SHAPED = re.compile(r"((?:\d+x)*)([a-z]\w*)(?:=(.*))?\Z", re.DOTALL)
# Integers without a kernelmark dtype; IREE stores a boolean in a byte.
_INTEGERS = {"i1": np.uint8, "i16": np.int16, "i64": np.int64, "si8": np.int8, "ui8": np.uint8}
_MLIR_NAME = {ours: name for name, ours in DTYPE_OF.items()}
# Least duration of a repetition, and of the warm-up.
_REPETITION_S = 0.05
# A longer call is timed once per round, without repetitions and warm-up.
_LONG_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInput:
    """An argument: its values, exact in float64, and the type they are stored in. A scalar has only
    its `text`."""

    type: TensorType
    values: NDArray[np.float64] | None = None
    text: str = ""


def check_module(module: Path) -> None:
    """Raise UsageError if there is no such file."""
    if not module.is_file():
        raise UsageError(f"there is no file {module}")


_SCOPES = re.compile(rb'#(?:flow|stream|io)\.parameter\.named<(?:"([^"]*)"::)?"')


def parameter_options(module: Path, parameters: Sequence[str]) -> tuple[str, ...]:
    """Return the options of IREE's tools for `SCOPE=FILE` or `FILE`. Raise UsageError if a file, or
    a scope of which the module loads parameters, is missing."""
    scopes, options = set(), []
    for text in parameters:
        scope, equals, name = ("", "", text) if Path(text).is_file() else text.partition("=")
        path = user_path(name if equals else text).absolute()
        if not path.is_file():
            raise UsageError(f"--parameters {text}: there is no file {path}")
        scopes.add(scope)
        options.append(f"--parameters={scope}={path}" if scope else f"--parameters={path}")
    # A module in bytecode has its scopes in another form: then the tool reports one that is absent.
    loaded = {
        found[1].decode() if found[1] else "" for found in _SCOPES.finditer(module.read_bytes())
    }
    if absent := sorted(loaded - scopes):
        named = [f"the scope {scope!r}" if scope else "no scope" for scope in absent]
        raise UsageError(
            f"{module.name} loads parameters of {join_commas(named)}, for which there is no file",
            hint=" ".join(
                f"--parameters {scope}=FILE.irpa" if scope else "--parameters FILE.irpa"
                for scope in absent
            ),
        )
    return tuple(options)


def allocator_options(allocator: str) -> tuple[str, ...]:
    """Return the options of IREE's tools for a device allocator, such as `caching`."""
    return (f"--device_allocator={allocator}",) if allocator else ()


def check_least(option: str, value: float, least: int) -> None:
    """Raise UsageError for a value below `least`, or NaN."""
    if not value >= least:
        expected = f"a number of at least {least}"
        raise UsageError(f"{option}={value:g} is not {expected}")


def check_timeout(timeout_s: float) -> None:
    """Raise UsageError for a limit that is not above 0."""
    if not timeout_s > 0:
        raise UsageError("a time limit must be a positive number of seconds")


def make_inputs(
    signature: Signature, texts: Sequence[str], seed: int = 1
) -> tuple[ModuleInput, ...]:
    """Return the function's arguments. Where only a type is given, values are random: floats
    uniform in [-1, 1], integers 0 or 1, which are also valid as indices."""
    if texts and len(texts) != len(signature.inputs):
        raise UsageError(
            f"--input was given {counted(len(texts), 'time')}, but the function"
            f" has {counted(len(signature.inputs), 'argument')}: "
            f"{join_commas(map(str, signature.inputs))}",
            hint="give one --input for each argument, or none",
        )
    random = np.random.default_rng(seed)
    input_texts = texts or [""] * len(signature.inputs)
    inputs = []
    for number, (word, kind) in enumerate(zip(input_texts, signature.inputs, strict=True), 1):
        with located(f"--input {number}"):
            inputs.append(_input(word, kind, random))
    return tuple(inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall:
    """A call of a module's function, each time in a new process of one of IREE's tools. `options`
    are further options of the tools."""

    function: str
    inputs: tuple[ModuleInput, ...]
    target: Target
    folder: Path
    timeout_s: float
    threads: int = 0
    options: tuple[str, ...] = ()

    def outputs(self, binary: Path, types: Sequence[TensorType]) -> tuple[NDArray[np.float64], ...]:
        """Return the outputs of one call, exact in float64. Raise CaseError if the run fails."""
        for at, kind in enumerate(types):
            if not kind.dtype:
                raise UsageError(
                    f"the type of result {at} of {self.function} is not in the module",
                    hint="return a tensor, or a buffer view exported from one",
                )
        files = [self.folder / f"{binary.stem}.out{at}.bin" for at in range(len(types))]
        self._run("iree-run-module", binary, [f"--output=@{file}" for file in files])
        return tuple(
            _load(file.read_bytes(), kind) for file, kind in zip(files, types, strict=True)
        )

    def times(self, binary: Path, expected_s: float = 0.0) -> ToolRound:
        """Time one process of iree-benchmark-module; `expected_s` is the known time of a call, or
        0."""
        long = expected_s > _LONG_S
        options = [
            "--benchmark_format=json",
            "--dispatch_statistics=true",
            f"--benchmark_repetitions={1 if long else 3}",
            "--benchmark_min_time=" + ("1x" if long else f"{_REPETITION_S}s"),
            f"--benchmark_min_warmup_time={0 if long else _REPETITION_S}",
        ]
        return parse_round(self._run("iree-benchmark-module", binary, options))

    def command(self, tool: str, binary: Path) -> list[str]:
        """Return the command that calls the function with one of IREE's tools."""
        start = tool_command(tool, binary, self.function, self.target, self.threads)
        return [*start, *self.options, *_arguments(self.inputs, self.folder)]

    def _run(self, tool: str, binary: Path, options: Sequence[str]) -> str:
        return run_tool([*self.command(tool, binary), *options], self.timeout_s)


def _arguments(inputs: Sequence[ModuleInput], folder: Path) -> list[str]:
    """Return `--input` arguments; values are passed in files, which support every dtype."""
    arguments = []
    for at, item in enumerate(inputs):
        if item.values is None or item.type.shape is None:
            arguments.append(f"--input={item.text}")
            continue
        file = folder / f"input{at}.{item.type.dtype}.bin"
        if not file.exists():
            file.write_bytes(_bits(item.values, item.type.dtype))
        shape = "".join(f"{size}x" for size in item.values.shape)
        arguments.append(
            f"--input={shape}{_MLIR_NAME.get(item.type.dtype, item.type.dtype)}=@{file}"
        )
    return arguments


def _bits(values: NDArray[np.float64], name: str) -> bytes:
    if name in _INTEGERS:
        return values.astype(_INTEGERS[name]).tobytes()
    return np.ascontiguousarray(encode(values, name)).tobytes()


def _load(data: bytes, kind: TensorType) -> NDArray[np.float64]:
    """Return stored elements as float64; a dynamic dim gets the remaining size."""
    name = kind.dtype
    if name in _INTEGERS:
        flat = np.frombuffer(data, _INTEGERS[name]).astype(np.float64)
    elif name in DTYPES:
        flat = decode(np.frombuffer(data, storage(name)), name)
    else:
        raise CaseError(f"kernelmark cannot read or write tensors of {name}")
    shape = kind.shape or ()
    return flat.reshape(shape if shape.count(-1) < 2 else (-1,))


def _input(word: str, kind: TensorType, random: np.random.Generator) -> ModuleInput:
    if not kind.dtype:
        match = _SHAPED.match(word)
        if match is None:
            raise UsageError(
                "the type of this argument is not in the module",
                hint="give it: --input 4x128xf32 for each argument",
            )
        kind = parse_type(f"tensor<{match[1]}{match[2]}>")
    if kind.shape is None:
        if not word:
            raise UsageError(f"a scalar {kind.dtype} needs a value")
        try:
            (float if _is_float(kind.dtype) else int)(word)
        except ValueError:
            raise UsageError(f"{word!r} does not fit the type {kind.dtype}") from None
        return ModuleInput(type=kind, text=word)
    if kind.dtype not in DTYPES and kind.dtype not in _INTEGERS:
        raise UsageError(f"kernelmark cannot read or write tensors of {kind.dtype}")
    if word.startswith("@"):
        return ModuleInput(type=kind, values=_from_file(Path(word[1:]), kind))
    shape, content = kind.shape, ""
    if word:
        match = _SHAPED.match(word)
        if match is None:
            raise UsageError(f"{word!r} is not {_FORM}")
        tensor_type = parse_type(f"tensor<{match[1]}{match[2]}>")
        shape, content = tensor_type.shape or (), match[3] or ""
        fits = len(shape) == len(kind.shape) and all(
            declared in (-1, size) for size, declared in zip(shape, kind.shape, strict=True)
        )
        if tensor_type.dtype != kind.dtype or not fits:
            raise UsageError(
                f"{word!r} does not fit the type {kind}",
                hint="give the shape and dtype that the function declares",
            )
    if -1 in shape:
        raise UsageError(
            f"the type {kind} has a dynamic dim",
            hint="give its shape: --input 4x128xf32 for each argument",
        )
    if content:
        try:
            values = _given_values(content, TensorType(shape=shape, dtype=kind.dtype))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{word!r} cannot be read: {error}",
                hint="give one number for all elements, or as many as the shape has",
            ) from None
    elif not _is_float(kind.dtype):
        values = random.integers(0, 2, shape).astype(np.float64)
    else:
        # Rounded to the dtype, so that the float64 reference has the same values.
        values = decode(encode(random.uniform(-1, 1, shape), kind.dtype), kind.dtype)
    return ModuleInput(type=kind, values=values)


def _is_float(name: str) -> bool:
    return name in DTYPES and dtype(name).kind == "float"


def _given_values(content: str, kind: TensorType) -> NDArray[np.float64]:
    """Return the elements in `@FILE`, which are stored as raw bytes, or numbers: one for all, or
    one each."""
    if content.startswith("@"):
        return _load(user_path(content[1:]).read_bytes(), kind)
    numbers = np.array([float(x) for x in re.split(r"[\s,\[\]]+", content) if x])
    shape = kind.shape or ()
    return np.broadcast_to(numbers, shape) if numbers.size == 1 else numbers.reshape(shape)


def _from_file(path: Path, kind: TensorType) -> NDArray[np.float64]:
    try:
        with user_path(path).open("rb") as file:  # np.load would also open zip files
            values = np.lib.format.read_array(file, allow_pickle=False).astype(np.float64)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path!r} cannot be read: {error}") from None
    shape = kind.shape or ()
    if len(shape) != values.ndim or any(
        declared not in (-1, size) for size, declared in zip(values.shape, shape, strict=True)
    ):
        raise UsageError(f"{path} has the shape {values.shape}, not {shape}")
    return values if kind.dtype in _INTEGERS else decode(encode(values, kind.dtype), kind.dtype)
