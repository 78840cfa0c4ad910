"""Import device memory that IREE did not allocate as IREE buffers: by DLPack, the only way in
Python."""

from __future__ import annotations

import ctypes
from typing import Any

_UNSIGNED = 1  # DLPack's code for unsigned integers
_NAME = b"dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dims", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# One for all imports, never freed: IREE copies the fields immediately, but calls the deleter when
# one of its threads releases the buffer, which may be long after the kernel is closed.
_shape = (ctypes.c_int64 * 1)()
_managed = _Managed()
_managed.tensor.dims = 1
_managed.tensor.type = _Type(_UNSIGNED, 8, 1)
_managed.tensor.shape = ctypes.cast(_shape, ctypes.POINTER(ctypes.c_int64))

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def import_memory(device: Any, address: int, nbytes: int) -> Any:
    """Return a HalBuffer of `nbytes` at `address` of the device; the memory must outlive its
    use."""
    _managed.tensor.data = address
    _shape[0] = nbytes
    capsule = _new_capsule(ctypes.addressof(_managed), _NAME, None)
    return device.from_dlpack_capsule(capsule).get_buffer()
