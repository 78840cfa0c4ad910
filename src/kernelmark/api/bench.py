"""bench: measure any Python function that launches work, in this process.

    km.bench(softmax, x, ref=lambda x: torch.softmax(x, -1))
    km.compare_kernels({"mine": softmax, "torch": torch_softmax}, inputs=[x], ref=reference)

A function returns its result, which may be several arrays of one dtype, or writes it into its last
array argument and returns None or that array. Inputs are NumPy arrays, CuPy arrays or torch
tensors. Enough copies are made to keep the cache cold, with their elements rotated, so that
returning a result cached from an earlier call fails the check.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernelmark import backends
from kernelmark.api.results import Results, check_name, load_timing
from kernelmark.backends._file import torch_tensor, view
from kernelmark.backends.base import Kernel
from kernelmark.core.dtype import TORCH_NAMES
from kernelmark.core.environment import Environment
from kernelmark.core.errors import KernelmarkError, ProblemError, UsageError
from kernelmark.core.problem import Option, Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, KernelInfo, Result, ResultSet, Run, RunState, Status
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import Timing
from kernelmark.core.units import join_and, join_commas, plain_number
from kernelmark.devices.base import ArgumentSet, Device, Stream, Tensor
from kernelmark.devices.cpu import note_foreign_code
from kernelmark.host.processes import existing_objects_frozen
from kernelmark.measure.protocol import measure
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._own import OUTPUT, Definition, OwnOp, TorchValues, array_dtype, given_spec
from kernelmark.ops.base import Reference
from kernelmark.runners.capture import environment
from kernelmark.runners.events import WAITS, Waiting
from kernelmark.runners.execute import explain, failure, result_of
from kernelmark.runners.locks import hold_lock
from kernelmark.runners.targets import find
from kernelmark.stores import new_run_id, opened

if TYPE_CHECKING:
    from kernelmark.stores import StoreArgument

Function = Callable[..., Any]
T = TypeVar("T")

# For interactive use: half the timed seconds of the preset `default`, and twice its interval. The
# warm-up is the same, so that the device is in the state in which `run` measures.
TIMING = Timing(max_allocations=10, max_s=1.0, target_rel_ci=0.02)
# On a GPU blocks of 30 ms are as precise as longer ones. Triton's do_bench takes 0.1 s; as much
# again goes to blocks with other allocations. A long kernel gets the seconds that a few samples in
# each block need.
GPU_TIMING = Timing(max_allocations=5, max_s=0.25, target_rel_ci=0.03)
_MIN_CALLS = 40  # calls that must fit into the timed seconds on a GPU
# Two calls with equal inputs may differ by this fraction of the largest value: atomic sums in f16
# differ by roundings, of 1e-3 each.
_REPEATS_WITHIN = 0.02
_KNOWN_DTYPES = f"convert it: dtypes that can be checked are {', '.join(TORCH_NAMES.values())}"


def bench(
    fn: Function, *inputs: Any, ref: Function | None = None, name: str = "", **options: Any
) -> Results:
    """Measure `fn(*inputs)` and check its result against `ref(*inputs)`.

        print(km.bench(softmax, x, ref=lambda x: torch.softmax(x, -1)))

    `name` is the kernel's name (default: the name of the function). All other options, such as
    `flops`, `rtol`, `timing` and `store`, are those of `compare_kernels`.
    """
    names = set(inspect.signature(compare_kernels).parameters) - {"kernels", "inputs"}
    if unknown := sorted(set(options) - names):
        raise UsageError(
            f"unknown option {unknown[0]!r} of km.bench",
            hint=f"its options: {', '.join(sorted(names))}",
        )
    if not callable(fn):
        raise UsageError(
            _wrong_type("fn", fn, "a function"),
            hint="km.bench(f, x, y, ref=reference): the function comes first",
        )
    name = name or getattr(fn, "__name__", "") or type(fn).__name__
    return compare_kernels({name: fn}, inputs=inputs, ref=ref, **options)


def compare_kernels(
    kernels: Mapping[str, Function],
    *,
    inputs: Sequence[Any],
    ref: Function | None = None,
    flops: int = 0,
    nbytes: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    timing: str | Timing | None = None,
    rotate: bool = True,
    op: str = "",
    store: StoreArgument = None,
    label: str = "",
) -> Results:
    """Measure several functions on the same inputs, and check each against `ref`.

    kernels: functions by name.
    inputs: the arguments of every function.
    ref: reference function. It gets the arrays upcast to float64 (integers to int64), in the same
        library, and all other arguments unchanged. Without it, results carry a warning.
    flops, nbytes: work and memory traffic of one call, for rates and percentages of the roofs in
        `store`, or else in the default store (nbytes by default: each input and output once).
    rtol, atol: an element may differ by `atol + rtol·|ref|` (default: derived from the dtypes).
    timing: a preset, a TOML file or a `Timing`; "default" is that of `run`. By default, at most
        1 s, until the interval is within ±2 %; on a GPU 0.25 s (more for kernels of many
        milliseconds) and ±3 %.
    rotate: False keeps float elements in position, for inputs such as masks.
    op: name of the op (default: the name of `ref`, or of the first kernel).
    store: where the run is saved: True for the user's store, a path, a URL or an open store
        (default: not saved).
    label: label of the run.
    """
    _check_types(kernels, inputs, ref)
    _check_count("flops", flops, "floating-point operations of one call: flops=2 * m * n * k")
    _check_count("nbytes", nbytes, "bytes that one call reads and writes: nbytes=2 * x.nbytes")
    check_name(label)
    with opened(store) as target:
        # git and the driver are queried while the first call loads libraries and kernels.
        form, device_name = _form_and_device(inputs)
        wait_for_environment = _in_background(partial(_environment, device_name, form))
        first, call = _first_call(kernels, inputs, rotate=rotate)
        here = wait_for_environment()  # before timing, which the thread would disturb
        named = op or _word(getattr(ref, "__name__", "")) or _word(next(iter(kernels)))
        how = call.timing(first) if timing is None else load_timing(timing)
        definition = Definition(
            inputs=_no_parameters,
            reference=ref or _no_reference,
            flops=lambda: flops,
            nbytes=None if nbytes is None else lambda: nbytes,
            rtol=rtol,
            atol=atol,
        )
        call_op = _CallOp(named or "call", definition, call, checked=ref is not None)
        kind, info = find(call.device)
        run = Run(
            id=new_run_id(),
            started=time.time(),
            environment=here,
            label=label,
            cases=len(kernels),
            state=RunState.DONE,
        )
        results = []
        on_wait = partial(_report_wait, info.name)
        with hold_lock(info, on_wait), call.on_device(info.index), existing_objects_frozen():
            device = kind.open(info.index, how.threads)
            try:
                call.share_stream(device)
                for called, fn in kernels.items():
                    case = Case(problem=call_op.requested, backend=called, timing=how)
                    results.append(_measured(fn, case, call_op, device))
            finally:
                device.close()
        run = dataclasses.replace(run, finished=time.time())
        result_set = ResultSet(run=run, results=tuple(results))
        if target is not None or flops or nbytes:
            from kernelmark.api.roofs import machine_roofs

            roofs = machine_roofs(target, device=info.name)
            result_set = dataclasses.replace(result_set, roofs=roofs)
        if target is not None:
            target.add_result_set(result_set)
        return Results(result_set, notes=call.notes)


def _check_types(kernels: object, inputs: object, ref: object) -> None:
    """Raise UsageError, with a hint, for arguments of a wrong type."""
    example = 'km.compare_kernels({"mine": f, "torch": g}, inputs=[x, y], ref=reference)'
    if not isinstance(kernels, Mapping) or not kernels:
        raise UsageError(
            _wrong_type("kernels", kernels, "a dict of functions by name, with at least one"),
            hint=example,
        )
    for name, fn in kernels.items():
        if not isinstance(name, str):
            raise UsageError(_wrong_type("a name in kernels", name, "text"), hint=example)
        if not callable(fn):
            raise UsageError(_wrong_type(f"kernel {name!r}", fn, "a function"), hint=example)
    if not isinstance(inputs, list | tuple):
        raise UsageError(_wrong_type("inputs", inputs, "a list of arguments"), hint=example)
    if ref is not None and not callable(ref):
        raise UsageError(
            _wrong_type("ref", ref, "a function"),
            hint="ref=lambda x: ...: it gets the same inputs in float64",
        )


def _wrong_type(name: str, value: object, expected: str) -> str:
    return f"{name} is not {expected}, but {type(value).__name__}"


def _check_count(name: str, value: object, meaning: str) -> None:
    number = plain_number(value)
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if value is not None and not (is_number and math.isfinite(number) and number >= 0):
        raise UsageError(
            f"{name}={value!r} is not a number of at least 0", hint=f"give the {meaning}"
        )


def _first_call(
    kernels: Mapping[str, Function], inputs: Sequence[Any], *, rotate: bool
) -> tuple[Function, _Call]:
    """Return the first function that does not raise, and its call. Functions that raise get a row
    with their error later; if all of them raise, raise the first error."""
    errors = []
    for fn in kernels.values():
        try:
            return fn, _Call.of(fn, inputs, rotate=rotate)
        except KernelmarkError:
            raise
        except Exception as error:
            errors.append(error)
    raise errors[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """The arguments of a call, which of them are copied and rotated, and where the result goes."""

    arguments: tuple[Any, ...]
    specs: Mapping[int, TensorSpec]  # by the argument's position
    output: TensorSpec
    output_nbytes: int  # in the function's own dtype
    is_copied: bool  # whether the result is copied to the output
    out_at: int | None  # position of the output argument; None if the result is returned
    parts: tuple[int, ...]  # elements of each returned array if there are several, else ()
    form: str  # numpy, torch or cupy
    device: str
    scalars: Mapping[str, int | Option]  # other arguments that are part of the problem
    notes: tuple[str, ...]

    @classmethod
    def of(cls, fn: Function, inputs: Sequence[Any], *, rotate: bool) -> _Call:
        arrays = _array_positions(inputs)
        form, device = _form_and_device(inputs)
        for at in arrays:
            if _form(inputs[at]) != form:
                raise UsageError(
                    f"inputs are arrays of {join_and((form, _form(inputs[at])))}",
                    hint="convert them to one kind",
                )
        answer = fn(*inputs)
        last = max(at for at, value in enumerate(inputs) if _output_dtype(value) is not None)
        is_only = arrays == [last]
        # torch.mm and np.matmul return their `out` argument.
        writes = answer is None or (not is_only and answer is inputs[last])
        if writes and is_only:
            raise UsageError(
                "the function returned None, and its only array is an input",
                hint="return the result, or take the array to write it into as the last argument",
            )
        out_at = last if writes else None
        several = isinstance(answer, tuple | list)
        written = inputs[last] if writes else answer
        output = _output_spec(written)
        parts = tuple(math.prod(part.shape) for part in answer) if several else ()
        read = [at for at in arrays if at != out_at]
        names = _names(fn, inputs, read)
        rotates = None if rotate else False
        # Values on a GPU stay there: copying them to the host and back takes longer than timing.
        array_device = inputs[arrays[0]].device if form == "torch" and device != "cpu" else None
        specs = {
            at: given_spec(names[at], inputs[at], rotates=rotates, device=array_device)
            for at in read
        }
        left = [
            names[at]
            for at, value in enumerate(inputs)
            if at not in (*arrays, out_at)
            and hasattr(value, "shape")
            and bool(getattr(value, "ndim", 0))
        ]
        notes = [f"the same {', '.join(left)} in every call: not copied"] if left else []
        strided = [spec.name for at, spec in specs.items() if not _is_contiguous(inputs[at])]
        if strided:
            notes.append(f"measured on contiguous copies of {', '.join(strided)}")
        return cls(
            arguments=tuple(inputs),
            specs=specs,
            output=output,
            output_nbytes=_nbytes(written, output),
            is_copied=not writes or _is_copied(written),
            out_at=out_at,
            parts=parts,
            form=form,
            device=device,
            scalars=_scalars(names, inputs, read),
            notes=tuple(notes),
        )

    def timing(self, fn: Function) -> Timing:
        """Return the default timing for a function that takes as long as `fn`."""
        if self.device == "cpu":
            return TIMING
        begun = time.perf_counter()
        fn(*self.arguments)
        self._synchronize()
        call_s = time.perf_counter() - begun
        longest_s = min(max(GPU_TIMING.max_s, _MIN_CALLS * call_s), TIMING.max_s)
        return dataclasses.replace(GPU_TIMING, max_s=longest_s)

    def _synchronize(self) -> None:
        if self.form == "cupy":
            import cupy

            cupy.cuda.get_current_stream().synchronize()
        else:
            import torch

            torch.cuda.synchronize()

    def share_stream(self, device: Device) -> None:
        """Have the device launch on the current stream of torch or CuPy, as the functions do."""
        if self.form == "cupy":
            import cupy

            ordinal = device.info.index
            current = cupy.cuda.get_current_stream().ptr
            device.launch_on(current, lambda captured: cupy.cuda.ExternalStream(captured, ordinal))
        elif self.device != "cpu":
            import torch

            def use(captured: Stream) -> Any:
                return torch.cuda.stream(torch.cuda.ExternalStream(captured))

            device.launch_on(torch.cuda.current_stream().cuda_stream, use)

    @contextlib.contextmanager
    def on_device(self, ordinal: int) -> Iterator[None]:
        """Make the device torch's or CuPy's current one, and free their cached memory afterwards:
        it would stay reserved for the captured stream, and an allocation by kernelmark does not
        make torch or CuPy release it."""
        if self.form == "cupy":
            import cupy

            try:
                with cupy.cuda.Device(ordinal):
                    yield
            finally:
                cupy.get_default_memory_pool().free_all_blocks()
        elif self.device == "cpu":
            yield
        else:
            import torch

            try:
                with torch.cuda.device(ordinal):
                    yield
            finally:
                for spec in self.specs.values():
                    if spec.given is not None and isinstance(spec.given.source, TorchValues):
                        spec.given.source.free()
                torch.cuda.empty_cache()

    def with_arrays(self, arrays: Mapping[str, Any]) -> list[Any]:
        """Return the arguments with `arrays` as inputs, without the output argument."""
        arguments = list(self.arguments)
        for at, spec in self.specs.items():
            arguments[at] = arrays[spec.name]
        if self.out_at is not None:
            del arguments[self.out_at]
        return arguments

    def suspicion(self, fn: Function) -> str:
        """Return what is wrong with a function that no reference checks: it gives other values for
        equal inputs, or the same values whatever its inputs are; "" if neither is seen."""
        first = self._values(fn, None)
        size = np.abs(first[np.isfinite(first)]).max(initial=0.0)
        again = self._values(fn, None)
        # Sums in another order differ by roundings; noise differs by its own size.
        if again.shape != first.shape or not np.allclose(
            again, first, rtol=0, atol=_REPEATS_WITHIN * size, equal_nan=True
        ):
            return "two calls with equal inputs returned different values"
        library = importlib.import_module(self.form)
        changes = (lambda x: library.roll(x, 1), lambda x: x * 0.5, lambda x: -x)
        changed = 0
        for change in changes:
            # A function may refuse such values: negative ones, for example.
            with contextlib.suppress(Exception):
                if not np.array_equal(self._values(fn, change), first, equal_nan=True):
                    return ""
                changed += 1
        varies = any(spec.type.kind == "float" for spec in self.specs.values())
        if changed < len(changes) or not varies:
            return ""
        return "calls with different inputs returned the same values; ref=… checks them"

    def _values(self, fn: Function, change: Callable[[Any], Any] | None) -> NDArray[np.float64]:
        """Return the result of a call with copies of the arrays, whose floats are changed."""
        arguments = list(self.arguments)
        for at, value in enumerate(arguments):
            if at in self.specs or at == self.out_at:
                copy = _copy(value)
                floats = at in self.specs and self.specs[at].type.kind == "float"
                arguments[at] = change(copy) if change is not None and floats else copy
        answer = fn(*arguments)
        answer = arguments[self.out_at] if self.out_at is not None else answer
        return np.concatenate([_on_host(_as_float64(part)).reshape(-1) for part in _arrays(answer)])


class _CallOp(OwnOp):
    """The op of one call, with the tensors of that call."""

    def __init__(self, name: str, definition: Definition, call: _Call, *, checked: bool) -> None:
        super().__init__(name, definition)
        self.call = call
        self.checked = checked
        self.reference_on_device = call.device != "cpu"
        self.device: Device | None = None  # the opened GPU that the inputs are on
        dims: dict[str, int] = {}
        for spec in call.specs.values():
            dims |= zip(_dim_names(spec.name, spec.shape), spec.shape, strict=True)
        dtypes = {spec.name: spec.dtype for spec in call.specs.values()}
        if call.output.dtype not in dtypes.values():
            dtypes[OUTPUT] = call.output.dtype
        options: dict[str, Option] = {}
        for scalar, value in call.scalars.items():
            if scalar in dims or scalar in dtypes:
                continue
            if isinstance(value, int) and not isinstance(value, bool):
                dims[scalar] = value
            else:
                options[scalar] = value
        self.requested = Problem(op=name, dims=dims, dtypes=dtypes, options=options)

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        return (*self.call.specs.values(), self.call.output)

    def bytes(self, problem: Problem) -> int:
        count = super().bytes(problem)
        if self._definition.nbytes is not None:
            return count
        return count - self.call.output.nbytes + self.call.output_nbytes

    def positions(self, problem: Problem, seed: int) -> NDArray[np.int64]:
        return super().positions(problem, seed) if self.checked else np.zeros(0, np.int64)

    def _answer(self, problem: Problem, specs: tuple[TensorSpec, ...], inputs: Inputs) -> Any:
        """Return the result of the reference in float64; a torch tensor stays on its device."""
        if not self.checked:
            return np.zeros(self.call.output.shape)
        arrays = {spec.name: self._upcast(spec, inputs) for spec in specs}
        reference = self._definition.reference(*self.call.with_arrays(arrays))
        if not self.call.parts:
            return _as_float64(reference)
        parts = [_as_float64(part).reshape(-1) for part in _arrays(reference)]
        if tuple(len(part) for part in parts) != self.call.parts:
            raise ProblemError(
                "the reference returned arrays of "
                f"{join_commas(len(part) for part in parts)} elements, the function"
                f" of {join_commas(self.call.parts)}"
            )
        if any(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate([_on_host(part) for part in parts])
        import torch

        return torch.cat(parts)

    def _upcast(self, spec: TensorSpec, inputs: Inputs) -> Any:
        """Return an input of an argument set as float64 or int64, on the user's device.

        torch tensors on a GPU are upcast there: uploading a float64 copy for every check is
        slow."""
        if spec.given is not None and isinstance(spec.given.source, TorchValues):
            return _upcast_on_device(spec, spec.given.source.tensor, inputs)
        whole = super()._upcast(spec, inputs)
        if self.call.form == "torch":
            return torch_tensor(whole)
        if self.call.form == "cupy":
            import cupy

            return cupy.asarray(whole)
        return whole

    def _picked(self, value: Any, where: NDArray[np.int64]) -> Reference:
        if isinstance(value, np.ndarray):
            return super()._picked(value, where)
        taken = self._take(value, where)
        if not value.ndim or not len(where):
            return Reference(value=taken, magnitude=np.abs(taken))
        import torch

        # A single kernel, because the first launch of each kernel takes 20 ms to load it.
        rows = torch.linalg.vector_norm(value, float("inf"), dim=-1)
        return Reference(value=taken, magnitude=self._take(rows, where // value.shape[-1]))

    def _take(self, value: Any, where: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return elements of a float64 torch tensor at flat positions; downloads only these."""
        flat = value.reshape(-1).contiguous()
        # A reference may return a tensor on another device.
        elsewhere = _device_of(value) != self.call.device
        if self.device is None or elsewhere or not len(where):
            return _on_host(flat[where])
        # kernelmark's gather kernel is loaded already and runs on torch's current stream.
        spec = TensorSpec(name=OUTPUT, shape=tuple(flat.shape), dtype="f64")
        tensor = Tensor(spec=spec, buffer=_TorchBuffer(flat), offset=0)
        return self.device.take(tensor, where).view(np.float64)


