"""Map a config to compiler flags and a form of MLIR; define the space that can be tuned.

Config names: `data_tiling` packs the operands of GEMMs into tiles first, and `ukernels` computes
packed ones with IREE's microkernels; `im2col` writes a convolution as a GEMM of its patches,
`hwcf` as the convolution of nhwc images and hwcf filters;
`dynamic` lists the dims that are unknown to the compiler (`all`, or `m,n`), as in a model that is
compiled once for many sizes; `peel` and `reassociate` apply to the dispatches of a CPU attention
that no spec matches, mainly its softmax; the others are those of `lowering`, given all together.
They are applied by a tuning spec, which excludes data tiling and dynamic dims. On a CPU, all of
them 0 leave the tiles to the compiler: a spec then only marks operands to be packed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelmark import ops
from kernelmark.backends._rules import get_flag, refuse_unknown
from kernelmark.backends.iree import amd, lowering
from kernelmark.backends.iree.compiler import run_compiler
from kernelmark.backends.iree.spec import EMPTY, RootEntry, missing
from kernelmark.backends.iree.targets import Target
from kernelmark.core.dtype import dtype
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import Config, ConfigValue, Space
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.units import join_commas
from kernelmark.kernels import mlir
from kernelmark.kernels.mlir.base import FUNCTION, Form, argument_type, dynamic_dims, with_dynamic
from kernelmark.ops.conv import output_size

# Packing pays off if each packed element is used about this often: on a Neoverse N1, f32 GEMMs gain
# from about 100 rows and columns on (2 × at 512³) and lose below.
_REUSE = 96
# peel: vectors along a dim that they do not divide are followed by a loop over the rest, instead of
# scalar code for the whole dim (softmax over 200 elements on AVX-512: 5 times faster). reassociate:
# sums are vectorised, which changes their order (over 256 elements: 1.4 times faster).
_SOFTMAX = {
    "peel": "--iree-llvmcpu-vector-pproc-strategy=peel",
    "reassociate": "--iree-llvmcpu-reassociate-fp-reductions=true",
}
_UKERNELS = "--iree-llvmcpu-enable-ukernels=all"
DATA_TILING = "--iree-opt-data-tiling"
_SHORT_BYTES = 16  # of a NEON register
_GEMM_NAMES = ("tile_", "cache_", "vector_", "data_tiling")
_PACKED_OPS = ("gemm", "batched_gemm", "conv")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileChoice:
    """The compiler's input for one problem and config."""

    form: Form
    flags: tuple[str, ...]
    label: str
    entries: tuple[RootEntry, ...] = ()

    @property
    def spec(self) -> str:
        """Return the tuning spec to compile with; "" leaves everything to the compiler. The im2col
        form has no named convolution that could be rewritten."""
        plain = [dataclasses.replace(entry, rewrites=()) for entry in self.entries]
        return EMPTY.with_entries(plain).text if plain else ""


def choose(problem: Problem, config: Config, target: Target) -> CompileChoice:
    """Return the config's choice with defaults filled in; raise Unsupported for an impossible
    config."""
    form = form_of(problem, config, target)
    searched = _searched(problem, form)
    tunable = _lowerings(problem, searched, target, seeded=False)
    names = () if tunable is None else (*tunable.parameters, *tunable.opt_in)
    others = [
        name
        for other in ([] if target.gpu else _forms(problem, target))
        if other != searched
        for name in _names(problem, other, target)
        if name not in names
    ]
    refuse_unknown("iree", config, (*known_flags(problem, target), *names, *others))
    for name in others:
        if config.get(name):
            raise Unsupported(f"iree cannot use {name} in this form of a convolution: make it 0")
    chosen = FrozenDict({name: value for name, value in config.items() if name in names})
    left = bool(chosen) and not target.gpu and not any(chosen.values())
    tiles = FrozenDict() if left else chosen
    tiled = get_flag(
        "iree", config, "data_tiling", default=default_data_tiling(problem, target) and not tiles
    )
    ukernels = get_flag("iree", config, "ukernels", default=False)
    if tiles and tiled:
        raise Unsupported("iree cannot use tile sizes together with data_tiling")
    if ukernels and not tiled:
        raise Unsupported("iree has microkernels for packed operands only: add data_tiling=yes")
    if chosen and form.dynamic:
        raise Unsupported(
            "iree cannot use tile sizes together with dynamic dims: a tuning spec"
            " matches sizes that the compiler knows"
        )
    if tunable and chosen and (reason := _misfit(chosen, tunable, target, left=left)):
        raise Unsupported(reason)
    entries = lowering.entries(problem, form, target, tiles, packed=tiled) if chosen else ()
    more = [
        flag for name, flag in _SOFTMAX.items() if get_flag("iree", config, name, default=False)
    ]
    features = ["data-tiled"] * tiled + ["ukernels"] * ukernels
    features += ["im2col"] * form.im2col + ["hwcf"] * form.hwcf + ["by a spec"] * bool(tiles)
    features += [f"dynamic {','.join(form.dynamic)}"] * bool(form.dynamic)
    return CompileChoice(
        form=form,
        flags=(
            *(*target.flags, *_exactness(problem), f"{DATA_TILING}={str(tiled).lower()}"),
            *([_UKERNELS] * ukernels + more),
        ),
        label=" ".join([problem.op, target.name, *features]),
        entries=entries,
    )


