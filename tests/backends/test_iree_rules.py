"""What the IREE backend decides before anything is compiled or runs; IREE need not be installed."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark import backends, ops
from kernelmark.backends.iree import choices, compiler, runtime
from kernelmark.backends.iree.choices import choose
from kernelmark.backends.iree.compiler import attributes_in, config_text, explain, parse_configs
from kernelmark.backends.iree.targets import Target, target
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config
from kernelmark.gpu import pack
from kernelmark_dev.raising import raises_code

CPU = DeviceInfo(name="cpu", kind="cpu", model="some", arch="x86_64")
GOOD = {
    "tile_m": 64,
    "tile_n": 64,
    "vector_m": 8,
    "vector_n": 8,
    "vector_k": 4,
    "cache_m": 32,
    "cache_n": 16,
    "cache_k": 32,
}


def device(kind: str, arch: str) -> DeviceInfo:
    return DeviceInfo(name=f"{kind}:0", kind=kind, model="some", arch=arch)


def cpu() -> Target:
    found = target(CPU)
    assert found is not None
    return found


def chosen(key: str, config: Config | None = None) -> Any:
    return choose(ops.parse(key), config or {}, cpu())


def supports(key: str, info: DeviceInfo = CPU) -> str | None:
    return backends.registry.get("iree").supports(ops.parse(key), info)


def test_refuses_moe_for_want_of_a_grouped_gemm() -> None:
    reason = Reason.of(supports("moe m=8 n=16 k=16 e=4 top_k=2 dtype=f32") or "")
    assert reason.code == "no-grouped-gemm"
    assert (reason.fields["experts"], reason.fields["top_k"]) == (4, 2)


@pytest.mark.parametrize(
    ("key", "tiled"),
    [
        ("gemm m=512 n=512 k=512 dtype=f32", True),
        ("gemm m=512 n=512 k=512 dtype=f16 acc=f16", True),
        ("gemm m=512 n=512 k=512 dtype=f16", False),
        ("gemm m=512 n=512 k=512 dtype=bf16", False),
        ("gemm m=512 n=512 k=512 dtype=f64", False),
        ("gemm m=1 n=512 k=512 dtype=f32", False),
        ("gemm m=1 n=512 k=512 dtype=i8", True),
        ("conv n=1 c=8 h=64 w=64 k=128 r=3 s=3 dtype=f32", True),
        ("conv n=1 c=8 h=64 w=64 k=8 r=3 s=3 dtype=f32", False),
        ("attention heads=2 seq=512 dim=128 dtype=f32", False),
    ],
)
def test_default_of_data_tiling(key: str, tiled: bool) -> None:
    choice = chosen(key)
    assert f"--iree-opt-data-tiling={str(tiled).lower()}" in choice.flags
    assert ("data-tiled" in choice.label) == tiled
    other = chosen(key, {"data_tiling": not tiled})
    assert f"--iree-opt-data-tiling={str(not tiled).lower()}" in other.flags


def test_never_computes_in_another_type() -> None:
    assert "--iree-input-demote-f64-to-f32=false" in chosen("gemm m=8 n=8 k=8 dtype=f64").flags
    flag = "--iree-llvmcpu-skip-intermediate-roundings=false"
    assert flag in chosen("gemm m=8 n=8 k=8 dtype=f16 acc=f16").flags


def test_conv_by_columns_is_a_choice() -> None:
    key = "conv n=1 c=8 h=8 w=8 k=8 r=3 s=3 dtype=f32"
    assert chosen(key).form.im2col
    assert "im2col" in chosen(key).label
    assert not chosen(key, {"im2col": False}).form.im2col
    assert not chosen(f"{key} groups=2").form.im2col


def test_tiles_exclude_data_tiling() -> None:
    choice = chosen("gemm m=512 n=512 k=512 dtype=f32", GOOD)
    assert "--iree-opt-data-tiling=false" in choice.flags
    (entry,) = choice.entries
    assert entry.lowering.config == (
        "#iree_cpu.lowering_config<cache_parallel = [32, 16, 0], cache_reduction = [0, 0, 32], "
        "distribution = [64, 64, 0], vector_common_parallel = [8, 8, 0], "
        "vector_reduction = [0, 0, 4]>"
    )
    assert entry.lowering.info in choice.spec
    bare = GOOD | {"cache_m": 0, "cache_n": 0, "cache_k": 0}
    no_cache = chosen("gemm m=512 n=512 k=512 dtype=f32", bare)
    assert "cache" not in no_cache.entries[0].lowering.config


LEFT = dict.fromkeys(GOOD, 0)


def test_sizes_of_zero_leave_the_tiles_to_the_compiler() -> None:
    key = "gemm m=64 n=64 k=64 dtype=f32"
    packed = chosen(key, LEFT | {"data_tiling": True, "ukernels": True})
    assert {"--iree-opt-data-tiling=true", "--iree-llvmcpu-enable-ukernels=all"} <= {*packed.flags}
    (entry,) = packed.entries
    assert (entry.lowering.config, entry.lowering.packed) == ("", True)
    assert entry.lowering == chosen(key, LEFT | {"data_tiling": True}).entries[0].lowering
    (plain,) = chosen(key, LEFT | {"data_tiling": False}).entries
    assert not plain.lowering.packed
    assert not chosen(key, {"data_tiling": True}).entries  # nothing that a spec would have to say


def test_microkernels_are_for_packed_operands() -> None:
    with pytest.raises(Unsupported) as raised:
        chosen("gemm m=64 n=64 k=64 dtype=f32", {"data_tiling": False, "ukernels": True})
    assert Reason.of(raised.value.message).code == "ukernels-unpacked"


@pytest.mark.parametrize(
    ("config", "code", "fields"),
    [
        ({"tile_m": 0, "data_tiling": True}, "parameter-missing", {"name": "tile_n"}),
        ({"no_such": 1}, "config-unknown-name", {"name": "no_such"}),
        ({"im2col": True}, "config-unknown-name", {"name": "im2col"}),
        ({"data_tiling": "yes"}, "config-not-yes-or-no", {"name": "data_tiling", "value": "yes"}),
        ({"data_tiling": 1}, "config-not-yes-or-no", {"name": "data_tiling", "value": 1}),
        (GOOD | {"data_tiling": True}, "tiles-with-packing", {}),
        ({"tile_m": 64}, "parameter-missing", {"name": "tile_n"}),
        (GOOD | {"tile_m": 0}, "not-positive", {"name": "tile_m"}),
        (GOOD | {"tile_m": -64}, "lowering-not-size", {"name": "tile_m", "value": -64}),
        (GOOD | {"tile_m": 6.5}, "lowering-not-size", {"name": "tile_m", "value": 6.5}),
        (GOOD | {"tile_m": 48}, "lowering-nesting", {"dim": "m", "tile": 48}),
        (GOOD | {"vector_m": 64}, "lowering-nesting", {"dim": "m", "vector": 64}),
        (GOOD | {"cache_k": 2}, "lowering-cache-k", {"cache_k": 2}),
        # Too large for the widest registers, too.
        (
            GOOD | dict.fromkeys(("tile_m", "tile_n", "cache_m", "cache_n"), 128),
            "lowering-vector",
            {},
        ),
        (GOOD | {"cache_m": 0}, "lowering-cache-levels", {}),
    ],
)
def test_refuses_bad_configs(config: Config, code: str, fields: dict[str, Any]) -> None:
    with raises_code(Unsupported, code, **fields):
        chosen("gemm m=8 n=8 k=8 dtype=f32", config)


@pytest.mark.parametrize(
    ("key", "config", "name"),
    [
        ("gemm m=1 n=8 k=8 dtype=f32", GOOD, "tile_m"),
        ("attention heads=2 seq=64 dim=64 dtype=f32", {"ukernels": True}, "ukernels"),
        ("conv n=1 c=4 h=8 w=8 k=4 r=3 s=3 groups=2 dtype=f32", {"im2col": True}, "im2col"),
    ],
)
def test_refuses_what_other_problems_have(key: str, config: Config, name: str) -> None:
    with raises_code(Unsupported, "config-unknown-name") as refused:
        chosen(key, config)
    fields = refused.value.message.fields
    assert name not in fields["known"]
    assert fields["name"] in config


@pytest.mark.parametrize(
    ("given", "dynamic"),
    [("all", ("m", "n", "k")), ("k,m", ("m", "k")), ("n", ("n",)), (False, ())],
)
def test_dynamic_dims_are_a_choice(given: str | bool, dynamic: tuple[str, ...]) -> None:
    choice = chosen("gemm m=8 n=8 k=8 dtype=f32", {"dynamic": given})
    assert choice.form.dynamic == dynamic
    assert choice.label == " ".join(
        ["gemm llvm-cpu", *["dynamic " + ",".join(dynamic)] * bool(dynamic)]
    )


@pytest.mark.parametrize("given", ["x", "m,x", "m,", "all,m", True, 3, "batch"])
def test_unknown_dynamic_dims_are_refused(given: str | bool | int) -> None:
    with pytest.raises(Unsupported) as raised:
        chosen("gemm m=8 n=8 k=8 dtype=f32", {"dynamic": given})
    reason = Reason.of(raised.value.message)
    assert reason.code == "dynamic-unknown-dim"
    assert reason.fields["known"] == ("m", "n", "k")


def test_tiles_exclude_dynamic_dims() -> None:
    with pytest.raises(Unsupported) as raised:
        chosen("gemm m=512 n=512 k=512 dtype=f32", GOOD | {"dynamic": "m"})
    assert Reason.of(raised.value.message).code == "dynamic-with-tiles"
    with pytest.raises(Unsupported) as raised:
        chosen("gemm m=512 n=512 k=512 dtype=f32", LEFT | {"dynamic": "m"})
    assert Reason.of(raised.value.message).code == "dynamic-with-tiles"


def test_nothing_to_tune_or_compile_where_it_cannot_run() -> None:
    iree, problem = backends.registry.get("iree"), ops.parse("gemm m=8 n=8 k=8 dtype=f32")
    assert iree.space(problem, device("fake", "fake")) is None
    with raises_code(Unsupported, "iree-no-target", arch="sm_52"):
        iree.compile(problem, {}, device("cuda", "sm_52"))
    with raises_code(Unsupported, "dtype-emulated", dtype="f8e4m3"):
        iree.compile(ops.parse("gemm m=8 n=8 k=8 dtype=f8e4m3"), {}, CPU)


@pytest.mark.parametrize(
    ("info", "driver", "flag"),
    [
        (CPU, "local-task", "--iree-llvmcpu-target-cpu=host"),
        (device("cuda", "sm_80"), "cuda", "--iree-cuda-target=sm_80"),
        (device("cuda", "sm_75"), "cuda", "--iree-cuda-target=sm_60"),
        (device("cuda", "sm_90"), "cuda", "--iree-cuda-target=sm_89"),
        (device("cuda", "sm_100a"), "cuda", "--iree-cuda-target=sm_89"),
        (device("hip", "gfx942"), "hip", "--iree-rocm-target=gfx942"),
    ],
)
def test_targets(info: DeviceInfo, driver: str, flag: str) -> None:
    found = target(info)
    assert found is not None
    assert found.driver == driver
    assert flag in found.flags
    assert found.gpu == (info.kind != "cpu")


def test_no_target() -> None:
    assert target(device("cuda", "sm_52")) is None
    assert target(device("fake", "fake")) is None


SOURCE = "module {\n  func.func @main() {\n    %0 = bad\n  }\n}"
LOG = "<stdin>:3:10: error: use of undeclared SSA value name\n    %0 = bad\n         ^\nmore"


def test_explains_with_the_line_of_the_mlir() -> None:
    found = explain(1, LOG, SOURCE)
    assert found.code == "iree-refused"
    assert found.fields["error"] == "use of undeclared SSA value name"
    assert (found.fields["line"], found.fields["source"]) == (3, "%0 = bad")
    assert found.partition("\n")[2] == found.fields["output"] == LOG


def test_explains_with_the_first_error_and_the_first_line() -> None:
    """The cause comes first and has no place; what it made fail has one."""
    log = "<unknown>:0: error: no such type on gfx942\n<stdin>:3:10: error: translation failed"
    fields = explain(1, log, SOURCE).fields
    assert fields["error"] == "no such type on gfx942"
    assert (fields["line"], fields["source"]) == (3, "%0 = bad")


@pytest.mark.parametrize(
    ("exit_code", "log", "code", "fields"),
    [
        (
            -signal.SIGABRT,
            "Please report a bug",
            "iree-signalled",
            {"signal": "SIGABRT", "error": ""},
        ),
        (-99, "", "iree-signalled", {"signal": "signal 99", "error": ""}),
        (
            -signal.SIGSEGV,
            "<unknown>:0: error: no such thing\nStack dump:",
            "iree-signalled",
            {"signal": "SIGSEGV", "error": "no such thing"},
        ),
        (1, "iree-compile: error: no such flag:\n", "iree-refused", {"error": "no such flag"}),
        (2, "\nstrange\nthings", "iree-failed", {"exit_code": 2, "error": "strange"}),
        (0, "", "iree-failed", {"exit_code": 0}),
        (1, "-:99:1: error: far away", "iree-refused", {"error": "far away", "line": 99}),
        (
            1,
            "my spec.mlir:7:3: error: odd",
            "iree-refused",
            {"error": "odd", "line": 7, "file": "my spec.mlir"},
        ),
    ],
)
def test_explains_the_rest(exit_code: int, log: str, code: str, fields: dict[str, Any]) -> None:
    found = explain(exit_code, log, SOURCE)
    assert found.code == code
    assert {name: found.fields[name] for name in fields} == fields


@pytest.mark.parametrize(("folder", "runs"), [(".", 2), ("/tmp/other", 1)])
def test_an_error_in_a_dumped_file_is_located_in_the_module(
    monkeypatch: pytest.MonkeyPatch, folder: str, runs: int
) -> None:
    """IREE locates errors in the files that it dumps, which are deleted."""
    made: list[list[str]] = []

    def run(command: list[str], **more: Any) -> subprocess.CompletedProcess[bytes]:
        made.append(command)
        place = "./configured_main.mlir:2:2" if "--dump" in command else "<stdin>:6:10"
        log = f"<unknown>:0: error: no such type\n{place}: error: failed to translate".encode()
        return subprocess.CompletedProcess(command, 1, b"", log)

    monkeypatch.setattr(compiler, "run_child", run)
    done = compiler.run_dumping(["iree-compile"], folder, ["--dump"])
    assert len(made) == runs
    assert (b"<stdin>:6:10" in done.stderr) == (runs == 2)


def test_an_error_without_a_line_names_none() -> None:
    """As iree-compile writes it of an empty module."""
    named, none = (
        explain(1, f"empty.mlir:{line}:0: error: no module", "").splitlines()[0] for line in (3, 0)
    )
    assert "empty.mlir" in named
    assert "empty.mlir" not in none


def test_explains_without_a_line_where_the_user_wrote_no_mlir() -> None:
    found = explain(1, "<stdin>:1:1: error: no target", "")
    assert found.fields["error"] == "no target"
    assert "line" not in found.fields


@given(st.text(), st.integers(-70, 300))
def test_explains_anything_briefly(log: str, code: int) -> None:
    text = explain(code, log, SOURCE)
    assert text.startswith("iree-compile")
    assert len(text) < 2000 + len(log.strip().partition("\n")[0]) + 400


@pytest.mark.parametrize("missing", ["iree.compiler", "iree.runtime"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        if name == missing:
            return None
        return object() if name.startswith("iree.") else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    reason = Reason.of(backends.registry.get("iree").available() or "").root
    assert reason.code == "not-installed"
    assert reason.fields["name"] == f"iree-base-{missing.removeprefix('iree.')}"


def test_missing_altogether(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str, package: str | None = None) -> Any:
        raise ModuleNotFoundError("No module named 'iree'")

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    reason = Reason.of(backends.registry.get("iree").available() or "").root
    assert reason.code == "not-installed"
    assert reason.fields["name"] == "iree-base-compiler and iree-base-runtime"


iree = backends.registry.get("iree")
GEMM = "gemm m=40 n=24 k=56 dtype=f32"


def goal(kind: str, arch: str) -> Target:
    found = target(device(kind, arch))
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def no_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELMARK_PACK", raising=False)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with IREE's runtime alone."""
    real = compiler.present
    monkeypatch.setattr(compiler, "present", lambda name: name != "iree.compiler" and real(name))
    monkeypatch.setattr(
        "kernelmark.backends.iree.present", lambda name: name == "iree.runtime" and real(name)
    )


