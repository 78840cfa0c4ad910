"""The real compiler and the real runtime."""

import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from kernelmark import backends, devices, ops
from kernelmark.backends.iree import compiler
from kernelmark.backends.iree.runtime import HostKernel
from kernelmark.backends.iree.targets import target
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, OutOfMemory
from kernelmark.core.result import KernelInfo
from kernelmark.host.processes import run_child
from kernelmark.kernels import mlir
from kernelmark.kernels.mlir.base import Form
from kernelmark.testing.backends import bench
from kernelmark_dev.raising import raises, raises_code

backend = backends.registry.get("iree")
pytestmark = pytest.mark.skipif(
    backend.available() is not None, reason=backend.available() or "available"
)

GEMM = "gemm m=40 n=24 k=56 dtype=f32"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache of the tests' own: empty at first, shared by them."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELMARK_CACHE", str(folder))
        yield folder


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache, and nothing remembered in this process."""
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "_recent", type(compiler._recent)())
    return tmp_path / "cache"


@pytest.fixture
def device():
    opened = devices.registry.get("cpu").open(0, threads=1)
    yield opened
    opened.close()


def worst(key, device, config=None):
    """The largest error anywhere, in units of the tolerance, of an output written in full."""
    with bench(backend, ops.parse(key), device, config=config, sets=1) as made:
        first, second = made.outcome(0, 0xFF), made.outcome(0, 0x5C)
        assert np.array_equal(first, second)
        assert device.guards_intact(made.output(0))
        return made.worst(0, everywhere=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("gemm m=100 n=97 k=33 dtype=f32 ta=t bias=yes", {"data_tiling": True}),
        ("gemm m=20 n=36 k=40 dtype=bf16 c=f32 tb=t", {"data_tiling": True}),
        ("batched_gemm batch=2 m=9 n=7 k=11 dtype=i8 beta=2.0", {"data_tiling": False}),
        ("attention batch=2 heads_q=4 heads_kv=2 seq_q=5 seq_kv=9 dim=8 dtype=f16 causal=yes", {}),
        ("attention heads=3 seq=7 dim_qk=5 dim_v=6 dtype=bf16 layout=bshd causal=yes", {}),
        ("conv n=2 c=3 h=9 w=8 k=5 r=3 s=2 stride_w=2 pad_h=1 dilation_h=2 dtype=f32", {}),
        ("conv n=1 c=4 h=7 w=7 k=6 r=3 s=3 pad=1 dtype=f16 layout=nhwc", {"im2col": False}),
    ],
)
def test_is_right_everywhere(key, config, device):
    assert worst(key, device, config) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("gemm m=100 n=97 k=33 dtype=f32 ta=t bias=yes", {"dynamic": "all", "data_tiling": True}),
        ("gemm m=20 n=36 k=40 dtype=bf16 c=f32 tb=t", {"dynamic": "m"}),
        ("batched_gemm batch=2 m=9 n=7 k=11 dtype=i8 beta=2.0", {"dynamic": "batch,k"}),
        (
            "attention batch=2 heads_q=4 heads_kv=2 seq_q=5 seq_kv=9 dim=8 dtype=f16 causal=yes",
            {"dynamic": "all"},
        ),
        (
            "attention heads=3 seq=7 dim_qk=5 dim_v=6 dtype=bf16 layout=bshd",
            {"dynamic": "heads_kv,seq_kv"},
        ),
        ("conv n=2 c=3 h=9 w=8 k=5 r=3 s=2 stride_w=2 pad_h=1 dtype=f32", {"dynamic": "all"}),
        ("conv n=1 c=4 h=7 w=7 k=6 r=3 s=3 pad=1 dtype=f16 layout=nhwc", {"dynamic": "h,w"}),
        ("conv n=2 c=4 h=7 w=7 k=6 r=3 s=3 groups=2 dtype=f32", {"dynamic": "all"}),
        ("batched_gemm_quant batch=2 m=5 n=7 k=33 scheme=a8w8", {"dynamic": "all"}),
        (
            "batched_gemm_quant batch=2 m=5 n=7 k=40 group=32 scheme=a8w8_group b=i8",
            {"dynamic": "k"},
        ),
        ("copy n=100 dtype=f32", {"dynamic": "all"}),
    ],
)
def test_dynamic_dims_are_right(key, config, device):
    assert worst(key, device, config) <= 1


def test_one_dynamic_module_serves_other_sizes(own_cache, device):
    first, second = "gemm m=8 n=8 k=8 dtype=f32", "gemm m=5 n=9 k=3 dtype=f32"
    config = {"dynamic": "all"}
    assert not backend.compile(ops.parse(first), config, device.info).cached
    assert backend.compile(ops.parse(second), config, device.info).cached
    assert worst(second, device, config) <= 1


@pytest.mark.slow
def test_tile_configs_are_right(device):
    key = "gemm m=70 n=50 k=40 dtype=f32 tb=t"
    found = backend.space(ops.parse(key), device.info)
    assert found is not None
    for config in random.Random(5).sample(list(found), 5):
        assert worst(key, device, config) <= 1, config


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        "attention heads_q=4 heads_kv=2 seq_q=6 seq_kv=10 dim=8 dtype=f32 causal=yes",
        "conv n=3 c=8 h=5 w=7 k=6 r=1 s=1 groups=2 dtype=f16",
        "conv n=2 c=8 h=5 w=7 k=6 r=1 s=1 pad=1 dtype=f32",
        "conv n=2 c=8 h=6 w=9 k=6 r=1 s=1 stride_h=2 stride_w=3 groups=2 dtype=f32",
    ],
)
def test_forms_for_gpus_agree(key, device):
    """CPUs also compute them, if slowly."""
    problem = ops.parse(key)
    specs = ops.registry.get(problem.op).tensors(problem)
    text = mlir.SOURCES[problem.op].text(problem, specs, Form(gpu=True))
    goal = target(device.info)
    binary = compiler.build(text, goal.flags, goal.identity).binary
    with bench(backend, problem, device, sets=1) as made:
        device.poison(made.output(0), 0xFF)
        fused = HostKernel(binary, specs, made.sets, 1, KernelInfo())
        fused.launch(0, 0)
        fused.close()
        assert made.worst(0, everywhere=True) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "dynamic"),
    [
        ("batched_gemm_quant batch=2 m=5 n=7 k=96 scheme=a16wfp4 a_order=mbk", False),
        ("batched_gemm_quant batch=2 m=5 n=7 k=96 scheme=a16wfp4 dtype=f16", "all"),
        ("batched_gemm_quant batch=3 m=5 n=7 k=64 scheme=afp4wfp4 c_order=mbn", False),
        ("batched_gemm_quant batch=3 m=5 n=7 k=64 scheme=afp4wfp4", "all"),
        ("batched_gemm_quant batch=2 m=5 n=7 k=300 scheme=a8w8_group", False),
        ("gemm m=20 n=36 k=40 dtype=f8e4m3", "m"),
        ("attention heads=2 seq=32 dim=32 dtype=f8e4m3", False),
    ],
)
def test_short_floats_are_right(key, dynamic, device, monkeypatch):
    """The backend leaves them to GPUs; a CPU can emulate them, and so check the text."""
    monkeypatch.setattr("kernelmark.backends.iree._emulated", lambda problem: None)
    assert worst(key, device, {"dynamic": dynamic}) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "arch", "key", "config"),
    [
        ("hip", "gfx942", "attention heads=2 seq=64 dim=64 dtype=f16 causal=yes", {}),
        (
            "hip",
            "gfx942",
            "attention heads=2 seq=64 dim=64 dtype=f16 causal=yes",
            {"dynamic": "batch,seq_q,seq_kv"},
        ),
        (
            "hip",
            "gfx942",
            "conv n=2 c=32 h=16 w=16 k=32 r=3 s=3 pad=1 dtype=f16",
            {"dynamic": "n,h,w"},
        ),
        ("cuda", "sm_90", "gemm m=64 n=64 k=64 dtype=f16 tb=t", {}),
        ("cuda", "sm_90", "gemm m=64 n=64 k=64 dtype=f16 tb=t", {"dynamic": "all"}),
        ("cuda", "sm_90", "attention heads=2 seq=64 dim=64 dtype=f64", {}),
    ],
)
def test_compiles_for_absent_gpus(kind, arch, key, config):
    info = DeviceInfo(name=f"{kind}:0", kind=kind, model="absent", arch=arch)
    built = backend.compile(ops.parse(key), config, info)
    assert built.resources["binary_bytes"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "compiles"),
    [
        ("gemm m=64 n=64 k=64 dtype=f8e4m3", False),
        ("gemm m=64 n=64 k=64 dtype=f8e4m3fnuz", True),
        ("attention heads=2 seq=64 dim=64 dtype=f8e4m3fnuz", True),
        ("batched_gemm_quant batch=2 m=64 n=64 k=128 scheme=a16wfp4", True),
        ("batched_gemm_quant batch=2 m=64 n=64 k=128 scheme=afp4wfp4", True),
    ],
)
def test_short_floats_of_gfx942(key, compiles):
    """It multiplies fnuz floats, and IREE emulates MXFP4; of the other 8-bit floats IREE itself
    says that there are none."""
    info = DeviceInfo(name="hip:0", kind="hip", model="absent", arch="gfx942")
    if compiles:
        assert backend.compile(ops.parse(key), {}, info).resources["binary_bytes"] > 1000
        return
    with pytest.raises(CompileError) as raised:
        backend.compile(ops.parse(key), {}, info)
    assert "F8E4M3FN" in raised.value.message.splitlines()[0]


def workers():
    """IREE's threads in this process."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            count += "iree-worker" in (task / "comm").read_text()
        except OSError:
            continue
    return count


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="needs Linux's /proc to count threads"
)
def test_threads_follow_the_device():
    kind = devices.registry.get("cpu")
    for threads in {1, min(2, kind.infos()[0].units)}:
        device = kind.open(0, threads=threads)
        try:
            with bench(backend, ops.parse(GEMM), device, sets=1) as made:
                made.outcome(0, 0xFF)
                # IREE starts its threads lazily, which takes seconds on a busy machine.
                expected, end = 0 if threads == 1 else threads, time.monotonic() + 600
                while workers() != expected and time.monotonic() < end:
                    time.sleep(0.01)
                assert workers() == expected
                assert made.worst(0) <= 1
            end = time.monotonic() + 600
            while workers():  # the kernel lists a thread a moment longer than it runs
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            device.close()


