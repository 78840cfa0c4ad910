"""ROCm's installation: one is chosen, and its libraries and programs are used together.

It can be a folder (/opt/rocm), part of torch's wheel, or wheels of its own: `_rocm_sdk_core` with
the runtime and the tools, `_rocm_sdk_libraries` with the libraries; before 2026 the latter's name
ended with the GPU family, and releases may add their version to both. A stream of one HIP runtime
is invalid in another, so torch's comes first, and no library is taken from another installation.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.reason import Reason
from kernelmark.gpu.library import HIP, first_of, mapped, missing_library, path_of

_CORE = "_rocm_sdk_core"
# What `kmark doctor` shows: the part, and the stem of its library or the name of its program.
_LIBRARIES = (("HIP", "amdhip64"), ("hipRTC", "hiprtc"), ("hipBLASLt", "hipblaslt"))
_PARTS = (*_LIBRARIES, ("rocBLAS", "rocblas"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rocm:
    """An installation: its roots (several wheels), the folders of its libraries, and why it is
    used. Without folders, the loader searches its own path."""

    roots: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()
    why: str

    def places(self, names: Iterable[str]) -> list[str]:
        """Return the paths at which to look for a library with one of these names."""
        if not self.folders:
            return list(names)
        return [str(folder / name) for folder in self.folders for name in names]


def _in(roots: Sequence[Path], why: str) -> Rocm:
    folders = tuple(root / name for root in roots for name in ("lib", "lib64"))
    return Rocm(roots=tuple(roots), folders=folders, why=why)


def _of(library: Path, why: str) -> Rocm:
    """Return the installation of a runtime library."""
    root = library.parent.parent
    if root.name.startswith(_CORE):
        return _in((root, *_libraries(root.parent)), why)
    return Rocm(roots=(root,), folders=(library.parent,), why=why)


def candidates() -> Iterator[Rocm]:
    """Yield the installations to try, the preferred one first."""
    for path in mapped("libamdhip64"):
        yield _of(Path(path), "this process has loaded its runtime")
    torch, wheels = [Path(folder) for folder in _folders("torch")], _wheels()
    if own := [folder for folder in torch if any((folder / "lib").glob("libamdhip64.so*"))]:
        yield _in(own, "the installed torch contains it")
    if torch and wheels:
        yield _in(wheels, "the installed torch uses ROCm's wheels")
    if root := os.environ.get("ROCM_PATH"):
        yield _in((Path(root),), "ROCM_PATH names it")
        yield Rocm(why="the loader finds it")
        return
    if wheels:
        yield _in(wheels, "ROCm's wheels are installed for this Python")
    yield Rocm(why="the loader finds it")
    yield _in((Path("/opt/rocm"),), "it is the default")


def runtime() -> ctypes.CDLL | None:
    """Return the HIP runtime of the chosen installation; None if no runtime can be loaded."""
    choice = _choice(os.environ.get("ROCM_PATH"))
    return None if choice is None else choice[1]


def chosen() -> Rocm | None:
    """Return the first installation whose HIP runtime can be loaded."""
    choice = _choice(os.environ.get("ROCM_PATH"))
    return None if choice is None else choice[0]


@functools.cache
def _choice(rocm_path: str | None) -> tuple[Rocm, ctypes.CDLL] | None:
    """Load a HIP runtime, once for each ROCM_PATH: a loaded one cannot be replaced."""
    for candidate in candidates():
        library = first_of([*mapped("libamdhip64"), *candidate.places(HIP.libraries)])
        if library is not None:
            path = None if candidate.folders else path_of(library, "hipInit")
            return (candidate if path is None else _of(path, candidate.why)), library
    return None


def load(names: Sequence[str]) -> ctypes.CDLL | None:
    """Return a library of the chosen installation, or one that is loaded or alone in a folder of
    LD_LIBRARY_PATH; `names` are its names, the unversioned last. A host without a HIP runtime can
    still have a compiler: the first installation with this library."""
    rocm = chosen()
    sources = candidates() if rocm is None else [rocm]
    loaded = mapped(names[-1].removesuffix(".so")) if rocm else []
    places = [*_own_builds(names), *(path for source in sources for path in source.places(names))]
    return first_of([*loaded, *places])


def _own_builds(names: Sequence[str]) -> list[str]:
    """Return paths in the folders of LD_LIBRARY_PATH that hold no runtime: somebody's own build of
    a library, which uses the chosen runtime."""
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    alone = [folder for folder in map(Path, folders) if not any(folder.glob("libamdhip64.so*"))]
    return [str(folder / name) for folder in alone for name in names]


def missing(library: str) -> Reason:
    """Return the reason that `load` does not find a library."""
    rocm = chosen()
    if rocm is None:
        return missing_library(library, HIP.install)
    where = " and ".join(map(str, rocm.roots))
    return missing_library(library, f"ROCm is taken from {where}, because {rocm.why}")


def roots() -> list[Path]:
    """Return the roots of all installations, in the order in which they are tried."""
    return list(dict.fromkeys(root for rocm in candidates() for root in rocm.roots))


def program(name: str) -> str | None:
    """Return the path of one of ROCm's programs: of the chosen installation, else on PATH, else of
    any other. A program is a process of its own."""
    rocm = chosen()
    own, others = (
        [str(root / "bin" / name) for root in folders]
        for folders in (rocm.roots if rocm else (), roots())
    )
    return next(filter(None, map(shutil.which, [*own, name, *others])), None)


def python_folder(name: str) -> Path | None:
    """Return the folder of a Python package that ROCm installs under share, outside of Python's
    path; None if there is none."""
    return next((path for root in roots() if (path := root / "share" / name).is_dir()), None)


def parts() -> list[tuple[str, str]]:
    """Return ROCm's parts and where they are, "" for a missing one; [] without a runtime."""
    rocm = chosen()
    if rocm is None:
        return []
    rows = [("ROCm", f"{' and '.join(map(str, rocm.roots))}: {rocm.why}")]
    for part, stem in _PARTS:
        paths = (path for folder in rocm.folders for path in sorted(folder.glob(f"lib{stem}.so*")))
        rows.append((part, str(next(paths, ""))))
    rows += [(name, program(name) or "") for name in ("rocprofv3", "amd-smi")]
    return rows


def _wheels() -> tuple[Path, ...]:
    for folder in map(Path, sys.path):
        if cores := sorted(path for path in folder.glob(f"{_CORE}*") if (path / "lib").is_dir()):
            return cores[-1], *_libraries(folder)
    return ()


def _libraries(folder: Path) -> list[Path]:
    """Return the wheels with libraries in a folder of packages, that of the chosen GPU family
    first."""
    family = os.environ.get("ROCM_SDK_TARGET_FAMILY", "").replace("-", "_")
    paths = (p for p in folder.glob("_rocm_sdk_libraries*") if (p / "lib").is_dir())
    return sorted(paths, key=lambda path: (family not in path.name, path.name))


def _folders(package: str) -> list[str]:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module inserted into sys.modules by hand
        return []
    return list(spec.submodule_search_locations or []) if spec else []
