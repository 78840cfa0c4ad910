"""What is written, looked up by the code of the libraries themselves, in checkouts of them:

KERNELMARK_CHECKOUTS=DIR pytest -m slow, with DIR/aiter, DIR/vllm, DIR/sglang, DIR/hipBLASLt and
DIR/rocm-libraries. Only the functions that look configs up are executed, without their GPU. The
parser of hipBLASLt is compiled with types of our own, PyTorch's is that of the installed torch.
"""

from __future__ import annotations

import ast
import copy
import enum
import functools
import importlib.util
import inspect
import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelmark import ops
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.aiter_config import STANDARD
from kernelmark.tune.install.emitters import aiter, aiter_tables, nearest, registry, tensile
from kernelmark.tune.install.emitters.blas import blas_call
from kernelmark.workloads.blas import dtype_named

CHECKOUTS = os.environ.get("KERNELMARK_CHECKOUTS", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHECKOUTS, reason="KERNELMARK_CHECKOUTS names no folder of checkouts"),
]
CDIV = SimpleNamespace(
    cdiv=lambda a, b: -(-a // b),
    next_power_of_2=lambda n: 1 << (n - 1).bit_length(),
    __version__="3.6.0",
)
LEVELS = ("info", "info_once", "warning", "warning_once")
NOISE = SimpleNamespace(**dict.fromkeys(LEVELS, lambda *_, **__: None))
SIZES = (1, 8, 16, 24, 40, 64, 80, 256, 700, 1024, 2048)
OTHER_SIZES = (2, 9, 28, 100, 999, 3000, 8192, 100_000)


def checkout(name):
    path = Path(CHECKOUTS) / name
    if not path.is_dir():
        pytest.skip(f"{path} is no checkout")
    return path


def source(root, function):
    """The file of a checkout that defines a function."""
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(errors="replace")
        if f"\ndef {function}(" in text and "test" not in path.name:
            return path
    pytest.skip(f"{root} has no {function}")


def functions(path, *names, **namespace):
    """Execute the definitions of some functions and constants of a file."""
    wanted = [
        node
        for node in ast.parse(path.read_text()).body
        if getattr(node, "name", "") in names
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in names)
    ]
    module = ast.Module(body=[ast.parse("from __future__ import annotations").body[0], *wanted])
    module.type_ignores = []
    import itertools

    scope = {"os": os, "json": json, "functools": functools, "copy": copy, "itertools": itertools}
    scope |= {"triton": CDIV, "logger": NOISE} | namespace
    exec(compile(module, str(path), "exec"), scope)
    for name in names:
        if hasattr(scope[name], "__wrapped__"):
            scope[name] = scope[name].__wrapped__  # without its cache
    return SimpleNamespace(**{name: scope[name] for name in names})


# -- vLLM and SGLang


def their_lookup(style, moe, folder, device):
    """Return a function of (shape, m) that returns what the library launches."""
    library = checkout(style)
    spelled = nearest.spell_device(device, style)
    names = {"get_device_name_as_file_name": lambda: spelled, "get_device_name": lambda: device}
    names |= {"__file__": str(folder.parent / "x.py"), "_is_cuda": device.startswith("NVIDIA")}
    off = SimpleNamespace(enable_deterministic_inference=False)
    names |= {"get_exec": lambda: SimpleNamespace(deterministic=off), "_is_hip": "AMD" in device}
    names |= {"torch": SimpleNamespace(_dynamo=SimpleNamespace(is_compiling=lambda: False))}
    names |= {"envs": SimpleNamespace(VLLM_BATCH_INVARIANT=False, VLLM_TUNED_CONFIG_FOLDER=None)}
    names |= {"current_platform": SimpleNamespace(is_rocm=lambda: "AMD" in device)}
    names |= {"log_info_on_rank0": lambda *_: None}
    if moe:
        wanted = ("get_config_file_name", "get_moe_configs", "get_default_config")
        path = source(library, "get_moe_configs")
        code = functions(path, *wanted, **names)

        def look_up(shape, m):
            entries = code.get_moe_configs(shape.experts, shape.n, None)
            if entries is None:
                more = {"is_marlin": False} if style == "sglang" else {}
                return code.get_default_config(m, shape.experts, shape.n, 64, 2, None, **more)
            return entries[min(entries, key=lambda x: abs(x - m))]

        return look_up
    code = functions(
        source(library, "get_w8a8_block_fp8_configs"), "get_w8a8_block_fp8_configs", **names
    )

    def look_up_block(shape, m):
        entries = code.get_w8a8_block_fp8_configs(shape.n, shape.k, *shape.block)
        return entries and entries[min(entries, key=lambda x: abs(x - m))]

    return look_up_block