def test_memory_is_given_back(device):
    with bench(backend, ops.parse(GEMM), device) as made:
        made.outcome(0, 0xFF)
        made.kernel.close()
        maps = [cast(Any, t.buffer)._map for tensors in made.sets for t in tensors.values()]
    assert all(m.closed for m in maps)


def test_compile_fills_the_cache(own_cache, device):
    problem = ops.parse(GEMM)
    first = backend.compile(problem, {}, device.info)
    assert not first.cached
    assert first.compile_s > 0
    assert first.name == "gemm llvm-cpu"
    compiler._recent.clear()
    second = backend.compile(problem, {}, device.info)
    assert second.cached
    assert second.binary_hash == first.binary_hash
    assert len(second.binary_hash) == 64
    for entry in own_cache.rglob("*.entry"):
        entry.write_bytes(entry.read_bytes()[:-1])
    compiler._recent.clear()
    third = backend.compile(problem, {}, device.info)
    assert not third.cached
    # Compiling again gives the same bits: the hash tells whether a kernel has changed.
    assert third.binary_hash == first.binary_hash


def test_the_compilers_tile_sizes_are_kept_with_the_module(own_cache, device):
    problem = ops.parse(GEMM)
    first = backend.compile(problem, {}, device.info)
    ((name, config),) = first.configs.items()
    assert "matmul_40x24x56" in name
    assert "distribution = [" in config
    compiler._recent.clear()
    assert backend.compile(problem, {}, device.info).configs == first.configs


