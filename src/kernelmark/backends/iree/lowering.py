"""Lowering configs of a problem: its root ops, the space of their tiles, the spec's entries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from kernelmark.backends.iree.amd_tiles import FREE, AmdTiles
from kernelmark.backends.iree.cpu_tiles import CpuTiles
from kernelmark.backends.iree.spec import Entry, Lowering, Rewrite, Root, function_name
from kernelmark.backends.iree.targets import Target
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ConfigValue
from kernelmark.core.space import Space
from kernelmark.core.units import join_commas
from kernelmark.kernels.mlir.base import Form, element_type
from kernelmark.kernels.mlir.conv import im2col_function
from kernelmark.ops.conv import output_size

_NHWC_LOOPS = "n, p, q, f, r, s, c"
_NCHW_LOOPS = "n, f, p, q, c, r, s"


class Tiles(Protocol):
    """The lowerings for one kind of device."""

    def values(self, root: Root) -> Mapping[str, tuple[ConfigValue, ...]]:
        """Return the parameters with their values; raise Unsupported if there is nothing to try."""

    def seeds(self, root: Root) -> Sequence[Config]:
        """Return combinations to begin with, first one that is rarely bad; their sizes need not be
        among the values."""

    def forbids(self, root: Root, config: Config) -> str | None:
        """Return why a combination cannot be compiled or cannot be fast, or None."""

    def lowering(self, root: Root, config: Config) -> Lowering:
        """Return IREE's attributes for a combination."""


def space(problem: Problem, form: Form, target: Target, *, seeded: bool = True) -> Space:
    """Return the configs that can be tried; raise Unsupported if there are none. Without seeds the
    space has no default, and is built in half the time: enough to check a config."""
    tiles, found = _tiles(target), roots(problem, form)
    listed = {root.prefix: tiles.values(root) for root in found}
    parameters = {p + name: v for p, one in listed.items() for name, v in one.items()}
    known: dict[tuple[ConfigValue, ...], str | None] = {}

    def forbids(config: Config) -> str | None:
        for root in found:
            # A listed space has few combinations of the names that the rule uses in each root.
            key = (root.prefix, *(config.get(name, "") for name in names[root.prefix]))
            if key not in known:
                known[key] = tiles.forbids(root, _own(config, root))
            if known[key]:
                return known[key]
        return None

    names = {p: [p + name for name in one if name not in FREE] for p, one in listed.items()}
    every = _seeds(tiles, found, listed) if seeded else []
    seeds = [item for item in every if forbids(item) is None]
    return Space(
        parameters=parameters,
        default=seeds[0] if seeds else FrozenDict(),
        forbids=forbids,
        seeds=tuple(seeds[1:]),
    )


def _seeds(
    tiles: Tiles, found: Sequence[Root], listed: Mapping[str, Mapping[str, tuple[ConfigValue, ...]]]
) -> list[Config]:
    """Return the first seeds of all roots combined, then the second ones, and so on; a shorter list
    repeats its last seed."""
    each = {root.prefix: tiles.seeds(root) for root in found}
    count = max(map(len, each.values())) if all(each.values()) else 0
    made = [
        FrozenDict(
            {
                prefix + name: _nearest(value, listed[prefix][name])
                for prefix, seeds in each.items()
                for name, value in seeds[min(number, len(seeds) - 1)].items()
            }
        )
        for number in range(count)
    ]
    return list(dict.fromkeys(made))


def entries(
    problem: Problem, form: Form, target: Target, config: Config, *, packed: bool = False
) -> tuple[Entry, ...]:
    """Return the spec's entries for a config of the space; an empty config leaves the tiles to the
    compiler, with or without `packed` operands."""
    tiles, rewrite = _tiles(target), _rewrite(problem, form)
    return tuple(
        Entry(
            root=root,
            lowering=tiles.lowering(root, _own(config, root))
            if config
            else Lowering(packed=packed),
            rewrite=rewrite,
        )
        for root in roots(problem, form)
    )


def _rewrite(problem: Problem, form: Form) -> Rewrite | None:
    """Return how the named convolution of a model is rewritten as the tuned GEMM."""
    if problem.op != "conv" or form.gpu or not form.im2col:
        return None
    root = _named_conv(problem)
    return Rewrite(root=root, function=im2col_function(problem, function_name(root)))


def _tiles(target: Target) -> Tiles:
    if not target.gpu:
        return CpuTiles(vector_bytes=target.vector_bytes, registers=target.registers)
    arch = target.name.removeprefix("rocm ")
    if arch not in AmdTiles.archs():
        raise Unsupported(
            f"kernelmark has lowering configs for CPUs and for {join_commas(AmdTiles.archs())} only"
        )
    return AmdTiles(arch=arch)


