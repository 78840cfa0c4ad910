"""Rules: what counts as slower. One file a rule; `golden-tot` is golden_tot.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.compare.rules.base import Preset

registry: Registry[Preset] = Registry("kernelmark.compare.rules", "rule")


def names() -> list[str]:
    """Return the presets as a user types them."""
    return [name.replace("_", "-") for name in registry.names()]


def preset(name: str) -> Preset:
    """Return the rule of that name; an unknown one lists those there are."""
    return registry.get(name.replace("-", "_"))
