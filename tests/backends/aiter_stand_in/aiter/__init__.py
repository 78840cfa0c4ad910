"""Stand-in with the signatures of ROCm/aiter e4048607; computes with torch on the CPU."""

# Functions of one name belong to several modules.
# ruff: noqa: F811
import sys
import types

import numpy as np
import torch

from kernelmark.numerics import floats
from kernelmark.ops.batched_gemm_quant import group_rounded

__version__ = "0.1.stand-in"


def gemm_a16w16_asm(A, B, out, bias=None, splitK=None, kernelName=None, bpreshuffle=False):
    out.copy_(_product(A, B, bias))
    return out


CK_CALLS = []  # function, splitK and kernelId of every call of CK


def batched_gemm_bf16(XQ, WQ, out, bias=None, splitK=0):
    assert XQ.dtype is torch.bfloat16
    CK_CALLS.append(("batched_gemm_bf16", splitK, None))
    out.copy_(_product(XQ, WQ, bias))
    return out


def batched_gemm_bf16_CK(XQ, WQ, bias=None, dtype=torch.bfloat16, splitK=None):
    CK_CALLS.append(("batched_gemm_bf16_CK", splitK, None))
    return _product(XQ, WQ, bias).to(dtype)


def batched_gemm_bf16_tune(XQ, WQ, out, kernelId, splitK=0):
    CK_CALLS.append(("batched_gemm_bf16_tune", splitK, kernelId))
    return out.copy_(_product(XQ, WQ))


def batched_gemm_a8w8(XQ, WQ, x_scale, w_scale, out, bias=None, splitK=0):
    CK_CALLS.append(("batched_gemm_a8w8", splitK, None))
    out.copy_(_scaled(XQ, WQ, x_scale, w_scale, bias))
    return out


def batched_gemm_a8w8_CK(XQ, WQ, x_scale, w_scale, bias=None, dtype=torch.bfloat16, splitK=None):
    CK_CALLS.append(("batched_gemm_a8w8_CK", splitK, None))
    return _scaled(XQ, WQ, x_scale, w_scale, bias).to(dtype)


def batched_gemm_a8w8_tune(XQ, WQ, x_scale, w_scale, out, kernelId, splitK=0):
    CK_CALLS.append(("batched_gemm_a8w8_tune", splitK, kernelId))
    return out.copy_(_scaled(XQ, WQ, x_scale, w_scale))


def gemm_a8w8_ck(XQ, WQ, x_scale, w_scale, Out, bias=None, splitK=0):
    CK_CALLS.append(("gemm_a8w8_ck", splitK, None))
    return Out.copy_(_one_scaled(XQ, WQ, x_scale, w_scale, bias))


def gemm_a8w8_CK(XQ, WQ, x_scale, w_scale, bias=None, dtype=torch.bfloat16, splitK=None):
    CK_CALLS.append(("gemm_a8w8_CK", splitK, None))
    return _one_scaled(XQ, WQ, x_scale, w_scale, bias).to(dtype)


def gemm_a8w8_tune(XQ, WQ, x_scale, w_scale, Out, kernelId=0, splitK=0):
    CK_CALLS.append(("gemm_a8w8_tune", splitK, kernelId))
    return Out.copy_(_one_scaled(XQ, WQ, x_scale, w_scale))


def gemm_a8w8(XQ, WQ, x_scale, w_scale, bias=None, dtype=torch.bfloat16, splitK=None):
    return _by_rows(XQ, WQ, x_scale, w_scale, bias).to(dtype)


def gemm_a8w8_blockscale(XQ, WQ, x_scale, w_scale, dtype=torch.bfloat16, isBpreshuffled=False):
    return _by_blocks(XQ, WQ, x_scale, w_scale).to(dtype)


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1, 0),
    bias=None,
    alibi_slopes=None,
    deterministic=True,
    return_lse=False,
    return_attn_probs=False,
    how_v3_bf16_cvt=1,
    cu_seqlens_q=None,
    cu_seqlens_kv=None,
    sink_ptr=None,
    num_splits=0,
):
    return _attention(q, k, v, softmax_scale, causal)


