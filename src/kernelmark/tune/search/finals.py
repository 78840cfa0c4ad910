"""Final re-measurement: the best candidates against the reference, and whether the winner is kept.

The fastest of many noisy times is partly luck, so the times by which a candidate was chosen are not
reported. All finalists are screened in two rounds; the best of these is then measured against the
reference alone, and the times of this final are reported. Both alternate the sides, first forwards,
then backwards (ABBA), in fresh memory and on fresh inputs. A final that was disturbed, or leaves
open which side is faster, is continued. For built-in ops, the winner also has to be correct on
sizes next to the problem's, where masks and tails differ.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelmark import backends, ops
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Config, KernelInfo, Status, config_key
from kernelmark.host.cache import digest
from kernelmark.ops._own import OwnOp
from kernelmark.tune.plans.plan import TunePlan
from kernelmark.tune.records.journal import (
    FINAL_STEP,
    OF_THE_MACHINE,
    SCREENING_STEP,
    Journal,
    Trial,
    is_screening,
)
from kernelmark.tune.records.outcome import Choice, Outcome
from kernelmark.tune.search.accept import Score, decide, disturbance
from kernelmark.tune.search.evaluate import (
    Request,
    Round,
    Work,
    final_timing,
    ladder,
    uses_cpu_time,
)

_SCREENINGS = 2  # once forwards, once backwards
# Largest number of sets of a plan's rounds, and the verdicts after which another set is measured.
_MOST_SETS = 3
_UNDECIDED = ("disturbed", "too-noisy", "not-faster")
_FIRST_SEED = 1001  # for other inputs than the search, which uses seed 1
# Statuses of a config on a neighbouring size that it does not support, which is not an error.
_NOT_SUPPORTED = (Status.UNSUPPORTED, Status.COMPILE_ERROR, Status.SKIPPED)
# Sizes next to a problem's, by op: the first that the config supports are used. The last ones have
# the alignment that descriptors (TMA) need.
_STEPS: dict[str, tuple[dict[str, int], ...]] = {
    "attention": (
        *({"seq_q": 1, "seq_kv": 1}, {"seq_q": -1, "seq_kv": -1}, {"seq_kv": 3}),
        *({"seq_q": 16, "seq_kv": 16}, {"seq_q": 64, "seq_kv": 64}),
    ),
    "conv": ({"h": 1}, {"w": -1}, {"h": -1, "w": 3}, {"h": 2, "w": 2}, {"h": 8}),
}
_GEMM_STEPS = (
    *({"m": 1}, {"n": -1}, {"m": -1}, {"n": 3}, {"m": 5, "n": 7}),
    *({"n": 16}, {"m": 16}, {"n": 64}, {"m": 64, "n": 64}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The reference, or a finalist."""

    backend: str
    config: Config

    @property
    def key(self) -> str:
        return f"{self.backend} {config_key(self.config)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Rounds in which all `sides` are timed alternately, the reference first. The step's name in
    the journal has a digest of the sides: a stage with other sides is another stage."""

    name: str  # SCREENING_STEP, round
    sides: tuple[Side, ...]
    rounds: int
    seeds: int

    def step(self, number: int) -> str:
        everyone = sorted(side.key for side in self.sides)
        return f"{FINAL_STEP}{digest(*everyone, str(self.seeds))[:8]} {self.name} {number}"

    def seed(self, number: int) -> int:
        return _FIRST_SEED + number // 2 % max(1, self.seeds)


def finals(
    plan: TunePlan, info: DeviceInfo, journal: Journal, reached: Sequence[Trial], evaluations: int
) -> Work[Outcome]:
    """Screen the finalists, verify and re-measure the best, and return the outcome of the plan."""
    final = _Final(plan, info, journal, finalists(reached, plan.acceptance.finalists))
    yield from final.measure(final.screening)
    ranked = final.ranked()
    for side in ranked:
        yield from final.verify(side)
        if final.fault(side) is None:
            yield from final.measure(final.stage_of(side))
            while final.add_set(side):
                yield from final.measure(final.stage_of(side))
        if final.fault(side) is None:
            return final.outcome(side, evaluations)
    return final.outcome((ranked or final.sides)[0], evaluations)


def timings(plan: TunePlan, candidates: int) -> int:
    """Return the timings of a final with this many candidates if the first of them wins."""
    asked = plan.acceptance
    finalists = min(asked.finalists, candidates)
    screenings = _SCREENINGS * (1 + finalists) if finalists > 1 else 0
    return screenings + set_timings(plan)


def set_timings(plan: TunePlan) -> int:
    """Return the timings of a set of a final's rounds: of the reference and of one finalist."""
    return 2 * _even(plan.acceptance.rounds)


