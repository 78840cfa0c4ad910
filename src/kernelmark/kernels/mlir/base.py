"""Source: an op's MLIR. Graph: a builder for the text of one function. Size: a dynamic dim.

An op's tensors and its MLIR are derived from the problem's dims by integer arithmetic. With a Size
instead of an integer dim, the same arithmetic also records how the function computes each size from
its arguments, so that one description of an op serves static and dynamic dims.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kernelmark import ops
from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec

# The name of a dim, or an arith op with its two operands.
Term = str | tuple[str, "Term | int", "Term | int"]


class Size(int):
    """As an integer, the size in the measured problem; `term` is what the compiled code computes.

    Equal only to a size with the same term: where the text depends on a size, as for a filter of
    one tap, a dynamic dim takes the general form, whatever its value in this problem.
    """

    term: Term

    def __new__(cls, value: int, term: Term) -> Size:
        size = super().__new__(cls, value)
        size.term = term
        return size

    def __add__(self, other: int) -> int:
        return _computed("addi", self, other)

    def __radd__(self, other: int) -> int:
        return _computed("addi", other, self)

    def __sub__(self, other: int) -> int:
        return _computed("subi", self, other)

    def __rsub__(self, other: int) -> int:
        return _computed("subi", other, self)

    def __mul__(self, other: int) -> int:
        return _computed("muli", self, other)

    def __rmul__(self, other: int) -> int:
        return _computed("muli", other, self)

    def __floordiv__(self, other: int) -> int:
        return _computed("floordivsi", self, other)

    def __rfloordiv__(self, other: int) -> int:
        return _computed("floordivsi", other, self)

    def __neg__(self) -> int:
        return 0 - self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.term == other.term

    # int defines its own, which compares values.
    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.term)


_VALUES: dict[str, Any] = {
    "addi": int.__add__,
    "subi": int.__sub__,
    "muli": int.__mul__,
    "floordivsi": int.__floordiv__,
}
# Neutral second operands.
_NEUTRAL = {"addi": 0, "subi": 0, "muli": 1, "floordivsi": 1}


def _computed(op: str, left: int, right: int) -> int:
    if right == _NEUTRAL[op]:
        return left
    if op in ("addi", "muli") and left == _NEUTRAL[op]:
        return right
    value = _VALUES[op](int(left), int(right))
    return Size(value, (op, _operand(left), _operand(right)))


def _operand(size: int) -> Term | int:
    return size.term if isinstance(size, Size) else size


def dynamic_dims(problem: Problem) -> tuple[str, ...]:
    """Return the dims that are also a dim of an argument, where the code reads them."""
    tensors = ops.registry.get(problem.op).tensors(with_dynamic(problem, problem.dims))
    sizes = [size for tensor in tensors for size in argument_shape(tensor)]
    terms = {size.term for size in sizes if isinstance(size, Size)}
    return tuple(name for name in problem.dims if name in terms)


def argument_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape of a tensor as an argument: sub-byte elements are passed as whole bytes."""
    per_byte = 8 // min(8, spec.type.bits)
    return (*spec.shape[:-1], spec.shape[-1] // per_byte)


def with_dynamic(problem: Problem, names: Collection[str]) -> Problem:
    """Return the problem with the named dims dynamic for the compiler."""
    dims = {
        name: Size(value, name) if name in names else value for name, value in problem.dims.items()
    }
    return dataclasses.replace(problem, dims=dims)


FUNCTION = "main"

_TYPES = {
    "f64": "f64",
    "f32": "f32",
    "f16": "f16",
    "bf16": "bf16",
    "f8e4m3": "f8E4M3FN",
    "f8e5m2": "f8E5M2",
    "f8e4m3fnuz": "f8E4M3FNUZ",
    "f8e5m2fnuz": "f8E5M2FNUZ",
    "f8e8m0": "f8E8M0FNU",
    "f4e2m1": "f4E2M1FN",
    "i8": "i8",
    "i32": "i32",
}
DTYPE_OF = {name: ours for ours, name in _TYPES.items()}  # MLIR's name -> ours
_BITS = {name: dtype(ours).bits for ours, name in _TYPES.items()}


def element_type(dtype_name: str) -> str | None:
    """Return MLIR's name of a dtype, or None if MLIR has no tensor of it."""
    return _TYPES.get(dtype_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Which of several equivalent forms of an op to write.

    `gpu` selects the forms that GPU code generation expects. `im2col` writes a convolution as a
    GEMM, `hwcf` as the named op of nhwc images and transposed filters, with one image split into
    `bands` of rows. `named` keeps the named op of a convolution that would be written as a
    contraction for a GPU. `dynamic` names the dims that are dynamic for the compiler; `text` gets
    them as `Size` in the problem and its tensors.
    """

    gpu: bool = False
    named: bool = False
    im2col: bool = False
    hwcf: bool = False
    bands: int = 1
    dynamic: tuple[str, ...] = ()


class MlirSource(ABC):
    """One op in MLIR. The function takes the op's tensors in order, the output last."""

    def refuses(self, problem: Problem) -> str | None:
        """Return why this problem cannot be written in MLIR, or None."""
        for name, dtype_name in problem.dtypes.items():
            if element_type(dtype_name) is None:
                return f"MLIR has no tensor of {dtype_name} ({name})"
        return None

    @abstractmethod
    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        """Return the text of a module."""

    def scratch_bytes(self, problem: Problem, form: Form) -> int:
        """Return a lower bound of the memory for intermediate results."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor in the graph, or a scalar if `shape` is None. `type` is MLIR's element type."""

    name: str
    shape: tuple[int, ...] | None
    type: str

    @property
    def text(self) -> str:
        return self.type if self.shape is None else tensor_type(self.shape, self.type)

    @property
    def dims(self) -> tuple[int, ...]:
        assert self.shape is not None
        return self.shape


def tensor_type(shape: Sequence[int], element: str) -> str:
    # A dynamic dim is ? in the type and a value in lists of sizes.
    sizes = "".join("?x" if isinstance(size, Size) else f"{size}x" for size in shape)
    return f"tensor<{sizes}{element}>"


def affine_map(loops: str, results: str) -> str:
    """Return the text of an affine map; without results, that of a scalar."""
    return f"affine_map<({loops}) -> ({results})>"


def is_float(element: str) -> bool:
    return element.startswith(("f", "bf"))


class Graph:
    """Builds the lines of a function and numbers its values. Most methods add one op."""

    def __init__(self, tensors: Sequence[TensorSpec]) -> None:
        self._lines: list[str] = []
        # Sizes are computed first, so that regions can use them as well.
        self._head: list[str] = []
        self._computed: dict[Term | int, str] = {}
        self._count = 0
        self._tensors = tensors
        self.inputs = {spec.name: self._input(spec) for spec in tensors if spec.role == "in"}
        self.output = _argument(tensors[-1])

    def _input(self, spec: TensorSpec) -> Value:
        """Return a tensor in its own type. IREE has no arguments of sub-byte elements."""
        argument, element = _argument(spec), element_type(spec.dtype) or ""
        if argument.type == element:
            return argument
        whole = tensor_type(spec.shape, element)
        text = (
            f"iree_tensor_ext.bitcast {argument.name} : {argument.text}"
            f"{self._unknown(argument.dims)} -> {whole}{self._unknown(spec.shape)}"
        )
        return self.add(text, spec.shape, element)

    def _unknown(self, shape: Sequence[int]) -> str:
        """Return the list of dynamic sizes that follows a type."""
        names = ", ".join(self.size(size) for size in shape if isinstance(size, Size))
        return f"{{{names}}}" if names else ""

    def module(self, result: Value) -> str:
        """Return the module whose function writes `result` into its last argument."""
        arguments = [f"%{spec.name}: {_argument(spec).text}" for spec in self._tensors]
        # The attribute makes the caller's buffer the storage of result 0: the kernel writes
        # there, with no copy and no allocation.
        arguments[-1] += " {iree.abi.output = 0 : index}"
        head = f"  func.func @{FUNCTION}({', '.join(arguments)}) -> {self.output.text} {{"
        tail = [f"    return {result.name} : {result.text}", "  }", "}", ""]
        return "\n".join(["module @kernelmark {", head, *self._head, *self._lines, *tail])

    def function(self, name: str, result: Value) -> str:
        """Return a private function of static dims that returns `result`, for IREE's modules."""
        arguments = ", ".join(f"%{spec.name}: {_argument(spec).text}" for spec in self._tensors)
        head = f"  util.func private @{name}({arguments}) -> {result.text} {{"
        return "\n".join(
            [head, *self._lines, f"    util.return {result.name} : {result.text}", "  }"]
        )

    def add(self, text: str, shape: tuple[int, ...] | None, element: str) -> Value:
        """Add the op `text` and return its value."""
        return Value(name=self._append(self._lines, text), shape=shape, type=element)

    def _append(self, lines: list[str], text: str) -> str:
        name = f"%{self._count}"
        self._count += 1
        lines.append(f"    {name} = {text}")
        return name

    def size(self, size: int) -> str:
        """Return a size for a list of sizes: a number, or the name of a computed index."""
        return self._index(size.term) if isinstance(size, Size) else str(size)

    def _index(self, term: Term | int) -> str:
        """Return the name of an index that is computed at the function's beginning."""
        if term not in self._computed:
            if isinstance(term, int):
                text = f"arith.constant {term} : index"
            elif isinstance(term, str):
                owner, position = self._owner(term)
                at = self._index(position)
                text = f"tensor.dim {owner.name}, {at} : {owner.text}"
            else:
                op, left, right = term
                names = f"{self._index(left)}, {self._index(right)}"
                text = f"arith.{op} {names} : index"
            self._computed[term] = self._append(self._head, text)
        return self._computed[term]

    def _owner(self, dim: str) -> tuple[Value, int]:
        """Return an argument that has the dim, and the dim's position in it."""
        for value in map(_argument, self._tensors):
            for position, size in enumerate(value.dims):
                if isinstance(size, Size) and size.term == dim:
                    return value, position
        raise LookupError(dim)

    def constant(self, number: float, element: str) -> Value:
        if isinstance(number, Size):
            return Value(name=self.size(number), shape=None, type="index")
        if element == "index" or not is_float(element):
            literal = str(int(number))
        elif math.isinf(number):
            # Decimal literals cannot express infinity: MLIR reads it as the type's bits.
            literal = _INFINITIES[element][number < 0]
        else:
            literal = f"{float(number):.17e}"
        return self.add(f"arith.constant {literal} : {element}", None, element)

    def empty(self, shape: tuple[int, ...], element: str) -> Value:
        unknown = ", ".join(self.size(size) for size in shape if isinstance(size, Size))
        text = f"tensor.empty({unknown}) : {tensor_type(shape, element)}"
        return self.add(text, shape, element)

    def filled(self, number: float, shape: tuple[int, ...], element: str) -> Value:
        # IREE fuses the fill into the op that accumulates: it costs no pass over memory.
        scalar, empty = self.constant(number, element), self.empty(shape, element)
        ins, outs = f"{scalar.name} : {element}", f"{empty.name} : {empty.text}"
        return self.add(f"linalg.fill ins({ins}) outs({outs}) -> {empty.text}", shape, element)

    def named(
        self, op: str, ins: Sequence[Value], out: Value, *, before: str = "", attributes: str = ""
    ) -> Value:
        """Add a named linalg op; `before` is put between its name and its operands."""
        operands = f"ins({', '.join(v.name for v in ins)} : {', '.join(v.text for v in ins)})"
        parts = [op, before, attributes, operands, f"outs({out.name} : {out.text})"]
        text = " ".join(word for word in parts if word)
        return self.add(f"{text} -> {out.text}", out.shape, out.type)

    def each(
        self,
        loops: str,
        ins: Sequence[tuple[Value, str]],
        out: tuple[Value, str],
        body: Callable[[Graph, list[Value]], Value],
        *,
        reduced: Sequence[str] = (),
    ) -> Value:
        """Add an op over `loops`, parallel except for those in `reduced`; `body` gets one scalar
        per operand, the output's last."""
        out_value, out_map = out
        # All loops are parallel unless reduced: IREE may then tile and distribute any of them.
        maps = ", ".join(affine_map(loops, m) for m in [*(m for _, m in ins), out_map])
        names = [name.strip() for name in loops.split(",")]
        kinds = ", ".join('"reduction"' if n in reduced else '"parallel"' for n in names)
        operands = ""
        if ins:
            operand_names, types = (
                ", ".join(v.name for v, _ in ins),
                ", ".join(v.text for v, _ in ins),
            )
            operands = f"ins({operand_names} : {types}) "
        value = self.add(
            f"linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} "
            f"{operands}outs({out_value.name} : {out_value.text}) {{",
            out_value.shape,
            out_value.type,
        )
        with self._region([v.type for v, _ in ins] + [out_value.type]) as scalars:
            result = body(self, scalars)
            self._lines.append(f"    linalg.yield {result.name} : {result.type}")
        self._lines.append(f"    }} -> {out_value.text}")
        return value

    def convert(self, value: Value, element: str, loops: str) -> Value:
        """Cast every element of a tensor to another type."""
        if value.type == element:
            return value
        out = self.empty(value.dims, element), loops
        return self.each(loops, [(value, loops)], out, lambda g, s: g.cast(s[0], element))

    @contextmanager
    def _region(self, types: Sequence[str]) -> Iterator[list[Value]]:
        scalars = []
        for element in types:
            scalars.append(Value(name=f"%{self._count}", shape=None, type=element))
            self._count += 1
        self._lines.append(f"    ^bb0({', '.join(f'{s.name}: {s.type}' for s in scalars)}):")
        yield scalars

    def scalar(self, op: str, *operands: Value) -> Value:
        """Add a scalar op: `mul` is arith.mulf or arith.muli by the operands' type."""
        element = operands[0].type
        suffix = "f" if is_float(element) else "i"
        names = ", ".join(o.name for o in operands)
        return self.add(f"arith.{op}{suffix} {names} : {element}", None, element)

    def index(self, loop: int) -> Value:
        return self.add(f"linalg.index {loop} : index", None, "index")

    def cast(self, value: Value, element: str) -> Value:
        """Convert a scalar to another type, rounded to nearest even if narrower."""
        if value.type == element:
            return value
        if is_float(value.type) and is_float(element) and _BITS[value.type] == _BITS[element]:
            value = self.cast(value, "f32")  # exact; MLIR has no cast between equal widths
        # MLIR has one op per direction, which requires that the widths differ in it.
        op = _cast_op(value.type, element)
        return self.add(f"arith.{op} {value.name} : {value.type} to {element}", None, element)

    def reshape(self, value: Value, groups: Sequence[Sequence[int]], shape: Sequence[int]) -> Value:
        """Collapse or expand dims; `groups` are the dims of the longer shape, in order."""
        shape = tuple(shape)
        if shape == value.shape:
            return value
        where = str([list(group) for group in groups])
        if len(shape) < len(value.dims):
            whole = _collapsed(value.dims, groups, shape)
            text = f"tensor.collapse_shape {value.name} {where} : {value.text} into "
            text += tensor_type(whole, value.type)
            return self._sized(self.add(text, whole, value.type), shape)
        value = self._sized(value, _collapsed(shape, groups, value.dims))
        sizes = ", ".join(map(self.size, shape))
        text = f"tensor.expand_shape {value.name} {where} output_shape [{sizes}] : {value.text} "
        return self.add(f"{text}into {tensor_type(shape, value.type)}", shape, value.type)

    def _sized(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Return the same tensor with other dims static."""
        target = tensor_type(shape, value.type)
        if target == value.text:
            return value
        text = f"tensor.cast {value.name} : {value.text} to {target}"
        return self.add(text, shape, value.type)


def _collapsed(
    whole: Sequence[int], groups: Sequence[Sequence[int]], dims: Sequence[int]
) -> tuple[int, ...]:
    """Return the sizes `dims` of the groups of a shape, each dynamic if any dim of its group is,
    as MLIR requires."""
    sizes = []
    for group, size in zip(groups, dims, strict=True):
        static = not any(isinstance(whole[dim], Size) for dim in group)
        product = math.prod(whole[dim] for dim in group)
        sizes.append(size if static != isinstance(size, Size) else product)
    return tuple(sizes)


_INFINITIES = {
    "f64": ("0x7FF0000000000000", "0xFFF0000000000000"),
    "f32": ("0x7F800000", "0xFF800000"),
    "f16": ("0x7C00", "0xFC00"),
    "bf16": ("0x7F80", "0xFF80"),
}


def _argument(spec: TensorSpec) -> Value:
    element = element_type(spec.dtype)
    assert element is not None, spec.dtype
    shape = argument_shape(spec)
    return Value(name=f"%{spec.name}", shape=shape, type="i8" if _BITS[element] < 8 else element)


def argument_type(spec: TensorSpec) -> str:
    """Return the type of the function's argument for a tensor."""
    return _argument(spec).text


def _cast_op(source: str, target: str) -> str:
    wider = _BITS[target] > _BITS[source]
    if is_float(source) and is_float(target):
        return "extf" if wider else "truncf"
    if is_float(source):
        return "fptosi"
    if is_float(target):
        return "sitofp"
    return "extsi" if wider else "trunci"
