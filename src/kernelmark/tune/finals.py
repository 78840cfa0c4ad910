"""The final: the best candidates against the reference, and what is kept.

The fastest of many noisy times is partly the luckiest, so the search's own times decide nothing
here. Reference and finalists are timed again in turns, in fresh memory and on fresh inputs, first
forwards, then backwards (ABBA), and the best of them also has to be right on sizes next to the
problem's, where masks and tails differ.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark import backends, ops
from kernelmark.compare.rules.golden_tot import GoldenTot
from kernelmark.core.diskcache import digest
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Config, Status, config_key
from kernelmark.core.units import time_text
from kernelmark.stats.paired import least_rounds, signed_rank
from kernelmark.tune.evaluate import Request, Round, Work, final_timing, ladder
from kernelmark.tune.journal import Journal, Trial
from kernelmark.tune.outcome import Choice, Outcome
from kernelmark.tune.plan import Acceptance, TunePlan

ALPHA = 0.05  # of the interval of the ratio
# An interval whose ends differ by more says that the machine was busy, not how fast a kernel is.
_WIDEST = 2.0
_US = 1e-6
_FIRST_SEED = 1001  # far from those of the search
_RULE = GoldenTot()
# What a config may be on a size it was not made for: not there, but not wrong either.
_NO_FAULT = (Status.OK, Status.UNSUPPORTED, Status.COMPILE_ERROR, Status.SKIPPED)
# Sizes next to a problem's, by op: the first that the op accepts are taken.
_STEPS: dict[str, tuple[dict[str, int], ...]] = {
    "attention": ({"seq_q": 1, "seq_kv": 1}, {"seq_q": -1, "seq_kv": -1}, {"seq_kv": 3}),
    "conv": ({"h": 1}, {"w": -1}, {"h": -1, "w": 3}),
}
_PRODUCT = ({"m": 1}, {"n": -1}, {"m": -1}, {"n": 3}, {"m": 5, "n": 7})


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Who takes part: the reference, or a finalist."""

    backend: str
    config: Config

    @property
    def key(self) -> str:
        return f"{self.backend} {config_key(self.config)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Reference over finalist, over the rounds that both ended well."""

    ratio: float
    low: float
    high: float
    rounds: int


def finals(
    plan: TunePlan, info: DeviceInfo, journal: Journal, reached: Sequence[Trial], evaluations: int
) -> Work[Outcome]:
    """Time, verify, decide."""
    match = _Match(plan, info, journal, finalists(reached, plan.acceptance.finalists))
    yield from match.play()
    for side in match.ranked():
        yield from match.verify(side)
        if match.fault(side) is None:
            return match.outcome(side, evaluations)
    ranked = match.ranked() or match.sides
    return match.outcome(ranked[0], evaluations)


def finalists(reached: Sequence[Trial], most: int) -> list[Config]:
    """The fastest of those that were timed longest, filled up with others."""
    good = [trial for trial in reached if trial.ok]
    steps = list(dict.fromkeys(trial.step for trial in good))
    full = [t for t in good if t.step == "full"] if "full" in steps else []
    rest = [t for t in good if t not in full]
    ordered = [*sorted(full, key=_seconds), *sorted(rest, key=_seconds)]
    return [trial.config for trial in ordered[:most]]


def _seconds(trial: Trial) -> float:
    return math.inf if trial.seconds is None else trial.seconds


