"""A module with all its floats in another type: float64 for a reference, float32 where IREE cannot
compute something in float64.

In float64 no rounding is left between inputs and outputs: every float type is replaced, and every
cast between floats removed. Parameters and constants in files keep their type and are upcast where
they are loaded.

IREE compiles some functions in float32 only (erf), and leaves others to a C library that is not
linked (sin, tanh). They are replaced by arithmetic, `exp` and `log`, which it has in float64. The
formulas below take NumPy arrays as well, for their tests. Attention, whose lowering sums in float32
in any case, is written as two contractions and a softmax.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from kernelmark.core.errors import CompileError
from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir.base import DTYPE_OF, Graph, Value, is_float

_SHORT = "|".join(sorted((name for name in DTYPE_OF if is_float(name) and name != "f64"), key=len))
# A type is separate or follows the dims of a shaped type: `f16`, `4x?xf16`, not `%f16`.
_BEFORE = r"(?:(?<![\w%@!#.$\"-])|(?<=[\d?]x))"
_TYPE = re.compile(rf"{_BEFORE}(?:{_SHORT}|f64)\b")
_CASTS = ("arith.extf", "arith.truncf")
# Data that is not in the module has the type that it is stored in.
_STORED_GLOBAL = re.compile(
    r'"util\.global"\(\) <\{.*#flow\.parameter\.named<.*sym_name = "([^"]*)"'
)
_STORED = re.compile(
    r'^(\s*)(%\w+) = ("util\.global\.load"\(\) <\{.*?global = @("?)([^",}]*)\4.*'
    r'|"arith\.constant"\(\) <\{value = dense_resource<.*)'
    rf" -> (tensor<(?:[\d?]+x)*(?:{_SHORT})>)$",
    re.MULTILINE,
)
_KEPT = "kept_"  # hides a type from _TYPE


def with_floats(module: bytes, name: str = "f64") -> str:
    """Return the module with all floats as `name`, f64 or f32. Raise CompileError if MLIR cannot
    parse it."""
    from iree.compiler import ir

    with ir.Context(), ir.Location.unknown():
        try:
            parsed = ir.Module.parse(module)
        except ir.MLIRError as error:
            raise CompileError(f"the module cannot be parsed: {error}") from None
        casts: list[Any] = []
        functions: list[Any] = []
        attentions: list[Any] = []

        def visit(op: Any) -> Any:
            op = op.operation
            if op.name in _CASTS:
                casts.append(op)
            elif op.name.removeprefix("math.") in FUNCTIONS and op.name.startswith("math."):
                functions.append(op)
            elif op.name == "iree_linalg_ext.attention":
                attentions.append(op)
            for attribute in ("value", "initial_value"):
                if attribute in op.attributes:
                    op.attributes[attribute] = _constant(op.attributes[attribute], name)
            return ir.WalkResult.ADVANCE

        parsed.operation.walk(visit)
        called: list[str] = []
        if name == "f64":
            for op in functions:
                _expand(op)
            called = [
                _call_attention(op, f"float64_attention_{at}") for at, op in enumerate(attentions)
            ]
        for op in casts:  # a cast between equal types is invalid
            op.results[0].replace_all_uses_with(op.operands[0])
        for op in reversed(casts):
            op.erase()
        # Types are inconsistent until the text is changed: only the generic form can be printed.
        generic = parsed.operation.get_asm(print_generic_op_form=True, assume_verified=True)
    text = _TYPE.sub(name, _keep_stored(generic, name)).replace(_KEPT, "")
    end = text.rindex("})")  # of the module
    return "\n".join([text[:end], *called, text[end:]])


def _keep_stored(text: str, name: str) -> str:
    """Hide the types of stored data, and upcast it."""
    parameters = set(_STORED_GLOBAL.findall(text))

    def hidden(part: str) -> str:
        return re.sub(rf"(?<=[\dx?<])(?={_SHORT})", _KEPT, part)

    def upcast(match: re.Match[str]) -> str:
        space, value, op, _, loaded, kind = match.groups()
        if loaded is not None and loaded not in parameters:
            return match[0]
        stored = hidden(kind)
        if kind.endswith(f"{name}>"):
            return f"{space}{value} = {op} -> {stored}"
        source = f"%stored_{value[1:]}"
        return (
            f"{space}{source} = {hidden(op)} -> {stored}\n"
            f'{space}{value} = "arith.extf"({source}) : ({stored}) -> {kind}'
        )

    lines = text.split("\n")
    for at, line in enumerate(lines):
        if "#flow.parameter.named<" in line:
            lines[at] = hidden(line)
    return _STORED.sub(upcast, "\n".join(lines))


def _constant(attribute: Any, name: str) -> Any:
    """Return a constant's value as an attribute of the float type `name`."""
    from iree.compiler import ir

    float_type = ir.F64Type.get() if name == "f64" else ir.F32Type.get()
    if isinstance(attribute, ir.FloatAttr):
        return ir.FloatAttr.get(float_type, attribute.value)
    if isinstance(attribute, ir.DenseFPElementsAttr):
        kind = ir.RankedTensorType.get(ir.ShapedType(attribute.type).shape, float_type)
        if attribute.is_splat:
            value = ir.FloatAttr(attribute.get_splat_value()).value
            return ir.DenseElementsAttr.get_splat(kind, ir.FloatAttr.get(float_type, value))
        values = np.array([float(value) for value in attribute]).reshape(kind.shape)
        return ir.DenseElementsAttr.get(values.astype({"f64": "f8", "f32": "f4"}[name]))
    return attribute


