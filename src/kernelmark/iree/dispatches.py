"""The dispatches of a model: their time in a call, and the problems that they compute."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmark import ops
from kernelmark.backends.iree.compiler import ToolRound
from kernelmark.backends.iree.runtime import absent
from kernelmark.backends.iree.targets import Target
from kernelmark.core.errors import KernelmarkError, Unsupported, UsageError, located
from kernelmark.core.files import write_whole
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason, prefixed
from kernelmark.core.units import join_and
from kernelmark.iree.modules import (
    ModuleCall,
    Variant,
    allocator_options,
    build_variant,
    check_least,
    check_module,
    check_timeout,
    lower_module,
    make_inputs,
    parameter_options,
    resolve_target,
)
from kernelmark.iree.reference import parse_map
from kernelmark.iree.signature import read_signature
from kernelmark.kernels.mlir.base import DTYPE_OF
from kernelmark.workloads.workload import Call, Workload, write

Sizes = Mapping[int, int]
_ATTENTION = ("iree_linalg_ext.attention", "iree_linalg_ext.online_attention")
# Ops that are computed with a contraction, or cost nothing.
_NO_COST = ("linalg.fill", "linalg.yield", "linalg.index")
# Before and after the choice of a config.
_STORES = ("iree_tensor_ext.dispatch.tensor.store", "iree_codegen.store_to_buffer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The problem that a dispatch computes, or `why` there is none. `lost` names what the problem
    leaves out: fused (elementwise ops around it), layout (another order of the operands)."""

    problem: Problem | None = None
    lost: tuple[str, ...] = ()
    why: Reason = NO_REASON


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchCost:
    """A dispatch with the seconds of all its calls in one call of the function."""

    name: str
    seconds: float
    calls: int
    fraction: float
    computed: Computed
    resources: Mapping[str, int] = field(default_factory=FrozenDict)


