"""bench: functions measured in this process, checked, and what is refused."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import importlib.util
import math
import platform
import sys
import threading
import weakref
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import kernelmark as km
from kernelmark.api.bench import (
    GPU_TIMING,
    TIMING,
    _Call,
    _CallOp,
    _device_of,
    _form,
    _no_parameters,
)
from kernelmark.backends._file import cupy_array
from kernelmark.core.dtype import TORCH_NAMES
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Fault, Status
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import Timing
from kernelmark.devices.base import Tensor
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._own import Definition, given_spec
from kernelmark.report.summary import answer, find_failures
from kernelmark.runners.capture import environment as capture_environment
from kernelmark.runners.targets import find
from kernelmark_dev.raising import raises
from kernelmark_dev.results import make_roof

# hot: thousands of cold sets of such small inputs would be made
BRIEF = Timing(cache="hot", allocations=2, max_allocations=2, max_s=0.02, warmup_s=0.01)
X = np.random.default_rng(0).standard_normal((33, 70)).astype(np.float32)
NO_DEFINITION = Definition(inputs=_no_parameters, reference=_no_parameters)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch, which make test installs"
)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_what_is_returned_is_checked():
    (found,) = km.bench(softmax, X, ref=softmax, timing=BRIEF)
    assert found.status is Status.OK, found.error
    assert found.case.problem.key == "softmax x0=33 x1=70 x=f32"
    assert found.case.backend == "softmax"
    assert found.check.positions >= X.size
    assert found.bytes == 2 * X.nbytes
    assert found.measurement.median_s > 0


def test_what_is_written_in_place_is_checked():
    def exp(x, out):
        np.exp(x, out=out)

    (found,) = km.bench(exp, X, np.empty_like(X), ref=np.exp, timing=BRIEF)
    assert found.status is Status.OK, found.error
    assert found.case.problem.key == "exp x0=33 x1=70 x=f32"


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_an_argument_that_is_written_and_returned_is_the_output(form):
    """As np.matmul and torch.mm return what is given as out."""
    library = pytest.importorskip(form, reason=f"needs {form}, which make test installs")
    shape = (16, 16)
    arrays = [library.ones(shape, dtype=library.float32) for _ in range(3)]

    def product(a, b, out):
        return library.matmul(a, b, out=out)

    (found,) = km.bench(product, *arrays, ref=lambda a, b: a @ b, timing=BRIEF)
    assert found.status is Status.OK, found.error
    assert set(found.case.problem.dtypes) == {"a", "b"}


def test_other_arguments_are_passed_on():
    def scaled(x, rows, factor):
        return factor * x[rows]

    rows = np.array([4, 0, 2], np.int64)
    (found,) = km.bench(scaled, X, rows, 2.5, ref=scaled, timing=BRIEF)
    assert found.status is Status.OK, found.error


def test_other_numbers_are_another_problem():
    def scaled(x, factor, times):
        return factor * x * int(times)

    keys = [
        km.bench(scaled, X, factor, np.int64(times), ref=scaled, timing=BRIEF)[0].case.problem.key
        for factor, times in ((2.5, 3), (1.5, 3), (2.5, 4))
    ]
    assert keys[0] == "scaled x0=33 x1=70 times=3 x=f32 factor=2.5"
    assert len(set(keys)) == len(keys)


def test_scalars_that_no_problem_can_hold_are_left_out():
    def scaled(x, x0, how, where):
        return x * 2

    (found,) = km.bench(scaled, X, float("inf"), "by hand", None, ref=scaled, timing=BRIEF)
    assert found.case.problem.key == "scaled x0=33 x1=70 x=f32"


@pytest.mark.parametrize("name", ["x0", "x1"])
def test_an_argument_named_like_a_dim_is_measured(name):
    scope: dict[str, object] = {}
    exec(f"def add(x, {name}): return x + {name}", scope)
    (found,) = km.bench(scope["add"], X, X, ref=np.add, timing=BRIEF)
    assert found.status is Status.OK, found.error


def test_strided_inputs_are_noted():
    assert not km.bench(softmax, X, ref=softmax, timing=BRIEF).notes
    strided = km.bench(softmax, X.T, ref=softmax, timing=BRIEF)
    assert strided.notes
    assert strided.notes[0] in str(strided)


def test_wrong_answers_are_wrong():
    found = km.compare_kernels(
        {"right": softmax, "wrong": np.exp}, inputs=[X], ref=softmax, timing=BRIEF, flops=10**6
    )
    assert {one.case.backend: one.status for one in found} == {
        "right": Status.OK,
        "wrong": Status.WRONG,
    }
    assert found.failed
    # On a busy machine the right one may be unreliable, and then nothing ranks.
    measured = found[0].measurement
    assert measured is not None
    assert [one.case.backend for one in found.best()] == (["right"] if measured.reliable else [])
    assert found[0].flops == 10**6


def test_an_answer_from_memory_is_wrong():
    (found,) = km.bench(from_memory([]), X, ref=softmax, timing=BRIEF)
    assert found.status is Status.WRONG
    assert Fault.VALUES in found.check.faults


def test_inputs_that_are_changed_are_told():
    def spoils(x):
        answer = softmax(x)
        x[0, 0] = 0
        return answer

    (found,) = km.bench(spoils, X.copy(), ref=softmax, timing=BRIEF)
    assert found.status is Status.WRONG
    assert Fault.INPUTS in found.check.faults


def test_collections_during_a_measurement_leave_out_existing_objects():
    gc.unfreeze()  # a worker's loop, run in this process by another test, freezes
    frozen = []

    def fn(x):
        frozen.append(gc.get_freeze_count())
        return x + 1

    km.bench(fn, X, ref=fn, timing=BRIEF)
    assert frozen[-1] > 0
    assert gc.get_freeze_count() == 0


def test_the_environment_is_captured_during_the_first_call(monkeypatch):
    called, order = threading.Event(), []

    def capture(*names, **options):
        assert called.wait(120)
        order.append("environment")
        return capture_environment(*names, **options)

    def fn(x):
        order.append("call")
        called.set()
        return x + 1

    monkeypatch.setattr("kernelmark.api.bench.environment", capture)
    found = km.bench(fn, X, ref=fn, timing=BRIEF)
    assert order[:3] == ["call", "environment", "call"]
    assert [info.name for info in found.run.environment.devices] == ["cpu"]
    assert found.run.environment.libraries["numpy"] == np.__version__


class Returned(np.ndarray):
    """An array that can be referred to weakly."""


def test_results_are_freed_without_a_collection():
    returned = []

    def fn(x):
        returned.append(weakref.ref(found := (x + 1).view(Returned)))
        return found

    gc.disable()  # on a GPU they would keep memory until a collection happens to come
    try:
        (one,) = km.bench(fn, X, ref=lambda x: x + 1, timing=BRIEF)
        alive = [at for at, array in enumerate(returned) if array() is not None]
    finally:
        gc.enable()
    assert one.status is Status.OK, one.error
    assert alive == []


def test_without_a_reference_a_warning_says_so():
    (found,) = km.bench(softmax, X, timing=BRIEF)
    assert found.status is Status.OK
    assert "no-reference" in [one.code for one in found.measurement.warnings]


def from_memory(kept):
    def remembers(x):
        if not kept:
            kept.append(softmax(x))
        return kept[0]

    return remembers


def noise(x):
    return np.random.default_rng().random(x.shape, np.float32)


@pytest.mark.parametrize("fn", [from_memory([]), noise])
def test_without_a_reference_answers_that_do_not_depend_on_the_input_are_wrong(fn):
    (found,) = km.bench(fn, X, timing=BRIEF)
    assert found.status is Status.WRONG


def test_without_a_reference_a_function_that_refuses_negative_values_is_measured():
    def positive(x):
        if (x < 0).any():
            raise ValueError("negative")
        return np.sign(x)

    (found,) = km.bench(positive, np.abs(X) + 1, timing=BRIEF)
    assert found.status is Status.OK, found.error


def test_a_failure_is_a_row():
    calls = []

    def fails(x):
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("no more")
        return x + 1

    found = km.compare_kernels(
        {"fails": fails, "works": lambda x: x + 1}, inputs=[X], ref=lambda x: x + 1, timing=BRIEF
    )
    assert {one.status for one in found} == {Status.RUNTIME_ERROR, Status.OK}


@pytest.mark.parametrize("names", [("fails", "works"), ("works", "fails")])
def test_a_function_that_raises_is_a_row_wherever_it_stands(names):
    def fails(x):
        raise RuntimeError("never")

    functions = {"fails": fails, "works": lambda x: x + 1}
    found = km.compare_kernels(
        {name: functions[name] for name in names}, inputs=[X], ref=lambda x: x + 1, timing=BRIEF
    )
    assert {one.case.backend: one.status for one in found} == {
        "fails": Status.RUNTIME_ERROR,
        "works": Status.OK,
    }


def test_if_every_function_raises_its_error_is_raised():
    def fails(x):
        raise LookupError("never")

    with pytest.raises(LookupError):
        km.compare_kernels({"fails": fails, "too": fails}, inputs=[X], timing=BRIEF)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (lambda x: x + 1, lambda x: x[:1] + 1),  # could be broadcast
        (lambda x: x + 1, lambda x: (x + 1, x)),
        (lambda x: x + 1, lambda x: None),
        (lambda x: (x, x + 1), lambda x: (x,)),
    ],
)
def test_a_function_that_returns_something_else_is_an_error(first, other):
    found = km.compare_kernels(
        {"first": first, "other": other}, inputs=[X], ref=first, timing=BRIEF
    )
    assert [one.status for one in found] == [Status.OK, Status.RUNTIME_ERROR]


def test_integers_are_checked_exactly():
    def last(x):
        return x.argmax(-1).astype(np.int32)

    def off(x):
        return last(x) + np.int32(1)

    found = km.compare_kernels({"last": last, "off": off}, inputs=[X], ref=last, timing=BRIEF)
    assert [one.status for one in found] == [Status.OK, Status.WRONG]


def test_waiting_for_the_device_is_reported_at_once(monkeypatch, capsys):
    @contextlib.contextmanager
    def lock(info, on_wait):
        on_wait("process 1")
        yield

    monkeypatch.setattr("kernelmark.api.bench.hold_lock", lock)
    km.bench(softmax, X, ref=softmax, timing=BRIEF)
    assert "process 1" in capsys.readouterr().err


def test_a_tolerance_may_be_given():
    def near(x):
        return softmax(x) * np.float32(1.01)

    assert km.bench(near, X, ref=softmax, timing=BRIEF).failed
    assert not km.bench(near, X, ref=softmax, timing=BRIEF, rtol=0.02).failed


def test_masks_may_stay_in_place():
    mask = np.where(np.arange(70) < 35, 0, -np.inf).astype(np.float32)

    def masked(x, mask):
        assert mask[0] == 0
        return softmax(x + mask)

    (found,) = km.bench(masked, X, mask, ref=masked, timing=BRIEF, rotate=False)
    assert found.status is Status.OK, found.error


@pytest.mark.parametrize("work", [{"flops": X.size}, {"nbytes": 2 * X.nbytes}])
def test_with_the_work_of_a_call_it_is_compared_with_the_roofs_of_the_default_store(
    tmp_path, monkeypatch, work
):
    where = tmp_path / "s.sqlite"
    monkeypatch.setenv("KERNELMARK_STORE", str(where))
    assert not km.bench(np.abs, X, timing=BRIEF, **work).roofs
    assert not where.exists()
    info = find("cpu")[1]
    fields = {"arch": info.arch, "threads": info.units, "model": info.model}
    roof = make_roof("bytes", "dram", 1e12, **fields)
    with km.open_store() as store:
        store.add_roofs([roof], host=platform.node())
    assert km.bench(np.abs, X, timing=BRIEF, **work).roofs == (roof,)
    assert not km.bench(np.abs, X, timing=BRIEF).roofs


def test_with_the_work_of_a_call_it_needs_no_store_of_the_user(tmp_path, monkeypatch):
    monkeypatch.delenv("KERNELMARK_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert not km.bench(np.abs, X, timing=BRIEF, flops=X.size).roofs
    assert not (tmp_path / "data").exists()


def test_it_can_be_stored(tmp_path):
    with km.open_store(tmp_path / "s.sqlite") as store:
        run = km.bench(softmax, X, ref=softmax, timing=BRIEF, store=store, label="mine").run
        assert store.run("mine").id == run.id
        assert [one.status for one in store.results(run.id)] == [Status.OK]


@pytest.mark.parametrize("kind", ["True", "path", "text", "URL", "None", "False"])
def test_the_store_is_given_as_it_is_to_run(tmp_path, monkeypatch, kind):
    where = tmp_path / "s.sqlite"
    monkeypatch.setenv("KERNELMARK_STORE", str(where))
    stores = {"True": True, "path": where, "text": str(where), "URL": f"sqlite:///{where}"}
    store = stores.get(kind)
    run = km.bench(np.abs, X, timing=BRIEF, store=False if kind == "False" else store).run
    assert run.started <= run.finished
    if store is None:
        assert not where.exists()
    else:
        assert km.load(store=store).run.id == run.id


@pytest.mark.parametrize(
    ("fn", "inputs", "fields"),
    [
        (softmax, (), {}),
        (lambda n: n, (3,), {}),
        (lambda x: [x, 1], (X,), {"what": "output"}),
        (5, (X,), {"type": "int"}),
        (lambda x: None, (X,), {}),
        (softmax, (X[:0],), {"index": 0}),
        (softmax, (X.astype(np.complex64),), {"dtypes": ("complex64",)}),
        (lambda x: x.astype(np.complex64), (X,), {"dtypes": ("complex64",)}),
        (lambda x: (x, x.astype(np.float64)), (X,), {"dtypes": ("f32", "f64")}),
    ],
)
def test_what_cannot_be_measured_is_refused(fn, inputs, fields):
    with raises(UsageError, **fields):
        km.bench(fn, *inputs, timing=BRIEF)


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_functions(dtype):
    import torch

    x = torch.from_numpy(X).to(getattr(torch, dtype))
    found = km.compare_kernels(
        {"softmax": lambda x: torch.softmax(x, -1), "wrong": torch.exp},
        inputs=[x],
        ref=lambda x: torch.softmax(x, -1),
        timing=BRIEF,
    )
    by_name = {one.case.backend: one for one in found}
    assert by_name["softmax"].status is Status.OK, by_name["softmax"].error
    assert by_name["wrong"].status is Status.WRONG


def test_references_are_computed_after_the_last_launch():
    calls = []

    def kernel(x):
        calls.append("launch")
        return np.exp(x)

    def reference(x):
        calls.append("reference")
        return np.exp(x)

    (found,) = km.bench(kernel, X, ref=reference, timing=BRIEF)
    assert found.status is Status.OK, found.error
    first = calls.index("reference")
    assert set(calls[first:]) == {"reference"}


@needs_torch
@pytest.mark.parametrize("name", TORCH_NAMES)
@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_torch_references_get_the_values_of_their_set(name, rotate, there):
    import torch

    x = torch.arange(24).reshape(4, 6).to(getattr(torch, TORCH_NAMES[name]))
    call = _Call.of(lambda x: x, [x], rotate=rotate)
    if there:  # how a GPU's inputs are made, here of tensors on the CPU
        spec = given_spec("x", x, rotates=call.specs[0].given.rotates, device=x.device)
        call = dataclasses.replace(call, specs={0: spec})
    op = _CallOp("same", NO_DEFINITION, call, checked=True)
    (spec,) = call.specs.values()
    assert (spec.given.on_device is not None) is there
    x.zero_()  # the values are those of the call
    inputs = Inputs((spec,), 1, 77)
    made = op._upcast(spec, inputs)
    assert made.dtype is (torch.int64 if name.startswith("i") else torch.float64)
    np.testing.assert_array_equal(made.numpy(), inputs.whole("x"))
    made += 1  # a reference may write to what it gets
    np.testing.assert_array_equal(op._upcast(spec, inputs).numpy(), inputs.whole("x"))


@needs_torch
@pytest.mark.parametrize("name", TORCH_NAMES)
def test_values_that_stay_on_their_device_are_those_of_the_host(name):
    import torch

    x = torch.arange(24).reshape(4, 6).to(getattr(torch, TORCH_NAMES[name])).T
    host, there = given_spec("x", x), given_spec("x", x, device=x.device)
    assert (there.shape, there.dtype) == (host.shape, host.dtype)
    assert there.given.rotates is host.given.rotates
    assert there.given.count == host.given.count == 24
    np.testing.assert_array_equal(there.given.bits, host.given.bits)
    kind = host.given.bits.dtype
    raw = (ctypes.c_uint8 * host.nbytes).from_address(there.given.on_device.address)
    np.testing.assert_array_equal(np.frombuffer(raw, kind), host.given.bits)


class Gathering:
    """Takes elements as a GPU does: by the address of contiguous memory."""

    def take(self, tensor, where):
        raw = (ctypes.c_uint8 * tensor.spec.nbytes).from_address(tensor.address)
        assert tensor.buffer.nbytes == tensor.spec.nbytes
        return np.frombuffer(raw, np.uint64)[where]


@needs_torch
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 4), (6,), (), (0, 3), (3, 0)])
@pytest.mark.parametrize("there", [True, False])
def test_torch_and_numpy_pick_the_same_of_an_answer(shape, there):
    import torch

    values = np.random.default_rng(1).standard_normal(shape)
    if values.size > 4:
        values.flat[3] = np.nan
    where = np.arange(0, values.size, 2)
    op = _CallOp("same", NO_DEFINITION, _Call.of(softmax, [X], rotate=True), checked=True)
    op.device = Gathering() if there else None
    answer = torch.tensor(values)
    answer = answer.mT.contiguous().mT if answer.ndim > 1 else answer  # its order in memory
    ours, theirs = op._picked(values, where), op._picked(answer, where)
    np.testing.assert_array_equal(ours.value, theirs.value)
    np.testing.assert_array_equal(ours.magnitude, theirs.magnitude)
    largest = np.abs(values).max(axis=-1, keepdims=True, initial=0.0) if shape else np.abs(values)
    np.testing.assert_array_equal(ours.magnitude, np.broadcast_to(largest, shape).ravel()[where])


@needs_torch
def test_an_answer_on_another_device_is_not_read_by_its_address():
    import torch

    call = dataclasses.replace(_Call.of(softmax, [X], rotate=True), device="cuda:0")
    op = _CallOp("same", NO_DEFINITION, call, checked=True)
    op.device = SimpleNamespace(take=None)
    picked = op._picked(torch.arange(6.0, dtype=torch.float64).reshape(2, 3), np.array([1, 4]))
    assert picked.value.tolist() == [1.0, 4.0]
    assert picked.magnitude.tolist() == [2.0, 5.0]


@needs_torch
def test_arrays_of_two_kinds_are_refused():
    import torch

    with raises(UsageError, kinds=("numpy", "torch")):
        km.bench(lambda a, b: a, X, torch.zeros(3), timing=BRIEF)


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_several_returned_arrays_are_all_checked(form):
    library = pytest.importorskip(form, reason=f"needs {form}, which make test installs")
    x = X if form == "numpy" else library.tensor(X)

    def split(x):
        return library.max(abs(x)), library.exp(x)

    def second_is_wrong(x):
        return library.max(abs(x)), library.exp(x) + 1

    kernels = {"right": split, "wrong": second_is_wrong}
    found = km.compare_kernels(kernels, inputs=[x], ref=split, timing=BRIEF)
    assert [one.status for one in found] == [Status.OK, Status.WRONG]
    assert found[0].bytes == X.nbytes + X.nbytes + 4
    assert form in found.run.environment.libraries


@pytest.mark.parametrize(
    ("fn", "wrong"),
    [
        (lambda x: x > 0.5, lambda x: x > 0.6),
        (lambda x: np.argsort(x, -1), lambda x: np.argsort(-x, -1)),
        (lambda x: (x > 0.5, x < 0.1), lambda x: (x > 0.5, x < 0.2)),
    ],
)
def test_truth_values_and_indices_are_checked(fn, wrong):
    x = np.random.default_rng(1).random((8, 64), np.float32)
    results = km.compare_kernels({"right": fn, "wrong": wrong}, inputs=[x], ref=fn, timing=BRIEF)
    assert [result.status.value for result in results] == ["ok", "wrong"]
    assert km.bench(fn, x, timing=BRIEF)[0].status.value == "ok"


INTEGERS = ("bool", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_outputs_of_every_integer_dtype_are_checked(form, name):
    x = np.random.default_rng(1).random((8, 64)).astype(np.float32)
    if form == "torch":
        torch = pytest.importorskip("torch")
        x, kind = torch.from_numpy(x), getattr(torch, name)

        def cast(values):
            return values.to(kind)
    else:

        def cast(values):
            return values.astype(name)

    def right(x):
        return cast(x * 200)  # uint8: above what int8 holds

    def one_off(x):
        answer = cast(x * 200)
        answer[5, 7] = answer[5, 7] == 0 if name == "bool" else int(answer[5, 7]) + 1
        return answer

    results = km.compare_kernels(
        {"right": right, "wrong": one_off}, inputs=[x], ref=right, timing=BRIEF
    )
    assert [result.status.value for result in results] == ["ok", "wrong"], results[0].error
    assert results[0].bytes == 8 * 64 * (4 + right(x).dtype.itemsize)


@pytest.mark.parametrize("name", ["bool", "uint8", "int64"])
def test_an_integer_output_may_be_written_into_the_last_argument(name):
    x = np.random.default_rng(1).random((8, 64)).astype(np.float32)
    out = np.zeros((8, 64), name)

    def right(x, out):
        out[...] = (x * 200).astype(name)

    def none(x, out):
        pass

    def ref(x):
        return (x * 200).astype(name)

    results = km.compare_kernels(
        {"right": right, "none": none}, inputs=[x, out], ref=ref, timing=BRIEF
    )
    assert [result.status.value for result in results] == ["ok", "wrong"], results[0].error
    assert not out.any() or (out == ref(x)).all()


def test_a_reference_returns_as_many_elements():
    (found,) = km.bench(lambda x: (x, x), X, ref=lambda x: (x, x[0]), timing=BRIEF)
    assert found.status is Status.RUNTIME_ERROR


class Cupy(ModuleType):
    """What is used of CuPy, on the host's memory."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.entered: list[object] = []

        @contextlib.contextmanager
        def entering(*given: object) -> Iterator[None]:
            self.entered.append(given)
            yield

        self.cuda = SimpleNamespace(
            UnownedMemory=lambda ptr, size, owner, index: (ptr, size),
            MemoryPointer=lambda memory, offset: memory,
            ExternalStream=entering,
            Device=entering,
            get_current_stream=lambda: SimpleNamespace(ptr=77),
            runtime=SimpleNamespace(is_hip=False),
        )
        self.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)

    @staticmethod
    def ndarray(shape, dtype, memptr):
        raw = (ctypes.c_char * memptr[1]).from_address(memptr[0])
        return np.frombuffer(raw, dtype).reshape(shape)


