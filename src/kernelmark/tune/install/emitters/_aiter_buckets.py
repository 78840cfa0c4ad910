"""Buckets of an aiter config: conversion of configs, and changes that do not affect other m."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue
from kernelmark.tune.install.aiter_config import FAMILIES, Bucket, bucket_of
from kernelmark.tune.install.emitters.base import Unfit

_OURS = {
    "block_m": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "group_m": "GROUP_SIZE_M",
    "split_k": "NUM_KSPLIT",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
    "waves_per_eu": "waves_per_eu",
    "matrix_instr_nonkdim": "matrix_instr_nonkdim",
    "kpack": "kpack",
    "cache_modifier": "cache_modifier",
}
_THEIRS = {theirs: ours for ours, theirs in _OURS.items()}
_SHORT = {f"BLOCK_{x}": f"block_{x.lower()}" for x in "MNK"}
_NEEDED = ("block_m", "block_n", "num_warps", "num_stages")
_GROUPED = FAMILIES["a8w8_group"]
_UNSPLIT = (FAMILIES["a8w8"], _GROUPED)
# Its wrapper swaps the strides of m and batch that it passes to the split-K reduction.
_MISREDUCED = FAMILIES["a16wfp4"]
# Computed from other settings at launch: a value kept from the old bucket would be wrong.
_DERIVED = ("SPLITK_BLOCK_SIZE",)


def to_bucket(config: Config, old: Bucket, family: str) -> dict[str, Any]:
    """Return a config with aiter's names, in the order of the bucket it replaces. Settings that
    only aiter has are kept from that bucket; others that the tuned config lacks are dropped."""
    checked = _checked(config, family)
    short = any(name in old for name in _SHORT)
    values: dict[str, Any] = {}
    for name, value in checked.items():
        theirs = f"BLOCK_{name[-1].upper()}" if short and name in _SHORT.values() else _OURS[name]
        values[theirs] = value
    if "cache_modifier" in values or "cache_modifier" in old:
        values["cache_modifier"] = values.get("cache_modifier") or None
    if values.get("NUM_KSPLIT") == 1 and "NUM_KSPLIT" not in old:
        del values["NUM_KSPLIT"]
    known = {*_THEIRS, *_SHORT, *_DERIVED}
    kept = {k: values.get(k, v) for k, v in old.items() if k in values or k not in known}
    return {**kept, **{name: value for name, value in values.items() if name not in kept}}


def _checked(config: Config, family: str) -> dict[str, ConfigValue]:
    settings = dict(config)
    if settings.pop("persistent", False):
        raise Unfit(Reason("aiter-not-persistent"))
    settings.pop("xcds", 1)  # aiter's kernels always number their programs by XCD
    unknown = sorted(settings.keys() - _OURS.keys())
    if unknown:
        raise Unfit(Reason("format-no-setting", format="aiter", name=unknown[0]))
    missing = [name for name in _NEEDED if name not in settings]
    if missing:
        raise Unfit(Reason("config-lacks", name=missing[0]))
    if family == _GROUPED:
        settings.pop("block_k", None)
    if family in _UNSPLIT and settings.pop("split_k", 1) != 1:
        raise Unfit(Reason("aiter-no-split-k", family=family))
    if family == _MISREDUCED and settings.get("split_k", 1) != 1:
        raise Unfit(Reason("aiter-split-k-strides", family=family))
    return settings


def to_config(bucket: Bucket) -> Config:
    """Return a bucket with kernelmark's names, where it has them; null becomes ""."""
    config: dict[str, ConfigValue] = {}
    for name, value in bucket.items():
        config[_SHORT.get(name) or _THEIRS.get(name, name)] = "" if value is None else value
    return FrozenDict(config)


def region(m: int, known: Sequence[int]) -> str:
    """Return the name of the narrowest bucket for m: M_LEQ of the next bound, or M_GEQ of the last
    bound if m is beyond it."""
    bound = next((x for x in known if m <= x), None)
    return f"M_GEQ_{known[-1]}" if bound is None else f"M_LEQ_{bound}"


def others(m: int, known: Sequence[int]) -> tuple[int, int | None]:
    """Return the first and last m of m's region; None means no upper limit."""
    below = max((x for x in known if x < m), default=0)
    return below + 1, next((x for x in known if m <= x), None)


def samples(known: Sequence[int]) -> list[int]:
    """Return values of m that cover all buckets of a file: 1, each bound, and the m above each."""
    values: list[int] = []
    below = 0
    for bound in known:
        values += [m for m in (below + 1, bound) if m not in values]
        below = bound
    return [*values, below + 1]


def contained(
    buckets: Mapping[str, Bucket], target: str, new: Bucket, known: tuple[int, ...]
) -> dict[str, Bucket]:
    """Return the buckets with `new` in the region `target` and unchanged lookups for all other m:
    a wider bucket that also covered `target` is repeated for lower bounds."""

    def answer(of: Mapping[str, Bucket], m: int) -> Bucket | None:
        name = bucket_of(of, m, known)
        return None if name is None else of[name]

    wanted = {m: new if region(m, known) == target else answer(buckets, m) for m in samples(known)}
    changed = {**buckets, target: new}
    for bound in reversed(known):
        for m in (bound, *(x for x in wanted if region(x, known) == f"M_LEQ_{bound}")):
            same = wanted[m]
            if same is not None and answer(changed, m) != same:
                changed[f"M_LEQ_{bound}"] = same
    wrong = [
        m for m, config in wanted.items() if config is not None and answer(changed, m) != config
    ]
    if wrong:
        raise Unfit(Reason("aiter-bucket-changes", m=wrong[0]))
    return changed


def order_of(name: str) -> tuple[int, int]:
    """Return the sort key of a bucket in a file: M_LEQ ascending, M_GEQ ascending, any."""
    kind, _, bound = name.rpartition("_")
    return {"M_LEQ": 0, "M_GEQ": 1}.get(kind, 2), int(bound) if bound.isdecimal() else 0
