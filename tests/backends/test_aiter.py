"""aiter's backend over a stand-in package with aiter's signatures, on the CPU."""

import sys
from pathlib import Path

import pytest

from kernelmark import ops
from kernelmark.backends import aiter
from kernelmark.backends.base import Kernel
from kernelmark.backends.torch import cpu, gpu
from kernelmark.core.errors import Unsupported
from kernelmark.core.result import KernelInfo
from kernelmark.devices.cpu import array
from kernelmark.devices.fake import FakeDevice
from kernelmark.gpu.architectures import absent
from kernelmark.testing.backends import BackendContract, bench

torch = pytest.importorskip("torch", reason="needs torch, which make test installs")
BACKEND = aiter.backend


class CpuViewer:
    def view(self, tensor):
        return cpu.view(tensor)

    def codes(self, tensor):
        return torch.from_numpy(array(tensor)).view(*tensor.spec.shape[:-1], -1)


class CpuKernel(Kernel):
    """Without a stream and captures, the same calls."""

    def __init__(self, name, calls, outputs):
        self.info = KernelInfo(name=name)
        self._calls, self._outputs = calls, outputs

    def launch(self, stream, set_index):
        self._calls[set_index]()

    def collect(self, set_index):
        if self._outputs is not None:
            self._outputs[set_index].copy_(self._calls[set_index]())


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent / "aiter_stand_in")
    monkeypatch.setattr(gpu, "enter", lambda device: CpuViewer())
    monkeypatch.setattr(gpu, "GpuKernel", CpuKernel)
    monkeypatch.setattr(gpu, "started", lambda kernel, device: kernel)
    yield
    for name in [one for one in sys.modules if one.partition(".")[0] == "aiter"]:
        del sys.modules[name]


QUANT = "batched_gemm_quant batch=2 m=5 n=7"
PROBLEMS = (
    "gemm m=5 n=7 k=3 dtype=bf16 tb=t",
    "gemm m=5 n=7 k=3 dtype=f16 tb=t bias=yes",
    "batched_gemm batch=3 m=5 n=7 k=3 dtype=bf16 tb=t",
    "batched_gemm batch=3 m=5 n=7 k=3 dtype=f16 tb=t",
    f"{QUANT} k=33 scheme=a8w8 bias=yes",
    f"{QUANT} k=33 scheme=a8w8 c=f16",
    "batched_gemm_quant batch=1 m=5 n=7 k=33 scheme=a8w8 bias=yes",
    "batched_gemm_quant batch=1 m=5 n=7 k=33 scheme=a8w8 c=f16",
    f"{QUANT} k=300 scheme=a8w8_group a_order=mbk bias=yes",
    f"{QUANT} k=300 scheme=a8w8_group c_order=mbn b=f8e4m3fnuz",
    "gemm_epilogue m=5 n=7 k=33 dtype=f8e4m3 c=f16 bias=yes tb=t scale=row",
    "gemm_epilogue m=5 n=130 k=256 dtype=f8e4m3 scale=block",
    f"{QUANT} k=96 scheme=a16wfp4 a_order=mbk c_order=mbn",
    f"{QUANT} k=64 scheme=afp4wfp4",
    "attention batch=2 heads_q=4 heads_kv=2 seq_q=5 seq_kv=9 dim=8 dtype=bf16 causal=yes",
    "attention heads=2 seq=9 dim_qk=8 dim_v=4 dtype=f16 layout=bshd scale=0.25",
    "attention batch=3 heads_q=4 heads_kv=1 seq_q=1 seq_kv=40 dim_qk=24 dim_v=16 dtype=bf16",
    "attention heads_q=2 heads_kv=1 seq_q=1 seq_kv=9 dim_qk=12 dim_v=8 dtype=f16 layout=bshd",
    "moe m=3 n=32 k=32 e=4 top_k=2 dtype=bf16 w_order=tiled",
)


@pytest.mark.parametrize("key", PROBLEMS)
def test_every_kernel_computes_the_problem(stand_in, key):
    problem, info = ops.parse(key), absent("gfx950")
    space = BACKEND.space(problem, info)
    assert space.default in list(space)
    for config in space:
        with bench(BACKEND, problem, FakeDevice(), config=config) as made:
            BackendContract().check(made)
            if config.get("split_k", "tuned") == "tuned":
                functions = aiter.functions_of(problem)
                assert made.kernel.info.name == ".".join(functions[str(config["kernel"])])


A8W8 = "batched_gemm_quant batch={} m=5 n=7 k=33 scheme=a8w8"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("batched_gemm batch=3 m=5 n=7 k=3 dtype=bf16 tb=t", "batched_gemm_bf16"),
        (A8W8.format(2), "batched_gemm_a8w8"),
        (A8W8.format(1), "gemm_a8w8"),
    ],
)
def test_ck_takes_its_config_from_aiters_table_or_from_ours(stand_in, key, name):
    """aiter's tables for CK have a kernel's number and the power of two of a split of k."""
    plain = f"{name}_ck" if name == "gemm_a8w8" else name
    for config, called in (
        ({"kernel": "ck"}, (f"{name}_CK", None, None)),
        ({"kernel": "ck", "split_k": "tuned"}, (f"{name}_CK", None, None)),
        ({"kernel": "ck", "split_k": 2}, (plain, 2, None)),
        ({"kernel": "ck", "kernel_id": 14}, (f"{name}_tune", 0, 14)),
        ({"kernel": "ck", "kernel_id": 14, "split_k": 1}, (f"{name}_tune", 1, 14)),
    ):
        with bench(BACKEND, ops.parse(key), FakeDevice(), config=config) as made:
            import aiter as package

            BackendContract().check(made)
            assert set(package.CK_CALLS) == {called}
            package.CK_CALLS.clear()
            assert made.kernel.info.name == f"aiter.{called[0]}"