def _even(rounds: int) -> int:
    """Round up to an even number of rounds, forwards and backwards; at least 2."""
    return max(2, rounds + rounds % 2)


def finalists(reached: Sequence[Trial], most: int) -> list[Trial]:
    """Return the fastest trials that were timed in full, then the fastest others."""
    good = [trial for trial in reached if trial.ok]
    return sorted(good, key=lambda trial: (trial.step != "full", _seconds(trial)))[:most]


def _seconds(trial: Trial) -> float:
    return math.inf if trial.seconds is None else trial.seconds


class _Final:
    """The final of one plan. Its trials are read from the journal, where the driver writes them."""

    def __init__(
        self, plan: TunePlan, info: DeviceInfo, journal: Journal, best: Sequence[Trial]
    ) -> None:
        self.plan = plan
        self.info = info
        self.journal = journal
        self.reference = Side(backend=plan.reference_backend, config=plan.reference_config)
        self.sides = [Side(backend=plan.backend, config=trial.config) for trial in best]
        self._searched_s = [_seconds(trial) for trial in best]
        self._sets: dict[str, int] = {}
        everyone = (self.reference, *self.sides)
        alone = len(self.sides) == 1
        seeds = plan.acceptance.seeds
        rounds = 0 if alone else _SCREENINGS
        self.screening = Stage(name=SCREENING_STEP, sides=everyone, rounds=rounds, seeds=seeds)

    def stage_of(self, side: Side) -> Stage:
        """Return the stage in which a side is measured against the reference alone."""
        asked = self.plan.acceptance
        both = (self.reference, side)
        rounds = _even(asked.rounds) * self._sets.get(side.key, 1)
        return Stage(name="round", sides=both, rounds=rounds, seeds=asked.seeds)

    def add_set(self, side: Side) -> bool:
        """Add a set of rounds to the final of a side if the measured rounds do not decide it.
        Return whether one was added."""
        sets = self._sets.get(side.key, 1)
        if sets == _MOST_SETS or self.fault(side) is not None or self.fault(self.reference):
            return False
        _, reason = self._verdict(side)
        score = self._score(side)
        close = score is not None and score.ratio >= self.plan.acceptance.min_ratio
        if reason.code not in _UNDECIDED or not close:
            return False
        self._sets[side.key] = sets + 1
        return True

    # Timing

    def measure(self, stage: Stage) -> Work[None]:
        """Request all rounds. A side that fails is dropped; the reference is timed in every one."""
        for number in range(stage.rounds):
            yield from self._round(stage, number)

    def _round(self, stage: Stage, number: int) -> Work[None]:
        """Request one round as a whole: the rest of an interrupted round would be timed under other
        conditions than its first part."""
        sides = [s for s in stage.sides if s == self.reference or self._failed(s) is None]
        if number % 2:
            sides.reverse()
        if all(self._trial(side, stage, number) is not None for side in sides):
            return
        timing = final_timing(self.info, stage.seed(number))
        yield Round(
            requests=tuple(
                Request(
                    case=Case(
                        problem=self.plan.problem,
                        backend=side.backend,
                        config=side.config,
                        timing=timing,
                    ),
                    step=stage.step(number),
                    process=number + 1,
                )
                for side in sides
            ),
            together=True,
        )

    def _trial(self, side: Side, stage: Stage, number: int) -> Trial | None:
        owner = "" if side.backend == self.plan.backend else side.backend
        trial = self.journal.find(config=side.config, step=stage.step(number), backend=owner)
        # A reference that the search skipped for its resources is timed here.
        return None if trial is not None and trial.status is Status.SKIPPED else trial

    def _trials(self, side: Side, stage: Stage) -> list[Trial]:
        trials = (self._trial(side, stage, number) for number in range(stage.rounds))
        return [trial for trial in trials if trial is not None]

    def _failed(self, side: Side) -> Trial | None:
        """Return the first failed trial of a side in any stage, or None."""
        stages = [
            self.screening,
            *(
                self.stage_of(finalist)
                for finalist in self.sides
                if side in (finalist, self.reference)
            ),
        ]
        every = (trial for stage in stages for trial in self._trials(side, stage))
        return next((trial for trial in every if not trial.ok), None)

    # Verifying

    def verify(self, side: Side) -> Work[None]:
        """Request runs of a config on neighbouring sizes, until it ran on as many as the plan
        requests or there are no more."""
        timing = dataclasses.replace(ladder(self.info)[0].timing, seed=_FIRST_SEED)
        while (missing := self.plan.acceptance.neighbours - len(self._near_run(side))) > 0:
            todo = [p for p in self._near if self._near_trial(side, p) is None][:missing]
            if not todo:
                return
            yield Round(
                requests=tuple(
                    Request(
                        case=Case(
                            problem=problem,
                            backend=side.backend,
                            config=side.config,
                            timing=timing,
                        ),
                        step="near",
                    )
                    for problem in todo
                )
            )

    @cached_property
    def _near(self) -> list[Problem]:
        return neighbours(self.plan.problem) if self.plan.acceptance.neighbours else []

    def _near_run(self, side: Side) -> list[Trial]:
        """Return the trials on neighbouring sizes that the config supports."""
        trials = (self._near_trial(side, problem) for problem in self._near)
        return [t for t in trials if t is not None and t.status not in _NOT_SUPPORTED]

    def _near_trial(self, side: Side, problem: Problem) -> Trial | None:
        return self.journal.find(config=side.config, step="near", problem=problem.key)

    def fault(self, side: Side) -> Reason | None:
        """Return why a side failed in any stage or on a neighbouring size, or None."""
        failed = self._failed(side)
        if failed is not None:
            where = "the screening" if is_screening(failed.step) else "the final"
            return _fault("fails-in-step", failed, step=where)
        for trial in self._near_run(side) if side != self.reference else ():
            if trial.status is not Status.OK:
                return _fault("fails-on", trial, problem=trial.problem)
        return None

    # Deciding

    def ratios(self, side: Side, stage: Stage) -> list[float]:
        """Return log(reference / side) of the rounds in which both have a time. The time of a wrong
        reference counts, that of an impossible one does not."""
        ratios = []
        for number in range(stage.rounds):
            base = self._trial(self.reference, stage, number)
            head = self._trial(side, stage, number)
            if base is not None and base.status is Status.IMPOSSIBLE:
                continue
            if base and head and base.seconds and head.seconds and head.ok:
                ratios.append(math.log(base.seconds / head.seconds))
        return ratios

    def ranked(self) -> list[Side]:
        """Return the sides that did not fail, fastest in the screening first."""
        if not self.screening.rounds:
            return self.sides
        means = [
            (statistics.fmean(ratios), side)
            for side in self.sides
            if self._failed(side) is None and (ratios := self.ratios(side, self.screening))
        ]
        return [side for _, side in sorted(means, key=lambda pair: -pair[0])]

    def choice(self, side: Side, stage: Stage) -> Choice:
        """Summarise a side: its time in the stage, and its worst error in any check."""
        trials = self._trials(side, stage)
        own = [*self._trials(side, self.screening), *trials]
        kernels = [trial.kernel for trial in own if trial.kernel.name]
        checked = own if side == self.reference else [*own, *self._near_run(side)]
        times = [trial.seconds for trial in trials if trial.seconds is not None]
        backend = backends.find(side.backend)
        return Choice(
            backend=side.backend,
            config=side.config,
            median_s=statistics.median(times) if times else math.nan,
            kernel=kernels[-1] if kernels else KernelInfo(),
            worst=_worst(checked),
            version="" if backend.available() is not None else backend.version(),
        )

    def _score(self, side: Side) -> Score | None:
        return Score.of(self.ratios(side, self.stage_of(side)), self._sets.get(side.key, 1))

    def _verdict(self, side: Side) -> tuple[bool, Reason]:
        stage = self.stage_of(side)
        tuned = self.choice(side, stage)
        return decide(
            self.plan.acceptance,
            reference=self.choice(self.reference, stage),
            tuned=tuned,
            score=self._score(side),
            fault=self.fault(side),
            reference_fault=self.fault(self.reference),
            disturbed=self._disturbed(side, tuned.median_s),
        )

    def outcome(self, side: Side, evaluations: int) -> Outcome:
        stage = self.stage_of(side)
        reference, tuned = self.choice(self.reference, stage), self.choice(side, stage)
        kept, reason = self._verdict(side)
        ran, asked = len(self._near_run(side)), self.plan.acceptance.neighbours
        if kept and self._near and ran < asked:
            reason = Reason("few-neighbours", cause=reason, ran=ran, asked=asked)
        decided = _outcome(
            self.plan,
            self.info,
            reference=reference,
            tuned=tuned,
            score=self._score(side),
            kept=kept,
            reason=reason,
            evaluations=evaluations,
        )
        disturbed = self._disturbed(side, tuned.median_s) is not None
        return dataclasses.replace(decided, disturbed=disturbed)

    def _disturbed(self, side: Side, final_s: float) -> Reason | None:
        stage = self.stage_of(side)
        if self.fault(side) is not None or not self.ratios(side, stage):
            return None
        return disturbance(
            [trial for one in stage.sides for trial in self._trials(one, stage)],
            max(1, self.info.units),
            searched_s=self._searched_s[self.sides.index(side)],
            final_s=final_s,
            cpu_time=uses_cpu_time(self.info),
        )