@pytest.mark.parametrize("device", ["NVIDIA H200", "AMD Instinct MI300X"])
@pytest.mark.parametrize("name", ["vllm", "sglang", "vllm_moe", "sglang_moe"])
def test_vllm_and_sglang_launch_what_was_written(w, tmp_path, name, device):
    emitter = registry.get(name)
    style, _, moe = name.partition("_")
    folder = tmp_path / "configs"
    into = folder / "triton_3_6_0" if name == "sglang_moe" else folder
    into.mkdir(parents=True)
    arch = "sm_90" if device.startswith("NVIDIA") else "gfx942"
    dtype = "f8e4m3" if arch == "sm_90" else "f8e4m3fnuz"
    config = {"block_m": 16, "block_n": 64, "block_k": 128, "num_warps": 2, "num_stages": 2}
    make = w.experts if moe else functools.partial(w.product, dtype=dtype)
    outcomes = [
        w.outcome(f"A{m}", make(m=m), config=config, arch=arch, kept=m != 40) for m in SIZES
    ]
    look_up = their_lookup(style, moe, folder, device)
    options = FrozenDict({"device_name": device})
    change = applying.prepare(emitter, outcomes, into, options)
    assert len(change.winners) == len(SIZES) - 1
    shape = nearest.parse_name(change.edits[0].path.name)
    before = {m: look_up(shape, m) for m in OTHER_SIZES}
    applying.write(emitter, change, into)
    tuned = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "num_warps": 2}
    entries = json.loads(change.edits[0].after)
    for m in (*SIZES, *OTHER_SIZES):
        launched = {**look_up(shape, m), "SPLIT_K": 1}
        key = min(map(int, entries), key=lambda x: abs(x - m))
        if key in SIZES and key != 40:
            assert tuned.items() <= launched.items()
            assert abs(m - key) <= key / 2
            continue
        default = {**nearest.default_settings(shape, style, m), "SPLIT_K": 1}
        assert launched == default
        if before.get(m):  # the library's own default, where a function has it
            assert {**before[m], "SPLIT_K": 1} == default


# -- aiter


