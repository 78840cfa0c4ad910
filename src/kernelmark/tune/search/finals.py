"""The final: the best candidates against the reference, and what is kept.

The fastest of many noisy times is partly the luckiest, so the times that chose a candidate never
say how fast it is. All finalists are screened in two rounds; the best of these is then measured
against the reference alone, and the times of this final are reported. Both are in turns, first
forwards, then backwards (ABBA), in fresh memory and on fresh inputs. A final that was disturbed, or
leaves open which side is faster, is continued. For built-in ops, the winner also has to be right on
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
from kernelmark.core.diskcache import digest
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Config, KernelInfo, Status, config_key
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
# How often the rounds of a plan are played at most, and the verdicts that ask for more of them.
_SETS = 3
_OPEN = ("disturbed", "too-noisy", "not-faster")
_FIRST_SEED = 1001  # far from those of the search
# What a config may be on a size it was not made for: not there, which is no fault.
_NOT_THERE = (Status.UNSUPPORTED, Status.COMPILE_ERROR, Status.SKIPPED)
# Sizes next to a problem's, by op: the first that the config runs are taken. The last ones keep
# to the alignment that descriptors ask for.
_STEPS: dict[str, tuple[dict[str, int], ...]] = {
    "attention": (
        *({"seq_q": 1, "seq_kv": 1}, {"seq_q": -1, "seq_kv": -1}, {"seq_kv": 3}),
        *({"seq_q": 16, "seq_kv": 16}, {"seq_q": 64, "seq_kv": 64}),
    ),
    "conv": ({"h": 1}, {"w": -1}, {"h": -1, "w": 3}, {"h": 2, "w": 2}, {"h": 8}),
}
_PRODUCT = (
    *({"m": 1}, {"n": -1}, {"m": -1}, {"n": 3}, {"m": 5, "n": 7}),
    *({"n": 16}, {"m": 16}, {"n": 64}, {"m": 64, "n": 64}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Who takes part: the reference, or a finalist."""

    backend: str
    config: Config

    @property
    def key(self) -> str:
        return f"{self.backend} {config_key(self.config)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Rounds in which all `sides` are timed in turns, the reference first. Its trials are found in
    the journal by who took part: another field is another stage."""

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
    """Time, verify, decide."""
    match = _Match(plan, info, journal, finalists(reached, plan.acceptance.finalists))
    yield from match.play(match.screening)
    ranked = match.ranked()
    for side in ranked:
        yield from match.verify(side)
        if match.fault(side) is None:
            yield from match.play(match.final(side))
            while match.goes_on(side):
                yield from match.play(match.final(side))
        if match.fault(side) is None:
            return match.outcome(side, evaluations)
    return match.outcome((ranked or match.sides)[0], evaluations)


def timings(plan: TunePlan, candidates: int) -> int:
    """How many timings a final of so many candidates takes when its favourite wins."""
    asked = plan.acceptance
    finalists = min(asked.finalists, candidates)
    screenings = _SCREENINGS * (1 + finalists) if finalists > 1 else 0
    return screenings + set_timings(plan)


def set_timings(plan: TunePlan) -> int:
    """How many timings a set of a final's rounds takes: the reference's and the favourite's."""
    return 2 * _even(plan.acceptance.rounds)


def _even(rounds: int) -> int:
    """Rounds come in twos, forwards and backwards."""
    return max(2, rounds + rounds % 2)


def finalists(reached: Sequence[Trial], most: int) -> list[Trial]:
    """The fastest of those that were timed in full, filled up with others."""
    good = [trial for trial in reached if trial.ok]
    return sorted(good, key=lambda trial: (trial.step != "full", _seconds(trial)))[:most]


def _seconds(trial: Trial) -> float:
    return math.inf if trial.seconds is None else trial.seconds


