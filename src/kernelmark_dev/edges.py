"""Our Triton kernels with the edge handling of earlier versions, to compare with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

# Past the edge, indices were clamped to the last one instead of wrapped around.
_CLAMPS = {"rows % m": "tl.minimum(rows, m - 1)", "columns % n": "tl.minimum(columns, n - 1)"}


def clamped(kernels: ModuleType, folder: Path) -> ModuleType:
    """Return a module of kernels with clamped edges; its source is written to `folder`, where
    Triton reads it."""
    source = text = Path(str(kernels.__file__)).read_text(encoding="utf-8")
    for wrapped, clamp in _CLAMPS.items():
        text = text.replace(wrapped, clamp)
    if text == source:
        raise LookupError(f"{kernels.__name__} wraps no index")
    name = f"clamped_{kernels.__name__.rpartition('.')[2]}"
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