def _upcast_on_device(spec: TensorSpec, values: Any, inputs: Inputs) -> Any:
    import torch

    kind = torch.int64 if spec.type.kind == "int" else torch.float64
    wide = torch.empty(spec.count, dtype=kind, device=values.device)
    start = inputs.start(spec.name)
    # Not torch.roll: the first launch of each kernel takes 20 ms to load it.
    wide[: spec.count - start].copy_(values[start:])
    wide[spec.count - start :].copy_(values[:start])
    return wide.reshape(spec.shape)


class _TorchBuffer:
    """The memory of a contiguous torch tensor, which stays alive with it."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.address = int(tensor.data_ptr())
        self.nbytes = int(tensor.numel() * tensor.element_size())


class _CallKernel(Kernel):
    """A function with its arguments for every argument set."""

    def __init__(
        self, fn: Function, name: str, call: _Call, device: Device, sets: Sequence[ArgumentSet]
    ) -> None:
        note_foreign_code()
        self.info = KernelInfo(name=name)
        self._fn = fn
        self._call = call
        self._outputs = [view(tensors[OUTPUT], device, call.form) for tensors in sets]
        self._arguments: list[list[Any]] = []
        for tensors, output in zip(sets, self._outputs, strict=True):
            arrays = {s.name: view(tensors[s.name], device, call.form) for s in call.specs.values()}
            arguments = call.with_arrays(arrays)
            if call.out_at is not None:
                own = _copy(call.arguments[call.out_at]) if call.is_copied else output
                arguments.insert(call.out_at, own)
            self._arguments.append(arguments)
        self._last: Any = None

    def launch(self, stream: Stream, set_index: int) -> None:
        # Keep the result until the next call, as a user's loop `y = f(x)` would.
        self._last = self._fn(*self._arguments[set_index])

    def collect(self, set_index: int) -> None:
        """If the function returns its result, or writes a dtype that ops do not have, call it
        once more and copy the result to the output. Keeping the result of every timed call would
        need new memory for each."""
        if not self._call.is_copied:
            return
        arguments, output = self._arguments[set_index], self._outputs[set_index]
        if self._call.out_at is None:
            answer = self._fn(*arguments)
        else:
            answer = arguments[self._call.out_at]
            answer[...] = 0  # or what an earlier call wrote would be checked
            self._fn(*arguments)
        if not self._call.parts:
            expected = tuple(output.shape)
            shape = tuple(answer.shape) if hasattr(answer, "shape") else None
            if shape != expected:
                of_shape = "" if shape is None else f" of shape {shape}"
                raise ProblemError(
                    f"the function returned {type(answer).__name__}{of_shape}, the first function"
                    f" an array of shape {expected}"
                )
            output[...] = answer
            return
        sizes = tuple(math.prod(getattr(part, "shape", ())) for part in _arrays(answer))
        if sizes != self._call.parts:
            raise ProblemError(
                f"the function returned arrays of {join_commas(sizes)} elements, the"
                f" first function of {join_commas(self._call.parts)}"
            )
        start = 0
        for part, size in zip(answer, self._call.parts, strict=True):
            output[start : start + size] = part.reshape(-1)
            start += size


def _measured(
    fn: Function, case: Case, op: _CallOp, device: Device, *, suspects: bool = True
) -> Result:
    call = op.call
    op.device = device if op.reference_on_device else None
    started = time.time()

    def prepare(sets: Sequence[ArgumentSet]) -> _CallKernel:
        kernel = _CallKernel(fn, case.backend, call, device, sets)
        if device.enqueues:
            kernel.launch(device.stream, 0)  # may compile or allocate, impossible during a capture
            device.synchronize()
        return kernel

    try:
        if suspects and not op.checked and (suspicion := call.suspicion(fn)):
            return failure(case, device.info, Status.WRONG, Reason(suspicion), started=started)
        outcome = measure(
            problem=case.problem, op=op, device=device, timing=case.timing, prepare=prepare
        )
    except Exception as error:
        status, text = explain(error)
        return failure(case, device.info, status, text, started=started)
    finally:
        device.release_freed()
    if not op.checked:
        warnings = (
            *outcome.measurement.warnings,
            Reason(
                "no reference was given: the values of the output are not checked", "no-reference"
            ),
        )
        measurement = dataclasses.replace(outcome.measurement, warnings=warnings)
        outcome = dataclasses.replace(outcome, measurement=measurement)
    return result_of(outcome, case, op, device.info, started=started)


def _environment(device: str, form: str) -> Environment:
    """Return the environment of this process, in which the functions run."""
    return environment([find(device)[1]], [form] if form in backends.registry else [], load=True)


def _in_background(function: Callable[[], T]) -> Callable[[], T]:
    """Start a function in a thread; return a callable that waits for its value."""
    pool = ThreadPoolExecutor(max_workers=1)
    future = pool.submit(function)
    pool.shutdown(wait=False)
    return future.result


def _array_positions(inputs: Sequence[Any]) -> list[int]:
    """Return the positions of the array arguments; raise UsageError if there are none."""
    arrays = [at for at, value in enumerate(inputs) if array_dtype(value) is not None]
    if not arrays:
        kinds = [str(value.dtype) for value in inputs if hasattr(value, "dtype")]
        if kinds:
            raise UsageError(
                f"inputs: arrays of {join_commas(kinds)} cannot be checked", hint=_KNOWN_DTYPES
            )
        raise UsageError(
            "none of the inputs is an array", hint="give NumPy or CuPy arrays or torch tensors"
        )
    for at in arrays:
        if not math.prod(inputs[at].shape):
            raise UsageError(
                f"input {at} has the shape {tuple(inputs[at].shape)}: it has no elements",
                hint="give an array with elements",
            )
    return arrays


def _form_and_device(inputs: Sequence[Any]) -> tuple[str, str]:
    """Return the library and the device of the first array."""
    first = inputs[_array_positions(inputs)[0]]
    return _form(first), _device_of(first)


def _form(value: Any) -> str:
    """Return the library of an array: numpy, cupy or torch."""
    package = type(value).__module__.partition(".")[0]
    return package if package in ("numpy", "cupy") else "torch"


def _arrays(answer: Any) -> Sequence[Any]:
    """Return the result of a function as a sequence of arrays."""
    return tuple(answer) if isinstance(answer, tuple | list) else (answer,)


def _as_float64(answer: Any) -> Any:
    """Return a reference's result as float64: a torch tensor on its device, else on the host."""
    return answer.detach().double() if hasattr(answer, "detach") else _on_host(answer)


