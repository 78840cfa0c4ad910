"""torch on the CPU: exactly the stated types, in our memory, with the threads asked for."""

import importlib.metadata
import importlib.util
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kernelmark import ops
from kernelmark.backends.torch import backend, cpu, epilogue_calls, gpu
from kernelmark.backends.torch.cpu import TorchKernel, view
from kernelmark.backends.torch.gpu import GpuKernel, Viewer, _attention, _conv, refusal
from kernelmark.core.dtype import TORCH_NAMES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.core.tensor import TensorSpec
from kernelmark.devices.base import Tensor
from kernelmark.devices.cpu import CpuDevice
from kernelmark.gpu.architectures import absent
from kernelmark.numerics.floats import encode
from kernelmark.testing.backends import BackendContract, bench
from kernelmark_dev.raising import raises, raises_code

ARM = DeviceInfo(name="cpu", kind="cpu", model="", arch="aarch64")
X86 = DeviceInfo(name="cpu", kind="cpu", model="", arch="x86_64")
GEMM = "gemm m=64 n=64 k=64 dtype=f32"
F16_CONV = "conv n=1 c=512 h=7 w=7 k=8 r=3 s=3 pad=1 dtype=f16"

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch, which make test installs"
)


@pytest.fixture(scope="module")
def device():
    opened = CpuDevice(1)
    yield opened
    opened.close()


def test_an_environment_that_loosens_f32_is_refused():
    loose = {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}
    assert "BF16" in (cpu.loosened(ops.parse(GEMM), loose) or "")
    assert cpu.loosened(ops.parse(GEMM), {"ONEDNN_DEFAULT_FPMATH_MODE": "strict"}) is None
    assert cpu.loosened(ops.parse("gemm m=8 n=8 k=8 dtype=f64"), loose) is None


def test_f16_conv_on_arm_stays_away_from_onednn():
    problem = ops.parse(F16_CONV)
    assert cpu.onednn(problem, {}, ARM) is False
    assert cpu.onednn(problem, {}, X86) is True
    with pytest.raises(Unsupported):
        cpu.onednn(problem, {"onednn": True}, ARM)
    with pytest.raises(Unsupported):
        cpu.onednn(problem, {"onednn": 1}, X86)
    space = backend.space(problem, ARM)
    assert space is not None
    assert [dict(config) for config in space] == [{"onednn": False}]


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert 'pip install "kernelmark[torch]"' in (backend.available() or "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.13.1+cu117")
    reason = backend.available() or ""  # an old one is refused with both versions
    assert "1.13.1" in reason
    assert "2.5" in reason