@pytest.mark.parametrize(
    ("kind", "arch", "key"),
    [
        ("cuda", "sm_90", "gemm m=8 n=8 k=8 dtype=f8e4m3"),
        ("cuda", "sm_90", "gemm m=8 n=8 k=8 a=f8e4m3 b=f8e5m2"),
        ("cuda", "sm_75", "gemm m=8 n=8 k=8 dtype=bf16"),
        ("hip", "gfx942", "gemm m=8 n=8 k=8 dtype=f8e4m3fnuz"),
        ("hip", "gfx942", "gemm m=8 n=8 k=8 dtype=f8e4m3"),
        ("hip", "gfx942", "attention heads=2 seq=8 dim=8 dtype=f8e4m3fnuz"),
        ("hip", "gfx942", "attention heads=2 seq=8 dim=8 dtype=f16 kv=f8e4m3"),
        ("hip", "gfx950", "batched_gemm batch=2 m=8 n=8 k=8 dtype=f8e5m2"),
        ("hip", "gfx950", "batched_gemm_quant batch=2 m=8 n=8 k=32 scheme=afp4wfp4"),
    ],
)
def test_the_compiler_decides_which_types_a_gpu_has(kind: str, arch: str, key: str) -> None:
    assert iree.refuses(ops.parse(key), device(kind, arch)) is None


