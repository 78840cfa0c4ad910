"""Which problems each backend computes on which device, and which it refuses: for another dtype,
layout, scale or epilogue than its library has, nothing else is computed in silence."""

import pytest

from kernelmark import backends, ops
from kernelmark.core.environment import DeviceInfo
from kernelmark.gpu.architectures import absent, is_known
from kernelmark.testing.backends import assert_sentence

GEMM = "gemm m=64 n=64 k=64"
BATCHED = "batched_gemm batch=2 m=8 n=8 k=8"
EPILOGUE = "gemm_epilogue m=16 n=16 k=32"
QUANT = "batched_gemm_quant batch={} m=16 n=16 k=64 scheme={}"
ATTENTION = "attention heads=2 seq=64"
SWIZZLED = "scale=mx scale_layout=swizzle_32_4_4"
CONV = "conv n=1 c=8 h=8 w=8 k=8 r=3 s=3"
COPY = "copy n=64 dtype=f32"

# By backend and device: an architecture, or the machine of a CPU.
COMPUTES = {
    ("cublaslt", "sm_90"): (f"{GEMM} dtype=f8e4m3 tb=t", f"{GEMM} dtype=bf16 ta=t"),
    ("cublaslt", "sm_89"): (f"{EPILOGUE} dtype=f8e4m3 tb=t scale=tensor",),
    ("cublaslt", "sm_100"): (f"{EPILOGUE} dtype=f8e4m3 {SWIZZLED}",),
    ("hipblaslt", "gfx90a"): (f"{EPILOGUE} dtype=f16",),
    ("hipblaslt", "gfx942"): (
        f"{GEMM} dtype=f8e4m3fnuz",
        f"{EPILOGUE} dtype=f8e5m2fnuz scale=tensor",
    ),
    ("hipblaslt", "gfx950"): (
        f"{GEMM} dtype=f8e4m3",
        f"{EPILOGUE} dtype=f4e2m1 scale=mx",
        QUANT.format(1, "afp4wfp4"),
    ),
    ("hipblaslt", "gfx1201"): (f"{GEMM} dtype=f8e4m3", f"{EPILOGUE} dtype=f8e5m2 scale=tensor"),
    ("rocblas", "gfx942"): (f"{GEMM} dtype=f16 acc=f16",),
    ("aiter", "gfx942"): (f"{GEMM} dtype=bf16 tb=t",),
    ("torch", "sm_90"): (
        f"{GEMM} dtype=f8e4m3 c=bf16 tb=t",
        f"{EPILOGUE} dtype=f16 act=gelu",
        f"{EPILOGUE} dtype=f8e4m3 bias=yes scale=tensor tb=t",
    ),
    ("torch", "sm_100"): (f"{EPILOGUE} dtype=f8e4m3 {SWIZZLED}",),
    ("torch", "gfx942"): (f"{GEMM} dtype=f8e4m3fnuz c=bf16 tb=t",),
    ("torch", "gfx950"): (f"{GEMM} dtype=f8e4m3 c=bf16 tb=t", f"{EPILOGUE} dtype=f4e2m1 scale=mx"),
    ("torch", "gfx1201"): (f"{GEMM} dtype=f8e4m3 c=bf16 tb=t",),
    ("triton", "gfx90a"): (f"{GEMM} dtype=bf16",),
    ("triton", "gfx942"): (f"{GEMM} dtype=f8e5m2fnuz", f"{CONV} dtype=i8"),
    ("triton", "gfx950"): (f"{GEMM} dtype=f8e4m3",),
    ("iree", "x86_64"): tuple(
        f"{GEMM} dtype={name}" for name in ("f64", "f32", "f16", "bf16", "i8")
    ),
}
REFUSES = {
    ("cublaslt", "sm_90"): (
        f"{ATTENTION} dim=8 dtype=f16",
        f"{GEMM} dtype=f8e4m3fnuz tb=t",
        f"{GEMM} dtype=i8 bias=yes",
        f"{GEMM} dtype=f8e4m3",  # 8-bit operands have k innermost
        f"{EPILOGUE} dtype=f16 act=silu",
        f"{EPILOGUE} dtype=f8e4m3 {SWIZZLED}",
        f"{EPILOGUE} dtype=f4e2m1 {SWIZZLED}",
        f"{EPILOGUE} dtype=bf16 bias=yes bias_type=f32",
    ),
    ("cublaslt", "sm_80"): (f"{EPILOGUE} dtype=f8e4m3 tb=t scale=tensor",),
    ("cublaslt", "sm_100"): (
        f"{EPILOGUE} dtype=f8e4m3 scale=mx",
        f"{EPILOGUE} dtype=f4e2m1 {SWIZZLED}",
    ),
    ("cublaslt", "gfx942"): (f"{GEMM} dtype=f16",),
    ("hipblaslt", "gfx90a"): (f"{GEMM} dtype=f8e4m3",),
    ("hipblaslt", "gfx942"): (
        f"{ATTENTION} dim=8 dtype=f16",
        f"{GEMM} dtype=f8e4m3",
        f"{GEMM} dtype=f16 acc=f16",
        QUANT.format(1, "afp4wfp4"),
        f"{EPILOGUE} dtype=f4e2m1 scale=mx",
    ),
    ("hipblaslt", "gfx950"): (
        f"{GEMM} dtype=f8e4m3fnuz",
        QUANT.format(2, "afp4wfp4"),
        QUANT.format(1, "a8w8"),
        f"{EPILOGUE} dtype=f4e2m1 {SWIZZLED}",
    ),
    ("hipblaslt", "gfx1201"): (f"{EPILOGUE} dtype=f8e4m3 scale=mx",),
    ("hipblaslt", "sm_90"): (f"{GEMM} dtype=f16",),
    ("rocblas", "gfx942"): (
        f"{GEMM} dtype=f8e4m3fnuz",
        f"{GEMM} dtype=bf16 bias=yes",
        f"{EPILOGUE} dtype=f16 act=relu",
        COPY,
    ),
    ("rocblas", "sm_90"): (f"{GEMM} dtype=f16",),
    ("aiter", "gfx942"): (
        f"{GEMM} dtype=bf16",
        f"{GEMM} dtype=bf16 tb=t alpha=0.5",
        f"{GEMM} dtype=f32 tb=t",
        f"{BATCHED} dtype=bf16 tb=t bias=yes",
        QUANT.format(2, "afp4wfp4"),
        f"{ATTENTION} dim=8 dtype=f32",
        f"{EPILOGUE} dtype=f16 act=relu",
        COPY,
    ),
    ("aiter", "gfx950"): (QUANT.format(2, "afp4wfp4 a_order=mbk"),),
    ("aiter", "sm_90"): (f"{GEMM} dtype=bf16 tb=t",),
    ("torch", "x86_64"): (
        f"{GEMM} dtype=f8e4m3",
        f"{GEMM} dtype=f8e5m2fnuz",
        f"{GEMM} dtype=f16 acc=f16",
        f"{GEMM} dtype=bf16 c=f32",
        f"{GEMM} dtype=bf16 beta=1.0 bias=yes",  # rounds twice
        f"{BATCHED} dtype=i8",
        f"{ATTENTION} dim=8 dtype=f8e4m3",
        f"{ATTENTION} dim=8 dtype=bf16 kv=f8e4m3",
        f"{ATTENTION} dim_qk=8 dim_v=4 dtype=bf16",  # converted, unless the dims are equal
        "conv n=1 c=4 h=4 w=4 k=4 r=1 s=1 dtype=i8",
    ),
    ("torch", "sm_90"): (
        f"{GEMM} dtype=f8e4m3fnuz c=bf16 tb=t",
        f"{EPILOGUE} dtype=f16 c=f32 act=gelu",
        f"{EPILOGUE} dtype=f16 bias=yes bias_type=f32",
        f"{EPILOGUE} dtype=f8e4m3 c=f32 bias=yes scale=tensor tb=t",
        f"{EPILOGUE} dtype=f8e4m3 c=f8e4m3 scale=tensor tb=t",
    ),
    ("torch", "sm_100"): (f"{EPILOGUE} dtype=f4e2m1 {SWIZZLED}",),
    ("torch", "gfx90a"): (
        f"{GEMM} dtype=f8e4m3 c=bf16 tb=t",
        f"{GEMM} dtype=f8e4m3fnuz c=bf16 tb=t",
    ),
    ("torch", "gfx942"): (f"{GEMM} dtype=f8e4m3 c=bf16 tb=t",),
    ("torch", "gfx950"): (f"{GEMM} dtype=f8e4m3fnuz c=bf16 tb=t",),
    ("triton", "sm_90"): (
        f"{GEMM} dtype=f64",
        f"{GEMM} dtype=f16 acc=f16",
        f"{ATTENTION} dim=64 dtype=f32",
        f"{ATTENTION} dim=512 dtype=f16",
        f"{ATTENTION} dim=64 q=bf16 kv=f8e4m3",
        f"{CONV} dtype=f64",
        "batched_gemm_quant batch=1 m=4 n=4 k=32 b=f8e4m3fnuz scheme=a8w8_group",
        "batched_gemm_quant batch=1 m=4 n=4 k=200000 scheme=a8w8",  # int32 sums would overflow
    ),
    ("triton", "sm_80"): (f"{GEMM} dtype=f8e4m3",),
    ("triton", "gfx942"): (f"{GEMM} dtype=f8e4m3", f"{ATTENTION} dim=64 dtype=f8e4m3"),
    ("triton", "gfx950"): (f"{GEMM} dtype=f8e5m2fnuz",),
    ("triton", "x86_64"): (f"{GEMM} dtype=f16",),
    ("numpy", "x86_64"): (
        f"{GEMM} dtype=bf16",
        f"{BATCHED} dtype=f8e4m3",
        f"{ATTENTION} dim=8 dtype=f16 kv=f8e5m2",
        "conv n=1 c=4 h=4 w=4 k=4 r=1 s=1 dtype=bf16",
        f"{GEMM} dtype=f16 acc=f16",
        f"{GEMM} dtype=f16 alpha=0.5",  # rounds twice
        f"{GEMM} dtype=f16 bias=yes",
    ),
    ("numpy", "sm_90"): (f"{GEMM} dtype=f32",),
    # 8-bit floats would be emulated, bit by bit.
    ("iree", "x86_64"): (
        f"{GEMM} dtype=f8e4m3",
        f"{BATCHED} dtype=f8e5m2fnuz",
        f"{ATTENTION} dim=8 dtype=f16 kv=f8e4m3",
    ),
    ("iree", "fake"): (f"{GEMM} dtype=f32",),
}


def listed(table):
    return [(*where, key) for where, keys in table.items() for key in keys]


def reason_of(backend, arch, key):
    kind = "fake" if arch == "fake" else "cpu"
    here = DeviceInfo(name=kind, kind=kind, model="", arch=arch, index=0)
    info = absent(arch) if is_known(arch) else here
    return backends.registry.get(backend).supports(ops.parse(key), info)


@pytest.mark.parametrize(("backend", "arch", "key"), listed(COMPUTES))
def test_computes(backend, arch, key):
    assert reason_of(backend, arch, key) is None


@pytest.mark.parametrize(("backend", "arch", "key"), listed(REFUSES))
def test_refuses(backend, arch, key):
    reason = reason_of(backend, arch, key)
    assert reason is not None
    assert_sentence(reason)
