"""Projections by project.cu, emulated, are those by NumPy."""

import dataclasses

import numpy as np
import pytest

from kernelmark import devices, ops
from kernelmark.devices import _gpu_memory
from kernelmark.devices.base import Tensor
from kernelmark.numerics import project as numpy_project
from kernelmark.numerics.floats import encode, storage
from kernelmark.numerics.project import Projection
from kernelmark_dev.emulator import emulated

CONV = {"n": 2, "c": 4, "h": 9, "w": 8, "k": 6, "r": 3, "s": 2, "pad": 1, "groups": 2}
PROBLEMS = [
    ops.registry.get(name).problem(**given)
    for name, given in [
        ("gemm", {"m": 70, "n": 50, "k": 300, "dtype": "f64", "tb": "t"}),
        ("gemm", {"m": 50, "n": 70, "k": 40, "dtype": "f32", "ta": "t", "bias": True}),
        ("gemm", {"m": 40, "n": 33, "k": 65, "dtype": "f16", "beta": 0.5, "alpha": -2.0}),
        ("gemm", {"m": 3, "n": 300, "k": 40, "dtype": "bf16", "tb": "t", "bias": True}),
        ("gemm", {"m": 300, "n": 1, "k": 1, "dtype": "bf16"}),
        ("gemm", {"m": 20, "n": 40, "k": 40, "dtype": "i8", "tb": "t"}),
        ("gemm", {"m": 20, "n": 40, "k": 40, "a": "f8e4m3", "b": "f8e5m2"}),
        ("gemm", {"m": 20, "n": 40, "k": 40, "a": "f8e4m3", "b": "f8e5m2", "c": "f8e5m2"}),
        ("gemm", {"m": 40, "n": 20, "k": 40, "a": "f8e4m3fnuz", "b": "f8e5m2fnuz"}),
        ("gemm", {"m": 40, "n": 40, "k": 9, "dtype": "f8e4m3fnuz", "c": "f8e5m2fnuz"}),
        ("batched_gemm", {"batch": 5, "m": 40, "n": 6, "k": 35, "dtype": "f32", "bias": True}),
        ("batched_gemm", {"batch": 3, "m": 6, "n": 40, "k": 35, "dtype": "bf16", "tb": "t"}),
        ("conv", {**CONV, "dtype": "bf16"}),
        ("conv", {**CONV, "dtype": "f16", "layout": "nhwc", "stride": 2}),
        ("conv", {**CONV, "dtype": "i8", "c": 80, "k": 80, "layout": "nhwc", "dilation": 2}),
    ]
]


@pytest.fixture(scope="module")
def gpu(compiler):
    with emulated():
        device = devices.registry.get("cuda").open(0)
        yield device
        device.close()


@pytest.fixture(scope="module")
def cpu():
    device = devices.registry.get("cpu").open(0)
    yield device
    device.close()


def filled(device, problem, seed):
    """Inputs as they are generated, and any numbers as the output."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for spec in ops.registry.get(problem.op).tensors(problem):
        tensors[spec.name] = Tensor(spec=spec, buffer=device.allocate(spec.nbytes), offset=0)
        if spec.role == "in":
            device.generate(tensors[spec.name], seed, 0)
        else:
            bits = encode(rng.normal(size=spec.count) * 100, spec.dtype)
            device.write(tensors[spec.name].buffer, 0, bits.view(np.uint8))
    return tensors


def projected(device, problem, seed=1):
    contraction = ops.registry.get(problem.op).contraction(problem)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], contraction.cols)
    tensors = filled(device, problem, seed)
    found = device.project(contraction, tensors, signs)()
    for tensor in tensors.values():
        device.free(tensor.buffer)
    return found


def assert_same(one, other):
    for field in dataclasses.fields(Projection):
        left, right = getattr(one, field.name), getattr(other, field.name)
        scale = float(np.abs(left).max())
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-12 * scale)


@pytest.mark.parametrize("problem", PROBLEMS, ids=[problem.key for problem in PROBLEMS])
def test_a_gpu_projects_as_numpy_does(gpu, cpu, problem):
    assert_same(projected(gpu, problem), projected(cpu, problem))


@pytest.mark.parametrize("problem", PROBLEMS[::3], ids=[problem.key for problem in PROBLEMS[::3]])
def test_columns_split_over_blocks_are_the_same(gpu, cpu, problem, monkeypatch):
    expected = projected(cpu, problem)
    monkeypatch.setattr(_gpu_memory, "_FEWEST_COLS", {"along": 32, "across": 1})
    monkeypatch.setattr(_gpu_memory, "_BLOCKS_PER_UNIT", 1000)
    assert_same(projected(gpu, problem), expected)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("problem", PROBLEMS[1::4], ids=[p.key for p in PROBLEMS[1::4]])
def test_numpy_in_chunks_is_the_same(cpu, problem, chunk, monkeypatch):
    expected = projected(cpu, problem)
    monkeypatch.setattr(numpy_project, "_CHUNK", chunk)
    assert_same(projected(cpu, problem), expected)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"])
def test_every_code_has_its_value(gpu, cpu, kind):
    """A column of all codes of a format, one a row: finite ones exactly, others not finite."""
    bits = np.arange(2 ** (8 * storage(kind).itemsize)).astype(storage(kind))
    inputs = kind if kind.startswith("f8") else {"f16": "f16", "bf16": "bf16"}[kind]
    problem = ops.registry.get("gemm").problem(m=bits.size, n=1, k=1, dtype=inputs, c=kind)
    contraction = ops.registry.get("gemm").contraction(problem)
    assert contraction is not None
    found = []
    for device in (cpu, gpu):
        tensors = filled(device, problem, 1)
        device.write(tensors["d"].buffer, 0, bits.view(np.uint8))
        found.append(device.project(contraction, tensors, np.ones(1))().got)
        for tensor in tensors.values():
            device.free(tensor.buffer)
    finite = np.isfinite(found[0])
    assert np.array_equal(found[0][finite], found[1][finite])
    assert not np.isfinite(found[1][~finite]).any()
