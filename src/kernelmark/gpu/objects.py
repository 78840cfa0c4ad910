"""Registers, spills and shared memory of a compiled kernel, parsed from the object file.

No GPU is needed: AMD code objects carry a msgpack note, NVIDIA cubins an attribute section.
"""

from __future__ import annotations

import ctypes
import re
import struct
import tempfile
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.gpu.driver import Driver, GpuError

_EM_AMDGPU, _EM_CUDA = 224, 190
_NT_AMDGPU_METADATA = 32
_CUBIN_ATTRIBUTES = {0x2F: "registers", 0x11: "stack_bytes"}
_AMD_NAMES = {
    ".vgpr_count": "registers",
    ".agpr_count": "accumulation_registers",
    ".sgpr_count": "scalar_registers",
    ".vgpr_spill_count": "spilled_registers",
    ".sgpr_spill_count": "spilled_scalar_registers",
    ".private_segment_fixed_size": "stack_bytes",
    ".group_segment_fixed_size": "shared_bytes",
}


# Exceptions that parsing a damaged object file can raise.
_DAMAGE = (
    struct.error,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


def resources(code: bytes) -> dict[str, dict[str, int]]:
    """Return registers, spills, stack and shared bytes of each kernel in a cubin or code object."""
    # GPU objects are 64-bit and little-endian.
    if code[:4] != b"\x7fELF" or len(code) < 64 or code[4] != 2 or code[5] != 1:
        raise UsageError("neither a cubin nor an AMD code object")
    (machine,) = struct.unpack_from("<H", code, 18)
    try:
        if machine == _EM_AMDGPU:
            return _amd(code)
        if machine == _EM_CUDA:
            return _cuda(code)
    except _DAMAGE as error:
        raise UsageError(f"the object file is cut short or damaged: {error}") from None
    raise UsageError(
        "neither a cubin nor an AMD code object" + (f" (ELF machine {machine})" if machine else "")
    )


def _amd(code: bytes) -> dict[str, dict[str, int]]:
    (headers,) = struct.unpack_from("<Q", code, 32)
    size, count = struct.unpack_from("<HH", code, 54)
    for index in range(count):
        kind, _, start, _, _, length, _, _ = struct.unpack_from(
            "<IIQQQQQQ", code, headers + index * size
        )
        note = _find_note(code[start : start + length]) if kind == 4 else None
        if note is not None:
            metadata, _ = unpack(note, 0)
            return {
                kernel[".name"]: {
                    ours: int(kernel[theirs])
                    for theirs, ours in _AMD_NAMES.items()
                    if theirs in kernel
                }
                for kernel in metadata["amdhsa.kernels"]
            }
    raise ValueError("no AMDGPU metadata note")


def _find_note(notes: bytes) -> bytes | None:
    at = 0
    while at + 12 <= len(notes):
        name_bytes, data_bytes, kind = struct.unpack_from("<III", notes, at)
        at += 12
        name = notes[at : at + name_bytes].rstrip(b"\0")
        at += (name_bytes + 3) & ~3
        if name == b"AMDGPU" and kind == _NT_AMDGPU_METADATA:
            return notes[at : at + data_bytes]
        at += (data_bytes + 3) & ~3
    return None


def _cuda(code: bytes) -> dict[str, dict[str, int]]:
    # e_shoff, then e_shentsize, e_shnum and e_shstrndx of the ELF64 header.
    (start,) = struct.unpack_from("<Q", code, 40)
    size, count, names_index = struct.unpack_from("<HHH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + i * size) for i in range(count)]

    def text(section: tuple[int, ...], offset: int) -> str:
        at = section[4] + offset
        return code[at : code.index(b"\0", at)].decode()

    symbols = next((s for s in sections if s[1] == 2), None)  # SHT_SYMTAB
    if symbols is None:
        raise ValueError("no symbol table")
    strings = sections[symbols[6]]
    resources_of: dict[str, dict[str, int]] = {}
    for section in sections:
        if text(sections[names_index], section[0]) != ".nv.info":
            continue
        at, end = section[4], section[4] + section[5]
        while at < end:
            # The section is not documented: attributes that are not known are stepped over.
            form, attribute, value = struct.unpack_from("<BBH", code, at)
            at += 4
            if form != 4:  # the value is in the header itself
                continue
            if attribute in _CUBIN_ATTRIBUTES and value >= 8:
                symbol, number = struct.unpack_from("<II", code, at)
                (name_at,) = struct.unpack_from("<I", code, symbols[4] + 24 * symbol)
                kernel = resources_of.setdefault(text(strings, name_at), {})
                kernel[_CUBIN_ATTRIBUTES[attribute]] = number
            at += value
    # The compiler's helper routines are listed along with the kernels that call them.
    return {name: used for name, used in resources_of.items() if not name.startswith("$")}


def unpack(data: bytes, at: int) -> tuple[Any, int]:
    """Return one msgpack value and its end offset. Supports only the types that metadata uses."""
    tag = data[at]
    at += 1
    if tag <= 0x7F:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag <= 0x8F:
        return _unpack_map(data, at, tag & 0x0F)
    if tag <= 0x9F:
        return _unpack_list(data, at, tag & 0x0F)
    if tag <= 0xBF:
        return _unpack_text(data, at, tag & 0x1F)
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    numbers = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
    numbers |= {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q", 0xCA: ">f", 0xCB: ">d"}
    if tag in numbers:
        (number,) = struct.unpack_from(numbers[tag], data, at)
        return number, at + struct.calcsize(numbers[tag])
    sized = {0xD9: (">B", _unpack_text), 0xDA: (">H", _unpack_text), 0xDB: (">I", _unpack_text)}
    sized |= {0xDC: (">H", _unpack_list), 0xDD: (">I", _unpack_list)}
    sized |= {0xDE: (">H", _unpack_map), 0xDF: (">I", _unpack_map)}
    if tag in sized:
        form, read = sized[tag]
        (length,) = struct.unpack_from(form, data, at)
        return read(data, at + struct.calcsize(form), length)
    raise ValueError(f"msgpack tag {tag:#x} is not expected in metadata")


def _unpack_text(data: bytes, at: int, length: int) -> tuple[Any, int]:
    if at + length > len(data):
        raise ValueError("text goes past the end")
    return data[at : at + length].decode(), at + length


def _unpack_list(data: bytes, at: int, length: int) -> tuple[Any, int]:
    items = []
    for _ in range(length):
        item, at = unpack(data, at)
        items.append(item)
    return items, at


def _unpack_map(data: bytes, at: int, length: int) -> tuple[Any, int]:
    items = {}
    for _ in range(length):
        key, at = unpack(data, at)
        items[key], at = unpack(data, at)
    return items, at


_P = ctypes.c_void_p
_KERNEL_NODE = 0
# hip_graph_internal.hpp of ROCm's clr: only kernels are octagons; the label is number and name.
_DOT_KERNEL = re.compile(r'shape\s*=\s*"octagon"[\s,]*label\s*=\s*"\d+\n([^\n"]+)')


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
        return _hip_names(driver, graph)
    try:
        names = [_cuda_name(driver.library, node) for node in _nodes(driver.library, graph)]
    except AttributeError:
        return ()  # a driver older than these functions
    return tuple(name for name in names if name)


def _hip_names(driver: Driver, graph: int) -> tuple[str, ...]:
    """Return the names in the drawing of a graph. HIP's node has a host pointer, from which only
    HIP itself finds a module's kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.dot")
        # Without flags: with any, HIP writes the label into a fixed buffer of 4096 bytes, which a
        # name of a C++ template can exceed.
        try:
            driver.call("graph_dot", _P(graph), str(path).encode(), ctypes.c_uint(0))
            text = path.read_text(encoding="utf-8", errors="replace")
        except (GpuError, OSError):
            return ()
    return tuple(_DOT_KERNEL.findall(text))


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
    parameters = _CudaKernelNode()
    if library.cuGraphKernelNodeGetParams_v2(_P(node), ctypes.byref(parameters)):
        return ""
    text = ctypes.c_char_p()
    # CUDA 12.3 added the name queries; an older driver lacks the functions.
    for symbol, handle in (
        ("cuKernelGetName", parameters.kern),
        ("cuFuncGetName", parameters.func),
    ):
        function = getattr(library, symbol, None)
        if handle and function is not None and not function(ctypes.byref(text), _P(handle)):
            return text.value.decode() if text.value else ""
    return ""
