"""assert_close: how often it refuses honest outputs, and what it finds of planted errors.

    taskset -c 1 python benchmarks/closeness.py [--outputs 1000000] [--planted 1000] [--seed 0]

Honest products are computed in the order of real kernels: one term after the other with and
without FMA, in another order, split along k, in blocks, as matrix units truncate; convolutions and
attention by torch. Values are uniform, normal, positive, sorted, of very different sizes, or mostly
0. Then errors are planted in honest outputs: a wrong tile, no bias, operands rounded to bf16 in an
f32 product and to f8 in a bf16 product.
"""

from __future__ import annotations

import argparse
import collections
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernelmark.runners.targets import find
from kernelmark.testing import assert_close
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent / "results" / "closeness.json"
F32 = NDArray[np.float32]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
F8 = torch.float8_e4m3fn
TILE = 16

torch.set_num_threads(1)


def uniform(rng: np.random.Generator, *shape: int) -> F32:
    return rng.uniform(-1, 1, shape).astype(np.float32)


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


def positive(rng: np.random.Generator, *shape: int) -> F32:
    return rng.uniform(0, 1, shape).astype(np.float32)


def ordered(rng: np.random.Generator, *shape: int) -> F32:
    return np.sort(normal(rng, *shape), axis=-1)


def spread(rng: np.random.Generator, *shape: int) -> F32:
    return (normal(rng, *shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(np.float32)


def sparse(rng: np.random.Generator, *shape: int) -> F32:
    return (normal(rng, *shape) * (rng.random(shape) < 0.05)).astype(np.float32)


VALUES = (uniform, normal, positive, ordered, spread, sparse)


# -- honest products in f32, of operands as f32


def in_turn(a: F32, b: F32) -> F32:
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for t in range(len(b)):
        total += a[:, t, None] * b[t]
    return total


def fused(a: F32, b: F32) -> F32:
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for t in range(len(b)):
        product = a[:, t, None].astype(np.float64) * b[t]
        total = (total + product).astype(np.float32)
    return total


def backwards(a: F32, b: F32) -> F32:
    return in_turn(a[:, ::-1], b[::-1])


def split(a: F32, b: F32) -> F32:
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for part in np.array_split(np.arange(len(b)), 7):
        total += in_turn(a[:, part], b[part])
    return total


def blocked(a: F32, b: F32) -> F32:
    return np.asarray(a @ b)


def truncated(a: F32, b: F32, digits: int = 24, group: int = 4) -> F32:
    """As a matrix unit that keeps `digits` of the largest of a group and of the accumulator."""
    total = np.zeros((len(a), b.shape[1]))
    for start in range(0, len(b), group):
        some = slice(start, start + group)
        terms = a[:, some, None].astype(np.float64) * b[None, some]
        terms = np.concatenate([total[:, None], terms], axis=1)
        _, exponent = np.frexp(np.abs(terms).max(axis=1))
        step = np.ldexp(1.0, exponent - digits)
        total = (np.trunc(terms / step[:, None]) * step[:, None]).sum(axis=1)
        total = total.astype(np.float32).astype(np.float64)
    return total.astype(np.float32)


def hopper(a: F32, b: F32) -> F32:
    return truncated(a, b, digits=14, group=32)


PRODUCTS = (in_turn, fused, backwards, split, blocked)
UNITS = {"f16": (truncated,), "bf16": (truncated,), "f8": (hopper,), "f32": ()}
SHAPES = ((48, 64, 1), (33, 65, 17), (64, 64, 128), (48, 48, 1024), (32, 32, 4096))


def honest_products(rng: np.random.Generator) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    every = itertools.product({**DTYPES, "f8": F8}.items(), VALUES, SHAPES)
    for (name, kind), values, (m, n, k) in every:
        a, b = values(rng, m, k), values(rng, n, k).T
        inputs = [torch.tensor(np.ascontiguousarray(x)).to(kind) for x in (a, b)]
        rounded = [x.float().numpy() for x in inputs]
        for product in (*PRODUCTS, *UNITS[name]):
            out = torch.tensor(product(*rounded)).to(DTYPES.get(name, torch.bfloat16))
            yield f"gemm {name}", out, {"op": "gemm", "inputs": inputs}


def honest_others(rng: np.random.Generator) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for (name, kind), values in itertools.product(DTYPES.items(), (uniform, normal, positive)):
        x, w = values(rng, 2, 12, 15, 15), values(rng, 16, 12, 3, 3)
        inputs = [torch.tensor(v).to(kind) for v in (x, w)]
        out = torch.conv2d(*inputs, padding=1, stride=2)
        yield f"conv {name}", out, {"op": "conv", "inputs": inputs, "pad": 1, "stride": 2}
        q, k, v = (torch.tensor(values(rng, 1, 2, 64, 32)).to(kind) for _ in range(3))
        causal = bool(rng.integers(2))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        about = {"op": "attention", "inputs": [q, k, v], "causal": causal}
        yield f"attention {name}", out, about
        yield f"softmax {name}", torch.softmax(q, -1), {"reference": softmax, "inputs": [q]}


def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


# -- planted errors: (output, arguments of assert_close)


def operands(rng: np.random.Generator, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = (int(rng.integers(TILE, 97)) for _ in range(2))
    values, k = VALUES[rng.integers(2)], int(2 ** rng.uniform(3, 11))
    return tuple(torch.tensor(values(rng, *shape)).to(kind) for shape in ((m, k), (k, n)))


def wrong_tile(rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    """A tile that was never written, belongs elsewhere, or misses the last terms of k."""
    a, b = operands(rng, list(DTYPES.values())[rng.integers(3)])
    out = (a.float() @ b.float()).to(a.dtype)
    i, j = (int(rng.integers(0, size - TILE + 1)) for size in out.shape)
    rows, cols = slice(i, i + TILE), slice(j, j + TILE)
    how, terms = rng.integers(3), max(1, a.shape[1] // 8)
    if how == 0:
        out[rows, cols] = 0
    elif how == 1:
        out[rows, cols] = out[rows, cols].flip(0).clone()
    else:
        left = a[rows, :-terms].float() @ b[:-terms, cols].float()
        out[rows, cols] = left.to(out.dtype)
    return out, {"op": "gemm", "inputs": [a, b]}


def no_bias(rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    a, b = operands(rng, list(DTYPES.values())[rng.integers(3)])
    bias = torch.tensor(normal(rng, b.shape[1])).to(a.dtype)
    out = (a.float() @ b.float()).to(a.dtype)
    return out, {"op": "gemm", "inputs": {"a": a, "b": b, "bias": bias}, "bias": True}


def bf16_for_f32(rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    a, b = operands(rng, torch.float32)
    return a.bfloat16().float() @ b.bfloat16().float(), {"op": "gemm", "inputs": [a, b]}


def f8_for_bf16(rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    a, b = operands(rng, torch.bfloat16)
    low = [x.to(F8).float() for x in (a, b)]
    return (low[0] @ low[1]).bfloat16(), {"op": "gemm", "inputs": [a, b]}


PLANTED: tuple[Callable[[np.random.Generator], tuple[Any, dict[str, Any]]], ...] = (
    wrong_tile,
    no_bias,
    bf16_for_f32,
    f8_for_bf16,
)


def refused(out: Any, about: dict[str, Any]) -> tuple[bool, float]:
    try:
        return False, assert_close(out, **about).worst
    except AssertionError:
        return True, float("inf")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--outputs", type=int, default=1_000_000, help="honest outputs at least")
    parser.add_argument("--planted", type=int, default=1000, help="errors of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    outputs: collections.Counter[str] = collections.Counter()
    false: collections.Counter[str] = collections.Counter()
    worst: dict[str, float] = {}
    while outputs.total() < given.outputs:
        for kind, out, about in itertools.chain(honest_products(rng), honest_others(rng)):
            is_refused, ratio = refused(out, about)
            outputs[kind] += out.numel()
            false[kind] += is_refused
            worst[kind] = max(worst.get(kind, 0.0), ratio)
    found = {
        plant.__name__.replace("_", " "): sum(refused(*plant(rng))[0] for _ in range(given.planted))
        for plant in PLANTED
    }
    least = min(found.values()) / given.planted
    bars = [
        (
            "no honest output of at least 10⁶ is refused",
            f"{false.total()} calls refused; {outputs.total()} outputs of {len(outputs)} kinds",
            false.total() == 0 and outputs.total() >= 1_000_000,
        ),
        (
            "at least 99.9 % of planted errors of each kind are found",
            "; ".join(f"{name}: {count} of {given.planted}" for name, count in found.items()),
            least >= 0.999,
        ),
    ]
    evidence.write(
        given.output,
        title="assert_close: honest outputs and planted errors",
        bars=bars,
        figures={
            "seed": given.seed,
            "honest": {
                kind: {"outputs": count, "refused": false[kind], "worst": round(worst[kind], 3)}
                for kind, count in outputs.items()
            },
            "planted": {name: {"tried": given.planted, "found": n} for name, n in found.items()},
        },
        device=find("cpu")[1],
        libraries=evidence.libraries("numpy", "torch"),
    )
    print(evidence.bars_text(bars))
    return 0 if all(holds for *_, holds in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