def test_aiter_launches_what_was_written(w, tmp_path):
    library = checkout("aiter") / "aiter/ops/triton"
    root = tmp_path / "configs"
    shutil.copytree(library / "configs", root)
    arch = SimpleNamespace(get_arch=lambda: "gfx942")

    def load(path, *, required):
        return json.loads(Path(path).read_text()) if Path(path).is_file() else None

    code = functions(
        library / "utils/gemm_config_utils.py",
        *("STANDARD_M_BOUNDS", "_dtype_dir", "_get_gemm_config_cached", "get_gemm_config"),
        *("add_default_gemm_config_params", "compute_splitk_params"),
        arch_info=arch,
        AITER_TRITON_CONFIGS_PATH=str(root),
        USE_LRU_CACHE=False,
        load_config_json=load,
    )
    draw = random.Random(0)
    for _ in range(20_000):
        split, block_k = draw.randrange(1, 17), 1 << draw.randrange(4, 10)
        k = draw.randrange(1, 9000)
        launched = code.compute_splitk_params({"NUM_KSPLIT": split, "BLOCK_SIZE_K": block_k}, k)
        ours = aiter.adjusted_split(split, block_k, k)
        assert (launched["NUM_KSPLIT"], launched["BLOCK_SIZE_K"]) == ours
    assert code.STANDARD_M_BOUNDS == STANDARD
    sizes = [(m, n, k) for m in (1, 7, 64, 300, 9000) for n, k in ((4096, 4096), (512, 640))]
    cases = [
        ("GEMM-A16W16", {"m": m, "n": n, "k": k}, {"xcds": 8, "split_k": 2}) for m, n, k in sizes
    ]
    for name in ("gfx942", "gfx950"):
        arch.get_arch = lambda name=name: name
        probes = [(m, n, k) for m in (*STANDARD, 9, 100, 20_000) for _, n, k in sizes[:2]]
        probes += [(m, 7, 7) for m in STANDARD]
        outcomes = [
            w.outcome(f"A{i}", w.product(**dims), config={**w.TRITON, **config}, arch=name)
            for i, (_, dims, config) in enumerate(cases)
        ]
        timed = {(aiter.bucket_for(d["m"], STANDARD), d["n"], d["k"]) for _, d, _ in cases}
        before = {probe: code.get_gemm_config("GEMM-A16W16", *probe) for probe in probes}
        change = applying.prepare(aiter.emitter, outcomes, root)
        applying.write(aiter.emitter, change, root, backup=False)
        assert len(change.winners) == len(outcomes)
        for _, dims, config in cases:
            found, is_tuned = code.get_gemm_config("GEMM-A16W16", *dims.values())
            launched = code.compute_splitk_params(found, dims["k"])
            assert is_tuned
            assert launched["BLOCK_SIZE_M"] == w.TRITON["block_m"]
            assert launched["NUM_KSPLIT"] == config["split_k"]
        for probe, (config, _) in before.items():
            if (aiter.bucket_for(probe[0], STANDARD), *probe[1:]) not in timed:
                assert code.get_gemm_config("GEMM-A16W16", *probe)[0] == config
    arch.get_arch = lambda: "gfx1250"
    winner = w.outcome(config=w.AITER, arch="gfx1250")
    assert not applying.prepare(aiter.emitter, [winner], root).edits
    batched = w.outcome(problem=w.product(batch=16), arch="gfx1250")
    assert not applying.prepare(aiter.emitter, [batched], root).edits


class Quant(enum.Enum):
    No = 0
    per_1x32 = 1
    per_1x128 = 2
    per_Token = 3

    def __str__(self):
        return f"QuantType.{self.name}"


class Activation(enum.Enum):
    Silu = 0
    Gelu = 1
    Swiglu = 2
    Situv2 = 3

    def __str__(self):
        return f"ActivationType.{self.name}"


class Gate(enum.Enum):
    SEPARATED = "separated"
    INTERLEAVE = "interleave"


