"""A kernel read again and again on a GPU, with other kernels and other memory in between.

What placement.py has in common with other experiments on what earlier work leaves behind.
"""

from __future__ import annotations

import ctypes
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernelmark import backends, ops
from kernelmark.backends.base import Kernel
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.tensor import TensorSpec
from kernelmark.devices._gpu import GpuBuffer, GpuDevice
from kernelmark.devices._replay import capture
from kernelmark.devices.base import ArgumentSet, Tensor
from kernelmark.gpu.driver import Driver, pack
from kernelmark.gpu.rtc import compile_source

LAUNCHES = 20  # in a graph
REPLAYS = 4  # of a graph in a reading, after each draw of the scheduler's state
MIB = 2**20
PAGE = 2 * MIB  # the smallest physical piece that cuMemCreate gives
GAP = 0.012  # times further apart than this, as a fraction, belong to two modes
# Half the distance between neighbouring modes: a reading this near to a prediction is in its mode.
NEAR = 0.015
FIRST_CLUSTERS = 90  # sm_90: the first GPUs with clusters of thread blocks

DISTURB = """
typedef unsigned u32;
// Every block spins for a time of its own, so that SMs become free in random order and the
// scheduler hands out the later waves, and the next kernel, from another position.
extern "C" __global__ void disturb(u32 seed, u32 most) {
  u32 h = blockIdx.x * 0x9e3779b1u + seed;
  h ^= h >> 16; h *= 0x85ebca6bu; h ^= h >> 13; h *= 0xc2b2ae35u; h ^= h >> 16;
  const u32 cycles = h % most;
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}
"""
# A launch of 54 clusters of 4 blocks, as the GEMM's, that tells on which SM each block runs. The
# blocks stay long enough that no SM gets a second one.
PROBE = """
extern "C" __global__ void __cluster_dims__(4, 1, 1) probe(unsigned* sm_of_block) {
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (threadIdx.x == 0) sm_of_block[blockIdx.x] = sm;
  const long long start = clock64();
  while (clock64() - start < 20000) {
  }
}
"""
PROBE_BLOCKS = 216

Modes = list[tuple[float, int]]  # (median in seconds, how many readings), from fast to slow
_u32, _u64, _ptr = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p


def modes(times: Sequence[float]) -> Modes:
    """Group times whose neighbours are less than GAP apart."""
    groups: list[list[float]] = []
    for one in sorted(times):
        if groups and one < groups[-1][-1] * (1 + GAP):
            groups[-1].append(one)
        else:
            groups.append([one])
    return [(statistics.median(group), len(group)) for group in groups]


def format_modes(found: Modes) -> str:
    return " ".join(f"{seconds * 1e6:.2f}×{count}" for seconds, count in found)


class Graph:
    """Launches captured once, between the same clock stamps that a timed replay has."""

    def __init__(self, device: GpuDevice, launch: Callable[[], None], count: int) -> None:
        self._device, self._driver, self._count = device, device.driver, count
        stamps = device.scratch("stamps of a graph", 16 * device.info.units)
        device.function("stamp")  # loaded before the capture begins

        def stamp() -> None:
            units = device.info.units
            device.start("stamp", 2 * units, 32, _ptr(stamps.address), _u32(units))

        def launch_all(stream: int, index: int) -> None:
            stamp()
            for _ in range(count):
                launch()
            stamp()

        graph = capture(self._driver, device.stream, launch_all, (0,))
        self._executable = self._driver.instantiate(graph)
        self._driver.destroy("graph", graph)
        self._events = self._driver.event(), self._driver.event()

    def run(self) -> float:
        """Seconds a launch."""
        begin, end = self._events
        self._driver.record(begin, self._device.stream)
        self._driver.launch_graph(self._executable, self._device.stream)
        self._driver.record(end, self._device.stream)
        return self._driver.elapsed_s(begin, end) / self._count

    def close(self) -> None:
        self._device.synchronize()
        self._driver.destroy("graph_exec", self._executable)
        for event in self._events:
            self._driver.destroy("event", event)