def _misfit(tiles: Config, tunable: Space, target: Target, *, left: bool) -> Reason | None:
    """Return why `tiles` cannot be used, or None. With `left` the compiler chooses tiles, so the
    space's rule does not apply. A CPU also accepts sizes that the space does not list."""
    for name, values in {**tunable.parameters, **tunable.opt_in}.items():
        if name not in tiles and (name in amd.LATER or name in tunable.opt_in):
            continue
        if name not in tiles:
            return Reason(f"iree cannot use this lowering: {name} is missing")
        if target.gpu and tiles[name] not in values:
            return Reason(
                f"iree: {name} is one of {join_commas(map(str, values))}, not {tiles[name]}"
            )
    cause = None if left else tunable.forbids(tiles)
    return None if cause is None else Reason(f"iree cannot use this lowering: {cause}")


def source(problem: Problem, choice: CompileChoice) -> str:
    """Return the module to compile; for a GPU it also has the batch function."""
    problem = with_dynamic(problem, choice.form.dynamic)
    tensors = ops.registry.get(problem.op).tensors(problem)
    text = mlir.SOURCES[problem.op].text(problem, tensors, choice.form)
    return with_batch(text, tensors) if choice.form.gpu else text


def unapplied(
    problem: Problem, choice: CompileChoice, spec: str, flags: Sequence[str] | None = None
) -> list[RootEntry]:
    """Return the entries of a choice that no dispatch uses when the problem is compiled with
    `spec`. A spec for more than this problem has its own `flags`, and convolutions are then named
    ops."""
    if flags is not None:
        choice = dataclasses.replace(choice, form=_named(choice.form), flags=tuple(flags))
    flags = (*choice.flags, "--compile-to=executable-configurations")
    dump = run_compiler(source(problem, choice), flags, spec).decode(errors="replace")
    return missing(dump, choice.entries)


def model_source(problem: Problem, target: Target) -> str:
    """Return the module as a model has it: a convolution is the named op."""
    choice = choose(problem, FrozenDict(), target)
    return source(problem, dataclasses.replace(choice, form=_named(choice.form)))


def _named(form: Form) -> Form:
    return dataclasses.replace(form, im2col=False, hwcf=False)


def known_flags(problem: Problem, target: Target) -> tuple[str, ...]:
    """Return the config names other than those of a lowering."""
    always: tuple[str, ...] = ("data_tiling", "dynamic")
    if problem.op == "attention" and not target.gpu:
        return (*always, *_SOFTMAX)
    if problem.op in _PACKED_OPS and not target.gpu:
        always = (*always, "ukernels")
    if _has_columns(problem) and not target.gpu:
        always = (*always, "hwcf")
    return (*always, "im2col") if _has_columns(problem) else always


def codegen_flags(choice: CompileChoice, target: Target) -> tuple[str, ...]:
    """Return the flags of a choice that are needed to compile a module with its spec."""
    return tuple(flag for flag in choice.flags if flag not in target.flags)


