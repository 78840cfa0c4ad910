"""Recognise exceptions of libraries that mean out of memory, by type and code.

A user's kernel may call any of these libraries, so every failed case is checked here, whatever its
backend. A library that is not loaded is not imported.
"""

from __future__ import annotations

import errno
import re
import sys

from kernelmark.core.errors import OutOfMemory

# cudaErrorMemoryAllocation and hipErrorOutOfMemory.
_OUT_OF_MEMORY = 2
# torch raises a plain RuntimeError for these, with the cause only in its text: an allocation of its
# CPU allocator, a cuBLAS or hipBLAS handle without workspace, and C++'s std::bad_alloc.
_TORCH_TEXT = re.compile(
    r"DefaultCPUAllocator: |\b(CU|HIP)BLAS_STATUS_ALLOC_FAILED\b|\Astd::bad_alloc\Z"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that the host or the device ran out of memory."""
    if isinstance(error, OutOfMemory | MemoryError):  # NumPy's and CuPy's are MemoryErrors
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return _is_of_torch(error)


def _is_of_torch(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    accelerator = getattr(torch, "AcceleratorError", None)  # new in torch 2.8
    if accelerator is not None and isinstance(error, accelerator):
        return getattr(error, "error_code", None) == _OUT_OF_MEMORY
    return type(error) is RuntimeError and _TORCH_TEXT.search(str(error)) is not None
