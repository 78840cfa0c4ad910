"""For each format: what was tuned, what is there before, and what another file holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from kernelmark import ops
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import KernelInfo
from kernelmark.tune.results import Choice, Outcome

TRITON = FrozenDict(
    {
        "block_m": 16,
        "block_n": 64,
        "block_k": 128,
        "group_m": 4,
        "split_k": 1,
        "num_warps": 4,
        "num_stages": 2,
        "persistent": False,
        "waves_per_eu": 2,
        "matrix_instr_nonkdim": 16,
    }
)
AITER = FrozenDict({**TRITON, "xcds": 8})  # as aiter launches it
IREE = FrozenDict(
    {
        "tile_m": 64,
        "tile_n": 128,
        "vector_m": 8,
        "vector_n": 32,
        "vector_k": 1,
        "cache_m": 0,
        "cache_n": 0,
        "cache_k": 0,
        "data_tiling": False,
    }
)
OLD = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 128,
    "BLOCK_SIZE_K": 64,
    "GROUP_SIZE_M": 1,
    "num_warps": 8,
    "num_stages": 2,
    "waves_per_eu": 1,
    "matrix_instr_nonkdim": 16,
    "cache_modifier": ".cg",
    "NUM_KSPLIT": 1,
}


def product(m=16, n=512, k=1024, dtype="bf16", tb="t", **more):
    op = "batched_gemm" if "batch" in more else "gemm"
    return ops.registry.get(op).problem(m=m, n=n, k=k, dtype=dtype, tb=tb, **more)


def outcome(
    name="BBS_TN_0",
    problem=None,
    backend="triton",
    config=TRITON,
    *,
    kept=True,
    kernel="Cijk_Alik_Bljk_BBS_BH_MT64x64x64",
    version="",
    arch="gfx950",
    worst=0.5,
    device="hip:0",
    reference="torch",
    blas=(),
):
    return Outcome(
        name=name,
        problem=problem or product(),
        device=device,
        arch=arch,
        reference=Choice(backend=reference, median_s=2e-5, worst=0.2),
        tuned=Choice(
            backend=backend,
            config=FrozenDict(config),
            median_s=1e-5,
            kernel=KernelInfo(name=kernel),
            worst=worst,
            version=version,
        ),
        ratio=2.0,
        low=1.9,
        high=2.1,
        kept=kept,
        reason="faster",
        count=3,
        share=0.1,
        blas=FrozenDict(blas),
    )


def solution(index, name, **more):
    return {
        "SolutionIndex": index,
        "SolutionNameMin": name,
        "KernelNameMin": f"{name}_kernel",
        "DepthU": 64,
        "StaggerU": 0,
        **more,
    }


def logic(solutions, table, *, kind="Equality", problem=None, version="4.33.0"):
    """A library logic document of twelve parts."""
    return [
        {"MinimumRequiredVersion": version},
        "gfx950",
        "gfx950",
        ["Device 0049"],
        problem or {"DataType": 7, "TransposeA": 1, "TransposeB": 0, "UseBias": 0},
        solutions,
        [2, 3, 0, 1],
        table,
        None,
        None,
        "DeviceEfficiency",
        kind,
    ]


def put_yaml(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document, default_flow_style=None, sort_keys=True))


def put_json(path, document, indent=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=indent) + "\n")


@dataclass(frozen=True, kw_only=True)
class World:
    """`base` makes what winners are merged into and gives its path."""

    outcomes: tuple[Outcome, ...]
    base: Callable[[Path], Path]
    given: dict[str, str] = field(default_factory=dict)


def _file(name):
    return lambda folder: folder / name


def _aiter(folder):
    default = {"M_LEQ_64": OLD, "any": {**OLD, "num_stages": 3}}
    put_json(folder / "gemm/gfx950-GEMM-A16W16.json", default)
    put_json(folder / "gemm/gfx950-GEMM-A16W16-N=256-K=256.json", default)
    return folder


def _tensile(folder):
    fast = solution(0, "fast", DepthU=128)
    grid = logic([fast], [[[128, 128, 1, 128], [0, 0.5]]], kind="GridBased")
    put_yaml(folder / "GridBased/gfx950_BBS.yaml", grid)
    slow = solution(0, "slow")
    exact = logic([slow], [[[512, 64, 1, 1024], [0, 0.5]], [[512, 16, 1, 1024], [0, 0.4]]])
    put_yaml(folder / "Equality/gfx950_BBS.yaml", exact)
    return folder


BLOCK_FP8 = FrozenDict(
    {"block_m": 32, "block_n": 64, "block_k": 128, "num_warps": 4, "num_stages": 3}
)


def _block_fp8(comma):
    def make(tmp_path):
        folder = tmp_path / "configs"
        settings = {
            "BLOCK_SIZE_M": 64,
            "BLOCK_SIZE_N": 128,
            "BLOCK_SIZE_K": 128,
            "GROUP_SIZE_M": 16,
            "num_warps": 8,
            "num_stages": 2,
        }
        name = "N=512,K=1024,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128{}128].json"
        put_json(folder / name.format(comma), {"1": settings, "64": settings | {"num_warps": 4}})
        return folder

    return make


MOE = FrozenDict({**BLOCK_FP8, "block_k": 64, "group_m": 16})


def experts(m=16, n=512, k=1024, e=8, top_k=2, dtype="bf16", **more):
    return ops.registry.get("moe").problem(m=m, n=n, k=k, e=e, top_k=top_k, dtype=dtype, **more)


def _moe(style):
    """A file with entries that are not tuned; SGLang's for another version of Triton."""

    def make(tmp_path):
        settings = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "num_warps": 8}
        entries = {"1": settings, "64": settings | {"num_warps": 4}, "4096": settings}
        folder = tmp_path / "configs"
        name = "E=8,N=512,device_name=NVIDIA_H200.json"
        if style == "vllm":
            put_json(folder / name, {"triton_version": "3.4.0", **entries})
            return folder
        put_json(folder / "triton_3_4_0" / name, entries)
        (folder / "triton_3_6_0").mkdir()
        return folder / "triton_3_6_0"

    return make


