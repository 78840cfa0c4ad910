"""Device: memory, timed launches, and telemetry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Telemetry
from kernelmark.core.tensor import Contraction, TensorSpec
from kernelmark.core.timing import Timer
from kernelmark.numerics.floats import storage
from kernelmark.numerics.project import Projection, project

# Guard bytes before and after every output, to detect out-of-bounds writes. More would detect
# little more and cost cache; 256 keeps every tensor's alignment.
GUARD_BYTES = 256
GUARD_BYTE = 0xA5

Stream = int  # a native stream handle; 0 on devices without streams
Launch = Callable[[Stream, int], None]  # (stream, argument set): enqueue once, allocate nothing
Peek = Callable[[], NDArray[np.generic]]  # returns the current bit patterns
_T = TypeVar("_T")
# A result that may still be enqueued, computed from memory at that point of the stream. Calling it
# waits and returns the value.
Deferred = Callable[[], _T]
WhileCapturing = Callable[[Stream], AbstractContextManager[object]]  # (the captured stream)
BeforeReplay = Callable[[int], None]  # (index): enqueue untimed work ahead of that replay


class Buffer(Protocol):
    """Device memory."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An argument in device memory; `buffer` holds guard bytes around an output."""

    spec: TensorSpec
    buffer: Buffer
    offset: int

    @property
    def address(self) -> int:
        return self.buffer.address + self.offset


ArgumentSet = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One replay: device seconds for all its launches, the core clock, and the seconds in which
    other work interrupted it, which are not in `elapsed_s`."""

    elapsed_s: float
    clock_mhz: float | None = None
    interrupted_s: float = 0.0

    @property
    def spent_s(self) -> float:
        return self.elapsed_s + self.interrupted_s


class Replay(ABC):
    """A recorded sequence of launches that can be timed repeatedly."""

    launches: int
    method: Timer  # the timer that was used, which may differ from the requested one
    # Work to enqueue behind the gate, before the timed launches. Work that a launch puts on another
    # stream does not wait for the gate, and so runs before this.
    behind_gate: Callable[[], object] | None = None
    # On a CPU, called as soon as the clock is read: with the garbage collector still off, whose
    # callbacks could do the work of launches.
    at_end: Callable[[], object] | None = None

    @abstractmethod
    def run(self) -> Reading:
        """Execute once and wait for the end."""

    def close(self) -> None:
        """Free what recording allocated."""


@runtime_checkable
class OwnQueue(Protocol):
    """A kernel whose runtime enqueues outside the device's stream and events."""

    def replay_s(self, order: Sequence[int]) -> float:
        """Enqueue these launches without waiting between them; return the host seconds from the
        start of the first to the end of the last."""

    def even_launches(self, launches: int) -> int:
        """Round a launch count up to one whose double is enqueued in the same way."""


def own_queue(launch: Launch) -> OwnQueue | None:
    """Return the kernel that `launch` is a method of, if its runtime has its own queue."""
    owner = getattr(launch, "__self__", None)
    # Not isinstance, which takes 40 µs for a protocol in Python 3.11, on every recording.
    has_queue = hasattr(owner, "replay_s") and hasattr(owner, "even_launches")
    return cast(OwnQueue, owner) if has_queue else None


