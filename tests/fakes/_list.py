"""Which fakes there are, and the problems on which each is tried."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.core.problem import Problem
from kernelmark.core.timing import Cache
from kernelmark.ops import registry

FOLDER = Path(__file__).parent
# Skipping a launch must save much: what only time gives away has to stand out on a busy machine.
# On the CPU the work is a hundred times a copy of the output, and little for the bytes it reads:
# all sets of cold timing are launched several times in a tenth of a second. A fake that skips
# later launches of a set is honest until then.
SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "cpu": {
        "gemm": {"m": 16, "n": 256, "k": 512},
        "batched_gemm": {"batch": 20, "m": 40, "n": 40, "k": 200},
        "attention": {"heads": 20, "seq": 64, "dim": 32},
        "conv": {"n": 20, "c": 32, "h": 12, "w": 12, "k": 8, "r": 3, "s": 3},
    },
    "gpu": {
        "gemm": {"m": 4096, "n": 4096, "k": 2048},
        "batched_gemm": {"batch": 20, "m": 768, "n": 768, "k": 1024},
        "attention": {"batch": 2, "heads": 20, "seq": 2048, "dim": 128},
        "conv": {"n": 40, "c": 256, "h": 30, "w": 30, "k": 256, "r": 3, "s": 3},
    },
}
DTYPES = {"cpu": "f32", "gpu": "bf16"}
# Tried with every op; what is special in the others does not depend on it.
EVERY_OP = ("prepared_answers", "tenth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fake:
    """A fake on one problem and cache state."""

    path: Path
    problem: Problem
    cache: Cache

    @property
    def name(self) -> str:
        return f"{self.path.stem} {self.problem.op} {self.cache}"


def fakes(kind: str, folder: Path = FOLDER) -> Iterator[Fake]:
    """All fakes for `kind`, which is cpu or gpu, in hot and cold timing."""
    other = "gpu" if kind == "cpu" else "cpu"
    for path in sorted(folder.glob("*.py")):
        if path.stem.startswith(("_", f"{other}_")):
            continue
        found = runpy.run_path(str(path))
        caches = found.get("caches", ("hot", "cold"))
        ops = found["op"] if path.stem in EVERY_OP else found["op"][:1]
        for op in ops:
            given = {"dtype": DTYPES[kind], **SHAPES[kind][op], **found.get("asked", {})}
            problem = registry.get(op).problem(**given)
            yield from (Fake(path=path, problem=problem, cache=Cache(c)) for c in caches)
