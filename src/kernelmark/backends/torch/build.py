"""Which GPUs the installed torch is built for, found without importing it."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelmark.core.reason import NO_REASON, Reason

_GPUS = ("cuda", "hip")  # also the names in torch.version


def platforms() -> frozenset[str] | None:
    """Return the kinds of GPU that torch is built for, or None if unknown."""
    loaded = sys.modules.get("torch.version")
    facts = vars(loaded) if loaded is not None else _facts()
    return frozenset(kind for kind in _GPUS if facts.get(kind)) if facts else None


def _facts() -> Mapping[str, Any]:
    """Return the values in torch/version.py, which imports nothing from torch."""
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:  # a module inserted into sys.modules by hand
        return {}
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / "version.py"
        if file.is_file():
            return runpy.run_path(str(file))
    return {}


def missing(kind: str, version: str) -> Reason:
    """Return why torch does not run on this kind of device, or NO_REASON."""
    found = platforms()
    if kind not in _GPUS or found is None or kind in found:
        return NO_REASON
    return Reason("torch-build", version=version, device=kind)
