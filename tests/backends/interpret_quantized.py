"""Runs plans of the quantised Triton kernels in Triton's interpreter, on the CPU.

Started with TRITON_INTERPRET=1. Reads a JSON list of [problem, config] from stdin; writes one JSON
line for each: the largest error in units of the op's tolerance, or what was raised. The interpreter
computes bf16 products wrongly, so the emulation multiplies in f32 here; it loses the carry when it
rounds to fp8 (31.4 becomes 16), so our own rounding takes its place. Every other step is the one
that the GPU does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from kernelmark import ops
from kernelmark.backends.triton import _planner
from kernelmark.backends.triton.launch import WORKSPACE, Call
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.problem import Problem
from kernelmark.numerics.floats import encode
from kernelmark.numerics.generate import Inputs

TYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "f8e4m3": torch.float8_e4m3fn,
}
INFO = DeviceInfo(name="cuda:0", kind="cuda", model="none", arch="sm_90", index=0, units=4)

_CONVERT = interpreter._convert_float


def convert(values: np.ndarray, source: Any, target: Any, mode: Any) -> np.ndarray:
    if source == tl.float32 and target == tl.float8e4nv:
        return encode(values.view(np.float32).astype(np.float64), "f8e4m3").reshape(values.shape)
    return _CONVERT(values, source, target, mode)


def launch(call: Call, tensors: dict[str, torch.Tensor]) -> None:
    given: dict[str, Any] = {}
    for argument, value in zip(call.arguments, call.values, strict=True):
        if not argument.pointer:
            given[argument.name] = value
            continue
        absent = torch.full((1,), 77, dtype=torch.float32).to(TYPES[argument.kind])
        found = tensors.get(str(value), absent)
        assert found.dtype == TYPES[argument.kind], (argument.name, found.dtype)
        given[argument.name] = found
    constants = dict(call.constants)
    if "PRODUCT" in constants:
        constants["PRODUCT"] = tl.float32
    call.function[call.grid](**given, **constants)


def tensor_of(values: np.ndarray, dtype_name: str) -> torch.Tensor:
    codes = encode(values, dtype_name)
    if dtype_name == "f4e2m1":
        return torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4)  # low half first
    raw = torch.from_numpy(codes.view(f"i{codes.itemsize}").copy())
    wanted = torch.uint8 if dtype_name == "f8e8m0" else TYPES[dtype_name]
    return raw.view(wanted)


def worst_error(problem: Problem, config: dict[str, Any]) -> float:
    op = ops.registry.get(problem.op)
    inputs = Inputs(op.tensors(problem), 3, 1)
    tensors = {}
    for spec in op.tensors(problem):
        if spec.role == "in":
            values = inputs.take(spec.name, np.arange(spec.count)).reshape(spec.shape)
            tensors[spec.name] = tensor_of(values, spec.dtype)
    spec = op.output(problem)
    room = torch.full((spec.count + 512,), float("nan"), dtype=TYPES[spec.dtype])
    tensors[spec.name] = room[256:-256]
    plan = _planner(problem).plan(problem, config, INFO)
    if plan.workspace_bytes:
        tensors[WORKSPACE] = torch.full((plan.workspace_bytes // 4,), float("nan"))
    for call in plan.calls:
        launch(call, tensors)
    assert bool(room[:256].isnan().all() & room[-256:].isnan().all()), "a guard was written"
    got = tensors[spec.name].double().numpy()
    right = op.reference(problem, inputs, np.arange(got.size))
    allowed = op.tolerance(problem)
    limit = allowed.per_magnitude * right.magnitude + allowed.absolute
    limit += allowed.per_value * np.abs(right.value)
    ratio = np.abs(got - right.value) / limit
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))


def main() -> None:
    interpreter._convert_float = convert
    for key, config in json.load(sys.stdin):
        try:
            answer: object = worst_error(ops.parse(key), config)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