class Bench:
    """An opened GPU, a problem, and the kernels that may run before a reading of it."""

    def __init__(self, device: GpuDevice, problem: str, backend: str, seed: int) -> None:
        self.device = device
        self.random = random.Random(seed)
        self.problem = ops.parse(problem)
        self._backend = backends.find(backend)
        self._tensors = ops.registry.get(self.problem.op).tensors(self.problem)
        self._large = max(self._tensors, key=lambda spec: spec.nbytes)
        self.nbytes = -(-self._large.nbytes // PAGE) * PAGE
        rest = [spec for spec in self._tensors if spec is not self._large]
        room = [-(-spec.nbytes // MIB) * MIB for spec in rest]
        self._small = device.allocate(sum(room))
        self._offsets = {spec.name: sum(room[:at]) for at, spec in enumerate(rest)}
        self._disturb = self.load(DISTURB, "disturb")
        self._memory = device.allocate(64 * MIB)
        fill = TensorSpec(name="fill", shape=(64 * MIB // 2,), dtype="bf16")
        self._fill = Tensor(spec=fill, buffer=self._memory, offset=0)
        has_clusters = supports_clusters(device.info)
        self._probe = self.load(PROBE, "probe") if has_clusters else None
        self._seen = device.allocate(4 * PROBE_BLOCKS)

    def load(self, source: str, name: str) -> int:
        """Compile one kernel of this script."""
        driver = self.device.driver
        binary = compile_source(source, arch=self.device.info.arch, name=f"{name}.cu")
        return driver.function(driver.load(binary.code), name)

    def close(self) -> None:
        self.device.synchronize()
        for buffer in (self._small, self._memory, self._seen):
            self.device.free(buffer)

    # -- the kernel under test

    def arguments(self, address: int) -> ArgumentSet:
        """The largest tensor at `address`; the others always at the same place."""
        large = GpuBuffer(address, self.nbytes)
        return {
            spec.name: Tensor(spec=spec, buffer=large, offset=0)
            if spec is self._large
            else Tensor(spec=spec, buffer=self._small, offset=self._offsets[spec.name])
            for spec in self._tensors
        }

    def write_inputs(self, address: int) -> None:
        """Generate the inputs in place: a memory-bound kernel of many waves."""
        inputs = [one for one in self.arguments(address).values() if one.spec.role == "in"]
        self.device.generate_all([(one, 0) for one in inputs], 1)

    def prepare(self, address: int, config: Mapping[str, Any] | None = None) -> Kernel:
        return self._backend.prepare(
            self.problem, dict(config or {}), self.device, [self.arguments(address)]
        )

    def graph(self, kernel: Kernel) -> Graph:
        stream = self.device.stream
        return Graph(self.device, lambda: kernel.launch(stream, 0), LAUNCHES)

    def reading(self, graph: Graph) -> float:
        """Seconds a launch: the median of replays of which the first is left out."""
        return statistics.median([graph.run() for _ in range(REPLAYS)][1:])

    def read_at(self, address: int) -> float:
        """One reading with a kernel and a graph of its own."""
        kernel = self.prepare(address)
        graph = self.graph(kernel)
        try:
            return self.reading(graph)
        finally:
            graph.close()
            kernel.close()

    def start_sm(self) -> int:
        """The SM on which the first cluster of a launch starts now; -1 without clusters."""
        if self._probe is None:
            return -1
        self.device.driver.launch(
            self._probe,
            (PROBE_BLOCKS, 1, 1),
            (128, 1, 1),
            pack(_ptr(self._seen.address)),
            self.device.stream,
        )
        return int(self.device.read(self._seen, 0, 4).view(np.uint32)[0])

    # -- kernels before a reading

    def disturb(self, least_blocks: int, most_blocks: int, most_cycles: int) -> None:
        """Spin in a random number of blocks, each for a random time."""
        grid = self.random.randint(least_blocks, most_blocks)
        seed = self.random.randrange(1 << 32)
        self.device.driver.launch(
            self._disturb,
            (grid, 1, 1),
            (256, 1, 1),
            pack(_u32(seed), _u32(most_cycles)),
            self.device.stream,
        )

    def generate(self) -> None:
        """Fill 64 MiB by the input generator: 32 blocks of 256 threads an SM."""
        self.device.generate(self._fill, 1, 0)

    def read_memory(self, nbytes: int) -> None:
        """Read memory by the kernel that evicts the cache, with as many blocks."""
        sink = self.device.scratch("sink", 8)
        grid = self.device.info.units * 32
        arguments = _ptr(self._memory.address), _u64(nbytes // 8), _ptr(sink.address)
        self.device.start("evict", grid, 256, *arguments)


def supports_clusters(info: DeviceInfo) -> bool:
    digits = "".join(letter for letter in info.arch if letter.isdigit())
    return info.arch.startswith("sm_") and bool(digits) and int(digits) >= FIRST_CLUSTERS


def warm_up(bench: Bench, graph: Graph, seconds: float = 0.3) -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        graph.run()


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    """CUmemAllocationProp of cuda.h."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class Pages:
    """Physical pieces of PAGE bytes, mapped behind one range of addresses in any order."""

    def __init__(self, driver: Driver, index: int, count: int, mapped: int) -> None:
        self._library, self._mapped = driver.library, mapped
        self._where = _Location(1, index)  # CU_MEM_LOCATION_TYPE_DEVICE
        pinned = _Properties(type=1, location=self._where)  # CU_MEM_ALLOCATION_TYPE_PINNED
        reserved = _u64()
        size, any_place = self._size(mapped), (_u64(0), _u64(0), _u64(0))
        self._call("cuMemAddressReserve", ctypes.byref(reserved), size, *any_place)
        self.address = reserved.value
        self.handles = []
        for _ in range(count):
            handle = _u64()
            size = self._size(1)
            self._call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(pinned), _u64(0))
            self.handles.append(handle.value)

    def _size(self, pages: int) -> ctypes.c_size_t:
        return ctypes.c_size_t(pages * PAGE)

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._library[name](*arguments)
        if code:
            raise RuntimeError(f"{name} failed with code {code}")

    def map(self, handles: Sequence[int]) -> None:
        """Put these behind the addresses, in this order."""
        for at, handle in enumerate(handles):
            place = _u64(self.address + at * PAGE)
            self._call("cuMemMap", place, self._size(1), _u64(0), _u64(handle), _u64(0))
        both = _Access(self._where, 3)  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        size = self._size(len(handles))
        self._call("cuMemSetAccess", _u64(self.address), size, ctypes.byref(both), _u64(1))

    def unmap(self) -> None:
        self._call("cuMemUnmap", _u64(self.address), self._size(self._mapped))

    def close(self) -> None:
        for handle in self.handles:
            self._call("cuMemRelease", _u64(handle))
        self._call("cuMemAddressFree", _u64(self.address), self._size(self._mapped))