def _call_attention(op: Any, name: str) -> str:
    """Replace an attention op by a call of a function. Return the function's text."""
    from iree.compiler import ir

    scale = op.operands[3].owner.operation
    region = [inner.operation.name for inner in op.regions[0].blocks[0]]
    if scale.name != "arith.constant" or region != ["iree_linalg_ext.yield"]:
        raise CompileError("an attention with a computed scale, or whose scores are changed")
    before = ir.InsertionPoint(op)
    operands = [op.operands[at] for at in (0, 1, 2, *range(4, len(op.operands) - 1))]
    masks = operands[3:]
    boolean = bool(masks) and "xi1>" in str(masks[0].type)
    if boolean:
        kind = _like(masks[0].type, ir.F64Type.get())
        operands[3] = ir.Operation.create(
            "arith.uitofp", results=[kind], operands=masks, ip=before
        ).result
    shapes = [ir.ShapedType(value.type) for value in (*operands, op.results[0])]
    if not all(shape.has_static_shape for shape in shapes):
        raise CompileError("an attention with dynamic dims")
    maps = [parse_map(str(item)) for item in op.attributes["indexing_maps"]]
    attributes = {"callee": ir.FlatSymbolRefAttr.get(name)}
    call = ir.Operation.create(
        "util.call",
        results=[op.results[0].type],
        operands=[*operands, op.operands[len(op.operands) - 1]],
        attributes=attributes,
        ip=before,
    )
    op.results[0].replace_all_uses_with(call.result)
    op.erase()
    factor = ir.FloatAttr(scale.attributes["value"]).value
    sizes = [tuple(shape.shape) for shape in shapes]
    return _attention_text(name, [*maps[:3], *maps[4:]], sizes, factor, boolean=boolean)


Loops = Sequence[int | None]


