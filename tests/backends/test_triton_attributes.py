"""What the triton backend tells the compiler about arguments is what `kernel[grid](...)` would."""

import pytest

from kernelmark import ops
from kernelmark.backends.triton import _plan, backend
from kernelmark.backends.triton import launch as building
from kernelmark.core.dtype import dtype
from kernelmark.gpu.architectures import absent

pytestmark = pytest.mark.skipif(
    backend.available() is not None, reason=backend.available() or "Triton is there"
)

PROBLEMS = (
    "gemm m=4096 n=4096 k=4096 dtype=bf16",
    "gemm m=1 n=1000 k=72 dtype=f16 tb=t beta=1.0 alpha=0.5 bias=yes",
    "gemm m=16 n=8192 k=8192 dtype=bf16 tb=t",  # split, with a workspace
    "gemm m=16 n=65536 k=16384 dtype=bf16 tb=t",  # B has 2 GiB, which is too much for 32 bits
    "gemm m=16 n=65536 k=16368 dtype=bf16 tb=t",
    "batched_gemm batch=3 m=17 n=40 k=96 dtype=f16",
    "batched_gemm_quant batch=1 m=5 n=72 k=4000 scheme=a8w8 bias=yes",
    "batched_gemm_quant batch=2 m=16 n=64 k=256 scheme=afp4wfp4",
    "attention heads=1 seq=100 dim=64 dtype=bf16 causal=yes",
    "attention batch=1 heads_q=8 heads_kv=1 seq_q=1 seq_kv=2048 dim=64 dtype=f16",
    "attention heads_q=4 heads_kv=4 seq_q=1 seq_kv=1 dim=16 dtype=f16",
    "conv n=1 c=1 h=8 w=8 k=1 r=3 s=3 pad=1 dtype=bf16 layout=nhwc",
    "conv n=2 c=64 h=28 w=28 k=64 r=3 s=3 dtype=f16",
    "moe m=1 n=32 k=64 e=8 top_k=1 dtype=bf16",
)


class Dtype(str):
    """The name of a dtype, with the bytes of an element."""


class Tensor:
    """What Triton's specialisation reads of a tensor: dtype, address and size in memory."""

    def __init__(self, kind, nbytes):
        self.dtype = Dtype(building.TRITON_TYPES.get(kind, kind))
        self.nbytes = nbytes

    def data_ptr(self):
        return 256

    def ptr_range(self):
        return self.nbytes


def sizes(problem, plan):
    nbytes = {spec.name: spec.nbytes for spec in ops.registry.get(problem.op).tensors(problem)}
    return {
        **nbytes,
        **plan.named_bytes,
        building.WORKSPACE: plan.workspace_bytes,
        building.ZEROED: plan.zeroed_bytes,
    }


def marks(attributes):
    return {at: sorted(map(tuple, some)) for at, some in attributes.items() if some}


def by_triton(call, nbytes, arch):
    """Return (signature, constants, attributes) of Triton's own launch of a call."""
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature
    from triton.tools.tensor_descriptor import TensorDescriptor

    function = call.function
    compiler = make_backend(building.target(arch))
    bind = create_function_from_signature(function.signature, function.params, compiler)
    values = dict(call.constants)
    for argument, value in zip(call.arguments, call.values, strict=True):
        values[argument.name] = value
        if isinstance(value, building.TensorBlocks):
            base = Tensor(argument.kind, nbytes[value.tensor])
            base.dtype.itemsize = dtype(argument.kind).bits // 8
            shape, strides, block = value.shape, value.strides, argument.block
            values[argument.name] = TensorDescriptor(base, shape, strides, list(block))
        elif argument.pointer:
            values[argument.name] = Tensor(argument.kind, nbytes.get(str(value), 0))
    bound, specialization, _ = bind(**values)
    _, signature, constants, attributes = function._pack_args(
        compiler, {}, bound, specialization, None
    )
    return signature, constants, marks(attributes)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "sm_90"])
@pytest.mark.parametrize("key", PROBLEMS)
def test_arguments_are_described_as_by_tritons_own_launch(key, arch):
    problem, info = ops.parse(key), absent(arch)
    assert backend.supports(problem, info) is None
    plan = _plan(problem, {}, info)
    for call in plan.calls:
        source = building._source(call.function, call.arguments, call.constants)
        ours = source.signature, source.constants, marks(source.attrs)
        assert ours == by_triton(call, sizes(problem, plan), arch)


def test_only_tensors_below_2_gib_have_32_bit_ranges_and_only_on_amd():
    def ranges(key, arch):
        (call, *_) = _plan(ops.parse(key), {}, absent(arch)).calls
        return {argument.name for argument in call.arguments if argument.near}

    large, small = PROBLEMS[3:5]
    assert ranges(small, "gfx942") - ranges(large, "gfx942") == {"b"}
    assert not ranges(small, "sm_90")


def test_kernels_for_small_and_large_tensors_are_cached_apart():
    small, large = (
        _plan(ops.parse(key), {}, absent("gfx942")).calls[0] for key in (PROBLEMS[4], PROBLEMS[3])
    )
    sources = [building._source(c.function, c.arguments, small.constants) for c in (small, large)]
    assert sources[0].hash() != sources[1].hash()
    assert small.arguments != large.arguments  # the key in memory