def depends(problem: Problem, config: Config) -> dict[str, bool]:
    """Return the flags, other than the spec, that determine how a config of a CPU's space is
    compiled, by config name. The tiles of a spec are the same with and without microkernels."""
    names = ["ukernels"] if config.get("data_tiling") else []
    names += _SOFTMAX if problem.op == "attention" else []
    return {name: bool(config[name]) for name in names if name in config}


def form_of(problem: Problem, config: Config, target: Target) -> Form:
    """Return the MLIR form that a config requests, or the default."""
    default = _default_conv(problem, target, config)
    hwcf, im2col = (
        get_flag("iree", config, name, default=name == default and not config.get(other))
        for name, other in (("hwcf", "im2col"), ("im2col", "hwcf"))
    )
    if hwcf and im2col:
        raise Unsupported("iree cannot use im2col together with hwcf")
    form = Form(
        gpu=target.gpu,
        # On AMD GPUs as models have it, so that a spec matches their convolutions.
        named=target.driver == "hip",
        im2col=im2col,
        hwcf=hwcf and not target.gpu and _has_columns(problem),
        dynamic=_dynamic(problem, config),
    )
    tiled = any(value for name, value in config.items() if name.startswith("direct_"))
    return _searched(problem, form) if tiled else form


def _searched(problem: Problem, form: Form) -> Form:
    """Return the form of a convolution for a spec's tiles, which IREE drops for one image."""
    if not form.hwcf or problem.dims["n"] > 1:
        return form
    rows, _ = output_size(problem)
    bands = next((count for count in range(2, rows) if rows % count == 0), 1)
    return dataclasses.replace(form, bands=bands)


def _default_conv(problem: Problem, target: Target, config: Config) -> str:
    """Return the form of a convolution on a CPU: im2col, hwcf, or "" for the named op. Tiles of a
    GEMM, or packed operands, are those of im2col.

    On AVX-512 and one core, hwcf takes 0.8 ms where im2col takes 1.5 (1×28×28, 64 → 64 channels,
    3×3), and 0.09 instead of 0.34 (7×7, 3 → 32); single taps are a GEMM. On a Neoverse N1, im2col
    is as fast as the named op (1×1, nhwc) or 3 to 15 times faster; hwcf was not measured there."""
    if target.gpu or not _has_columns(problem):
        return ""
    if any(config.get(name) for name in config if name.startswith("direct_")):
        return "hwcf"
    gemm = any(config.get(name) for name in config if name.startswith(_GEMM_NAMES))
    wide = target.vector_bytes > _SHORT_BYTES
    return "hwcf" if wide and _has_hwcf(problem) and not gemm else "im2col"


def _dynamic(problem: Problem, config: Config) -> tuple[str, ...]:
    """Return the dims that a config makes unknown to the compiler, in the problem's order."""
    value = config.get("dynamic", False)
    if value is False:
        return ()
    dims = dynamic_dims(problem)
    text = "yes" if value is True else str(value)
    names = set(text.split(","))
    if names == {"all"}:
        return dims
    if not names <= {*dims}:
        raise Unsupported(
            f"dynamic={text} in the config: {problem.op} has no such dim in the"
            " shapes of its tensors; give all, or dims separated by commas, of "
            f"{', '.join(dims)}"
        )
    return tuple(name for name in dims if name in names)


def _has_columns(problem: Problem) -> bool:
    """Return whether im2col applies."""
    return problem.op == "conv" and problem.dims["groups"] == 1


def _has_hwcf(problem: Problem) -> bool:
    """Return whether a convolution has a hwcf form of which IREE folds away no loop."""
    d = problem.dims
    return _has_columns(problem) and 1 not in (*output_size(problem), *(d[n] for n in "kcrs"))


def _forms(problem: Problem, target: Target) -> list[Form]:
    """Return the forms whose lowerings can be searched, the default one first."""
    forms = [_searched(problem, form_of(problem, FrozenDict(), target))]
    if not target.gpu and _has_hwcf(problem):
        other = "hwcf" if forms[0].im2col else "im2col"
        forms.append(_searched(problem, form_of(problem, FrozenDict({other: True}), target)))
    return forms