def test_no_target_is_refused() -> None:
    assert iree.refuses(ops.parse(GEMM), device("cuda", "sm_52")) is not None


def test_a_batch_takes_whole_sets_and_ties_each_output() -> None:
    problem = ops.parse("gemm m=40 n=24 k=56 dtype=bf16 tb=t bias=yes")
    text = choices.source(problem, choices.choose(problem, {}, goal("cuda", "sm_90")))
    head = next(line for line in text.splitlines() if f"@{choices.BATCH_FUNCTION}(" in line)
    names = re.findall(r"%(\w+)_(\d+): tensor", head)
    assert names[:5] == [("a", "0"), ("b", "0"), ("bias", "0"), ("d", "0"), ("a", "1")]
    assert len(names) == 4 * choices.BATCH
    tied = re.findall(r"%d_(\d+): tensor<40x24xbf16> {iree.abi.output = (\d+) : index}", head)
    assert tied == [(str(i), str(i)) for i in range(choices.BATCH)]
    assert text.count("func.call @main(") == choices.BATCH
    assert text.count("{") == text.count("}")


def test_only_gpus_get_a_batch() -> None:
    problem = ops.parse(GEMM)
    cpu = target(DeviceInfo(name="cpu", kind="cpu", model="some", arch="x86_64"))
    assert cpu is not None
    assert choices.BATCH_FUNCTION not in choices.source(problem, choices.choose(problem, {}, cpu))


