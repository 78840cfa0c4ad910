"""The MLIR of every op: well formed for any problem, and what it says."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import ProblemError
from kernelmark.core.problem import Problem
from kernelmark.kernels.mlir import SOURCES
from kernelmark.kernels.mlir.base import Form, Graph, Size, dynamic_dims, element_type, with_dynamic

TYPES = ("f64", "f32", "f16", "bf16", "i8", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
FORMS = st.sampled_from([Form(), Form(gpu=True), Form(im2col=True)])
small = st.integers(1, 9)
yes_no = st.booleans()


def written(key_or_problem, form=None):
    problem = ops.parse(key_or_problem) if isinstance(key_or_problem, str) else key_or_problem
    problem = with_dynamic(problem, form.dynamic) if form else problem
    tensors = ops.registry.get(problem.op).tensors(problem)
    return SOURCES[problem.op].text(problem, tensors, form or Form())


@pytest.fixture(scope="module")
def context():
    ir = pytest.importorskip(
        "iree.compiler.ir", reason="needs iree-base-compiler, which make test installs"
    )
    with ir.Context() as made:
        yield made


def verify(text, context):
    from iree.compiler import ir

    ir.Module.parse(text, context).operation.verify()


@st.composite
def products(draw):
    dtype = draw(st.sampled_from(TYPES))
    given = {name: draw(small) for name in "mnk"}
    given |= {name: draw(st.sampled_from("nt")) for name in ("ta", "tb")}
    given |= {name: float(draw(st.sampled_from([1, 2, -3]))) for name in ("alpha",)}
    given["beta"] = float(draw(st.sampled_from([0, 1, 2])))
    given["bias"] = draw(yes_no)
    if draw(yes_no):
        return ops.registry.get("gemm").problem(dtype=dtype, **given)
    return ops.registry.get("batched_gemm").problem(dtype=dtype, batch=draw(small), **given)


@st.composite
def attentions(draw):
    heads_kv, queries = draw(st.integers(1, 3)), draw(small)
    given = {
        "batch": draw(st.integers(1, 3)),
        "heads_kv": heads_kv,
        "heads_q": heads_kv * draw(st.integers(1, 3)),
        "seq_q": queries,
        "seq_kv": queries + draw(st.integers(0, 5)),
        "dim_qk": draw(small),
        "dim_v": draw(small),
        "causal": draw(yes_no),
        "layout": draw(st.sampled_from(["bhsd", "bshd"])),
        "scale": draw(st.sampled_from(["auto", 0.25])),
    }
    dtype = draw(st.sampled_from([t for t in TYPES if t != "i8"]))
    return ops.registry.get("attention").problem(dtype=dtype, **given)


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    given = {
        "n": draw(st.integers(1, 3)),
        "groups": groups,
        "c": groups * draw(st.integers(1, 3)),
        "k": groups * draw(st.integers(1, 3)),
        "h": draw(st.integers(5, 9)),
        "w": draw(st.integers(5, 9)),
        "layout": draw(st.sampled_from(["nchw", "nhwc"])),
    }
    given |= {name: draw(st.integers(1, 3)) for name in ("r", "s", "stride_h", "stride_w")}
    given |= {name: draw(st.integers(0, 2)) for name in ("pad_h", "pad_w")}
    given |= {name: draw(st.integers(1, 2)) for name in ("dilation_h", "dilation_w")}
    dtype = draw(st.sampled_from(TYPES))
    return ops.registry.get("conv").problem(dtype=dtype, **given)


@st.composite
def quantised(draw):
    given = {name: draw(small) for name in ("batch", "m", "n")}
    given |= {"bias": draw(yes_no), "dtype": draw(st.sampled_from(["bf16", "f16"]))}
    given |= {"a_order": draw(st.sampled_from(["bmk", "mbk"]))}
    given |= {"c_order": draw(st.sampled_from(["bmn", "mbn"]))}
    op = ops.registry.get("batched_gemm_quant")
    if draw(yes_no):
        return op.problem(scheme="a8w8", k=draw(small), **given)
    if draw(yes_no):
        scheme, k = draw(st.sampled_from(["a16wfp4", "afp4wfp4"])), 32 * draw(st.integers(1, 3))
        return op.problem(scheme=scheme, k=k, **(given | {"bias": False}))
    types = st.sampled_from(["i8", "f8e4m3", "f8e4m3fnuz"])
    return op.problem(
        scheme="a8w8_group", k=draw(st.integers(1, 99)), group=32, b=draw(types), **given
    )


@st.composite
def epilogues(draw):
    given = {name: draw(small) for name in "mnk"}
    given |= {"act": draw(st.sampled_from(["none", "relu", "gelu", "silu"])), "bias": draw(yes_no)}
    given["scale"] = draw(st.sampled_from(["none", "tensor", "mx"]))
    dtypes = {
        "none": ["f32", "f16", "bf16", "f8e5m2fnuz"],
        "tensor": ["f8e4m3", "f8e4m3fnuz"],
        "mx": ["f8e4m3", "f8e5m2", "f4e2m1"],
    }
    given["dtype"] = draw(st.sampled_from(dtypes[given["scale"]]))
    if given["scale"] == "mx":
        given["k"] *= 32
    else:
        given |= {name: draw(st.sampled_from("nt")) for name in ("ta", "tb")}
    if given["scale"] == "tensor" and draw(yes_no):
        given["c"] = given["dtype"]
    return ops.registry.get("gemm_epilogue").problem(**given)


@st.composite
def copies(draw):
    return ops.registry.get("copy").problem(n=draw(small), dtype=draw(st.sampled_from(TYPES)))


EVERY_OP = (products(), attentions(), convolutions(), quantised(), epilogues(), copies())


@settings(max_examples=200, deadline=None)
@given(problem=st.one_of(*EVERY_OP), form=FORMS)
def test_is_well_formed(context, problem, form):
    text = written(problem, form)
    verify(text, context)
    assert text.count("iree.abi.output") == 1
    assert SOURCES[problem.op].refuses(problem) is None


@settings(max_examples=200, deadline=None)
@given(data=st.data(), problem=st.one_of(*EVERY_OP), form=FORMS)
def test_dynamic_dims_are_well_formed(context, data, problem, form):
    names = dynamic_dims(problem)
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    text = written(problem, replace(form, dynamic=tuple(chosen)))
    verify(text, context)
    assert "?x" in next(line for line in text.splitlines() if "func.func" in line)


@pytest.mark.parametrize("form", [Form(), Form(gpu=True), Form(im2col=True)])
@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("gemm m=2 n=3 k=4 dtype=f16 bias=yes", "gemm m=9 n=1 k=6 dtype=f16 bias=yes"),
        (
            "batched_gemm batch=1 m=2 n=3 k=4 dtype=bf16 tb=t",
            "batched_gemm batch=5 m=1 n=1 k=1 dtype=bf16 tb=t",
        ),
        (
            "attention heads=2 seq=4 dim=8 dtype=f16 causal=yes",
            "attention batch=3 heads_q=6 heads_kv=2 seq_q=1 seq_kv=5 dim_qk=7 dim_v=9 dtype=f16 "
            "causal=yes",
        ),
        (
            "conv n=1 c=4 h=5 w=5 k=4 r=1 s=1 dtype=f32 layout=nhwc",
            "conv n=2 c=3 h=9 w=7 k=1 r=3 s=2 dtype=f32 layout=nhwc",
        ),
        (
            "conv n=1 c=4 h=5 w=5 k=4 r=1 s=1 pad=1 groups=2 dtype=f32",
            "conv n=2 c=2 h=9 w=7 k=6 r=3 s=2 pad=1 groups=2 dtype=f32",
        ),
        (
            "batched_gemm_quant scheme=a8w8_group batch=1 m=2 n=3 k=64 group=32 b=i8",
            "batched_gemm_quant scheme=a8w8_group batch=4 m=5 n=6 k=33 group=32 b=i8",
        ),
        ("copy n=7 dtype=f32", "copy n=1 dtype=f32"),
    ],
)
def test_the_same_text_serves_all_sizes(key, other, form):
    problem = ops.parse(key)
    form = replace(form, dynamic=dynamic_dims(problem))
    assert written(problem, form) == written(other, form)


def test_dims_that_can_be_dynamic():
    conv = ops.parse("conv n=1 c=4 h=5 w=5 k=4 r=3 s=3 pad=1 dtype=f32")
    assert dynamic_dims(conv) == ("n", "c", "h", "w", "k", "r", "s")
    gqa = ops.parse("attention heads_q=4 heads_kv=2 seq=4 dim=8 dtype=f16")
    assert dynamic_dims(gqa) == tuple(gqa.dims)


def test_elements_of_half_a_byte_come_as_bytes():
    key = "batched_gemm_quant batch=2 m=3 n=5 k=64 scheme={}"
    head = next(x for x in written(key.format("afp4wfp4")).splitlines() if "func.func" in x)
    assert "%b: tensor<2x5x32xi8>" in head
    assert "%b_scale: tensor<2x5x2xf8E8M0FNU>" in head
    # Where no argument has all of k, none tells it.
    assert dynamic_dims(ops.parse(key.format("afp4wfp4"))) == ("batch", "m", "n")
    assert dynamic_dims(ops.parse(key.format("a16wfp4"))) == ("batch", "m", "n", "k")


def test_arithmetic_of_sizes():
    size = Size(7, "m")
    assert (int(size + 2), int(2 - size), int(3 * size), int(size // 2)) == (9, -5, 21, 3)
    assert int(-(-size // 2)) == 4
    assert math.prod([2, size, 3]).term == ("muli", ("muli", 2, "m"), 3)
    assert all(one is size for one in (size + 0, 0 + size, size * 1, 1 * size, size // 1))
    assert size == Size(8, "m")
    assert size != Size(7, "n")
    assert size != 7
    assert size not in (7,)


def test_each_is_of_an_op():
    ours = {"gemm", "batched_gemm", "batched_gemm_quant", "attention", "conv", "copy"}
    assert ours <= {*SOURCES} <= {*ops.registry.names()}


def test_plain_gemm_is_one_product():
    text = written("gemm m=2 n=3 k=4 dtype=f32")
    assert "linalg.generic" not in text
    assert "indexing_maps" not in text
    assert text.count("linalg.matmul") == 1


@pytest.mark.parametrize(("dtypes", "acc"), [("f16", "f32"), ("f16 acc=f16", "f16")])
def test_sums_are_in_the_accumulators_type(dtypes, acc):
    lines = written(f"gemm m=2 n=3 k=4 dtype={dtypes}").splitlines()
    line = next(one for one in lines if "matmul" in one)
    assert line.endswith(f"-> tensor<2x3x{acc}>")


def test_arguments_are_the_tensors_in_order():
    text = written("gemm m=2 n=3 k=4 dtype=f16 beta=1.0 bias=yes")
    head = next(line for line in text.splitlines() if "func.func" in line)
    assert re.findall(r"%(\w+): (\S+?)[,) ]", head) == [
        ("a", "tensor<2x4xf16>"),
        ("b", "tensor<4x3xf16>"),
        ("c", "tensor<2x3xf16>"),
        ("bias", "tensor<3xf16>"),
        ("d", "tensor<2x3xf16>"),
    ]
    assert "%d: tensor<2x3xf16> {iree.abi.output = 0 : index}" in head


ATTENTION = "attention heads=2 seq=4 dim=8 dtype=f16"
GROUPED = "attention heads_q=4 heads_kv={} seq=4 dim=8 dtype=f16 causal=yes"
CONV = "conv n=2 c=4 h=5 w=5 k=4 r=3 s=3 dtype=f32"


@pytest.mark.parametrize(
    ("key", "form", "there", "absent"),
    [
        (f"{ATTENTION} causal=yes", Form(gpu=True), "iree_linalg_ext.attention", "linalg.softmax"),
        (f"{ATTENTION} causal=yes", Form(), "linalg.softmax", "iree_linalg_ext"),
        (f"{ATTENTION} causal=yes", Form(), "arith.select", "iree_linalg_ext"),
        (ATTENTION, Form(), "linalg.softmax", "arith.select"),  # masks only where it is causal
        (GROUPED.format(2), Form(), "arith.remui", "iree_linalg_ext"),
        (GROUPED.format(4), Form(), "linalg.softmax", "arith.remui"),
        (CONV, Form(), "linalg.conv_2d_nchw_fchw", "linalg.matmul"),
        (f"{CONV} layout=nhwc", Form(), "linalg.conv_2d_nhwc_fhwc", "linalg.matmul"),
        (f"{CONV} groups=2", Form(), "linalg.conv_2d_ngchw_gfchw", "linalg.matmul"),
        (f"{CONV} groups=2 layout=nhwc", Form(), "linalg.conv_2d_nhwgc_gfhwc", "linalg.matmul"),
        (CONV, Form(im2col=True), "linalg.batch_matmul", "linalg.conv"),
        (f"{CONV} groups=2", Form(im2col=True), "linalg.conv", "linalg.matmul"),
    ],
)
def test_forms_follow_the_target_and_the_problem(key, form, there, absent):
    text = written(key, form)
    assert there in text
    assert absent not in text


def test_pointwise_conv_copies_nothing():
    key = "conv n=1 c=4 h=5 w=5 k=4 r=1 s=1 dtype=f32 layout={}"
    for layout in ("nchw", "nhwc"):
        text = written(key.format(layout), Form(im2col=True))
        assert "linalg.generic" not in text
        assert "linalg.matmul" in text


@pytest.mark.parametrize(
    ("key", "form", "want"),
    [
        ("gemm m=2 n=3 k=4 dtype=f32", Form(), 0),
        ("attention batch=2 heads=3 seq_q=5 seq_kv=7 dim=8 dtype=f16", Form(), 210 * 6),
        ("attention batch=2 heads=3 seq_q=5 seq_kv=7 dim=8 dtype=f16", Form(gpu=True), 0),
        ("conv n=2 c=4 h=5 w=5 k=4 r=3 s=3 dtype=f32", Form(im2col=True), 2 * 9 * 36 * 4),
        ("conv n=2 c=4 h=5 w=5 k=4 r=1 s=1 dtype=f32", Form(im2col=True), 0),
        ("conv n=2 c=4 h=5 w=5 k=4 r=3 s=3 dtype=f32", Form(), 0),
    ],
)
def test_scratch(key, form, want):
    problem = ops.parse(key)
    assert SOURCES[problem.op].scratch_bytes(problem, form) == want


def test_swizzled_scales_are_refused():
    problem = ops.parse("gemm_epilogue m=8 n=8 k=32 dtype=f8e4m3 scale=mx scale_layout=linear")
    assert SOURCES[problem.op].refuses(problem) is None
    swizzled = replace(problem, options={**problem.options, "scale_layout": "swizzle_32_4_4"})
    assert SOURCES[problem.op].refuses(swizzled)


def test_a_type_without_tensors_is_refused():
    dtypes = {"a": "tf32", "b": "tf32", "c": "f32", "acc": "f32"}
    loose = Problem(op="gemm", dims={"m": 1, "n": 1, "k": 1}, dtypes=dtypes)
    assert "tf32" in SOURCES["gemm"].refuses(loose)
    with pytest.raises(ProblemError):
        ops.parse("gemm m=1 n=1 k=1 dtype=tf32")


@pytest.mark.parametrize("number", [0.0, -0.0, 1e-30, 0.1, -1e30, math.inf, -math.inf])
@pytest.mark.parametrize("element", ["f64", "f32", "f16", "bf16"])
def test_constants_parse(context, number, element):
    from iree.compiler import ir

    tensors = ops.registry.get("gemm").tensors(ops.parse("gemm m=1 n=1 k=1 dtype=f32"))
    graph = Graph(tensors)
    graph.constant(number, element)
    text = graph.module(graph.output)
    verify(text, context)
    if element == "f64":
        (line,) = (x for x in text.splitlines() if "arith.constant" in x)
        module = ir.Module.parse(f"module {{ {line} }}", context)
        assert ir.FloatAttr(module.body.operations[0].attributes["value"]).value == number


def test_every_cast_is_legal(context):
    names = [name for t in (*TYPES, "i32") if (name := element_type(t))]
    tensors = ops.registry.get("gemm").tensors(ops.parse("gemm m=1 n=1 k=1 dtype=f32"))
    graph = Graph(tensors)
    for source in names:
        value = graph.constant(1, source)
        for target in names:
            assert graph.cast(value, target).type == target
    verify(graph.module(graph.output), context)
