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

from kernelmark import ops
from kernelmark.backends import names_of
from kernelmark.compare.rules.golden_tot import GoldenTot
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason, suffixed
from kernelmark.core.result import Case, Config, KernelInfo, Status, config_key, split_config
from kernelmark.core.timing import Timing
from kernelmark.core.units import counted, time_text
from kernelmark.host.cache import digest
from kernelmark.measure.blocks import LOAD_SHARE
from kernelmark.ops._own import OwnOp
from kernelmark.runners import kernel_files
from kernelmark.stats.paired import least_rounds, signed_rank
from kernelmark.tune.evaluate import Request, TrialRound, Work, final_timing, ladder, uses_cpu_time
from kernelmark.tune.journal import (
    FINAL_STEP,
    OF_THE_MACHINE,
    SCREENING_STEP,
    Journal,
    Trial,
    is_screening,
)
from kernelmark.tune.plans import ALPHA, Acceptance, TunePlan
from kernelmark.tune.results import Choice, Outcome

# Largest high / low of an interval. Wider ones come from a busy machine, not from the kernel.
_WIDEST = 2.0
# Largest time of the final / time in the search. Both are timed in the same way: of 143 winners on
# an H200 none exceeded 1.05, while other processes slow a CPU down several times.
_LONGEST = 1.5
_US = 1e-6
_RULE = GoldenTot()
_SCREENINGS = 2  # once forwards, once backwards
# Largest number of sets of a plan's rounds, and the decisions after which another set is measured.
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
class Score:
    """The ratio reference time / finalist time, over the rounds in which both succeeded."""

    ratio: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, log_ratios: Sequence[float], looks: int = 1) -> Score | None:
        """Return the score from the logarithm of each round's ratio; None without rounds.

        `looks` is the number of times the rounds were judged, including this one. Repeated looks
        raise the chance of a false positive, so alpha is divided by it (Bonferroni)."""
        if not log_ratios:
            return None
        interval = signed_rank(log_ratios, ALPHA / looks)
        return cls(
            ratio=math.exp(interval.centre),
            low=0.0 if interval.low == -math.inf else math.exp(interval.low),
            high=math.exp(interval.high),
            rounds=len(log_ratios),
        )


def disturbance(
    trials: Sequence[Trial], cores: int, *, searched_s: float, final_s: float, cpu_time: bool
) -> Reason | None:
    """Return a reason if other work disturbed the `trials` of a final, else None.

    Other work only makes times longer, so a final that is faster than the search is not a sign.
    `cpu_time` excludes other processes on the core, so their load alone is not a disturbance.
    """
    loads = [trial.load for trial in trials if trial.load is not None]
    load = statistics.fmean(loads) if loads else 0.0
    if load > LOAD_SHARE * cores and not cpu_time:
        return Reason(f"other work used {load:.1f} of {counted(cores, 'core')} during the final")
    if final_s > _LONGEST * searched_s:
        return Reason(
            f"it takes {time_text(final_s)} in the final, and took "
            f"{time_text(searched_s)} in the search"
        )
    return None


def _score(score: Score) -> str:
    return f"{score.ratio:.3f} × ({score.low:.3f} to {score.high:.3f})"


