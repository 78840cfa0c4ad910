"""A device without hardware: memory in NumPy, scripted times. Runs the pipeline in tests.

A launch reports its duration with `FakeDevice.advance(seconds)`; a replay reads the fake clock and
adds a fixed cost, like that of a GPU graph.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Telemetry
from kernelmark.core.timing import Timer
from kernelmark.devices._host import HostBuffer, HostDevice
from kernelmark.devices.base import Buffer, DeviceKind, Launch, Reading, Replay

COUNT_VARIABLE = "KERNELMARK_FAKE_DEVICES"
SCRIPT_VARIABLE = "KERNELMARK_FAKE_SCRIPT"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The behaviour of a fake device. Lists advance one step per replay (`clock_mhz`, `slow`) or
    per reading (`throttle`, `load`) and wrap around. `slow` multiplies the time of a replay's
    launches; `jitter` is a seeded relative spread."""

    replay_s: float = 10e-6
    clock_mhz: tuple[float, ...] = ()
    slow: tuple[float, ...] = (1.0,)
    jitter: float = 0.0
    throttle: tuple[tuple[str, ...], ...] = ()
    load: tuple[float, ...] = ()
    memory_bytes: int = 2**30
    cache_bytes: int = 2**18
    seed: int = 0

    @classmethod
    def from_text(cls, text: str) -> Script:
        """Parse a script in JSON, the format of `$KERNELMARK_FAKE_SCRIPT`."""
        field_names = {field.name for field in dataclasses.fields(cls)}
        try:
            document = json.loads(text) if text else {}
            unknown = sorted(document.keys() - field_names)
            fields = {name: _frozen(value) for name, value in document.items()}
        except (ValueError, AttributeError) as error:
            raise UsageError(f"${SCRIPT_VARIABLE}: not JSON: {error}") from None
        if unknown:
            raise UsageError(
                f"${SCRIPT_VARIABLE}: unknown field {unknown[0]!r}",
                hint=f"known: {', '.join(sorted(field_names))}",
            )
        return cls(**fields)


class FakeReplay(Replay):
    """Runs the launches and reads the fake clock."""

    def __init__(
        self, device: FakeDevice, launch: Launch, order: Sequence[int], method: Timer
    ) -> None:
        self._device = device
        self._launch = launch
        self._order = tuple(order)
        self.launches = len(self._order)
        self.method = method

    def run(self) -> Reading:
        start = self._device.now_s
        for index in self._order:
            self._launch(self._device.stream, index)
        return self._device.finish_replay(self._device.now_s - start)


class FakeDevice(HostDevice):
    """One fake device with its own clock."""

    enqueues = True
    real_time = False

    def __init__(self, index: int = 0, script: Script | None = None) -> None:
        self.script = script if script is not None else Script()
        self.info = _info(index, self.script)
        self.now_s = 0.0
        self.evictions = 0
        self._used = 0
        self._replays = 0
        self._readings = 0
        self._random = np.random.default_rng([self.script.seed, index])

    def advance(self, seconds: float) -> None:
        """Advance the clock by the duration of a launch."""
        self.now_s += seconds

    def finish_replay(self, launches_s: float) -> Reading:
        """Return the reading of a replay whose launches took `launches_s` before slowdown and
        noise."""
        script, step = self.script, self._replays
        self._replays += 1
        factor = _at(script.slow, step) or 1.0
        if script.jitter:
            factor *= float(np.exp(self._random.normal(0.0, script.jitter)))
        elapsed = launches_s * factor + script.replay_s
        self.now_s += elapsed - launches_s
        return Reading(elapsed_s=elapsed, clock_mhz=_at(script.clock_mhz, step))

    def allocate(self, nbytes: int) -> HostBuffer:
        buffer = super().allocate(nbytes)
        self._used += nbytes
        return buffer

    def free(self, buffer: Buffer) -> None:
        self._used -= buffer.nbytes
        super().free(buffer)

    def free_bytes(self) -> int:
        return self.script.memory_bytes - self._used

    def record(self, launch: Launch, order: Sequence[int], timer: Timer) -> FakeReplay:
        if timer is Timer.PROFILER:
            raise Unsupported(
                Reason(
                    f"fake has no {timer} timer",
                    "timer-unsupported",
                    device="fake",
                    timer=str(timer),
                )
            )
        return FakeReplay(self, launch, order, Timer.LOOP if timer is Timer.AUTO else timer)

    def evict_cache(self) -> None:
        self.evictions += 1

    def telemetry(self) -> Telemetry:
        step = self._readings
        self._readings += 1
        return Telemetry(
            clock_mhz=_at(self.script.clock_mhz, max(0, self._replays - 1)),
            load=_at(self.script.load, step),
            throttle=_at(self.script.throttle, step) or (),
        )


class FakeKind(DeviceKind):
    """Fake devices, as many as `$KERNELMARK_FAKE_DEVICES`, by default one."""

    name = "fake"

    def available(self) -> str | None:
        if _count():
            return None
        return Reason(f"${COUNT_VARIABLE} reports no fake device; set it to a positive number")

    def infos(self) -> list[DeviceInfo]:
        script = Script.from_text(os.environ.get(SCRIPT_VARIABLE, ""))
        return [_info(index, script) for index in range(_count())]

    def open(self, index: int, threads: int = 0) -> FakeDevice:
        if not 0 <= index < _count():
            raise UsageError(
                f"there is no device 'fake:{index}'",
                hint=f"set ${COUNT_VARIABLE} to {index + 1} or more",
            )
        return FakeDevice(index, Script.from_text(os.environ.get(SCRIPT_VARIABLE, "")))


kind = FakeKind()


def _info(index: int, script: Script) -> DeviceInfo:
    return DeviceInfo(
        name=f"fake:{index}" if index else "fake",
        kind="fake",
        model="a script",
        arch="fake",
        index=index,
        memory_bytes=script.memory_bytes,
        cache_bytes=script.cache_bytes,
    )


def _count() -> int:
    text = os.environ.get(COUNT_VARIABLE, "1")
    if not text.isdigit():
        raise UsageError(f"${COUNT_VARIABLE} is {text!r}, not a number")
    return int(text)


def _at(values: Sequence[T], step: int) -> T | None:
    return values[step % len(values)] if values else None


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
