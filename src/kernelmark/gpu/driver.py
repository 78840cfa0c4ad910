"""Driver: one ctypes binding for NVIDIA and AMD.

Every return code is checked; an error contains the vendor's name of the call.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from kernelmark.core.errors import CaseError, OutOfMemory, UsageError
from kernelmark.core.reason import Reason, prefixed, suffixed
from kernelmark.core.units import bytes_text
from kernelmark.gpu import rocm
from kernelmark.gpu.library import (
    CUDA,
    HIP,
    HIP_ARCH_BYTES,
    HIP_ARCH_OFFSET,
    HIP_PROPERTIES_BYTES,
    FunctionTable,
    first_of,
)

_P = ctypes.c_void_p
# From cuda.h; the same numbers in HIP: CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_NON_BLOCKING,
# CU_MEMHOSTALLOC_DEVICEMAP.
_CAPTURE_RELAXED = 2
_NON_BLOCKING = 1
_HOST_MAPPED = 2
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class _IpcHandle(ctypes.Structure):
    """CUipcMemHandle and hipIpcMemHandle_t, which are passed by value."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


class GpuError(CaseError):
    """A call into the GPU driver library failed."""

    def __init__(self, message: str, hint: str | None = None, code: int = 0) -> None:
        super().__init__(message, hint)
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, str | None, int]]:  # type: ignore[override]
        return type(self), (self.message, self.hint, self.code)


