"""Conversion of a module to float64: every float type becomes f64, and no rounding is left between
inputs and outputs."""

from __future__ import annotations

import re
from typing import Any

from kernelmark.core.errors import CompileError
from kernelmark.core.reason import Reason
from kernelmark.kernels.mlir.base import DTYPE_OF, is_float

_SHORT = "|".join(sorted((name for name in DTYPE_OF if is_float(name) and name != "f64"), key=len))
# A type is separate or follows the dims of a shaped type: `f16`, `4x?xf16`, not `%f16`.
_TYPE = re.compile(rf"(?:(?<![\w%@!#.$\"-])|(?<=[\d?]x))(?:{_SHORT})\b")
_CASTS = ("arith.extf", "arith.truncf")


def float64_text(text: str) -> str:
    """Return the module with all floats as f64. Raise CompileError if MLIR cannot parse it."""
    from iree.compiler import ir

    with ir.Context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise CompileError(Reason("module-not-mlir", error=str(error))) from None
        casts: list[Any] = []

        def visit(op: Any) -> Any:
            op = op.operation
            if op.name in _CASTS:
                casts.append(op)
            elif "value" in op.attributes:
                op.attributes["value"] = _wide_constant(op.attributes["value"])
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        for op in casts:  # a cast between equal types is invalid
            op.results[0].replace_all_uses_with(op.operands[0])
        for op in reversed(casts):
            op.erase()
        # Types are inconsistent until the text is changed: only the generic form can be printed.
        generic = module.operation.get_asm(print_generic_op_form=True, assume_verified=True)
    return _TYPE.sub("f64", generic)


def _wide_constant(attribute: Any) -> Any:
    """Return a constant's value as an f64 attribute."""
    import numpy as np
    from iree.compiler import ir

    wide = ir.F64Type.get()
    if isinstance(attribute, ir.FloatAttr):
        return ir.FloatAttr.get(wide, attribute.value)
    if isinstance(attribute, ir.DenseFPElementsAttr):
        kind = ir.RankedTensorType.get(ir.ShapedType(attribute.type).shape, wide)
        if attribute.is_splat:
            value = ir.FloatAttr(attribute.get_splat_value()).value
            return ir.DenseElementsAttr.get_splat(kind, ir.FloatAttr.get(wide, value))
        values = np.array([float(value) for value in attribute]).reshape(kind.shape)
        return ir.DenseElementsAttr.get(values)
    return attribute
