"""NVIDIA GPUs through the CUDA driver."""

from __future__ import annotations

from kernelmark.devices._gpu_kind import GpuKind

kind = GpuKind("cuda")