def _attention_text(
    name: str,
    maps: Sequence[Loops],
    shapes: Sequence[tuple[int, ...]],
    scale: float,
    *,
    boolean: bool,
) -> str:
    """Return a function of q, k, v and perhaps a mask: additive, or 0 where `boolean`."""
    names = ["q", "k", "v", "mask"][: len(maps) - 1]
    specs = [
        TensorSpec(name=item, shape=shape, dtype="f64")
        for item, shape in zip(names, shapes, strict=False)
    ]
    graph = Graph([*specs, TensorSpec(name="o", shape=shapes[-1], dtype="f64", role="out")])
    sizes = {
        loop: size
        for dims, shape in zip(maps, shapes, strict=True)
        for loop, size in zip(dims, shape, strict=True)
    }
    q, k, v, out = maps[0], maps[1], maps[2], maps[-1]
    inner = [d for d in q if d in k and d not in v]  # as the rows of a product's left operand
    keys = [d for d in k if d in v and d not in q]
    rows = [d for d in out if d in q]
    columns = [d for d in out if d not in q]
    scores = [*rows, *keys]

    def each(
        loops: Loops,
        ins: Sequence[tuple[Value, Loops]],
        dims: Loops,
        start: float,
        body: Callable[[Graph, list[Value]], Value],
        reduced: Loops = (),
    ) -> Value:
        shape = tuple(sizes[d] for d in dims)
        return graph.each(
            _loops(loops),
            [(value, _loops(used)) for value, used in ins],
            (graph.filled(start, shape, "f64"), _loops(dims)),
            body,
            reduced=[f"d{d}" for d in reduced],
        )

    def added(g: Graph, s: list[Value]) -> Value:
        return g.scalar("add", s[-1], g.scalar("mul", s[0], s[1]))

    inputs = graph.inputs
    products = each(
        [*scores, *inner], [(inputs["q"], q), (inputs["k"], k)], scores, 0.0, added, inner
    )

    def scaled(g: Graph, s: list[Value]) -> Value:
        value = g.scalar("mul", s[0], g.constant(scale, "f64"))
        if not boolean:
            return g.scalar("add", value, s[1]) if "mask" in inputs else value
        kept, low = g.constant(0.0, "f64"), g.constant(-math.inf, "f64")
        condition = g.add(f"arith.cmpf one, {s[1].name}, {kept.name} : f64", None, "i1")
        text = f"arith.select {condition.name}, {value.name}, {low.name} : f64"
        return g.add(text, None, "f64")

    masks = [(inputs["mask"], maps[3])] if "mask" in inputs else []
    products = each(scores, [(products, scores), *masks], scores, 0.0, scaled)
    highest = each(
        scores,
        [(products, scores)],
        rows,
        -math.inf,
        lambda g, s: g.scalar("maximum", s[1], s[0]),
        keys,
    )
    weights = each(
        scores,
        [(products, scores), (highest, rows)],
        scores,
        0.0,
        lambda g, s: g.add(f"math.exp {g.scalar('sub', s[0], s[1]).name} : f64", None, "f64"),
    )
    total = each(
        scores, [(weights, scores)], rows, 0.0, lambda g, s: g.scalar("add", s[1], s[0]), keys
    )
    values = each(
        [*rows, *columns, *keys], [(weights, scores), (inputs["v"], v)], out, 0.0, added, keys
    )
    result = each(
        list(out),
        [(values, out), (total, rows)],
        out,
        0.0,
        lambda g, s: g.scalar("div", s[0], s[1]),
    )
    return graph.function(name, result)


def _loops(dims: Loops) -> str:
    return ", ".join(f"d{d}" for d in dims)


def parse_map(text: str) -> list[int | None]:
    """Parse `affine_map<(d0, d1) -> (d0, d1 * 2)>`: the loop of each dim, None for a sum of
    loops."""
    results = text.partition("->")[2].strip().rstrip(">").strip("() ")
    indices = [word.strip() for word in results.split(",")] if results else []
    return [int(word[1:]) if word[1:].isdecimal() and word[0] == "d" else None for word in indices]


