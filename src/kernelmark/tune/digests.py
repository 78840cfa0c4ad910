"""Digests of a plan: what of it journals and outcomes depend on."""

from __future__ import annotations

import dataclasses

from kernelmark.core import codec
from kernelmark.core.diskcache import digest
from kernelmark.tune.plan import TunePlan

# What says nothing about candidates, nor about who wins.
_BESIDE = ("count", "share", "reference_s", "blas", "arch")
_DECIDING = ("acceptance", "reference_backend", "reference_config")


def search_digest(plan: TunePlan) -> str:
    """Of what decides which candidates there are and in which order they are met."""
    return _digest(plan, (*_BESIDE, *_DECIDING, "budget"))


def decision_digest(plan: TunePlan) -> str:
    """Of everything that an outcome is true for, whatever budget it was found with."""
    return _digest(plan, (*_BESIDE, "budget"))


def plan_digest(plan: TunePlan) -> str:
    """Of everything that the work on a plan depends on."""
    return _digest(plan, _BESIDE)


def _digest(plan: TunePlan, without: tuple[str, ...]) -> str:
    names = [field.name for field in dataclasses.fields(plan) if field.name not in without]
    return digest(*(f"{name}={codec.plain(getattr(plan, name))}" for name in names))[:16]
