"""Hardware: upper bounds of a device, by its architecture and its vendor's data sheet.

Used to detect impossible figures, and shown alongside measured ones. A percentage is never computed
from them without being labelled so.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Roof
from kernelmark.core.units import counted

# For an unknown GPU: more than any GPU so far, so that only an error in units exceeds it.
_MOST = {"l1": 256.0, "shared": 256.0, "l2": 256.0, "vector": 4096.0, "matrix": 131072.0}
_MOST_CLOCK_MHZ = 6000.0
_MOST_DRAM = 64e12
# One way: NVLink-C2C and NVLink of the next generation. A PCIe rate in bits instead of bytes stays
# below that, so that error is found only if the architecture is known.
_MOST_LINK = {"host": 900e9, "peer": 1800e9}
# GPUs on a package with their CPU, by a word of the model's name, and the one-way rate between the
# two.
_SUPERCHIPS = {"gh200": 450e9, "gb200": 450e9, "gb300": 450e9}
_SHARES_MEMORY = ("mi300a",)  # host and device share memory: a copy stays inside it
# Words that make a name another product: a data sheet without the word does not apply to it.
_VARIANTS = frozenset({"pcie", "nvl", "mig", "laptop", "mobile", "d", "ti", "super"})
# Per CPU core: four loads of 64 bytes, four pipes of 64-byte vectors.
_MOST_CORE = {"l1": 256.0, "shared": 256.0, "l2": 256.0, "vector": 1024.0, "matrix": 16384.0}
_MOST_CORE_DRAM = 200e9
_MOST_CORE_CLOCK_MHZ = 8000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound and the reason for it."""

    value: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A vendor's figures for a device: per second, without sparsity."""

    name: str
    source: str
    dram: float
    clock_mhz: float
    units: int
    vector: Mapping[str, float] = field(default_factory=FrozenDict)
    matrix: Mapping[str, float] = field(default_factory=FrozenDict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Upper bounds of one device. Rates are per core cycle and SM/CU (or CPU core)."""

    units: int
    clock_mhz: float
    listed: bool  # whether the architecture is in our table
    rates: Mapping[str, float]
    vector: Mapping[str, float]
    matrix: Mapping[str, float]
    dram: Limit
    links: Mapping[str, Limit] = field(default_factory=FrozenDict)
    sheet: Sheet | None = None
    source: str = ""
    kind: str = "gpu"

    @classmethod
    def of(cls, info: DeviceInfo) -> Hardware:
        """Return the bounds of a device, as far as they are known."""
        if info.kind not in ("cuda", "hip"):
            return _of_cpu(info)
        table = _tables()["arch"].get(info.arch.rstrip("af") if info.kind == "cuda" else info.arch)
        sheet = find_sheet(info)
        reported = float(info.attributes.get("clock_khz", "0")) / 1e3
        clock = max(reported, sheet.clock_mhz if sheet else 0.0) or _MOST_CLOCK_MHZ
        rates = {name: float((table or _MOST)[name]) for name in ("l1", "shared", "l2")}
        return cls(
            units=info.units,
            clock_mhz=clock,
            listed=table is not None,
            rates=FrozenDict(rates),
            vector=FrozenDict(table["vector"] if table else {}),
            matrix=FrozenDict(table["matrix"] if table else {}),
            dram=_dram(info, sheet),
            links=FrozenDict(_links(info, table, _dram(info, sheet))),
            sheet=sheet,
            source=str(table["source"]) if table else "",
        )

    def plausible_clock(self, mhz: float) -> bool:
        """Return whether a reading can be the core clock: some drivers report that of an idle
        GPU."""
        return 0.05 * self.clock_mhz < mhz <= 1.05 * self.clock_mhz

    def rate(self, level: str) -> Limit:
        """Return the bytes per cycle of one SM/CU from `l1`, `shared` or `l2`."""
        return Limit(value=self.rates[level], why=self._origin(f"bytes a cycle and unit ({level})"))

    def bandwidth(self, level: str) -> Limit:
        """Return the bytes per second of all SMs/CUs from `l1`, `shared`, `l2` or `dram`."""
        if level == "dram":
            return self.dram
        rate = self.rates[level]
        return Limit(
            value=self.units * rate * self.clock_mhz * 1e6,
            why=f"{self.units} units × {rate:g} B × {self.clock_mhz:g} MHz",
        )

    def link(self, other: str, ways: int = 1) -> Limit:
        """Return the bytes per second to or from the `host` or a `peer`; with `ways` 2, both
        together."""
        link = self.links.get(other, self.dram)  # a CPU is its own host
        return link if ways == 1 else Limit(value=ways * link.value, why=f"{ways} × {link.why}")

    def per_cycle(self, unit: str, dtype: str) -> Limit:
        """Return the operations per cycle of one SM/CU on its `vector` or `matrix` unit."""
        table = self.vector if unit == "vector" else self.matrix
        most = _MOST if self.kind == "gpu" else _MOST_CORE
        if dtype in table:
            return Limit(value=table[dtype], why=self._origin(f"{dtype} operations a cycle"))
        return Limit(value=most[unit], why="more than any unit so far")

    def flops(self, unit: str, dtype: str) -> Limit:
        """Return the operations per second of all SMs/CUs."""
        rate = self.per_cycle(unit, dtype).value
        return Limit(
            value=self.units * rate * self.clock_mhz * 1e6,
            why=f"{self.units} units × {rate:g} × {self.clock_mhz:g} MHz",
        )

    def _origin(self, text: str) -> str:
        return f"{text}, {self.source}" if self.source else f"{text}, more than any unit so far"


def lanes_of(hardware: Hardware, op: str) -> Limit:
    """Return the lanes of an SM/CU that can finish this instruction per cycle, if its dtype has
    separate hardware; else those of any instruction."""
    own = op.endswith("_f64") and hardware.kind == "gpu" and hardware.listed
    if not own or "f64" not in hardware.vector:
        return most_lanes(hardware)
    bound = hardware.per_cycle("vector", "f64")
    return Limit(value=bound.value / 2, why=f"1/2 of {bound.value:g} {bound.why}")


def most_lanes(hardware: Hardware) -> Limit:
    """Return the lanes of an SM/CU that can finish an instruction per cycle: the f32 FMA rate or
    that of packed halves, whichever has more lanes."""
    # A lane computes two halves at once, and an FMA is two operations.
    per_lane = {"f32": 2, "f16": 4, "bf16": 4}
    dtypes = [dtype for dtype in per_lane if dtype in hardware.vector] or ["f32"]
    bounds = {dtype: hardware.per_cycle("vector", dtype) for dtype in dtypes}
    dtype = max(dtypes, key=lambda name: bounds[name].value / per_lane[name])
    bound, each = bounds[dtype], per_lane[dtype]
    return Limit(value=bound.value / each, why=f"1/{each} of {bound.value:g} {bound.why}")


def find_sheet(info: DeviceInfo) -> Sheet | None:
    """Return the vendor's figures for a device, found by whole words of its name; None if it is not
    listed. If several match, the entry with the most words is used."""
    name_words = _model_parts(info.model)
    listed = None
    for entry in sorted(_tables()["device"], key=lambda entry: len(entry["words"])):
        name = {word.lower() for word in entry["words"]}
        if entry["arch"] == info.arch and name <= name_words and not name_words & _VARIANTS - name:
            listed = entry
    if listed is None:
        return None
    return Sheet(
        name=listed["name"],
        source=listed["source"],
        dram=float(listed["dram"]),
        clock_mhz=float(listed["clock_mhz"]),
        units=int(listed["units"]),
        vector=FrozenDict(listed.get("vector", {})),
        matrix=FrozenDict(listed.get("matrix", {})),
    )


def sheet_value(roof: Roof, sheet: Sheet | None) -> float | None:
    """Return the vendor's figure for the same quantity, to be shown alongside."""
    if sheet is None:
        return None
    if roof.kind == "flops":
        return (sheet.matrix if roof.unit == "matrix" else sheet.vector).get(roof.name)
    return sheet.dram if roof.kind == "bytes" and roof.name == "dram" else None


def _model_parts(model: str) -> set[str]:
    """Split a model's name into words: A100-SXM4-80GB has three."""
    return set(re.split(r"[^a-z0-9]+", model.lower()))


def _links(info: DeviceInfo, table: Mapping[str, Any] | None, dram: Limit) -> dict[str, Limit]:
    """Return the one-way limits between the device and its host, or another device."""
    rates = {name: float((table or {}).get(name, most)) for name, most in _MOST_LINK.items()}
    name_words = _model_parts(info.model)
    host = next((rate for word, rate in _SUPERCHIPS.items() if word in name_words), rates["host"])
    origin = str(table["source"]) if table else "more than any link so far"
    links = {
        "host": Limit(value=host, why=f"{host / 1e9:g} GB/s one way to the host, {origin}"),
        "peer": Limit(
            value=max(host, rates["peer"]),
            why=f"{max(host, rates['peer']) / 1e9:g} GB/s one way to other GPUs, {origin}",
        ),
    }
    return links | ({"host": dram} if name_words & set(_SHARES_MEMORY) else {})


def _dram(info: DeviceInfo, sheet: Sheet | None) -> Limit:
    """Return the memory bandwidth by the driver's bus width and clock or by the data sheet,
    whichever is higher."""
    limits = []
    clock = float(info.attributes.get("memory_clock_khz", "0")) * 1e3
    bits = float(info.attributes.get("bus_bits", "0"))
    if info.kind == "cuda" and clock and bits:
        why = f"{bits:g} bits × 2 × {clock / 1e6:g} MHz"
        limits.append(Limit(value=clock * 2 * bits / 8, why=why))
    if sheet is not None:
        limits.append(Limit(value=sheet.dram, why=sheet.source))
    return max(
        limits,
        key=lambda limit: limit.value,
        default=Limit(value=_MOST_DRAM, why="more than any GPU so far"),
    )


def _of_cpu(info: DeviceInfo) -> Hardware:
    return Hardware(
        units=info.units,
        clock_mhz=_MOST_CORE_CLOCK_MHZ,
        listed=False,
        rates=FrozenDict({name: _MOST_CORE[name] for name in ("l1", "shared", "l2")}),
        vector=FrozenDict(),
        matrix=FrozenDict(),
        dram=Limit(
            value=_MOST_CORE_DRAM * info.units,
            why=f"{counted(info.units, 'core')} × {_MOST_CORE_DRAM / 1e9:g} GB/s",
        ),
        kind="cpu",
    )


@functools.cache
def _tables() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("data", "datasheet.toml").read_text("utf-8")
    return tomllib.loads(text)
