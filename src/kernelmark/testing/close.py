"""assert_close: kernelmark's tolerances and float64 references, for the tests of other projects.

    from kernelmark.testing import assert_close

    assert_close(out, op="gemm", inputs=[a, b], tb="t")          # an op of kernelmark
    assert_close(out, reference=softmax, inputs=[x])             # any other, by its reference

How far a correct kernel may be from float64 follows from the dtypes, the lengths of its sums and
the values; nobody chooses a number. Arrays are those of NumPy, torch or CuPy.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmark import ops
from kernelmark.core.dtype import dtype
from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec, Tolerance
from kernelmark.core.units import join_and, join_commas
from kernelmark.measure.check import SampledErrors, check_projection, compare
from kernelmark.numerics.floats import decode
from kernelmark.numerics.generate import Inputs
from kernelmark.numerics.project import project
from kernelmark.ops._checks import FALSE_ALARM, POSITIONS, any_values, rng_for
from kernelmark.ops._own import OUTPUT, Definition, OwnOp, given_spec
from kernelmark.ops.base import Op, Parameter, Reference, TensorHelp

Ints = NDArray[np.int64]
Arrays = Mapping[str, TensorSpec]  # with their values

# Up to this many operations every element of the output is computed in float64, which takes one or
# two seconds on a core; beyond it, sampled elements, and a projection if the op has one.
EVERY = 10_000_000_000
# Samples of an op's `positions` in a larger output.
_SAMPLES = 16
# Elements that are not finite and compared in addition.
_ODD = 1 << 10
# Wrong elements that are shown.
_SHOWN = 3
_NAME = re.compile(r"[a-z]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeness:
    """How close an output is to float64: the `worst` error as a fraction of the error allowed, at
    most 1, and how many of its `elements` were compared one by one. With `rows`, so many random
    sums over all elements were compared, too."""

    worst: float
    compared: int
    elements: int
    rows: int = 0


def assert_close(
    out: Any,
    *,
    inputs: Sequence[Any] | Mapping[str, Any],
    op: str = "",
    reference: Callable[..., Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    **parameters: Parameter,
) -> Closeness:
    """Raise AssertionError if `out` is farther from float64 than a correct kernel can be.

    out, inputs: arrays of NumPy, torch or CuPy; inputs in the op's order, or by name.
    op: an op of kernelmark (`kmark list ops`). Sizes and dtypes follow from the arrays; other
        parameters, such as ta="t" or causal=True, are given by name.
    reference: for any other op, a function of the inputs as float64 NumPy arrays (integers as
        int64).
    rtol, atol: with `reference`, the error allowed, atol + rtol·|reference|, instead of one that
        follows from the dtype.
    seed: of the elements that are compared if there are too many.
    """
    __tracebackhide__ = True  # pytest then shows the test's line
    for name, bound in (("rtol", rtol), ("atol", atol)):
        if bound is not None and not 0 <= bound < math.inf:
            raise UsageError(f"{name}={bound} is not a finite number of at least 0")
    if bool(op) == (reference is not None):
        raise UsageError(
            "assert_close takes an op or a reference",
            hint='assert_close(out, op="gemm", inputs=[a, b])',
        )
    if reference is None:
        for name, value in (("rtol", rtol), ("atol", atol)):
            if value is not None:
                raise UsageError(
                    f"{name}={value} is not possible with op={op}",
                    hint="the error allowed follows from the dtypes, the sizes and the values",
                )
        known = ops.registry.get(op)
        problem, arrays = _fitted(known, _named(known, inputs), out, parameters)
    else:
        if parameters:
            raise UsageError(
                f"unknown parameter {next(iter(parameters))!r}",
                hint="a reference takes only its inputs: bind others with functools.partial",
            )
        known, arrays = _own_op(reference, inputs, out, rtol, atol)
        problem = known.problem()
    return _compared(known, problem, arrays, seed)


def _own_op(
    reference: Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    out: Any,
    rtol: float | None,
    atol: float | None,
) -> tuple[Op, Arrays]:
    by_name = isinstance(inputs, Mapping)
    named = dict(inputs) if isinstance(inputs, Mapping) else _numbered(inputs)

    def call(**tensors: Any) -> Any:
        return reference(**tensors) if by_name else reference(*(tensors[name] for name in named))

    made = given_spec(OUTPUT, out, rotates=False)
    name = getattr(reference, "__name__", "")
    definition = Definition(
        inputs=lambda: named,
        reference=call,
        output=lambda: (made.shape, made.dtype),
        rtol=rtol,
        atol=atol,
    )
    arrays = {name: given_spec(name, value, rotates=False) for name, value in named.items()}
    return OwnOp(name if _NAME.fullmatch(name) else "reference", definition), {
        **arrays,
        OUTPUT: made,
    }


def _numbered(inputs: Sequence[Any]) -> dict[str, Any]:
    return {f"input{number}": value for number, value in enumerate(inputs)}


def _named(op: Op, inputs: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs by name; a sequence has the op's order."""
    names = list(dict.fromkeys(line.name for line in op.tensor_help if line.role == "in"))
    if isinstance(inputs, Mapping):
        if unknown := [name for name in inputs if name not in names]:
            raise UsageError(
                f"{op.name} has no input {unknown[0]!r}", hint=f"its inputs: {', '.join(names)}"
            )
        return dict(inputs)
    if len(inputs) > len(names):
        raise UsageError(
            f"{op.name} has {len(names)} inputs, not {len(inputs)}",
            hint=f"in this order: {', '.join(names)}",
        )
    return dict(zip(names, inputs, strict=False))