_LONG = (
    "aiter.ops.triton.gemm.batched."
    "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"
)


def _in_module(name):
    """Move a function into another module of the package."""

    def move(function):
        module = sys.modules.setdefault(name, types.ModuleType(name))
        setattr(module, function.__name__, function)
        return globals().get(function.__name__)  # of this module, where it has one too

    return move


@_in_module("aiter.ops.triton.attention.mla_decode_rope")
def decode_attention_fwd_grouped_rope(
    q,
    k_buffer,
    v_buffer,
    o,
    kv_indptr,
    kv_indices,
    k_pe_tokens,
    kv_lora_rank,
    rotary_dim,
    cos_sin_cache,
    positions,
    attn_logits,
    num_kv_splits,
    sm_scale,
    logit_cap=0.0,
    use_rope=False,
    is_neox_style=False,
    config=None,
):
    assert kv_indptr.dtype is torch.int32
    assert q.shape[2] == k_buffer.shape[2] == kv_lora_rank + rotary_dim
    assert attn_logits.shape == (*q.shape[:2], num_kv_splits, kv_lora_rank + 1)
    assert not logit_cap
    assert not use_rope
    for i in range(len(q)):
        rows = kv_indices[kv_indptr[i] : kv_indptr[i + 1]]
        k, v = (each[rows][None] for each in (k_buffer, v_buffer))
        o[i] = _attention(q[i][None, None], k, v, sm_scale, False)[0, 0]


@_in_module("aiter.tuned_gemm")
def gemm_a16w16(A, B, bias=None, otype=None, scale_a=None, scale_b=None, scale_c=None):
    return _product(A, B, bias).to(otype or A.dtype)


@_in_module("aiter.ops.triton.gemm.basic.gemm_a16w16")
def gemm_a16w16(
    x,
    w,
    bias=None,
    dtype=torch.bfloat16,
    y=None,
    config=None,
    activation=None,
    skip_reduce=False,
    kernel_type="bandwidth_bound",
    backend=None,
):
    assert y.dtype is dtype
    return y.copy_(_product(x, w, bias))


@_in_module("aiter.ops.triton.gemm.batched.batched_gemm_bf16")
def batched_gemm_bf16(
    XQ,
    WQ,
    bias=None,
    dtype=torch.bfloat16,
    splitK=None,
    YQ=None,
    config=None,
    kernel_type="bandwidth_bound",
    backend=None,
):
    return YQ.copy_(_product(XQ, WQ, bias))


@_in_module("aiter.ops.triton.gemm.batched.batched_gemm_a8w8")
def batched_gemm_a8w8(
    XQ, WQ, x_scale, w_scale, bias=None, dtype=torch.bfloat16, splitK=None, YQ=None, config=None
):
    return YQ.copy_(_scaled(XQ, WQ, x_scale, w_scale, bias))


@_in_module("aiter.ops.triton.gemm.basic.gemm_a8w8")
def gemm_a8w8(
    x, w, x_scale, w_scale, bias=None, dtype=torch.bfloat16, y=None, config=None, skip_reduce=False
):
    assert y.dtype is dtype
    return y.copy_(_by_rows(x, w, x_scale, w_scale, bias))


@_in_module("aiter.ops.triton.gemm.basic.gemm_a8w8_blockscale")
def gemm_a8w8_blockscale(
    x,
    w,
    x_scale,
    w_scale,
    dtype=torch.bfloat16,
    y=None,
    config=None,
    skip_reduce=False,
    kernel_type="bandwidth_bound",
    backend=None,
):
    assert y.dtype is dtype
    return y.copy_(_by_blocks(x, w, x_scale, w_scale))


def _by_rows(x, w, x_scale, w_scale, bias=None):
    assert (x_scale.shape, w_scale.shape) == ((len(x), 1), (1, len(w)))
    found = x.double() @ w.double().T * (x_scale * w_scale).double()
    return found if bias is None else found + bias.double()


