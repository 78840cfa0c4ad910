"""Libraries of both vendors: the names of their functions and constants, and how to load them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTable:
    """A vendor's names and numbers. `no_device` and `out_of_memory` are its error codes."""

    vendor: str
    libraries: tuple[str, ...]
    prefix: str
    symbols: Mapping[str, str]
    attributes: Mapping[str, int]
    install: str  # what to do if the library is not found
    newest: str = ""  # the most recently added of the required functions
    update: str = ""  # what to do if the library lacks it
    # HIP took over CUDA's numbers for these errors.
    out_of_memory: int = 2
    no_device: int = 100
    peer_already_enabled: int = 704


# Symbols of CUDA and HIP. cuda.h maps the plain names to those with a version: a symbol without it
# has an older signature, such as 32-bit sizes of memory before CUDA 3.2.
_SYMBOLS = {
    "init": ("cuInit", "hipInit"),
    "device_count": ("cuDeviceGetCount", "hipGetDeviceCount"),
    "device_name": ("cuDeviceGetName", "hipDeviceGetName"),
    "device_attribute": ("cuDeviceGetAttribute", "hipDeviceGetAttribute"),
    "device_total_memory": ("cuDeviceTotalMem_v2", "hipDeviceTotalMem"),
    "device_uuid": ("cuDeviceGetUuid_v2", "hipDeviceGetUuid"),
    "device_bus_id": ("cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId"),
    "driver_version": ("cuDriverGetVersion", "hipDriverGetVersion"),
    "can_access_peer": ("cuDeviceCanAccessPeer", "hipDeviceCanAccessPeer"),
    "memory_info": ("cuMemGetInfo_v2", "hipMemGetInfo"),
    "allocate": ("cuMemAlloc_v2", "hipMalloc"),
    "allocate_managed": ("cuMemAllocManaged", "hipMallocManaged"),
    "free": ("cuMemFree_v2", "hipFree"),
    "get_ipc_handle": ("cuIpcGetMemHandle", "hipIpcGetMemHandle"),
    "open_ipc_handle": ("cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle"),
    "host_allocate": ("cuMemHostAlloc", "hipHostMalloc"),
    "host_free": ("cuMemFreeHost", "hipHostFree"),
    "host_device_pointer": ("cuMemHostGetDevicePointer_v2", "hipHostGetDevicePointer"),
    "copy_to_device": ("cuMemcpyHtoD_v2", "hipMemcpyHtoD"),
    "copy_to_host": ("cuMemcpyDtoH_v2", "hipMemcpyDtoH"),
    "copy_to_device_async": ("cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync"),
    "copy_to_host_async": ("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync"),
    "copy_on_device_async": ("cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync"),
    "fill_async": ("cuMemsetD8Async", "hipMemsetD8Async"),
    "stream_create": ("cuStreamCreate", "hipStreamCreateWithFlags"),
    "stream_destroy": ("cuStreamDestroy_v2", "hipStreamDestroy"),
    "stream_synchronize": ("cuStreamSynchronize", "hipStreamSynchronize"),
    "synchronize": ("cuCtxSynchronize", "hipDeviceSynchronize"),
    # Only CUDA has persisting lines: `Driver.has` is False on HIP.
    "reset_persisting": ("cuCtxResetPersistingL2Cache", "hipCtxResetPersistingL2Cache"),
    "event_create": ("cuEventCreate", "hipEventCreateWithFlags"),
    "event_destroy": ("cuEventDestroy_v2", "hipEventDestroy"),
    "event_record": ("cuEventRecord", "hipEventRecord"),
    "event_synchronize": ("cuEventSynchronize", "hipEventSynchronize"),
    "event_elapsed": ("cuEventElapsedTime", "hipEventElapsedTime"),
    "capture_begin": ("cuStreamBeginCapture_v2", "hipStreamBeginCapture"),
    "capture_end": ("cuStreamEndCapture", "hipStreamEndCapture"),
    "graph_instantiate": ("cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags"),
    "graph_launch": ("cuGraphLaunch", "hipGraphLaunch"),
    "graph_exec_destroy": ("cuGraphExecDestroy", "hipGraphExecDestroy"),
    "graph_destroy": ("cuGraphDestroy", "hipGraphDestroy"),
    "module_load": ("cuModuleLoadData", "hipModuleLoadData"),
    "module_unload": ("cuModuleUnload", "hipModuleUnload"),
    "module_function": ("cuModuleGetFunction", "hipModuleGetFunction"),
    "occupancy": (
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
    ),
    "launch": ("cuLaunchKernel", "hipModuleLaunchKernel"),
    "error_name": ("cuGetErrorName", "hipGetErrorName"),
    "error_text": ("cuGetErrorString", "hipGetErrorString"),
    "peer_enable": ("cuCtxEnablePeerAccess", "hipDeviceEnablePeerAccess"),
}
# Attributes of CUDA and HIP: CUdevice_attribute in cuda.h, hipDeviceAttribute_t in
# hip_runtime_api.h.
_ATTRIBUTES = {
    "warp_size": (10, 87),
    "clock_khz": (13, 5),
    "units": (16, 63),
    "ecc": (32, 0),
    "memory_clock_khz": (36, 60),
    "bus_bits": (37, 59),
    "l2_bytes": (38, 19),
    "threads_per_unit": (39, 57),
    "major": (75, 23),
    "minor": (76, 61),
    "shared_per_unit": (81, 10002),
    "registers_per_unit": (82, 72),
    "managed": (83, 24),
    "pageable_access": (88, 65),
    "concurrent_managed": (89, 9),
    "shared_per_block": (97, 74),
}

