"""What the IREE backend decides about GPUs before anything runs; IREE need not be installed."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from kernelmark import backends, ops
from kernelmark.backends.iree import choices, compiler, runtime
from kernelmark.backends.iree.targets import Target, target
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, Unsupported
from kernelmark.core.reason import Reason
from kernelmark.gpu import pack
from kernelmark_dev.raising import raises_code

iree = backends.registry.get("iree")
GEMM = "gemm m=40 n=24 k=56 dtype=f32"


def device(kind: str, arch: str) -> DeviceInfo:
    return DeviceInfo(name=f"{kind}:0", kind=kind, model="absent", arch=arch)


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