def _own(config: Config, root: Root) -> dict[str, ConfigValue]:
    """Return the part of a config that applies to this root, without its prefix."""
    begin = root.prefix
    return {name[len(begin) :]: v for name, v in config.items() if name.startswith(begin)}


def _nearest(value: ConfigValue, values: tuple[ConfigValue, ...]) -> ConfigValue:
    if value in values or not isinstance(value, int):
        return value if value in values else values[0]
    return min(values, key=lambda item: abs(int(item) - value))


# -- root ops, in IREE's form when it applies a spec


def roots(problem: Problem, form: Form) -> tuple[Root, ...]:
    """Return the ops that dominate a problem's time; raise Unsupported if IREE's form of them is
    not known.

    IREE folds away a loop of one iteration, and then the matcher's op no longer exists."""
    if problem.op in ("gemm", "batched_gemm"):
        found = _gemm_roots(problem)
    elif problem.op == "conv":
        found = _im2col_roots(problem) if form.im2col else _conv_roots(problem)
    elif problem.op == "attention" and not form.gpu:
        found = _two_gemm_roots(problem)
    elif problem.op == "attention":
        found = _attention_roots(problem)
    else:
        raise Unsupported(f"kernelmark has no lowering configs for {problem.op}")
    for root in found:
        for loop, sizes in root.sizes.items():
            if 1 in sizes:
                raise Unsupported(
                    f"a loop of its root op has one iteration ({root.prefix + loop}): IREE"
                    " folds it away, and a tuning spec would not match"
                )
    return found


def _gemm_roots(problem: Problem) -> tuple[Root, ...]:
    d, o = problem.dims, problem.options
    types = (_type(problem, "a"), _type(problem, "b"), _type(problem, "acc"))
    sizes = (d.get("batch", 0), d["m"], d["n"], d["k"])
    return (_contraction(sizes, types, ta=o["ta"] == "t", tb=o["tb"] == "t"),)


def _im2col_roots(problem: Problem) -> tuple[Root, ...]:
    """Return the GEMM of a convolution's patches and filters."""
    d = problem.dims
    spots, terms = math.prod(output_size(problem)), d["c"] * d["r"] * d["s"]
    x, acc = _type(problem, "x"), _type(problem, "acc")
    if problem.options["layout"] == "nhwc":
        return (_contraction((0, d["n"] * spots, d["k"], terms), (x, x, acc), tb=True),)
    if d["n"] == 1:
        return (_contraction((0, d["k"], spots, terms), (x, x, acc)),)
    raise Unsupported(
        f"kernelmark has no lowering configs for {problem.op} in the layout nchw"
        " with several images, but for nhwc"
    )


def _two_gemm_roots(problem: Problem) -> tuple[Root, ...]:
    """Return both GEMMs of an attention that is not a single IREE op."""
    d = problem.dims
    heads = d["batch"] * d["heads_kv"]
    rows = d["seq_q"] * d["heads_q"] // d["heads_kv"]
    q, kv, acc = (_type(problem, name) for name in ("q", "kv", "acc"))
    if q != kv:
        raise Unsupported(
            f"kernelmark has no lowering configs for an attention whose q is {q}"
            f" and whose kv is {kv}"
        )
    qk, pv = (heads, rows, d["seq_kv"], d["dim_qk"]), (heads, rows, d["dim_v"], d["seq_kv"])
    return (
        _contraction(qk, (q, kv, acc), tb=True, prefix="qk_"),
        _contraction(pv, (q, kv, acc), prefix="pv_"),
    )


def _contraction(
    sizes: tuple[int, int, int, int],
    types: tuple[str, str, str],
    *,
    ta: bool = False,
    tb: bool = False,
    prefix: str = "",
) -> Root:
    """Return the root op of a GEMM; `sizes` are batch (0: none), m, n and k."""
    batch, m, n, k = sizes
    lead = "b, " if batch else ""
    reads = (lead + ("k, i" if ta else "i, k"), lead + ("j, k" if tb else "k, j"), f"{lead}i, j")
    return Root(
        kind="contraction",
        types=dict(zip(("lhs_type", "rhs_type", "output_type"), types, strict=True)),
        loops=f"{lead}i, j, k",
        reads=reads,
        sizes={"batch": (batch,) if batch else (), "m": (m,), "n": (n,), "k": (k,)},
        prefix=prefix,
    )


