"""Table: the differences between CUDA's driver API and HIP's runtime, as data.

HIP mirrors CUDA function by function, so one binding calls both: a table has the library's name,
the symbol for each common function name, and the numbers of the device attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
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


CUDA = Table(
    vendor="cuda",
    libraries=("libcuda.so.1", "libcuda.so"),
    prefix="cu",
    install="install the NVIDIA driver (libcuda.so.1)",
    # cuda.h maps the plain names to these: a symbol without its version has an older signature,
    # such as 32-bit sizes of memory before CUDA 3.2.
    symbols={
        "init": "cuInit",
        "device_count": "cuDeviceGetCount",
        "device_name": "cuDeviceGetName",
        "device_attribute": "cuDeviceGetAttribute",
        "device_total_memory": "cuDeviceTotalMem_v2",
        "device_uuid": "cuDeviceGetUuid_v2",
        "device_bus_id": "cuDeviceGetPCIBusId",
        "driver_version": "cuDriverGetVersion",
        "can_access_peer": "cuDeviceCanAccessPeer",
        "memory_info": "cuMemGetInfo_v2",
        "allocate": "cuMemAlloc_v2",
        "allocate_managed": "cuMemAllocManaged",
        "free": "cuMemFree_v2",
        "host_allocate": "cuMemHostAlloc",
        "host_free": "cuMemFreeHost",
        "host_device_pointer": "cuMemHostGetDevicePointer_v2",
        "copy_to_device": "cuMemcpyHtoD_v2",
        "copy_to_host": "cuMemcpyDtoH_v2",
        "copy_to_device_async": "cuMemcpyHtoDAsync_v2",
        "copy_to_host_async": "cuMemcpyDtoHAsync_v2",
        "copy_on_device_async": "cuMemcpyDtoDAsync_v2",
        "fill_async": "cuMemsetD8Async",
        "stream_create": "cuStreamCreate",
        "stream_destroy": "cuStreamDestroy_v2",
        "stream_synchronize": "cuStreamSynchronize",
        "synchronize": "cuCtxSynchronize",
        "event_create": "cuEventCreate",
        "event_destroy": "cuEventDestroy_v2",
        "event_record": "cuEventRecord",
        "event_synchronize": "cuEventSynchronize",
        "event_elapsed": "cuEventElapsedTime",
        "capture_begin": "cuStreamBeginCapture_v2",
        "capture_end": "cuStreamEndCapture",
        "graph_instantiate": "cuGraphInstantiateWithFlags",
        "graph_launch": "cuGraphLaunch",
        "graph_exec_destroy": "cuGraphExecDestroy",
        "graph_destroy": "cuGraphDestroy",
        "module_load": "cuModuleLoadData",
        "module_unload": "cuModuleUnload",
        "module_function": "cuModuleGetFunction",
        "occupancy": "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "launch": "cuLaunchKernel",
        # Only CUDA:
        "function_set_attribute": "cuFuncSetAttribute",
        "error_name": "cuGetErrorName",
        "error_text": "cuGetErrorString",
        "device_get": "cuDeviceGet",
        "context_retain": "cuDevicePrimaryCtxRetain",
        "context_release": "cuDevicePrimaryCtxRelease_v2",
        "context_set": "cuCtxSetCurrent",
        "peer_enable": "cuCtxEnablePeerAccess",
    },
    # CUdevice_attribute in cuda.h.
    attributes={
        "warp_size": 10,
        "clock_khz": 13,
        "units": 16,
        "ecc": 32,
        "memory_clock_khz": 36,
        "bus_bits": 37,
        "l2_bytes": 38,
        "threads_per_unit": 39,
        "major": 75,
        "minor": 76,
        "shared_per_unit": 81,
        "registers_per_unit": 82,
        "managed": 83,
        "pageable_access": 88,
        "concurrent_managed": 89,
        "shared_per_block": 97,
    },
)

HIP = Table(
    vendor="hip",
    # A machine that only runs programs has no unversioned link: that is of the development package.
    libraries=("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"),
    prefix="hip",
    install="install ROCm, or set ROCM_PATH to where it is",
    newest="properties",
    update="install ROCm 6 or newer",
    symbols={
        "init": "hipInit",
        "device_count": "hipGetDeviceCount",
        "device_name": "hipDeviceGetName",
        "device_attribute": "hipDeviceGetAttribute",
        "device_total_memory": "hipDeviceTotalMem",
        "device_uuid": "hipDeviceGetUuid",
        "device_bus_id": "hipDeviceGetPCIBusId",
        "driver_version": "hipDriverGetVersion",
        "can_access_peer": "hipDeviceCanAccessPeer",
        "memory_info": "hipMemGetInfo",
        "allocate": "hipMalloc",
        "allocate_managed": "hipMallocManaged",
        "free": "hipFree",
        "host_allocate": "hipHostMalloc",
        "host_free": "hipHostFree",
        "host_device_pointer": "hipHostGetDevicePointer",
        "copy_to_device": "hipMemcpyHtoD",
        "copy_to_host": "hipMemcpyDtoH",
        "copy_to_device_async": "hipMemcpyHtoDAsync",
        "copy_to_host_async": "hipMemcpyDtoHAsync",
        "copy_on_device_async": "hipMemcpyDtoDAsync",
        "fill_async": "hipMemsetD8Async",
        "stream_create": "hipStreamCreateWithFlags",
        "stream_destroy": "hipStreamDestroy",
        "stream_synchronize": "hipStreamSynchronize",
        "synchronize": "hipDeviceSynchronize",
        "event_create": "hipEventCreateWithFlags",
        "event_destroy": "hipEventDestroy",
        "event_record": "hipEventRecord",
        "event_synchronize": "hipEventSynchronize",
        "event_elapsed": "hipEventElapsedTime",
        "capture_begin": "hipStreamBeginCapture",
        "capture_end": "hipStreamEndCapture",
        "graph_instantiate": "hipGraphInstantiateWithFlags",
        "graph_launch": "hipGraphLaunch",
        "graph_exec_destroy": "hipGraphExecDestroy",
        "graph_destroy": "hipGraphDestroy",
        "module_load": "hipModuleLoadData",
        "module_unload": "hipModuleUnload",
        "module_function": "hipModuleGetFunction",
        "occupancy": "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
        "launch": "hipModuleLaunchKernel",
        # Only HIP:
        "error_name": "hipGetErrorName",
        "error_text": "hipGetErrorString",
        "device_set": "hipSetDevice",
        # ROCm 6 changed the struct and the symbol's name with it; the plain name is the old struct.
        "properties": "hipGetDevicePropertiesR0600",
        "peer_enable": "hipDeviceEnablePeerAccess",
    },
    # hipDeviceAttribute_t in hip_runtime_api.h; from 10000 on attributes that CUDA does not have.
    attributes={
        "ecc": 0,
        "clock_khz": 5,
        "concurrent_managed": 9,
        "l2_bytes": 19,
        "major": 23,
        "managed": 24,
        "threads_per_unit": 57,
        "bus_bits": 59,
        "memory_clock_khz": 60,
        "minor": 61,
        "units": 63,
        "pageable_access": 65,
        "registers_per_unit": 72,
        "shared_per_block": 74,
        "warp_size": 87,
        "shared_per_unit": 10002,
        "wall_clock_khz": 10017,
        "chiplets": 10018,  # XCCs; ROCm 6 does not support the number
    },
)

# sizeof(hipDeviceProp_tR0600) and the offset of gcnArchName in it, from HIP's header.
HIP_PROPERTIES_BYTES = 1472
HIP_ARCH_OFFSET, HIP_ARCH_BYTES = 1160, 256
