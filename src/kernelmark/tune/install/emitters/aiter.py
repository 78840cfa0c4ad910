"""aiter: winners in a folder of aiter's JSON configs (aiter/ops/triton/configs).

A default file is used for every (N, K) without a file, so it is never edited. A winner is written
to the file of its (N, K); a new file is a copy of the whole default, because aiter does not merge
them. In that file only the bucket of the winner's m changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, ConfigValue
from kernelmark.tune.install import aiter_config as configs
from kernelmark.tune.install.aiter_config import FAMILIES, Bucket, bounds, bucket_of
from kernelmark.tune.install.emitters.base import (
    ON_AMD,
    CannotWrite,
    Change,
    Edit,
    Emitter,
    Entry,
    Key,
    Lookup,
    Options,
    Skipped,
    check_folder,
    check_weights,
    text_at,
    with_object,
)
from kernelmark.tune.results import Outcome

# aiter's names of settings by ours.
_SETTINGS = {
    "block_m": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "group_m": "GROUP_SIZE_M",
    "split_k": "NUM_KSPLIT",
    **{name: name for name in ("num_warps", "num_stages", "waves_per_eu")},
    **{name: name for name in ("matrix_instr_nonkdim", "kpack", "cache_modifier")},
}
_GLUON = {f"block_{x.lower()}": f"BLOCK_{x}" for x in "MNK"}  # its files have shorter names
_OF_GLUON = frozenset((*_GLUON.values(), "NUM_BUFFERS", "kernel_type"))
_OURS = {theirs: ours for names in (_SETTINGS, _GLUON) for ours, theirs in names.items()}
_NEEDED = ("block_m", "block_n", "num_warps", "num_stages")
# Computed from other settings at launch: a value kept from the old bucket would be wrong.
_DERIVED = "SPLITK_BLOCK_SIZE"
_GROUPED = FAMILIES["a8w8_group"]
_UNSPLIT = (FAMILIES["a8w8"], _GROUPED)
# Its wrapper swaps the strides of m and batch that it passes to the split-K reduction.
_MISREDUCED = FAMILIES["a16wfp4"]
# Families whose kernels adjust the split of k to K at launch, with the XCDs that they distribute
# their programs over.
_LAUNCHES = {"GEMM-A16W16": 8, "GEMM-A8W8": 8, FAMILIES["bf16"]: 1}
# The family whose kernel also looks for files with its batch.
_BY_BATCH = FAMILIES["bf16"]
_FAMILY_OF_BITS = {
    **dict.fromkeys(("bf16", "f16"), "GEMM-A16W16"),
    **dict.fromkeys(("i8", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"), "GEMM-A8W8"),
}
_UNSEEN = "7"  # an N, K or batch that no file has


@dataclass(frozen=True, slots=True, kw_only=True)
class AiterShape:
    """The lookup key without m. `batch` is "" for families without a batch in file names."""

    family: str
    arch: str
    backend: str
    batch: str
    n: str
    k: str

    @classmethod
    def of(cls, key: Key) -> AiterShape:
        return cls(**{field.name: key[field.name] for field in dataclasses.fields(cls)})

    def key(self, m: int) -> Key:
        return FrozenDict({**dataclasses.asdict(self), "m": str(m)})

    @property
    def suffix(self) -> str:
        return (f"B={self.batch}-" if self.batch else "") + f"N={self.n}-K={self.k}"

    @property
    def folder_key(self) -> tuple[str, str, str | None]:
        return self.family, self.arch, self.backend or None


class AiterEmitter(Emitter):
    name = "aiter"
    summary = "aiter's JSON configs for Triton GEMMs, a file for each (N, K)"
    facts = FormatFacts(
        versions="aiter e4048607 (2026-08)",
        exactness="only the bucket of a winner changes; every other lookup is checked to be "
        "unchanged",
        checked="aiter's own lookup executed on what is written; 265 of its files found as "
        "lint-configs predicts",
    )
    backends = ("triton",)
    options = FrozenDict(
        {
            "arch": "the architecture whose files to change, if not the one it was tuned on",
            "family": "the config family, as GEMM-A16W16, if not the one of the problem",
            "backend": "triton, if aiter is called with backend='triton'",
        }
    )
    needs_base = True
    caution = ON_AMD

    def emit(self, outcomes: Sequence[Outcome], into: Path, options: Options) -> Change:
        check_folder(into, "give aiter/ops/triton/configs")
        shapes: dict[str, AiterShape] = {}
        timed: dict[Key, set[int]] = {}

        def lookup_key(outcome: Outcome) -> Key:
            """Return the key of a bucket, which several problems may have."""
            shape = shapes[outcome.name] = self._shape(outcome, options)
            m = outcome.problem.dims["m"]
            bucket = bucket_for(m, bounds(shape.family))
            key = FrozenDict({**dataclasses.asdict(shape), "bucket": bucket})
            timed.setdefault(key, set()).add(m)
            return key

        chosen = self.choose(outcomes, lookup_key)
        changes = _FolderChange(into)
        for key, outcome in chosen.winners.items():
            try:
                changes.add(shapes[outcome.name], outcome, timed[key])
            except CannotWrite as error:
                chosen.skipped.append(Skipped(name=outcome.name, reason=error.reason))
        keys: dict[Key, None] = {}
        for outcome in outcomes:
            if outcome.name in shapes:
                keys |= changes.checked_keys(shapes[outcome.name], outcome.problem.dims["m"])
        return changes.change(self.name, keys, chosen.skipped)

    def read(self, path: Path) -> list[Entry]:
        return [
            Entry(
                key=FrozenDict(
                    {
                        "family": name.family,
                        "arch": name.arch,
                        "backend": name.backend,
                        "suffix": name.suffix,
                        "bucket": bucket,
                    }
                ),
                config=to_config(config),
            )
            for file in sorted(path.rglob("*.json"))
            if (name := configs.name_of(path, file)) is not None
            for bucket, config in configs.read(file).items()
        ]

    def find(self, path: Path, key: Key) -> Entry | None:
        try:
            return Entry(key=key, config=to_config(_look_up(path, key).config))
        except UsageError:
            return None

    def _shape(self, outcome: Outcome, options: Options) -> AiterShape:
        problem = outcome.problem
        family = options.get("family") or _family(problem)
        arch = options.get("arch") or outcome.arch.split(":")[0]
        if not arch.startswith("gfx"):
            raise CannotWrite(f"aiter has no entries for {arch}")
        return AiterShape(
            family=family,
            arch=arch,
            backend=options.get("backend", ""),
            batch=str(problem.dims.get("batch", "")) if family == _BY_BATCH else "",
            n=str(problem.dims["n"]),
            k=str(problem.dims["k"]),
        )


def _family(problem: Problem) -> str:
    if problem.op == "batched_gemm_quant":
        return FAMILIES[str(problem.options["scheme"])]
    if problem.op not in ("gemm", "batched_gemm"):
        raise CannotWrite(f"aiter's folder of GEMM configs has no entries for {problem.op}")
    check_weights("aiter", problem)
    family = _FAMILY_OF_BITS.get(problem.dtypes["a"], "")
    if problem.op == "batched_gemm":
        family = _BY_BATCH if family == "GEMM-A16W16" else ""
    if not family:
        raise CannotWrite(f"aiter has no entries for {problem.op} of {problem.dtypes['a']}")
    return family


def _look_up(root: Path, key: Key) -> configs.FoundConfig:
    return configs.lookup(
        root,
        key["family"],
        key["arch"],
        m=int(key["m"]),
        n=int(key["n"]),
        k=int(key["k"]),
        batch=int(key["batch"]) if key["batch"] else None,
        backend=key["backend"] or None,
    )


class _FolderChange:
    """The new texts of files, and the buckets of winners."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._texts: dict[Path, str] = {}
        self._new: dict[tuple[AiterShape, str], tuple[Bucket, str]] = {}
        self._notes: list[str] = []

    def add(self, shape: AiterShape, outcome: Outcome, timed: set[int]) -> None:
        """Add a winner to the file of its shape; `timed` are all m that were tuned in its bucket.
        Raise UsageError for an unreadable file: it is used for other shapes too."""
        try:
            folder, prefix, _ = configs.folder_of(self._root, *shape.folder_key)
        except UsageError as error:
            raise CannotWrite(f"{error.message} ({error.hint})") from None
        self._check_kernel(shape)
        _check_launch(outcome.tuned.config, shape)
        m, limits = outcome.problem.dims["m"], bounds(shape.family)
        before = _look_up(self._root, shape.key(m))
        if own := sorted(_OF_GLUON & before.config.keys()):
            raise CannotWrite(f"its bucket is of aiter's Gluon kernel: it has {own[0]}")
        file = folder / f"{prefix}{shape.family}-{shape.suffix}.json"
        text = self._texts.get(file) or text_at(file if file.is_file() else before.file) or ""
        buckets = configs.parse(text, file)
        name = bucket_for(m, limits)
        bucket = to_bucket(outcome.tuned.config, before.config, shape.family)
        after = with_bucket(buckets, name, bucket, limits)
        for changed in sorted(after, key=_order):
            if buckets.get(changed) != after[changed]:
                earlier = [b for b in buckets if _order(b) < _order(changed)]
                previous = max(earlier, key=_order, default=None)
                text = with_object(text, changed, dict(after[changed]), after=previous)
                buckets = configs.parse(text, file)
        self._texts[file] = text
        self._new[shape, name] = (bucket, outcome.name)
        first, last = bucket_range(m, limits)
        if first != last:
            end = f"to {last}" if last else "upwards"
            shown = ", ".join(map(str, sorted(timed)))
            self._notes.append(
                f"{outcome.name}: {name} of {file.name} serves m={first} {end}, timed: {shown}"
            )

    def _check_kernel(self, shape: AiterShape) -> None:
        """Raise CannotWrite if aiter has configs of a Gluon kernel for the family: it then runs
        that, and reads no other folder."""
        with contextlib.suppress(UsageError):
            folder = configs.folder_of(self._root, shape.family, shape.arch, "gluon")[0]
            if shape.backend != "triton" and "gluon" in folder.relative_to(self._root).parts:
                raise CannotWrite(f"aiter runs {shape.family} on {shape.arch} with Gluon")

    def checked_keys(self, shape: AiterShape, m: int) -> dict[Key, None]:
        """Return a lookup to be checked, and all lookups that the files of its family cover, if the
        family is changed."""
        if shape.folder_key not in {new.folder_key for new, _ in self._new}:
            return {}
        unseen = dataclasses.replace(shape, n=_UNSEEN, k=_UNSEEN)
        elsewhere = dataclasses.replace(shape, batch=_UNSEEN) if shape.batch else shape
        shapes = (shape, unseen, elsewhere, *self._shapes_with_file(shape))
        every = [each.key(x) for each in shapes for x in covering(bounds(shape.family))]
        return dict.fromkeys((shape.key(m), *every))

    def change(self, emitter: str, keys: Mapping[Key, None], skipped: Sequence[Skipped]) -> Change:
        edits = [
            Edit(path=file.relative_to(self._root), before=text_at(file), after=text)
            for file, text in self._texts.items()
        ]
        read = {file for shape, _ in self._new for file in self._family_files(shape)}
        if self._texts:
            self._notes.append(
                "these configs were timed with kernelmark's Triton kernel: time aiter's with them"
            )
        return Change(
            emitter=emitter,
            edits=tuple(edit for edit in edits if edit.before != edit.after),
            lookups=tuple(lookup for key in keys if (lookup := self._lookup(key)) is not None),
            skipped=tuple(skipped),
            notes=tuple(self._notes),
            also_read=tuple(sorted(file.relative_to(self._root) for file in read)),
        )

    def _lookup(self, key: Key) -> Lookup | None:
        shape = AiterShape.of(key)
        new = self._new.get((shape, bucket_for(int(key["m"]), bounds(shape.family))))
        if new is not None:
            return Lookup(key=key, config=to_config(new[0]), winner=new[1])
        try:
            return Lookup(key=key, config=to_config(_look_up(self._root, key).config))
        except UsageError:  # a lookup that failed before may succeed now
            return None

    def _family_files(self, shape: AiterShape) -> list[Path]:
        """Return the default file of a family and its files for single shapes."""
        folder, prefix, default = configs.folder_of(self._root, *shape.folder_key)
        return [default, *folder.glob(f"{prefix}{shape.family}-*=*.json")]

    def _shapes_with_file(self, shape: AiterShape) -> list[AiterShape]:
        names = (configs.name_of(self._root, file) for file in self._family_files(shape))
        suffixes = (name.suffix for name in names if name is not None and name.suffix)
        every = [dict(part.split("=") for part in suffix.split("-")) for suffix in suffixes]
        return [
            dataclasses.replace(shape, batch=sizes.get("B", ""), n=sizes["N"], k=sizes["K"])
            for sizes in every
            if {"N", "K"} <= sizes.keys() <= {"B", "N", "K"}
        ]


