"""The functions of a CUDA driver over host memory, with kernels that run as fibers."""

from __future__ import annotations

import ctypes
import mmap
import re
import time
from collections.abc import Callable
from typing import Any

from kernelmark.backends import _file
from kernelmark.gpu.library import CUDA
from kernelmark.micro import _kernels

_SIZES = {"u8": 1, "u16": 2, "u32": 4, "int": 4, "float": 4, "u64": 8, "double": 8}
_SIZES |= {"size_t": 8, "long long": 8}
_SIZES["Table"] = 64 * 2 * 8  # of device.cu
_SIZES["View"] = 15 * 8  # of project.cu
_PAGE = mmap.PAGESIZE
_INVALID, _OUT_OF_MEMORY = 1, 2

ATTRIBUTES = {
    "warp_size": 32,
    "clock_khz": 2_000_000,
    "units": 3,
    "ecc": 0,
    "memory_clock_khz": 10_000_000,
    "bus_bits": 4096,
    "l2_bytes": 2 * 2**20,
    "threads_per_unit": 2048,
    "major": 9,
    "minor": 0,
    "shared_per_unit": 233472,
    "registers_per_unit": 65536,
    "managed": 1,
    "pageable_access": 0,
    "concurrent_managed": 1,
    "shared_per_block": 232448,
}


class _Memory:
    """Pages that end where the buffer ends: reading past it is a fault, as it should be."""

    def __init__(self, nbytes: int) -> None:
        size = -(-nbytes // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None)
        libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(_PAGE), 0)
        self.nbytes = nbytes
        self.address = start + (size - nbytes) // 256 * 256