def test_cupy_arrays_lie_on_our_memory(monkeypatch):
    cupy = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    memory = np.arange(12, dtype=np.float32)
    spec = TensorSpec(name="x", shape=(2, 3), dtype="f32")
    buffer = SimpleNamespace(address=memory.ctypes.data, nbytes=memory.nbytes)
    seen = cupy_array(Tensor(spec=spec, buffer=buffer, offset=8), 0)
    assert seen.tolist() == [[2, 3, 4], [5, 6, 7]]


def test_launches_are_on_cupys_stream_and_its_kernels_on_the_captured_one(monkeypatch):
    cupy = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    call = _Call.of(lambda x: x, [X], rotate=True)
    call = dataclasses.replace(call, form="cupy", device="cuda:1")
    launched_on = []

    def launch_on(stream, while_capturing):
        launched_on.append(stream)
        with while_capturing(99):
            pass

    with call.on_device(1):
        call.share_stream(SimpleNamespace(info=SimpleNamespace(index=1), launch_on=launch_on))
    assert launched_on == [77]
    assert cupy.entered == [(1,), (99, 1)]


def test_arrays_of_cupy_are_known_by_their_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    array = type("ndarray", (), {"__module__": "cupy", "device": SimpleNamespace(id=2)})()
    assert _form(array) == "cupy"
    assert _device_of(array) == "cuda:2"


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (lambda x: km.bench(np.abs, x, ref=x), {"name": "ref", "type": "ndarray"}),
        (lambda x: km.bench(x), {"type": "ndarray", "wanted": "a function"}),
        (lambda x: km.bench(np.abs, x, reff=np.abs), {"name": "reff"}),
        (lambda x: km.bench(np.abs, x, store=5), {"name": "store"}),
        (lambda x: km.compare_kernels([], inputs=[x]), {"type": "list"}),
        (lambda x: km.compare_kernels({}, inputs=[x]), {"type": "dict"}),
        (lambda x: km.compare_kernels({1: np.abs}, inputs=[x]), {"type": "int"}),
        (lambda x: km.compare_kernels({"a": np.abs}, inputs=x), {"name": "inputs"}),
    ],
)
def test_a_wrong_type_is_a_usage_error_with_a_hint(call, fields):
    with raises(UsageError, **fields) as caught:
        call(np.ones((8, 8), np.float32))
    assert caught.value.hint