def test_a_module_cached_before_configs_were_kept_is_used(own_cache, monkeypatch):
    monkeypatch.setattr(compiler, "run_compiler", lambda *given, **more: b"binary")
    compiler.build("a", (), "")
    for entry in own_cache.rglob("*.entry"):
        if b"binary" not in entry.read_bytes():
            entry.unlink()
    compiler._recent.clear()
    found = compiler.build("a", (), "")
    assert (found.binary, found.cached, found.configs) == (b"binary", True, {})


def test_cache_tells_apart_what_changes_the_code(own_cache, monkeypatch):
    made = []

    def fake(source, flags, spec, dumps):
        made.append((source, *flags))
        return b"binary"

    monkeypatch.setattr(compiler, "run_compiler", fake)
    for _ in range(2):
        compiler.build("a", ("-x",), "one machine")
        compiler.build("b", ("-x",), "one machine")
        compiler.build("a", ("-y",), "one machine")
        compiler.build("a", ("-x",), "another machine")
        compiler.build("a", ("-x",), "one machine", spec="tuned")
    assert len(made) == 5
    monkeypatch.setattr(compiler, "compiler_identity", lambda: "a newer compiler")
    compiler.build("a", ("-x",), "one machine")
    assert len(made) == 6


def test_an_unwritable_cache_costs_one_compilation(own_cache, monkeypatch):
    own_cache.write_text("a file, not a folder")
    made = []

    def fake(source, flags, spec, dumps):
        made.append(source)
        return b"binary"

    monkeypatch.setattr(compiler, "run_compiler", fake)
    assert [compiler.build("a", (), "").cached for _ in range(3)] == [False, True, True]
    assert made == ["a"]


def compile_one(key, folder, found):
    os.environ["KERNELMARK_CACHE"] = folder
    info = devices.registry.get("cpu").infos()[0]
    found.put(backend.compile(ops.parse(key), {}, info).binary_hash)