def aiter_experts(table, gfx, units):
    """Return a function of (m, sizes) that returns the block and the kernels that aiter launches
    for a fused MoE with this table."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("pandas")
    library = checkout("aiter") / "aiter"
    no = SimpleNamespace(
        is_opus_a8w4_stage2_kernel=lambda name: False, route_bucket_metadata=lambda cfg: {}
    )
    kinds = SimpleNamespace(**{n: getattr(torch, n) for n in ("int8", "bfloat16", "float16")})
    kinds.bf16, kinds.fp16, kinds.i8 = torch.bfloat16, torch.float16, torch.int8
    kinds.fp8, kinds.fp4x2, kinds.i4x2, kinds.fp8_e8m0 = "fp8", "fp4x2", "i4x2", "e8m0"
    chips = functions(
        library / "jit/utils/chip_info.py",
        *("gfx_from_cu_num", "_LEGACY_CU_NUM_TO_GFX"),
        get_gfx_runtime=lambda: gfx,
    )
    names = ("get_2stage_cfgs", "get_padded_M", "nextPow2", "MOEMetadata", "get_block_size_M")
    code = functions(
        library / "fused_moe.py",
        *(*names, "use_nt", "_PADDED_M_TIERS", "_ACT_TYPE_DISABLED_KEY", "cfg_2stages"),
        AITER_CONFIGS=SimpleNamespace(AITER_CONFIG_FMOE_FILE=str(table)),
        gfx_from_cu_num=chips.gfx_from_cu_num,
        **{name: lambda *_: gfx for name in ("get_gfx", "get_gfx_runtime")},
        get_cu_num=lambda: units,
        torch=torch,
        re=re,
        bd_dir="",
        BLOCK_SIZE_M=32,
        fused_moe_1stage_dict={},
        aiter=SimpleNamespace(logger=NOISE, ck_moe_stage2_fwd=lambda **_: None),
        ck_moe_stage1=lambda **_: None,
        asm_stage1=lambda **_: None,
        dataclass=__import__("dataclasses").dataclass,
        field=__import__("dataclasses").field,
        Callable=object,
        QuantType=Quant,
        ActivationType=Activation,
        GateMode=Gate,
        dtypes=kinds,
        _opus_a8w4=no,
        _is_mxfp4_kname=lambda name: False,
        is_flydsl_available=lambda: False,
    )

    def look_up(m, n, k, e, top_k, activation=Activation.Silu):
        kind = torch.bfloat16
        found = code.get_2stage_cfgs(
            *(code.get_padded_M(m), k, n, e, top_k, kind, kind, kind, Quant.No, True),
            *(activation, False, 0, 0, True),
        )
        stages = found.stage1.keywords, getattr(found.stage2, "keywords", {})
        return found.block_m, *(stage.get("kernelName", "") for stage in stages)

    return look_up


KERNEL = "moe_ck2stages_gemm{}_256x{}x64x64_1x4_TypeCast_v1_Nswizzle0_Quant0_MulRoutedWeight{}"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "tuned_fmoe.csv",
        "model_configs/dsv4_fp8fp4_tuned_fmoe.csv",
        "model_configs/kimik2_fp4_tuned_fmoe.csv",
    ],
)
def test_aiter_launches_the_experts_that_were_written(w, tmp_path, name):
    configs = checkout("aiter") / "aiter/configs"
    table = tmp_path / "tuned_fmoe.csv"
    if name:
        shutil.copy(configs / name, table)
    sizes = {"n": 768, "k": 2048, "e": 128, "top_k": 8}
    arch, units = "gfx942", "304"

    def winner(m, block, **more):
        problem = ops.registry.get("moe").problem(m=m, **sizes, dtype="bf16", w_order="tiled")
        config = {"kernel": "ck", "kernel1": KERNEL.format(1, block, 0) + "_silu_B16_B16_B16"}
        config |= {"kernel2": KERNEL.format(2, block, 1) + "_B16_B16_B16"}
        return w.outcome(f"M{m}", problem, backend="aiter", config=config, arch=arch, **more)

    blocks = {1: 32, 16: 64, 100: 128, 4000: 32, 20_000: 64}
    outcomes = [winner(m, block) for m, block in blocks.items()] + [winner(700, 32, kept=False)]
    if name:
        look_up = aiter_experts(table, arch, int(units))
        probes = [(m, n) for m in (1, 2, 33, 700, 9000, 40_000) for n in (768, 192, 384)]
        before = {p: look_up(p[0], p[1], 2048, 128, 8) for p in probes}
    options = FrozenDict({"cu_num": units})
    change = applying.prepare(aiter_tables.emitter, outcomes, table, options)
    assert len(change.winners) == len(blocks)
    applying.write(aiter_tables.emitter, change, table, backup=False)
    look_up = aiter_experts(table, arch, int(units))
    served = {}
    for m, block in blocks.items():
        tokens = aiter_tables.padded_tokens(m)
        for other in (tokens, tokens // 2 + 1, m):
            found = look_up(other, *sizes.values())
            assert found[0] == block
            assert f"x{block}x64x64" in found[1]
            assert f"x{block}x64x64" in found[2]
            served[other] = block
    assert look_up(100_000, *sizes.values())[0] == 64, "20,000 tokens are those of row 32768"
    for m in (2, 8, 17, 130, 700, 9000):
        assert KERNEL.format(1, 64, 0)[:20] not in look_up(m, *sizes.values())[1]
    for wrong in (aiter_experts(table, "gfx950", 304), aiter_experts(table, arch, 256)):
        assert not wrong(16, *sizes.values())[1]
    if name:
        for probe, found in before.items():
            tokens = aiter_tables.padded_tokens(probe[0])
            if probe[1] != 768 or tokens not in map(aiter_tables.padded_tokens, blocks):
                assert look_up(probe[0], probe[1], 2048, 128, 8) == found


def test_aiter_finds_the_library_of_a_gemm_that_was_written(w, tmp_path):
    pandas = pytest.importorskip("pandas")
    library = checkout("aiter") / "aiter"
    table = tmp_path / "bf16_tuned_gemm.csv"
    shutil.copy(library / "configs/bf16_tuned_gemm.csv", table)
    chip = {"gfx": "gfx942", "units": 304}
    code = functions(
        library / "tuned_gemm.py",
        *("get_GEMM_A16W16_config", "get_GEMM_A16W16_config_"),
        AITER_CONFIGS=SimpleNamespace(AITER_CONFIG_GEMM_BF16_FILE=str(table)),
        pd=pandas,
        get_cu_num=lambda: chip["units"],
        get_gfx=lambda: chip["gfx"],
        get_padded_m=lambda m, n, k, level: aiter_tables.padded(m, n)[level],
        is_flydsl_available=lambda: True,
        AITER_LOG_TUNED_CONFIG=0,
        aiter=SimpleNamespace(ops=None),
        dtypes=SimpleNamespace(bf16="torch.bfloat16", fp16="torch.float16", fp32="torch.float32"),
        torch=pytest.importorskip("torch"),
        is_skinny_default_shape=lambda *_, **__: False,
        eval=lambda text: text,
    )

    def look_up(m, n, k):
        kind = "torch.bfloat16"
        return code.get_GEMM_A16W16_config(m, n, k, False, kind, kind)

    solution = {"backend": "hipblaslt", "config": {"solution_index": 9}, "arch": "gfx942"}
    shapes = [(m, 512, 1024) for m in (16, 64, 100, 256)] + [(64, 4096, 4096)]
    outcomes = [
        w.outcome(f"A{i}", w.product(m=m, n=n, k=k), **solution)
        for i, (m, n, k) in enumerate(shapes)
    ] + [w.outcome("B", w.product(m=40), kept=False, **solution)]
    probes = [(m, n, 1024) for m in (1, 15, 33, 40, 300, 5000) for n in (512, 513)]
    before = {probe: look_up(*probe) for probe in probes}
    change = applying.prepare(aiter_tables.emitter, outcomes, table, FrozenDict({"cu_num": "304"}))
    kept = {(64, 4096, 4096), (16, 512, 1024), (100, 512, 1024), (256, 512, 1024)}
    assert len(change.winners) == len(kept), "m=64 serves m=40, which did not gain"
    applying.write(aiter_tables.emitter, change, table, backup=False)
    for shape in kept:
        found = look_up(*shape)
        assert (found["libtype"], int(found["solidx"])) == ("hipblaslt", 9)
    assert look_up(40, 512, 1024) == before[40, 512, 1024]
    for m, n, k in probes:
        served = {(p, n, k) for p in (m, *aiter_tables.padded(m, n))} & kept
        assert bool(served) or look_up(m, n, k) == before[m, n, k]
    chip |= {"gfx": "gfx950", "units": 256}
    assert look_up(16, 512, 1024).get("solidx") != 9


def test_aiter_pads_m_as_we_do(tmp_path):
    source = (checkout("aiter") / "csrc/py_itfs_cu/gemm_common.cu").read_text()
    body = source[source.index("int getPaddedM") :]
    program = (
        "#include <cstdio>\n#include <initializer_list>\n"
        "int nextPow2(unsigned n){unsigned p=1; while(p<n) p*=2; return p;}\n"
        + body[: body.index("\n}\n") + 3]
        + "int main(){for(int m=1;m<20000;m+=7)for(int n:{64,4096,8192})"
        'printf("%d %d %d %d\\n",m,n,getPaddedM(m,n,64,0),getPaddedM(m,n,64,1));}'
    )
    for line in compiled(tmp_path, program, "").splitlines():
        m, n, fine, coarse = map(int, line.split())
        assert aiter_tables.padded(m, n) == (fine, coarse)


# -- hipBLASLt, Tensile, PyTorch


def compiled(folder, program, given, *flags):
    """What a C++ program prints for this input."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("there is no C++ compiler")
    (folder / "a.cpp").write_text(program)
    made = [compiler, "-std=c++20", "-w", *flags, "-o", str(folder / "a"), str(folder / "a.cpp")]
    subprocess.run(made, check=True, timeout=300)
    run = subprocess.run(
        [str(folder / "a")], input=given, capture_output=True, text=True, check=True, timeout=60
    )
    return run.stdout


