"""Quick measured roofs of the CPU: multiply-adds a second by dtype, bytes a second from memory.

A small C library, built for this very CPU, is run on pinned threads; the best of many short passes
counts, since a limit is what the machine can do, not what it does beside other work. Where there
is no C compiler, numpy's matrix product and copy stand in, and `how` says so. Takes about 2 s,
and a few more where other work keeps the passes from agreeing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.roof import Roof
from kernelmark.core.units import bytes_text, counted, rate_text
from kernelmark.devices import registry as devices
from kernelmark.devices._cores import describe
from kernelmark.micro import _fallback, _native
from kernelmark.runners.targets import check_threads

# No core of any make does more: four pipes at 8 GHz, and a cache line a nanosecond and a half.
_MOST_PIPES = 4
_MOST_HERTZ = 8e9
_MOST_BYTES_PER_CORE = 200e9
_WIDEST_VECTOR_BYTES = 64

# Passes are shorter than the slices a scheduler gives, so that beside other work some are
# undisturbed; rounds of them go on until two more confirm the best one.
_PASS_S = 0.0003
_PASSES = 60
_ROUNDS = 10
_AGREE = 0.01
_SMALLEST_STREAM_BYTES = 192 * 2**20
_SMALLEST_PART_BYTES = 2**20  # of an array, in a thread: long enough for a common start
_BITS = {"f64": 64, "f32": 32, "f16": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    kind: str
    name: str
    value: float
    how: str
    steady: bool = True
    limit: bool = True


def quick(device_name: str = "cpu", threads: int = 0) -> tuple[Roof, ...]:
    """FLOP/s by dtype and bytes/s of `dram` for `threads` (0: all usable cores); () for a device
    that is not a CPU."""
    if device_name.partition(":")[0] != "cpu":
        return ()
    info = devices.get("cpu").infos()[0]
    check_threads(info, threads)
    count = threads or info.units
    cpus = _cpus(count)
    native = _native.library()
    found = list(_by_compiler(native, info, cpus) if native else _by_numpy(info, count))
    now = time.time()
    roofs = tuple(
        Roof(
            device=info.name,
            arch=info.arch,
            kind="flops" if one.kind == "flops" else "bytes",
            name=one.name,
            value=one.value,
            how=one.how,
            measured=now,
            unit="vector" if one.kind == "flops" else "",
            threads=count,
            model=info.model,
            steady=one.steady,
            limit=one.limit,
        )
        for one in found
    )
    for roof in roofs:
        check(roof)
    return roofs


def check(roof: Roof) -> None:
    """A roof above what any core can do is a mistake of ours and must not become a percentage."""
    cores = max(1, roof.threads)
    if roof.kind == "flops":
        lanes = _WIDEST_VECTOR_BYTES * 8 / _BITS.get(roof.name, 8)
        most = cores * lanes * 2 * _MOST_PIPES * _MOST_HERTZ
    else:
        most = cores * _MOST_BYTES_PER_CORE
    if not 0 < roof.value <= most:
        unit = "FLOP/s" if roof.kind == "flops" else "B/s"
        raise KernelmarkError(
            f"the measured {roof.name} roof of {rate_text(roof.value, unit)} on "
            f"{counted(cores, 'core')} is not physically possible",
            hint="use --roofs none to go on without percentages, and report this",
        )


def _cpus(count: int) -> list[int]:
    """The cores that the device would pin `count` threads to."""
    return list(describe().cores[:count])


def _by_compiler(native: _native.Library, info: DeviceInfo, cpus: list[int]) -> Iterator[_Found]:
    for name in ["f32", "f64"] + (["f16"] if native.has_f16 else []):
        best = _fma_per_s(native, name, cpus)
        if best is not None:
            how = (
                f"multiply-add, {native.chains} chains of {native.vector_bytes}-byte vectors, "
                f"{native.compiler}"
            )
            yield _Found(kind="flops", name=name, value=best.per_s, how=how, steady=best.steady)
    try:
        rates = {kind: _stream_per_s(native, kind, info, cpus) for kind in _native.STREAM}
    finally:
        native.release()
    measured = {kind: rate for kind, rate in rates.items() if rate is not None}
    if measured:
        name = max(measured, key=lambda kind: measured[kind].per_s)
        each = ", ".join(f"{k} {rate_text(v.per_s, 'B/s')}" for k, v in measured.items())
        how = f"{name}, the best of {each}, {native.compiler}"
        best = measured[name]
        yield _Found(kind="bytes", name="dram", value=best.per_s, how=how, steady=best.steady)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    per_s: float
    steady: bool


def _best(round_per_s: Callable[[], float | None]) -> _Best | None:
    """The best of as many rounds as it takes until two more come close to it."""
    best, close = 0.0, 0
    for _ in range(_ROUNDS):
        rate = round_per_s()
        if rate is None:
            return None
        if rate > best * (1 + _AGREE):
            close = 0
        elif rate >= best * (1 - _AGREE):
            close += 1
        best = max(best, rate)
        if close == 2:
            break
    return _Best(per_s=best, steady=close == 2)


def _fma_per_s(native: _native.Library, name: str, cpus: list[int]) -> _Best | None:
    """FLOP/s, or None where the kernel did not compute what it should. Cores share no unit for
    this: what each does in its best pass, while all are at work, adds up."""
    kind = _native.FMA[name]
    per_step = native.chains * native.vector_bytes * 8 // _BITS[name]
    steps = 1000
    # Sums of ones are exact in every dtype up to 2048.
    trial = native.run(kind, cpus, steps, _PASSES)
    if trial is None or trial.total != float(steps * per_step * len(cpus)):
        return None
    steps = max(1, int(steps * _PASS_S / min(trial.alone_s)))
    alone_s = [math.inf] * len(cpus)

    def one_round() -> float | None:
        passes = native.run(kind, cpus, steps, _PASSES)
        if passes is None:
            return None
        alone_s[:] = map(min, alone_s, passes.alone_s)
        return sum(2.0 * steps * per_step / seconds for seconds in passes.alone_s)

    found = _best(one_round)
    if found is None:
        return None
    per_s = sum(2.0 * steps * per_step / seconds for seconds in alone_s)
    return _Best(per_s=per_s, steady=found.steady)


def _stream_per_s(
    native: _native.Library, kind: str, info: DeviceInfo, cpus: list[int]
) -> _Best | None:
    """Bytes read and written a second, or None where memory is short or the answer is wrong."""
    arrays = _native.ARRAYS[kind]
    per_array = _stream_bytes(info, len(cpus) * arrays * native.parts) // arrays
    # Whole unrolled steps of the widest vectors, and whole pages, in every part.
    count = max(1, per_array // len(cpus) // native.parts // 4096) * 512
    last = {"read": float(count), "copy": 1.0, "triad": 4.0}[kind]
    # Through a larger memory a pass is longer: fewer of them take the same time.
    longer = arrays * count * native.parts * 8 * len(cpus) / _SMALLEST_STREAM_BYTES
    often = max(2 * native.parts, round(_PASSES / max(1.0, longer)))

    def one_round() -> float | None:
        passes = native.run(_native.STREAM[kind], cpus, count * native.parts, often)
        if passes is None or passes.total != last * len(cpus):
            return None
        return float(arrays * count * 8 * len(cpus)) / passes.whole_s

    return _best(one_round)


def _stream_bytes(info: DeviceInfo, parts: int) -> int:
    """Far more than the last-level cache, far less than the memory."""
    wanted = max(_SMALLEST_STREAM_BYTES, 4 * info.cache_bytes, parts * _SMALLEST_PART_BYTES)
    return min(wanted, info.memory_bytes // 8) if info.memory_bytes else wanted


def _by_numpy(info: DeviceInfo, threads: int) -> Iterator[_Found]:
    total = _stream_bytes(info, threads)
    figures = _fallback.measure(threads, total // 2**20)
    for name, value in (figures or {}).items():
        if name == "dram":
            how = f"numpy copy of {bytes_text(total)}"
            yield _Found(kind="bytes", name=name, value=value, how=how, limit=False)
        else:
            how = "numpy matrix product"
            yield _Found(kind="flops", name=name, value=value, how=how, limit=False)
