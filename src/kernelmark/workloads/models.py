"""Models: a small table of public hyper-parameters, and the problems derived from them.

A linear layer is `gemm m=tokens n=outputs k=inputs ta=n tb=t`: activations (tokens, inputs),
weights (outputs, inputs). With tensor parallelism `tp`, the layers before attention and before the
activation are split by columns (n/tp), those after by rows (k/tp), heads and vocabulary by tp; all
sizes must be divisible. Key/value heads are replicated if there are fewer of them than ranks.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.ops.base import Parameter

# A step of up to this many tokens counts as decoding: only decoding needs the logits of each token,
# and runs latent attention with absorbed projections.
DECODE_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes of one model, in elements and counts; 0 if it has no such part.

    `mlp` is the inner size of its dense layers, `expert_mlp` that of one expert. The last five
    sizes are those of multi-head latent attention (MLA).
    """

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    mlp: int = 0
    experts: int = 0
    top_k: int = 0
    expert_mlp: int = 0
    shared_experts: int = 0
    window: int = 0  # keys in the sliding window of a layer
    bias: bool = False  # of the linear layers except the head and the experts
    q_rank: int = 0
    kv_rank: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    value_dim: int = 0

    @property
    def latent(self) -> bool:
        return self.kv_rank > 0


# From the published config.json files of the models, each row checked in two or more sources.
# Mixtral 8x22B has the vocabulary of its Instruct release, the one that is served.
_DENSE_NAMES = ("hidden", "heads", "kv_heads", "mlp", "vocab")
_DENSE = {
    "llama-2-13b": (5120, 40, 40, 13824, 32000),
    "llama-2-70b": (8192, 64, 8, 28672, 32000),
    "llama-3-8b": (4096, 32, 8, 14336, 128256),
    "llama-3-70b": (8192, 64, 8, 28672, 128256),
    "llama-3-405b": (16384, 128, 8, 53248, 128256),
    "qwen3-8b": (4096, 32, 8, 12288, 151936),
    "qwen3-32b": (5120, 64, 8, 25600, 151936),
}
_MIXTURE_NAMES = ("hidden", "heads", "kv_heads", "vocab", "experts", "top_k", "expert_mlp")
_MIXTURES = {
    "mixtral-8x7b": (4096, 32, 8, 32000, 8, 2, 14336),
    "mixtral-8x22b": (6144, 48, 8, 32768, 8, 2, 16384),
    "qwen3-30b-a3b": (2048, 32, 4, 151936, 128, 8, 768),
    "qwen3-235b-a22b": (4096, 64, 4, 151936, 128, 8, 1536),
}
_GPT_OSS = Model(
    name="",
    hidden=2880,
    heads=64,
    kv_heads=8,
    head_dim=64,
    vocab=201088,
    top_k=4,
    expert_mlp=2880,
    window=128,
    bias=True,
)
_DEEPSEEK = Model(
    name="",
    hidden=7168,
    heads=128,
    kv_heads=128,
    head_dim=192,
    vocab=129280,
    mlp=18432,
    experts=256,
    top_k=8,
    expert_mlp=2048,
    shared_experts=1,
    q_rank=1536,
    kv_rank=512,
    nope_dim=128,
    rope_dim=64,
    value_dim=128,
)


def _table() -> Iterator[Model]:
    plain = Model(name="", hidden=0, heads=0, kv_heads=0, head_dim=128, vocab=0)
    for names, rows in ((_DENSE_NAMES, _DENSE), (_MIXTURE_NAMES, _MIXTURES)):
        for name, sizes in rows.items():
            changed: dict[str, Any] = dict(zip(names, sizes, strict=True))
            yield dataclasses.replace(plain, name=name, **changed)
    for name in ("deepseek-v3", "deepseek-r1"):
        yield dataclasses.replace(_DEEPSEEK, name=name)
    for name, experts in (("gpt-oss-20b", 32), ("gpt-oss-120b", 128)):
        yield dataclasses.replace(_GPT_OSS, name=name, experts=experts)


MODELS: dict[str, Model] = {model.name: model for model in _table()}