class Device(ABC):
    """One opened device: everything a measurement needs, independent of any backend."""

    info: DeviceInfo
    # Whether launches return before they have run. A replay then has a fixed cost, which is
    # cancelled by also recording twice the launches.
    enqueues: bool = False
    # Blocks in addition to those of the timing: if set-up is quick, many short blocks are more
    # precise than few long ones.
    more_blocks: int = 0
    # False if the device's clock is scripted and unrelated to the host's clock.
    real_time: bool = True

    @property
    @abstractmethod
    def stream(self) -> Stream:
        """The stream that launches are enqueued on."""

    def launch_on(self, stream: Stream, while_capturing: WhileCapturing) -> None:
        """Launch on this stream of the process from now on; the device's own stream is then used
        only to capture graphs, inside `while_capturing`. Must be the first call. In a process that
        launches on two streams every launch takes longer, on an H200 by 0.35 µs
        (benchmarks/gpu/streams.py). Devices without streams ignore it."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Allocate uninitialised memory, aligned to at least 256 bytes; raise OutOfMemory on
        failure."""

    @abstractmethod
    def free(self, buffer: Buffer) -> None:
        """Free memory, immediately or in `release_freed`."""

    def release_freed(self) -> None:
        """Return freed memory to the system, for other processes and libraries. Any thread may call
        it while no other uses the device."""

    def keep_freed(self) -> None:
        """Keep the memory that a case freed for the next case, if it allocates the same sizes."""
        self.release_freed()

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the bytes that can still be allocated."""

    def reuses_freed(self, nbytes: int) -> bool:
        """Return whether the next allocation of this size gets the memory freed last."""
        return False

    @abstractmethod
    def write(self, buffer: Buffer, offset: int, data: NDArray[np.uint8]) -> None: ...

    @abstractmethod
    def read(self, buffer: Buffer, offset: int, nbytes: int) -> NDArray[np.uint8]: ...

    @abstractmethod
    def generate(self, tensor: Tensor, seed: int, set_index: int) -> None:
        """Fill an input as `numerics.generate` defines it, bit for bit."""

    def generate_all(self, tensors: Sequence[tuple[Tensor, int]], seed: int) -> None:
        """Fill many inputs, each given with its set index."""
        for tensor, set_index in tensors:
            self.generate(tensor, seed, set_index)

    @abstractmethod
    def count_changed(
        self, tensors: Sequence[tuple[Tensor, int]], seed: int
    ) -> Deferred[list[int]]:
        """Count the elements of each input that differ from what `generate` wrote for its set."""

    @abstractmethod
    def poison(self, tensor: Tensor, byte: int) -> None:
        """Set every byte of an output to `byte` and its guards to GUARD_BYTE."""

    def poison_all(self, tensors: Sequence[Tensor], byte: int) -> None:
        """Call `poison` for many outputs."""
        for tensor in tensors:
            self.poison(tensor, byte)

    @abstractmethod
    def count_poison(self, tensor: Tensor, byte: int) -> int:
        """Count the elements all of whose bytes are still `byte`."""

    @abstractmethod
    def guards_intact(self, tensor: Tensor) -> bool: ...

    def inspect(self, tensors: Sequence[Tensor], byte: int) -> Deferred[list[tuple[int, bool]]]:
        """Return `count_poison` and `guards_intact` of many outputs."""
        states = [(self.count_poison(t, byte), self.guards_intact(t)) for t in tensors]
        return lambda: states

    @abstractmethod
    def take(self, tensor: Tensor, where: NDArray[np.int64]) -> NDArray[np.generic]:
        """Return the bit patterns of the elements at flat indices `where`."""

    def prepare_projection(self) -> None:
        """Start compiling the kernels of `project` in the background."""

    def project(
        self, contraction: Contraction, tensors: ArgumentSet, signs: NDArray[np.float64]
    ) -> Deferred[Projection]:
        """Compare the whole output with the inputs along random `signs`, one per column."""
        values = {name: (self._bits(tensor), tensor.spec.dtype) for name, tensor in tensors.items()}
        projection = project(contraction, values, signs)
        return lambda: projection

    def _bits(self, tensor: Tensor) -> NDArray[np.generic]:
        """Return all elements of a tensor as flat bit patterns."""
        raw = self.read(tensor.buffer, tensor.offset, tensor.spec.nbytes)
        return raw.view(storage(tensor.spec.dtype))

    def peek(self, tensor: Tensor, where: NDArray[np.int64]) -> Peek:
        """Prepare a `take`. Calling the result reads memory after all work enqueued by then."""
        return lambda: self.take(tensor, where)

    @abstractmethod
    def record(self, launch: Launch, order: Sequence[int], timer: Timer) -> Replay:
        """Record launches over argument sets in `order`, to be timed by `timer`."""

    def run_all(
        self,
        replays: Sequence[Replay],
        *,
        before: BeforeReplay | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Reading]:
        """Run replays back to back and return their readings. `before(i)` enqueues untimed work
        ahead of replay `i`. The host runs `meanwhile` while the first replays run."""
        if meanwhile is not None:
            meanwhile()
        readings = []
        for at, replay in enumerate(replays):
            if before is not None:
                before(at)
                self.synchronize()
            readings.append(replay.run())
        return readings

    def run_ahead(self, replays: Sequence[Replay]) -> Callable[[], float]:
        """Run replays whose readings are not needed, without waiting if the device enqueues.
        Calling the result waits and returns their device seconds."""
        seconds = sum(reading.elapsed_s for reading in self.run_all(replays))
        return lambda: seconds

    @abstractmethod
    def synchronize(self) -> None: ...

    @abstractmethod
    def evict_cache(self) -> None:
        """Evict everything from the last-level cache."""

    def disturb_scheduler(self) -> None:
        """Enqueue work that leaves the hardware's block scheduler in a random state.

        On an H200 some kernels take 35, 37 or 38 µs depending on which SM gets the first cluster of
        thread blocks. Earlier kernels determine that state, and launches of the same kernel
        preserve it, so samples with no other work in between share one value
        (benchmarks/gpu/placement.py). Devices without such a scheduler do nothing."""

    @abstractmethod
    def telemetry(self) -> Telemetry:
        """Return the current clocks, power, temperature, load and throttle reasons."""

    def watch(self) -> None:
        """Start the reading that the next `telemetry` returns, if a reading takes long."""

    def kernel_names(self, launch: Launch) -> tuple[str, ...]:
        """Return the kernel names that a launch of set 0 starts, as the library names them; () if
        unknown."""
        return ()

    def close(self) -> None:
        """Free all resources."""


class DeviceKind(ABC):
    """A family of devices; each device file in this folder provides one as `kind`."""

    name: str

    @abstractmethod
    def available(self) -> str | None:
        """Return None, or a sentence on why no such device is present and what to install."""

    @abstractmethod
    def infos(self) -> list[DeviceInfo]:
        """Return the devices of this kind on this machine, in order; [] if there are none."""

    @abstractmethod
    def open(self, index: int, threads: int = 0) -> Device:
        """Open device `index`; only the CPU uses `threads`."""

    def worker_variables(self, index: int, threads: int) -> dict[str, str]:
        """Return the environment variables that restrict a worker process to this device."""
        return {}
