"""GpuDevice: the Device implementation for CUDA and HIP, on the shared driver binding."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import Telemetry
from kernelmark.core.tensor import Contraction, TensorSpec
from kernelmark.core.timing import Strain, Timer
from kernelmark.core.units import bytes_text
from kernelmark.devices._gpu_kind import info
from kernelmark.devices._gpu_memory import (
    Projector,
    Readback,
    elements,
    first_item,
    guards,
    item_bytes,
    item_count,
    pairs,
)
from kernelmark.devices._replay import (
    Gate,
    GateReplay,
    GraphReplay,
    QueueReplay,
    Series,
    Stamps,
    capture,
)
from kernelmark.devices.base import (
    GUARD_BYTE,
    ArgumentSet,
    BeforeReplay,
    Buffer,
    Deferred,
    Device,
    Launch,
    Peek,
    Reading,
    Replay,
    Stream,
    Tensor,
    WhileCapturing,
    own_queue,
)
from kernelmark.gpu import telemetry
from kernelmark.gpu.driver import Driver, pack
from kernelmark.gpu.objects import kernel_names
from kernelmark.gpu.rtc import compile_source
from kernelmark.kernels import rtc as kernels
from kernelmark.numerics.floats import storage
from kernelmark.numerics.generate import period, source_bits
from kernelmark.numerics.project import Projection

# Whether graphs that are enqueued while the device runs are timed as behind a gate.
#
# CUDA submits a graph as a whole. HIP's runtime writes a packet for every kernel when the graph is
# launched, so kernels that are shorter than the host's time for a packet wait for the host. Two
# lengths do not cancel a cost per kernel. Behind a gate, all packets are there before the first
# kernel starts.

LAUNCHES = 200  # N; the other graph has 2N
_ROUNDS = 9
# Differences below these are noise of the clock: an empty kernel takes 1 to 3 µs.
_MOST_RELATIVE, _MOST_S = 0.05, 0.1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchCost:
    """Seconds of one launch of a kernel, (T₂ₙ − Tₙ)/N, in graphs behind a gate and in a series."""

    kernel: str
    gated_s: float
    series_s: float

    @property
    def agrees(self) -> bool:
        return self.series_s - self.gated_s <= max(_MOST_S, _MOST_RELATIVE * self.gated_s)


def dispatch_costs(
    kernels: Mapping[str, Launch],
    record: Callable[[Launch, int], Replay],
    run_series: Callable[[Sequence[Replay]], list[Reading]],
) -> list[DispatchCost]:
    """Time each kernel in both ways; `record` returns a graph of a number of launches."""
    costs = []
    for name, launch in kernels.items():
        replays = [record(launch, LAUNCHES * factor) for factor in (1, 2)]
        try:
            order = replays * _ROUNDS
            run_series(replays)  # the first launch of a graph uploads it
            gated = _launch_s([replay.run() for replay in order])
            costs.append(
                DispatchCost(kernel=name, gated_s=gated, series_s=_launch_s(run_series(order)))
            )
        finally:
            for replay in replays:
                replay.close()
    return costs


def _launch_s(readings: Sequence[Reading]) -> float:
    short, long = (median(r.elapsed_s for r in readings[at::2]) for at in (0, 1))
    return (long - short) / LAUNCHES


# Threads per block of the helper kernels: eight such blocks fill an SM of 2048 threads.
_BLOCK = 256
_TABLE = 64  # tensors per launch of the generator; must match device.cu
_STRAIN_ROUNDS = 20_000  # of four FMAs per thread, in the compute load
_SHORT_S = 3e-6  # of the kernel that shows whether a series waits for the host
_DISTURB_CYCLES = 500  # maximum cycles of a thread block in disturb_scheduler
# Largest fraction of the device's memory that `free` keeps allocated: libraries need memory too.
_MAX_FREED_FRACTION = 0.1
_u32, _u64, _ptr = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p


class GpuBuffer:
    """GPU memory."""

    __slots__ = ("address", "nbytes")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes


class GpuDevice(Device):
    """One opened GPU. Its helper kernels are compiled once per architecture."""

    enqueues = True
    more_blocks = 1

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver = driver
        self.index = index
        driver.use(index)
        self.info = info(driver, index)
        # `launch_on` replaces `_stream`. Graphs are always captured on the device's own stream: the
        # default stream, on which torch and CuPy launch, cannot be captured.
        self._stream = self._capture_stream = driver.stream()
        self._while_capturing: WhileCapturing = contextlib.nullcontext
        bus_id = functools.partial(driver.bus_id, index)
        self._watcher = telemetry.watcher(driver.table.vendor, self.info.uuid, bus_id)
        self._functions: dict[str, int] = {}
        self._scratch: dict[str, GpuBuffer] = {}
        self._pools: dict[object, GpuBuffer] = {}
        self._readback = Readback(driver, self._stream)
        self._freed: list[GpuBuffer] = []  # freed by the driver in `release_freed`
        self._kept: list[GpuBuffer] = []  # for allocations of the same sizes

    # -- helper kernels

    @functools.cached_property
    def _module(self) -> int:
        binary = compile_source(kernels.source("device.cu"), arch=self.info.arch, name="device.cu")
        return self.driver.load(binary.code)

    def function(self, name: str) -> int:
        """Return a kernel from kernels/rtc/device.cu."""
        if name not in self._functions:
            self._functions[name] = self.driver.function(self._module, name)
        return self._functions[name]

    def start(self, name: str, grid: int, block: int, *arguments: ctypes._SimpleCData) -> None:  # type: ignore[type-arg]
        """Enqueue a helper kernel on the device's stream."""
        self.driver.launch(
            self.function(name), (grid, 1, 1), (block, 1, 1), pack(*arguments), self._stream
        )

    def _blocks(self, count: int) -> int:
        """Return the grid size of a grid-stride loop: one thread per item, at most 32 blocks per
        SM/CU."""
        # Four waves of resident blocks even out SMs/CUs that are slower to start.
        return max(1, min(-(-count // _BLOCK), self.info.units * 32))

    # -- memory

    @property
    def stream(self) -> Stream:
        return self._stream

    def launch_on(self, stream: Stream, while_capturing: WhileCapturing) -> None:
        self._stream = stream
        self._readback = Readback(self.driver, stream)
        self._while_capturing = while_capturing

    def allocate(self, nbytes: int) -> GpuBuffer:
        kept = next((buffer for buffer in self._kept if buffer.nbytes == nbytes), None)
        if kept is not None:
            self._kept.remove(kept)
            return kept
        try:
            return GpuBuffer(self.driver.allocate(max(1, nbytes)), nbytes)
        except OutOfMemory as error:
            if self._freed or self._kept:
                self.release_freed()
                return self.allocate(nbytes)
            raise OutOfMemory(
                Reason(
                    f"{bytes_text(nbytes)} needed"
                    + (f" on {self.info.name}" if self.info.name else "")
                    + f", {bytes_text(self.free_bytes())} free"
                    + (f" ({error.message})" if error.message else ""),
                    "out-of-memory",
                    needed=nbytes,
                    device=self.info.name,
                    free=self.free_bytes(),
                    cause=error.message,
                )
            ) from None

    def free(self, buffer: Buffer) -> None:
        # The driver's free synchronizes the device, so memory is freed between cases, not blocks.
        self._freed.append(GpuBuffer(buffer.address, buffer.nbytes))
        if self._freed_bytes > self.info.memory_bytes * _MAX_FREED_FRACTION:
            self.release_freed()

    def release_freed(self) -> None:
        self.driver.use(self.index)  # the caller may be another thread
        for buffers in (self._kept, self._freed):
            while buffers:
                self.driver.free(buffers.pop().address)

    def keep_freed(self) -> None:
        freed, self._freed = self._freed, []
        self.release_freed()  # what the last case did not take
        self._kept = freed

    def free_bytes(self) -> int:
        return self.driver.memory_info()[0] + self._freed_bytes

    @property
    def _freed_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in (*self._freed, *self._kept))

    def write(self, buffer: Buffer, offset: int, data: NDArray[np.uint8]) -> None:
        self._upload(buffer.address + offset, data, self._stream)

    def _upload(self, address: int, data: NDArray[np.uint8], stream: Stream) -> None:
        """Copy on a stream and wait: a synchronous copy may return before it is complete, and the
        device's stream is not ordered after it."""
        raw = np.ascontiguousarray(data)
        target, source, size = _ptr(address), _ptr(raw.ctypes.data), ctypes.c_size_t(raw.nbytes)
        self.driver.call("copy_to_device_async", target, source, size, _ptr(stream))
        self.driver.call("stream_synchronize", _ptr(stream))

    def read(self, buffer: Buffer, offset: int, nbytes: int) -> NDArray[np.uint8]:
        out = np.empty(nbytes, np.uint8)
        self.synchronize()
        self.driver.copy_to_host(out.ctypes.data, buffer.address + offset, nbytes)
        return out

    def scratch(self, name: str, nbytes: int) -> GpuBuffer:
        """Return a named buffer that is kept between calls and grown on demand; for pools, sinks
        and stamps."""
        buffer = self._scratch.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            if buffer is not None:
                self.synchronize()
                # Remove it first: allocating the larger buffer may fail.
                self.free(self._scratch.pop(name))
            self._scratch[name] = buffer = self.allocate(nbytes)
        return buffer

    # -- inputs and outputs

    def generate(self, tensor: Tensor, seed: int, set_index: int) -> None:
        spec = tensor.spec
        count = item_count(spec)
        self.start(
            f"generate_{item_bytes(spec)}",
            self._blocks(count),
            _BLOCK,
            _ptr(tensor.address),
            _ptr(self._pool(spec, seed).address),
            _u64(count),
            _u32(first_item(spec, seed, set_index)),
            _u32(period(spec)),
        )

    def generate_all(self, tensors: Sequence[tuple[Tensor, int]], seed: int) -> None:
        for spec, table, _ in _tables(tensors, seed):
            self._start_table(f"generate_all_{item_bytes(spec)}", spec, seed, table)

    def count_changed(
        self, tensors: Sequence[tuple[Tensor, int]], seed: int
    ) -> Deferred[list[int]]:
        if not tensors:  # a call without arguments
            return list
        changed = self.scratch("changed", 8 * len(tensors))
        self.driver.fill(changed.address, 0, 8 * len(tensors), self._stream)
        positions: list[int] = []  # index in `tensors` of each count
        for spec, table, members in _tables(tensors, seed):
            target = _ptr(changed.address + 8 * len(positions))
            self._start_table(f"changed_{item_bytes(spec)}", spec, seed, table, target)
            positions += members
        transfer = self._readback.start(changed.address, 8 * len(tensors))

        def counts() -> list[int]:
            items = dict(zip(positions, transfer().view(np.uint64).tolist(), strict=True))
            return [elements(tensor.spec, items[at]) for at, (tensor, _) in enumerate(tensors)]

        return counts

    def _start_table(
        self,
        name: str,
        spec: TensorSpec,
        seed: int,
        table: Sequence[int],
        *more: ctypes._SimpleCData,  # type: ignore[type-arg]
    ) -> None:
        """Launch a kernel on tensors of one spec; `table` has each tensor's address and first
        item."""
        arguments = pack(
            (_u64 * (2 * _TABLE))(*table),
            _ptr(self._pool(spec, seed).address),
            _u64(item_count(spec)),
            _u32(period(spec)),
            *more,
        )
        self._start_rows(name, self._table_grid(spec, len(table) // 2), arguments)

    def _pool(self, spec: TensorSpec, seed: int) -> GpuBuffer:
        there = None if spec.given is None else spec.given.on_device
        if there is not None:
            return GpuBuffer(there.address, spec.nbytes)  # owned by another buffer: not freed here
        key = spec.given or (spec.dtype, spec.low, spec.high, seed)
        if key not in self._pools:
            bits = source_bits(spec, seed)
            self._pools[key] = self.allocate(bits.nbytes)
            packed = pairs(bits) if spec.type.bits < 8 else bits
            # Use another stream: the device's may be capturing. No enqueued work uses this memory
            # yet.
            stream = self.driver.stream()
            try:
                self._upload(self._pools[key].address, packed.view(np.uint8), stream)
            finally:
                self.driver.destroy("stream", stream)
        return self._pools[key]

    def poison(self, tensor: Tensor, byte: int) -> None:
        for address, nbytes in guards(tensor):
            if nbytes:
                self.driver.fill(address, GUARD_BYTE, nbytes, self._stream)
        self.driver.fill(tensor.address, byte, tensor.spec.nbytes, self._stream)

    def poison_all(self, tensors: Sequence[Tensor], byte: int) -> None:
        for table, grid in self._guarded(tensors):
            nbytes = tensors[0].spec.nbytes
            arguments = pack(table, _u64(nbytes), _u32(byte), _u32(GUARD_BYTE))
            self._start_rows("poison_all", grid, arguments)

    def _guarded(
        self, tensors: Sequence[Tensor]
    ) -> Iterator[tuple[ctypes.Array[ctypes.c_uint64], tuple[int, int]]]:
        """Yield tables of outputs and their guards, each with the grid to launch over it."""
        for start in range(0, len(tensors), _TABLE):
            batch = tensors[start : start + _TABLE]
            rows = []
            for tensor in batch:
                (first, before), (_, after) = guards(tensor)
                rows += [first, before << 32 | after]
            grid = self._table_grid(batch[0].spec, len(batch))
            yield (_u64 * (2 * _TABLE))(*rows), grid

    def _table_grid(self, spec: TensorSpec, rows: int) -> tuple[int, int]:
        """Return the thread blocks per tensor and the number of tensors: 8 bytes per thread, at
        most 32 blocks per SM/CU in total."""
        groups = -(-spec.nbytes // (8 * _BLOCK))
        return max(1, min(groups, -(-self.info.units * 32 // rows))), rows

    def _start_rows(
        self, name: str, grid: tuple[int, int], arguments: ctypes.Array[ctypes.c_void_p]
    ) -> None:
        """Launch a kernel whose blockIdx.y is a row index of the table."""
        function = self.function(name)
        self.driver.launch(function, (*grid, 1), (_BLOCK, 1, 1), arguments, self._stream)

    def count_poison(self, tensor: Tensor, byte: int) -> int:
        return self.inspect([tensor], byte)()[0][0]

    def guards_intact(self, tensor: Tensor) -> bool:
        return self.inspect([tensor], 0)()[0][1]

    def inspect(self, tensors: Sequence[Tensor], byte: int) -> Deferred[list[tuple[int, bool]]]:
        if not tensors:
            return list
        spec = tensors[0].spec
        counts = self.scratch("found", 16 * len(tensors))
        self.driver.fill(counts.address, 0, 16 * len(tensors), self._stream)
        target = counts.address
        for table, grid in self._guarded(tensors):
            numbers = _u64(item_count(spec)), _u64(spec.nbytes), _u32(byte), _u32(GUARD_BYTE)
            self._start_rows(
                f"inspect_{item_bytes(spec)}", grid, pack(table, *numbers, _ptr(target))
            )
            target += 16 * grid[1]
        transfer = self._readback.start(counts.address, 16 * len(tensors))

        def states() -> list[tuple[int, bool]]:
            rows = transfer().view(np.uint64).reshape(-1, 2)
            return [
                (elements(spec, int(poisoned)), int(intact) == sum(n for _, n in guards(tensor)))
                for tensor, (poisoned, intact) in zip(tensors, rows, strict=True)
            ]

        return states

    def take(self, tensor: Tensor, where: NDArray[np.int64]) -> NDArray[np.generic]:
        return self.peek(tensor, where)()

    def peek(self, tensor: Tensor, where: NDArray[np.int64]) -> Peek:
        if tensor.spec.type.bits >= 8:
            return self._gather(tensor, where)
        pair_bytes = self._gather(tensor, where // 2)
        half = (where % 2).astype(np.uint8) * np.uint8(4)
        return lambda: np.asarray((pair_bytes().astype(np.uint8) >> half) & np.uint8(15))

    def _gather(self, tensor: Tensor, where: NDArray[np.int64]) -> Peek:
        kind = storage(tensor.spec.dtype)
        # Uploaded before the launch, so that the returned function only has to gather.
        flat = np.ascontiguousarray(where.ravel(), np.uint64)
        if not flat.size:  # an output without a reference; a launch needs a thread block
            return lambda: np.empty(where.shape, kind)
        places = self.scratch("places", flat.nbytes)
        picked = self.scratch("picked", flat.size * kind.itemsize)
        self.write(places, 0, flat.view(np.uint8))
        arguments = _ptr(picked.address), _ptr(tensor.address), _ptr(places.address)

        def gather() -> NDArray[np.generic]:
            blocks = -(-flat.size // _BLOCK)
            self.start(f"gather_{kind.itemsize}", blocks, _BLOCK, *arguments, _u32(flat.size))
            raw = self.read(picked, 0, flat.size * kind.itemsize)
            return raw.view(kind).reshape(where.shape)

        return gather

    def project(
        self, contraction: Contraction, tensors: ArgumentSet, signs: NDArray[np.float64]
    ) -> Deferred[Projection]:
        memory = self.scratch("projection", self._projector.nbytes(contraction))
        return self._projector.project(contraction, tensors, signs, memory, self._stream)

    def prepare_projection(self) -> None:
        _ = self._projector

    @functools.cached_property
    def _projector(self) -> Projector:
        return Projector(self.driver, self._readback, self.info.arch, self.info.units)

    # -- timing

    def record(self, launch: Launch, order: Sequence[int], timer: Timer) -> Replay:
        queue = own_queue(launch)
        if queue is not None:
            if timer not in (Timer.AUTO, Timer.LOOP):
                raise Unsupported(
                    f"timer={timer} needs launches on the device's stream, and this"
                    " backend's runtime has a queue of its own",
                    hint="leave the timer out",
                )
            return QueueReplay(self.driver, self._stream, queue, order, self._stamps)
        if timer in (Timer.AUTO, Timer.GRAPH):
            try:
                graph = self._capture(launch, order, self._stamps)
                return GraphReplay(
                    self.driver, self._stream, graph, len(order), self._stamps, self._gate
                )
            except OutOfMemory:
                raise
            except Exception:
                # Some libraries cannot be captured and raise their own errors. Fall back to the
                # gate, which is stored as the method; an error with another cause recurs there.
                if timer is Timer.GRAPH:
                    raise
        if timer in (Timer.AUTO, Timer.GATE):
            return GateReplay(self.driver, self._stream, launch, order, self._stamps, self._gate)
        raise Unsupported(
            Reason(
                f"a GPU has no {timer} timer", "timer-unsupported", device="a GPU", timer=str(timer)
            ),
            hint="use graph, gate or profiler",
        )

    def run_all(
        self,
        replays: Sequence[Replay],
        *,
        before: BeforeReplay | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Reading]:
        graphs = [replay for replay in replays if isinstance(replay, GraphReplay)]
        if len(graphs) < len(replays) or not self._series_is_exact:
            return super().run_all(replays, before=before, meanwhile=meanwhile)
        return self._series.run(graphs, before or _nothing, meanwhile)

    def run_ahead(self, replays: Sequence[Replay]) -> Callable[[], float]:
        graphs = [replay for replay in replays if isinstance(replay, GraphReplay)]
        if len(graphs) < len(replays):
            return super().run_ahead(replays)
        return self._series.run_ahead(graphs)

    @functools.cached_property
    def _series_is_exact(self) -> bool:
        """Whether a series takes as long as graphs behind a gate; CUDA submits whole graphs."""
        return self.driver.table.vendor == "cuda" or all(x.agrees for x in self.dispatch_costs())

    def dispatch_costs(self) -> list[DispatchCost]:
        """Time an empty kernel and one of 3 µs in graphs behind a gate and in a series."""
        cycles = _u64(round(_SHORT_S * 1e3 * int(self.info.attributes["clock_khz"])))
        kernels: dict[str, Launch] = {
            "empty": lambda stream, index: self.start("nothing", 1, 1),
            "3 µs": lambda stream, index: self.start("spin", 1, 1, cycles),
        }
        return dispatch_costs(
            kernels,
            lambda launch, count: self.record(launch, [0] * count, Timer.GRAPH),
            lambda replays: self._series.run(
                [replay for replay in replays if isinstance(replay, GraphReplay)], _nothing, None
            ),
        )

    @functools.cached_property
    def _series(self) -> Series:
        return Series(self.driver, self._stream, self._stamps)

    @functools.cached_property
    def _stamps(self) -> Stamps:
        # AMD CU ids have gaps and continue from one chiplet to the next, so leave room for the
        # gaps.
        slots = self.info.units if self.driver.table.vendor == "cuda" else 2048
        wall_khz = 1e6  # NVIDIA's wall clock counts nanoseconds
        if self.driver.table.vendor == "hip":
            wall_khz = float(self.driver.attribute(self.index, "wall_clock_khz"))
        buffer = self.scratch("stamps", Stamps.nbytes(slots))
        # A slot that no SM/CU writes must not look like a stamp.
        self.driver.fill(buffer.address, 0, buffer.nbytes, self._stream)
        function = self.function("stamp")
        return Stamps(
            self.driver, self._readback, function, buffer, slots, wall_khz, self.info.units
        )

    @functools.cached_property
    def _gate(self) -> Gate:
        return Gate(self.driver, self.function("gate"))

    def kernel_names(self, launch: Launch) -> tuple[str, ...]:
        if own_queue(launch) is not None:
            return ()  # cannot be captured
        try:
            graph = self._capture(launch, (0,))
        except Exception:  # a library that cannot be captured
            return ()
        try:
            return kernel_names(self.driver, graph)
        finally:
            self.driver.destroy("graph", graph)

    def _capture(self, launch: Launch, order: Sequence[int], stamps: Stamps | None = None) -> int:
        stream, self._stream = self._stream, self._capture_stream
        try:
            with self._while_capturing(self._capture_stream):
                return capture(self.driver, self._capture_stream, launch, order, stamps)
        finally:
            self._stream = stream

    def synchronize(self) -> None:
        self.driver.call("stream_synchronize", _ptr(self._stream))

    def _beyond_cache(self) -> GpuBuffer:
        """Return a buffer larger than the last-level cache."""
        # Twice: a cache without LRU replacement keeps part of what it held. At least 32 MiB,
        # for caches that the driver does not report.
        return self.scratch("beyond cache", 2 * max(self.info.cache_bytes, 32 * 2**20))

    def evict_cache(self) -> None:
        data, sink = self._beyond_cache(), self.scratch("sink", 8)
        count = data.nbytes // 8
        self.start(
            "evict",
            self._blocks(count),
            _BLOCK,
            _ptr(data.address),
            _u64(count),
            _ptr(sink.address),
        )

    def disturb_scheduler(self) -> None:
        # Thread blocks of random length in several waves: the shortest of the variants tried that
        # draws all start SMs about equally often and independently of the last draw. One wave, an
        # empty kernel or another GEMM always leave the same state (benchmarks/gpu/placement.py).
        blocks = random.randrange(self.info.units * 16, self.info.units * 32)
        arguments = _u32(random.getrandbits(32)), _u32(_DISTURB_CYCLES)
        self.start("disturb", blocks, _BLOCK, *arguments)

    def strain(self, kind: Strain) -> None:
        """Enqueue background load that imitates the rest of a model."""
        if kind is Strain.BANDWIDTH:
            data = self._beyond_cache()
            count = data.nbytes // 16
            grid = self._blocks(count)
            self.start("strain_bandwidth", grid, _BLOCK, _ptr(data.address), _u64(count))
        elif kind is Strain.COMPUTE:
            sink = self.scratch("sink", 8)
            grid = self.info.units * 4
            self.start("strain_compute", grid, _BLOCK, _ptr(sink.address), _u32(_STRAIN_ROUNDS))

    def watch(self) -> None:
        self._watcher.begin()

    def telemetry(self) -> Telemetry:
        return self._watcher.read()

    def close(self) -> None:
        self.synchronize()
        for buffer in [*self._scratch.values(), *self._pools.values()]:
            self.free(buffer)
        self.release_freed()
        self._scratch.clear()
        self._pools.clear()
        self._readback.close()
        if "_gate" in self.__dict__:
            self._gate.close()
        if "_series" in self.__dict__:
            self._series.close()
        if "_module" in self.__dict__:
            self.driver.destroy("module", self._module)
        if "_projector" in self.__dict__:
            self._projector.close()
        self.driver.destroy("stream", self._capture_stream)


def _tables(
    tensors: Sequence[tuple[Tensor, int]], seed: int
) -> Iterator[tuple[TensorSpec, list[int], list[int]]]:
    """Group tensors by spec into tables of at most _TABLE rows. Yield each spec, its table of
    addresses and first items, and the indices of its rows in `tensors`."""
    # By identity: the sets of a case share their specs, and hashing a spec is slow.
    groups: dict[int, tuple[TensorSpec, list[tuple[int, int, int]]]] = {}
    for at, (tensor, number) in enumerate(tensors):
        spec = tensor.spec
        row = tensor.address, first_item(spec, seed, number), at
        groups.setdefault(id(spec), (spec, []))[1].append(row)
    for spec, rows in groups.values():
        for start in range(0, len(rows), _TABLE):
            batch = rows[start : start + _TABLE]
            yield spec, [n for row in batch for n in row[:2]], [row[2] for row in batch]


def _nothing(position: int) -> None:
    pass