def model(name: str) -> Model:
    """Return the model called `name`; raise a UsageError that lists the known ones."""
    if name in MODELS:
        return MODELS[name]
    close = difflib.get_close_matches(name, MODELS, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise UsageError(f"unknown model {name!r}", hint=f"{meant}known: {', '.join(MODELS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCall:
    """One computation of a layer: name, op and parameters, without a dtype."""

    layer: str
    op: str
    parameters: dict[str, Parameter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The sizes to derive problems for: tokens in a step for the GEMMs, prompt lengths, and
    batch × context for decoding."""

    tokens: Sequence[int] = ()
    prefill: Sequence[int] = ()
    decode_batch: Sequence[int] = ()
    context: Sequence[int] = ()


def calls(which: Model, tp: int, sweep: Sweep) -> Iterator[LayerCall]:
    """Yield all computations of one layer of each kind, and of the head, on one of `tp` ranks."""
    if tp < 1:
        raise ProblemError(f"{which.name}: tp={tp} is not a number of ranks")
    for tokens in sweep.tokens:
        if tokens < 1:
            raise ProblemError(f"{which.name}: m={tokens} is not a number of tokens")
        yield from _attention_projections(which, tp, tokens)
        yield from _mlp(which, tp, tokens)
        yield from _experts(which, tp, tokens)
        if tokens <= DECODE_TOKENS:
            vocab = _share(which, "vocabulary", which.vocab, tp)
            yield _linear("lm_head", tokens, vocab, which.hidden)
    for length in sweep.prefill:
        yield _prefill(which, tp, length)
    for batch in sweep.decode_batch:
        for context in sweep.context:
            yield from _decode(which, tp, batch, context)


def _attention_projections(which: Model, tp: int, tokens: int) -> Iterator[LayerCall]:
    if which.latent:
        yield from _latent_projections(which, tp, tokens)
        return
    heads, kv_heads = _heads(which, tp)
    width = (heads + 2 * kv_heads) * which.head_dim
    yield _linear("qkv", tokens, width, which.hidden, bias=which.bias)
    yield _linear("o", tokens, which.hidden, heads * which.head_dim, bias=which.bias)


def _latent_projections(which: Model, tp: int, tokens: int) -> Iterator[LayerCall]:
    """Yield the projections of latent attention. Down-projections are replicated on each rank and
    fused into one GEMM; decoding replaces `kv_b` by key and value up-projections per head."""
    heads, _ = _heads(which, tp)
    yield _linear("qkv_a", tokens, which.q_rank + which.kv_rank + which.rope_dim, which.hidden)
    yield _linear("q_b", tokens, heads * which.head_dim, which.q_rank)
    if tokens <= DECODE_TOKENS:
        yield _batched("k_absorb", heads, (tokens, which.kv_rank, which.nope_dim), tb="n")
        yield _batched("v_absorb", heads, (tokens, which.value_dim, which.kv_rank), tb="n")
    else:
        width = heads * (which.nope_dim + which.value_dim)
        yield _linear("kv_b", tokens, width, which.kv_rank)
    yield _linear("o", tokens, which.hidden, heads * which.value_dim)


def _mlp(which: Model, tp: int, tokens: int) -> Iterator[LayerCall]:
    shared = which.shared_experts * which.expert_mlp
    for prefix, size in (("", which.mlp), ("shared_", shared)):
        if size:
            inner = _share(which, f"{prefix}mlp size", size, tp)
            yield _linear(f"{prefix}gate_up", tokens, 2 * inner, which.hidden)
            yield _linear(f"{prefix}down", tokens, which.hidden, inner)


def _experts(which: Model, tp: int, tokens: int) -> Iterator[LayerCall]:
    """Yield the computations of the experts. Routing is assumed to be even: every active expert
    gets the same number of tokens."""
    if not which.experts:
        return
    yield _linear("router", tokens, which.experts, which.hidden, bias=which.bias)
    inner = _share(which, "expert mlp size", which.expert_mlp, tp)
    hit = min(which.experts, tokens * which.top_k)
    each = math.ceil(tokens * which.top_k / hit)
    yield _batched("expert_gate_up", hit, (each, 2 * inner, which.hidden), tb="t")
    yield _batched("expert_down", hit, (each, which.hidden, inner), tb="t")


def _prefill(which: Model, tp: int, length: int) -> LayerCall:
    heads, kv_heads = _heads(which, tp)
    return _attend("prefill", 1, (heads, kv_heads), (length, length), which)


def _decode(which: Model, tp: int, batch: int, context: int) -> Iterator[LayerCall]:
    heads, kv_heads = _heads(which, tp)
    if not which.latent:
        yield _attend("decode", batch, (heads, kv_heads), (1, context), which)
        if 0 < which.window < context:
            yield _attend("decode_window", batch, (heads, kv_heads), (1, which.window), which)
        return
    parameters: dict[str, Parameter] = {
        "batch": batch,
        "heads_q": heads,
        "heads_kv": 1,
        "seq_q": 1,
        "seq_kv": context,
        "dim_qk": which.kv_rank + which.rope_dim,
        "dim_v": which.kv_rank,
        # Absorbed projections make the dot product longer, but the scale is that of the head.
        "scale": which.head_dim**-0.5,
    }
    yield LayerCall(layer="decode_latent", op="attention", parameters=parameters)


def _attend(
    layer: str, batch: int, heads: tuple[int, int], lengths: tuple[int, int], which: Model
) -> LayerCall:
    parameters: dict[str, Parameter] = {
        "batch": batch,
        "heads_q": heads[0],
        "heads_kv": heads[1],
        "seq_q": lengths[0],
        "seq_kv": lengths[1],
        "dim_qk": which.head_dim,
        "dim_v": which.value_dim or which.head_dim,
        "causal": lengths[0] > 1,
    }
    return LayerCall(layer=layer, op="attention", parameters=parameters)


def _linear(layer: str, m: int, n: int, k: int, *, bias: bool = False) -> LayerCall:
    parameters: dict[str, Parameter] = {"m": m, "n": n, "k": k, "ta": "n", "tb": "t"}
    return LayerCall(
        layer=layer, op="gemm", parameters=parameters | ({"bias": True} if bias else {})
    )


def _batched(layer: str, batch: int, mnk: tuple[int, int, int], *, tb: str) -> LayerCall:
    m, n, k = mnk
    parameters: dict[str, Parameter] = {"batch": batch, "m": m, "n": n, "k": k, "ta": "n", "tb": tb}
    return LayerCall(layer=layer, op="batched_gemm", parameters=parameters)


def _heads(which: Model, tp: int) -> tuple[int, int]:
    heads = _share(which, "heads", which.heads, tp)
    if tp > which.kv_heads and tp % which.kv_heads == 0:
        return heads, 1
    return heads, _share(which, "key/value heads", which.kv_heads, tp)


def _share(which: Model, what: str, size: int, tp: int) -> int:
    if size % tp:
        raise ProblemError(
            f"{which.name}: {what} ({size}) cannot be divided by tp={tp}",
            hint="choose a tp that divides the heads, the mlp size and the vocabulary",
        )
    return size // tp
