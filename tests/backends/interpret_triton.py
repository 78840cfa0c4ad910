"""Runs plans of the triton backend in Triton's interpreter, on the CPU.

Started with TRITON_INTERPRET=1. Reads a JSON list of [problem, config, arch] from stdin; writes one
JSON line for each: the largest error in units of the op's tolerance, or what was raised. A plan
with memory that every launch must leave zero is launched again with its programs in other orders,
and must give the same bits.

The interpreter computes bf16 products wrongly, so the emulation of MXFP4 multiplies in f32 here; it
loses the carry when it rounds to fp8 (31.4 becomes 16), so our own rounding takes its place.
"""

import contextlib
import json
import random
import sys

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelmark import ops
from kernelmark.backends.triton import _planner
from kernelmark.backends.triton.launch import WORKSPACE, ZEROED
from kernelmark.core.environment import DeviceInfo
from kernelmark.numerics.floats import encode
from kernelmark.numerics.generate import Inputs

TYPES = {"f32": torch.float32, "f16": torch.float16, "f8e5m2": torch.float8_e5m2}
TYPES |= {"i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "u8": torch.uint8}
TYPES |= {"bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn, "f8e8m0": torch.uint8}
_CONVERT = interpreter._convert_float


def convert(values, source, target, mode):
    if source == tl.float32 and target == tl.float8e4nv:
        return encode(values.view(np.float32).astype(np.float64), "f8e4m3").reshape(values.shape)
    return _CONVERT(values, source, target, mode)


def tensor_of(values, dtype_name):
    codes = encode(values, dtype_name)
    if dtype_name == "f4e2m1":
        return torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4)  # low half first
    raw = torch.from_numpy(codes.view(f"i{codes.itemsize}").copy())
    return raw.view(TYPES[dtype_name])


def device_info(arch):
    kind = "cuda" if arch.startswith("sm") else "hip"
    return DeviceInfo(name=f"{kind}:0", kind=kind, model="none", arch=arch, index=0, units=4)


def launch(call, tensors, raw):
    """One call of a plan, as the driver would get it; `raw` is memory that any type may be in."""
    given = {}
    for argument, value in zip(call.arguments, call.values, strict=True):
        if argument.block:
            base = tensors[value.tensor].view(TYPES[argument.kind])
            strides, block = list(value.strides), list(argument.block)
            given[argument.name] = TensorDescriptor(base, list(value.shape), strides, block)
            continue
        if not argument.pointer:
            given[argument.name] = value
            continue
        # An operand that the problem lacks is never read: one element, which would not suffice.
        absent = torch.full((1,), 77.0).to(TYPES[argument.kind])
        found = tensors.get(str(value), absent)
        # A copy takes its source as integers of the same size.
        if value in raw or argument.name == "source":
            found = found.view(TYPES[argument.kind])
        assert found.dtype == TYPES[argument.kind], (argument.name, found.dtype)
        given[argument.name] = found
    emulated = {"PRODUCT": tl.float32} if "PRODUCT" in call.constants else {}
    call.function[call.grid](**given, **{**call.constants, **emulated})


@contextlib.contextmanager
def shuffled(seed):
    """Programs run in an order of their own, as a GPU may run them."""
    from triton.runtime.interpreter import interpreter_builder as builder

    plain = builder.set_grid_idx
    left = []

    def put(x, y, z):
        if (x, y, z) == (0, 0, 0):
            width, height, depth = builder.grid_dim
            left[:] = [(i, j, k) for i in range(width) for j in range(height) for k in range(depth)]
            random.Random(seed).shuffle(left)
        plain(*left.pop())

    builder.set_grid_idx = put
    try:
        yield
    finally:
        del builder.set_grid_idx


def worst_error(problem, config, arch):
    op = ops.registry.get(problem.op)
    inputs = Inputs(op.tensors(problem), 3, 1)
    tensors = {}
    for spec in op.tensors(problem):
        if spec.role == "in":
            values = inputs.take(spec.name, np.arange(spec.count)).reshape(spec.shape)
            tensors[spec.name] = tensor_of(values, spec.dtype)
    spec = op.output(problem)
    # Guards on both sides; what is never written stays a NaN, or an answer no case has.
    unset = float("nan") if spec.type.kind == "float" else -(2**31) + 5
    room = torch.full((spec.count + 512,), unset, dtype=TYPES[spec.dtype])
    tensors[spec.name] = room[256:-256]
    plan = _planner(problem).plan(problem, config, device_info(arch))
    if plan.workspace_bytes:
        tensors[WORKSPACE] = torch.full((plan.workspace_bytes // 4,), float("nan"))
    copies = {
        name: torch.full((nbytes + 256,), 77, dtype=torch.int8)
        for name, nbytes in plan.named_bytes.items()
    }
    tensors |= {name: copy[:-256] for name, copy in copies.items()}
    raw = {WORKSPACE, *plan.named_bytes}
    zeroed = tensors[ZEROED] = torch.zeros(max(1, plan.zeroed_bytes // 4), dtype=torch.int32)
    for call in plan.calls:
        launch(call, tensors, raw)
    assert not zeroed.any(), "what must be zero before every launch is not"
    assert all((copy[-256:] == 77).all() for copy in copies.values()), "a copy is too long"
    first = room.clone()
    for seed in range(3 if plan.zeroed_bytes else 0):
        room[256:-256] = unset
        tensors[WORKSPACE].fill_(float("nan"))
        with shuffled(seed):
            for call in plan.calls:
                launch(call, tensors, raw)
        assert not zeroed.any(), "a launch in another order leaves it other than zero"
        assert torch.equal(first.nan_to_num(77), room.nan_to_num(77)), "an order gives other bits"
    for guard in (room[:256], room[-256:]):
        assert torch.equal(guard, torch.full_like(guard, unset)) or bool(guard.isnan().all())
    return compare(problem, inputs, tensors[spec.name].double().numpy())


def compare(problem, inputs, got):
    op = ops.registry.get(problem.op)
    right = op.reference(problem, inputs, np.arange(got.size))
    allowed = op.tolerance(problem)
    limit = allowed.per_magnitude * right.magnitude + allowed.absolute
    limit += allowed.per_value * np.abs(right.value)
    error = np.abs(got - right.value)
    ratio = np.where(error == 0, 0.0, error / np.maximum(limit, 1e-300))
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))


def main():
    interpreter._convert_float = convert
    for key, config, arch in json.load(sys.stdin):
        try:
            answer = worst_error(ops.parse(key), config, arch)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
