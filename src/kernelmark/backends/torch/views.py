"""Torch tensors on our memory, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmark.core.dtype import TORCH_NAMES
from kernelmark.devices.base import Tensor
from kernelmark.devices.cpu import array


def view(tensor: Tensor) -> Any:
    """Return a torch tensor on the same memory, of the spec's shape and dtype."""
    import torch

    held, name = array(tensor), TORCH_NAMES[tensor.spec.dtype]
    if held.dtype.name == name:
        return torch.from_numpy(held)
    # torch has few unsigned types: use the signed one of the same width.
    signed = held.view(np.dtype(f"i{held.dtype.itemsize}"))
    return torch.from_numpy(signed).view(getattr(torch, name))
