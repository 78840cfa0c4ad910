"""Kernels in one source that compiles as CUDA, HIP and, where it makes sense, C++."""

from __future__ import annotations

from pathlib import Path


def source(name: str) -> str:
    """The text of a kernel file in this folder, with the shared header in front."""
    folder = Path(__file__).parent
    header = (folder / "common.h").read_text(encoding="utf-8")
    return f'{header}\n#line 1 "{name}"\n{(folder / name).read_text(encoding="utf-8")}'
