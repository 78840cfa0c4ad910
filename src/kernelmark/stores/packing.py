"""The exact, compact form of all parts of a result that have no column, and checksums of rows.

A packed result is one version byte, the length of a skeleton, the skeleton as ASCII JSON, and every
float of the result as little-endian float64 in the order that the skeleton implies. Most of a
result is floats: as raw bytes they are exact (nan and -0.0 too), smaller than text and ten times
faster to write. Samples are noise, so that compression saves too few bytes for its time
(benchmarks/store.py measures both).

SQLite has none: of 200 copies of a store with flipped bits, 9 were read as other times. A row of
`runs` has the checksum of its columns and its environment, and the sum of the checksums of its
results, which reveals missing ones. A row of `results` has the checksum of the columns of a point
of history; `detail` has its own, because history does not read it. Rows of older versions have
none.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import struct
import typing
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kernelmark.core import codec
from kernelmark.core.errors import StoreError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason, read_reason, reason_document
from kernelmark.core.result import (
    Block,
    Case,
    Check,
    Fault,
    KernelInfo,
    Measurement,
    Mode,
    Result,
    Status,
    StopReason,
    Telemetry,
)

FORMAT = 1
_HEAD = struct.Struct("<BI")
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_NO_TELEMETRY = Telemetry()
_GAUGES = ("clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "energy_j", "load")
_gauges = operator.attrgetter(*_GAUGES)

# Fields that only microbenchmarks have, packed as plain JSON.
_LATER = ("metrics", "columns", "rows", "trace", "notes")
_SHORT = 1024  # largest skeleton that is cached, in bytes; those of microbenchmarks are larger
_later = operator.attrgetter(*_LATER)

Skeleton = list[Any]
T = TypeVar("T")


def maker(of: type[T]) -> Callable[..., T]:
    """Return a function that makes a value from all its fields, in order, without `__init__`.

    Packed values were checked when they were made, and `__init__` of a frozen dataclass would take
    most of the time of reading a run. Instead, the fields are assigned to an object of a class with
    the same slots that is not frozen, whose `__class__` is then set to `of`. This takes a tenth of
    the time, but needs generated code, as dataclasses do."""
    names = [field.name for field in dataclasses.fields(of)]  # type: ignore[arg-type]
    open_class = type(of.__name__, of.__bases__, {"__slots__": tuple(names)})
    lines = [
        f"def make({', '.join(names)}):",
        "    made = open_class()",
        *(f"    made.{name} = {name}" for name in names),
        "    made.__class__ = of",
        "    return made",
    ]
    scope: dict[str, Any] = {"open_class": open_class, "of": of}
    exec("\n".join(lines), scope)
    maker: Callable[..., T] = scope["make"]
    return maker


_make_result = maker(Result)
_make_measurement = maker(Measurement)
_make_block = maker(Block)
_make_telemetry = maker(Telemetry)
_make_check = maker(Check)
_make_kernel = maker(KernelInfo)
_STATUSES = {status.value: status for status in Status}
_STOPS = {stop.value: stop for stop in StopReason}
_NO_ITEMS: FrozenDict[Any] = FrozenDict()


def pack(result: Result, exact: Mapping[str, object]) -> bytes:
    """Return a result as bytes, without case, device, arch, status, flops, bytes and error, which
    are columns. `exact` holds those of them that their column cannot hold exactly."""
    floats = [result.started]
    measurement, check = result.measurement, result.check
    parts = (
        "null" if measurement is None else _pack_measurement(measurement, floats),
        "null" if check is None else _pack_check(check, floats),
        _pack_kernel(result.kernel, floats),
        _pack_map(result.cost, floats),
    )
    if any(later := _later(result)):
        exact = {**exact, **{n: codec.plain(v) for n, v in zip(_LATER, later, strict=True) if v}}
    more = f",{_encode(dict(exact))}" if exact else ""
    text = f"[{','.join(parts)}{more}]".encode("ascii")
    return _HEAD.pack(FORMAT, len(text)) + text + struct.pack(f"<{len(floats)}d", *floats)


@functools.lru_cache(maxsize=4096)
def _json(value: str | tuple[str, ...]) -> str:
    """Return a value as JSON; cached, because the same names and reasons recur."""
    return _encode(value)


def _reasons(reasons: tuple[Reason, ...]) -> str:
    return _encode([reason_document(reason) for reason in reasons]) if reasons else "[]"


def _pack_map(values: Mapping[str, float], floats: list[float]) -> str:
    floats += values.values()
    return _json(tuple(values))


def _pack_measurement(measurement: Measurement, floats: list[float]) -> str:
    floats += (measurement.low_s, measurement.high_s, measurement.warmup_s, measurement.timed_s)
    also = _pack_map(measurement.also, floats)
    blocks = ",".join([_pack_block(block, floats) for block in measurement.blocks])
    more = ""
    if measurement.modes:
        more = f",{len(measurement.modes)}"
        for mode in measurement.modes:
            floats += (mode.value_s, mode.share)
    return (
        f"[{_json(measurement.method)},{measurement.launches},{measurement.sets},"
        f'{measurement.footprint_bytes},"{measurement.stop.value}",{_reasons(measurement.warnings)},'
        f"{also},[{blocks}]{more}]"
    )


def _pack_block(block: Block, floats: list[float]) -> str:
    samples, clocks, telemetry = block.samples_s, block.clocks_mhz, block.telemetry
    floats += samples
    floats += clocks
    present, bit = 0, 1
    for value in _gauges(telemetry):
        if value is not None:
            present |= bit
            floats.append(value)
        bit <<= 1
    return _block_json(
        block.process, block.allocation, len(samples), len(clocks), present, telemetry.throttle
    )


@functools.lru_cache(maxsize=4096)
def _block_json(*parts: int | tuple[str, ...]) -> str:
    return _encode(parts if parts[-1] else parts[:-1])


def _pack_check(check: Check, floats: list[float]) -> str:
    floats += (check.worst, check.max_abs)
    intact = "true" if check.guards_intact else "false"
    more = ""
    if check.faults or check.rows or check.fresh_ratio is not None:
        fresh = () if check.fresh_ratio is None else (check.fresh_ratio,)
        floats += fresh
        more = f",{check.rows},{_json(check.faults)},{len(fresh)}"
    detail = _encode(reason_document(check.detail))
    return f"[{check.positions},{check.unwritten},{intact},{detail}{more}]"


def _pack_kernel(kernel: KernelInfo, floats: list[float]) -> str:
    floats.append(kernel.compile_s)
    cached = "true" if kernel.cached else "false"
    resources = _encode(dict(kernel.resources)) if kernel.resources else "{}"
    more = f",{_encode(dict(kernel.configs))}" if kernel.configs else ""
    return f"[{_json(kernel.name)},{cached},{_json(kernel.binary_hash)},{resources}{more}]"


class _Floats:
    """The floats of a packed result, taken in order."""

    __slots__ = ("at", "values")

    def __init__(self, values: tuple[float, ...]) -> None:
        self.values = values
        self.at = 0

    def take(self, count: int) -> tuple[float, ...]:
        start = self.at
        self.at = start + count
        return self.values[start : self.at]

    def named(self, names: list[str]) -> FrozenDict[float]:
        return FrozenDict(zip(names, self.take(len(names)), strict=True)) if names else _NO_ITEMS


def unpack(
    detail: bytes,
    *,
    case: Case,
    device: str,
    arch: str,
    status: str,
    flops: float,
    bytes: float,
    error: str,
) -> Result:
    """Return the result that `pack` packed."""
    version, length = _HEAD.unpack_from(detail)
    if version != FORMAT:
        raise StoreError(
            f"a stored result has format {version}, which this kernelmark cannot read",
            hint="upgrade kernelmark",
        )
    start = _HEAD.size + length
    text = detail[_HEAD.size : start]
    skeleton = _shared_skeleton(text) if length <= _SHORT else json.loads(text)
    floats = _Floats(struct.unpack_from(f"<{(len(detail) - start) // 8}d", detail, start))
    exact = skeleton[4] if len(skeleton) > 4 else {}
    (started,) = floats.take(1)
    measurement = _unpack_measurement(skeleton[0], floats) if skeleton[0] else None
    check = _unpack_check(skeleton[1], floats) if skeleton[1] else None
    name, cached, binary_hash, resources, *more = skeleton[2]  # absent without configs
    (compile_s,) = floats.take(1)
    cost = floats.named(skeleton[3])
    kernel = _make_kernel(
        name,
        compile_s,
        cached,
        binary_hash,
        FrozenDict(resources) if resources else _NO_ITEMS,
        FrozenDict(more[0]) if more else _NO_ITEMS,
    )
    result = _make_result(
        case,
        exact.get("device", device),
        _STATUSES[status],
        exact.get("arch", arch),
        exact.get("flops", int(flops)),
        exact.get("bytes", int(bytes)),
        measurement,
        check,
        kernel,
        read_reason(exact.get("reason"), exact.get("error", error)),
        started,
        cost,
        *((),) * len(_LATER),
    )
    later = {
        name: codec.read(exact[name], _hints()[name], name) for name in exact if name in _LATER
    }
    return dataclasses.replace(result, **later) if later else result


def binary_hash(detail: bytes) -> str:
    """Return the hash of the binary of a packed result, sealed or not, without checking it."""
    body = detail[SEAL_BYTES:] if detail[0] == _SEALED else detail
    _, length = _HEAD.unpack_from(body)
    binary: str = json.loads(body[_HEAD.size : _HEAD.size + length])[2][2]
    return binary


@functools.lru_cache(maxsize=4096)
def _shared_skeleton(text: bytes) -> Skeleton:
    """Return the parsed skeleton of a result. It is cached, because all results of a case share
    it, and must not be modified."""
    skeleton: Skeleton = json.loads(text)
    return skeleton


@functools.cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Result)


def _unpack_measurement(skeleton: Skeleton, floats: _Floats) -> Measurement:
    method, launches, sets, footprint, stop, warnings, also, blocks, *more = skeleton
    low, high, warmup, timed = floats.take(4)
    named_floats = floats.named(also)
    unpacked = tuple(_unpack_block(block, floats) for block in blocks)
    pairs = [floats.take(2) for _ in range(more[0] if more else 0)]  # absent without modes
    return _make_measurement(
        unpacked,
        low,
        high,
        method,
        launches,
        sets,
        footprint,
        _STOPS[stop],
        warmup,
        timed,
        tuple(map(read_reason, warnings)),
        named_floats,
        tuple(Mode(value_s=value, share=share) for value, share in pairs),
    )


def _unpack_block(skeleton: Skeleton, floats: _Floats) -> Block:
    samples = floats.take(skeleton[2])
    clocks = floats.take(skeleton[3])
    # The checks of `Block`, for damaged files; the sum is finite only if every time is.
    if not (samples and min(samples) > 0 and math.isfinite(sum(samples))):
        raise ValueError("a time is not positive and finite")
    telemetry = _NO_TELEMETRY
    if skeleton[4] or len(skeleton) > 5:
        count, chosen = _gauge_places(skeleton[4])
        throttle = tuple(skeleton[5]) if len(skeleton) > 5 else ()
        telemetry = _make_telemetry(*chosen((*floats.take(count), None)), throttle)
    return _make_block(skeleton[0], skeleton[1], samples, clocks, telemetry)


@functools.cache
def _gauge_places(present: int) -> tuple[int, operator.itemgetter[Any]]:
    """Return the number of gauges that were read, and the getter that maps their values, followed
    by a None, to fields."""
    bits = [present >> bit & 1 for bit in range(len(_GAUGES))]
    places = [sum(bits[:n]) if bit else -1 for n, bit in enumerate(bits)]
    return sum(bits), operator.itemgetter(*places)


def _unpack_check(skeleton: Skeleton, floats: _Floats) -> Check:
    positions, unwritten, guards_intact, detail, *more = skeleton
    worst, max_abs = floats.take(2)
    rows, faults, fresh = more or (0, (), 0)  # absent if all are empty
    return _make_check(
        positions,
        worst,
        max_abs,
        unwritten,
        guards_intact,
        read_reason(detail),
        tuple(Fault(code) for code in faults),
        rows,
        floats.take(1)[0] if fresh else None,
    )


_SEALED = 2  # first byte of a sealed detail; that of a packed result is 1
_SEAL_HEAD = struct.Struct("<BI")
SEAL_BYTES = _SEAL_HEAD.size
_NUMBERS = struct.Struct("<5d")


def checksum_texts(*texts: str | None) -> int:
    """Return the checksum of texts, in their order."""
    return zlib.crc32("\0".join([text or "" for text in texts]).encode("utf-8", "surrogatepass"))


def checksum_result(
    run_id: str, series: str, texts: Sequence[str | None], numbers: Sequence[float | None]
) -> int:
    """Return the checksum of a result's columns. `texts` are device, arch, status, modes, metrics
    and doubt; `numbers` are median_s, low_s, high_s, flops and bytes."""
    # SQLite stores -0.0 as 0.
    floats = [math.nan if number is None else number + 0.0 for number in numbers]
    return zlib.crc32(_NUMBERS.pack(*floats), checksum_texts(run_id, series, *texts))


def seal(detail: bytes, *context: str) -> bytes:
    """Return a packed result with the checksum of itself and the texts that are read with it."""
    return _SEAL_HEAD.pack(_SEALED, zlib.crc32(detail, checksum_texts(*context))) + detail


def unseal(detail: bytes, *context: str, required: bool = False) -> bytes:
    """Return what `seal` was given; raise ValueError if anything differs. Rows of older versions
    are not sealed, which is an error if a seal is `required`."""
    if detail[:1] != bytes([_SEALED]):
        if required:
            raise ValueError("its checksum is missing")
        return detail
    _, stored = _SEAL_HEAD.unpack_from(detail)
    body = detail[_SEAL_HEAD.size :]
    if zlib.crc32(body, checksum_texts(*context)) != stored:
        raise ValueError("its checksum does not match")
    return body
