"""Compilation of a module in several variants, and the dispatches that the compiler created."""

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

from kernelmark.backends.iree.compiler import (
    MODULE_LIMIT_S,
    compiler_present,
    explain,
    run_dumping,
    run_limited,
    tool,
)
from kernelmark.backends.iree.configs import DUMP_PREFIX, dump_flag, load_configs
from kernelmark.backends.iree.runtime import instance
from kernelmark.backends.iree.spec import MAIN, PREPROCESSING_FLAG, SPEC_FLAG
from kernelmark.backends.iree.targets import Target, kernel_resources, target_named
from kernelmark.core.errors import CompileError, UsageError, located
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.kernels.mlir.base import DTYPE_OF

_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
_OBJECTS = (".o", ".so", ".bc", ".hsaco", ".co", ".cubin", ".ptx", ".spv")
_TENSOR = re.compile(r"tensor<((?:[\d?]+x)*)(\w+)>\Z")
_DECLARATION = re.compile(r"func @[\w.$-]+\((.*)\) -> \((.*)\)\Z")
_TARGETS = "for example: cpu, gfx942, gfx1100, sm_80, vulkan, vulkan:rdna3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to compile a module: compiler flags, specs and external kernel objects."""

    name: str
    flags: tuple[str, ...] = ()
    specs: tuple[Path, ...] = ()
    objects: tuple[Path, ...] = ()

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
class TensorType:
    """The type of a function's argument or result. `dtype` is kernelmark's name, or MLIR's if
    kernelmark has no such dtype; `shape` is None for a scalar."""

    shape: tuple[int, ...] | None
    dtype: str

    def __str__(self) -> str:
        """Return the type in the syntax of `--input`, with ? for a dynamic dim."""
        sizes = ("?" if size < 0 else str(size) for size in self.shape or ())
        return "x".join([*sizes, self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The inputs and outputs of a function."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """A kernel that the compiler created. `config` is its translation info and lowering configs as
    the compiler prints them (pipeline, tile sizes, intrinsic)."""

    name: str
    config: tuple[str, ...] = ()
    resources: Mapping[str, int] = field(default_factory=FrozenDict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A compiled variant. `sources` are the dispatches before lowering, by file name."""

    variant: Variant
    binary: Path
    sha256: str
    compile_s: float
    dispatches: tuple[Dispatch, ...]
    sources: Mapping[str, str]


def parse_variant(text: str) -> Variant:
    """Parse `NAME:WORDS`: flags, specs (.mlir) and objects, separated as in a shell."""
    name, colon, rest = text.partition(":")
    if not _NAME.match(name) or not colon:
        raise UsageError(
            Reason("not-of-form", given=text, form="NAME:FLAGS"),
            hint="for example: --variant base: --variant tiled:'--iree-opt-data-tiling spec.mlir'",
        )
    with located(f"--variant {name}"):
        return _parse_words(name, split_words(rest))


def _parse_words(name: str, words: Sequence[str]) -> Variant:
    flags, specs, objects = [], [], []
    for word in words:
        if word.startswith("-"):
            flags.append(word)
            continue
        path = Path(word.removeprefix("+")).expanduser().absolute()
        if not path.is_file():
            raise UsageError(Reason("file-missing", file=str(path)))
        if path.suffix == ".mlir":
            specs.append(path)
        elif path.suffix in _OBJECTS:
            objects.append(path)
        else:
            known = f"a spec is .mlir, a kernel object one of {', '.join(_OBJECTS)}"
            raise UsageError(Reason("variant-file", file=path.name), hint=known)
    return Variant(name=name, flags=tuple(flags), specs=tuple(specs), objects=tuple(objects))


def split_words(text: str) -> list[str]:
    """Split as a shell does. Raise UsageError if a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError:
        raise UsageError(
            Reason("quote-open", given=text), hint="close it, or leave it out"
        ) from None


def build_variant(module: Path, variant: Variant, target: Target, folder: Path) -> Built:
    """Compile `module` into `folder`. Raise CompileError if the compiler fails."""
    if not compiler_present():
        raise UsageError(Reason("iree-compiler-missing"), hint='pip install "kernelmark[iree]"')
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
    return Built(
        variant=variant,
        binary=binary,
        sha256=hashlib.sha256(code).hexdigest(),
        compile_s=compile_s,
        dispatches=tuple(
            Dispatch(name=name, config=config, resources=FrozenDict(used.get(name, {})))
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
    command = [tool("iree-compile"), "-", *target.device_flags, "--compile-to=stream"]
    done = run_limited(command, input=b"module {}")
    if done.returncode:
        log = done.stderr.decode(errors="replace")
        cause = explain(done.returncode, log, "").splitlines()[0]
        raise UsageError(
            Reason("iree-target-unknown", target=target.name, cause=cause), hint=_TARGETS
        )


def specs_applied(built: Built, plain: Built) -> bool:
    """Return whether specs changed any dispatch, compared with the same flags without them."""
    return (built.dispatches, built.sources) != (plain.dispatches, plain.sources)


def read_signature(binary: Path, function: str = "") -> tuple[str, Signature]:
    """Return the name and types of a module's function; the only one if none is named."""
    import iree.runtime as rt

    module = rt.VmModule.mmap(instance(), str(binary))
    found = {
        name: module.lookup_function(name).reflection.get("iree.abi.declaration", "")
        for name in module.function_names
    }
    public = {name: text for name, text in found.items() if text}
    if not function and len(public) == 1:
        function = next(iter(public))
    if function not in public:
        unknown = Reason("unknown-name", what="function", name=function, of="the module")
        raise UsageError(
            unknown if function else Reason("parameter-missing", name="--function"),
            hint=f"--function: {', '.join(public) or 'the module exports none'}",
        )
    declared = _DECLARATION.search(public[function])
    if declared is None:
        raise UsageError(Reason("function-types", function=function, declaration=public[function]))
    inputs, outputs = (tuple(map(parse_type, _types(part))) for part in declared.groups())
    return function, Signature(inputs=inputs, outputs=outputs)


def parse_type(text: str) -> TensorType:
    """Parse `tensor<2x34xf16>` or a scalar's `f32`; a dynamic dim is -1."""
    match = _TENSOR.match(text)
    if match is None:
        return TensorType(shape=None, dtype=DTYPE_OF.get(text, text))
    sizes = [-1 if size == "?" else int(size) for size in match[1].split("x")[:-1]]
    return TensorType(shape=tuple(sizes), dtype=DTYPE_OF.get(match[2], match[2]))


def _types(text: str) -> list[str]:
    """Return the types of `%input0: tensor<2x2xf32>, %input1: i32`, without attributes."""
    return [
        part.partition(":")[2].strip().split(" ")[0]
        for part in re.split(r",\s*(?=%)", text)
        if part
    ]


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
    found = target_named(name)
    if found is None:
        raise UsageError(Reason("unknown-name", what="target", name=name, of="iree"), hint=_TARGETS)
    return found


def plain_variant(variant: Variant) -> Variant:
    """Return the variant without its specs, as the baseline for `specs_applied`."""
    return dataclasses.replace(variant, name=f"{variant.name}.no-spec", specs=())


def same_but_specs(one: Variant, others: Sequence[Built]) -> Built | None:
    """Return a build without specs that has the flags and objects of `one`, or None."""
    return next(
        (
            built
            for built in others
            if not built.variant.specs
            and (built.variant.flags, built.variant.objects) == (one.flags, one.objects)
        ),
        None,
    )