class _Match:
    """The final of one plan. Answers are in the journal, under steps of this very final."""

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

    def final(self, side: Side) -> Stage:
        asked = self.plan.acceptance
        both = (self.reference, side)
        rounds = _even(asked.rounds) * self._sets.get(side.key, 1)
        return Stage(name="round", sides=both, rounds=rounds, seeds=asked.seeds)

    def goes_on(self, side: Side) -> bool:
        """Ask for another set of rounds if those played leave open whether the side wins."""
        played = self._sets.get(side.key, 1)
        if played == _SETS or self.fault(side) is not None or self.fault(self.reference):
            return False
        _, reason = self._verdict(side)
        score = self._score(side)
        close = score is not None and score.ratio >= self.plan.acceptance.min_ratio
        if reason.code not in _OPEN or not close:
            return False
        self._sets[side.key] = played + 1
        return True

    # Timing

    def play(self, stage: Stage) -> Work[None]:
        """All rounds. Who fails is out; the reference is timed to the end."""
        for number in range(stage.rounds):
            yield from self._round(stage, number)

    def _round(self, stage: Stage, number: int) -> Work[None]:
        """One round, whole: a half of one that was cut off is not paired with a later half."""
        playing = [s for s in stage.sides if s == self.reference or self._failed(s) is None]
        if number % 2:
            playing.reverse()
        if all(self._trial(side, stage, number) is not None for side in playing):
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
                for side in playing
            ),
            together=True,
        )

    def _trial(self, side: Side, stage: Stage, number: int) -> Trial | None:
        owner = "" if side.backend == self.plan.backend else side.backend
        trial = self.journal.find(config=side.config, step=stage.step(number), backend=owner)
        # What the search skipped for its resources is timed here all the same: a reference.
        return None if trial is not None and trial.status is Status.SKIPPED else trial

    def _trials(self, side: Side, stage: Stage) -> list[Trial]:
        trials = (self._trial(side, stage, number) for number in range(stage.rounds))
        return [trial for trial in trials if trial is not None]

    def _failed(self, side: Side) -> Trial | None:
        """The first trial of a side that did not go well, in any stage it was in."""
        stages = [
            self.screening,
            *(
                self.final(finalist)
                for finalist in self.sides
                if side in (finalist, self.reference)
            ),
        ]
        every = (trial for stage in stages for trial in self._trials(side, stage))
        return next((trial for trial in every if not trial.ok), None)

    # Verifying

    def verify(self, side: Side) -> Work[None]:
        """The config on sizes next to the problem's, until it was run on as many as are asked for
        or there are no more."""
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
        """Trials on other sizes that say something: not those where the config is not there."""
        trials = (self._near_trial(side, problem) for problem in self._near)
        return [t for t in trials if t is not None and t.status not in _NOT_THERE]

    def _near_trial(self, side: Side, problem: Problem) -> Trial | None:
        return self.journal.find(config=side.config, step="near", problem=problem.key)

    def fault(self, side: Side) -> Reason | None:
        """What is wrong with a side on any check that was made, or None."""
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
        """Logarithms, of the rounds in which both have a time; a wrong reference has one too, an
        impossible one none that could be believed."""
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
        """Sides that did not fail, the fastest of the screening first."""
        if not self.screening.rounds:
            return self.sides
        places = [
            (statistics.fmean(ratios), side)
            for side in self.sides
            if self._failed(side) is None and (ratios := self.ratios(side, self.screening))
        ]
        return [side for _, side in sorted(places, key=lambda place: -place[0])]

    def choice(self, side: Side, stage: Stage) -> Choice:
        """What a side was in the final, and its worst error in any check."""
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
        return Score.of(self.ratios(side, self.final(side)), self._sets.get(side.key, 1))

    def _verdict(self, side: Side) -> tuple[bool, Reason]:
        stage = self.final(side)
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
        stage = self.final(side)
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
        stage = self.final(side)
        if self.fault(side) is not None or not self.ratios(side, stage):
            return None
        return disturbance(
            [trial for player in stage.sides for trial in self._trials(player, stage)],
            max(1, self.info.units),
            searched_s=self._searched_s[self.sides.index(side)],
            final_s=final_s,
            cpu_time=uses_cpu_time(self.info),
        )


def _fault(code: str, trial: Trial, **where: str) -> Reason:
    return Reason(code, status=trial.status.value, cause=trial.error, **where)


def _worst(trials: Sequence[Trial]) -> float:
    """The largest error of all checks; infinite for any failed one, unknown without one."""
    if any(trial.status is not Status.OK for trial in trials):
        return math.inf
    return max((t.worst for t in trials if t.worst is not None), default=math.nan)


def nothing_found(plan: TunePlan, info: DeviceInfo, journal: Journal, evaluations: int) -> Outcome:
    """The outcome of a search without a single right candidate."""
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
    """Problems whose sizes differ a little from this one's, odd sizes before aligned ones; none for
    an op that a kernel file defines."""
    # An integer parameter of such an op need not be a size: with another axis or group size, a
    # correct kernel may be wrong.
    if isinstance(ops.registry.get(problem.op), OwnOp):
        return []
    problems: list[Problem] = []
    for step in _STEPS.get(problem.op, _PRODUCT):
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
