"""Stand-in for fused MoE: its lookup of a tuned row, and its functions, computed with torch."""

import functools
from enum import Enum
from types import SimpleNamespace

import torch


class QuantType(Enum):
    No = 0


class ActivationType(Enum):
    Silu = 0


CALLS = []  # what every call was launched with
cfg_2stages = None


def get_padded_M(M):
    return 1 << (M - 1).bit_length()


@functools.lru_cache
def get_2stage_cfgs(
    token,
    model_dim,
    inter_dim,
    expert,
    topk,
    dtype,
    q_dtype_a,
    q_dtype_w,
    q_type,
    use_g1u1,
    activation,
    doweight_stage1,
    hidden_pad,
    intermediate_pad,
    is_shuffled=True,
):
    assert (q_type, activation, use_g1u1, is_shuffled) == (
        QuantType.No,
        ActivationType.Silu,
        True,
        True,
    )
    key = (token, model_dim, inter_dim, expert, topk, dtype, q_dtype_a, q_dtype_w)
    row = cfg_2stages[0].get(key, None) if cfg_2stages else None
    return SimpleNamespace(**row) if row else None


def fused_moe(hidden_states, w1, w2, topk_weight, topk_ids, expert_mask=None):
    return _fused_moe_impl(hidden_states, w1, w2, topk_weight, topk_ids)


def _fused_moe_impl(x, w1, w2, topk_weight, topk_ids, *, _metadata_transform=None):
    (m, top_k), (e, k, n) = topk_ids.shape, w2.shape
    assert (topk_weight.dtype, topk_ids.dtype) == (torch.float32, torch.int32)
    types = (x.dtype, w1.dtype, w1.dtype)
    chosen = get_2stage_cfgs(
        *(get_padded_M(m), k, n, e, top_k, *types, QuantType.No, True, ActivationType.Silu),
        *(False, 0, 0, w1.is_shuffled and w2.is_shuffled),
    )
    if _metadata_transform is not None:
        chosen = _metadata_transform(chosen)
    CALLS.append(chosen)
    w1, w2 = (_by_rows(w).double() for w in (w1, w2))
    out = torch.zeros(m, k, dtype=torch.float64)
    for t in range(m):
        for slot in range(top_k):
            expert = int(topk_ids[t, slot])
            both = (w1[expert] @ x[t].double()).to(x.dtype).double()
            h = (torch.nn.functional.silu(both[:n]) * both[n:]).to(x.dtype).double()
            out[t] += topk_weight[t, slot].double() * (w2[expert] @ h)
    return out.to(x.dtype)


def _by_rows(w):
    """The inverse of shuffle_weight."""
    e, rows, columns = w.shape
    tiles = w.view(e, rows // 16, columns // 32, 4, 16, 8)
    return tiles.permute(0, 1, 4, 2, 3, 5).reshape(e, rows, columns)
