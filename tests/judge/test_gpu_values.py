"""Secret inputs by secret.cu, emulated, are those by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kernelmark import devices
from kernelmark.core.tensor import TensorSpec
from kernelmark.devices.base import Tensor
from kernelmark.judge.gpu_values import GpuValues
from kernelmark.judge.values import Values, pack_bits
from kernelmark_dev.emulator import emulated

KEY = bytes(range(16))


@pytest.fixture(scope="module")
def gpu(compiler):
    with emulated():
        device = devices.registry.get("cuda").open(0)
        yield device
        device.close()


def tensors_of(device, spec: TensorSpec, count: int) -> list[Tensor]:
    stride = -(-spec.nbytes // 256) * 256
    buffer = device.allocate(count * stride)
    return [Tensor(spec=spec, buffer=buffer, offset=n * stride) for n in range(count)]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f8e4m3"])
def test_the_values_are_those_of_the_host(gpu, dtype, count):
    values = Values(KEY)
    spec = TensorSpec(name="a", shape=(count,), dtype=dtype)
    made = GpuValues(gpu, values)
    numbered = [(tensor, values.next_number()) for tensor in tensors_of(gpu, spec, 3)]
    assert all(made.can_make(spec, number) for _, number in numbered)
    made.write(numbered)
    for tensor, number in numbered:
        expected = pack_bits(spec, values.bits(spec, number))
        assert np.array_equal(gpu.read(tensor.buffer, tensor.offset, spec.nbytes), expected)
    assert made.count_altered(numbered) == [0, 0, 0]
    tensor = numbered[1][0]
    flipped = gpu.read(tensor.buffer, tensor.offset, spec.nbytes).copy()
    flipped[-1] ^= 1
    gpu.write(tensor.buffer, tensor.offset, flipped)
    assert made.count_altered(numbered) == [0, 1, 0]
    made.close()


def test_more_tensors_than_a_launch_takes(gpu):
    values = Values(KEY)
    spec = TensorSpec(name="a", shape=(40,), dtype="bf16")
    made = GpuValues(gpu, values)
    numbered = [(tensor, values.next_number()) for tensor in tensors_of(gpu, spec, 70)]
    made.write(numbered)
    assert made.count_altered(numbered) == [0] * 70
    tensor, number = numbered[-1]
    expected = pack_bits(spec, values.bits(spec, number))
    assert np.array_equal(gpu.read(tensor.buffer, tensor.offset, spec.nbytes), expected)
    made.close()


def test_what_the_kernels_do_not_make():
    number = Values(KEY).next_number()
    for dtype, low, high in (("f32", 0.0, 3.0), ("f64", -1.0, 1.0), ("i8", -8, 7)):
        spec = TensorSpec(name="a", shape=(4,), dtype=dtype, low=low, high=high)
        assert not GpuValues.can_make(spec, number)
    spec = TensorSpec(name="a", shape=(4,), dtype="f32")
    assert GpuValues.can_make(spec, number)
    assert not GpuValues.can_make(spec, Values(KEY).next_number("zeros"))