def _by_blocks(x, w, x_scale, w_scale):
    (m, k), (n, _) = x.shape, w.shape
    assert x_scale.shape == (m, k // 128)
    assert w_scale.shape == (-(-n // 128), k // 128)
    rows = w_scale.repeat_interleave(128, 0)[:n]
    left, right = (
        t.double() * s.double().repeat_interleave(128, 1) for t, s in ((x, x_scale), (w, rows))
    )
    return left @ right.T


@_in_module(_LONG)
def batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant(
    X,
    WQ,
    w_scale,
    group_size=128,
    bias=None,
    dtype=torch.bfloat16,
    splitK=None,
    YQ=None,
    transpose_bm=False,
    transpose_bm_in=False,
    config=None,
):
    x = X.transpose(0, 1) if transpose_bm_in else X
    found = _product(_by_groups(x, group_size, WQ.dtype), WQ) * w_scale.double()
    found = found if bias is None else found + bias.double()
    return YQ.copy_(found.transpose(0, 1) if transpose_bm else found)


@_in_module("aiter.ops.triton.gemm.batched.batched_gemm_a16wfp4")
def batched_gemm_a16wfp4(
    x,
    w,
    w_scales,
    dtype=torch.bfloat16,
    y=None,
    config=None,
    transpose_bm=False,
    prequant=True,
    y_scale=None,
):
    found = _product(_to_fp4(x), _fp4(w, w_scales))
    return y.copy_(found.transpose(0, 1) if transpose_bm else found)


@_in_module("aiter.ops.triton.gemm.batched.batched_gemm_afp4wfp4")
def batched_gemm_afp4wfp4(x, w, x_scales, w_scales, dtype=torch.bfloat16, y=None, config=None):
    return y.copy_(_product(_fp4(x, x_scales), _fp4(w, w_scales)))


@_in_module("aiter.ops.triton.attention.mha")
def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    bias=None,
    alibi_slopes=None,
    deterministic=True,
    return_lse=False,
    return_attn_probs=False,
    sink=None,
    config=None,
):
    return _attention(q, k, v, softmax_scale, causal).to(q.dtype)


_NAMES = {torch.float8_e4m3fn: "f8e4m3", torch.float8_e4m3fnuz: "f8e4m3fnuz", torch.int8: "i8"}


def _product(x, w, bias=None):
    found = x.double() @ w.double().mT
    return found if bias is None else found + bias.double()


def _scaled(x, w, x_scale, w_scale, bias=None):
    assert x_scale.shape == (*x.shape[:2], 1)
    assert w_scale.shape == (w.shape[0], 1, w.shape[1])
    found = _product(x, w) * x_scale.double() * w_scale.double()
    return found if bias is None else found + bias.double()


def _one_scaled(x, w, x_scale, w_scale, bias=None):
    assert x_scale.shape == (x.shape[0], 1)
    assert w_scale.shape == (1, w.shape[0])
    assert bias is None or bias.shape == (w.shape[0],)
    found = _product(x, w) * x_scale.double() * w_scale.double()
    return found if bias is None else found + bias.double()


def _fp4(codes, scales):
    assert codes.dtype == scales.dtype == torch.uint8
    raw = codes.numpy()
    both = np.stack([raw & 15, raw >> 4], axis=-1).reshape(*raw.shape[:-1], -1)
    return torch.from_numpy(floats.dequantise(both, scales.numpy()))


def _to_fp4(x):
    return torch.from_numpy(floats.rounded(x.double().numpy()))


def _by_groups(x, group, to):
    return torch.from_numpy(group_rounded(x.double().numpy(), group, _NAMES[to]))


def _attention(q, k, v, softmax_scale, causal):
    q, k, v = (one.double().transpose(1, 2) for one in (q, k, v))
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], dim=1) for one in (k, v))
    scores = q @ k.mT * softmax_scale
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
        seen = seen.tril(scores.shape[-1] - scores.shape[-2])
        scores = scores.masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)