def _copy(values: Any) -> Any:
    return values.detach().clone() if hasattr(values, "detach") else values.copy()


def _on_host(values: Any) -> NDArray[np.float64]:
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    elif hasattr(values, "get"):  # a CuPy array
        values = values.get()
    return np.asarray(values, np.float64)


# Outputs of these dtypes, which ops do not have, are copied to be checked, as floats that hold
# their values exactly; of 64-bit integers those below 2^53.
_COPIED = ("uint8", "int16", "uint16", "uint32", "int64", "uint64")


def _output_dtype(values: Any) -> str | None:
    """Return the dtype in which an output is checked; None if it cannot be."""
    kind = str(getattr(values, "dtype", None)).removeprefix("torch.")
    if array_dtype(values) or not hasattr(values, "shape"):
        return array_dtype(values)
    if kind == "bool":
        return "i8"
    return "f64" if kind in _COPIED else None


def _nbytes(answer: Any, spec: TensorSpec) -> int:
    """Return the bytes of an output in its own dtype."""
    if _is_copied(answer):
        return sum(math.prod(part.shape) * int(part.dtype.itemsize) for part in _arrays(answer))
    return spec.nbytes


def _is_copied(answer: Any) -> bool:
    return any(array_dtype(part) is None for part in _arrays(answer))