def test_a_pack_is_found_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_compiler: None
) -> None:
    place, flags = goal("cuda", "sm_90"), ("--one", "--two")
    pack.add(tmp_path, compiler.pack_key("module", flags), place.pack, b"binary")
    (tmp_path / place.pack / compiler.PACK_NOTE).write_text("3.13 (abc)\n")
    monkeypatch.setenv("KERNELMARK_PACK", f"{tmp_path / 'none'}:{tmp_path}")
    found = compiler.build("module", flags, "", place.pack)
    assert (found.binary, found.cached) == (b"binary", True)
    assert compiler.packed_by() == "3.13 (abc)"
    for source, other in (("another module", flags), ("module", ("--one--two",))):
        with raises_code(Unsupported, "iree-compiler-missing", bundle="iree-sm_89"):
            compiler.build(source, other, "", place.pack)
    with raises_code(Unsupported, "iree-compiler-missing", bundle=""):
        compiler.build("module", flags, "a machine")


def test_a_damaged_module_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_compiler: None
) -> None:
    place = goal("cuda", "sm_90")
    path = pack.add(tmp_path, compiler.pack_key("module", ()), place.pack, b"binary")
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setenv("KERNELMARK_PACK", str(tmp_path))
    with raises_code(CompileError, "bundle-unusable", damaged=[str(path)]) as caught:
        compiler.build("module", (), "", place.pack)
    assert caught.value.message.root.code == "iree-compiler-missing"