SHIM = """
#include <cassert>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <string>
#include <vector>
#define HIPBLASLT_EXPORT
namespace TensileLite {
template <typename T> struct Comparison { enum { implemented = false }; };
inline int LexicographicCompare() { return 0; }
template <typename T, typename... More>
int LexicographicCompare(T a, T b, More... more)
{ return a < b ? -1 : b < a ? 1 : LexicographicCompare(more...); }
template <typename T> auto operator<(T const& a, T const& b)
    -> typename std::enable_if<Comparison<T>::implemented, bool>::type
{ return Comparison<T>::compare(a, b) < 0; }
template <typename... T> size_t hash_combine(T const&...) { return 0; }
}
"""
MAIN = """
int main(int argc, char** argv)
{
    std::string path, line, cell;
    std::getline(std::cin, path);
    TensileLite::getContractionProblemsFromFile(path);
    while(std::getline(std::cin, line))
    {
        std::vector<std::string> entries;
        std::stringstream cells(line);
        while(std::getline(cells, cell, ',')) entries.push_back(cell);
        entries.push_back("1");
        auto found = TensileLite::OverrideMap::getMap().find(
            TensileLite::problemFromEntries(entries).first);
        for(auto i = found.first; i != found.second; i++) std::cout << i->second << " ";
        std::cout << "\\n";
    }
}
"""
# hipBLASLt casts one enum to the other.
COMPUTE = {
    "32F": "f32",
    "32F_FAST_TF32": "f32_fast_xf32",
    "64F": "f64",
    "32I": "i32",
    "32F_FAST_16F": "f32_fast_f16",
    "32F_FAST_16BF": "f32_fast_bf16",
}