def _fitted(
    op: Op, inputs: Mapping[str, Any], out: Any, parameters: Mapping[str, Parameter]
) -> tuple[Problem, Arrays]:
    """Return the problem whose tensors have these shapes and dtypes, and the arrays by name."""
    output = op.tensor_help[-1].name
    arrays = {
        name: given_spec(name, value, rotates=False)
        for name, value in {**inputs, output: out}.items()
    }
    reason: ProblemError | None = None
    for guess in _guesses(op, arrays):
        try:
            problem = op.problem(**{**guess, **parameters})
        except ProblemError as error:
            reason = reason or error
            continue
        if not (misfit := _misfit(op, problem, arrays)):
            return problem, arrays
        reason = reason or _refused(op, misfit)
    shapes = ", ".join(f"{name} ({join_commas(array.shape)})" for name, array in arrays.items())
    raise reason or _refused(op, f"shapes do not fit: {shapes}")


def _refused(op: Op, reason: str) -> ProblemError:
    return ProblemError(f"{op.name}: {reason}", hint=f"`kmark list ops -o {op.name}` has them all")


def _guesses(op: Op, arrays: Arrays) -> Iterator[dict[str, Parameter]]:
    """Yield the sizes and dtypes that the arrays have if the op's tensors are laid out in one of
    the ways that its help lists."""
    lines = [
        [line for line in op.tensor_help if line.name == name and _sizes(line, spec) is not None]
        for name, spec in arrays.items()
    ]
    for chosen in itertools.product(*lines):
        guess: dict[str, Parameter] = {}
        fits = True
        for line, spec in zip(chosen, arrays.values(), strict=True):
            found = dict[str, Parameter](_sizes(line, spec) or {})
            if line.dtype in op.parameters:
                found[line.dtype] = spec.dtype
            fits = fits and all(guess.get(name, value) == value for name, value in found.items())
            guess |= found
        if fits:
            yield guess


def _sizes(line: TensorHelp, spec: TensorSpec) -> dict[str, int] | None:
    """Return the dims that are sizes of a tensor; None if it has other axes than the help says."""
    depth, factors = 0, [""]
    for letter in line.shape:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "×" and not depth:
            factors.append("")
        else:
            factors[-1] += letter
    if len(factors) != len(spec.shape):
        return None
    sizes: dict[str, int] = {}
    for factor, size in zip(factors, spec.shape, strict=True):
        if _NAME.fullmatch(factor) and sizes.setdefault(factor, size) != size:
            return None
    return sizes


def _misfit(op: Op, problem: Problem, arrays: Arrays) -> str:
    """Return what is different in the arrays, "" if nothing."""
    wanted = {spec.name: spec for spec in op.tensors(problem)}
    if missing := [name for name in wanted if name not in arrays]:
        return f"{join_and(missing)} missing"
    for name, array in arrays.items():
        if name not in wanted:
            when = " or ".join(line.when for line in op.tensor_help if line.name == name)
            return f"an input {name} exists with {when} only"
        if wanted[name].shape != array.shape:
            shapes = (join_commas(shape) for shape in (array.shape, wanted[name].shape))
            return "{} is ({}), not ({})".format(name, *shapes)
        if wanted[name].dtype != array.dtype:
            return f"{name} is {array.dtype}, not {wanted[name].dtype}"
    return ""


