"""OwnOp: an op made of plain functions, from a kernel file or a Python call.

    def inputs(rows, cols, dtype="f32"):        # parameters of the op, with their defaults
        return {"x": ((rows, cols), dtype)}     # shape and dtype, or an array of values

    def reference(x):                           # float64 in, the right answer out
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

The output is called `out`; its shape is that of the reference's answer and its dtype that of the
first input, unless `output(...)` returns another shape and dtype.
"""

from __future__ import annotations

import ctypes
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import BY_TORCH_NAME, DTYPES, dtype, foreign_dtype
from kernelmark.core.errors import KernelmarkError, ProblemError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import prefixed
from kernelmark.core.tensor import GivenValues, TensorSpec, Tolerance, ValuesOnDevice
from kernelmark.core.units import join_commas, plain_number
from kernelmark.numerics.floats import storage
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import input_spec
from kernelmark.ops.base import Op, Parameter, Parameters, Reference

OUTPUT = "out"
# Outputs up to this size are checked as a whole, larger ones at this many positions.
CHECKED = 1 << 16
# Allowed error of a correct kernel in roundings, relative to the largest value in its row: some to
# the output's dtype (operands, one intermediate, the result), many in the accumulator, whose order
# of summation is unknown.
OUTPUT_ROUNDINGS, ACCUMULATOR_ROUNDINGS = 4, 256

