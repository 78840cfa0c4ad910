"""Referee: judge one kernel on one problem.

The order of a judgement: both sides are prepared; single launches on inputs of every family are
checked; then the two sides are timed by turns, with new inputs before every request, and what the
timed launches wrote is checked; last, launches one by one must not take longer than in a row, and
the kernel must be right for neighbouring sizes. The first failure ends it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kernelmark import backends, devices, ops
from kernelmark.core.errors import KernelmarkError, OutOfMemory, ProblemError, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import (
    Block,
    Check,
    Config,
    Fault,
    KernelInfo,
    Measurement,
    Status,
    StopReason,
)
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.core.units import counted, time_text
from kernelmark.devices._gpu import GpuDevice
from kernelmark.devices.base import Deferred, Device, Stream, Tensor
from kernelmark.judge.gpu_values import GpuValues
from kernelmark.judge.processes import Templates
from kernelmark.judge.side import (
    MOST_LAUNCHES,
    Binding,
    Lost,
    Raised,
    SharedBuffer,
    SharedCpu,
    Side,
)
from kernelmark.judge.values import (
    NOT_REFUSED,
    UNIFORM,
    SecretInputs,
    Values,
    families_of,
    family_of,
    pack_bits,
)
from kernelmark.judge.verdict import CounterExample, Verdict
from kernelmark.measure.check import (
    REWRITTEN_SETS,
    SECOND_POISON,
    Checker,
    EarlyRead,
    Floats,
    PendingCheck,
    combine,
)
from kernelmark.measure.sets import AUDITED_SETS, Arena
from kernelmark.measure.stop import interval_of
from kernelmark.numerics.floats import decode
from kernelmark.ops._checks import any_values
from kernelmark.ops.base import Op, Reference
from kernelmark.stats.paired import SignedRank, signed_rank

# The shorter of the two lengths lasts this long, if enough sets fit.
_LENGTH_S = 3e-3
_ARENA_BYTES = 128 << 20
_MOST_SETS, _LEAST_SETS = 384, 5
# On a GPU, waking a process and its context scatters by tens of microseconds, of which the launches
# of a request have to take many times as long: their sets fill gigabytes, which the GPU itself
# rewrites in milliseconds. A recording takes the host 10 µs a launch, so that each serves for
# several requests, whose median counts.
_GPU_ARENA_BYTES, _MOST_GPU_SETS, _GPU_REQUESTS = 6 << 30, 1026, 3
_IDLE_SETS = 2
ROUNDS = 12
_LEAST_ROUNDS, _BUDGET_S = 4, 20.0
# Requests without a launch, whose median is the cost of a request.
_EMPTY_REQUESTS = 9
# The short length may cost this much more than half of the long one: a request, as much again for
# what a kernel pays once, and this fraction. Otherwise the time is that of the long length over its
# launches, which no delay in the short one makes smaller.
_UNEVEN = 0.01
_MOST_FIXED_S = 3e-4
# How long a stopped kernel may run without a request, to show work after the end.
_LATE_S = 2e-3
# Launches one by one may take longer than those in a row by twice what the reference's do, this
# fraction and this time: less than what a kernel gains that computes several sets at once.
_SINGLES, _SINGLE_FRACTION, _SINGLE_S = 5, 0.1, 5e-6
_SINGLE_REQUEST_S = 2e-3
# Short launches find the caches and the branch predictor cold: of 216 honest kernels four took 1.2
# to 1.6 times as long alone.
_SHORT_FRACTION = 1.0
_LEAST_TRIES, _SINGLE_TRIES = 4, 16
_USUAL_FRACTION, _DISTURBED = 0.25, 3.0
# Processes that use more than this many cores are not timed by a spinning process beside them.
_ONE_THREAD = 1.2
_NEIGHBOUR_BYTES = 64 << 20
_ODD = 61
_MOST_NEIGHBOURS = 3
# Tensors that are not aligned lie so many bytes beyond a multiple of 256: enough for every element,
# and for the words in which a GPU's helpers write, but not for wide loads.
_SHIFT = 8
# Kernels of vendors' libraries, by the names that they give them.
_LIBRARY_KERNEL = re.compile(
    r"cublas|nvjet|cudnn|xmma|cutlass|sm\d\d_|ampere_|volta_|turing_|Cijk_|rocblas|miopen|at::native"
    r"|gemvNSP|splitKreduce",
    re.IGNORECASE,
)
_SLOW_MODULES = ("torch", "triton")
_COMPARED = 16  # inputs of a request, in a random order
# Single launches on a GPU are requests of their own, which scatter by this much.
_GPU_SINGLE_S = 1.5e-5
_CHANGES: tuple[Callable[[int], int], ...] = (
    lambda size: size + 1,
    lambda size: max(1, size - 1),
    lambda size: min(size, _ODD),
    lambda size: max(1, min(size, _ODD) // 2),
)


class Refused(Exception):
    """A failed check, and the set of which problem failed."""

    def __init__(self, check: Check, problem: Problem, number: int | None) -> None:
        super().__init__(check.detail)
        self.check = check
        self.problem = problem
        self.number = number


class SecretChecker(Checker):
    """Checks of outputs whose inputs come from a secret key."""

    def __init__(
        self,
        problem: Problem,
        op: Op,
        device: Device,
        values: Values,
        rng: np.random.Generator,
        gpu_values: GpuValues | None = None,
    ) -> None:
        super().__init__(problem, op, device, 0)
        self._values = values
        self._gpu_values = gpu_values
        self._rng = rng
        self.errors: list[float] = []  # mean squares, relative to the scale of a sum's terms
        self.family = UNIFORM

    def _number(self, arena: Arena, indices: Sequence[int]) -> None:
        for index in indices:
            arena.numbers[index] = self._values.next_number(self.family)

    def _fill(self, arena: Arena, indices: Sequence[int]) -> None:
        by_gpu, by_host = self._split(arena.inputs(indices))
        if self._gpu_values is not None and by_gpu:
            self._gpu_values.write(by_gpu)
        for tensor, number in by_host:
            if isinstance(self._device, SharedCpu):
                self._values.write(tensor.spec, number, _memory(tensor))
            else:
                self._device.write(tensor.buffer, tensor.offset, self._bytes(tensor, number))

    def _split(
        self, inputs: Sequence[tuple[Tensor, int]]
    ) -> tuple[list[tuple[Tensor, int]], list[tuple[Tensor, int]]]:
        """Split inputs into those whose values a GPU makes itself, and the others."""
        if self._gpu_values is None:
            return [], list(inputs)
        made = [self._gpu_values.can_make(tensor.spec, number) for tensor, number in inputs]
        by_gpu = [pair for pair, is_made in zip(inputs, made, strict=True) if is_made]
        return by_gpu, [pair for pair, is_made in zip(inputs, made, strict=True) if not is_made]

    def _bytes(self, tensor: Tensor, number: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return pack_bits(tensor.spec, self._values.bits(tensor.spec, number)).ravel()

    def _inputs(self, number: int) -> SecretInputs:
        return SecretInputs(self._tensors, self._values, number)

    def _count_changed(self, inputs: Sequence[tuple[Tensor, int]]) -> Callable[[], list[int]]:
        by_gpu, by_host = self._split(inputs)
        counts = [
            int(
                np.count_nonzero(
                    self._device.read(tensor.buffer, tensor.offset, tensor.spec.nbytes)
                    != self._bytes(tensor, number)
                )
            )
            for tensor, number in by_host[:_COMPARED]
        ]
        if self._gpu_values is not None and by_gpu:
            counts += self._gpu_values.count_altered(by_gpu)
        return lambda: counts

    def _sampled(self, arena: Arena, index: int) -> Deferred[PendingCheck]:
        number = arena.numbers[index]
        if family_of(number) == UNIFORM:
            return super()._sampled(arena, index)
        # The op's tolerance is for uniform values; this one holds for any, and is wider.
        op, problem, output = self._op, self.problem, self._output
        where = op.positions(problem, int(self._rng.integers(1 << 32)))
        where = np.union1d(where, op.scattered(problem, self._rng))
        got = decode(self._device.take(self._output_of(arena, index), where), output.dtype)
        inputs = self._inputs(number)
        specs = [spec for spec in self._tensors if spec.role == "in"]
        largest = {spec.name: inputs.largest(spec.name) for spec in specs}
        acc = problem.dtypes.get("acc", "f32")
        usual = self._tolerance
        with any_values([spec.dtype for spec in specs], acc, largest):
            reference = op.reference(problem, inputs, where)
            self._tolerance = op.tolerance(problem)
        check = self._check_values(index, where, got, reference)
        self._tolerance = usual
        return lambda: lambda: check

    def _check_values(
        self, index: int, where: NDArray[np.int64], got: Floats, reference: Reference
    ) -> Check:
        if self.family == UNIFORM and self._output.type.kind == "float":
            terms = 1 if self._contraction is None else self._contraction.terms
            scale = reference.magnitude / math.sqrt(max(1, terms))
            usable = np.isfinite(got) & (scale > 0)
            relative = (got - reference.value)[usable] / scale[usable]
            if relative.size:
                self.errors.append(float(np.mean(relative**2)))
        return super()._check_values(index, where, got, reference)

    def rewrite(self, arena: Arena, indices: Sequence[int]) -> None:
        """Write the values that inputs have once more, and poison outputs: the memory accesses of
        `refresh`, for a kernel that is trusted not to remember. New values take longer than the
        launches."""
        if self._device.enqueues:  # makes them in a fraction of the time
            self.refresh(arena, indices)
            return
        for tensor, _ in arena.inputs(indices):
            memory = _memory(tensor)
            np.bitwise_xor(memory, 0, out=memory)
        self._device.poison_all([self._output_of(arena, index) for index in indices], self._poison)

    def refill_same(self, arena: Arena, index: int) -> None:
        """Write the inputs that a set has once more, and poison its output otherwise."""
        self._fill(arena, [index])
        self._device.poison(self._output_of(arena, index), SECOND_POISON)

    def output_bytes(self, arena: Arena, index: int) -> bytes:
        tensor = self._output_of(arena, index)
        return self._device.read(tensor.buffer, tensor.offset, tensor.spec.nbytes).tobytes()


class _Remote:
    """A side's kernel, as the checker launches it again."""

    info = KernelInfo()

    def __init__(self, side: Side) -> None:
        self._side = side

    def launch(self, stream: Stream, set_index: int) -> None:
        self._side.arm([set_index])
        self._side.go()

    def collect(self, set_index: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is judged. `reference` is the backend or trusted file that it is compared with, None for
    none. `seed` repeats a judgement; it is drawn if it is empty."""

    kernel: str
    problem: Problem
    device: str = "cpu"
    reference: str | None = None
    config: Config = field(default_factory=dict)
    threads: int = 0
    rounds: int = ROUNDS
    limit_s: float = 60.0
    seed: bytes = b""
    neighbours: bool = True
    forbid_libraries: bool = False


def open_device(name: str) -> Device:
    """Open a device whose memory can be shared with another process: of a CPU all cores, so that
    this process need not run on those of the kernel."""
    if sys.platform != "linux":
        raise UsageError("kernels are judged on Linux only", hint="elsewhere, use kmark run")
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return SharedCpu()
    if kind in ("cuda", "hip"):
        return devices.registry.get(kind).open(int(index or 0))
    raise UsageError(
        f"kernels are not judged on the device {name}", hint="possible: cpu, cuda:0, hip:0, …"
    )


def judge(question: Question, templates: Templates | None = None) -> Verdict:
    """Judge a kernel. What it does wrong is in the verdict; what the request does wrong raises.
    Several judgements are faster with the same `templates`."""
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(contextlib.closing(open_device(question.device)))
        own = templates or stack.enter_context(Templates())
        return _Judgement(question, device, own).run()


class _Judgement:
    def __init__(self, question: Question, device: Device, templates: Templates) -> None:
        self._question = question
        self._device = device
        self._templates = templates
        self._op = ops.registry.get(question.problem.op)
        self._seed = question.seed or secrets.token_bytes(16)
        self._values = Values(self._seed)
        self._gpu_values = (
            GpuValues(device, self._values) if isinstance(device, GpuDevice) else None
        )
        self._rng = np.random.default_rng(int.from_bytes(self._seed, "little") ^ 1)
        files = (question.kernel, question.reference or "")
        self._readable = [_own_folder(Path(f)) for f in files if backends.is_file(f)]
        self._modules = _modules_of(files)
        self._problems = [question.problem, *self._neighbours()]
        nbytes = sum(spec.nbytes for spec in self._op.tensors(question.problem))
        if question.neighbours and 0 < nbytes <= _NEIGHBOUR_BYTES:
            self._problems.append(question.problem)  # once more, on tensors that are not aligned
        self._checks: list[Check] = []
        self._notes: list[str] = []
        self._passed: list[str] = []
        self._libraries: list[str] = []
        self._resources: dict[str, Any] = {}
        self._delivered: float | None = None
        self._started = time.time()

    # -- set-up

    def _neighbours(self) -> Iterator[Problem]:
        """Yield problems of nearby and of odd sizes that fit into little memory."""
        if not self._question.neighbours:
            return
        problem, found = self._question.problem, 0
        for change in _CHANGES:
            dims = {name: change(size) for name, size in problem.dims.items()}
            try:
                other = self._op.problem(**{**problem.options, **problem.dtypes, **dims})
                nbytes = sum(spec.nbytes for spec in self._op.tensors(other))
            except (ProblemError, ValueError, TypeError, KernelmarkError):
                continue
            if other.key != problem.key and 0 < nbytes <= _NEIGHBOUR_BYTES:
                found += 1
                yield other
            if found == _MOST_NEIGHBOURS:
                return

    def _sets(self) -> int:
        nbytes = sum(spec.nbytes for spec in self._op.tensors(self._question.problem))
        most, room = _MOST_SETS, _ARENA_BYTES
        if self._device.enqueues:
            most, room = _MOST_GPU_SETS, _GPU_ARENA_BYTES
        wanted = min(most, max(_LEAST_SETS, room // max(1, nbytes)))
        fit = int(0.4 * self._device.free_bytes()) // max(1, nbytes)
        if fit < _LEAST_SETS:
            raise OutOfMemory(
                f"{_LEAST_SETS} argument sets for each of two sides do not fit into memory",
                hint="choose a smaller problem",
            )
        return min(wanted, fit, MOST_LAUNCHES)

    def _side(self, backend: str, problems: Sequence[Problem], config: Config) -> Side:
        bindings = [
            Binding(
                problem=problem,
                tensors=self._op.tensors(problem),
                sets=AUDITED_SETS if number else self._sets(),
                shift=_SHIFT if number and problem is problems[0] else 0,
            )
            for number, problem in enumerate(problems)
        ]
        return Side(
            device=self._device,
            backend=backend,
            bindings=bindings,
            config=config,
            threads=self._question.threads,
            readable=self._readable,
            limit_s=self._question.limit_s,
            templates=self._templates,
            modules=self._modules,
            forbid_libraries=self._question.forbid_libraries and backend == self._question.kernel,
        )

    def _checker(self, problem: Problem) -> SecretChecker:
        return SecretChecker(
            problem, self._op, self._device, self._values, self._rng, self._gpu_values
        )

    # -- the judgement

    def run(self) -> Verdict:
        question = self._question
        if question.forbid_libraries:
            self._notes.append(
                "libraries were forbidden: a call of the BLAS in NumPy ends the process"
            )
        with contextlib.ExitStack() as stack:
            if self._gpu_values is not None:
                stack.callback(self._gpu_values.close)
            side = self._side(question.kernel, self._problems, question.config)
            stack.callback(side.close)
            reference = None
            if question.reference is not None:
                reference = self._side(question.reference, [question.problem], {})
                stack.callback(reference.close)
                reference.wait_until_ready()
                self._prepare_reference(reference)
            side.wait_until_ready()
            self._lacks = side.lacks
            try:
                return self._judge(side, reference)
            except Refused as refused:
                return self._refuse(Status.WRONG, refused.check.detail, refused)
            except Lost as lost:
                if reference is not None and reference.lost is lost:
                    raise UsageError(
                        f"the reference {reference.backend} does not work: {lost.message}",
                        hint="choose another one by --reference, or none",
                    ) from None
                return self._refuse(lost.status, lost.message, None)

    def _prepare_reference(self, reference: Side) -> None:
        try:
            why = reference.prepare(0)
        except Lost as lost:
            why = str(lost.message)
        if why is not None:
            raise UsageError(
                f"the reference {reference.backend} does not work: {why}",
                hint="choose another one by --reference, or none",
            )

    def _judge(self, side: Side, reference: Side | None) -> Verdict:
        unsupported = side.prepare(0)
        if unsupported is not None:
            return self._refuse(Status.UNSUPPORTED, Reason(unsupported), None)
        checker, arena = self._checker(self._question.problem), side.arenas[0]
        self._check_families(side, checker, arena)
        self._check_repeats(side, checker, arena)
        if self._question.forbid_libraries:
            self._check_libraries(side)  # and after the timed launches, which may load others
        times = self._time(side, checker, reference)
        self._check_singles(side, checker, reference, times)
        self._check_libraries(side)
        self._resources = {
            "threads": side.threads(),
            "peak_memory_bytes": side.peak_memory_bytes(),
            "libraries": self._libraries,
            "kernels": side.facts()[0],
            **side.facts()[1],
        }
        self._delivered = math.sqrt(statistics.fmean(checker.errors)) if checker.errors else None
        if side.threads() > 1:
            self._notes.append(f"{counted(side.threads(), 'thread')} in the kernel's process")
        self._check_neighbours(side)
        side.check_leftovers()
        return self._accept(times)

    def _check_libraries(self, side: Side) -> None:
        """Look at the numeric libraries that were mapped and the kernels that are launched; refuse
        them if they are forbidden."""
        names = side.facts()[0]
        self._libraries = side.numeric_libraries()
        if not self._question.forbid_libraries:
            return
        if "no libraries" in self._passed:
            self._passed.remove("no libraries")
        used = [*self._libraries, *(name for name in names if _LIBRARY_KERNEL.search(name))]
        if used:
            text = f"it uses a library, which is forbidden: {', '.join(used[:3])}"
            check = dataclasses.replace(
                _failed(Reason(text, "library-used", names=tuple(used))), faults=()
            )
            raise Refused(check, self._question.problem, None)
        self._passed.append("no libraries")

    def _launch_and_check(
        self,
        side: Side,
        checker: SecretChecker,
        arena: Arena,
        order: Sequence[int],
        *,
        projected: int,
        sampled: int = 1,
        late: bool = False,
        timed: bool = False,
        check: bool = True,
        armed: bool = False,
        trusted: bool = False,
    ) -> float:
        """Launch these sets on new inputs, and check what they wrote. Return the seconds."""
        idle = checker.draw(set(range(len(arena.sets))).difference(order), _IDLE_SETS)
        if not armed:
            side.arm(order)
        family, checker.family = checker.family, UNIFORM
        checker.refresh(arena, idle)  # a GPU makes uniform values itself
        checker.family = family
        if trusted and not check:
            checker.rewrite(arena, order)
        else:
            checker.refresh(arena, order)
        if timed:
            self._reset_persisting()
            self._device.evict_cache()
        self._device.synchronize()
        reads: list[EarlyRead] = []
        watched = [*order[-1:], *checker.draw(order, 2)] if check else []
        if self._device.enqueues:
            watched = watched[:1]  # a GPU has one place for the positions of a reader
        readers = [checker.early_reader(arena, index) for index in watched]
        seconds = side.go(lambda: reads.extend(read() for read in readers))
        if late:
            reads += [checker.early_reader(arena, index)() for index in order[-REWRITTEN_SETS:]]
            side.idle(_LATE_S)
        if check:
            checked = checker.verify(
                _Remote(side),
                arena,
                checker.draw(order, len(order)),
                projected=projected,
                sampled=sampled,
                untouched=idle,
                early_reads=reads,
            )()
            self._keep(checked, checker, arena)
        return seconds

    def _reset_persisting(self) -> None:
        """Let lines that a kernel made persist in a GPU's cache be evicted like the others."""
        if isinstance(self._device, GpuDevice) and self._device.driver.has("reset_persisting"):
            self._device.driver.code("reset_persisting")

    def _keep(self, check: Check, checker: SecretChecker, arena: Arena) -> None:
        if not check.passed:
            findings = check.detail.fields.get("findings", (check.detail,))
            sets = [f.fields["set"] for f in findings if "set" in getattr(f, "fields", {})]
            number = arena.numbers[sets[0]] if sets else None
            raise Refused(check, checker.problem, number)
        # Families have other scales: their largest error says nothing about the usual one.
        is_usual = checker.family == UNIFORM
        self._checks.append(check if is_usual else dataclasses.replace(check, max_abs=0.0))

    def _check_families(self, side: Side, checker: SecretChecker, arena: Arena) -> None:
        tensors = self._op.tensors(self._question.problem)
        contraction = self._op.contraction(self._question.problem) is not None
        for family in (UNIFORM, *families_of(tensors, is_contraction=contraction)):
            checker.family = family
            index = int(self._rng.integers(len(arena.sets)))
            is_uniform = family == UNIFORM
            try:
                self._launch_and_check(
                    side, checker, arena, [index], projected=int(is_uniform), late=is_uniform
                )
            except Refused as refused:
                if family not in NOT_REFUSED:
                    raise
                self._notes.append(f"inputs of the family {family}: {refused.check.detail}")
            finally:
                checker.family = UNIFORM
            self._passed.append(f"inputs: {family}")

    def _check_repeats(self, side: Side, checker: SecretChecker, arena: Arena) -> None:
        """Launch a set three times on the same inputs: the outputs should have the same bits."""
        index = int(self._rng.integers(len(arena.sets)))
        self._launch_and_check(side, checker, arena, [index], projected=1)
        outputs = {checker.output_bytes(arena, index)}
        for _ in range(2):
            checker.refill_same(arena, index)
            side.arm([index])
            side.go()
            outputs.add(checker.output_bytes(arena, index))
        if len(outputs) > 1:
            self._notes.append("not deterministic: equal inputs give different bits")
        else:
            self._passed.append("deterministic")

    # -- timing

    def _time(self, side: Side, checker: SecretChecker, reference: Side | None) -> _Times:
        sides = [side] if reference is None else [side, reference]
        cost_s = self._request_cost(sides[-1], trusted=reference is not None)
        arena = side.arenas[0]
        counts = {id(one): self._length(one, checker, cost_s) for one in sides}
        times = _Times(cost_s=cost_s)
        end = time.monotonic() + _BUDGET_S
        for number in range(self._question.rounds):
            if number >= _LEAST_ROUNDS and time.monotonic() > end:
                self._notes.append(f"timed in {number} rounds only, within {_BUDGET_S:.0f} s")
                break
            for one in sides if number % 2 == 0 else sides[::-1]:
                count = counts[id(one)]
                lengths = (count, 2 * count) if self._rng.random() < 0.5 else (2 * count, count)
                # The reference at sampled positions needs whole inputs on the host, which takes a
                # tenth of a second: once a round on a GPU.
                sampled = {int(self._rng.integers(2))} if self._device.enqueues else {0, 1}
                seconds = {}
                for turn, length in enumerate(lengths):
                    seconds[length] = self._request_s(
                        one,
                        checker,
                        length,
                        sampled=turn in sampled,
                        late=number % 4 == 1,
                        check=one is side or not number,
                        trusted=one is reference,
                    )
                times.add(count, seconds[count], seconds[2 * count], is_mine=one is side)
        self._passed.append("timed launches")
        times.footprint_bytes = sum(t.spec.nbytes for t in arena.sets[0].values())
        times.sets = len(arena.sets)
        return times

    def _request_s(
        self, side: Side, checker: SecretChecker, length: int, *, sampled: bool, **how: bool
    ) -> float:
        """Return the seconds of a request of `length` launches; on a GPU the median of several."""
        arena = side.arenas[0]
        order = checker.draw(range(len(arena.sets)), length)
        count = _GPU_REQUESTS if self._device.enqueues else 1
        checked = int(self._rng.integers(count)) if sampled else -1
        seconds = [
            self._launch_and_check(
                side,
                checker,
                arena,
                order,
                projected=2,
                sampled=int(number == checked),
                timed=True,
                armed=number > 0,
                **how | {"late": how["late"] and not number},
            )
            for number in range(count)
        ]
        return statistics.median(seconds)

    def _request_cost(self, side: Side, *, trusted: bool) -> float:
        side.arm([])
        costs = []
        for _ in range(_EMPTY_REQUESTS):
            self._device.evict_cache()
            costs.append(side.go())
        # A kernel that nobody trusts can make its empty requests slow.
        return statistics.median(costs) if trusted else min(*costs, 5e-5)

    def _length(self, side: Side, checker: SecretChecker, cost_s: float) -> int:
        """Return the launches of the short length."""
        most = (len(side.arenas[0].sets) - _IDLE_SETS) // 2
        # Waiting for a GPU takes longer than a few launches.
        probe, seconds = most if self._device.enqueues else min(4, most), 0.0
        order = checker.draw(range(len(side.arenas[0].sets)), probe)
        for number in range(2):
            seconds = self._launch_and_check(
                side,
                checker,
                side.arenas[0],
                order,
                projected=0,
                check=False,
                armed=number > 0 and self._device.enqueues,
            )
        launch_s = max(seconds - cost_s, 1e-7) / probe
        return max(1, min(most, math.ceil(_LENGTH_S / launch_s)))

    def _check_singles(
        self, side: Side, checker: SecretChecker, reference: Side | None, times: _Times
    ) -> None:
        """Refuse a kernel whose launches one by one take longer than in a row: it computes several
        sets at once, or leaves work to the next launch."""
        if reference is None:
            self._notes.append("single launches were not compared: there is no reference")
            return
        by_request = self._device.enqueues or min(times.mine_s, times.theirs_s) >= _SINGLE_REQUEST_S
        cores = len(getattr(self._device, "cores", ()))
        if not by_request and (
            cores < 2 or any(times.cores_used(x, checker) > _ONE_THREAD for x in (side, reference))
        ):
            self._notes.append("single launches were not compared: they are short, on many cores")
            return
        # The least of several tries: other work makes a try longer, never shorter.
        least: dict[tuple[bool, bool], float] = {}
        for number in range(_SINGLE_TRIES):
            for one in (side, reference):
                pair = self._single_and_row_s(one, checker, times, by_request=by_request)
                for is_row, seconds in enumerate(pair):
                    key = (one is side, bool(is_row))
                    least[key] = min(seconds, least.get(key, math.inf))
            row_s = least[True, True]
            usual_s = max(0.0, least[False, False] - least[False, True])
            allowed_s = (_SINGLE_FRACTION if by_request else _SHORT_FRACTION) * row_s
            if self._device.enqueues:
                allowed_s += usual_s + _GPU_SINGLE_S
            else:
                most_s = _SINGLE_S + _USUAL_FRACTION * least[False, True]
                allowed_s += 2 * min(usual_s, most_s) + _SINGLE_S
            excess_s = least[True, False] - row_s - allowed_s
            # Not the first tries, in which other work may have disturbed the reference.
            disturbed = not self._device.enqueues and (
                least[False, False] > _DISTURBED * least[False, True] + _SINGLE_S
            )
            if number >= _LEAST_TRIES - 1 and not disturbed and excess_s <= 0:
                self._passed.append("single launches")
                return
            if self._device.enqueues and number >= 2 * _LEAST_TRIES:
                break
        # On a CPU after all tries only: one of 45 honest kernels, judged beside
        # other work on all cores, had an excess in nine of them.
        if disturbed:
            self._notes.append("single launches were not compared: other work disturbed them")
            return
        raise Refused(
            _failed(
                Reason(
                    f"a single launch takes {time_text(least[True, False])} where one in a row of"
                    f" them takes {time_text(least[True, True])}: launches share work",
                    "less-work",
                    fresh_s=least[True, False],
                    timed_s=least[True, True],
                )
            ),
            self._question.problem,
            None,
        )

    def _single_and_row_s(
        self, side: Side, checker: SecretChecker, times: _Times, *, by_request: bool
    ) -> tuple[float, float]:
        """Return the seconds of a launch alone and of one in a row, by the clock that the timed
        launches have; not of CPU time, which requests only have, if launches are revealed."""
        arena = side.arenas[0]
        sets = range(len(arena.sets))
        order = checker.draw(sets, max(1, min(_SINGLES, len(arena.sets) - _IDLE_SETS)))
        if by_request:
            single_s = self._launch_and_check(side, checker, arena, order[:1], projected=0)
            single_s -= times.cost_s
        else:
            steps = side.step_by_step(order, partial(_fill, checker, arena))
            single_s = min(steps, default=math.inf)
            self._keep(checker.verify(_Remote(side), arena, order, projected=1)(), checker, arena)
        count = 2 if by_request else times.launches
        row = checker.draw(sets, count)
        row_s = self._launch_and_check(side, checker, arena, row, projected=1)
        return single_s, ((row_s if by_request else side.wall_s) - times.cost_s) / count

    def _check_neighbours(self, side: Side) -> None:
        for number, problem in enumerate(self._problems[1:], 1):
            if problem is self._question.problem:
                self._check_unaligned(side, number)
                continue
            try:
                unsupported = side.prepare(number)
                if unsupported is None:
                    checker, arena = self._checker(problem), side.arenas[number]
                    index = int(self._rng.integers(len(arena.sets)))
                    self._launch_and_check(side, checker, arena, [index], projected=1)
            except Raised as raised:
                unsupported = str(raised.message)
            if unsupported is None:
                self._passed.append(f"also right: {problem.key}")
            else:
                self._notes.append(f"not for {problem.key}: {unsupported}")

    def _check_unaligned(self, side: Side, number: int) -> None:
        """Launch on tensors that lie 8 bytes beyond their alignment. A kernel may refuse them, and
        even end: wide loads fault there. It must not be wrong."""
        why: object = None
        try:
            why = side.prepare(number)
            if why is None:
                checker, arena = self._checker(self._question.problem), side.arenas[number]
                self._launch_and_check(side, checker, arena, [0], projected=1)
        except Raised as raised:
            why = raised.message
        except Lost as lost:
            if lost.status is not Status.CRASHED:
                raise
            why = lost.message
        if why is None:
            self._passed.append("unaligned tensors")
        else:
            self._notes.append(f"not for tensors that are aligned to {_SHIFT} bytes only: {why}")

    # -- verdicts

    def _verdict(self) -> Verdict:
        question = self._question
        return Verdict(
            kernel=question.kernel,
            problem=question.problem,
            device=self._device.info.name,
            arch=self._device.info.arch,
            config=dict(question.config),
            threads=question.threads,
            reference=question.reference,
            flops=self._op.flops(question.problem),
            bytes=self._op.bytes(question.problem),
            seed=self._seed.hex(),
            resources=self._resources,
            delivered_roundoff=self._delivered,
            passed=tuple(self._passed),
            notes=tuple(self._notes),
            lacks=tuple(self._lacks),
            started=self._started,
            took_s=time.time() - self._started,
        )

    def _refuse(self, status: Status, reason: Reason, refused: Refused | None) -> Verdict:
        example = None
        if refused is not None and refused.number is not None:
            example = CounterExample(
                problem=refused.problem.key,
                seed=self._seed.hex(),
                number=refused.number,
                family=family_of(refused.number),
            )
        return dataclasses.replace(
            self._verdict(),
            status=status,
            reason=reason,
            check=None if refused is None else refused.check,
            counter_example=example,
        )

    def _accept(self, times: _Times) -> Verdict:
        check = combine(self._checks)
        verdict = dataclasses.replace(
            self._verdict(),
            check=check,
            measurement=times.measurement(is_mine=True),
            notes=(*self._notes, *times.notes()),
        )
        if self._question.reference is None:
            return verdict
        ratio = times.ratio()
        return dataclasses.replace(
            verdict,
            reference_measurement=times.measurement(is_mine=False),
            ratio=math.exp(ratio.centre),
            ratio_low=math.exp(ratio.low),
            ratio_high=math.exp(ratio.high) if ratio.high < 700 else math.inf,
        )


def _own_folder(file: Path) -> Path:
    """Return the folder of a kernel file, which may have modules and libraries beside it; only the
    file itself if that is the folder of everything else, too."""
    shared = (Path("/"), Path.home(), Path(tempfile.gettempdir()))
    folder = file.resolve().parent
    return file if folder in [place.resolve() for place in shared] else folder


def _modules_of(backend_names: Sequence[str]) -> tuple[str, ...]:
    """Return the slow modules that backends seem to import, which a template imports once: only
    the time of a judgement depends on it."""
    texts = list(backend_names)
    for name in backend_names:
        if backends.is_file(name):
            with contextlib.suppress(OSError):
                texts.append(Path(name).read_text(errors="replace"))
    return tuple(module for module in _SLOW_MODULES if any(module in text for text in texts))


def _memory(tensor: Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a tensor in shared memory."""
    memory: NDArray[np.uint8] = cast(SharedBuffer, tensor.buffer).array
    return memory[tensor.offset : tensor.offset + tensor.spec.nbytes]


def _fill(checker: SecretChecker, arena: Arena, index: int) -> None:
    checker.refresh(arena, [index])


def _failed(reason: Reason) -> Check:
    return Check(
        positions=0,
        worst=0.0,
        max_abs=0.0,
        unwritten=0,
        guards_intact=True,
        detail=reason,
        faults=(Fault.LESS_WORK,),
    )


class _Times:
    """The two lengths of every round, of the kernel and of the reference."""

    def __init__(self, *, cost_s: float) -> None:
        self.cost_s = cost_s
        self.footprint_bytes = self.sets = 0
        self._rounds: dict[bool, list[tuple[int, float, float]]] = {True: [], False: []}

    def add(self, count: int, short_s: float, long_s: float, *, is_mine: bool) -> None:
        self._rounds[is_mine].append((count, short_s, long_s))

    @property
    def launches(self) -> int:
        """The launches of the kernel's short length."""
        return self._rounds[True][0][0]

    @property
    def mine_s(self) -> float:
        return statistics.median(self._samples(is_mine=True))

    @property
    def theirs_s(self) -> float:
        return statistics.median(self._samples(is_mine=False))

    def _samples(self, *, is_mine: bool) -> list[float]:
        """Return the seconds of a launch in each round."""
        rounds = self._rounds[is_mine]
        bounds = [(long_s - self._fixed_s) / (2 * count) for count, _, long_s in rounds]
        if self._is_uneven(is_mine=is_mine):
            return [max(bound, 1e-9) for bound in bounds]
        slopes = [(long_s - short_s) / count for count, short_s, long_s in rounds]
        # A disturbed round may have a negative slope; its bound is then an upper one.
        return [
            slope if slope > 0 else max(bound, 1e-9)
            for slope, bound in zip(slopes, bounds, strict=True)
        ]

    @property
    def _fixed_s(self) -> float:
        """The cost of a request with launches: that of the reference, which delays nothing."""
        if not self._rounds[False]:
            return self.cost_s
        return min(max(self._intercept_s(is_mine=False), self.cost_s), _MOST_FIXED_S)

    def _intercept_s(self, *, is_mine: bool) -> float:
        _, short_s, long_s = (
            np.median(column) for column in zip(*self._rounds[is_mine], strict=True)
        )
        return float(2 * short_s - long_s)

    def _is_uneven(self, *, is_mine: bool) -> bool:
        short_s = statistics.median(short_s for _, short_s, _ in self._rounds[is_mine])
        return self._intercept_s(is_mine=is_mine) > 2 * self._fixed_s + _UNEVEN * short_s

    def notes(self) -> list[str]:
        notes = []
        if self._rounds[False] and self._is_uneven(is_mine=True):
            notes.append(
                "the first launches of a request take longer than the others: the time is that of"
                " all of them"
            )
        if self._rounds[False]:
            logs = self._log_ratios()
            first, second = statistics.median(logs[0::2]), statistics.median(logs[1::2])
            scatter = 1.5 * statistics.median(abs(v - statistics.median(logs)) for v in logs)
            if abs(first - second) > 0.03 + 6 * scatter / math.sqrt(len(logs)):
                notes.append(
                    f"the ratio depends on which side is first: {math.exp(first):.3f} and"
                    f" {math.exp(second):.3f}"
                )
        return notes

    def _log_ratios(self) -> list[float]:
        pairs = zip(self._samples(is_mine=True), self._samples(is_mine=False), strict=True)
        return [math.log(mine / theirs) for mine, theirs in pairs]

    def ratio(self) -> SignedRank:
        """Return the interval of the kernel's time over the reference's, in logarithms."""
        return signed_rank(self._log_ratios(), 0.05)

    def measurement(self, *, is_mine: bool) -> Measurement:
        samples = self._samples(is_mine=is_mine)
        size = max(1, len(samples) // 4)
        blocks = tuple(
            Block(process=0, allocation=number, samples_s=tuple(samples[start : start + size]))
            for number, start in enumerate(range(0, len(samples) - size + 1, size))
        )
        interval = interval_of(blocks, judged_timing(0))
        count = self._rounds[is_mine][0][0]
        return Measurement(
            blocks=blocks,
            low_s=interval.low_s,
            high_s=interval.high_s,
            method=str(Timer.OUTSIDE),
            launches=2 * count,
            sets=self.sets,
            footprint_bytes=self.footprint_bytes,
            stop=StopReason.FIXED,
            warmup_s=0.0,
            timed_s=sum(short_s + long_s for _, short_s, long_s in self._rounds[is_mine]),
        )

    def cores_used(self, side: Side, checker: SecretChecker) -> float:
        """Return how many cores a side's launches keep busy."""
        arena = side.arenas[0]
        order = checker.draw(range(len(arena.sets)), max(1, len(arena.sets) - _IDLE_SETS))
        side.arm(order)
        before_s, start = side.cpu_s(), time.perf_counter()
        side.go()
        return (side.cpu_s() - before_s) / (time.perf_counter() - start)


def judged_timing(threads: int) -> Timing:
    """Return the timing that judged results are stored with."""
    return Timing(cache=Cache.COLD, timer=Timer.OUTSIDE, threads=threads)
