"""Rules that decide what counts as slower, one per file; `golden-tot` is golden_tot.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.compare.rules.base import Preset

registry: Registry[Preset] = Registry("kernelmark.compare.rules", "rule")


def names() -> list[str]:
    """Return the names of the presets as users type them."""
    return [name.replace("_", "-") for name in registry.names()]


def preset(name: str) -> Preset:
    """Return the rule of that name. Raise UsageError with the known names if there is none."""
    return registry.get(name.replace("-", "_"))