# Settings


def to_bucket(config: Config, before: Bucket, family: str) -> dict[str, Any]:
    """Return a config with aiter's names, in the order of the bucket it replaces. Settings that
    only aiter has are kept from that bucket; others that the tuned config lacks are dropped."""
    values: dict[str, Any] = {
        _SETTINGS[name]: value for name, value in _supported(config, family).items()
    }
    if "cache_modifier" in values or "cache_modifier" in before:
        values["cache_modifier"] = values.get("cache_modifier") or None
    if values.get("NUM_KSPLIT") == 1 and "NUM_KSPLIT" not in before:
        del values["NUM_KSPLIT"]
    ours = {*_OURS, _DERIVED}
    kept = {k: values.get(k, v) for k, v in before.items() if k in values or k not in ours}
    return kept | {name: value for name, value in values.items() if name not in kept}


def _supported(config: Config, family: str) -> dict[str, ConfigValue]:
    """Return the settings that a family's kernel has; raise CannotWrite if it lacks one."""
    settings = dict(config)
    if settings.pop("persistent", False):
        raise CannotWrite("aiter's kernels have no persistent form")
    settings.pop("xcds", 1)
    if unknown := sorted(settings.keys() - _SETTINGS.keys()):
        raise CannotWrite(f"aiter's configs have no {unknown[0]}")
    if missing := [name for name in _NEEDED if name not in settings]:
        raise CannotWrite(f"its config has no {missing[0]}")
    if family == _GROUPED:
        settings.pop("block_k", None)
    if family in _UNSPLIT and settings.pop("split_k", 1) != 1:
        raise CannotWrite(f"aiter's kernel for {family} does not split k")
    if family == _MISREDUCED and settings.get("split_k", 1) != 1:
        raise CannotWrite(
            f"aiter's kernel for {family} adds up its parts with strides in wrong order"
        )
    return settings


