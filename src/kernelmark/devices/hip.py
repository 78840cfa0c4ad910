"""AMD GPUs through the HIP runtime. Not yet run on AMD hardware."""

from __future__ import annotations

from kernelmark.devices._gpu_kind import GpuKind

kind = GpuKind("hip")
