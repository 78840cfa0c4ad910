"""Launching built kernels: what the driver is given, and that it is all given back."""

from __future__ import annotations

import ctypes
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

from kernelmark import ops
from kernelmark.backends.triton.launch import (
    WORKSPACE,
    ZEROED,
    Argument,
    BuiltKernel,
    KernelCall,
    KernelPlan,
    TensorBlocks,
    TritonKernel,
    check_fits,
)
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.devices.base import Tensor
from kernelmark_dev.raising import raises

ARCH = "sm_90"
INFO = DeviceInfo(
    name="cuda:0",
    kind="cuda",
    model="none",
    arch=ARCH,
    index=0,
    attributes={"shared_per_block": "100000"},
)


@dataclass
class Memory:
    address: int
    nbytes: int


@dataclass
class Launched:
    function: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    values: list[Any]
    stream: int
    shared_bytes: int


@dataclass
class Driver:
    """Remembers what is done; reads arguments through their addresses, as a driver does."""

    kinds: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # by function
    full: bool = False
    loaded: list[bytes] = field(default_factory=list)
    allowed: list[tuple[int, int]] = field(default_factory=list)
    launched: list[Launched] = field(default_factory=list)
    filled: list[tuple[int, int, int, int]] = field(default_factory=list)
    unloaded: list[int] = field(default_factory=list)
    mapped: list[tuple[Any, ...]] = field(default_factory=list)

    def load(self, code):
        if self.full and self.loaded:
            raise OutOfMemory("the second module does not fit")
        self.loaded.append(code)
        return 1000 + len(self.loaded)

    def function(self, module, name):
        return module * 10

    def allow_shared(self, function, nbytes):
        self.allowed.append((function, nbytes))

    def launch(self, function, grid, block, arguments, stream, shared_bytes=0):
        values = [
            kind.from_address(place).value
            for kind, place in zip(self.kinds[function], arguments, strict=True)
        ]
        self.launched.append(Launched(function, grid, block, values, stream, shared_bytes))

    def call(self, word, target, kind, rank, address, *shapes):
        assert word == "tensor_map"
        target._obj[0] = 90 + len(self.mapped)
        sizes, steps, box, ones, *rest = shapes
        assert ctypes.addressof(target._obj) % 64 == 0
        assert list(ones) == [1] * rank
        self.mapped.append((kind, address.value, list(sizes), list(steps), list(box), rest))

    def fill(self, address, byte, nbytes, stream):
        assert not self.launched
        self.filled.append((address, byte, nbytes, stream))

    def destroy(self, word, handle):
        assert word == "module"
        self.unloaded.append(handle)


@dataclass
class Gpu:
    driver: Any
    info: DeviceInfo = INFO
    held: list[int] = field(default_factory=list)
    stream: int = 77

    def allocate(self, nbytes):
        self.held.append(2**40 + 2**20 * len(self.held))
        return Memory(self.held[-1], nbytes)

    def free(self, buffer):
        self.held.remove(buffer.address)


class Compiled(KernelCall):
    """A call whose building is given."""

    def build(self, arch):
        assert arch == ARCH
        return BUILT[self.function]


BUILT = {}


def built(name, **changes):
    plain = {
        "code": name.encode(),
        "name": name,
        "shared_bytes": 0,
        "threads": 128,
        "scratch_bytes": 0,
        "resources": {"registers": 40},
        "seconds": 0.5,
    }
    return BuiltKernel(**{**plain, **changes})


def call(name, *arguments, grid):
    return Compiled(
        function=name,
        arguments=tuple(
            Argument(name=n, kind=kind, pointer=isinstance(value, str))
            for n, kind, value in arguments
        ),
        values=tuple(value for _, _, value in arguments),
        constants={},
        options={},
        grid=grid,
    )


def sets(count):
    problem = ops.parse("gemm m=4 n=4 k=4 dtype=f16")
    specs = ops.registry.get("gemm").tensors(problem)
    return [
        {
            spec.name: Tensor(spec=spec, buffer=Memory(2**30 * (i + 1) + 4096 * j, 64), offset=256)
            for j, spec in enumerate(specs)
        }
        for i in range(count)
    ]


@pytest.fixture
def two_calls(monkeypatch):
    monkeypatch.setitem(
        BUILT,
        "main",
        built("main", shared_bytes=60_000, scratch_bytes=128, resources={"registers": 90}),
    )
    monkeypatch.setitem(BUILT, "reduce", built("reduce", threads=64))
    first = (("a", "f16", "a"), ("c", "f16", "c"), ("d", "f32", WORKSPACE), ("m", "i32", 7))
    second = (("parts", "f32", WORKSPACE), ("d", "f16", "d"), ("alpha", "fp32", 0.5))
    calls = (call("main", *first, grid=(2, 3, 4)), call("reduce", *second, grid=(9, 1, 1)))
    return KernelPlan(calls=calls, workspace_bytes=4096)


def test_each_set_is_launched_with_its_own_addresses(two_calls):
    pointer, hidden = ctypes.c_uint64, (ctypes.c_uint64, ctypes.c_uint64)
    driver = Driver(
        {
            10010: (pointer, pointer, pointer, ctypes.c_int32, *hidden),
            10020: (pointer, pointer, ctypes.c_float, *hidden),
        }
    )
    gpu = Gpu(driver)
    given = sets(2)
    kernel = TritonKernel(two_calls, gpu, given)
    workspace, scratch = gpu.held
    for index in (1, 0):
        driver.launched.clear()
        kernel.launch(77, index)
        main, reduce = driver.launched
        # The problem has no C: its address is never used. Two hidden arguments come last.
        assert main.values == [given[index]["a"].address, 0, workspace, 7, scratch, 0]
        assert reduce.values == [workspace, given[index]["d"].address, 0.5, 0, 0]
        assert (main.grid, main.block, main.shared_bytes) == ((2, 3, 4), (128, 1, 1), 60_000)
        assert (reduce.grid, reduce.block, reduce.stream) == ((9, 1, 1), (64, 1, 1), 77)