def test_a_pack_does_not_pass_for_kernels_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack.add(tmp_path, "key", goal("cuda", "sm_90").pack, b"binary")
    monkeypatch.setenv("KERNELMARK_PACK", str(tmp_path))
    assert pack.holds(compiler.PACK_PREFIX)
    assert not pack.holds("sm_")


def test_cpus_need_the_compiler(no_compiler: None) -> None:
    cpu = DeviceInfo(name="cpu", kind="cpu", model="some", arch="x86_64")
    reason = Reason.of(iree.supports(ops.parse(GEMM), cpu) or "").root
    assert (reason.code, reason.fields["name"]) == ("not-installed", "iree-base-compiler")


CUDA_ERROR = (
    "Error creating driver: c/runtime/cuda.c:66: UNAVAILABLE; CUDA driver library 'libcuda.so' "
    "not available; please ensure installed"
)


def test_a_missing_driver_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_loads", lambda library: False)
    several = "x.c:1: UNAVAILABLE; no library: \n  Tried: this\n  Tried: that"
    cuda = "CUDA driver library 'libcuda.so' not available; please ensure installed"
    for driver, text, error in (
        ("cuda", CUDA_ERROR, cuda),
        ("hip", several, "no library"),
        ("hip", "odd", "odd"),
    ):
        reason = runtime._explain(driver, text)
        assert reason.code == "device-unusable"
        assert reason.fields == {"device": driver, "cause": f"IREE's runtime: {error}"}


