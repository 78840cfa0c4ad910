"""The functions of a module and the types of their arguments and results.

A module declares them in its reflection, unless it was imported from the torch dialect or takes
buffer views: then they are those of the imports and exports of tensors in the MLIR.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.backends.iree.runtime import instance
from kernelmark.core.errors import UsageError
from kernelmark.kernels.mlir.base import DTYPE_OF

_TENSOR = re.compile(r"tensor<((?:[\d?]+x)*)(\w+)>\Z")
_DECLARATION = re.compile(r"func @[\w.$-]+\((.*)\) -> \((.*)\)\Z")
_VIEW, _FENCE = "!hal.buffer_view", "!hal.fence"
_ASYNC = "$async"  # suffix of the function with fences that `NAME` calls and waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """The type of a function's argument or result. `dtype` is kernelmark's name, or MLIR's if
    kernelmark has no such dtype; `shape` is None for a scalar. The dtype is "" if the module does
    not have the type."""

    shape: tuple[int, ...] | None
    dtype: str

    def __str__(self) -> str:
        """Return the type in the syntax of `--input`, with ? for a dynamic dim."""
        sizes = ("?" if size < 0 else str(size) for size in self.shape or ())
        return "x".join([*sizes, self.dtype or "unknown"])


UNKNOWN = TensorType(shape=None, dtype="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The inputs and outputs of a function."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


def read_signature(
    binary: Path, function: str, lowered: Callable[[], bytes]
) -> tuple[str, Signature]:
    """Return the name and types of a module's function; the only one if none is named. `lowered`
    returns the module after the import of its dialects, for what the binary does not declare."""
    import iree.runtime as rt

    module = rt.VmModule.mmap(instance(), str(binary))
    names = {name for name in module.function_names if name != "__init"}
    public = sorted(name for name in names if name.removesuffix(_ASYNC) not in names - {name})
    if not function and len(public) == 1:
        function = public[0]
    if function not in public:
        unknown = f"unknown function {function!r} of the module"
        raise UsageError(
            unknown if function else "--function is missing",
            hint=f"--function: {', '.join(public) or 'the module exports none'}",
        )
    declared = _DECLARATION.search(
        module.lookup_function(function).reflection.get("iree.abi.declaration", "")
    )
    if declared is None or _VIEW in declared[0]:
        return function, _traced(lowered(), function)
    inputs, outputs = (tuple(map(parse_type, _types(part))) for part in declared.groups())
    return function, Signature(inputs=inputs, outputs=outputs)


def parse_type(text: str) -> TensorType:
    """Parse `tensor<2x34xf16>` or a scalar's `f32`; a dynamic dim is -1."""
    if text == _VIEW:
        return UNKNOWN
    match = _TENSOR.match(text)
    if match is None:
        return TensorType(shape=None, dtype=DTYPE_OF.get(text, text))
    sizes = [-1 if size == "?" else int(size) for size in match[1].split("x")[:-1]]
    return TensorType(shape=tuple(sizes), dtype=DTYPE_OF.get(match[2], match[2]))


def _types(text: str) -> list[str]:
    """Return the types of `%input0: tensor<2x2xf32>, %input1: i32`, without attributes."""
    return [
        part.partition(":")[2].strip().split(" ")[0]
        for part in re.split(r",\s*(?=%)", text)
        if part
    ]


def _traced(module: bytes, function: str) -> Signature:
    """Return the types that the MLIR imports the arguments of a function as, and exports its
    results from."""
    from iree.compiler import ir

    with ir.Context():
        parsed = ir.Module.parse(module)  # owns its operations
        functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.operation
            for op in parsed.body.operations
            if op.operation.name in ("util.func", "func.func")
        }
        block = functions[function].regions[0].blocks[0]
        returned = list(block.operations)[-1].operands
        types = [
            [_argument_type(value, functions) for value in block.arguments],
            [_result_type(value, functions) for value in returned],
        ]
        inputs, outputs = (
            tuple(parse_type(text) for text in part if text != _FENCE) for part in types
        )
    return Signature(inputs=inputs, outputs=outputs)


def _argument_type(value: Any, functions: dict[str, Any]) -> str:
    for use in value.uses:
        op = use.owner.operation
        if op.name == "hal.tensor.import" and use.operand_number == 0:
            return str(op.results[0].type)
        if callee := _callee(op, functions):
            return _argument_type(callee.arguments[use.operand_number], functions)
    return str(value.type)


def _result_type(value: Any, functions: dict[str, Any]) -> str:
    op = value.owner if str(value.type) == _VIEW else None
    operation = getattr(op, "operation", None)  # None for an argument of a block
    if operation is None:
        return str(value.type)
    if operation.name == "hal.tensor.export":
        return str(operation.operands[0].type)
    if callee := _callee(operation, functions):
        results: Sequence[Any] = list(callee.operations)[-1].operands
        return _result_type(results[value.result_number], functions)
    return str(value.type)


def _callee(op: Any, functions: dict[str, Any]) -> Any:
    """Return the body of the function that an op calls, or None."""
    if op.name not in ("util.call", "func.call"):
        return None
    return functions[str(op.attributes["callee"]).removeprefix("@").strip('"')].regions[0].blocks[0]
