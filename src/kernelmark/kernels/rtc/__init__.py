"""Kernels in one source that compiles as CUDA, HIP and, in part, C++."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
_OWN_MATRIX = ("sm_90", "sm_120", "sm_121")


def names() -> list[str]:
    """Return the names of the kernel files in this folder."""
    return sorted(path.name for path in _FOLDER.glob("*.cu"))


def source(name: str) -> str:
    """Return the text of a kernel file in this folder, with the shared header in front."""
    # #line directives make compiler messages name the right file and line.
    shared = ("micro.h",) if name.startswith("micro_") else ()
    files = ("common.h", *shared, name)
    texts = (f'#line 1 "{f}"\n{(_FOLDER / f).read_text(encoding="utf-8")}' for f in files)
    return "\n".join(texts)


def target(name: str, arch: str) -> str:
    """Return the architecture to compile a file for on a GPU of `arch`: with the suffix `a`
    (sm_90a) if the file has instructions that are specific to this generation."""
    return f"{arch}a" if name == "micro_matrix.cu" and arch in _OWN_MATRIX else arch