def _compared(op: Op, problem: Problem, arrays: Arrays, seed: int) -> Closeness:
    __tracebackhide__ = True
    tensors = {name: (_bits(spec), spec.dtype) for name, spec in arrays.items()}
    out = op.output(problem)
    bits, _ = tensors[out.name]
    got = decode(bits, out.dtype)
    inputs = Inputs(tuple(arrays.values()), 0, 0)
    dtypes = [spec.dtype for spec in op.tensors(problem) if spec.role == "in"]
    acc = problem.dtypes.get("acc", "f32")
    with np.errstate(invalid="ignore"), any_values(dtypes, acc, _largest(tensors)):
        tolerance = op.tolerance(problem)
        where = _positions(op, problem, got, seed)
        reference = op.reference(problem, inputs, where)
    errors = _errors(op, problem, reference, got[where], tolerance)
    if not (errors.ratio <= 1.0).all():
        raise AssertionError(_message(problem, out, where, got, errors, tolerance))
    rows, worst = 0, float(errors.ratio.max(initial=0.0))
    contraction = op.contraction(problem)
    if where.size < out.count and contraction is not None and np.isfinite(got).all():
        signs = 2.0 * rng_for(seed).integers(0, 2, contraction.cols, np.int8) - 1.0
        projection = project(contraction, tensors, signs)
        # Its magnitudes are sums of absolute terms, of which the error is this share at most.
        terms = op.reference(problem, inputs, where).magnitude
        share = float((reference.magnitude[terms > 0] / terms[terms > 0]).max(initial=0.0))
        narrower = replace(tolerance, per_magnitude=tolerance.per_magnitude * share)
        check = check_projection(contraction, projection, narrower, out.type)
        if check.bad:
            raise AssertionError(
                f"{problem.key}: {check.bad} of {check.rows} {contraction.unit}s of {out.name} are"
                f" wrong: a random sum over {contraction.unit} {join_commas(check.where)} is"
                f" {check.ratio:.3g} times as far from float64 as allowed\n  {tolerance.why}"
            )
        rows, worst = check.rows, max(worst, check.ratio)
    return Closeness(worst=worst, compared=where.size, elements=out.count, rows=rows)


def _bits(spec: TensorSpec) -> NDArray[np.generic]:
    assert spec.given is not None
    return spec.given.bits


def _largest(tensors: Mapping[str, tuple[NDArray[np.generic], str]]) -> dict[str, float]:
    decoded = {name: np.abs(decode(bits, kind)) for name, (bits, kind) in tensors.items()}
    return {
        name: float(values[np.isfinite(values)].max(initial=0.0))
        for name, values in decoded.items()
    }


def _positions(op: Op, problem: Problem, got: NDArray[np.float64], seed: int) -> Ints:
    """Return the elements to compare: all, or those that a measurement checks, random ones, and
    some that are not finite."""
    # The reference of a function computes the whole output anyway.
    if isinstance(op, OwnOp) or op.flops(problem) <= EVERY:
        return np.arange(got.size)
    rng = rng_for(seed)
    chosen = [op.positions(problem, int(rng.integers(1 << 32))) for _ in range(_SAMPLES)]
    odd = np.flatnonzero(~np.isfinite(got))[:_ODD]
    return np.unique(np.concatenate([*chosen, op.scattered(problem, rng), odd]))


def _errors(
    op: Op, problem: Problem, reference: Reference, got: NDArray[np.float64], tolerance: Tolerance
) -> SampledErrors:
    # A tolerance is for POSITIONS elements that are compared at once; its tail is exponential.
    more = math.log(2 * max(got.size, POSITIONS) / FALSE_ALARM)
    more /= math.log(2 * POSITIONS / FALSE_ALARM)
    wider = replace(tolerance, per_magnitude=tolerance.per_magnitude * more)
    return compare(got, reference, wider, dtype(op.output(problem).dtype))


def _message(
    problem: Problem,
    out: TensorSpec,
    where: Ints,
    got: NDArray[np.float64],
    errors: SampledErrors,
    tolerance: Tolerance,
) -> str:
    bad = np.flatnonzero(~(errors.ratio <= 1.0))
    worst = bad[np.argsort(-errors.ratio[bad], kind="stable")][:_SHOWN]
    lines = [f"{problem.key}: {bad.size} of {where.size} elements of {out.name} are wrong"]
    for at in worst:
        index = np.unravel_index(int(where[at]), out.shape)
        lines.append(
            f"  {out.name}[{join_commas(int(i) for i in index)}] = {got[where[at]]:.8g}, expected"
            f" {errors.expected[at]:.8g} ± {errors.allowed[at]:.2g}"
        )
    if bad.size > 1:
        axes = np.unravel_index(where[bad], out.shape)
        box = (f"{axis.min()}:{axis.max() + 1}" for axis in axes)
        lines.append(f"  all are in {out.name}[{', '.join(box)}] of ({join_commas(out.shape)})")
    return "\n".join([*lines, f"  {tolerance.why}"])