def test_a_comparison_prints_its_answer():
    kernels = {"one": np.exp, "wrong": np.abs}
    found = km.compare_kernels(kernels, inputs=[X], ref=np.exp, timing=BRIEF)
    # On a busy machine the right one may be unreliable, which the answer adds.
    assert "wrong is wrong" in answer(found.rows)
    assert "wrong is wrong" in str(found)
    assert "wrong is wrong" in found._repr_html_()
    (failure,) = find_failures(found.rows)
    assert failure.backends == ("wrong",)
    assert failure.sentence in str(found)


@pytest.mark.parametrize("name", ["flops", "nbytes"])
@pytest.mark.parametrize("given", ["many", -3, math.nan, math.inf, True, lambda: 5, [2]])
def test_work_that_is_not_a_count_is_refused_before_anything_runs(name, given):
    def never(x):
        raise AssertionError("it was called")

    with raises(UsageError, name=name, given=repr(given)) as refused:
        km.bench(never, X, **{name: given})
    assert refused.value.hint


@pytest.mark.parametrize("given", [4096, 4096.0, np.int64(4096)])
def test_work_may_be_any_number(given):
    (found,) = km.bench(np.abs, X, timing=BRIEF, flops=given, nbytes=given)
    assert (found.flops, found.bytes) == (4096, 4096)


@pytest.mark.parametrize(
    ("call_s", "expected_s"), [(1e-4, GPU_TIMING.max_s), (0.01, 0.4), (0.2, TIMING.max_s)]
)
def test_a_slow_call_is_timed_for_longer(monkeypatch, call_s, expected_s):
    call = _Call.of(np.exp, [X], rotate=True)
    assert call.timing(np.exp) == TIMING, "on a CPU"
    clock = iter([10.0, 10.0 + call_s])
    monkeypatch.setattr("kernelmark.api.bench.time.perf_counter", lambda: next(clock))
    monkeypatch.setattr(_Call, "_synchronize", lambda self: None)
    timing = dataclasses.replace(call, device="cuda:0").timing(np.exp)
    assert timing.max_s == pytest.approx(expected_s)
    assert dataclasses.replace(timing, max_s=GPU_TIMING.max_s) == GPU_TIMING
