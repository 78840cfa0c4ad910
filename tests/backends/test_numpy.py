"""NumPy's products: exactly the stated types, no memory in a launch, right for every shape."""

import ctypes
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.backends import numpy
from kernelmark.backends import numpy as numpy_backend
from kernelmark.backends.numpy import backend, einsum, matmul
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.devices.cpu import CpuDevice
from kernelmark.testing.backends import bench
from kernelmark_dev.raising import raises_code

CPU = DeviceInfo(name="cpu", kind="cpu", model="", arch="x86_64")


@pytest.fixture(scope="module")
def device():
    opened = CpuDevice(1)
    yield opened
    opened.close()


def worst_everywhere(problem, device):
    with bench(backend, problem, device, sets=1) as made:
        made.outcome(0, 0xFF)
        out = made.output(0)
        # In i32 the poison is a number, -1: there the comparison below has to do.
        assert out.spec.dtype == "i32" or device.count_poison(out, 0xFF) == 0
        assert device.guards_intact(out)
        return made.worst(0, everywhere=True)


def test_f16_products_are_summed_in_f32():
    # Sums in f16 could not pass 2048, where adding 1 is rounded away.
    ones = np.ones((2, 4096), np.float16)
    narrow, wide = np.empty((2, 2), np.float16), np.empty((2, 2), np.float32)
    matmul(ones, ones.T, narrow)
    einsum(ones, ones.T, wide)
    assert (narrow == 4096).all()
    assert (wide == 4096).all()


def test_i8_products_are_summed_in_i32():
    low = np.full((2, 5000), -128, np.int8)
    out = np.empty((2, 2), np.int32)
    einsum(low, low.T, out)
    assert (out == 5000 * 128 * 128).all()


# Each has inputs of at least 256 KiB in the type a converted copy would have.
BIG = (
    "gemm m=256 n=256 k=256 dtype=f32 tb=t",
    "gemm m=256 n=256 k=256 dtype=f64 alpha=0.5 beta=2.0 bias=yes",
    "gemm m=64 n=1024 k=256 dtype=f16",
    "gemm m=64 n=1024 k=256 dtype=i8 alpha=2.0 beta=-1.0 bias=yes",
    "gemm m=64 n=1024 k=256 dtype=f16 c=f32 ta=t",
    "batched_gemm batch=4 m=128 n=128 k=128 dtype=f32 ta=t",
    "attention heads_q=4 heads_kv=2 seq=256 dim=128 dtype=f32 causal=yes layout=bshd",
    "attention heads=2 seq=128 dim=512 dtype=f16 causal=yes",
    "conv n=2 c=32 h=48 w=48 k=32 r=3 s=3 pad=1 dtype=f32",
    "conv n=2 c=32 h=48 w=48 k=32 r=3 s=3 pad=1 stride=2 groups=4 dtype=f32 layout=nhwc",
    "conv n=1 c=64 h=48 w=48 k=8 r=1 s=1 dtype=f32 layout=nhwc groups=2",
    "conv n=1 c=64 h=40 w=40 k=4 r=3 s=3 dtype=i8",
)


@pytest.mark.parametrize("text", BIG)
def test_a_launch_allocates_no_arrays(text, device):
    with bench(backend, ops.parse(text), device, sets=1) as made:
        made.kernel.launch(0, 0)
        tracemalloc.start()
        try:
            made.kernel.launch(0, 0)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # NumPy's fixed conversion buffers and small objects; no converted input, no second output.
    assert peak < 160 * 1024


