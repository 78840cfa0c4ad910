"""What the device's own kernels compute, read from their source and done in NumPy."""

import re

import numpy as np
import pytest

from kernelmark.devices._gpu import _BLOCK, _STRAIN_ROUNDS
from kernelmark.kernels import rtc as kernels

CHAINS = "abcd"


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "rounded twice"])
def test_compute_strain_neither_overflows_nor_settles(fused):
    """Operands that stay as they are draw little power: the strain would be none."""
    kernel = kernels.source("device.cu").partition("KERNEL strain_compute(")[2]
    kernel = re.sub(r"([\d.e-]+)f\b", r"float32(\1)", kernel)
    first, body = re.findall(r"float (a = .*?);.*?\{(.*?)\}", kernel, re.DOTALL)[0]
    names = {"thread": np.arange(_BLOCK, dtype=np.float32), "float32": np.float32}
    start = first.replace("threadIdx.x", "thread").replace(", ", "\n")
    exec(start, names)
    step = compile("\n".join(line.strip(" ;") for line in body.splitlines()), "body", "exec")
    now = np.stack([names[chain] for chain in CHAINS])
    seen = []
    for left in reversed(range(_STRAIN_ROUNDS)):
        before = now
        # A product of two float32 is exact in float64: rounded once, as a fused one is.
        values = dict(zip(CHAINS, now.astype(np.float64) if fused else now, strict=True))
        exec(step, {"float32": np.float32}, values)
        now = np.stack([values[chain] for chain in CHAINS]).astype(np.float32)
        assert np.all(now != before), f"{left} rounds before the end"
        seen += [now] if left < 8 else []
    assert np.all(np.isfinite(seen))
    assert np.all(now != 0)
    assert all(len(set(column)) == 8 for column in np.reshape(seen, (8, -1)).T)