def _output_spec(answer: Any) -> TensorSpec:
    parts = _arrays(answer)
    dtypes = list(dict.fromkeys(map(_output_dtype, parts)))
    if isinstance(answer, tuple | list) and len(dtypes) == 1 and dtypes[0] is not None:
        size = sum(math.prod(part.shape) for part in parts)
        return TensorSpec(name=OUTPUT, shape=(size,), dtype=dtypes[0], role="out")
    if len(dtypes) > 1 and None not in dtypes:
        raise UsageError(
            f"the function returned arrays of {join_commas(map(str, dtypes))}:"
            " they are checked as one, and need one dtype",
            hint="wrap it in a function that returns arrays of one dtype",
        )
    dtype_name = _output_dtype(answer)
    if dtype_name is None:
        unknown = [str(part.dtype) for part in parts if hasattr(part, "dtype")]
        if unknown:
            raise UsageError(
                f"output: arrays of {join_commas(unknown)} cannot be checked", hint=_KNOWN_DTYPES
            )
        raise UsageError(
            _wrong_type("the output", answer, "an array or a tuple of arrays"),
            hint="wrap it in a function that returns what is to be checked",
        )
    return TensorSpec(name=OUTPUT, shape=tuple(answer.shape), dtype=dtype_name, role="out")