CUDA = FunctionTable(
    vendor="cuda",
    libraries=("libcuda.so.1", "libcuda.so"),
    prefix="cu",
    install="install the NVIDIA driver (libcuda.so.1)",
    symbols={
        **{name: cuda for name, (cuda, _) in _SYMBOLS.items()},
        "function_set_attribute": "cuFuncSetAttribute",
        "tensor_map": "cuTensorMapEncodeTiled",
        "device_get": "cuDeviceGet",
        "context_retain": "cuDevicePrimaryCtxRetain",
        "context_release": "cuDevicePrimaryCtxRelease_v2",
        "context_set": "cuCtxSetCurrent",
    },
    attributes={name: number for name, (number, _) in _ATTRIBUTES.items()},
)

HIP = FunctionTable(
    vendor="hip",
    # A machine that only runs programs has no unversioned link: that is of the development package.
    libraries=("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"),
    prefix="hip",
    install="install ROCm, or set ROCM_PATH to where it is",
    newest="properties",
    update="install ROCm 6 or newer",
    symbols={
        **{name: hip for name, (_, hip) in _SYMBOLS.items()},
        "device_set": "hipSetDevice",
        "last_error": "hipGetLastError",
        "graph_dot": "hipGraphDebugDotPrint",
        # ROCm 6 changed the struct and the symbol's name with it; the plain name is the old struct.
        "properties": "hipGetDevicePropertiesR0600",
    },
    attributes={
        **{name: number for name, (_, number) in _ATTRIBUTES.items()},
        # From 10000 on: attributes that CUDA does not have.
        "wall_clock_khz": 10017,
        "chiplets": 10018,  # XCCs; ROCm 6 does not support the number
    },
)

# sizeof(hipDeviceProp_tR0600) and the offset of gcnArchName in it, from HIP's header.
HIP_PROPERTIES_BYTES = 1472
HIP_ARCH_OFFSET, HIP_ARCH_BYTES = 1160, 256


def missing_library(library: str, hint: str) -> Reason:
    """Return the reason that a library was not found; `hint` is how to install it."""
    return Reason(f"{library} not found; {hint}", "library-missing", library=library)


def first_of(places: Iterable[str]) -> ctypes.CDLL | None:
    """Return the first library that can be loaded."""
    for path in places:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path)
    return None


class _DlInfo(ctypes.Structure):
    """Dl_info."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def path_of(library: ctypes.CDLL, symbol: str) -> Path | None:
    """Return the real path of the loaded library that defines this symbol."""
    info = _DlInfo()
    try:
        address = ctypes.cast(library[symbol], ctypes.c_void_p)
        status = ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
    except AttributeError:
        return None
    return Path(os.fsdecode(info.file)).resolve() if status and info.file else None


def mapped(stem: str) -> list[str]:
    """Return the paths of the libraries named `stem` that this process has loaded."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    line = rf"^(?:\S+ +){{5}}(/.*/{re.escape(stem)}\.so[.\d]*)$"
    return list(dict.fromkeys(re.findall(line, text, flags=re.MULTILINE)))