class Expression:
    """A value in the module; an operation with it adds an op. `before` is where."""

    def __init__(self, value: Any, before: Any) -> None:
        self.value, self.before = value, before

    def op(self, name: str, *operands: Any, **attributes: Any) -> Expression:
        """Add an op on this value and others; a number becomes a constant of the value's type."""
        from iree.compiler import ir

        values = [self._value(item) for item in operands]
        boolean = name == "arith.cmpf"
        kind = (
            _like(self.value.type, ir.IntegerType.get_signless(1)) if boolean else values[-1].type
        )
        op = ir.Operation.create(
            name, results=[kind], operands=values, attributes=attributes, ip=self.before
        )
        return Expression(op.result, self.before)

    def _value(self, item: Any) -> Any:
        from iree.compiler import ir

        if isinstance(item, Expression):
            return item.value
        number = ir.FloatAttr.get(ir.F64Type.get(), item)
        kind = self.value.type
        if isinstance(kind, ir.ShapedType):
            shaped = ir.RankedTensorType.get(kind.shape, number.type)
            number = ir.DenseElementsAttr.get_splat(shaped, number)
        attributes = {"value": number}
        return ir.Operation.create(
            "arith.constant", results=[kind], attributes=attributes, ip=self.before
        ).result

    def compare(self, other: Any, predicate: int) -> Expression:
        from iree.compiler import ir

        word = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), predicate)
        return self.op("arith.cmpf", self, other, predicate=word)

    def __add__(self, other: Any) -> Expression:
        return self.op("arith.addf", self, other)

    def __mul__(self, other: Any) -> Expression:
        return self.op("arith.mulf", self, other)

    def __sub__(self, other: Any) -> Expression:
        return self.op("arith.subf", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return self.op("arith.subf", other, self)

    def __truediv__(self, other: Any) -> Expression:
        return self.op("arith.divf", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return self.op("arith.divf", other, self)

    def __neg__(self) -> Expression:
        return self.op("arith.negf", self)

    def __eq__(self, other: object) -> Any:
        return self.compare(other, 1)  # the numbers of arith's predicates: ordered eq, gt, ge, lt

    def __gt__(self, other: Any) -> Any:
        return self.compare(other, 2)

    def __ge__(self, other: Any) -> Any:
        return self.compare(other, 3)

    def __lt__(self, other: Any) -> Any:
        return self.compare(other, 4)

    __radd__, __rmul__, __hash__ = __add__, __mul__, None  # type: ignore[assignment]


def _like(kind: Any, element: Any) -> Any:
    """Return `element`, or a tensor of it with the shape of `kind`."""
    from iree.compiler import ir

    shaped = isinstance(kind, ir.ShapedType)
    return ir.RankedTensorType.get(kind.shape, element) if shaped else element


def _expand(op: Any) -> None:
    """Replace an op of the math dialect by its formula. One on a tensor with dynamic dims stays:
    there is no constant of such a type."""
    from iree.compiler import ir

    kind = op.results[0].type
    if isinstance(kind, ir.ShapedType) and not kind.has_static_shape:
        return
    before = ir.InsertionPoint(op)
    operands = [Expression(value, before) for value in op.operands]
    if op.name == "math.fpowi":
        power = ir.Operation.create(
            "arith.sitofp", results=[kind], operands=[op.operands[1]], ip=before
        )
        operands[1] = Expression(power.result, before)
    op.results[0].replace_all_uses_with(FUNCTIONS[op.name.removeprefix("math.")](*operands).value)
    op.erase()


def _unary(name: str) -> Callable[[Any], Any]:
    """Return a function for NumPy arrays and Expressions."""
    in_numpy = getattr(np, {"absf": "abs", "roundeven": "rint"}.get(name, name))

    def call(x: Any) -> Any:
        return x.op(f"math.{name}", x) if isinstance(x, Expression) else in_numpy(x)

    return call


exp, log, sqrt, absf = map(_unary, ("exp", "log", "sqrt", "absf"))
floor, roundeven = _unary("floor"), _unary("roundeven")


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return x where the condition holds, else y; one of them is no number."""
    if not isinstance(condition, Expression):
        return np.where(condition, x, y)
    value = x if isinstance(x, Expression) else y
    return value.op("arith.select", condition, x, y)


def _signed(value: Any, sign: Any) -> Any:
    """Return a value that is not negative with a sign."""
    return where(sign < 0.0, -value, value)


def _horner(x: Any, coefficients: list[float]) -> Any:
    """Return c₀ + c₁·x + c₂·x² …"""
    value = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        value = (value + coefficient) * x
    return value + coefficients[0]


# Kahan's forms: the rounding of 1 + x is the same in numerator and denominator.
def _expm1(x: Any) -> Any:
    u = exp(x)
    below = u - 1.0
    value = where(below == -1.0, -1.0, where(u == 1.0, x, below * x / log(u)))
    return where(u == math.inf, u, value)


def _log1p(x: Any) -> Any:
    u = x + 1.0
    return where(u == math.inf, u, where(u == 1.0, x, log(u) * x / (u - 1.0)))


def _tanh(x: Any) -> Any:
    t = _expm1(absf(x) * -2.0)
    return _signed(-t / (t + 2.0), x)


_FAR = 26.0  # erfc is below 1e-295 beyond


def _mapped(x: Any) -> Any:
    """Map [0, _FAR] to [1, -1], densest at 0."""
    low = 1 / (_FAR + 2)
    return (1.0 / (x + 2.0) - low) * (2 / (0.5 - low)) - 1.0


@functools.cache
def _scaled_erfc() -> list[float]:
    """Return Chebyshev coefficients of exp(x²)·erfc(x), in `_mapped`."""
    low = 1 / (_FAR + 2)
    points = chebyshev.chebpts1(40)
    xs = 1 / (low + (points + 1) * (0.5 - low) / 2) - 2
    values = [math.exp(x * x) * math.erfc(x) for x in xs]
    return [float(c) for c in chebyshev.chebfit(points, values, 30)]


def _erfc_of_size(size: Any) -> Any:
    u = _mapped(where(size < _FAR, size, _FAR))
    first, *rest = _scaled_erfc()
    value, last = u * 0.0, u * 0.0
    for coefficient in reversed(rest):  # Clenshaw's recurrence
        value, last = u * 2.0 * value - last + coefficient, value
    return exp(-(size * size)) * (u * value - last + first)


def _erfc(x: Any) -> Any:
    tail = _erfc_of_size(absf(x))
    return where(x < 0.0, 2.0 - tail, tail)


def _erf(x: Any) -> Any:
    size = absf(x)
    series = [
        2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(10)
    ]
    return where(size < 0.25, x * _horner(x * x, series), _signed(1.0 - _erfc_of_size(size), x))


def _trigonometric(shift: float) -> Callable[[Any], Any]:
    """Return sin(x + shift·π/2). Exact to an ulp or two up to |x| = 10⁶."""
    # π/2 in three parts, of which two have 33 bits: their products with a quadrant are exact.
    parts = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)

    def call(x: Any) -> Any:
        quadrant = roundeven(x * (2 / math.pi))
        r = x
        for part in parts:
            r = r - quadrant * part
        quadrant = quadrant + shift
        z = r * r
        sine = r * _horner(z, [(-1) ** n / math.factorial(2 * n + 1) for n in range(9)])
        cosine = _horner(z, [(-1) ** n / math.factorial(2 * n) for n in range(10)])
        half = floor(quadrant * 0.5)
        odd = (quadrant - half * 2.0) > 0.5
        negative = (half - floor(half * 0.5) * 2.0) > 0.5
        value = where(odd, cosine, sine)
        return where(negative, -value, value)

    return call


_sin, _cos = _trigonometric(0.0), _trigonometric(1.0)


def _atan(x: Any) -> Any:
    size = absf(x)
    large = size > 1.0
    y = where(large, 1.0 / size, size)
    for _ in range(2):  # half the angle twice: below π/16
        y = y / (sqrt(y * y + 1.0) + 1.0)
    z = y * y
    angle = y * _horner(z, [(-1) ** n / (2 * n + 1) for n in range(12)]) * 4.0
    return _signed(where(large, math.pi / 2 - angle, angle), x)


def _atan2(y: Any, x: Any) -> Any:
    ratio = absf(y) / absf(x)
    angle = where(y == 0.0, y * 0.0, _atan(ratio))
    return _signed(where(x < 0.0, math.pi - angle, angle), y)


def _pow(x: Any, y: Any) -> Any:
    size = exp(y * log(absf(x)))
    odd = (y * 0.5 - floor(y * 0.5)) == 0.5
    negative = where(odd, -size, where(floor(y) == y, size, size * math.nan))
    return where(y == 0.0, 1.0, where(x < 0.0, negative, size))


# By the name of their op in the math dialect.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "expm1": _expm1,
    "log1p": _log1p,
    "log2": lambda x: log(x) * (1 / math.log(2)),
    "log10": lambda x: log(x) * (1 / math.log(10)),
    "tanh": _tanh,
    "erf": _erf,
    "erfc": _erfc,
    "sin": _sin,
    "cos": _cos,
    "tan": lambda x: _sin(x) / _cos(x),
    "atan": _atan,
    "atan2": _atan2,
    "asin": lambda x: _atan(x / sqrt((1.0 - x) * (x + 1.0))),
    "acos": lambda x: _atan(sqrt((1.0 - x) / (x + 1.0))) * 2.0,
    "cbrt": lambda x: _signed(exp(log(absf(x)) * (1 / 3)), x),
    "powf": _pow,
    "fpowi": _pow,
}