def _dim_names(name: str, shape: Sequence[int]) -> list[str]:
    return [f"{name}{axis}" for axis in range(len(shape))]


def _names(fn: Function, inputs: Sequence[Any], read: Sequence[int]) -> list[str]:
    """Return a name for each argument: the function's parameter names if all are valid and unique
    in a problem key, where `x0` is also the first dim of `x`; else `arg0_`, `arg1_`, …"""
    count = len(inputs)
    try:
        names = [_word(name) for name in inspect.signature(fn).parameters]
    except (TypeError, ValueError):
        names = []
    if len(names) >= count:
        used = [names[at] for at in read]
        dims = [name for at in read for name in _dim_names(names[at], inputs[at].shape)]
        if len({*used, *dims} - {"", OUTPUT}) == len(used) + len(dims):
            return names
    return [f"arg{at}_" for at in range(count)]


def _scalars(
    names: Sequence[str], inputs: Sequence[Any], read: Sequence[int]
) -> dict[str, int | Option]:
    """Return the numbers, booleans and words among the arguments that a problem key can hold: a
    call with another value is another problem."""
    scalars: dict[str, int | Option] = {}
    for at, value in enumerate(inputs):
        value = plain_number(value) if isinstance(value, np.generic) else value
        if at in read or not names[at] or not isinstance(value, int | float | str):
            continue
        number = isinstance(value, int) and not isinstance(value, bool)
        with contextlib.suppress(ProblemError):
            if not number:  # raises for infinities and for text that is not one word
                Problem(op="call", dims={}, dtypes={}, options={names[at]: value})
            scalars[names[at]] = value
    return scalars


