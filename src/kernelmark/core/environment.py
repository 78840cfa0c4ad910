"""Environment: the machine and software of a run. It is not part of a series' identity; it explains
steps in history."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from kernelmark.core.immutable import FrozenDict


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """A device's identity, and the sizes that a measurement depends on.

    `name` is what a user types (cpu, cuda:0); `arch` is part of a series' identity
    (aarch64, x86_64, sm_90, gfx942). `units` is cores, SMs or CUs.
    """

    name: str
    kind: str
    model: str
    arch: str
    index: int = 0
    units: int = 1
    memory_bytes: int = 0
    cache_bytes: int = 0
    driver: str = ""
    uuid: str = ""
    attributes: Mapping[str, str] = field(default_factory=FrozenDict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", FrozenDict(self.attributes))

    @property
    def unusable(self) -> str:
        """Why the device cannot be used; "" if it can."""
        return self.attributes.get("unusable", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Host, devices, versions, commit and the variables that change results. `libraries` and
    `variables` are those of the process that measured; both are empty if it reported none."""

    host: str = ""
    os: str = ""
    python: str = ""
    # Not `kernelmark`, which is a key of the codec's envelope.
    kernelmark_version: str = ""
    devices: tuple[DeviceInfo, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=FrozenDict)
    variables: Mapping[str, str] = field(default_factory=FrozenDict)
    commit: str = ""
    dirty: bool = False
    container: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "libraries", FrozenDict(self.libraries))
        object.__setattr__(self, "variables", FrozenDict(self.variables))

    def uuid(self, device: str) -> str:
        """Return the UUID of the device with this name; "" if it has none or is unknown."""
        return next((item.uuid for item in self.devices if item.name == device), "")

    @property
    def recorded(self) -> bool:
        """Whether libraries and variables are known. A worker always reports a library (numpy);
        imported files and runs whose workers all died have none."""
        return bool(self.libraries)

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for environments that should give equal results."""
        return hashlib.sha256(
            json.dumps(asdict(self), sort_keys=True, default=dict).encode()
        ).hexdigest()[:16]


def difference(base: Environment, head: Environment) -> list[tuple[str, str, str]]:
    """Return (name, base value, head value) of every difference; "" if a side lacks it.

    Libraries and variables are compared only if both sides have them recorded."""
    recorded = base.recorded and head.recorded
    flat_base, flat_head = (_flatten(side, versions=recorded) for side in (base, head))
    return [
        (name, flat_base.get(name, ""), flat_head.get(name, ""))
        for name in sorted(flat_base.keys() | flat_head.keys())
        if flat_base.get(name, "") != flat_head.get(name, "")
    ]


def _flatten(environment: Environment, *, versions: bool) -> dict[str, str]:
    flat = {
        name: str(getattr(environment, name))
        for name in ("host", "os", "python", "kernelmark_version", "commit", "dirty", "container")
    }
    if versions:
        flat |= {f"library {name}": value for name, value in environment.libraries.items()}
        flat |= {f"variable {name}": value for name, value in environment.variables.items()}
    for device in environment.devices:
        uuid = f", uuid {device.uuid[:8]}" if device.uuid else ""
        flat[f"device {device.name}"] = (
            f"{device.model} ({device.arch}), driver {device.driver}{uuid}"
        )
    return flat