def _names(problem: Problem, form: Form, target: Target) -> tuple[str, ...]:
    lowerings = _lowerings(problem, form, target, seeded=False)
    return () if lowerings is None else tuple(lowerings.parameters)


def default_data_tiling(problem: Problem, target: Target) -> bool:
    """Return whether packing pays off: measured for accumulators as wide as the inputs and for
    integers."""
    if target.gpu or problem.op not in _PACKED_OPS:
        return False
    inputs = problem.dtypes["x" if problem.op == "conv" else "a"]
    if dtype(inputs).kind == "int":
        return True
    if inputs not in ("f32", "f16") or problem.dtypes["acc"] != inputs:
        return False
    return min(_rows_and_columns(problem)) >= _REUSE


def _rows_and_columns(problem: Problem) -> tuple[int, int]:
    d = problem.dims
    if problem.op == "conv":
        return d["n"] * math.prod(output_size(problem)), d["k"] // d["groups"]
    return d["m"], d["n"]


def _exactness(problem: Problem) -> tuple[str, ...]:
    """Return the flags without which IREE would compute in another type than the problem
    specifies."""
    flags = ["--iree-input-demote-f64-to-f32=false"]
    if problem.dtypes.get("acc") == "f16":
        flags.append("--iree-llvmcpu-skip-intermediate-roundings=false")
    return tuple(flags)


def space(problem: Problem, target: Target) -> Space | None:
    """Return the lowering configs of the problem; None if there are none."""
    forms = _forms(problem, target)
    found = [(form, _lowerings(problem, form, target)) for form in forms]
    spaces = [(form, lowerings) for form, lowerings in found if lowerings is not None]
    if not spaces:
        return None
    if not target.gpu and problem.op in _PACKED_OPS:
        return _with_packing(spaces, target, conv=_has_columns(problem))
    ((_, lowerings),) = spaces
    # Most flags have a single value, so that a reference can be IREE's own default.
    values: dict[str, tuple[ConfigValue, ...]] = {"data_tiling": (False,)}
    if not target.gpu and problem.op == "attention":
        values |= dict.fromkeys(_SOFTMAX, (True, False))
    first = {name: options[0] for name, options in values.items()}
    return dataclasses.replace(
        lowerings,
        parameters={**lowerings.parameters, **values},
        default=FrozenDict({**lowerings.default, **first} if lowerings.default else {}),
        seeds=tuple(FrozenDict({**seed, **first}) for seed in lowerings.seeds),
    )