sizes = st.integers(1, 6)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    layout=st.sampled_from(["nchw", "nhwc"]),
    dtype=st.sampled_from(["f32", "f16", "i8"]),
    groups=st.integers(1, 3),
)
def test_conv_is_right_everywhere(device, data, layout, dtype, groups):
    given_ = {"n": data.draw(st.integers(1, 2)), "groups": groups}
    given_["c"], given_["k"] = groups * data.draw(sizes), groups * data.draw(sizes)
    for side, taps in (("h", "r"), ("w", "s")):
        given_[taps] = data.draw(st.integers(1, 4))
        given_[f"dilation_{side}"] = data.draw(st.integers(1, 3))
        given_[f"stride_{side}"] = data.draw(st.integers(1, 3))
        given_[f"pad_{side}"] = data.draw(st.integers(0, 5))
        reach = given_[f"dilation_{side}"] * (given_[taps] - 1) + 1
        least = max(1, reach - 2 * given_[f"pad_{side}"])
        given_[side] = least + data.draw(st.integers(0, 4))
    problem = ops.registry.get("conv").problem(dtype=dtype, layout=layout, **given_)
    assert worst_everywhere(problem, device) <= 1


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3),
    heads_kv=st.integers(1, 3),
    group=st.integers(1, 3),
    seq=st.tuples(st.integers(1, 12), st.integers(0, 12)),
    dims=st.tuples(sizes, sizes),
    dtype=st.sampled_from(["f64", "f32", "f16"]),
    causal=st.booleans(),
    layout=st.sampled_from(["bhsd", "bshd"]),
    slab=st.sampled_from([1, 400, 4 << 20]),
)
def test_attention_is_right_everywhere(
    device, batch, heads_kv, group, seq, dims, dtype, causal, layout, slab
):
    problem = ops.registry.get("attention").problem(
        batch=batch,
        heads_q=heads_kv * group,
        heads_kv=heads_kv,
        seq_q=seq[0],
        seq_kv=seq[0] + seq[1],
        dim_qk=dims[0],
        dim_v=dims[1],
        dtype=dtype,
        causal=causal,
        layout=layout,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy, "SLAB_BYTES", slab)
        assert worst_everywhere(problem, device) <= 1


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(sizes, sizes, st.integers(1, 40)),
    batch=st.integers(0, 3),
    types=st.sampled_from(
        [{"dtype": "f64"}, {"dtype": "f32"}, {"dtype": "i8"}, {"dtype": "f16", "c": "f32"}]
    ),
    ta=st.sampled_from("nt"),
    tb=st.sampled_from("nt"),
    alpha=st.sampled_from([1.0, -2.0, 3.0]),
    beta=st.sampled_from([0.0, 1.0, -1.0, 2.0]),
    bias=st.booleans(),
)
def test_products_are_right_everywhere(device, shape, batch, types, ta, tb, alpha, beta, bias):
    op = "batched_gemm" if batch else "gemm"
    more = {"batch": batch} if batch else {}
    problem = ops.registry.get(op).problem(
        m=shape[0],
        n=shape[1],
        k=shape[2],
        ta=ta,
        tb=tb,
        alpha=alpha,
        beta=beta,
        bias=bias,
        **types,
        **more,
    )
    assert worst_everywhere(problem, device) <= 1


def test_it_names_its_blas():
    found = backend.libraries()
    assert found["numpy"] == np.__version__
    assert found["numpy blas"]


def test_the_blas_uses_as_many_threads_as_the_device(device):
    names = numpy_backend._SET_THREADS["openblas"]
    counts = [
        getattr(library, name.replace("set_num", "get_num"))
        for library in map(ctypes.CDLL, numpy_backend._loaded_blas())
        for name in names
        if hasattr(library, name)
    ]
    if not counts:
        pytest.skip("needs NumPy with OpenBLAS (pip's wheels have it), to read its thread count")
    numpy_backend.set_threads(2)
    assert {count() for count in counts} == {2}
    with bench(backend, ops.parse("gemm m=8 n=8 k=8 dtype=f32"), device, sets=1):
        assert {count() for count in counts} == {1}


@pytest.mark.parametrize(
    "text",
    [
        "gemm m=64 n=64 k=2 dtype=f32 beta=2.0",
        "attention heads=1 seq=64 dim=2 dtype=f32",
        "conv n=1 c=4 h=20 w=20 k=1 r=3 s=3 dtype=f32",
    ],
)
def test_a_workspace_that_does_not_fit_is_refused(text, device, monkeypatch):
    problem = ops.parse(text)
    with bench(backend, problem, device, sets=1) as made:
        monkeypatch.setattr(type(device), "free_bytes", lambda self: 8192)
        with raises_code(OutOfMemory, "out-of-memory") as refused:
            backend.prepare(problem, {}, device, made.sets)
        fields = refused.value.message.fields
        assert fields["needed"] > fields["free"]


def test_what_is_not_supported_is_not_prepared(device):
    problem = ops.parse("gemm m=8 n=8 k=8 dtype=f16 alpha=0.5")
    with pytest.raises(Unsupported) as refused:
        backend.prepare(problem, {}, device, [])
    assert refused.value.message == backend.supports(problem, CPU)