def function_text(source, name):
    """A function of a header, from its type to the end of its body."""
    match = re.search(rf"^[^\n]*\b{name}\([^)]*\)\n\{{.*?^\}}", source, re.M | re.S)
    assert match, name
    return match[0]


def hipblaslt_parser():
    root = checkout("rocm-libraries") / "projects/hipblaslt/library/src"
    include = root / "amd_detail/rocblaslt/src/include"
    header = (include / "UserDrivenTuningParser.hpp").read_text()
    parser = (root / "amd_detail/rocblaslt/src/UserDrivenTuningParser.cpp").read_text()
    names = ("string_to_hip_datatype", "string_to_hipblas_computetype")
    spoken = [function_text((root / "include/auxiliary.hpp").read_text(), n) for n in names]
    names = ("hipDataType_to_tensile_type", "rocComputeType_to_tensile_type")
    typed = [function_text((include / "tensile_host.hpp").read_text(), n) for n in names]
    both = "\n".join((*spoken, *typed))

    def declared(name, pattern, first=()):
        members = dict.fromkeys((*first, *sorted(set(re.findall(pattern, both)))))
        return f"enum {name} {{ {', '.join(members)} }};\n"

    computed = [f"HIPBLAS_COMPUTE_{key}" for key in COMPUTE]
    theirs = [f"rocblaslt_compute_{text}" for text in COMPUTE.values()]
    types = declared("hipDataType", r"HIP_R_\w+|HIPBLASLT_DATATYPE_INVALID")
    types += declared(
        "hipblasComputeType_t", r"HIPBLAS_COMPUTE_\w+|HIPBLASLT_COMPUTE_\w+", computed
    )
    types += declared("rocblaslt_compute_type", r"rocblaslt_compute_(?!type)\w+", theirs)
    members = sorted(set(re.findall(r"rocisa::DataType::(\w+)", both + parser)))
    types += f"namespace rocisa {{ enum class DataType {{ {', '.join(members)} }}; }}\n"
    code = re.sub(r"^#(?:include|pragma)[^\n]*", "", header + parser, flags=re.M)
    return SHIM + types + both + code + MAIN


