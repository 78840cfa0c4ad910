"""Comparison of variants of one module: numerics first, element by element, then times in
interleaved rounds.

Candidates are screened: all of them in a few rounds, then the fastest in new rounds with the other
variants. Only these rounds give verdicts: the screening chose its fastest times.

Each variant runs once in its own process for its outputs, which are compared with those of the
first variant and with the module in float64, or in float32 where that is impossible. The variants
that ran are timed in rounds: a round starts one process per variant, in an order that is random in
the first of two rounds and reversed in the second, so that a drift of the machine affects all
variants alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernelmark.backends.iree.compiler import DispatchTime, ToolRound, config_text
from kernelmark.backends.iree.runtime import absent
from kernelmark.core.dtype import DTYPES, dtype
from kernelmark.core.errors import CaseError, CompileError, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.result import Block, KernelInfo, ResultSet, Status
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.iree.modules import (
    BuiltModule,
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
    plain_variant,
    resolve_target,
    same_but_specs,
    specs_applied,
)
from kernelmark.iree.reference import with_floats
from kernelmark.iree.signature import Signature, TensorType, read_signature
from kernelmark.runners.capture import environment
from kernelmark.runners.targets import find
from kernelmark.stats.interval import measured_interval
from kernelmark.stats.paired import Paired, paired_verdict
from kernelmark.workloads.importers import Overrides, ResultFile, ResultRow, build_run, problem_of

# Upper bounds of the histogram's bins in units in the last place; one more bin holds the rest. A
# correctly rounded result is within half a unit, a faithfully rounded one within one.
ULP_BOUNDS = (0.5, 1.0, 2.0, 4.0, 16.0, 256.0)
# Kernels differ in the order of their sums. Dot products of 11,520 uniform terms (the longest of
# SDXL's convolutions), added one by one in f32, were at most 4.3e-6 from float64; rounding them to
# f16 adds 3e-4. Sums of 576 terms in f16 instead of f32 are off by over 4e-3 in 3 % of elements.
TOLERANCES = {"f64": 1e-10, "f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}
_SMALL_FLOAT_TOLERANCE = 0.25  # for 8-bit floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Differences between values and a reference of equal shape.

    An element is bad where |value - reference| > tolerance · (|reference| + rms(reference)): sums
    that cancel have the absolute error of their terms, so that no relative bound holds for them.
    """

    count: int
    tolerance: float
    max_abs: float
    max_rel: float
    bad: int
    first_bad: tuple[int, ...] | None
    ulps: tuple[int, ...]

    @property
    def fraction_bad(self) -> float:
        return self.bad / self.count if self.count else 0.0

    @property
    def passed(self) -> bool:
        return self.bad == 0


def default_tolerance(dtype_name: str) -> float:
    """Return the tolerance for outputs of a dtype: 0 for integers."""
    if dtype(dtype_name).kind == "int":
        return 0.0
    return TOLERANCES.get(dtype_name, _SMALL_FLOAT_TOLERANCE)


def measure_divergence(
    values: NDArray[np.float64],
    reference: NDArray[np.float64],
    dtype_name: str,
    tolerance: float | None = None,
) -> Divergence:
    """Compare values that were stored as `dtype_name` with a reference, both exact in float64."""
    if values.shape != reference.shape:
        raise ValueError(f"shapes differ: {values.shape} and {reference.shape}")
    allowed = default_tolerance(dtype_name) if tolerance is None else tolerance
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = _absolute_error(values, reference)
        bad = error > allowed * (np.abs(reference) + _rms(reference))
        relative = np.where(error > 0, error / np.abs(reference), 0.0)
        ulps = np.where(error > 0, error / _ulp(reference, dtype_name), 0.0)
    first = np.argmax(bad) if bad.any() else None
    return Divergence(
        count=values.size,
        tolerance=allowed,
        max_abs=float(error.max(initial=0.0)),
        max_rel=float(relative.max(initial=0.0)),
        bad=int(bad.sum()),
        first_bad=None
        if first is None
        else tuple(int(i) for i in np.unravel_index(int(first), bad.shape)),
        ulps=_histogram(ulps),
    )