def blas_outcomes(backend, first=500, **more):
    made = [
        outcome(f"BBS_TN_{i}", product(m=m), backend, {"solution_index": first + i}, **more)
        for i, m in enumerate((16, 32, 48))
    ]
    return (*made, outcome("BBS_TN_3", product(m=64), backend, {"solution_index": 9}, kept=False))


VALIDATORS = {
    "PT_VERSION": "2.9.1",
    "HIP_VERSION": "702",
    "GCN_ARCH_NAME": "gfx950:sramecc+:xnack-",
    "ROCBLAS_VERSION": "5.2.0.5b515cf1bc",
}
WORLDS = {
    "aiter": World(
        outcomes=(
            outcome("BBS_TN_0", product(m=16), config=AITER),
            outcome("BBS_TN_1", product(m=2000), config={**AITER, "num_warps": 8}),
            outcome("BBS_TN_2", product(m=16, n=256, k=256), config=AITER),
            outcome("BBS_TN_3", product(m=300), config=AITER, kept=False),
        ),
        base=_aiter,
    ),
    "aiter_tables": World(
        outcomes=(
            *(o for o in blas_outcomes("hipblaslt", version="100201-5b515cf1bc") if o.kept),
            outcome("BBS_TN_4", product(m=300), "aiter", {"kernel": "triton"}),
            outcome("BBS_TN_5", product(m=4000), "hipblaslt", {"solution_index": 9}, kept=False),
        ),
        base=_file("bf16_tuned_gemm.csv"),
        given={"cu_num": "256"},
    ),
    "cublaslt": World(
        outcomes=(
            outcome(
                "BBS_TN_0",
                product(m=16),
                "cublaslt",
                {"algo": "id=66 tile=20 split_k=1"},
                arch="sm_90",
                version="13.1.0",
            ),
            outcome(
                "BBS_TN_1",
                product(m=32),
                "cublaslt",
                {"algo": "id=66 tile=18"},
                arch="sm_90",
                version="13.1.0",
            ),
        ),
        base=_file("algos.json"),
    ),
    "hipblaslt": World(
        outcomes=blas_outcomes("hipblaslt", version="100201-5b515cf1bc"), base=_file("tuning.txt")
    ),
    "iree_spec": World(
        outcomes=(
            *(
                outcome(f"SSS_NN_{m}", product(m=m, dtype="f32", tb="n"), "iree", tiles, arch="x")
                for m, tiles in ((64, IREE), (96, {**IREE, "tile_n": 64}))
            ),
            outcome("SSS_NN_1", product(m=48, dtype="f32"), "iree", IREE, arch="x", kept=False),
        ),
        base=_file("tuned.mlir"),
        given={"verify": "no"},
    ),
    "python": World(
        outcomes=(
            outcome("BBS_TN_0", product(m=16)),
            outcome("BBS_TN_1", product(m=32, bias=True), config={**TRITON, "num_warps": 8}),
        ),
        base=_file("tuned.py"),
    ),
    "rocblas": World(outcomes=blas_outcomes("rocblas", first=-512), base=_file("rocblas.csv")),
    "tensile": World(
        outcomes=(
            outcome("BBS_TN_0", product(m=16), "hipblaslt", {"solution_index": 1}, kernel="fast"),
        ),
        base=_tensile,
    ),
    **{
        name: World(
            outcomes=(
                *(
                    outcome(
                        f"F8_TN_{i}", product(m=m, dtype="f8e4m3"), config=BLOCK_FP8, arch="sm_90"
                    )
                    for i, m in enumerate((16, 300))
                ),
                outcome(
                    "F8_TN_2",
                    product(m=20, dtype="f8e4m3"),
                    config=BLOCK_FP8,
                    kept=False,
                    arch="sm_90",
                ),
            ),
            base=_block_fp8(comma),
            given={"device_name": "NVIDIA_H200"},
        )
        for name, comma in (("vllm", ","), ("sglang", ", "))
    },
    **{
        f"{style}_moe": World(
            outcomes=(
                *(
                    outcome(f"MOE_BF16_{i}", experts(m=m), config=MOE, arch="sm_90")
                    for i, m in ((0, 16), (1, 300))
                ),
                outcome("MOE_BF16_2", experts(m=20), config=MOE, kept=False, arch="sm_90"),
                outcome("MOE_BF16_3", experts(m=16, e=64, top_k=4), config=MOE, arch="sm_90"),
            ),
            base=_moe(style),
            given={"device_name": "NVIDIA_H200"},
        )
        for style in ("vllm", "sglang")
    },
    "tunableop": World(
        outcomes=blas_outcomes("hipblaslt", version="100201-5b515cf1bc"),
        base=_file("tunableop_results0.csv"),
        given=VALIDATORS,
    ),
}


@pytest.fixture
def w(w_module):
    return w_module


@pytest.fixture(scope="module")
def w_module():
    """The makers above, for tests in this folder."""
    names = (
        "TRITON",
        "AITER",
        "OLD",
        "VALIDATORS",
        "WORLDS",
        "product",
        "experts",
        "outcome",
        "blas_outcomes",
    )
    more = ("solution", "logic", "put_yaml", "put_json")
    return SimpleNamespace(**{name: globals()[name] for name in (*names, *more)})