def test_asking_does_not_import_torch():
    code = (
        "import sys\n"
        "from kernelmark import backends, ops\n"
        "from kernelmark.core.environment import DeviceInfo\n"
        "torch = backends.registry.get('torch')\n"
        "cpu = DeviceInfo(name='cpu', kind='cpu', model='', arch='x86_64')\n"
        f"torch.available(), torch.supports(ops.parse({GEMM!r}), cpu)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cuda = None\nhip = None\n", frozenset()),
        ("cuda = '12.8'\nhip = None\n", {"cuda"}),
        ("cuda = None\nhip = '7.0.51831'\n", {"hip"}),
        (None, None),
    ],
)
def test_the_gpus_that_torch_is_built_for_are_known_without_an_import(
    tmp_path, monkeypatch, text, found
):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    if text is not None:
        (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.9.1'\n{text}")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    assert gpu.platforms() == found
    for kind in ("cuda", "hip"):
        reason = backend.missing_on(kind)
        assert bool(reason) == (found is not None and kind not in found)
        if reason:
            assert str(kind) in reason
    assert not backend.missing_on("cpu")


def test_a_broken_torch_is_one_sentence(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libfoo.so.1 is missing')\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from kernelmark import backends, ops\n"
        "from kernelmark.core.errors import CaseError\n"
        "from kernelmark.devices.cpu import CpuDevice\n"
        "try:\n"
        f"    backends.registry.get('torch').prepare(ops.parse({GEMM!r}), {{}}, CpuDevice(), [])\n"
        "except CaseError as error:\n"
        "    assert 'libfoo.so.1 is missing' in error.message, error.message\n"
        "else:\n"
        "    raise AssertionError('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_torch
def test_the_thread_count_is_the_devices():
    import torch

    opened = CpuDevice(1)
    try:
        torch.set_num_threads(2)
        with bench(backend, ops.parse(GEMM), opened, sets=1):
            assert torch.get_num_threads() == 1
    finally:
        opened.close()


@needs_torch
def test_f16_conv_is_summed_in_f32(device):
    with bench(backend, ops.parse(F16_CONV), device, sets=1) as made:
        made.outcome(0, 0xFF)
        assert made.worst(0) <= 1


@needs_torch
def test_onednn_belongs_to_each_kernel(device):
    import torch

    problem = ops.parse(GEMM)
    with (
        bench(backend, problem, device, config={"onednn": True}) as with_it,
        bench(backend, problem, device, config={"onednn": False}) as without,
    ):
        for made, wanted in ((with_it, True), (without, False), (with_it, True)):
            made.outcome(0, 0xFF)
            assert torch._C._get_mkldnn_enabled() is wanted
            assert made.worst(0) <= 1
        assert with_it.kernel.info.name == "aten::mm"
        assert without.kernel.info.name == "aten::mm without oneDNN"


PRODUCTS = (
    "gemm m=128 n=128 k=128 dtype=f32 ta=t",
    "gemm m=128 n=128 k=128 dtype=f32 alpha=0.5 beta=2.0 bias=yes",
    "gemm m=64 n=64 k=64 dtype=f16 alpha=0.5",
    "gemm m=64 n=64 k=64 dtype=i8 alpha=2.0 beta=-1.0 bias=yes",
    "batched_gemm batch=2 m=64 n=64 k=64 dtype=f32 bias=yes",
)


@needs_torch
@pytest.mark.parametrize("text", PRODUCTS)
def test_products_allocate_nothing(text, device):
    from torch.profiler import ProfilerActivity, profile

    with bench(backend, ops.parse(text), device, sets=1) as made:
        made.kernel.launch(0, 0)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            made.kernel.launch(0, 0)
    taken = sum(max(0, event.self_cpu_memory_usage) for event in seen.events())
    # Scalars such as alpha are tensors of 8 bytes to torch.
    assert taken <= 64


@needs_torch
def test_what_torch_allocates_is_collected_and_said(device):
    problem = ops.parse("conv n=1 c=4 h=6 w=6 k=4 r=3 s=3 dtype=f32")
    with bench(backend, problem, device, sets=2) as made:
        out = made.output(0)
        assert made.kernel.info.resources["private_output_bytes"] == out.spec.nbytes
        made.kernel.collect(0)
        assert device.count_poison(out, 0xFF) == out.spec.count
        made.kernel.launch(0, 0)
        assert device.count_poison(out, 0xFF) == out.spec.count
        made.kernel.collect(0)
        assert device.count_poison(out, 0xFF) == 0


@needs_torch
def test_attention_says_which_kernel_torch_chose(device):
    for text, chosen in (
        ("attention heads=2 seq=16 dim=16 dtype=bf16", "flash attention"),
        ("attention heads=2 seq=16 dim_qk=16 dim_v=8 dtype=f32", "math"),
    ):
        with bench(backend, ops.parse(text), device, sets=1) as made:
            assert chosen in made.kernel.info.name


@needs_torch
def test_bits_of_every_dtype_are_seen_as_they_are(device):
    import torch

    values = np.array([[0.5, -1.0], [2.0, -3.0]])
    for name in TORCH_NAMES:
        spec = TensorSpec(name="a", shape=(2, 2), dtype=name)
        tensor = Tensor(spec=spec, buffer=device.allocate(spec.nbytes), offset=0)
        device.write(tensor.buffer, 0, encode(values, name).view(np.uint8).ravel())
        seen = view(tensor).to(torch.float64)
        expected = np.rint(values) if name.startswith("i") else values
        assert np.array_equal(seen.numpy(), expected), name
        device.free(tensor.buffer)


@needs_torch
@pytest.mark.parametrize(
    "rest",
    [
        "dtype=f8e4m3 act=relu bias=yes scale=tensor",
        "dtype=f8e4m3 c=f32 act=gelu scale=tensor",
        "dtype=f8e4m3 act=silu bias=yes",
    ],
)
def test_a_scaled_product_takes_scales_and_bias(rest, device):
    """A GPU's calls on the CPU, where torch upcasts 8-bit floats: which is why it is refused."""

    def prepare(problem, config, device, sets):
        held = [{name: view(one) for name, one in tensors.items()} for tensors in sets]
        made = [epilogue_calls(problem, one) for one in held]
        assert made[0][0].startswith("aten::_scaled_mm")
        return TorchKernel(made[0][0], [steps for _, steps in made], onednn=True)

    problem = ops.parse(f"gemm_epilogue m=32 n=48 k=64 tb=t {rest}")
    with bench(SimpleNamespace(prepare=prepare), problem, device) as made:
        BackendContract().check(made)


def test_cudnn_is_no_attention_kernel_of_an_amd_gpu():
    problem = ops.parse("attention heads=2 seq=64 dim=64 dtype=bf16")
    for arch, there in (("sm_90", True), ("gfx942", False)):
        space = backend.space(problem, absent(arch))
        assert ("cudnn" in space.parameters["kernel"]) == there


@needs_torch
def test_results_that_do_not_fit_are_refused(device, monkeypatch):
    problem = ops.parse("conv n=1 c=4 h=20 w=20 k=4 r=3 s=3 dtype=f32")
    with bench(backend, problem, device, sets=1) as made:
        monkeypatch.setattr(type(device), "free_bytes", lambda self: 4096)
        with raises_code(OutOfMemory, "out-of-memory", free=4096):
            backend.prepare(problem, {}, device, made.sets)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("bf16", (3, 5)), ("f32", (2, 3, 4)), ("f8e4m3", (16,)), ("i8", (1, 1)), ("f64", (2, 2))],
)
def test_a_view_on_a_gpu_lies_where_the_tensor_does(dtype, shape, monkeypatch):
    """The memory stands in for a GPU's: its length is odd, as an arena's may be."""
    torch = pytest.importorskip("torch", reason="needs torch, which make test installs")
    memory = np.zeros(4096 + 3, np.uint8)

    def as_tensor(given, device):
        return torch.from_numpy(memory[: given.__cuda_array_interface__["shape"][0]])

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    buffer = SimpleNamespace(address=memory.ctypes.data, nbytes=memory.nbytes)
    spec = TensorSpec(name="a", shape=shape, dtype=dtype)
    found = Viewer(0).view(Tensor(spec=spec, buffer=buffer, offset=512))
    assert tuple(found.shape) == shape
    assert found.is_contiguous()
    assert found.data_ptr() == memory.ctypes.data + 512