class Driver:
    """The vendor's library under common function names. Sizes are bytes; handles are plain
    integers."""

    def __init__(self, table: FunctionTable, library: ctypes.CDLL) -> None:
        self.table = table
        self.library = library
        self._functions: dict[str, Callable[..., int]] = {}
        self._contexts: dict[int, int] = {}

    @property
    def where(self) -> str:
        """Path or name that the library was loaded by."""
        return str(getattr(self.library, "_name", "") or self.table.libraries[0])

    # -- calling

    def call(self, word: str, *arguments: object) -> None:
        """Call the function named `word`; raise GpuError for any code but success."""
        # Not through `code`: a case makes 1,500 calls.
        function = self._functions.get(word) or self._find(word)
        if code := function(*arguments):
            self.forget_error()
            self._fail(word, code)

    def code(self, word: str, *arguments: object) -> int:
        """Call the function named `word` and return its code."""
        if code := (self._functions.get(word) or self._find(word))(*arguments):
            self.forget_error()
        return code

    def forget_error(self) -> None:
        """Clear HIP's last error: torch shares the runtime, and its next check would raise an error
        of ours. CUDA's driver, unlike its runtime, keeps none."""
        if "last_error" in self.table.symbols:
            (self._functions.get("last_error") or self._find("last_error"))()

    def _find(self, word: str) -> Callable[..., int]:
        symbol = self.table.symbols[word]
        try:
            function = self.library[symbol]
        except AttributeError:
            raise GpuError(f"{self.where} has no {symbol}", hint=self.table.install) from None
        function.restype = ctypes.c_int
        self._functions[word] = function
        return function

    def _new(self, word: str, *arguments: object) -> int:
        """Call a function that returns a handle or an address through its first argument."""
        handle = _P()
        self.call(word, ctypes.byref(handle), *arguments)
        return handle.value or 0

    def _number(self, word: str, *arguments: object) -> int:
        """Call a function that returns an int through its first argument."""
        number = ctypes.c_int()
        self.call(word, ctypes.byref(number), *arguments)
        return number.value

    def has(self, word: str) -> bool:
        """Return whether the library has the function named `word`."""
        try:
            self.library[self.table.symbols[word]]
        except AttributeError:
            return False
        return True

    def _fail(self, word: str, code: int) -> None:
        symbol = self.table.symbols[word]
        name, text = self._error_text("error_name", code), self._error_text("error_text", code)
        message = Reason(
            f"{symbol} failed: {name} ({text})",
            "driver-failed",
            call=symbol,
            status=code,
            name=name,
            text=text,
        )
        if code == self.table.out_of_memory:
            raise OutOfMemory(message)
        raise GpuError(message, code=code)

    def _error_text(self, word: str, code: int) -> str:
        function = self.library[self.table.symbols[word]]
        if self.table.vendor == "hip":
            function.restype = ctypes.c_char_p
            pointer = function(code)
            return pointer.decode() if pointer else str(code)
        text = ctypes.c_char_p()
        function(code, ctypes.byref(text))
        return text.value.decode() if text.value else str(code)

    # -- devices

    def count(self) -> int:
        """Return the number of devices; raise if the library cannot start."""
        number = ctypes.c_int()
        # A driver without a GPU fails in one or the other, depending on vendor and version.
        for word, argument in (("init", ctypes.c_uint(0)), ("device_count", ctypes.byref(number))):
            code = self.code(word, argument)
            if code == self.table.no_device:
                return 0
            if code:
                self._fail(word, code)
        return number.value

    def use(self, index: int) -> None:
        """Make device `index` current for this thread."""
        if self.table.vendor == "hip":
            self.call("device_set", index)
            return
        if index not in self._contexts:
            # The primary context, which the runtime API of torch and of libraries shares.
            device = ctypes.c_int(self._number("device_get", index))
            self._contexts[index] = self._new("context_retain", device)
        self.call("context_set", _P(self._contexts[index]))

    def name(self, index: int) -> str:
        text = ctypes.create_string_buffer(256)
        self.call("device_name", text, 256, index)
        return text.value.decode()

    def attribute(self, index: int, word: str) -> int:
        return self._number("device_attribute", self.table.attributes[word], index)

    def arch(self, index: int) -> str:
        """Return the compilation target: sm_90, gfx942."""
        if self.table.vendor == "cuda":
            return f"sm_{self.attribute(index, 'major')}{self.attribute(index, 'minor')}"
        return self.full_arch(index).partition(":")[0]

    def full_arch(self, index: int) -> str:
        """Return an AMD GPU's target with its features: gfx942:sramecc+:xnack-."""
        # Twice the size: a newer HIP may have a longer struct under the same symbol.
        properties = ctypes.create_string_buffer(HIP_PROPERTIES_BYTES * 2)
        self.call("properties", properties, index)
        raw = properties.raw[HIP_ARCH_OFFSET : HIP_ARCH_OFFSET + HIP_ARCH_BYTES]
        return raw.split(b"\0")[0].decode()

    def total_bytes(self, index: int) -> int:
        total = ctypes.c_size_t()
        self.call("device_total_memory", ctypes.byref(total), index)
        return total.value

    def uuid(self, index: int) -> str:
        raw = ctypes.create_string_buffer(16)
        self.call("device_uuid", raw, index)
        return raw.raw.hex()

    def bus_id(self, index: int) -> str:
        """Return the PCI bus address, 0000:c1:00.0, independent of which devices are visible."""
        text = ctypes.create_string_buffer(32)
        self.call("device_bus_id", text, 32, index)
        return text.value.decode()

    def driver_version(self) -> str:
        version = self._number("driver_version")
        if self.table.vendor == "cuda":  # 12040 is 12.4
            return f"{version // 1000}.{version % 1000 // 10}"
        return f"{version // 10_000_000}.{version // 100_000 % 100}"  # 60342134 is 6.3

    def peer_access(self, index: int, peer: int) -> bool:
        """Return whether device `index` can access the memory of device `peer`."""
        return bool(self._number("can_access_peer", index, peer))

    def enable_peer(self, index: int, peer: int) -> None:
        """Enable access from device `index` to the memory of device `peer`."""
        # CUDA names the peer by its context, HIP by its number.
        if self.table.vendor == "cuda":
            self.use(peer)
            target: object = _P(self._contexts[peer])
        else:
            target = ctypes.c_int(peer)
        self.use(index)
        code = self.code("peer_enable", target, ctypes.c_uint(0))
        if code not in (0, self.table.peer_already_enabled):
            self._fail("peer_enable", code)

    # -- memory

    def memory_info(self) -> tuple[int, int]:
        """Return free and total bytes of the current device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("memory_info", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, nbytes: int) -> int:
        return self._new("allocate", ctypes.c_size_t(nbytes))

    def allocate_managed(self, nbytes: int) -> int:
        """Allocate managed memory, which host and device share page by page; at most the free
        bytes."""
        # The driver would succeed and move pages to the host and back at every launch.
        free, _ = self.memory_info()
        if nbytes > free:
            raise OutOfMemory(
                Reason(
                    f"{bytes_text(nbytes)} needed for managed memory, {bytes_text(free)} free",
                    "out-of-memory",
                    needed=nbytes,
                    free=free,
                    what="managed memory",
                )
            )
        attach_global = ctypes.c_uint(1)
        return self._new("allocate_managed", ctypes.c_size_t(nbytes), attach_global)

    def free(self, address: int) -> None:
        self.call("free", _P(address))

    def ipc_handle(self, address: int) -> bytes:
        """Return the handle by which another process opens the allocation at `address`."""
        handle = _IpcHandle()
        self.call("get_ipc_handle", ctypes.byref(handle), _P(address))
        return bytes(handle)

    def open_ipc_handle(self, handle: bytes) -> int:
        """Return the address here of an allocation of another process."""
        lazy_peer_access = ctypes.c_uint(1)  # the only flag there is
        return self._new("open_ipc_handle", _IpcHandle.from_buffer_copy(handle), lazy_peer_access)

    def host_allocate(self, nbytes: int) -> int:
        """Allocate pinned host memory that the device can access."""
        return self._new("host_allocate", ctypes.c_size_t(nbytes), ctypes.c_uint(_HOST_MAPPED))

    def host_free(self, address: int) -> None:
        self.call("host_free", _P(address))

    def host_device_pointer(self, address: int) -> int:
        """Return the device address of pinned host memory."""
        return self._new("host_device_pointer", _P(address), ctypes.c_uint(0))

    def copy_to_device(self, target: int, source: int, nbytes: int) -> None:
        self.call("copy_to_device", _P(target), _P(source), ctypes.c_size_t(nbytes))

    def copy_to_host(self, target: int, source: int, nbytes: int) -> None:
        self.call("copy_to_host", _P(target), _P(source), ctypes.c_size_t(nbytes))

    def copy_to_host_async(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue a copy to pinned host memory."""
        self.call("copy_to_host_async", _P(target), _P(source), ctypes.c_size_t(nbytes), _P(stream))

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.call(
            "copy_on_device_async", _P(target), _P(source), ctypes.c_size_t(nbytes), _P(stream)
        )

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        self.call(
            "fill_async", _P(address), ctypes.c_ubyte(byte), ctypes.c_size_t(nbytes), _P(stream)
        )

    # -- streams, events, graphs

    def stream(self) -> int:
        # Not ordered with the default stream, on which a library may launch work of its own.
        return self._new("stream_create", ctypes.c_uint(_NON_BLOCKING))

    def event(self) -> int:
        return self._new("event_create", ctypes.c_uint(0))

    def record(self, event: int, stream: int) -> None:
        self.call("event_record", _P(event), _P(stream))

    def wait(self, event: int) -> None:
        """Wait until an event has completed."""
        self.call("event_synchronize", _P(event))

    def elapsed_s(self, start: int, end: int) -> float:
        """Wait for `end` and return the seconds between two events."""
        self.wait(end)
        return self.between_s(start, end)

    def between_s(self, start: int, end: int) -> float:
        """Return the seconds between two completed events."""
        milliseconds = ctypes.c_float()
        self.call("event_elapsed", ctypes.byref(milliseconds), _P(start), _P(end))
        return milliseconds.value * 1e-3

    def begin_capture(self, stream: int) -> None:
        # Relaxed, so that a library may allocate on another stream during capture.
        self.call("capture_begin", _P(stream), ctypes.c_int(_CAPTURE_RELAXED))

    def end_capture(self, stream: int) -> int:
        graph = _P()
        self.call("capture_end", _P(stream), ctypes.byref(graph))
        return graph.value or 0

    def instantiate(self, graph: int) -> int:
        return self._new("graph_instantiate", _P(graph), ctypes.c_ulonglong(0))

    def launch_graph(self, executable: int, stream: int) -> None:
        self.call("graph_launch", _P(executable), _P(stream))

    def destroy(self, word: str, handle: int) -> None:
        """Destroy a handle; `word` is stream, event, graph, graph_exec or module."""
        name = "module_unload" if word == "module" else f"{word}_destroy"
        self.call(name, _P(handle))

    # -- modules

    def load(self, binary: bytes) -> int:
        """Load a module from a cubin or a code object."""
        return self._new("module_load", ctypes.c_char_p(binary))

    def function(self, module: int, name: str) -> int:
        return self._new("module_function", _P(module), name.encode())

    def allow_shared(self, function: int, nbytes: int) -> None:
        """Raise the dynamic shared memory limit of a kernel above the default; HIP has no such
        limit."""
        if self.table.vendor == "cuda":
            self.call("function_set_attribute", _P(function), _MAX_DYNAMIC_SHARED, nbytes)

    def occupancy(self, function: int, block: int, shared_bytes: int = 0) -> int:
        """Return the maximum resident blocks of `block` threads per SM/CU."""
        return self._number("occupancy", _P(function), block, ctypes.c_size_t(shared_bytes))

    def launch(
        self,
        function: int,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: ctypes.Array[ctypes.c_void_p],
        stream: int,
        shared_bytes: int = 0,
    ) -> None:
        """Enqueue a kernel with `arguments` from `pack`."""
        self.call(
            "launch",
            _P(function),
            *(ctypes.c_uint(n) for n in (*grid, *block)),
            ctypes.c_uint(shared_bytes),
            _P(stream),
            arguments,
            None,
        )