class _Match:
    """The final of one plan. Answers are in the journal, under steps of this very final."""

    def __init__(
        self, plan: TunePlan, info: DeviceInfo, journal: Journal, configs: Sequence[Config]
    ) -> None:
        self.plan = plan
        self.info = info
        self.journal = journal
        self.reference = Side(backend=plan.reference_backend, config=plan.reference_config)
        self.sides = [Side(backend=plan.backend, config=config) for config in configs]
        everyone = sorted(side.key for side in (self.reference, *self.sides))
        self._tag = digest(*everyone, str(plan.acceptance.seeds))[:8]

    # Timing

    def play(self) -> Work[None]:
        """All rounds, two by two. Who fails is out; the reference is timed to the end."""
        for first in range(0, max(2, self.plan.acceptance.rounds), 2):
            for number in (first, first + 1):
                yield from self._round(number)

    def _round(self, number: int) -> Work[None]:
        """One round, whole: a half of one that was cut off is not paired with a later half."""
        playing = [self.reference, *(s for s in self.sides if self._trial_fault(s) is None)]
        if number % 2:
            playing.reverse()
        if all(self._found(side, number) is not None for side in playing):
            return
        seed = _FIRST_SEED + number // 2 % max(1, self.plan.acceptance.seeds)
        timing = final_timing(self.info, seed)
        yield Round(
            requests=tuple(
                Request(
                    case=Case(
                        problem=self.plan.problem,
                        backend=side.backend,
                        config=side.config,
                        timing=timing,
                    ),
                    step=self._step(number),
                    process=number + 1,
                )
                for side in playing
            ),
            together=True,
        )

    def _step(self, number: int) -> str:
        return f"final {self._tag} round {number}"

    def _found(self, side: Side, number: int) -> Trial | None:
        owner = "" if side.backend == self.plan.backend else side.backend
        return self.journal.find(config=side.config, step=self._step(number), backend=owner)

    def _trials(self, side: Side) -> list[Trial]:
        rounds = range(max(2, self.plan.acceptance.rounds) + 1)
        found = (self._found(side, number) for number in rounds)
        return [trial for trial in found if trial is not None]

    def _trial_fault(self, side: Side) -> Trial | None:
        return next((trial for trial in self._trials(side) if not trial.ok), None)

    # Verifying

    def verify(self, side: Side) -> Work[None]:
        """The config on sizes next to the problem's."""
        requests = [
            Request(
                case=Case(
                    problem=problem,
                    backend=side.backend,
                    config=side.config,
                    timing=dataclasses.replace(ladder(self.info)[0].timing, seed=_FIRST_SEED),
                ),
                step="near",
            )
            for problem in self._near()
            if self._near_trial(side, problem) is None
        ]
        if requests:
            yield Round(requests=tuple(requests))

    def _near(self) -> list[Problem]:
        return neighbours(self.plan.problem, self.plan.acceptance.neighbours)

    def _near_trial(self, side: Side, problem: Problem) -> Trial | None:
        return self.journal.find(config=side.config, step="near", problem=problem.key)

    def fault(self, side: Side) -> str | None:
        """What is wrong with a side on any check that was made, or None."""
        failed = self._trial_fault(side)
        if failed is not None:
            return f"it is {failed.status.value} in the final: {failed.error}"
        for problem in self._near() if side != self.reference else ():
            trial = self._near_trial(side, problem)
            if trial is not None and trial.status not in _NO_FAULT:
                return f"it is {trial.status.value} on {problem.key}: {trial.error}"
        return None

    # Deciding

    def score(self, side: Side) -> Score | None:
        """The ratio over all rounds in which both have a time; a wrong reference has one too."""
        pairs = []
        for number in range(max(2, self.plan.acceptance.rounds) + 1):
            base, head = self._found(self.reference, number), self._found(side, number)
            if base and head and base.seconds and head.seconds and head.ok:
                pairs.append(math.log(base.seconds / head.seconds))
        if not pairs:
            return None
        found = signed_rank(pairs, ALPHA)
        low, high = (0.0 if found.low == -math.inf else math.exp(found.low)), math.exp(found.high)
        return Score(ratio=math.exp(found.centre), low=low, high=high, rounds=len(pairs))

    def ranked(self) -> list[Side]:
        """Sides that have a time and did not fail, the fastest first."""
        scored = [(side, self.score(side)) for side in self.sides]
        good = [(s, score) for s, score in scored if score and self._trial_fault(s) is None]
        return [side for side, _ in sorted(good, key=lambda pair: -pair[1].ratio)]

    def choice(self, side: Side) -> Choice:
        trials = self._trials(side)
        near = [self._near_trial(side, problem) for problem in self._near()]
        checked = [*trials, *(t for t in near if t is not None and side != self.reference)]
        times = [trial.seconds for trial in trials if trial.seconds is not None]
        found = backends.find(side.backend)
        return Choice(
            backend=side.backend,
            config=side.config,
            median_s=statistics.median(times) if times else math.nan,
            kernel=trials[-1].kernel if trials else Choice(backend=side.backend).kernel,
            worst=_worst(checked),
            version="" if found.available() is not None else found.version(),
        )

    def outcome(self, side: Side, evaluations: int) -> Outcome:
        reference, tuned, score = self.choice(self.reference), self.choice(side), self.score(side)
        kept, reason = decide(
            self.plan.acceptance,
            reference=reference,
            tuned=tuned,
            score=score,
            fault=self.fault(side),
            reference_fault=self.fault(self.reference),
        )
        return _outcome(
            self.plan,
            self.info,
            reference=reference,
            tuned=tuned,
            score=score,
            kept=kept,
            reason=reason,
            evaluations=evaluations,
        )


