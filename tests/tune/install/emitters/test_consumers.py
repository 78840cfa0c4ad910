"""What is written, looked up by the code of the libraries themselves, in checkouts of them:

KERNELMARK_CHECKOUTS=DIR pytest -m slow, with DIR/aiter, DIR/vllm and DIR/sglang. Only the functions
that look configs up are executed, without their GPU.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.aiter_config import STANDARD
from kernelmark.tune.install.emitters import aiter, nearest, registry

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
    import copy
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
