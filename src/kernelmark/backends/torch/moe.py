"""moe with torch: sort rows by expert, two grouped GEMMs, scatter back to tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Grouped = Callable[[Any, Any, Any], Any]  # (rows, a matrix per expert, ends of their rows)


def experts(held: Mapping[str, Any], grouped: Grouped) -> Any:
    """Return the output of one argument set, in tensors that torch allocates. The host never needs
    the row counts of experts, so that only `grouped` determines whether a graph can be captured."""
    import torch

    x, ids = held["x"], held["ids"]
    top_k = ids.shape[1]
    chosen, order = ids.flatten().sort(stable=True)
    which = torch.arange(held["w1"].shape[0], device=x.device, dtype=ids.dtype)
    ends = torch.searchsorted(chosen, which, right=True).to(torch.int32)
    both = grouped(x[order // top_k], held["w1"].mT, ends)
    gate, up = both.chunk(2, dim=1)
    out = grouped(torch.nn.functional.silu(gate) * up, held["w2"].mT, ends)
    parts = torch.empty_like(out)
    parts[order] = (out * held["weights"].flatten()[order, None]).to(out.dtype)
    return parts.view(-1, top_k, x.shape[1]).sum(dim=1)


def one_by_one(rows: Any, matrices: Any, ends: Any) -> Any:
    """Run a GEMM for each expert that has rows. Waits for `ends`, so it cannot be captured."""
    import torch

    out = rows.new_empty(rows.shape[0], matrices.shape[2])
    start = 0
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            torch.mm(rows[start:end], matrices[expert], out=out[start:end])
        start = end
    return out