def _check_launch(config: Config, shape: AiterShape) -> None:
    """Raise CannotWrite if aiter would launch something else than what was tuned."""
    if shape.family not in _LAUNCHES:
        return
    xcds, needed = config.get("xcds", 1), _LAUNCHES[shape.family]
    if xcds != needed:
        raise CannotWrite(
            f"it was tuned with xcds={xcds}, and aiter launches xcds={needed}: tune with "
            f"xcds = [{needed}] in the plan"
        )
    tuned = int(config.get("split_k", 1)), int(config.get("block_k", 16))
    launched = adjusted_split(*tuned, int(shape.k))
    if launched != tuned:
        raise CannotWrite(
            "it was tuned with split_k={} block_k={}, and aiter launches ".format(*tuned)
            + "split_k={} block_k={} for k={}".format(*launched, shape.k)
        )


def adjusted_split(split: int, block_k: int, k: int) -> tuple[int, int]:
    """Return the split of k and the block along k that aiter launches: parts are at least a block
    long and whole blocks, and a block is no longer than K, except for the least of 16."""
    part = -(-k // split)
    while split > 1 and block_k > part:
        split //= 2
        part = -(-k // split)
    if block_k > part:
        block_k = 1 << (part.bit_length() - 1)
    block_k = max(block_k, 16)
    if split > 1 and part % block_k:
        part += block_k - part % block_k
        split = -(-k // part)
    return split, block_k


def to_config(bucket: Bucket) -> Config:
    """Return a bucket with kernelmark's names, where it has them; null becomes ""."""
    config: dict[str, ConfigValue] = {
        _OURS.get(name, name): "" if value is None else value for name, value in bucket.items()
    }
    return FrozenDict(config)


# Buckets: `limits` are the bounds that a family's kernels look for


def bucket_for(m: int, limits: Sequence[int]) -> str:
    """Return the name of the narrowest bucket for m: M_LEQ of the next bound, or M_GEQ of the last
    bound if m is beyond it."""
    bound = next((x for x in limits if m <= x), None)
    return f"M_GEQ_{limits[-1]}" if bound is None else f"M_LEQ_{bound}"


def bucket_range(m: int, limits: Sequence[int]) -> tuple[int, int | None]:
    """Return the first and last m of the narrowest bucket for m; None means no upper limit."""
    below = max((x for x in limits if x < m), default=0)
    return below + 1, next((x for x in limits if m <= x), None)


def covering(limits: Sequence[int]) -> list[int]:
    """Return values of m that cover all buckets of a file: 1, each bound, and the m above each."""
    return sorted({1, *limits, *(bound + 1 for bound in limits)})


def with_bucket(
    buckets: Mapping[str, Bucket], name: str, new: Bucket, limits: tuple[int, ...]
) -> dict[str, Bucket]:
    """Return the buckets with `new` as the narrowest bucket `name` and unchanged lookups for all
    other m: a wider bucket that also covered it is repeated for lower bounds."""

    def look_up(table: Mapping[str, Bucket], m: int) -> Bucket | None:
        bucket = bucket_of(table, m, limits)
        return None if bucket is None else table[bucket]

    expected = {
        m: new if bucket_for(m, limits) == name else look_up(buckets, m) for m in covering(limits)
    }
    changed = {**buckets, name: new}
    for bound in reversed(limits):
        for m in (bound, *(x for x in expected if bucket_for(x, limits) == f"M_LEQ_{bound}")):
            same = expected[m]
            if same is not None and look_up(changed, m) != same:
                changed[f"M_LEQ_{bound}"] = same
    for m, config in expected.items():
        if config is not None and look_up(changed, m) != config:
            raise CannotWrite(f"every bucket for it would also change the config of m={m}")
    return changed


def _order(name: str) -> tuple[int, int]:
    """Return the sort key of a bucket in a file: M_LEQ ascending, M_GEQ ascending, any."""
    kind, _, bound = name.rpartition("_")
    return {"M_LEQ": 0, "M_GEQ": 1}.get(kind, 2), int(bound) if bound.isdecimal() else 0


emitter = AiterEmitter()