@pytest.mark.parametrize("float8", [(), ("-DROCM_USE_FLOAT8",)])
def test_hipblaslt_finds_what_was_written(w, tmp_path, float8):
    kinds = ("bf16", "f16", "f32") if not float8 else ("bf16", "f8e4m3")
    path = tmp_path / "tuning.txt"
    outcomes = [
        w.outcome(
            f"A{kind}{m}{tb}",
            w.product(m=m, dtype=kind, tb=tb),
            "hipblaslt",
            {"solution_index": 100 + m + 1000 * i},
            version="100201-5b515cf1bc",
            kept=m != 48,
        )
        for i, kind in enumerate(kinds)
        for m in (16, 32, 48)
        for tb in ("t", "n")
    ]
    emitter = registry.get("hipblaslt")
    change = applying.prepare(emitter, outcomes, path)
    applying.write(emitter, change, path)
    names = ("transA", "transB", "batch_count", "m", "n", "k", "a_type", "b_type", "c_type")
    calls = [blas_call(outcome) for outcome in outcomes]
    rows = [[call[name] for name in (*names, "compute_type")] for call in calls]
    others = [[*row[:4], str(int(row[4]) + 1), *row[5:]] for row in rows]
    lines = "\n".join((str(path), *map(",".join, (*rows, *others)), ""))
    found = compiled(tmp_path, hipblaslt_parser(), lines, *float8).splitlines()
    for outcome, line in zip(outcomes, found, strict=False):
        index = outcome.tuned.config["solution_index"]
        assert line.split() == ([str(index)] if outcome.name in change.winners else [])
    assert len(change.winners) == sum(outcome.kept for outcome in outcomes)
    assert not "".join(found[len(rows) :]).strip()


