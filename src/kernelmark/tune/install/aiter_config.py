"""aiter's GEMM configs in JSON: lookup as in aiter, and checks.

A folder of configs can have two layouts:

    gemm/<arch>-<NAME>[-<suffix>].json             legacy; gemm/<backend>/… for another backend
    <arch>/<backend>/gemm/<name>/DEFAULT.json      nested, <name> in lower case with _ for -;
    <arch>/<backend>/gemm/<name>/<NAME>-<suffix>.json   ignored without its DEFAULT.json

A suffix is `N=…-K=…` or `B=…-N=…-K=…`; for two fused GEMMs it has both N. A file has buckets:
`M_LEQ_x`, `M_GEQ_x` and `any`. The first folder that has a default file is used. The first file in
it for the shape replaces the whole default file; buckets are not merged. K of 4-bit operands counts
elements, not bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.core.codec import once
from kernelmark.core.errors import UsageError
from kernelmark.core.files import read_whole

STANDARD = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_FROM_4 = STANDARD[1:]
# Families whose kernels look for other bounds than STANDARD.
BOUNDS: dict[str, tuple[int, ...]] = {
    "GEMM-AFP4WFP4_PRESHUFFLED": (4, 8, 16, 31, *STANDARD[4:]),
    "BATCHED_GEMM-AFP4WFP4": tuple(sorted({*_FROM_4, 320})),
    "FF-A16W16-fused": (4, 8, 64, 4096),
    "GEMM-A16W16-gated": (64, 128, 256, 512, 2048),
}
# The config family of each kernel of the batched family.
FAMILIES = {
    "a8w8": "BATCHED_GEMM-A8W8",
    "a8w8_group": "BATCHED_GEMM-A8W8-A_PER_TOKEN_GROUP_PREQUANT_W_PER_BATCHED_TENSOR_QUANT",
    "bf16": "BATCHED_GEMM-A16W16",
    "a16wfp4": "BATCHED_GEMM-A16WFP4",
    "afp4wfp4": "BATCHED_GEMM-AFP4WFP4",
}
_NESTED_BACKENDS = ("triton", "gluon")
_BUCKET = re.compile(r"M_(LEQ|GEQ)_([1-9][0-9]*)\Z")
_SUFFIX = re.compile(r"-((?:[A-Z][0-9]*=[0-9]+)(?:-[A-Z][0-9]*=[0-9]+)*)\Z")
_ARCH = re.compile(r"(gfx[0-9a-f]+)-(.+)\Z")
_POWERS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "BLOCK_M", "BLOCK_N", "BLOCK_K")
_POSITIVE = (
    *("GROUP_SIZE_M", "GROUP_K", "GROUP_N", "num_stages"),
    *("NUM_KSPLIT", "NUM_BUFFERS", "SPLITK_BLOCK_SIZE"),
)
_CHOICES: dict[str, tuple[object, ...]] = {
    "num_warps": (1, 2, 4, 8, 16),
    "waves_per_eu": tuple(range(11)),
    "matrix_instr_nonkdim": (0, 4, 16, 32),
    "kpack": (1, 2),
    "cache_modifier": (None, "", ".ca", ".cg", ".cs", ".cv", ".wb", ".wt"),
    "kernel_type": ("bandwidth_bound", "compute_bound"),
}
_NEEDED = (("BLOCK_SIZE_M", "BLOCK_M"), ("BLOCK_SIZE_N", "BLOCK_N"))
_LARGEST_BLOCK = 4096  # in one dimension; a larger one is a typo
_LOST = "is never read: names are gemm/gfx…-FAMILY.json, or gfx…/BACKEND/gemm/FAMILY/…"
_SHAPE = "N=…-K=… nor B=…-N=…-K=…", re.compile(r"(?:B=[0-9]+-)?N=[0-9]+-K=[0-9]+\Z")
_N8_SHAPE = "N8=…-N16=…-K=…", re.compile(r"N8=[0-9]+-N16=[0-9]+-K=[0-9]+\Z")
_N4_SHAPE = "N4=…-N16=…-K=…", re.compile(r"N4=[0-9]+-N16=[0-9]+-K=[0-9]+\Z")
# Kernels that fuse a low-bit GEMM with a 16-bit one look up suffixes with both N only.
_SHAPES = {
    "FUSED-GEMM-A8W8_BLOCKSCALE-A16W16": _N8_SHAPE,
    "FUSED-GEMM-AFP4WFP4-A16W16": _N4_SHAPE,
    "FUSED-GEMM-AFP4WFP4_PRESHUFFLED-A16W16": _N4_SHAPE,
}
_MISPLACED = re.compile(r"[_-](?:B|M|N|K)=?[0-9]")
_GROUP_FAMILY = FAMILIES["a8w8_group"]

Bucket = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundConfig:
    """A config, with its file and bucket. `tuned`: from a file for the shape, but not from its
    `any` bucket."""

    config: Bucket
    file: Path
    bucket: str
    tuned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """An error in a file; `entry` is its name or M, "" for the whole file."""

    file: str
    entry: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lint:
    """The errors in the config files of a folder."""

    files: int
    findings: tuple[LintFinding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """The parts of a file's path; `suffix` is "" for a default file."""

    arch: str
    backend: str
    family: str
    suffix: str
    nested: bool