@pytest.mark.slow
def test_processes_compile_at_once(own_cache):
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    jobs = [
        context.Process(target=compile_one, args=(GEMM, str(own_cache), found)) for _ in range(3)
    ]
    for job in jobs:
        job.start()
    hashes = {found.get(timeout=600) for _ in jobs}
    for job in jobs:
        job.join()
    assert len(hashes) == 1
    assert len(list(own_cache.rglob("*.entry"))) == 2  # the module, and its configs


def test_a_refused_module_says_where(own_cache):
    with raises(CompileError, line=2) as raised:
        compiler.build("module {\n  func.func @main() { nonsense }\n}", (), "")
    assert len(raised.value.message) < 2500
    assert list(own_cache.rglob("*.entry")) == []


def test_a_compiler_that_dies_is_a_compile_error(own_cache, tmp_path, monkeypatch):
    tool = tmp_path / "iree-compile"
    tool.write_text("#!/bin/sh\nkill -ABRT $$\n")
    tool.chmod(0o755)
    monkeypatch.setattr(compiler, "tool", lambda name: str(tool))
    with raises(CompileError, signal="SIGABRT"):
        compiler.build("module {}", (), "")
    monkeypatch.setattr(compiler, "tool", lambda name: str(tmp_path / "gone"))
    with raises(CompileError, program="iree-compile"):
        compiler.build("module {}", (), "")


@pytest.fixture
def hanging_compiler(tmp_path, monkeypatch):
    """A stand-in for iree-compile that hangs in its first calls, each of which is given half a
    second; returns the limits of all calls."""
    tool, awake = tmp_path / "iree-compile", tmp_path / "awake"
    tool.write_text(f"#!/bin/sh\n[ -e {awake} ] || sleep 600\ncat > /dev/null\nprintf module\n")
    tool.chmod(0o755)
    limits = []

    def make(hangs):
        def run(command, *, timeout_s=None, **more):
            limits.append(timeout_s)
            if len(limits) > hangs:
                awake.touch()
                return run_child(command, timeout_s=timeout_s, **more)
            return run_child(command, timeout_s=timeout_s and 0.5, **more)

        monkeypatch.setattr(compiler, "run_child", run)
        return limits

    monkeypatch.setattr(compiler, "tool", lambda name: str(tool))
    return make


@pytest.mark.parametrize("dumps", [False, True])
def test_a_compiler_that_hangs_once_is_started_again(hanging_compiler, tmp_path, dumps):
    limits = hanging_compiler(1)
    made = compiler.run_compiler("module {}", (), dumps=tmp_path if dumps else None)
    assert made == b"module"
    assert limits == [compiler.KERNEL_LIMIT_S] * 2


def test_a_compiler_that_hangs_twice_is_a_compile_error(hanging_compiler):
    limits = hanging_compiler(9)
    limit_s = compiler.KERNEL_LIMIT_S
    with raises(CompileError, tries=2) as raised:
        compiler.run_compiler("module {}", ("--flag",))
    assert "--flag" in (raised.value.hint or "")
    assert limits == [limit_s] * 2


def test_intermediate_results_beyond_memory(device, monkeypatch):
    problem = ops.parse("attention heads_q=4 heads_kv=2 seq=16 dim=8 dtype=f32")
    needed = 4 * 16 * 16 * 8
    monkeypatch.setattr(device, "free_bytes", lambda: needed - 1)
    with raises_code(OutOfMemory, "out-of-memory", needed=needed, free=needed - 1):
        backend.prepare(problem, {}, device, [])


def test_exhausted_memory_in_a_launch_is_out_of_memory(device):
    with bench(backend, ops.parse(GEMM), device, sets=1) as made:
        kernel = cast(Any, made.kernel)

        def refuse(*_):
            raise RuntimeError("Error invoking function: c.c:1: RESOURCE_EXHAUSTED; too much")

        kernel._invoke = refuse
        with pytest.raises(OutOfMemory) as raised:
            kernel.launch(0, 0)
        assert "RESOURCE_EXHAUSTED; too much" in raised.value.message


def test_misaligned_memory_is_refused(device):
    from dataclasses import replace

    with bench(backend, ops.parse(GEMM), device, sets=1) as made:
        tensors = dict(made.sets[0])
        tensors["a"] = replace(tensors["a"], offset=tensors["a"].offset - 4)
        with pytest.raises(ValueError, match="64"):
            backend.prepare(made.problem, {}, device, [tensors])


def test_an_old_runtime_is_named(monkeypatch):
    import iree.runtime as rt

    class Old:
        """An allocator that cannot import memory."""

    monkeypatch.setattr(rt, "HalAllocator", Old)
    reason = backend.available()
    assert reason is not None
    assert 'pip install --upgrade "kernelmark[iree]"' in reason
