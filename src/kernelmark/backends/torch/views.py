"""Our tensors as torch tensors, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmark.devices.base import Device, Tensor
from kernelmark.devices.cpu import array

TORCH_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i8": "int8",
    "i32": "int32",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
}


def view(tensor: Tensor, device: Device) -> Any:
    """A torch tensor on the same memory, of the spec's shape and dtype."""
    import torch

    held = array(tensor)
    # torch knows few unsigned types: go through the signed one of the same width.
    signed = held.view(np.dtype(f"i{held.dtype.itemsize}"))
    return torch.from_numpy(signed).view(getattr(torch, TORCH_NAMES[tensor.spec.dtype]))