def bounds(family: str) -> tuple[int, ...]:
    """Return the values of x that a family's kernels look for in M_LEQ_x and M_GEQ_x."""
    return BOUNDS.get(family, STANDARD)


def lookup(
    root: Path,
    family: str,
    arch: str,
    *,
    m: int,
    n: int,
    k: int,
    batch: int | None = None,
    backend: str | None = None,
) -> FoundConfig:
    """Return the config for a shape; raise UsageError if the family has no default file, or the
    file no bucket for m. `k` counts elements."""
    folder, prefix, default = folder_of(root, family, arch, backend)
    suffixes = [f"B={batch}-N={n}-K={k}"] if batch is not None else []
    special = (folder / f"{prefix}{family}-{suffix}.json" for suffix in [*suffixes, f"N={n}-K={k}"])
    file = next((path for path in special if path.is_file()), default)
    buckets = read(file)
    name = bucket_of(buckets, m, bounds(family))
    if name is None:
        raise UsageError(f"{file}: no bucket for m={m}", hint="add an 'any' bucket")
    return FoundConfig(
        config=buckets[name], file=file, bucket=name, tuned=file != default and name != "any"
    )


def read(file: Path) -> dict[str, Bucket]:
    """Load the buckets of a file; other keys are ignored."""
    try:
        return parse(read_whole(file).decode(), file)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{file}: is not JSON: {error}", hint="is it truncated?") from None


def parse(text: str, file: Path) -> dict[str, Bucket]:
    """Parse the buckets from a file's text; error messages name `file`."""
    try:
        document = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: is not JSON: {error}", hint="is it truncated?") from None
    if not isinstance(document, dict):
        raise UsageError(f"{file}: is not an object of buckets")
    for name, value in document.items():
        if (name == "any" or _BUCKET.match(name)) and not isinstance(value, dict):
            raise UsageError(f"{file}: {name} is {value!r} and not an object of settings")
    return {name: value for name, value in document.items() if isinstance(value, dict)}


def folder_of(root: Path, family: str, arch: str, backend: str | None) -> tuple[Path, str, Path]:
    """Return (folder, prefix of its file names, default file) of the first folder that has a
    default file."""
    small = family.lower().replace("-", "_")
    nested = [
        (root / arch / name / "gemm" / small, "", "DEFAULT.json")
        for name in ((backend,) if backend else _NESTED_BACKENDS)
    ]
    legacy = [(root / "gemm", f"{arch}-", f"{arch}-{family}.json")]
    if backend:
        legacy.insert(0, (root / "gemm" / backend, f"{arch}-", f"{arch}-{family}.json"))
    for folder, prefix, default in (*nested, *legacy):
        if (folder / default).is_file():
            return folder, prefix, folder / default
    raise UsageError(
        f"{root} has no config of {family} for {arch}",
        hint=f"it would be gemm/{arch}-{family}.json",
    )


def bucket_of(buckets: Mapping[str, Bucket], m: int, limits: tuple[int, ...]) -> str | None:
    upper = (f"M_LEQ_{x}" for x in limits if m <= x)
    lower = (f"M_GEQ_{x}" for x in reversed(limits) if m >= x)
    return next((name for name in (*upper, *lower, "any") if name in buckets), None)


# -- checking


def lint(root: Path) -> Lint:
    """Check the GEMM configs under `root`; `files` is 0 if there are none."""
    every = sorted(root.rglob("*.json"))
    names = {path: name_of(root, path) for path in every}
    files = [path for path in every if names[path] or "gemm" in path.relative_to(root).parts[:-1]]
    if not any(names.values()):
        return Lint(files=0, findings=())
    findings = [
        LintFinding(file=str(path.relative_to(root)), entry=entry, text=text)
        for path in files
        for entry, text in _check(path, names[path])
    ]
    return Lint(files=len(files), findings=tuple(findings))


