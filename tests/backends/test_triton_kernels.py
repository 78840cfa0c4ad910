"""The Triton kernels compute what they should: in Triton's interpreter, against float64."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmark import ops
from kernelmark.backends.triton import _planner
from kernelmark.core.environment import DeviceInfo

pytestmark = pytest.mark.slow

GEMM = {"block_m": 32, "block_n": 32, "block_k": 32, "group_m": 2, "split_k": 1}
GEMM |= {"persistent": False}
FUSED = {**GEMM, "split_k": 3, "fused_sum": True}
SWAPPED = {**GEMM, "block_m": 16, "block_n": 64, "swap": True}
TILES = {"block_m": 32, "block_n": 32, "split_kv": 0}
SPLIT = {"block_m": 16, "block_n": 16, "split_kv": 4}
WIDENED = {**TILES, "widen": True}
UNTURNED = {"block_m": 16, "block_n": 16, "block_k": 16, "turn": False}
BOXES = {"block_m": 32, "block_n": 32, "block_k": 32, "descriptors": True}
TURNED = {**UNTURNED, "block_k": 32, "turn": True}

MOE = {"block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1}

DEEP_MOE = {**MOE, "block_k": 64}
# bf16 is left out: the interpreter computes its products wrongly.
CASES = [
    ("gemm m=64 n=64 k=64 dtype=f32", GEMM, "sm_90"),
    ("gemm m=33 n=47 k=61 dtype=f32 ta=t", GEMM, "sm_90"),
    ("gemm m=33 n=47 k=61 dtype=f16 tb=t", GEMM, "sm_90"),
    ("gemm m=33 n=47 k=61 dtype=f16 ta=t tb=t alpha=0.5 beta=2.0 bias=yes", GEMM, "sm_90"),
    ("gemm m=33 n=47 k=61 dtype=f16 alpha=0.5 beta=2.0 bias=yes", {**GEMM, "split_k": 2}, "sm_90"),
    ("gemm m=16 n=33 k=64 dtype=f32", {**GEMM, "split_k": 16}, "gfx942"),
    ("gemm m=33 n=47 k=161 dtype=f16 alpha=0.5 beta=2.0 bias=yes", FUSED, "sm_90"),
    ("gemm m=65 n=33 k=128 dtype=i8 ta=t", FUSED, "gfx942"),
    ("batched_gemm batch=3 m=17 n=40 k=96 dtype=f16 beta=1.0 tb=t", FUSED, "sm_90"),
    # A tile of more than 4096 elements sums in a loop, a smaller one unrolled.
    (
        "gemm m=65 n=130 k=161 dtype=f16 tb=t",
        {**FUSED, "block_m": 64, "block_n": 128, "split_k": 5},
        "sm_90",
    ),
    ("gemm m=33 n=147 k=161 dtype=f16 tb=t alpha=0.5 beta=2.0 bias=yes", SWAPPED, "sm_90"),
    (
        "batched_gemm batch=2 m=17 n=70 k=96 dtype=f16 tb=t bias=yes",
        {**SWAPPED, "split_k": 3, "fused_sum": True},
        "sm_90",
    ),
    ("gemm m=20 n=40 k=64 dtype=i8 alpha=2.0 beta=-3.0 bias=yes", GEMM, "sm_90"),
    ("gemm m=20 n=40 k=64 dtype=i8 bias=yes", {**GEMM, "split_k": 2}, "sm_90"),
    ("gemm m=20 n=40 k=64 dtype=i8 bias=yes", {**GEMM, "turn": False}, "sm_90"),
    ("gemm m=147 n=261 k=161 dtype=i8 ta=t", {"split_k": 2}, "sm_90"),
    ("gemm m=33 n=47 k=61 dtype=i8 ta=t tb=t alpha=2.0", GEMM, "sm_90"),
    ("batched_gemm batch=3 m=17 n=140 k=96 dtype=i8 ta=t beta=1.0", FUSED, "sm_90"),
    ("gemm m=32 n=48 k=64 dtype=f16 c=f32", GEMM, "sm_90"),
    ("gemm m=1 n=1 k=1 dtype=f32", {}, "sm_90"),
    ("gemm m=5 n=64 k=64 dtype=f16", {}, "gfx942"),
    # 20 tiles: no multiple of the eight chiplets that they are dealt out to.
    ("gemm m=100 n=150 k=70 dtype=f16 tb=t", {**GEMM, "xcds": 8}, "gfx942"),
    (
        "batched_gemm batch=2 m=40 n=40 k=128 dtype=f16 bias=yes",
        {**GEMM, "xcds": 8, "split_k": 2, "cache_modifier": ".cg"},
        "gfx950",
    ),
    (
        "batched_gemm batch=3 m=17 n=19 k=23 dtype=f32 ta=t alpha=0.5 beta=-1.5 bias=yes",
        GEMM,
        "sm_90",
    ),
    ("batched_gemm batch=3 m=17 n=19 k=64 dtype=f16 beta=1.0", {**GEMM, "split_k": 2}, "sm_90"),
    ("gemm m=64 n=48 k=64 dtype=f16 tb=t bias=yes", {**GEMM, "persistent": True}, "sm_90"),
    ("gemm m=40 n=56 k=64 dtype=f16 ta=t alpha=0.5", {**GEMM, "persistent": True}, "sm_90"),
    ("gemm m=40 n=56 k=64 dtype=f16 c=f32 tb=t bias=yes", {**GEMM, "persistent": True}, "sm_90"),
    ("gemm m=70 n=52 k=80 dtype=i8 ta=t", {**GEMM, "persistent": True}, "sm_90"),
    (
        "gemm m=64 n=80 k=96 dtype=f16 tb=t",
        {**GEMM, "block_m": 64, "num_warps": 4, "persistent": True, "specialize": True},
        "sm_90",
    ),
    ("gemm m=24 n=144 k=96 dtype=f16 tb=t beta=2.0", {**SWAPPED, "persistent": True}, "sm_90"),
    (
        "batched_gemm batch=2 m=64 n=32 k=64 dtype=f16 tb=t beta=1.0",
        {**GEMM, "persistent": True},
        "sm_90",
    ),
    ("attention batch=2 heads=2 seq=64 dim=32 dtype=f16", TILES, "sm_80"),
    (
        "attention batch=2 heads_q=4 heads_kv=2 seq_q=24 seq_kv=61 dim=16 dtype=f16 causal=yes",
        TILES,
        "sm_80",
    ),
    (
        "attention heads=2 seq=50 dim_qk=24 dim_v=40 dtype=f16 causal=yes layout=bshd",
        TILES,
        "gfx942",
    ),
    ("attention heads=2 seq_q=40 seq_kv=33 dim=32 dtype=f16 o=f32 scale=0.5", TILES, "sm_80"),
    (
        "attention batch=1 heads=2 seq=64 dim=32 dtype=f16 causal=yes",
        {**TILES, "descriptors": True},
        "sm_90",
    ),
    (
        "attention batch=2 heads_q=4 heads_kv=2 seq_q=40 seq_kv=61 dim=32 dtype=f16 causal=yes"
        " layout=bshd",
        {**TILES, "descriptors": True, "heads_first": True},
        "sm_90",
    ),
    ("attention batch=2 heads=3 seq=70 dim=32 dtype=f8e5m2 o=f32 causal=yes", WIDENED, "sm_90"),
    (
        "attention batch=2 heads_q=4 heads_kv=2 seq_q=40 seq_kv=61 dim_qk=16 dim_v=40"
        " dtype=f8e5m2 o=f32 layout=bshd",
        WIDENED,
        "sm_80",
    ),
    ("attention heads=2 seq=70 dim=24 dtype=f8e5m2 o=f32", {**TILES, "widen": False}, "sm_90"),
    ("attention batch=2 heads_q=4 heads_kv=2 seq_q=1 seq_kv=64 dim=32 dtype=f16", SPLIT, "sm_80"),
    (
        "attention heads_q=4 heads_kv=1 seq_q=5 seq_kv=61 dim_qk=24 dim_v=40 dtype=f16"
        " causal=yes layout=bshd",
        SPLIT,
        "sm_80",
    ),
    ("attention heads_q=8 heads_kv=2 seq_q=3 seq_kv=7 dim=16 dtype=f16", {}, "gfx942"),
    ("conv n=2 c=6 h=9 w=10 k=8 r=3 s=3 pad=1 dtype=f32", {}, "sm_90"),
    (
        "conv n=2 c=6 h=11 w=10 k=4 r=3 s=2 stride=2 pad=1 dilation=2 groups=2 dtype=f32"
        " layout=nhwc",
        {},
        "sm_90",
    ),
    ("conv n=1 c=40 h=7 w=8 k=20 r=3 s=2 stride_h=2 pad_w=2 dtype=f16", UNTURNED, "sm_90"),
    ("conv n=2 c=40 h=7 w=8 k=20 r=3 s=2 stride_h=2 pad_w=2 groups=2 dtype=f16", TURNED, "sm_90"),
    ("conv n=3 c=80 h=9 w=9 k=20 r=3 s=3 groups=2 dtype=f32", TURNED, "gfx942"),
    ("conv n=3 c=130 h=9 w=9 k=20 r=3 s=3 pad=1 dtype=i8", TURNED, "sm_90"),
    ("conv n=3 c=70 h=9 w=9 k=20 r=1 s=1 stride=2 dtype=f16", TURNED, "sm_90"),
    ("conv n=3 c=70 h=1 w=1 k=20 r=3 s=3 pad=1 dtype=f16", TURNED, "sm_90"),
    ("conv n=2 c=8 h=6 w=6 k=16 r=1 s=1 dtype=f16 layout=nhwc", {}, "gfx942"),
    ("conv n=3 c=40 h=7 w=9 k=24 r=3 s=3 pad=1 dtype=f16 layout=nhwc", BOXES, "sm_90"),
    ("conv n=2 c=24 h=9 w=8 k=40 r=3 s=2 pad_h=2 dilation=2 dtype=f16 layout=nhwc", BOXES, "sm_90"),
    ("conv n=3 c=64 h=5 w=7 k=40 r=1 s=1 dtype=f16 layout=nhwc", BOXES, "sm_90"),
    ("conv n=3 c=80 h=9 w=9 k=20 r=3 s=3 pad=1 dtype=i8 layout=nhwc", BOXES, "sm_90"),
    ("conv n=2 c=8 h=6 w=6 k=8 r=3 s=3 groups=8 dtype=i8", {}, "sm_90"),
    ("conv n=2 c=40 h=7 w=8 k=20 r=3 s=2 pad=1 dtype=f8e5m2 y=f32 layout=nhwc", {}, "sm_90"),
    ("conv n=1 c=40 h=7 w=8 k=20 r=3 s=2 pad=1 dtype=f8e5m2 y=f32", TURNED, "sm_90"),
    ("moe m=1 n=32 k=64 e=8 top_k=2 dtype=f16", {}, "sm_90"),
    ("moe m=33 n=40 k=72 e=4 top_k=2 dtype=f16", MOE, "sm_90"),
    ("moe m=70 n=48 k=33 e=5 top_k=3 dtype=f16", {**MOE, "block_m": 64, "group_m": 16}, "sm_90"),
    ("moe m=9 n=64 k=96 e=64 top_k=8 dtype=f16", {**MOE, "group_m": 32}, "gfx942"),
    ("moe m=150 n=16 k=32 e=3 top_k=1 dtype=f16", {**MOE, "block_n": 64}, "gfx942"),
    ("moe m=40 n=24 k=40 e=1 top_k=1 dtype=f16", {}, "sm_90"),
    ("moe m=33 n=40 k=96 e=4 top_k=2 dtype=f16 w=f8e4m3 scale=tensor", {}, "sm_90"),
    ("moe m=33 n=40 k=96 e=4 top_k=2 dtype=f16 w=f8e4m3 scale=row", DEEP_MOE, "sm_90"),
    ("moe m=33 n=40 k=96 e=4 top_k=2 dtype=f16 w=i8 scale=row", DEEP_MOE, "sm_90"),
    ("moe m=20 n=128 k=256 e=4 top_k=2 dtype=f16 w=f8e4m3 scale=block", DEEP_MOE, "sm_90"),
]

QUANT_TILE = {"block_m": 16, "block_n": 32, "group_m": 2, "split_k": 1}
DEEP = {**QUANT_TILE, "block_k": 64}
# Outputs are f16: the interpreter cuts bf16 off instead of rounding.
QUANTISED = [
    ("batch=2 m=17 n=40 k=70 c=f16 scheme=a8w8", DEEP),
    ("batch=2 m=17 n=40 k=128 c=f16 scheme=a8w8 bias=yes c_order=mbn a_order=mbk", DEEP),
    ("batch=3 m=5 n=33 k=200 c=f16 scheme=a8w8 bias=yes c_order=mbn", {**DEEP, "split_k": 3}),
    ("batch=2 m=17 n=40 k=256 c=f16 scheme=a8w8_group", QUANT_TILE),
    ("batch=2 m=17 n=40 k=70 group=32 c=f16 scheme=a8w8_group bias=yes", QUANT_TILE),
    (
        "batch=2 m=9 n=40 k=200 group=64 c=f16 scheme=a8w8_group a_order=mbk",
        {**QUANT_TILE, "split_k": 2},
    ),
    ("batch=2 m=17 n=40 k=256 b=i8 c=f16 scheme=a8w8_group c_order=mbn", QUANT_TILE),
    ("batch=2 m=17 n=40 k=128 c=f16 scheme=a16wfp4", DEEP),
    ("batch=2 m=17 n=40 k=160 c=f16 scheme=a16wfp4 c_order=mbn a_order=mbk", DEEP),
    ("batch=2 m=5 n=33 k=224 c=f16 scheme=a16wfp4 c_order=mbn", {**DEEP, "split_k": 2}),
    ("batch=2 m=17 n=40 k=128 c=f16 scheme=afp4wfp4", DEEP),
    ("batch=2 m=17 n=40 k=96 c=f16 scheme=afp4wfp4 a_order=mbk", DEEP),
    ("batch=3 m=5 n=33 k=416 c=f16 scheme=afp4wfp4 c_order=mbn", {**DEEP, "split_k": 4}),
]
CASES += [(f"batched_gemm_quant {text}", config, "sm_90") for text, config in QUANTISED]
# An 8-bit float's block of k has at least 32 elements; 160 columns end inside a block of scales.
SCALED = [
    ("m=33 n=160 k=256 scale=block", DEEP),
    ("m=33 n=300 k=384 scale=block bias=yes", {**DEEP, "block_n": 256, "split_k": 3}),
    ("m=17 n=40 k=256 scale=block", {**DEEP, "block_k": 128}),
    ("m=17 n=40 k=96 tb=t scale=row bias=yes", DEEP),
    ("m=17 n=40 k=200 tb=t scale=tensor", {**DEEP, "split_k": 2}),
]
CASES += [(f"gemm_epilogue {text} dtype=f8e5m2 c=f16", config, "sm_90") for text, config in SCALED]


@pytest.fixture(scope="module")
def answers():
    """What the interpreter finds for each case: one process, since starting it costs most."""
    for name in ("triton", "torch"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"Triton's interpreter needs {name}, which make test installs")
    script = Path(__file__).parent / "interpret_triton.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps(CASES),
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(enumerate(map(json.loads, done.stdout.splitlines())))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case[0] for case in CASES])
def test_every_element_is_within_the_ops_tolerance(answers, number):
    worst = answers[number]
    assert isinstance(worst, float), worst
    assert worst <= 1.0


def test_every_kind_of_copy_is_among_them():
    """A default that stops copying must not leave the copies untested."""
    pytest.importorskip("triton", reason="needs Triton, which make test installs")
    made = set()
    for key, config, arch in CASES:
        problem = ops.parse(key)
        if problem.op in ("moe", "batched_gemm_quant", "gemm_epilogue"):
            continue
        kind = "cuda" if arch.startswith("sm") else "hip"
        gpu = DeviceInfo(name=f"{kind}:0", kind=kind, model="none", arch=arch, index=0, units=4)
        plan = _planner(problem).plan(problem, config, gpu)
        made |= {
            (call.function.__name__, call.arguments[0].kind) for call in plan.calls[: plan.main]
        }
    assert made == {
        ("transpose", "i8"),
        ("transpose", "i16"),
        ("transpose", "i32"),
        ("upcast", "f8e5m2"),
    }