def _conv_roots(problem: Problem) -> tuple[Root, ...]:
    """Return the root of an nhwc convolution. With a 1 × 1 filter IREE converts it to the GEMM of
    im2col, unless it has strides or padding."""
    d, layout = problem.dims, problem.options["layout"]
    if d["groups"] > 1:
        raise Unsupported("kernelmark has no lowering configs for grouped convolutions")
    if layout != "nhwc":
        raise Unsupported(
            f"kernelmark has no lowering configs for {problem.op} in the layout "
            f"{layout}, but for nhwc"
        )
    if d["r"] * d["s"] == 1:
        if output_size(problem) != (d["h"], d["w"]) or d["pad_h"] or d["pad_w"]:
            raise Unsupported(
                "kernelmark has no lowering configs for a 1 × 1 convolution with strides or padding"
            )
        return _im2col_roots(problem)
    return (_named_conv(problem),)


def _named_conv(problem: Problem) -> Root:
    """Return the named op of a convolution without groups."""
    d = problem.dims
    row = _tap("p", "r", d["stride_h"], d["dilation_h"])
    column = _tap("q", "s", d["stride_w"], d["dilation_w"])
    x, acc = _type(problem, "x"), _type(problem, "acc")
    if problem.options["layout"] == "nhwc":
        loops, reads = _NHWC_LOOPS, (f"n, {row}, {column}, c", "f, r, s, c", "n, p, q, f")
    else:
        loops, reads = _NCHW_LOOPS, (f"n, c, {row}, {column}", "f, c, r, s", "n, f, p, q")
    return Root(
        kind="convolution",
        types={"lhs_type": x, "rhs_type": x, "output_type": acc},
        loops=loops,
        reads=reads,
        sizes={
            "batch": (d["n"],),
            "image": output_size(problem),
            "channels": (d["k"],),
            "filter": (d["r"], d["s"]),
            "terms": (d["c"],),
        },
    )


def _tap(out: str, filter_loop: str, stride: int, dilation: int) -> str:
    def times(name: str, factor: int) -> str:
        return name if factor == 1 else f"{name} * {factor}"

    return f"{times(out, stride)} + {times(filter_loop, dilation)}"


def _attention_roots(problem: Problem) -> tuple[Root, ...]:
    """Return the attention op. Its loops: batch, rows (m), n, the dim of Q and K (c), and positions
    of K and V (d)."""
    d = problem.dims
    if problem.dtypes["acc"] != "f32":
        raise Unsupported(f"IREE's attention op sums in f32, not in {problem.dtypes['acc']}")
    batch, rows, q, kv = _attention_loops(problem)
    # IREE stores the booleans of a mask as bytes.
    mask = {"mask_type": "i8"} if problem.options["causal"] else {}
    sums = [*batch, *rows]
    reads = [[*q, "c"], [*kv, "c"], [*kv, "n"], [], *([[*rows, "d"]] * len(mask))]
    reads += [[*sums, "n"], sums, sums]
    key = _type(problem, "kv")
    types = {"query_type": _type(problem, "q"), "key_type": key, "value_type": key, **mask}
    wide = ("scale_type", "output_type", "max_type", "sum_type")
    return (
        Root(
            kind="attention",
            types=types | dict.fromkeys(wide, "f32"),
            loops=", ".join([*sums, "n", "c", "d"]),
            reads=tuple(map(", ".join, reads)),
            sizes={
                "batch": tuple(batch.values()),
                "m": tuple(rows.values()),
                "n": (d["dim_v"],),
                "k1": (d["dim_qk"],),
                "k2": (d["seq_kv"],),
            },
        ),
    )


def _attention_loops(
    problem: Problem,
) -> tuple[dict[str, int], dict[str, int], list[str], list[str]]:
    """Return the batch and row loops with their sizes, and the loops that index Q and K.

    IREE folds the transposes of bshd into the reads. If several heads of Q share one of K, it does
    not, and transposes Q first; but if K has a single head, Q's heads become a separate loop. A
    batch loop of one iteration is folded away."""
    d = problem.dims
    batch, heads, group = d["batch"], d["heads_kv"], d["heads_q"] // d["heads_kv"]
    lead = {"b": batch} if batch > 1 else {}
    rows = {"m": d["seq_q"] * group}
    if problem.options["layout"] == "bshd" and heads > 1:
        query = ["m", "h"] if group == 1 else ["h", "m"]
        return {**lead, "h": heads}, rows, [*lead, *query], [*lead, "d", "h"]
    if problem.options["layout"] == "bshd" and group > 1 and d["seq_q"] > 1:
        return lead, {"h": group, "m": d["seq_q"]}, [*lead, "m", "h"], [*lead, "d"]
    flat = {"b": batch * heads} if batch * heads > 1 else {}
    return flat, rows, [*flat, "m"], [*flat, "d"]


def _type(problem: Problem, name: str) -> str:
    return element_type(problem.dtypes[name]) or ""
