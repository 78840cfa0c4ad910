"""Names of the kernels in a captured graph: the kernels that a library really launched."""

from __future__ import annotations

import ctypes

from kernelmark.gpu.driver import Driver

_P = ctypes.c_void_p
_KERNEL_NODE = 0


class _CudaKernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", _P),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("params", _P),
        ("extra", _P),
        ("kern", _P),
        ("ctx", _P),
    )


def kernel_names(driver: Driver, graph: int) -> tuple[str, ...]:
    """Return the kernel names in the order of the graph's nodes; () if the driver has no such
    query."""
    if driver.table.vendor != "cuda":
        return ()  # HIP's node has a host pointer, which identifies no module kernel
    try:
        names = [_cuda_name(driver.library, node) for node in _nodes(driver.library, graph)]
    except AttributeError:
        return ()  # a driver older than these functions
    return tuple(name for name in names if name)


def _nodes(library: ctypes.CDLL, graph: int) -> list[int]:
    count = ctypes.c_size_t()
    if library.cuGraphGetNodes(_P(graph), None, ctypes.byref(count)) or not count.value:
        return []
    nodes = (_P * count.value)()
    if library.cuGraphGetNodes(_P(graph), nodes, ctypes.byref(count)):
        return []
    return [node or 0 for node in nodes]


def _cuda_name(library: ctypes.CDLL, node: int) -> str:
    kind = ctypes.c_int()
    if library.cuGraphNodeGetType(_P(node), ctypes.byref(kind)) or kind.value != _KERNEL_NODE:
        return ""
    found = _CudaKernelNode()
    if library.cuGraphKernelNodeGetParams_v2(_P(node), ctypes.byref(found)):
        return ""
    text = ctypes.c_char_p()
    # CUDA 12.3 added the name queries; an older driver lacks the functions.
    for symbol, handle in (("cuKernelGetName", found.kern), ("cuFuncGetName", found.func)):
        function = getattr(library, symbol, None)
        if handle and function is not None and not function(ctypes.byref(text), _P(handle)):
            return text.value.decode() if text.value else ""
    return ""