def _with_packing(spaces: Sequence[tuple[Form, Space]], target: Target, *, conv: bool) -> Space:
    """Return the spaces of all forms as one, with points that leave the tiles to the compiler: one
    packs the operands, for the microkernels. Both flags are always set together: they apply to a
    whole module, so the winners of its ops have to agree on them. For a convolution, each form
    alone is another point. Sizes of another form are 0."""
    sizes = {name: tiles.parameters[name] for _, tiles in spaces for name in tiles.parameters}
    zeros = dict.fromkeys(sizes, 0)
    flags: dict[str, tuple[ConfigValue, ...]] = dict.fromkeys(
        ("data_tiling", "ukernels", *(("im2col", "hwcf") if conv else ())), (False, True)
    )

    def chosen(form: Form, *, packed: bool = False) -> dict[str, ConfigValue]:
        made = {"im2col": form.im2col, "hwcf": form.hwcf} if conv else {}
        return {**zeros, "data_tiling": packed, "ukernels": packed, **made}

    def left(form: Form) -> list[FrozenDict[ConfigValue]]:
        points = [] if form.hwcf else [FrozenDict(chosen(form, packed=True))]
        return [*points, *([FrozenDict(chosen(form))] if conv else [])]

    def of_form(config: Config) -> tuple[Form, Space] | None:
        return next(
            (
                (form, tiles)
                for form, tiles in spaces
                if not conv
                or (bool(config.get("im2col")), bool(config.get("hwcf")))
                == (form.im2col, form.hwcf)
            ),
            None,
        )

    def forbids(config: Config) -> str | None:
        packed = bool(config.get("data_tiling"))
        if packed != bool(config.get("ukernels")):
            return "data_tiling and ukernels go together"
        found = of_form(config)
        if found is None:
            return "a convolution is tuned as im2col or as hwcf"
        form, tiles = found
        if any(config.get(name) for name in sizes if name not in tiles.parameters):
            return "sizes of another form are 0"
        if not packed and config.get(next(iter(tiles.parameters))):
            return tiles.forbids(config)
        if any(config.get(name) for name in tiles.parameters):
            return "tile sizes are given all together, or all are 0"
        if packed and form.hwcf:
            return "IREE packs the operands of GEMMs only"
        return None if packed or conv else "nothing is chosen"

    # On a Neoverse N1 the microkernels beat every tile for most GEMMs from 100³ on (256³ with B
    # along k: 1.04 ms, tiles 1.25, default 1.33). On AVX-512 tiles are faster, except for many
    # GEMMs with B along k (200³: 0.21 ms, tiles 0.25).
    short = target.vector_bytes <= _SHORT_BYTES
    seeds: list[Config] = []
    parts: list[Mapping[str, tuple[ConfigValue, ...]]] = []
    for form, tiles in spaces:
        every = [tiles.default, *tiles.seeds] if tiles.default else []
        own: list[Config] = [FrozenDict({**chosen(form), **seed}) for seed in every]
        position = 1 if short and not form.hwcf else len(own)
        seeds += [*own[:position], *left(form), *own[position:]]
        parts.append(
            {name: (value,) for name, value in chosen(form).items()} | {**tiles.parameters}
        )
        parts += [{name: (value,) for name, value in point.items()} for point in left(form)]
    return Space(
        parameters={
            **{name: (*values, *((0,) * (0 not in values))) for name, values in sizes.items()},
            **flags,
        },
        default=seeds[0],
        forbids=forbids,
        seeds=tuple(seeds[1:]),
        parts=tuple(parts),
    )


def _lowerings(
    problem: Problem, form: Form, target: Target, *, seeded: bool = True
) -> Space | None:
    try:
        return lowering.space(problem, form, target, seeded=seeded)
    except Unsupported:
        return None


def untunable(problem: Problem, target: Target) -> Reason:
    """Return why no lowering config can be tried for a problem; empty if one can."""
    reasons = []
    for form in _forms(problem, target):
        try:
            lowerings = lowering.space(problem, form, target)
        except Unsupported as error:
            reasons.append(error.message)
            continue
        # The default is legal, and found faster than the first of all combinations.
        if lowerings.default or next(iter(lowerings), None) is not None:
            return NO_REASON
        causes = Counter(
            lowerings.forbids(dict(zip(lowerings.parameters, values, strict=True)))
            for values in itertools.product(*lowerings.parameters.values())
        )
        ((cause, _),) = causes.most_common(1)
        reasons.append(Reason(f"every combination of tiles is ruled out; most often, {cause}"))
    return reasons[0]


BATCH_FUNCTION = "many"
BATCH = 16


def with_batch(source: str, tensors: Sequence[TensorSpec]) -> str:
    """Return `source` with a function that takes the tensors of `BATCH` sets, one set after the
    other.

    Outputs are tied to their arguments, as in the op's own function."""
    types = [argument_type(spec) for spec in tensors]
    arguments, calls, results = [], [], []
    for index in range(BATCH):
        names = [f"%{spec.name}_{index}" for spec in tensors]
        arguments += [f"{name}: {kind}" for name, kind in zip(names, types, strict=True)]
        arguments[-1] += f" {{iree.abi.output = {index} : index}}"
        results.append(f"%result_{index}")
        calls.append(
            f"    {results[-1]} = func.call @{FUNCTION}({', '.join(names)})"
            f" : ({', '.join(types)}) -> {types[-1]}"
        )
    outputs = ", ".join([types[-1]] * BATCH)
    head = f"  func.func @{BATCH_FUNCTION}({', '.join(arguments)}) -> ({outputs}) {{"
    last = f"    return {', '.join(results)} : {outputs}"
    module, _, _ = source.rstrip().rpartition("}")
    return "\n".join([module.rstrip("\n"), head, *calls, last, "  }", "}", ""])
