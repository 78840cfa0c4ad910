"""Devices, one file per kind; `cpu` and `fake` have no dependencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.devices.base import DeviceKind

registry: Registry[DeviceKind] = Registry("kernelmark.devices", "kind")