def pack(*values: Any) -> ctypes.Array[ctypes.c_void_p]:
    """Return kernel arguments as the pointer array of a launch; the array keeps `values` alive."""
    packed = (_P * max(1, len(values)))(*map(ctypes.addressof, values))
    packed._keep = values  # type: ignore[attr-defined]
    return packed


def find_library(table: FunctionTable) -> ctypes.CDLL | None:
    """Return the vendor's library, or None."""
    return rocm.runtime() if table.vendor == "hip" else first_of(table.libraries)


@functools.cache
def driver(vendor: str) -> Driver:
    """Return the vendor's driver; if its library is missing, raise UsageError with what to
    install."""
    table = {"cuda": CUDA, "hip": HIP}[vendor]
    library = find_library(table)
    if library is None:
        reason = Reason(
            f"{vendor}: {table.libraries[-1]} not found",
            "library-missing",
            vendor=vendor,
            library=table.libraries[-1],
        )
        raise UsageError(reason, hint=table.install)
    bound = Driver(table, library)
    if table.newest and not bound.has(table.newest):
        raise UsageError(f"{vendor}: {bound.where} is too old", hint=table.update)
    return bound


def unavailable(vendor: str) -> Reason | None:
    """Return None if a device of this vendor is present, else the reason why not."""
    try:
        bound = driver(vendor)
    except UsageError as error:
        return suffixed(error.message, f"; {error.hint}" if error.hint else "")
    try:
        count = bound.count()
    except CaseError as error:
        return prefixed(error.message, f"{bound.where}: ")
    return None if count else Reason(f"{bound.where} reports no {vendor} device")
