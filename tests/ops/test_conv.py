"""conv: output size, groups, costs, layouts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import ProblemError
from kernelmark.numerics.generate import Inputs
from kernelmark.ops.conv import output_size

conv = ops.registry.get("conv")
SMALL = {"n": 2, "c": 4, "h": 9, "w": 8, "k": 6, "r": 3, "s": 2, "dtype": "f32"}


@given(
    h=st.integers(1, 20), r=st.integers(1, 7), stride=st.integers(1, 4), pad=st.integers(0, 4),
    dilation=st.integers(1, 3),
)  # fmt: skip
def test_output_size_is_the_number_of_places_a_filter_fits(h, r, stride, pad, dilation):
    reach = dilation * (r - 1) + 1
    places = len(range(0, h + 2 * pad - reach + 1, stride))
    given = SMALL | {"h": h, "r": r, "stride_h": stride, "pad_h": pad, "dilation_h": dilation}
    if places:
        assert output_size(conv.problem(**given))[0] == places
    else:
        with pytest.raises(ProblemError):
            conv.problem(**given)


def test_known_layers():
    resnet = conv.problem(n=1, c=3, h=224, w=224, k=64, r=7, s=7, stride=2, pad=3, dtype="f16")
    assert output_size(resnet) == (112, 112)
    assert conv.flops(resnet) == 2 * 64 * 112 * 112 * 3 * 7 * 7
    sdxl = conv.problem(n=2, c=1280, h=34, w=34, k=1280, r=3, s=3, dtype="f16")
    assert output_size(sdxl) == (32, 32)
    assert conv.bytes(sdxl) == 2 * (2 * 1280 * 34 * 34 + 1280 * 1280 * 9 + 2 * 1280 * 32 * 32)


def test_groups_divide_the_work_and_layouts_do_not_change_it():
    whole, half, nhwc = (conv.problem(**SMALL | o) for o in ({}, {"groups": 2}, {"layout": "nhwc"}))
    assert conv.flops(whole) == conv.flops(nhwc) == 2 * conv.flops(half)
    assert conv.bytes(whole) == conv.bytes(nhwc)
    assert conv.tensors(half)[1].shape == (6, 2, 3, 2)
    assert [s.shape for s in conv.tensors(whole)] == [(2, 4, 9, 8), (6, 4, 3, 2), (2, 6, 7, 7)]
    assert [s.shape for s in conv.tensors(nhwc)] == [(2, 9, 8, 4), (6, 3, 2, 4), (2, 7, 7, 6)]


def test_key_has_every_default():
    assert conv.problem(**SMALL, stride=2, pad_w=1).key == (
        "conv n=2 c=4 h=9 w=8 k=6 r=3 s=2 stride_h=2 stride_w=2 pad_h=0 pad_w=1 dilation_h=1 "
        "dilation_w=1 groups=1 x=f32 y=f32 acc=f32 layout=nchw"
    )


def test_padding_is_zeros():
    """A filter that reaches only padding gives 0, with no error allowed."""
    problem = conv.problem(n=1, c=1, h=1, w=1, k=1, r=1, s=1, pad=1, dtype="f32")
    inputs = Inputs(conv.tensors(problem), 1, 0)
    found = conv.reference(problem, inputs, np.arange(9))
    assert np.flatnonzero(found.value).tolist() == [4]
    assert np.flatnonzero(found.magnitude).tolist() == [4]


def test_a_1x1_convolution_is_a_product():
    problem = conv.problem(n=1, c=5, h=3, w=3, k=4, r=1, s=1, dtype="f32")
    inputs = Inputs(conv.tensors(problem), 1, 0)
    x = inputs.take("x", np.arange(45)).reshape(5, 9)
    w = inputs.take("w", np.arange(20)).reshape(4, 5)
    found = conv.reference(problem, inputs, np.arange(36))
    np.testing.assert_allclose(found.value.reshape(4, 9), w @ x, rtol=1e-12)
