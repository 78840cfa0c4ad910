"""Operations: costs, inputs, references, tolerances. One file per op."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmark.core.problem import Problem, parse_key
from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.ops.base import Op

registry: Registry[Op] = Registry(
    "kernelmark.ops", "op", advice="; a kernel file defines its own: see docs/own-kernel.md"
)


def parse(text: str) -> Problem:
    """Return the validated, canonical problem that `text` names."""
    loose = parse_key(text)
    op = registry.get(loose.op)
    return op.problem(**loose.dims, **loose.dtypes, **loose.options)