def rank_dispatches(
    module: Path,
    *,
    target: str = "cpu",
    function: str = "",
    flags: Sequence[str] = (),
    inputs: Sequence[str] = (),
    rounds: int = 3,
    timeout_s: float = 300.0,
    threads: int = 0,
    parameters: Sequence[str] = (),
    device_allocator: str = "",
    benchmarks: Path | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> tuple[DispatchCost, ...]:
    """Measure each dispatch inside the model and return them, most expensive first. With
    `benchmarks`, write a benchmark of each into this folder."""
    check_module(module)
    check_least("--rounds", rounds, 1)
    check_timeout(timeout_s)
    options = (*parameter_options(module, parameters), *allocator_options(device_allocator))
    goal = _present_target(target)
    with tempfile.TemporaryDirectory(prefix="kmark-iree-") as temporary:
        folder = Path(temporary)
        on_step("compile")
        dumped = folder / "benchmarks"
        dump = () if benchmarks is None else (f"{_DUMP}={dumped}",)
        built = build_variant(module, Variant(name="model", flags=(*flags, *dump)), goal, folder)
        if benchmarks is not None:
            _save_benchmarks(dumped, benchmarks)
        name, signature = read_signature(
            built.binary, function, lambda: lower_module(module, flags)
        )
        call = ModuleCall(
            function=name,
            inputs=make_inputs(signature, inputs),
            target=goal,
            folder=folder,
            timeout_s=timeout_s,
            threads=threads,
            options=options,
        )
        timed: list[ToolRound] = []
        for number in range(rounds):
            on_step(f"round {number + 1} of {rounds}")
            expected_s = statistics.median(timed[-1].samples_s) if timed else 0.0
            timed.append(call.times(built.binary, expected_s))
    if not timed[0].dispatches:
        raise UsageError(f"iree reports no times of dispatches on {goal.name}")
    computed = dict(what for text in built.sources.values() for what in computed_by(text))
    used = {dispatch.name: dispatch.resources for dispatch in built.dispatches}
    return _ranked(
        DispatchCost(
            name=kernel,
            seconds=statistics.median(item.dispatches[kernel].seconds for item in timed),
            calls=max(1, round(timed[0].dispatches[kernel].calls)),
            fraction=0.0,
            computed=computed.get(kernel, Computed(why=Reason("its source was not dumped"))),
            resources=used.get(kernel, FrozenDict()),
        )
        for kernel in timed[0].dispatches
        if all(kernel in item.dispatches for item in timed)
    )


def _present_target(name: str) -> Target:
    """Return a target whose device is present. Raise UsageError if it is not."""
    goal = resolve_target(name)
    if goal.gpu and (reason := absent(goal.driver)):
        raise UsageError(
            f"{goal.name} cannot be used: {reason}",
            hint="rank them on the CPU with --target cpu, or compile them with "
            "kmark iree ab MODULE --variant base: --target …",
        )
    return goal


def _ranked(costs: Iterable[DispatchCost]) -> tuple[DispatchCost, ...]:
    """Return dispatches by time, with their fractions of the sum."""
    ranked = sorted(costs, key=lambda cost: -cost.seconds)
    total = sum(cost.seconds for cost in ranked)  # not the median of the sums: they add to 1
    return tuple(
        dataclasses.replace(cost, fraction=cost.seconds / total if total else 0.0)
        for cost in ranked
    )


def _benchmark_text(file: Path) -> str:
    from iree.compiler import ir

    try:
        return _without_configs(file.read_text(encoding="utf-8"))
    except (ir.MLIRError, UnicodeDecodeError) as error:
        # MLIR's first line is a heading.
        raise UsageError(f"it cannot be parsed: {str(error).splitlines()[:2][-1]}") from None


_DUMP = "--iree-hal-dump-executable-benchmarks-to"
_EXPORT = re.compile(r"hal\.executable\.export public @([\w.$-]+)")


def _save_benchmarks(dumped: Path, folder: Path) -> None:
    """Write the compiler's benchmarks of single dispatches as DIR/DISPATCH.mlir."""
    make_folder(folder)
    for path in sorted(dumped.glob("*.mlir")):
        text = path.read_text(encoding="utf-8")
        name = _EXPORT.search(text)
        write_whole(
            folder / f"{name[1] if name else path.stem}.mlir", _without_configs(text).encode()
        )


def _without_configs(text: str) -> str:
    """Return a benchmark without the configs that the compiler chose before it dumped it. It would
    take half of them over (IREE 3.13 then refuses convolutions), and no tuning spec could change
    them; it chooses the same ones again."""
    from iree.compiler import ir

    with ir.Context():
        module = ir.Module.parse(text)

        def visit(op: Any) -> Any:
            for name in ("translation_info", "lowering_config"):
                if name in op.operation.attributes:
                    del op.operation.attributes[name]
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        return str(module)


def rank_benchmarks(
    folder: Path,
    *,
    target: str = "cpu",
    flags: Sequence[str] = (),
    rounds: int = 3,
    timeout_s: float = 300.0,
    threads: int = 0,
    on_step: Callable[[str], None] = lambda step: None,
) -> tuple[DispatchCost, ...]:
    """Measure the benchmarks of single dispatches in a folder, as iree-compile dumps them. Each
    counts as one call: they do not have how often a model calls them."""
    check_least("--rounds", rounds, 1)
    check_timeout(timeout_s)
    goal = _present_target(target)
    files = sorted(folder.glob("*.mlir"))
    if not files:
        raise UsageError(f"there is no .mlir file in {folder}")
    costs = []
    with tempfile.TemporaryDirectory(prefix="kmark-iree-") as temporary:
        for number, file in enumerate(files):
            on_step(f"{number + 1} of {len(files)}: {file.name}")
            variant = Variant(name=f"dispatch{number}", flags=tuple(flags))
            with located(file.name):
                source = _benchmark_text(file)
                copy = Path(temporary, f"{variant.name}.mlir")
                copy.write_text(source, encoding="utf-8")
                built = build_variant(copy, variant, goal, Path(temporary))
            call = ModuleCall(
                function="",
                inputs=(),
                target=goal,
                folder=Path(temporary),
                timeout_s=timeout_s,
                threads=threads,
            )
            timed = [call.times(built.binary) for _ in range(rounds)]
            for name, computed in computed_by(source):
                seconds = [
                    item.dispatches[name].seconds / max(1.0, item.dispatches[name].calls)
                    if name in item.dispatches
                    else statistics.median(item.samples_s)
                    for item in timed
                ]
                costs.append(
                    DispatchCost(
                        name=name,
                        seconds=statistics.median(seconds),
                        calls=1,
                        fraction=0.0,
                        computed=computed,
                    )
                )
    return _ranked(costs)


def workload_of(costs: Iterable[DispatchCost], name: str) -> Workload:
    """Return the problems of the dispatches with their counts, most frequent first."""
    calls: dict[tuple[str, tuple[str, ...]], Call] = {}
    for cost in costs:
        problem, lost = cost.computed.problem, cost.computed.lost
        if problem is None:
            continue
        before = calls.get((problem.key, lost))
        calls[problem.key, lost] = Call(
            problem=problem,
            count=cost.calls + (before.count if before else 0),
            lost=lost,
            sources=(*(before.sources if before else ()), cost.name),
        )
    return Workload(name=name, calls=tuple(sorted(calls.values(), key=lambda call: -call.count)))


def make_folder(folder: Path) -> None:
    """Make a folder. Raise UsageError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}") from None


def save_workload(workload: Workload, folder: Path, module: Path) -> None:
    """Write DIR/workload.csv, as in a tuning folder, and DIR/suite.toml with the same problems."""
    make_folder(folder)
    write(folder / "workload.csv", workload)
    lines = [
        f'why = "The dispatches of {module.name} that are problems of an op."',
        'source = "IREE"',
    ]
    for key in dict.fromkeys(call.problem.key for call in workload.calls):
        problem = ops.parse(key)
        parameters = {**problem.dims, **problem.dtypes, **problem.options}
        lines += ["", "[[problems]]", f'op = "{problem.op}"']
        lines += [f"{name} = {json.dumps(value)}" for name, value in parameters.items()]
    write_whole(folder / "suite.toml", ("\n".join(lines) + "\n").encode())


def computed_by(text: str) -> list[tuple[str, Computed]]:
    """Return each function in a dispatch's source with the problem that it computes."""
    from iree.compiler import ir

    with ir.Context():
        module = ir.Module.parse(text)
        functions: list[Any] = []

        def visit(op: Any) -> Any:
            if op.operation.name == "func.func":
                functions.append(op.operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        return [
            (ir.StringAttr(function.attributes["sym_name"]).value, _classify(function))
            for function in functions
        ]


def _classify(function: Any) -> Computed:
    from iree.compiler import ir
    from iree.compiler.dialects import linalg

    roots: list[tuple[Callable[[Any], Computed], Any]] = []
    fused, stored = [], []

    def visit(op: Any) -> Any:
        op = op.operation
        if op.name in _ATTENTION:
            roots.append((_attention, op))
        elif op.name.startswith("linalg.") and op.name not in _NO_COST:
            if linalg.isa_contraction_op(op):
                roots.append((_contraction, op))
            elif linalg.isa_convolution_op(op):
                roots.append((_convolution, op))
            elif not _only_casts(op):
                fused.append(op)
        elif op.name in _STORES:
            stored.append(_element(op.operands[0]))
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    if len(roots) != 1:
        return Computed(
            why=Reason("several contractions")
            if roots
            else Reason("no contraction, convolution or attention")
        )
    read, op = roots[0]
    try:
        contraction = read(op)
    except (KernelmarkError, KeyError, ValueError) as error:
        cause = getattr(error, "message", str(error))
        return Computed(why=prefixed(cause, f"{op.name}: "))
    if contraction.problem is None:
        return contraction
    problem = contraction.problem
    lost = (*contraction.lost, "fused") if fused else contraction.lost
    # A rounding of the result is part of the problem, by its output's dtype.
    output = {"conv": "y", "attention": "o"}.get(problem.op, "c")
    if (
        len(stored) == 1
        and stored[0] in DTYPE_OF
        and problem.dtypes.get(output) != DTYPE_OF[stored[0]]
    ):
        try:
            dtypes = dict(problem.dtypes) | {output: DTYPE_OF[stored[0]]}
            parameters = {**problem.dims, **dtypes, **problem.options}
            problem = ops.registry.get(problem.op).problem(**parameters)
        except KernelmarkError:
            lost = (*lost, "rounding")
    return Computed(problem=problem, lost=tuple(dict.fromkeys(lost)))


def _only_casts(op: Any) -> bool:
    """Return whether an elementwise op only converts its operand."""
    if op.name != "linalg.generic":
        return False
    names = [inner.operation.name for inner in op.regions[0].blocks[0]]
    return set(names) <= {"arith.extf", "arith.truncf", "arith.extsi", "linalg.yield"}


def _maps(op: Any) -> list[list[int | None]]:
    """Return, for each operand, the loop of each dim; None where a dim is a sum of loops."""
    from iree.compiler.dialects import linalg

    named = op.name.startswith("linalg.")
    maps = linalg.get_indexing_maps(op) if named else op.attributes["indexing_maps"]
    return [parse_map(str(item)) for item in maps]


def _shape(value: Any) -> list[int]:
    from iree.compiler import ir

    kind = ir.ShapedType(value.type)
    if not kind.has_static_shape:
        raise Unsupported("it has dynamic dims")
    return list(kind.shape)


def _element(value: Any) -> str:
    from iree.compiler import ir

    return str(ir.ShapedType(value.type).element_type)


def _dtype(value: Any) -> str:
    return DTYPE_OF[_element(value)]


def _sizes(op: Any, maps: Sequence[Sequence[int | None]]) -> Sizes:
    """Return the extent of every loop that is a dim of an operand."""
    return {
        loop: size
        for value, dims in zip(op.operands, maps, strict=False)
        if dims
        for loop, size in zip(dims, _shape(value), strict=True)
        if loop is not None
    }


def _contraction(op: Any) -> Computed:
    from iree.compiler.dialects import linalg

    dims = linalg.infer_contraction_dimensions(op)
    maps = _maps(op)
    sizes = _sizes(op, maps)
    batch, m, n, k = ({int(d) for d in part} for part in (dims.batch, dims.m, dims.n, dims.k))
    left, right, out = maps[:3]
    a, b = op.operands[0], op.operands[1]
    rows = [d for d in out if d in m or d in n]
    if rows and rows[0] in n and m:  # a transposed result is the GEMM of swapped operands
        a, b, left, right, m, n = b, a, right, left, n, m
    lost = [] if all(d in batch for d in out[: len(batch)]) else ["layout"]

    def transposed(dims: Sequence[int | None], first: set[int], second: set[int]) -> str:
        order = ["fs"[d in second] for d in dims if d not in batch]
        if order in (sorted(order), sorted(order, reverse=True)):
            return "n" if order == sorted(order) else "t"
        lost.append("layout")
        return "n"

    count = {
        name: math.prod(sizes[d] for d in part) for name, part in (("m", m), ("n", n), ("k", k))
    }
    parameters: dict[str, Any] = {
        **count,
        "a": _dtype(a),
        "b": _dtype(b),
        "acc": _dtype(op.operands[2]),
        "c": _dtype(op.operands[2]),
        "ta": transposed(left, m, k),
        "tb": transposed(right, k, n),
    }
    name = "batched_gemm" if batch else "gemm"
    if batch:
        parameters["batch"] = math.prod(sizes[d] for d in batch)
    return Computed(problem=ops.registry.get(name).problem(**parameters), lost=tuple(lost))


def _convolution(op: Any) -> Computed:
    from iree.compiler.dialects import linalg

    dims = linalg.infer_convolution_dimensions(op)
    if dims is None or len(dims.filter_loop) != 2 or len(dims.output_image) != 2:
        return Computed(why=Reason("a convolution that is not 2-D"))
    maps = _maps(op)
    sizes = _sizes(op, maps)

    def total(loops: Iterable[Any]) -> int:
        return math.prod(sizes[int(d)] for d in loops)

    x, w = op.operands[0], op.operands[1]
    height, width = (size for size, d in zip(_shape(x), maps[0], strict=True) if d is None)
    channels = [int(d) for d in (*dims.input_channel, *dims.depth)]
    nhwc = maps[0][-1] in channels
    groups = total(dims.depth)
    taps = [int(d) for d in dims.filter_loop]
    outputs = {int(d) for d in (*dims.output_channel, *dims.depth)}
    order = dict.fromkeys("k" if d in outputs else "r" if d in taps else "c" for d in maps[1])
    ours = ("krc", "kr") if nhwc else ("kcr", "kr")  # without c: depthwise
    lost = () if "".join(order) in ours else ("layout",)
    problem = ops.registry.get("conv").problem(
        n=total(dims.batch),
        c=total(dims.input_channel) * groups,
        h=height,
        w=width,
        k=total(dims.output_channel) * groups,
        **dict(zip("rs", (sizes[d] for d in taps), strict=True)),
        **{f"stride_{at}": int(s) for at, s in zip("hw", dims.strides, strict=True)},
        **{f"dilation_{at}": int(s) for at, s in zip("hw", dims.dilations, strict=True)},
        groups=groups,
        x=_dtype(x),
        y=_dtype(op.operands[2]),
        acc=_dtype(op.operands[2]),
        layout="nhwc" if nhwc else "nchw",
    )
    if _dtype(x) != _dtype(w):
        return Computed(
            lost=lost, why=Reason(f"a convolution of {join_and((_dtype(x), _dtype(w)))}")
        )
    return Computed(problem=problem, lost=lost)


def _attention(op: Any) -> Computed:
    maps = _maps(op)
    sizes = _sizes(op, maps)
    q, k, v = ({d for d in item if d is not None} for item in maps[:3])

    def total(loops: Iterable[int]) -> int:
        return math.prod(sizes[d] for d in loops)

    problem = ops.registry.get("attention").problem(
        heads=total(q & k & v),
        seq_q=total(q - k),
        seq_kv=total((k & v) - q),
        dim_qk=total((q & k) - v),
        dim_v=total(v - k),
        q=_dtype(op.operands[0]),
        kv=_dtype(op.operands[1]),
    )
    # The scale is a runtime value and a mask an operand: both change the result, not the shape of
    # the computation.
    unmasked = 7 if op.name.endswith("online_attention") else 5  # it has three outputs
    masked = ("mask",) if len(maps) > unmasked else ()
    return Computed(problem=problem, lost=("scale", *masked))