def _fault(code: str, trial: Trial, **where: str) -> Reason:
    return Reason(code, status=trial.status.value, cause=trial.error, **where)


def _worst(trials: Sequence[Trial]) -> float:
    """Return the largest error of all checks: infinite if one failed, NaN without any."""
    if any(trial.status is not Status.OK for trial in trials):
        return math.inf
    return max((t.worst for t in trials if t.worst is not None), default=math.nan)


def nothing_found(plan: TunePlan, info: DeviceInfo, journal: Journal, evaluations: int) -> Outcome:
    """Return the outcome of a search without a correct candidate."""
    last = journal.trials[-1] if journal.trials else None
    reason = Reason(
        "none-went-well",
        evaluations=evaluations,
        last=last is not None,
        status=last.status.value if last else "",
        cause=last.error if last else "",
        machine=any(trial.status in OF_THE_MACHINE for trial in journal.trials),
    )
    return _outcome(
        plan,
        info,
        reference=Choice(
            backend=plan.reference_backend,
            config=plan.reference_config,
            median_s=plan.reference_s or math.nan,
        ),
        tuned=Choice(backend=plan.backend),
        score=None,
        kept=False,
        reason=reason,
        evaluations=evaluations,
    )


def _outcome(
    plan: TunePlan,
    info: DeviceInfo,
    *,
    reference: Choice,
    tuned: Choice,
    score: Score | None,
    kept: bool,
    reason: Reason,
    evaluations: int,
) -> Outcome:
    score = score or Score(ratio=math.nan, low=math.nan, high=math.nan, rounds=0)
    return Outcome(
        name=plan.name,
        problem=plan.problem,
        device=info.name,
        arch=info.arch,
        reference=reference,
        tuned=tuned,
        ratio=score.ratio,
        low=score.low,
        high=score.high,
        kept=kept,
        reason=reason,
        count=plan.count,
        share=plan.share,
        evaluations=evaluations,
        blas=plan.blas,
    )


def neighbours(problem: Problem) -> list[Problem]:
    """Return problems of slightly different sizes, odd ones before aligned ones; none for an op
    that a kernel file defines."""
    # An integer parameter of such an op need not be a size: with another axis or group size, a
    # correct kernel may be wrong.
    if isinstance(ops.registry.get(problem.op), OwnOp):
        return []
    problems: list[Problem] = []
    for step in _STEPS.get(problem.op, _GEMM_STEPS):
        if not step.keys() <= problem.dims.keys():
            continue
        dims = {name: size + step.get(name, 0) for name, size in problem.dims.items()}
        try:
            changed = Problem(
                op=problem.op, dims=dims, dtypes=problem.dtypes, options=problem.options
            )
            problems.append(ops.parse(changed.key))
        except KernelmarkError:
            continue
    return problems