_PAIR = "a shape and a dtype"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The functions that define an op. `inputs` maps parameters to tensors; `reference` and the
    others take any of the inputs and parameters by name.

    With `rtol` or `atol`, an output may be off by `atol + rtol·|reference|`, else by a default for
    its dtype. `convert` converts NumPy arrays to the type that `reference` takes, if it is another.
    """

    inputs: Callable[..., Mapping[str, Any]]
    reference: Callable[..., Any]
    output: Callable[..., Any] | None = None
    flops: Callable[..., int] | None = None
    nbytes: Callable[..., int] | None = None
    rtol: float | None = None
    atol: float | None = None
    convert: Callable[[NDArray[Any]], Any] | None = None


class OwnOp(Op):
    """An op whose parameters are those of the function `inputs`."""

    summary = "defined by a kernel file"

    def __init__(self, name: str, definition: Definition, *, path: str = "") -> None:
        self.name = name
        self.path = path  # the file that defines it
        self._definition = definition
        self._signature = inspect.signature(definition.inputs)
        self.parameters = {
            parameter_name: _help(parameter)
            for parameter_name, parameter in self._declared_parameters().items()
        }
        self._tensors: dict[str, tuple[TensorSpec, ...]] = {}

    def _declared_parameters(self) -> Mapping[str, inspect.Parameter]:
        parameters = self._signature.parameters
        for name, parameter in parameters.items():
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                raise self._error(
                    f"inputs(*{name}) does not name its parameters",
                    hint='for example: def inputs(rows, cols, dtype="f32")',
                )
        return parameters

    def problem(self, /, **parameters: Parameter) -> Problem:
        read = Parameters(self, parameters)
        kinds: tuple[dict[str, Any], ...] = ({}, {}, {})
        for name, parameter in self._signature.parameters.items():
            value = parameters.get(name, parameter.default)
            if value is parameter.empty:
                read.refuse(f"{name} is missing", f"give {name}=… (-a NAME=VALUE)")
            if isinstance(parameter.default, float) and not isinstance(value, str):
                value = read.number(name, parameter.default)
            if isinstance(value, int) and not isinstance(value, bool):
                kinds[0][name] = read.dim(name, value, least=0)
            else:
                kinds[1 if value in DTYPES else 2][name] = value
        problem = Problem(op=self.name, dims=kinds[0], dtypes=kinds[1], options=kinds[2])
        return self.checked_sizes(problem)

    def flops(self, problem: Problem) -> int:
        return self._count(self._definition.flops, "flops", problem, 0)

    def bytes(self, problem: Problem) -> int:
        return self._count(self._definition.nbytes, "nbytes", problem, super().bytes(problem))

    def _count(
        self, function: Callable[..., int] | None, what: str, problem: Problem, default: int
    ) -> int:
        if function is None:
            return default
        count = plain_number(self._call(function, what, _parameters(problem)))
        if (
            isinstance(count, bool)
            or not isinstance(count, int | float)
            or not 0 <= count < math.inf
        ):
            raise self._returned(what, repr(count), "a count")
        return int(count)

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        if problem.key not in self._tensors:
            inputs = self._call(self._definition.inputs, "inputs", _parameters(problem))
            if not isinstance(inputs, Mapping) or not inputs:
                raise self._returned(
                    "inputs",
                    type(inputs).__name__,
                    "a dict of tensors",
                    hint='for example: return {"x": ((rows, cols), dtype)}',
                )
            specs = tuple(self._spec(str(name), value) for name, value in inputs.items())
            self._tensors[problem.key] = (*specs, self._output(problem, specs))
        return self._tensors[problem.key]

    def _spec(self, name: str, value: Any) -> TensorSpec:
        if name == OUTPUT:
            raise self._error(f"an input cannot be called {name!r}")
        if not isinstance(value, tuple | list):
            return given_spec(name, value)
        try:
            shape, dtype_name, *bounds = value
            spec = input_spec(name, _shape(shape), dtype(str(dtype_name)).name)
            if not bounds:
                return spec
            low, high = map(float, bounds)
        except (TypeError, ValueError):
            raise self._error(
                f"{name}={value!r} is not {_PAIR}",
                hint='for example: {"x": ((rows, cols), "f32")}, with bounds: (shape, dtype, 0, 9)',
            ) from None
        return TensorSpec(name=name, shape=spec.shape, dtype=spec.dtype, low=low, high=high)

    def _output(self, problem: Problem, specs: tuple[TensorSpec, ...]) -> TensorSpec:
        if self._definition.output is None:
            shape: Any = self._answer(problem, specs, Inputs(specs, 0, 0)).shape
            dtype_name = specs[0].dtype
        else:
            output = self._call(self._definition.output, "output", _parameters(problem))
            try:
                shape, dtype_name = output
                shape = _shape(shape)
            except (TypeError, ValueError):
                raise self._returned(
                    "output", repr(output), _PAIR, hint="for example: return (rows, cols), dtype"
                ) from None
        kind = dtype(str(dtype_name)).name
        return TensorSpec(name=OUTPUT, shape=shape, dtype=kind, role="out")

    def reference(self, problem: Problem, inputs: Inputs, where: NDArray[np.int64]) -> Reference:
        specs = self.tensors(problem)
        value = self._answer(problem, specs[:-1], inputs)
        if tuple(value.shape) != specs[-1].shape:
            raise self._error(
                f"the reference's shape is ({join_commas(value.shape)}), the output's"
                f" ({join_commas(specs[-1].shape)})"
            )
        return self._picked(value, where)

    def _picked(self, value: Any, where: NDArray[np.int64]) -> Reference:
        """Return the values at flat positions, and as magnitude the largest in the row of each."""
        picked = value.ravel()[where]
        if not value.ndim or not picked.size:
            return Reference(value=picked, magnitude=np.abs(picked))
        # By reductions: absolute values would take an array as large as the output.
        rows = np.maximum(value.max(axis=-1), -value.min(axis=-1)).ravel()
        return Reference(value=picked, magnitude=rows[where // value.shape[-1]])

    def _answer(self, problem: Problem, specs: tuple[TensorSpec, ...], inputs: Inputs) -> Any:
        """Return the reference's result for whole inputs."""
        tensors: dict[str, Any] = {spec.name: self._upcast(spec, inputs) for spec in specs}
        if self._definition.convert is not None:
            tensors = {name: self._definition.convert(value) for name, value in tensors.items()}
        arguments = _parameters(problem) | tensors
        answer = self._call(self._definition.reference, "reference", arguments)
        try:
            return np.asarray(answer, np.float64)
        except (TypeError, ValueError):
            raise self._returned(
                "reference",
                type(answer).__name__,
                "one array",
                hint="an op has one output; return it from reference",
            ) from None

    def _upcast(self, spec: TensorSpec, inputs: Inputs) -> Any:
        """Return a whole input as references take it: floats as float64, integers as int64."""
        whole = inputs.whole(spec.name)
        return whole.astype(np.int64) if spec.type.kind == "int" else whole

    def _call(self, function: Callable[..., Any], what: str, arguments: Mapping[str, Any]) -> Any:
        """Call a function of the definition with the parameters of `arguments` that it takes."""
        try:
            return function(**_accepted_arguments(function, arguments))
        except KernelmarkError:
            raise
        except Exception as error:
            raise self._error(f"{what} failed: {type(error).__name__}: {error}") from error

    def _returned(
        self, function: str, returned: str, expected: str, hint: str | None = None
    ) -> ProblemError:
        return self._error(f"{function} returned {returned}, not {expected}", hint)

    def _error(self, cause: str, hint: str | None = None) -> ProblemError:
        return ProblemError(prefixed(cause, f"{self.name}: "), hint=hint)

    def tolerance(self, problem: Problem) -> Tolerance:
        definition, out = self._definition, self.output(problem).type
        if definition.rtol is not None or definition.atol is not None:
            return Tolerance(
                per_magnitude=0.0,
                per_value=definition.rtol or 0.0,
                absolute=definition.atol or 0.0,
                why="given with the op",
            )
        if out.kind == "int":
            return Tolerance(per_magnitude=0.0, per_value=0.0, absolute=0.0, why="integers")
        accumulator = dtype("f64" if out.name == "f64" else "f32")
        allowed = OUTPUT_ROUNDINGS * out.unit_roundoff
        allowed += ACCUMULATOR_ROUNDINGS * accumulator.unit_roundoff
        why = (
            f"{OUTPUT_ROUNDINGS} roundings to {out} and {ACCUMULATOR_ROUNDINGS} to {accumulator} "
            "of the largest value in the row"
        )
        return Tolerance(per_magnitude=allowed, per_value=0.0, absolute=out.smallest_step, why=why)

    def positions(self, problem: Problem, seed: int) -> NDArray[np.int64]:
        count = self.output(problem).count
        if count <= CHECKED:
            return np.arange(count)
        # One random position in each of equal stretches: sorted and unique, and no stretch of the
        # output is left out.
        edges = np.linspace(0, count, CHECKED + 1).astype(np.int64)
        drawn = np.random.default_rng(seed).random(CHECKED) * np.diff(edges)
        return edges[:-1] + drawn.astype(np.int64)

    def scattered(self, problem: Problem, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.zeros(0, np.int64)  # `positions` are already random and many more


class TorchValues(ValuesOnDevice):
    """A copy of a torch tensor's values on a device."""

    def __init__(self, values: Any, device: Any) -> None:
        self.tensor = values.detach().to(device, copy=True).contiguous().reshape(-1)
        self.size: int = self.tensor.numel()
        self.tensor[:1].cpu()  # synchronise: the timed stream is not ordered after torch's

    @property
    def address(self) -> int:
        return int(self.tensor.data_ptr())

    def download(self) -> NDArray[np.generic]:
        return _bits(self.tensor, array_dtype(self.tensor) or "")

    def free(self) -> None:
        self.tensor = None


def given_spec(
    name: str, values: Any, *, rotates: bool | None = None, device: Any = None
) -> TensorSpec:
    """Return an input that holds a copy of the values of a NumPy array or torch tensor, on the
    torch device `device` or on the host. By default floats are rotated at each rewrite, and
    integers, which may be indices, are kept."""
    dtype_name = _known_dtype(name, values)
    if rotates is None:
        rotates = dtype(dtype_name).kind == "float"
    on_host = device is None
    source: Any = _bits(values, dtype_name).ravel() if on_host else TorchValues(values, device)
    return TensorSpec(
        name=name,
        shape=tuple(values.shape),
        dtype=dtype_name,
        given=GivenValues(source, rotates=rotates),
    )


def array_dtype(values: Any) -> str | None:
    """Return the dtype of a NumPy array or torch tensor; None for other objects or dtypes."""
    return foreign_dtype(getattr(values, "dtype", None)) if hasattr(values, "shape") else None


def _bits(values: Any, dtype_name: str) -> NDArray[np.generic]:
    """Return an array's bit patterns in the generator's storage type."""
    if hasattr(values, "get"):  # CuPy's
        values = values.get()
    if not isinstance(values, np.ndarray | np.generic):
        values = _torch_bits(values.detach(), storage(dtype_name))
    return np.ascontiguousarray(values).view(storage(dtype_name))


def _known_dtype(name: str, values: Any) -> str:
    dtype_name = array_dtype(values)
    if dtype_name is None:
        kind = getattr(values, "dtype", type(values).__name__)
        raise ProblemError(
            f"input {name}: arrays of {kind!s} cannot be checked",
            hint=f"dtypes of arrays: {', '.join(BY_TORCH_NAME)}",
        )
    return dtype_name


def _torch_bits(values: Any, kind: np.dtype[Any]) -> NDArray[np.generic]:
    """Return a copy of a tensor's bytes, as NumPy lacks some of torch's dtypes."""
    there = values.contiguous()
    there = there.clone() if there.device.type == "cpu" else there.cpu()
    raw = (ctypes.c_uint8 * (there.numel() * there.element_size())).from_address(there.data_ptr())
    raw.tensor = there  # keeps the memory as long as the array
    return np.frombuffer(memoryview(raw), kind).reshape(tuple(there.shape))


def _shape(value: Any) -> tuple[int, ...]:
    shape = (value,) if isinstance(value, int) else tuple(value)
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError
    return shape


def _parameters(problem: Problem) -> dict[str, Any]:
    return {**problem.dims, **problem.dtypes, **problem.options}


def _accepted_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: arguments[name] for name in parameters if name in arguments}


def _help(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return "required"
    return f"default: {parameter.default}"
