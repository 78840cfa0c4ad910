"""moe with NumPy: expert by expert, two GEMMs over the rows of each.

Gate, up and each expert's output are rounded to the inputs' dtype, as in kernels that store them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

import numpy as np

from kernelmark.backends.numpy.matmuls import MATMULS, Array, Plan, types, workspace
from kernelmark.core.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Buffers for the rows of one expert, at most all tokens; `parts` has a row for each choice."""

    x: Array
    both: Array
    silu: Array
    hidden: Array
    out: Array
    parts: Array

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.__slots__)


def plan(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> Plan:
    """Plan one step per set: the rows of an expert are known only at launch."""
    m, n, k, top_k = (problem.dims[name] for name in ("m", "n", "k", "top_k"))
    kind, wide = arrays[0]["x"].dtype, np.dtype(np.float32)

    def room(width: int, dtype: np.dtype[np.generic] = kind, rows: int = m) -> Array:
        return workspace((rows, width), dtype, free_bytes // 6)

    space = Workspace(
        x=room(k),
        both=room(2 * n),
        silu=room(n, wide),
        hidden=room(n),
        out=room(k),
        parts=room(k, wide, m * top_k),
    )
    return Plan(
        name="numpy moe by experts",
        launches=[[partial(_launch, problem, held, space)] for held in arrays],
        workspace_bytes=space.nbytes,
    )


def _launch(problem: Problem, held: dict[str, Array], space: Workspace) -> None:
    n, top_k = problem.dims["n"], problem.dims["top_k"]
    multiply = MATMULS[types(problem)]
    ids, weights = held["ids"].ravel(), held["weights"].reshape(-1, 1)
    order = np.argsort(ids, kind="stable")
    ends = np.searchsorted(ids[order], np.arange(problem.dims["e"] + 1)).tolist()
    for expert, (start, end) in enumerate(itertools.pairwise(ends)):
        rows, count = order[start:end], end - start
        if not count:
            continue
        x, both, silu = space.x[:count], space.both[:count], space.silu[:count]
        np.take(held["x"], rows // top_k, axis=0, out=x)
        multiply(x, held["w1"][expert].T, both)
        gate, up = both[:, :n], both[:, n:]
        np.negative(gate, out=silu)
        with np.errstate(over="ignore"):  # exp of a large number: silu is 0
            np.exp(silu, out=silu)
        np.add(silu, np.float32(1), out=silu)
        np.divide(gate, silu, out=silu)
        np.multiply(silu, up, out=space.hidden[:count], casting="same_kind")
        multiply(space.hidden[:count], held["w2"][expert].T, space.out[:count])
        space.parts[rows] = space.out[:count] * weights[rows]
    shape = (problem.dims["m"], top_k, problem.dims["k"])
    np.sum(space.parts.reshape(shape), axis=1, out=held["out"], dtype=np.float32)