def test_a_descriptor_is_made_for_the_address_of_each_set(monkeypatch):
    layout = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [16, 64]}
    monkeypatch.setitem(BUILT, "main", built("main", maps=(layout,)))
    matrix = TensorBlocks(tensor="b", shape=(40, 96), strides=(96, 1))
    one = call("main", ("m", "i32", 7), grid=(1, 1, 1))
    described = Argument(name="b", kind="bf16", pointer=False, block=(16, 64))
    one = dataclasses.replace(
        one, arguments=(described, *one.arguments), values=(matrix, *one.values)
    )
    sizes = (ctypes.c_int32, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)
    hidden = (ctypes.c_uint64, ctypes.c_uint64)
    driver = Driver({10010: (ctypes.c_byte, *sizes, ctypes.c_int32, *hidden)})
    given = sets(2)
    kernel = TritonKernel(KernelPlan(calls=(one,)), Gpu(driver), given)
    # From the innermost dim outwards; type 9 is bf16. 128-byte promotion, zeros out of bounds.
    assert driver.mapped == [
        (9, given[i]["b"].address, [96, 40], [192], [64, 16], [0, 3, 2, 0]) for i in range(2)
    ]
    kernel.launch(77, 1)
    assert driver.launched[0].values == [91, 40, 96, 96, 1, 7, 0, 0]


def test_what_must_be_zero_before_the_first_launch_is_made_so(monkeypatch):
    monkeypatch.setitem(BUILT, "main", built("main"))
    one = call("main", ("arrivals", "i32", ZEROED), ("parts", "f32", WORKSPACE), grid=(1, 1, 1))
    driver = Driver({10010: (ctypes.c_uint64,) * 4})
    gpu = Gpu(driver)
    plan = KernelPlan(calls=(one,), workspace_bytes=64, zeroed_bytes=8)
    kernel = TritonKernel(plan, gpu, sets(1))
    workspace, zeroed = gpu.held
    assert driver.filled == [(zeroed, 0, 8, 77)]  # in order with the launches, which come after
    kernel.launch(77, 0)
    assert driver.launched[0].values == [zeroed, workspace, 0, 0]


def test_turned_operands_have_memory_that_is_told_and_given_back(monkeypatch):
    for name in ("turn", "main"):
        monkeypatch.setitem(BUILT, name, built(name))
    turn = call("turn", ("source", "i8", "a"), ("target", "i8", "turned a"), grid=(1, 1, 1))
    main = call("main", ("a", "i8", "turned a"), ("d", "i32", "d"), grid=(1, 1, 1))
    driver = Driver({10010: (ctypes.c_uint64,) * 4, 10020: (ctypes.c_uint64,) * 4})
    gpu = Gpu(driver)
    given = sets(1)
    plan = KernelPlan(calls=(turn, main), main=1, named_bytes={"turned a": 640})
    kernel = TritonKernel(plan, gpu, given)
    (turned,) = gpu.held
    kernel.launch(77, 0)
    first, second = driver.launched
    assert first.values == [given[0]["a"].address, turned, 0, 0]
    assert second.values == [turned, given[0]["d"].address, 0, 0]
    assert kernel.info.resources["workspace_bytes"] == 640
    kernel.close()
    assert gpu.held == []


def test_what_a_kernel_tells_and_gives_back(two_calls):
    driver = Driver()
    gpu = Gpu(driver)
    kernel = TritonKernel(two_calls, gpu, sets(1))
    assert driver.loaded == [b"main", b"reduce"]
    assert driver.allowed == [(10010, 60_000)]  # more than 48 KiB has to be asked for
    assert kernel.info.name == "main+reduce"
    assert kernel.info.compile_s == 1.0
    assert kernel.info.resources == {"registers": 90, "workspace_bytes": 4096}
    assert len(gpu.held) == 2  # the workspace; scratch memory for 24 programs
    kernel.close()
    assert gpu.held == []
    assert driver.unloaded == [1001, 1002]
    kernel.close()
    assert driver.unloaded == [1001, 1002]


def test_too_much_shared_memory_is_refused_before_anything_is_loaded(two_calls, monkeypatch):
    monkeypatch.setitem(BUILT, "main", built("main", shared_bytes=100_001))
    driver = Driver()
    gpu = Gpu(driver)
    fields = {"kernel": "main", "needed": 100_001, "most": 100_000}
    with raises(Unsupported, **fields):
        TritonKernel(two_calls, gpu, sets(1))
    assert driver.loaded == []
    assert gpu.held == []


def test_a_module_that_does_not_load_leaves_nothing_behind(two_calls):
    driver = Driver(full=True)
    gpu = Gpu(driver)
    with pytest.raises(OutOfMemory):
        TritonKernel(two_calls, gpu, sets(1))
    assert gpu.held == []
    assert driver.unloaded == [1001]


def test_a_device_that_does_not_tell_its_shared_memory_is_trusted():
    silent = DeviceInfo(name="cuda:0", kind="cuda", model="", arch=ARCH, index=0)
    check_fits(built("main", shared_bytes=10**9), silent)
