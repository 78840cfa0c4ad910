"""The thread count of the BLAS that NumPy has loaded.

A worker's environment sets it before NumPy is imported; measuring in a process that has already
imported NumPy needs a call of the library. Two BLAS threads on one core wait for each other, which
makes a small GEMM ten times as slow.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

# Library name -> functions that set the count; builds of OpenBLAS decorate their names.
_CALLS = {
    "openblas": (
        "scipy_openblas_set_num_threads64_",
        "scipy_openblas_set_num_threads",
        "openblas_set_num_threads64_",
        "openblas_set_num_threads",
    ),
    "mkl_rt": ("MKL_Set_Num_Threads",),
    "libblis": ("bli_thread_set_num_threads",),
}


def set_threads(count: int) -> bool:
    """Make every loaded BLAS use `count` threads; return False if none was found."""
    setters = _setters()
    for setter in setters:
        setter(count)
    return bool(setters)


@functools.cache
def _setters() -> tuple[Callable[[int], object], ...]:
    found: list[Callable[[int], object]] = []
    for path in _loaded():
        library = ctypes.CDLL(path)
        names = next(names for part, names in _CALLS.items() if part in Path(path).name)
        for name in names:
            with contextlib.suppress(AttributeError):
                found.append(getattr(library, name))
                break
    return tuple(found)


def _loaded() -> list[str]:
    """Return the libraries mapped into this process that look like a BLAS."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    return [path for path in paths if any(part in Path(path).name for part in _CALLS)]