def _is_contiguous(values: Any) -> bool:
    if hasattr(values, "is_contiguous"):
        return bool(values.is_contiguous())
    return bool(values.flags.c_contiguous)


def _word(text: str) -> str:
    """Return `text` as a valid lower-case name in a problem key; "" if that is impossible."""
    word = re.sub(r"[^a-z0-9_]", "_", text.lower())
    return word if re.match(r"[a-z][a-z0-9_]*\Z", word) else ""


def _device_of(value: Any) -> str:
    if _form(value) == "cupy":
        import cupy

        return f"{'hip' if cupy.cuda.runtime.is_hip else 'cuda'}:{value.device.id}"
    device = getattr(value, "device", "cpu")
    kind = getattr(device, "type", "cpu")
    if kind == "cpu":
        return "cpu"
    if kind != "cuda":
        raise UsageError(f"tensors on {kind} cannot be measured", hint="move them to cpu or cuda")
    import torch

    return f"{'hip' if torch.version.hip else 'cuda'}:{device.index or 0}"


def _no_parameters() -> Mapping[str, Any]:
    return {}


def _no_reference(*_: Any) -> Any:
    raise ProblemError(
        Reason("no reference was given: the values of the output are not checked", "no-reference")
    )


def _report_wait(device: str, holder: str) -> None:
    """Report which process has locked the device: the wait may take minutes."""
    if WAITS.is_due(device):
        sys.stderr.write(f"{Waiting(device=device, holder=holder)}\n")