class _Queue:
    """Work of a stream, done when somebody waits for it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.capturing: list[Callable[[], None]] | None = None

    def add(self, work: Callable[[], None]) -> None:
        (self.work if self.capturing is None else self.capturing).append(work)

    def finish(self) -> None:
        work, self.work = self.work, []
        for item in work:
            item()


class EmulatedLibrary:
    """The driver's functions by their names."""

    def __init__(self, memory_bytes: int = 2**30, devices: int = 1) -> None:
        self._handles: dict[int, Any] = {}
        self._events: dict[int, float] = {}
        self._memory: dict[int, _Memory] = {}
        self._functions: dict[str, Any] = {}
        self._total = memory_bytes
        self._devices = devices
        self._numbers = {number: word for word, number in CUDA.attributes.items()}
        self._queues: dict[int, _Queue] = {}
        # A real C function, since C code calls it as well.
        kinds = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
        self._launch = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(self._launched)

    def __getitem__(self, symbol: str) -> Any:
        if symbol == CUDA.symbols["launch"]:
            return self._launch
        if symbol not in self._functions:
            word = next(w for w, s in CUDA.symbols.items() if s == symbol)
            method = getattr(self, f"do_{word}", None)
            if method is None:
                raise AttributeError(symbol)

            def function(*given: Any, method: Callable[..., int | None] = method) -> int:
                return method(*map(_plain, given)) or 0

            self._functions[symbol] = function
        return self._functions[symbol]

    def _new(self, thing: Any) -> int:
        handle = 0x1000 + 16 * len(self._handles)
        self._handles[handle] = thing
        return handle

    def _queue(self, stream: int) -> _Queue:
        return self._queues.setdefault(stream or 0, _Queue())

    # -- devices

    def do_init(self, flags: int) -> None: ...

    def do_device_count(self, out: Any) -> None:
        out.value = self._devices

    def do_device_name(self, out: Any, size: int, index: int) -> None:
        out.value = b"emulated GPU"

    def do_device_attribute(self, out: Any, number: int, index: int) -> None:
        out.value = ATTRIBUTES[self._numbers[number]]

    def do_device_total_memory(self, out: Any, index: int) -> None:
        out.value = self._total

    def do_device_uuid(self, out: Any, index: int) -> None:
        out.raw = bytes(range(16))

    def do_device_bus_id(self, out: Any, size: int, index: int) -> None:
        out.value = f"0000:{index:02X}:00.0".encode()

    def do_driver_version(self, out: Any) -> None:
        out.value = 13000

    def do_can_access_peer(self, out: Any, index: int, peer: int) -> None:
        out.value = 1

    def do_peer_enable(self, context: int, flags: int) -> None: ...

    def do_device_get(self, out: Any, index: int) -> None:
        out.value = index

    def do_context_retain(self, out: Any, device: Any) -> None:
        out.value = 0x10 + (device if isinstance(device, int) else device.value)

    def do_context_set(self, context: int) -> None: ...

    def do_error_name(self, code: int, out: Any) -> None:
        out.value = b"EMULATED"

    def do_error_text(self, code: int, out: Any) -> None:
        out.value = b"an emulated error"

    # -- memory

    def _used(self) -> int:
        return sum(memory.nbytes for memory in self._memory.values())

    def do_memory_info(self, free: Any, total: Any) -> None:
        free.value, total.value = self._total - self._used(), self._total

    def do_allocate(self, out: Any, nbytes: int, flags: int = 0) -> int:
        if nbytes > self._total - self._used():
            return _OUT_OF_MEMORY
        memory = _Memory(nbytes)
        self._memory[memory.address] = memory
        out.value = memory.address
        return 0

    do_allocate_managed = do_allocate
    do_host_allocate = do_allocate

    def do_free(self, address: int) -> int:
        return 0 if self._memory.pop(address, None) else _INVALID

    do_host_free = do_free

    def do_host_device_pointer(self, out: Any, address: int, flags: int) -> None:
        out.value = address

    def _checked(self, address: int, nbytes: int) -> None:
        for memory in self._memory.values():
            if memory.address <= address < memory.address + memory.nbytes:
                assert address + nbytes <= memory.address + memory.nbytes, "beyond a buffer"

    def _copied(self, target: int, source: int, nbytes: int) -> None:
        self._checked(target, nbytes)
        self._checked(source, nbytes)
        ctypes.memmove(target, source, nbytes)

    def do_copy_to_device(self, target: int, source: int, nbytes: int) -> None:
        self._copied(target, source, nbytes)

    do_copy_to_host = do_copy_to_device

    def do_copy_to_device_async(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._queue(stream).add(lambda: self._copied(target, source, nbytes))

    do_copy_to_host_async = do_copy_to_device_async
    do_copy_on_device_async = do_copy_to_device_async

    def do_fill_async(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        self._checked(address, nbytes)

        def fill() -> None:
            ctypes.memset(address, byte, nbytes)

        self._queue(stream).add(fill)

    # -- streams, events, graphs

    def do_stream_create(self, out: Any, flags: int) -> None:
        out.value = self._new("stream")

    def do_stream_destroy(self, stream: int) -> None: ...

    def do_stream_synchronize(self, stream: int) -> None:
        self._queue(stream).finish()

    def do_event_create(self, out: Any, flags: int) -> None:
        out.value = self._new("event")

    def do_event_destroy(self, event: int) -> None: ...

    def do_event_record(self, event: int, stream: int) -> None:
        def happen() -> None:
            self._events[event] = time.perf_counter()

        self._queue(stream).add(happen)

    def do_event_synchronize(self, event: int) -> None:
        for queue in self._queues.values():
            queue.finish()

    def do_event_elapsed(self, out: Any, start: int, end: int) -> None:
        out.value = max(1e-6, 1e3 * (self._events[end] - self._events[start]))

    def do_capture_begin(self, stream: int, mode: int) -> None:
        self._queue(stream).capturing = []

    def do_capture_end(self, stream: int, out: Any) -> None:
        queue = self._queue(stream)
        work, queue.capturing = queue.capturing or [], None
        out.value = self._new(work)

    def do_graph_instantiate(self, out: Any, graph: int, flags: int) -> None:
        out.value = self._new(self._handles[graph])

    def do_graph_launch(self, graph: int, stream: int) -> None:
        for work in self._handles[graph]:
            self._queue(stream).add(work)

    def do_graph_exec_destroy(self, graph: int) -> None: ...

    def do_graph_destroy(self, graph: int) -> None: ...

    # -- modules

    def do_module_load(self, out: Any, code: bytes) -> None:
        file, path = code.decode().split("\n")
        out.value = self._new((file, ctypes.CDLL(path)))

    def do_module_unload(self, module: int) -> None: ...

    def do_module_function(self, out: Any, module: int, name: bytes) -> int:
        file, library = self._handles[module]
        if not hasattr(library, f"host_{name.decode()}"):
            return _INVALID
        out.value = self._new((file, library, name.decode()))
        return 0

    def do_function_set_attribute(self, function: int, number: int, value: int) -> None: ...

    def do_occupancy(self, out: Any, function: int, block: int, shared_bytes: int) -> None:
        out.value = max(1, 2048 // block)

    def _launched(
        self,
        function: int,
        grid: int,
        grid_y: int,
        grid_z: int,
        block: int,
        block_y: int,
        block_z: int,
        shared_bytes: int,
        stream: int,
        arguments: int,
        extra: int,
    ) -> int:
        if not 1 <= block <= 1024 or grid < 1:
            return _INVALID
        file, library, name = self._handles[function]
        kept = _arguments(file, name, arguments)

        def work() -> None:
            array = (ctypes.c_void_p * max(1, len(kept)))(*(ctypes.addressof(a) for a in kept))
            entry = ctypes.cast(library[f"host_{name}"], ctypes.c_void_p)
            for line in range(grid_y):
                library.simt_line(line)
                code = library.simt_run(entry, array, grid, block, ATTRIBUTES["units"])
                assert code == 0, "no memory for fibers"

        self._queue(stream).add(work)
        return 0


SOURCES: dict[str, str] = {}  # of kernels that are none of ours, by file name


def _plain(given: Any) -> Any:
    """What a C function would see: the object behind a reference, the number in a C value."""
    if hasattr(given, "_obj"):
        return given._obj
    if isinstance(given, ctypes._SimpleCData):
        return given.value if given.value is not None else 0
    return given


def _arguments(file: str, name: str, addresses: int) -> list[Any]:
    """Copies of a launch's arguments, as the driver makes them."""
    if file in SOURCES:
        kinds = _file.declared_launch(SOURCES[file], name) or []
    else:
        kinds = [kind for kind, _ in _kernels.parameters(file, name)]
    if not kinds:
        return []
    array = (ctypes.c_void_p * len(kinds)).from_address(addresses)
    kept = []
    for kind, address in zip(kinds, array, strict=True):
        size = 8 if kind.endswith("*") else _SIZES.get(kind) or _generic(file, name)
        kept.append(ctypes.create_string_buffer(ctypes.string_at(address or 0, size), size))
    return kept


def _generic(file: str, name: str) -> int:
    """Bytes of a type parameter, from the kernel's name."""
    return 8 if re.search(r"_(f64|u64|i64)(_|$)", name) else 4