def decide(
    acceptance: Acceptance,
    *,
    reference: Choice,
    tuned: Choice,
    score: Score | None,
    fault: Reason | None,
    reference_fault: Reason | None,
    disturbed: Reason | None = None,
) -> tuple[bool, Reason]:
    """Return whether the tuned config is kept, and why."""
    if fault is not None:
        return False, Reason(f"not verified: {fault}")
    if score is None:
        cause = reference_fault or Reason("nothing was measured")
        return False, Reason(f"the reference has no time: {cause}")
    if disturbed is not None:
        return False, Reason(
            f"too noisy to judge: {disturbed}; time it again on a quiet machine",
            "disturbed",
            cause=disturbed,
        )
    if reference.median_s < _RULE.ignore_below_us * _US:
        least_us = _RULE.ignore_below_us
        return False, Reason(
            "too small to judge: the reference takes "
            f"{time_text(reference.median_s)}, under {least_us:g} µs"
        )
    gain_s, rounds = reference.median_s - tuned.median_s, score.rounds
    shown = {
        "ratio": score.ratio,
        "low": score.low,
        "high": score.high,
        "rounds": rounds,
        "gain_s": gain_s,
        "reference_fault": reference_fault,
    }
    but = f"; the reference itself: {reference_fault}" if reference_fault else ""
    if score.high < 1.0:
        return False, Reason(
            f"slower: {_score(score)} over {rounds} rounds{but}", "slower", **shown
        )
    if score.low <= 1.0:
        few = least_rounds(ALPHA)
        return False, Reason(
            f"not significantly faster: {_score(score)} over {rounds} rounds"
            + (f"; it takes {few} rounds to decide" if rounds < few else "")
            + but,
            "not-faster",
            **shown,
        )
    if score.high > _WIDEST * score.low:
        return False, Reason(
            f"too noisy to judge: {_score(score)} over {rounds} rounds; more rounds in its plan"
            f" may decide{but}",
            "too-noisy",
            **shown,
        )
    if score.ratio < acceptance.min_ratio:
        return False, Reason(
            f"gains too little: {_score(score)}, {acceptance.min_ratio:g} × is required{but}",
            "gain-too-small",
            **shown,
        )
    if gain_s < acceptance.min_gain_us * _US:
        least = time_text(acceptance.min_gain_us * _US)
        return False, Reason(
            f"gains too little: {time_text(gain_s)} per call, {least} is required{but}",
            "gain-too-small",
            **shown,
        )
    return True, Reason(
        f"faster: {_score(score)}, {time_text(gain_s)} per call{but}", "faster", **shown
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalDecision:
    """A finalist against the reference, whether it is kept, and why."""

    reference: Choice
    tuned: Choice
    score: Score | None
    kept: bool
    reason: Reason
    disturbed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalSide:
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
    sides: tuple[FinalSide, ...]
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
    acceptance = plan.acceptance
    finalists = min(acceptance.finalists, candidates)
    screenings = _SCREENINGS * (1 + finalists) if finalists > 1 else 0
    return screenings + set_timings(plan)


def set_timings(plan: TunePlan) -> int:
    """Return the timings of a set of a final's rounds: of the reference and of one finalist."""
    return 2 * _even(plan.acceptance.rounds)


def _even(rounds: int) -> int:
    """Round up to an even number of rounds, forwards and backwards; at least 2."""
    return max(2, rounds + rounds % 2)


def finalists(reached: Sequence[Trial], most: int) -> list[Trial]:
    """Return the fastest trials that were timed in full, then the fastest others, but none that was
    cut off after its first launch."""
    good = [trial for trial in reached if trial.ok and not trial.is_cut]
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
        self.reference = FinalSide(backend=plan.reference_backend, config=plan.reference_config)
        self.sides = [FinalSide(backend=plan.backend, config=trial.config) for trial in best]
        self._searched_s = [_seconds(trial) for trial in best]
        self._sets: dict[str, int] = {}
        everyone = (self.reference, *self.sides)
        alone = len(self.sides) == 1
        seeds = plan.acceptance.seeds
        rounds = 0 if alone else _SCREENINGS
        self.screening = Stage(name=SCREENING_STEP, sides=everyone, rounds=rounds, seeds=seeds)

    def stage_of(self, side: FinalSide) -> Stage:
        """Return the stage in which a side is measured against the reference alone."""
        acceptance = self.plan.acceptance
        sides = (self.reference, side)
        rounds = _even(acceptance.rounds) * self._sets.get(side.key, 1)
        return Stage(name="round", sides=sides, rounds=rounds, seeds=acceptance.seeds)

    def add_set(self, side: FinalSide) -> bool:
        """Add a set of rounds to the final of a side if the measured rounds do not decide it.
        Return whether one was added."""
        sets = self._sets.get(side.key, 1)
        if sets == _MOST_SETS or self.fault(side) is not None or self.fault(self.reference):
            return False
        decision = self._judge(side)
        close = (
            decision.score is not None and decision.score.ratio >= self.plan.acceptance.min_ratio
        )
        if decision.reason.code not in _UNDECIDED or not close:
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
        yield TrialRound(
            requests=tuple(
                Request(
                    case=self._case(side, timing, self.plan.problem),
                    step=stage.step(number),
                    process=number + 1,
                )
                for side in sides
            ),
            together=True,
        )

    def _trial(self, side: FinalSide, stage: Stage, number: int) -> Trial | None:
        owner = "" if side.backend == self.plan.backend else side.backend
        trial = self.journal.find(config=side.config, step=stage.step(number), backend=owner)
        # A reference that the search skipped for its resources is timed here.
        return None if trial is not None and trial.status is Status.SKIPPED else trial

    def _trials(self, side: FinalSide, stage: Stage) -> list[Trial]:
        trials = (self._trial(side, stage, number) for number in range(stage.rounds))
        return [trial for trial in trials if trial is not None]

    def _failed(self, side: FinalSide) -> Trial | None:
        """Return the first failed trial of a side in any stage, or None."""
        own = [s for s in self.sides if side in (s, self.reference)]
        stages = [self.screening, *map(self.stage_of, own)]
        every = (trial for stage in stages for trial in self._trials(side, stage))
        return next((trial for trial in every if not trial.ok), None)

    # Verifying

    def verify(self, side: FinalSide) -> Work[None]:
        """Request runs of a config on neighbouring sizes, until it ran on as many as the plan
        requests or there are no more."""
        timing = dataclasses.replace(ladder(self.info)[0].timing, seed=_FIRST_SEED)
        while (missing := self.plan.acceptance.neighbours - len(self._near_run(side))) > 0:
            todo = [p for p in self._near if self._near_trial(side, p) is None][:missing]
            if not todo:
                return
            yield TrialRound(
                requests=tuple(
                    Request(case=self._case(side, timing, problem), step="near") for problem in todo
                )
            )

    def _case(self, side: FinalSide, timing: Timing, problem: Problem) -> Case:
        timing = dataclasses.replace(timing, threads=self.plan.threads)
        return Case(problem=problem, backend=side.backend, config=side.config, timing=timing)

    @cached_property
    def _near(self) -> list[Problem]:
        return neighbours(self.plan.problem) if self.plan.acceptance.neighbours else []

    def _near_run(self, side: FinalSide) -> list[Trial]:
        """Return the trials on neighbouring sizes that the config supports."""
        trials = (self._near_trial(side, problem) for problem in self._near)
        return [t for t in trials if t is not None and t.status not in _NOT_SUPPORTED]

    def _near_trial(self, side: FinalSide, problem: Problem) -> Trial | None:
        return self.journal.find(config=side.config, step="near", problem=problem.key)

    def fault(self, side: FinalSide) -> Reason | None:
        """Return why a side failed in any stage or on a neighbouring size, or None."""
        failed = self._failed(side)
        if failed is not None:
            where = "the screening" if is_screening(failed.step) else "the final"
            return _fault(failed, f"in {where}")
        for trial in self._near_run(side) if side != self.reference else ():
            if trial.status is not Status.OK:
                return _fault(trial, f"on {trial.problem}")
        return None

    # Deciding

    def ratios(self, side: FinalSide, stage: Stage) -> list[float]:
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

    def ranked(self) -> list[FinalSide]:
        """Return the sides that did not fail, fastest in the screening first."""
        if not self.screening.rounds:
            return self.sides
        means = [
            (statistics.fmean(ratios), side)
            for side in self.sides
            if self._failed(side) is None and (ratios := self.ratios(side, self.screening))
        ]
        return [side for _, side in sorted(means, key=lambda pair: -pair[0])]

    def choice(self, side: FinalSide, stage: Stage) -> Choice:
        """Summarise a side: its time in the stage, and its worst error in any check."""
        trials = self._trials(side, stage)
        own = [*self._trials(side, self.screening), *trials]
        kernels = [trial.kernel for trial in own if trial.kernel.name]
        checked = own if side == self.reference else [*own, *self._near_run(side)]
        times = [trial.seconds for trial in trials if trial.seconds is not None]
        name, config = side.backend, side.config
        if config and len(names_of(name)) > 1:
            name, config = split_config(config)
        backend = kernel_files.find(name)
        return Choice(
            backend=name,
            config=config,
            median_s=statistics.median(times) if times else math.nan,
            kernel=kernels[-1] if kernels else KernelInfo(),
            worst=_worst(checked),
            version="" if backend.available() is not None else backend.version(),
        )

    def _judge(self, side: FinalSide) -> FinalDecision:
        stage = self.stage_of(side)
        ratios, fault = self.ratios(side, stage), self.fault(side)
        reference, tuned = self.choice(self.reference, stage), self.choice(side, stage)
        disturbed = None
        if fault is None and ratios:
            disturbed = disturbance(
                [trial for each in stage.sides for trial in self._trials(each, stage)],
                max(1, self.info.units),
                searched_s=self._searched_s[self.sides.index(side)],
                final_s=tuned.median_s,
                cpu_time=uses_cpu_time(self.info),
            )
        score = Score.of(ratios, self._sets.get(side.key, 1))
        kept, reason = decide(
            self.plan.acceptance,
            reference=reference,
            tuned=tuned,
            score=score,
            fault=fault,
            reference_fault=self.fault(self.reference),
            disturbed=disturbed,
        )
        return FinalDecision(
            reference=reference,
            tuned=tuned,
            score=score,
            kept=kept,
            reason=reason,
            disturbed=disturbed is not None,
        )

    def outcome(self, side: FinalSide, evaluations: int) -> Outcome:
        decision = self._judge(side)
        ran, required = len(self._near_run(side)), self.plan.acceptance.neighbours
        if decision.kept and self._near and ran < required:
            sizes = f"{ran} of {required} neighbouring sizes: the config supports no others"
            reason = suffixed(decision.reason, f"; verified on {sizes}")
            decision = dataclasses.replace(decision, reason=reason)
        outcome = _outcome(self.plan, self.info, decision, evaluations)
        if not (reached := _reached_s(self.plan, self.journal)):
            return outcome
        each = ", ".join(f"{name} {time_text(seconds)}" for name, seconds in reached.items())
        return dataclasses.replace(
            outcome,
            reached_s=FrozenDict(reached),
            reason=suffixed(outcome.reason, f"; reached in the search: {each}"),
        )


def _reached_s(plan: TunePlan, journal: Journal) -> dict[str, float]:
    """Return the shortest time of each of several backends in the search."""
    reached = dict.fromkeys(names_of(plan.backend), math.inf)
    if len(reached) > 1:
        for trial in journal.trials:
            if trial.of_search and trial.ok:
                name, _ = split_config(trial.config)
                reached[name] = min(reached[name], _seconds(trial))
    return {name: seconds for name, seconds in reached.items() if seconds < math.inf}


def _fault(trial: Trial, where: str) -> Reason:
    return Reason(f"it is {trial.status.value} {where}: {trial.error}")


def _worst(trials: Sequence[Trial]) -> float:
    """Return the largest error of all checks: infinite if one failed, NaN without any."""
    if any(trial.status is not Status.OK for trial in trials):
        return math.inf
    return max((t.worst for t in trials if t.worst is not None), default=math.nan)


def nothing_found(plan: TunePlan, info: DeviceInfo, journal: Journal, evaluations: int) -> Outcome:
    """Return the outcome of a search without a correct candidate."""
    last = journal.trials[-1] if journal.trials else None
    reason = Reason(
        f"none of {evaluations} candidates succeeded"
        + (f"; the last one is {last.status.value}: {last.error}" if last is not None else "")
        + (
            " ('kmark tune run --retry-failed' tries them again)"
            if any(trial.status in OF_THE_MACHINE for trial in journal.trials)
            else ""
        )
    )
    reference = Choice(
        backend=plan.reference_backend,
        config=plan.reference_config,
        median_s=plan.reference_s or math.nan,
    )
    tuned = Choice(backend=plan.backend)
    decision = FinalDecision(
        reference=reference, tuned=tuned, score=None, kept=False, reason=reason
    )
    return _outcome(plan, info, decision, evaluations)


def _outcome(
    plan: TunePlan, info: DeviceInfo, decision: FinalDecision, evaluations: int
) -> Outcome:
    score = decision.score
    return Outcome(
        name=plan.name,
        problem=plan.problem,
        device=info.name,
        arch=info.arch,
        reference=decision.reference,
        tuned=decision.tuned,
        ratio=score.ratio if score else math.nan,
        low=score.low if score else math.nan,
        high=score.high if score else math.nan,
        kept=decision.kept,
        reason=decision.reason,
        count=plan.count,
        share=plan.share,
        evaluations=evaluations,
        blas=plan.blas,
        disturbed=decision.disturbed,
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