@pytest.mark.parametrize(
    ("key", "config"),
    [
        (A8W8.format(2), {"kernel": "triton", "split_k": 1}),
        (A8W8.format(2), {"split_k": 1}),  # the default is Triton's
        (A8W8.format(2), {"kernel": "ck", "split_k": -1}),
        (A8W8.format(2), {"kernel": "ck", "split_k": "some"}),
        (A8W8.format(2), {"kernel": "ck", "kernel_id": True}),
        # The functions that take a number add no bias.
        (A8W8.format(2) + " bias=yes", {"kernel": "ck", "kernel_id": 3}),
    ],
)
def test_a_config_that_ck_does_not_take_is_refused(stand_in, key, config):
    with pytest.raises(Unsupported):
        BACKEND.prepare(ops.parse(key), config, FakeDevice(), [])


G1 = "moe_ck2stages_gemm1_256x{}x64x64_1x4_TypeCast_v1_Nswizzle0_Quant0_MulRoutedWeight0_silu_B16"
G2 = "moe_ck2stages_gemm2_256x{}x64x64_1x4_TypeCast_v1_Nswizzle0_Quant0_MulRoutedWeight1_B16"


def test_kernels_of_a_moe_are_launched_as_a_row_of_aiters_table_is(stand_in):
    problem = ops.parse(PROBLEMS[-1])
    config = {"kernel": "ck", "kernel1": G1.format(64), "kernel2": G2.format(64)}
    with bench(BACKEND, problem, FakeDevice(), config=config) as made:
        from aiter import fused_moe

        BackendContract().check(made)
        row = {"block_m": 64, "ksplit": 0, "run_1stage": 0}
        row |= {"kernelName1": G1.format(64), "kernelName2": G2.format(64)}
        assert all(vars(chosen) == row for chosen in fused_moe.CALLS)
        assert fused_moe.cfg_2stages is None, "aiter's own table is back"
        fused_moe.CALLS.clear()
    with bench(BACKEND, problem, FakeDevice()) as made:
        BackendContract().check(made)
        assert set(fused_moe.CALLS) == {None}


@pytest.mark.parametrize(
    "config",
    [
        {"kernel": "ck"},
        {"kernel": "ck", "kernel1": G1.format(32)},
        {"kernel": "ck", "kernel1": G1.format(32), "kernel2": G2.format(64)},
        {"kernel1": G1.format(32), "kernel2": G2.format(32)},
        {"kernel": "ck", "kernel1": "a", "kernel2": "b"},
        {"kernel": "ck", "kernel1": G1.format(32), "kernel2": G2.format(32), "split_k": 1},
    ],
)
def test_kernels_of_a_moe_that_do_not_go_together_are_refused(stand_in, config):
    with pytest.raises(Unsupported):
        BACKEND.prepare(ops.parse(PROBLEMS[-1]), config, FakeDevice(), [])
    if "kernel1" in config:
        with pytest.raises(Unsupported):
            BACKEND.prepare(ops.parse(PROBLEMS[0]), config, FakeDevice(), [])


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_a_moe_has_names_as_aiters_tables_have_them(arch):
    space = BACKEND.space(ops.parse(PROBLEMS[-1]), absent(arch))
    cast = "TypeCastExpertWeight" if arch == "gfx942" else "TypeCast"
    kernels = {(c["kernel1"], c["kernel2"]) for c in space if c["kernel"] == "ck"}
    assert (
        "moe_ck2stages_gemm1_256x32x64x128_1x4_TypeCast_v1_Nswizzle0_Quant0_MulRoutedWeight0_silu_"
        "B16_B16_B16",
        f"moe_ck2stages_gemm2_256x32x64x64_1x4_{cast}_v1_Nswizzle0_Quant0_MulRoutedWeight1_"
        "B16_B16_B16",
    ) in kernels


def test_the_default_is_aiters_own_dispatcher(stand_in):
    with bench(BACKEND, ops.parse(PROBLEMS[0]), FakeDevice()) as made:
        assert made.kernel.info.name == "aiter.tuned_gemm.gemm_a16w16"


def test_kernels_of_another_type_or_name_are_refused(stand_in):
    for key, config in (
        (PROBLEMS[0], {"kernel": "ck"}),
        (PROBLEMS[1], {"kernel": "asm"}),
        (PROBLEMS[0], {"tile": 3}),
    ):
        with pytest.raises(Unsupported):
            BACKEND.prepare(ops.parse(key), config, FakeDevice(), [])


def test_a_function_that_an_older_aiter_lacks_is_a_reason(stand_in, monkeypatch):
    import aiter as package

    monkeypatch.delattr(package, "gemm_a16w16_asm")
    with pytest.raises(Unsupported):
        aiter.call_of(ops.parse(PROBLEMS[0]), {"kernel": "asm"}, dict.fromkeys("abd"))


def test_available_where_it_is_installed(stand_in, monkeypatch, tmp_path):
    assert BACKEND.available() is None
    assert BACKEND.version() == "0.1.stand-in"
    monkeypatch.setattr(gpu, "platforms", lambda: frozenset({"hip"}))
    assert not BACKEND.missing_on("hip")
    monkeypatch.setattr(gpu, "platforms", frozenset)  # torch for CPUs
    assert BACKEND.missing_on("hip")
    (tmp_path / "aiter").mkdir()
    (tmp_path / "aiter" / "__init__.py").touch()
    sys.modules.pop("aiter", None)
    monkeypatch.syspath_prepend(tmp_path)  # the package of the same name for asynchronous code
    assert BACKEND.available() is not None