def _gpu_attention(kernel):
    """The kernel that a GPU would get, on tensors that lie in the CPU's memory."""
    torch = pytest.importorskip("torch", reason="needs torch, which make test installs")
    problem = ops.parse("attention heads=2 seq=16 dim=8 dtype=bf16 causal=yes")
    views = {name: torch.zeros((1, 2, 16, 8), dtype=torch.bfloat16) for name in "qkvo"}
    return _attention(problem, {"kernel": kernel} if kernel else {}, [views])


def test_torch_is_left_the_attention_kernel_of_the_launch_alone(monkeypatch):
    """Kernels of a case live side by side and close in any order."""
    torch = pytest.importorskip("torch", reason="needs torch, which make test installs")
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    left = torch.nn.attention._cur_sdpa_kernel_backends
    before = left()
    first, second, third = (_gpu_attention(kernel) for kernel in ("math", "flash", ""))
    for one, allowed in ((first, ["MATH"]), (second, ["FLASH_ATTENTION"]), (first, ["MATH"])):
        one.launch(0, 0)
        assert [kernel.name for kernel in left()] == allowed
    second.close()
    first.collect(0)
    assert [kernel.name for kernel in left()] == ["MATH"]
    first.close()
    assert left() == before
    third.launch(0, 0)
    assert left() == before


def test_one_result_of_a_set_is_kept_while_graphs_are_captured(monkeypatch):
    torch = pytest.importorskip("torch", reason="needs torch, which make test installs")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    made = []

    def call():
        result = torch.zeros(4)
        made.append(weakref.ref(result))
        return result

    kernel = GpuKernel("made up", [call, call], [torch.zeros(4)] * 2)
    for set_index in (0, 1, 0, 1, 0):
        kernel.launch(0, set_index)
    assert [one() is not None for one in made] == [False, False, False, True, True]


@needs_torch
def test_an_attention_kernel_by_another_name_is_refused():
    with raises(Unsupported, name="kernel", value="flsh", known=("flash", "cudnn")):
        _gpu_attention("flsh")
    with pytest.raises(Unsupported):  # only yes switches benchmark on
        _conv(ops.parse(F16_CONV), {"benchmark": "maybe"}, [])


@needs_torch
def test_attention_does_not_bring_torchs_compiler_along():
    """It takes five seconds of the first case on a slow disk."""
    script = (
        "import sys, test_torch; test_torch._gpu_attention('flash')\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", script], cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "said", "text"),
    [
        (
            "No available kernel. Aborting execution.",
            [
                "Flash attention kernel not used because: (Triggered internally at a.cpp:1.)",
                "Expected f16 or bf16, got f32 instead. (Triggered internally at a.cpp:2.)",
                "cuDNN attention has been runtime disabled. (Triggered internally at a.cpp:3.)",
            ],
            "Expected f16 or bf16, got f32 instead.",
        ),
        (
            "No available kernel. Aborting execution.",
            [],
            "No available kernel. Aborting execution.",
        ),
        ("fp8 is not supported\nmore", ["unrelated"], "fp8 is not supported"),
        ("CUDA error: an illegal memory access", ["unrelated"], None),
        ("", [], None),
    ],
)
def test_why_torch_has_no_kernel_is_in_its_warnings(error, said, text):
    reason = refusal(RuntimeError(error), said)
    assert reason is None if text is None else text in reason
