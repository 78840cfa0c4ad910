"""Print the folders that have CUDA's headers: nvcc's own, and those of NVIDIA's wheels."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path


def folders() -> list[Path]:
    """Return the include folders that exist, in the order to search them."""
    nvcc = shutil.which("nvcc")
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    roots += [Path(nvcc).resolve().parent.parent] if nvcc else []
    roots.append(Path("/usr/local/cuda"))
    found = [root / "include" for root in roots]
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found += sorted(Path(folder).glob("*/include"))
    # cublasLt.h includes nv/target, which is in a folder of its own since CUDA 13.
    found += [folder / "cccl" for folder in found]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


if __name__ == "__main__":
    sys.stdout.write(" ".join(map(str, folders())))