def tensile_merge():
    """The module of TensileMergeLibrary, of the newest checkout that is there."""
    for name, folder in (
        ("rocm-libraries", "projects/hipblaslt/tensilelite"),
        ("hipBLASLt", "tensilelite"),
    ):
        path = Path(CHECKOUTS) / name / folder / "Tensile/Utilities/merge.py"
        if path.is_file():
            spec = importlib.util.spec_from_file_location("tensile_merge", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            module.verbosity = 0
            yield module


def resolved(document):
    """The sizes in order, with their solutions; those may be numbered in another order."""
    solutions = {s["SolutionIndex"]: s["SolutionNameMin"] for s in document[5]}
    assert list(solutions) == list(range(len(document[5])))
    return [(size, solutions[index], eff) for size, (index, eff) in document[7]], {
        json.dumps({**s, "SolutionIndex": 0}, sort_keys=True) for s in document[5]
    }


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("no_eff", [True, False])
def test_tensile_merges_as_we_do(force, no_eff):
    modules = list(tensile_merge())
    if not modules:
        pytest.skip("no checkout has TensileMergeLibrary")
    draw = random.Random(0)
    head = [{"MinimumRequiredVersion": "4.33.0"}, "gfx950", "gfx950", ["Device 0049"]]
    problem = {"DataType": 7, "TransposeA": 1, "TransposeB": 0, "UseBias": 0}

    def drawn(first):
        solutions = [
            {"SolutionIndex": i, "SolutionNameMin": f"s{d}", "DepthU": d, "ISA": [9, 5, 0]}
            for i, d in enumerate(draw.sample(range(8, 20), draw.randint(1, 5)))
        ]
        sizes = draw.sample([(m, 64, 1, k) for m in (1, 2, 3, 4) for k in (64, 128)], 4)
        table = [
            [
                [*size, *([1, 2, 3, 4] if first and draw.random() < 0.5 else [])],
                [draw.randrange(len(solutions)), round(draw.random(), 3)],
            ]
            for size in sizes
        ]
        tail = [[2, 3, 0, 1], table, None, None, "DeviceEfficiency", "Equality"]
        return [*head, problem, solutions, *tail]

    for _ in range(150):
        base, extra = drawn(True), drawn(False)
        texts = [json.dumps(document) for document in (base, extra)]
        ours, _ = tensile.merge(
            *(tensile.parse(text, "x.yaml") for text in texts), force=force, no_eff=no_eff
        )
        for module in modules:
            pair = [module.reindexSolutions(copy.deepcopy(part)) for part in (base, extra)]
            theirs, *_ = module.mergeLogic(*pair, force, True, False, no_eff)
            assert resolved(ours.document) == resolved(theirs)


def test_pytorch_rebuilds_the_gemm_of_every_row(w, tmp_path, monkeypatch):
    """torch.cuda.tunable's reader of rows, on the CPU: the matrices that it multiplies are those of
    the problem. Which rows a GPU looks up is C++ that needs one."""
    torch = pytest.importorskip("torch")
    from torch.cuda import tunable

    text = inspect.getsource(tunable._process_single_offline_gemm)
    scope = dict(vars(tunable))
    exec(text.replace('"cuda:" + str(gpu_id)', '"cpu"'), scope)
    launched = []
    for name in ("mm", "bmm"):
        monkeypatch.setattr(torch, name, lambda a, b: launched.append((a, b)))
    linear = lambda x, a, bias: launched.append((x, a.t()))  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    path = tmp_path / "tunableop_results0.csv"
    solution = {"backend": "hipblaslt", "version": "100201-5b515cf1bc"}
    problems = [
        w.product(m=m, n=48, k=64, dtype=kind, tb=tb, **more)
        for m in (16, 33)
        for kind in ("bf16", "f16", "f32")
        for tb in ("t", "n")
        for more in ({}, {"batch": 3})
    ] + [w.product(m=16, n=48, k=64, bias=True)]
    outcomes = [
        w.outcome(f"A{i}", problem, config={"solution_index": i}, **solution)
        for i, problem in enumerate(problems)
    ]
    emitter = registry.get("tunableop")
    given = {"PT_VERSION": torch.__version__.split("+")[0], "HIP_VERSION": "702"}
    given |= {"GCN_ARCH_NAME": "gfx950:sramecc+:xnack-", "ROCBLAS_VERSION": "5.2.0.5b515cf1bc"}
    change = applying.prepare(emitter, outcomes, path, FrozenDict(given))
    assert len(change.winners) == len(problems)
    applying.write(emitter, change, path)
    rows = [r for r in path.read_text().splitlines() if not r.startswith("Validator")]
    for row in rows:
        scope["_process_single_offline_gemm"](row, 0)
    assert len(launched) == len(rows) == len(problems)
    for (a, b), problem in zip(launched, problems, strict=True):
        d = problem.dims
        assert (*a.shape[-2:], b.shape[-1]) == (d["m"], d["k"], d["n"])
        assert dtype_named(str(a.dtype)) == problem.dtypes["a"]
        assert (b.stride(-1) == 1) == (problem.options["tb"] == "n")
        assert a.dim() == (3 if "batch" in d else 2)