def _absolute_error(
    values: NDArray[np.float64], reference: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return |values - reference|. Equal infinities agree, and so do two NaNs; a number agrees with
    neither."""
    error = np.abs(values - reference)
    agree = (values == reference) | (np.isnan(values) & np.isnan(reference))
    return np.where(agree, 0.0, np.where(np.isnan(error), np.inf, error))


def _rms(reference: NDArray[np.float64]) -> float:
    finite = np.isfinite(reference)
    return float(np.sqrt(np.mean(np.square(reference[finite])))) if finite.any() else 0.0


def relative_error(values: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """Return the largest error relative to |reference| + rms(reference): the least tolerance that
    no element exceeds."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = _absolute_error(values, reference)
        scale = np.abs(reference) + _rms(reference)
        relative = np.where(error > 0, error / scale, 0.0)
    return float(relative.max(initial=0.0))


def _histogram(ulps: NDArray[np.float64]) -> tuple[int, ...]:
    bins = np.searchsorted(ULP_BOUNDS, ulps.ravel(), side="left")
    return tuple(int(n) for n in np.bincount(bins, minlength=len(ULP_BOUNDS) + 1))


def _ulp(reference: NDArray[np.float64], dtype_name: str) -> NDArray[np.float64]:
    """Return the spacing of a dtype's numbers at each reference value."""
    kind = dtype(dtype_name)
    if kind.kind == "int":
        return np.ones_like(reference)
    _, exponent = np.frexp(np.where(np.isfinite(reference), reference, 1.0))
    exponent = np.maximum(exponent - 1, kind.min_exponent)
    return np.asarray(np.ldexp(1.0, exponent - (kind.digits - 1)), np.float64)


Outputs = tuple[NDArray[np.float64], ...]
OnStep = Callable[[str], None]
# Fewer rounds give no interval.
_LEAST_ROUNDS = 2
# Two compilations of a float32 reference, which differ in the order of their sums: the difference
# of their outputs is the error of the reference. It cannot show what is wrong in both.
_ORDERS = ((), ("--iree-opt-data-tiling=false", "--iree-llvmcpu-reassociate-fp-reductions=true"))


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantPlan:
    """The variants to compare, and how. Of the candidates among them, `finalists` are measured in
    full. `tolerance` None means the default of each output's dtype;
    empty `inputs` mean random ones. `parameters` are files, as `SCOPE=FILE` or `FILE`."""

    module: Path
    variants: tuple[Variant, ...]
    target: str = "cpu"
    function: str = ""
    inputs: tuple[str, ...] = ()
    tolerance: float | None = None
    reference: bool = True
    run: bool = True
    rounds: int = 10
    finalists: int = 3
    budget_s: float = 120.0
    timeout_s: float = 300.0
    threads: int = 0
    parameters: tuple[str, ...] = ()
    device_allocator: str = ""
    seed: int = 1

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        if not names:
            raise UsageError("--variant is missing", hint="for example: --variant base:")
        if twice := [name for at, name in enumerate(names) if name in names[:at]]:
            raise UsageError(f"variant {twice[0]!r} is given twice")
        check_least("--rounds", self.rounds, _LEAST_ROUNDS)
        check_least("--finalists", self.finalists, 1)
        check_least("--tolerance", self.tolerance or 0.0, 0)
        check_least("--budget", self.budget_s, 0)
        check_timeout(self.timeout_s)
        check_module(self.module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds by round, one block per process."""

    blocks: tuple[Block, ...]
    median_s: float
    low_s: float
    high_s: float
    # Over all samples; `cv` is the standard deviation over the mean.
    mean_s: float
    stddev_s: float
    cv: float
    cpu_s: float | None = None  # median CPU time of all threads; None if not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantOutcome:
    """The result of a variant. `end_to_end` is the time of a call of the function as its caller
    sees it; `kernels` is the sum over its dispatches, measured inside the same call. There is one
    divergence per output; `against_first` is empty for the first variant, `against_reference`
    without a reference."""

    variant: Variant
    status: Status
    error: str = ""
    built: BuiltModule | None = None
    specs_applied: bool | None = None
    end_to_end: Times | None = None
    kernels: Times | None = None
    dispatch_s: Mapping[str, DispatchTime] = field(default_factory=FrozenDict)
    against_first: tuple[Divergence, ...] = ()
    against_reference: tuple[Divergence, ...] = ()
    end_to_end_verdict: Paired | None = None
    kernels_verdict: Paired | None = None

    @property
    def failed(self) -> bool:
        bad = self.status is not Status.OK or self.specs_applied is False
        return bad and not self.variant.candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All variants; the first is the base. `not_run` and `no_reference` are reasons, or empty.

    `reference` is float64, float32 where `no_reference` has the reason, or empty. A float32
    reference has an error, relative to |reference| + rms(reference) as a tolerance is."""

    plan: VariantPlan
    target: str
    driver: str
    function: str
    module_sha256: str
    outcomes: tuple[VariantOutcome, ...]
    not_run: str = ""
    no_reference: str = ""
    reference: str = ""
    reference_error: float | None = None

    @property
    def failed(self) -> bool:
        return any(outcome.failed for outcome in self.outcomes)


def compare_variants(
    plan: VariantPlan, *, folder: Path | None = None, on_step: OnStep | None = None
) -> Report:
    """Compile, run, check and time all variants of a plan. `folder` keeps the compiled files."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="kmark-iree-"))
            folder = Path(temporary)
        return _Comparison(plan, folder, on_step or (lambda step: None)).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """The outputs to compare with; `why` is the reason why they are not in float64."""

    name: str = ""
    outputs: Outputs = ()
    why: str = ""
    error: float | None = None


class _Comparison:
    """The state between the steps; variants that fail are removed from `_built`."""

    def __init__(self, plan: VariantPlan, folder: Path, on_step: OnStep) -> None:
        self._plan = plan
        self._folder = folder
        self._on_step = on_step
        self._target = resolve_target(plan.target)
        self._built: dict[str, BuiltModule] = {}
        self._known: dict[str, dict[str, object]] = {v.name: {} for v in plan.variants}
        self._function, self._signature = "", Signature(inputs=(), outputs=())
        self._reference = _Reference()

    def run(self) -> Report:
        not_run = self._obstacle()
        options = () if not_run else parameter_options(self._plan.module, self._plan.parameters)
        for variant in self._plan.variants:
            self._compile(variant)
        if not not_run and self._built:
            built = next(iter(self._built.values()))
            self._function, self._signature = read_signature(
                built.binary,
                self._plan.function,
                lambda: lower_module(self._plan.module, built.variant.flags),
            )
            call = ModuleCall(
                function=self._function,
                inputs=make_inputs(self._signature, self._plan.inputs, self._plan.seed),
                target=self._target,
                folder=self._folder,
                timeout_s=self._plan.timeout_s,
                threads=self._plan.threads,
                options=options,
            )
            self._check(call)
            allocator = allocator_options(self._plan.device_allocator)
            self._time(dataclasses.replace(call, options=(*options, *allocator)))
        return Report(
            plan=self._plan,
            target=self._target.name,
            driver=self._target.driver,
            function=self._function,
            module_sha256=hashlib.sha256(self._plan.module.read_bytes()).hexdigest(),
            outcomes=tuple(
                VariantOutcome(**{"variant": v, "status": Status.OK, **self._known[v.name]})  # type: ignore[arg-type]
                for v in self._plan.variants
            ),
            not_run=not_run,
            no_reference=self._reference.why,
            reference=self._reference.name,
            reference_error=self._reference.error,
        )

    def _fail(self, name: str, status: Status, error: CaseError) -> None:
        self._known[name] |= {"status": status, "error": error.message}
        self._built.pop(name, None)

    def _compile(self, variant: Variant) -> None:
        self._on_step(f"compile {variant.name}")
        try:
            built = build_variant(self._plan.module, variant, self._target, self._folder)
            applied = self._applied(built) if variant.specs else None
        except CompileError as error:
            self._fail(variant.name, Status.COMPILE_ERROR, error)
            return
        self._built[variant.name] = built
        self._known[variant.name] |= {"built": built, "specs_applied": applied}

    def _applied(self, built: BuiltModule) -> bool:
        """Return whether the specs changed a dispatch; compile without specs if needed."""
        plain = same_but_specs(built.variant, list(self._built.values())) or build_variant(
            self._plan.module, plain_variant(built.variant), self._target, self._folder
        )
        return specs_applied(built, plain)

    def _obstacle(self) -> str:
        """Return why nothing is run, or ""."""
        if not self._plan.run:
            return Reason("--compile-only was given")
        return (absent(self._target.driver) or "") if self._target.gpu else ""

    def _check(self, call: ModuleCall) -> None:
        """Compare all outputs."""
        self._reference = self._compute_reference(call)
        first: tuple[str, Outputs] | None = None
        for name, built in list(self._built.items()):
            self._on_step(f"check {name}")
            try:
                outputs = call.outputs(built.binary, self._signature.outputs)
            except CaseError as error:
                self._fail(name, Status.RUNTIME_ERROR, error)
                continue
            facts = self._known[name]
            if first is not None:
                facts["against_first"] = divergences = self._diverge(outputs, first[1])
                _judge(facts, divergences, against=first[0])
            # The first variant may be wrong: the reference, if any, decides.
            if self._reference.name:
                divergences = self._diverge(outputs, self._reference.outputs)
                facts["against_reference"] = divergences
                _judge(facts, divergences, against=self._reference.name)
            first = (name, outputs) if first is None else first

    def _compute_reference(self, call: ModuleCall) -> _Reference:
        """Return the outputs in float64 on the CPU; where that fails, in float32."""
        if not self._plan.reference:
            return _Reference(why=Reason("none was asked for"))
        self._on_step("compute the float64 reference")
        # Constants of a model in f16 may be f64, which the compiler's default would round to f32.
        first = next(iter(self._built.values())).variant
        flags = [flag for flag in first.flags if flag.startswith("--iree-input-type")]
        try:
            lowered = lower_module(
                self._plan.module, [*flags, "--iree-input-demote-f64-to-f32=false"]
            )
        except CaseError as error:
            return _Reference(why=error.message)
        try:
            return _Reference(name="float64", outputs=self._evaluate(lowered, "f64", call))
        except CaseError as error:
            why = error.message
        if any(kind.dtype == "f64" for kind in self._signature.outputs):
            return _Reference(why=why)
        self._on_step("compute a float32 reference")
        try:
            outputs, other = (self._evaluate(lowered, "f32", call, order) for order in _ORDERS)
        except CaseError:
            return _Reference(why=why)
        difference = max(map(relative_error, other, outputs), default=0.0)
        allowed = self._plan.tolerance
        if difference > (TOLERANCES["f32"] if allowed is None else allowed):
            more = f"{why.splitlines()[0]}; a float32 reference has an error of {difference:.2g}"
            return _Reference(why=Reason(more))
        return _Reference(name="float32", outputs=outputs, why=why, error=difference)

    def _evaluate(
        self, lowered: bytes, float_name: str, call: ModuleCall, flags: tuple[str, ...] = ()
    ) -> Outputs:
        name = f"reference.{float_name}{'.' * bool(flags)}{'other' * bool(flags)}"
        source = self._folder / f"{name}.mlir"
        source.write_text(with_floats(lowered, float_name), encoding="utf-8")
        flags = ("--iree-input-demote-f64-to-f32=false", *flags)
        cpu = resolve_target("cpu")
        built = build_variant(source, Variant(name=name, flags=flags), cpu, self._folder)
        inputs = tuple(
            dataclasses.replace(x, type=_with_float(x.type, float_name)) for x in call.inputs
        )
        types = [_with_float(kind, float_name) for kind in self._signature.outputs]
        return dataclasses.replace(call, inputs=inputs, target=cpu).outputs(built.binary, types)

    def _diverge(self, outputs: Outputs, reference: Outputs) -> tuple[Divergence, ...]:
        return tuple(
            measure_divergence(
                values,
                expected,
                kind.dtype if kind.dtype in DTYPES else "i32",
                self._plan.tolerance,
            )
            for values, expected, kind in zip(
                outputs, reference, self._signature.outputs, strict=True
            )
        )

    def _time(self, call: ModuleCall) -> None:
        names = self._screen(call)
        rounds = self._rounds(names, self._plan.rounds, call)
        base = next(iter(self._built), "")
        for name in [item for item in names if item in self._built]:
            self._known[name] |= _summary(rounds[name])
            # No verdict on a wrong result: the kernel may have done less work.
            wrong = any(self._known[item].get("status") is Status.WRONG for item in (base, name))
            if name != base and not wrong:
                self._known[name] |= _verdicts(rounds[base], rounds[name])

    def _screen(self, call: ModuleCall) -> list[str]:
        """Return the variants to measure in full, after timing all candidates if there are more
        than can be. A candidate that is wrong, or whose spec changed nothing, is left out."""
        known = self._known
        candidates = [
            variant.name
            for variant in self._plan.variants
            if variant.candidate
            and variant.name in self._built
            and known[variant.name].get("status") is Status.OK
            and known[variant.name]["specs_applied"]
        ]
        if len(candidates) > self._plan.finalists:
            rounds = self._rounds(candidates, _LEAST_ROUNDS, call)
            candidates = [name for name in candidates if name in self._built]
            for name in candidates:
                known[name] |= _summary(rounds[name])
            medians = {
                name: statistics.median(s for item in rounds[name] for s in item.samples_s)
                for name in candidates
            }
            candidates = sorted(candidates, key=medians.__getitem__)[: self._plan.finalists]
        others = {variant.name for variant in self._plan.variants if not variant.candidate}
        return [name for name in self._built if name in others or name in candidates]

    def _rounds(
        self, names: Sequence[str], count: int, call: ModuleCall
    ) -> dict[str, list[ToolRound]]:
        """Return interleaved rounds of variants; one that fails leaves them."""
        rounds: dict[str, list[ToolRound]] = {name: [] for name in names}
        order, draw = list(rounds), random.Random(self._plan.seed)
        begun = time.monotonic()
        for number in range(count):
            if number >= _LEAST_ROUNDS and time.monotonic() - begun > self._plan.budget_s:
                break
            if number % 2:
                order.reverse()
            else:
                draw.shuffle(order)
            for name in [item for item in order if item in self._built]:
                self._on_step(f"round {number + 1} of {count}: {name}")
                try:
                    rounds[name].append(self._round(name, rounds[name], call))
                except CaseError as error:
                    self._fail(name, Status.RUNTIME_ERROR, error)
        return rounds

    def _round(self, name: str, before: Sequence[ToolRound], call: ModuleCall) -> ToolRound:
        expected_s = statistics.median(before[-1].samples_s) if before else 0.0
        return call.times(self._built[name].binary, expected_s)


def _judge(facts: dict[str, object], divergences: Sequence[Divergence], *, against: str) -> None:
    """Set the status to wrong at the first output that diverges, else to ok."""
    facts |= {"status": Status.OK, "error": ""}
    for number, divergence in enumerate(divergences):
        if not divergence.passed:
            reason = Reason(
                f"output {number} diverges from {against} in "
                f"{100 * divergence.fraction_bad:.2f} % of its elements, first at "
                f"{divergence.first_bad}; the tolerance is {divergence.tolerance:g}"
            )
            facts |= {"status": Status.WRONG, "error": reason}
            return


def _with_float(kind: TensorType, name: str) -> TensorType:
    is_float = kind.dtype in DTYPES and DTYPES[kind.dtype].kind == "float"
    return TensorType(shape=kind.shape, dtype=name) if is_float else kind


def _summary(rounds: Sequence[ToolRound]) -> dict[str, object]:
    has_kernels = all(item.dispatches for item in rounds)
    names = dict.fromkeys(name for item in rounds for name in item.dispatches)
    return {
        "end_to_end": _times(
            [item.samples_s for item in rounds], [s for item in rounds for s in item.cpu_s]
        ),
        "kernels": _times([(item.kernel_s,) for item in rounds]) if has_kernels else None,
        "dispatch_s": FrozenDict(
            {
                name: DispatchTime(
                    seconds=statistics.median(r.dispatches[name].seconds for r in measured),
                    calls=measured[0].dispatches[name].calls,
                )
                for name in names
                if (measured := [item for item in rounds if name in item.dispatches])
            }
        ),
    }


def _times(samples: Sequence[tuple[float, ...]], cpu_s: Sequence[float] = ()) -> Times:
    blocks = tuple(Block(process=i, allocation=0, samples_s=s) for i, s in enumerate(samples))
    interval = measured_interval(blocks)
    every = [value for block in blocks for value in block.samples_s]
    mean_s = statistics.fmean(every)
    stddev_s = statistics.stdev(every) if len(every) > 1 else 0.0
    return Times(
        blocks=blocks,
        median_s=statistics.median(block.median_s for block in blocks),
        low_s=interval.low_s,
        high_s=interval.high_s,
        mean_s=mean_s,
        stddev_s=stddev_s,
        cv=stddev_s / mean_s,
        cpu_s=statistics.median(cpu_s) if cpu_s else None,
    )


def _verdicts(base: Sequence[ToolRound], head: Sequence[ToolRound]) -> dict[str, Paired]:
    """Return the verdicts of paired rounds. Both sides have the same rounds, as a side that missed
    one has failed."""

    def medians(rounds: Sequence[ToolRound]) -> list[float]:
        return [statistics.median(item.samples_s) for item in rounds]

    verdicts = {"end_to_end_verdict": paired_verdict(medians(base), medians(head))}
    if all(item.dispatches for item in (*base, *head)):
        sums = [[item.kernel_s for item in side] for side in (base, head)]
        verdicts["kernels_verdict"] = paired_verdict(*sums)
    return verdicts


def result_set(report: Report, label: str = "") -> ResultSet:
    """Return the run: per variant one end-to-end result and one of its kernels. A variant that was
    only compiled has one skipped result, with its resources."""
    device = "cpu" if report.driver == "local-task" else report.driver
    if report.driver in ("cuda", "hip") and not report.not_run:
        device = f"{device}:0"
    here = [] if report.not_run or device == "vulkan" else [device]
    rows = [row for outcome in report.outcomes for row in _result_rows(report, outcome)]
    facts = Overrides(label=label, device=device, arch=report.target, started=time.time())
    file = ResultFile(report.plan.module, facts)
    file.environment = environment([find(name)[1] for name in here], ["iree"])
    run = build_run(file, rows, "iree-benchmark-module")
    kernels = {outcome.variant.name: _kernel_info(outcome) for outcome in report.outcomes}
    results = tuple(
        dataclasses.replace(result, kernel=kernels[str(result.case.config["variant"])])
        for result in run.results
    )
    return dataclasses.replace(run, results=results)


def _result_rows(report: Report, outcome: VariantOutcome) -> Iterator[ResultRow]:
    """Yield a row per round, or one row without a time if the variant was not timed."""
    status, error = outcome.status, Reason.of(outcome.error)
    if report.not_run and status is Status.OK:
        status, error = Status.SKIPPED, Reason(f"compiled, not run: {report.not_run}")
    for part, times in (("end_to_end", outcome.end_to_end), ("kernels", outcome.kernels)):
        if times is None and part == "kernels":
            continue
        parameters = {"module": report.plan.module.stem, "digest": f"x{report.module_sha256[:8]}"}
        parameters |= {"function": report.function or "none", "part": part}
        for samples in [block.samples_s for block in times.blocks] if times else [()]:
            yield ResultRow(
                problem=problem_of("iree_module", parameters),
                backend="iree",
                config={"variant": outcome.variant.name},
                timing=Timing(cache=Cache.HOT, timer=Timer.LOOP, threads=report.plan.threads),
                samples_s=samples,
                status=status,
                error=error,
            )


def _kernel_info(outcome: VariantOutcome) -> KernelInfo:
    if outcome.built is None:
        return KernelInfo()
    used: dict[str, int] = {}
    for dispatch in outcome.built.dispatches:
        for name, amount in dispatch.resources.items():
            used[name] = max(used.get(name, 0), amount)
    return KernelInfo(
        name="+".join(dispatch.name for dispatch in outcome.built.dispatches),
        compile_s=outcome.built.compile_s,
        binary_hash=outcome.built.sha256,
        resources=used,
        configs={
            dispatch.name: config_text(dispatch.config) for dispatch in outcome.built.dispatches
        },
    )
