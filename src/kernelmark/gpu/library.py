"""Find a vendor's library: the one already loaded, torch's copy, or the system's."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
from collections.abc import Iterable
from pathlib import Path

from kernelmark.core.reason import Reason
from kernelmark.gpu.table import Table


def find_library(table: Table) -> ctypes.CDLL | None:
    """Return the vendor's library, or None.

    For HIP, prefer the library that an installed torch uses, because a stream of one runtime is
    invalid in another in the same process. Then $ROCM_PATH and the loader's path are searched.
    """
    return first_of(_search_paths(table))


def missing_library(library: str, hint: str) -> Reason:
    """Return the reason that a library was not found; `hint` is how to install it."""
    return Reason(f"{library} not found; {hint}", "library-missing", library=library)


def first_of(places: Iterable[str]) -> ctypes.CDLL | None:
    """Return the first library that can be loaded."""
    for place in places:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(place)
    return None


def _search_paths(table: Table) -> list[str]:
    return rocm_places(table.libraries) if table.vendor == "hip" else list(table.libraries)


def rocm_places(libraries: Iterable[str]) -> list[str]:
    """Return the paths to search for a ROCm library; `libraries` are its names, the unversioned
    last."""
    names = list(libraries)
    given = os.environ.get("ROCM_PATH")
    root = Path(given or "/opt/rocm")
    in_root = [str(root / folder / name) for folder in ("lib", "lib64") for name in names]
    stem = names[-1].removesuffix(".so")
    system = in_root + names if given else names + in_root
    return [*mapped(stem), *_torch_paths(names), *system]


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
    found = _DlInfo()
    try:
        address = ctypes.cast(library[symbol], ctypes.c_void_p)
        known = ctypes.CDLL(None).dladdr(address, ctypes.byref(found))
    except AttributeError:
        return None
    return Path(os.fsdecode(found.file)).resolve() if known and found.file else None


def mapped(stem: str) -> list[str]:
    """Return the paths of the libraries named `stem` that this process has loaded."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    line = rf"^(?:\S+ +){{5}}(/.*/{re.escape(stem)}\.so[.\d]*)$"
    return list(dict.fromkeys(re.findall(line, text, flags=re.MULTILINE)))


def _torch_paths(names: list[str]) -> list[str]:
    """Return the paths of the runtime that an installed torch would load, from its own wheel or
    from ROCm's, without importing either."""
    own = _in_package("torch", names[-1:])
    return own or (_in_package("_rocm_sdk_core", names) if _folders("torch") else [])


def _in_package(package: str, names: list[str]) -> list[str]:
    places = [Path(folder) / "lib" / name for folder in _folders(package) for name in names]
    return [str(place) for place in places if place.exists()]


def _folders(package: str) -> list[str]:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module inserted into sys.modules by hand
        return []
    return list(spec.submodule_search_locations or []) if spec else []