def name_of(root: Path, path: Path) -> Name | None:
    """Parse a path; return None for a file that no lookup of GEMM configs reads."""
    parts = path.relative_to(root).parts
    if parts[0] == "gemm" and len(parts) in (2, 3):
        match = _ARCH.match(path.stem)
        if match is None:
            return None
        family, suffix = _split(match[2])
        backend = parts[1] if len(parts) == 3 else ""
        return Name(arch=match[1], backend=backend, family=family, suffix=suffix, nested=False)
    if len(parts) == 5 and parts[0].startswith("gfx") and parts[2] == "gemm":
        if path.stem == "DEFAULT":
            family, suffix = parts[3].upper(), ""
        else:
            family, suffix = _split(path.stem)
        return Name(arch=parts[0], backend=parts[1], family=family, suffix=suffix, nested=True)
    return None


def _split(stem: str) -> tuple[str, str]:
    match = _SUFFIX.search(stem)
    return (stem[: match.start()], match[1]) if match else (stem, "")


def _check(path: Path, name: Name | None) -> Iterator[tuple[str, str]]:
    if name is None:
        yield "", _LOST
        return
    try:
        buckets = read(path)
    except UsageError as error:
        yield "", str(error.message).removeprefix(f"{path}: ")
        return
    yield from _check_path(path, name)
    limits = _known_bounds(path, name)
    if not buckets:
        yield "", "holds no bucket"
        return
    if "any" not in buckets:
        yield "", "has no 'any' bucket: a shape beyond the others fails"
    for bucket, config in buckets.items():
        yield from ((bucket, text) for text in _check_bucket(bucket, limits))
        yield from ((bucket, text) for text in _check_values(config, name.family))


def _check_path(path: Path, name: Name) -> Iterator[tuple[str, str]]:
    """Yield an error if the file is never opened: its folder has no default file, or no lookup
    has its suffix."""
    form, shape = _SHAPES.get(name.family, _SHAPE)
    if name.suffix and not shape.match(name.suffix):
        yield "", f"is never read: {name.suffix} is not {form}"
    elif not name.suffix and not name.nested and _MISPLACED.search(name.family):
        yield "", f"is taken for a family of its own, {name.family}: a suffix is -N=…-K=…"
    default = "DEFAULT.json" if name.nested else f"{name.arch}-{name.family}.json"
    if not (path.parent / default).is_file():
        yield "", f"is never read: there is no {default} beside it"
    if name.nested and name.suffix:
        small = name.family.lower().replace("-", "_")
        if small != path.parent.name:
            yield "", f"is never read: {name.family} is looked for in a folder {small}"


def _known_bounds(path: Path, name: Name) -> tuple[int, ...]:
    if name.nested and path.stem == "DEFAULT":
        folder = name.family.lower()
        families = {family.lower().replace("-", "_"): family for family in BOUNDS}
        return bounds(families.get(folder, ""))
    return bounds(name.family)


def _check_bucket(bucket: str, limits: tuple[int, ...]) -> Iterator[str]:
    if bucket == "any":
        return
    match = _BUCKET.match(bucket)
    if match is None:
        yield "is not M_LEQ_x, M_GEQ_x or any: it is never looked for"
    elif int(match[2]) not in limits:
        shown = ", ".join(map(str, limits))
        yield f"is dead: this family looks only for {shown}"


def _check_values(config: Bucket, family: str) -> Iterator[str]:
    deep = family in FAMILIES.values() and family != _GROUP_FAMILY
    for names in (*_NEEDED, ("BLOCK_SIZE_K", "BLOCK_K")) if deep else _NEEDED:
        if not any(name in config for name in names):
            yield f"has no {names[0]}"
    if family == _GROUP_FAMILY and "BLOCK_SIZE_K" in config:
        yield "sets BLOCK_SIZE_K, which is the group's size in this family"
    yield from check_settings(config)
    for key in config:
        if not (key in _POWERS or key in _POSITIVE or key in _CHOICES):
            yield f"{key} is not a key that any kernel reads"


def check_settings(config: Bucket) -> Iterator[str]:
    """Yield errors in the values of settings that are common to Triton GEMM kernels."""
    for key, value in config.items():
        if key in _POWERS:
            if not _positive(value) or value & (value - 1):
                yield f"{key}={value!r} is not a power of two"
            elif value > _LARGEST_BLOCK:
                yield f"{key}={value} is more than any kernel's tile ({_LARGEST_BLOCK})"
        elif key in _POSITIVE:
            if not _positive(value):
                yield f"{key}={value!r} is not a positive integer"
        elif key in _CHOICES and (isinstance(value, bool) or value not in _CHOICES[key]):
            shown = ", ".join(repr(choice) for choice in _CHOICES[key])
            yield f"{key}={value!r} is not one of {shown}"


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