def test_a_driver_under_another_name_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_loads", lambda library: library == "libcuda.so.1")
    reason = runtime._explain("cuda", CUDA_ERROR)
    assert "libcuda.so.1" in reason
    assert "LD_LIBRARY_PATH" in reason


def test_iree_loads_the_hip_runtime_of_the_device(
    rocm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its file: only the headers' packages have one of the name that IREE looks for."""
    model = rocm_folder / "model.so"  # under HIP's own name it would stay loaded for other tests
    monkeypatch.setattr(runtime, "find_library", lambda table: ctypes.CDLL(str(model)))
    assert runtime.hip_runtime() == model.resolve()
    monkeypatch.setattr(runtime, "find_library", lambda table: None)
    assert runtime.hip_runtime() is None


@pytest.mark.parametrize(
    ("launches", "launch_s", "even"),
    [(1, 0.0, 16), (7, 2e-3, 7), (8, 2e-3, 16), (7, 1e-4, 16), (16, 1.0, 16), (17, 1e-6, 32)],
)
def test_replays_hold_whole_batches_unless_launches_are_long(
    launches: int, launch_s: float, even: int
) -> None:
    kernel = object.__new__(runtime.QueueKernel)
    kernel._launch_s = launch_s
    found = kernel.even_launches(launches)
    assert found == even
    both = (found, 2 * found)
    assert all(n % choices.BATCH == 0 for n in both) or all(n < choices.BATCH for n in both)


PIPELINE = "pipeline = #iree_gpu.pipeline<TileAndFuse> workgroup_size = [512, 1, 1]"
THREADS = "#iree_gpu.derived_thread_config"
CONVOLUTION = (
    "{mma_kind = #iree_gpu.mma_layout<MFMA_F32_16x16x16_F16>, promote_operands = [0, 1], "
    "reduction = [0, 0, 0, 0, 2], subgroup = [1, 2, 1, 4, 0], workgroup = [1, 4, 32, 128, 0]}"
)
SWIZZLED = (
    "{mma_kind = #iree_gpu.mma_layout<MFMA_F32_16x16x32_F16>, promote_operands = [0, 1], "
    "promotion_types = [#iree_gpu.swizzle_operand<copy_config = #iree_gpu.derived_thread_config, "
    "swizzle = #iree_codegen.xor_shuffle<64, 8>>, #iree_gpu.use_global_load_dma], "
    "reduction = [0, 0, 2], subgroup = [4, 4, 0], workgroup = [128, 128, 0]}"
)
ATTENTION = (
    f"{{promote_operands = [0, 1, 2], promotion_types = [{THREADS}, {THREADS}, {THREADS}], "
    "reduction = [0, 0, 0, 0, 128], workgroup = [1, 64, 64, 0, 0]}"
)


@pytest.mark.parametrize(
    ("tiles", "shown"),
    [
        (CONVOLUTION, ("MFMA_F32_16x16x16_F16", "[1, 4, 32, 128, 0]", "[0, 0, 0, 0, 2]")),
        (SWIZZLED, ("MFMA_F32_16x16x32_F16", "[128, 128, 0]", "[4, 4, 0]")),
        (ATTENTION, ("[1, 64, 64, 0, 0]", "[0, 0, 0, 0, 128]")),
    ],
)
def test_every_tile_size_of_a_gpu_is_shown(tiles, shown):
    text = config_text((PIPELINE, tiles))
    assert all(one in text for one in ("TileAndFuse", "[512, 1, 1]", *shown))


DUMP = """
func.func @k_matmul() attributes {translation_info = #iree_codegen.translation_info<pipeline =
#iree_gpu.pipeline<TileAndFuse> workgroup_size = [256, 1, 1]>} {
  %6 = linalg.fill {lowering_config = #iree_cpu.lowering_config<vector_common_parallel = [8]>}
  %7 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], lowering_config =
       #iree_gpu.lowering_config<{mma_kind = #iree_gpu.mma_layout<MFMA>, reduction = [0, 4]}>}
}
func.func @k_copy() {
}
"""


def test_the_configs_of_kernels():
    configs = parse_configs(DUMP)
    assert list(configs) == ["k_matmul", "k_copy"]
    info, *tiles = configs["k_matmul"]
    assert info.endswith("workgroup_size = [256, 1, 1]")
    assert set(tiles) == {
        "vector_common_parallel = [8]",
        "{mma_kind = #iree_gpu.mma_layout<MFMA>, reduction = [0, 4]}",
    }
    assert configs["k_copy"] == ()
    assert config_text(configs["k_copy"]) == ""


def test_an_arrow_closes_no_attribute():
    assert attributes_in("#x.y<a -> b<c>, d> #x.y<>", "#x.y") == ["a -> b<c>, d", ""]
