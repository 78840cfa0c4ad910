"""A second function next to the op's own: the same op on many argument sets, in one invocation.

The host cost of an invocation, and the wait for its end, are then shared by many launches.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir.base import FUNCTION, argument_type

BATCH_FUNCTION = "many"
BATCH = 16


def with_batch(source: str, tensors: Sequence[TensorSpec]) -> str:
    """Return `source` with a function that takes the tensors of `BATCH` sets, one set after the
    other.

    Outputs are tied to their arguments, as in the op's own function."""
    types = [argument_type(spec) for spec in tensors]
    arguments, calls, results = [], [], []
    for index in range(BATCH):
        names = [f"%{spec.name}_{index}" for spec in tensors]
        arguments += [f"{name}: {kind}" for name, kind in zip(names, types, strict=True)]
        arguments[-1] += f" {{iree.abi.output = {index} : index}}"
        results.append(f"%result_{index}")
        calls.append(
            f"    {results[-1]} = func.call @{FUNCTION}({', '.join(names)})"
            f" : ({', '.join(types)}) -> {types[-1]}"
        )
    outputs = ", ".join([types[-1]] * BATCH)
    head = f"  func.func @{BATCH_FUNCTION}({', '.join(arguments)}) -> ({outputs}) {{"
    last = f"    return {', '.join(results)} : {outputs}"
    module, _, _ = source.rstrip().rpartition("}")
    return "\n".join([module.rstrip("\n"), head, *calls, last, "  }", "}", ""])