def _worst(trials: Sequence[Trial]) -> float:
    """The largest error of all checks; infinite for any failed one, unknown without one."""
    if any(trial.status not in _NO_FAULT for trial in trials):
        return math.inf
    return max((t.worst for t in trials if t.worst is not None), default=math.nan)


def decide(
    asked: Acceptance,
    *,
    reference: Choice,
    tuned: Choice,
    score: Score | None,
    fault: str | None,
    reference_fault: str | None,
) -> tuple[bool, str]:
    """Whether the tuned config is kept, and why, in one sentence."""
    if fault is not None:
        return False, f"not verified: {fault}"
    if score is None:
        return False, f"the reference has no time: {reference_fault or 'nothing was measured'}"
    beside = f"; the reference itself: {reference_fault}" if reference_fault else ""
    gain_us = (reference.median_s - tuned.median_s) / _US
    shown = f"{score.ratio:.3f} × ({score.low:.3f} to {score.high:.3f})"
    smallest = _RULE.ignore_below_us
    if reference.median_s < smallest * _US:
        told = time_text(reference.median_s)
        return False, f"too small to judge: the reference takes {told}, under {smallest:g} µs"
    if score.low <= 1.0:
        few = least_rounds(ALPHA)
        short = f"; it takes {few} rounds to tell" if score.rounds < few else ""
        verdict = "slower" if score.high < 1.0 else "not surely faster"
        return False, f"{verdict}: {shown} over {score.rounds} rounds{short}{beside}"
    if score.high > _WIDEST * score.low:
        told = f"{shown} over {score.rounds} rounds; more rounds in its plan may tell"
        return False, f"too noisy to judge: {told}{beside}"
    if score.ratio < asked.min_ratio:
        return False, f"gains too little: {shown}, {asked.min_ratio:g} × is asked for{beside}"
    if gain_us < asked.min_gain_us:
        floor = f"{asked.min_gain_us:g} µs is asked for"
        return False, f"gains too little: {gain_us:.2f} µs a call, {floor}{beside}"
    if tuned.median_s > _RULE.factor * reference.median_s + _RULE.slack_us * _US:
        return False, f"harms: slower than {_RULE.factor:g} × reference + {_RULE.slack_us:g} µs"
    return True, f"faster: {shown}, {gain_us:.2f} µs a call{beside}"


def nothing_found(plan: TunePlan, info: DeviceInfo, journal: Journal, evaluations: int) -> Outcome:
    """The outcome of a search without a single right candidate."""
    last = journal.trials[-1] if journal.trials else None
    why = f"; the last one is {last.status.value}: {last.error}" if last else ""
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
        reason=f"none of {evaluations} candidates went well{why}",
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
    reason: str,
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


def neighbours(problem: Problem, most: int) -> list[Problem]:
    """Up to `most` problems that differ from this one by a little in size."""
    found: list[Problem] = []
    for step in _STEPS.get(problem.op, _PRODUCT):
        if len(found) == most or not step.keys() <= problem.dims.keys():
            continue
        dims = {name: size + step.get(name, 0) for name, size in problem.dims.items()}
        try:
            changed = Problem(
                op=problem.op, dims=dims, dtypes=problem.dtypes, options=problem.options
            )
            found.append(ops.parse(changed.key))
        except KernelmarkError:
            continue
    return found
