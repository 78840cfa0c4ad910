"""Base class of rules, which judge pairs of results."""

from __future__ import annotations

import dataclasses
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from kernelmark.compare import match
from kernelmark.compare.match import Pair, groups
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import computed_once
from kernelmark.core.reason import NO_REASON, Reason, shorten
from kernelmark.core.result import Measurement, Result, Status, is_wide
from kernelmark.core.units import change_text, join_and, time_text
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.interval import modes_text

Facts = tuple[tuple[str, str], ...]


class _ReasonMemory:
    __slots__ = ("_reason",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement(_ReasonMemory):
    """A rule's judgement of a pair. `base_s` and `head_s` are the times to show: the medians, or
    times that the rule computed for each side; `ratio` is their quotient, between `low` and `high`.
    `judged` is the ratio that decided the verdict if it is another one: at equal clocks, or of
    block means. `detectable` is the least slowdown that would have been found (0.02 is 2 %).
    `common` is the ratio that rows on a CPU have in common, because the machine has changed or all
    kernels. `why` and `explanation` are the `reason` and the `facts`, or functions that build them:
    of a suite's thousand rows a page shows fifty, and `--explain` one."""

    status: VerdictStatus
    why: Reason | Callable[[], Reason] = field(compare=False)
    base_s: float | None = None
    head_s: float | None = None
    ratio: float | None = None
    judged: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    detectable: float | None = None
    common: float | None = None
    explanation: Facts | Callable[[], Facts] = field(default=(), compare=False, repr=False)

    @computed_once
    def reason(self) -> Reason:
        return self.why() if callable(self.why) else self.why

    @property
    def facts(self) -> Facts:
        """The intermediate values of the judgement, as (name, text)."""
        return self.explanation() if callable(self.explanation) else self.explanation


class Rule(ABC):
    """A criterion for slower and faster."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Names and values as plain JSON, for display."""

    @abstractmethod
    def weigh(self, pairs: Sequence[Pair]) -> list[Judgement]:
        """Judge pairs whose two results are both correct and have times."""

    def notes(self, pairs: Sequence[Pair]) -> list[str]:
        """Return remarks on these rows for the reader."""
        return []

    def holds(self, pair: Pair) -> bool:
        """Return whether an alarm of this pair is suppressed when a canary moved."""
        return True

    def judge(self, pairs: Sequence[Pair]) -> list[Judgement]:
        """Judge each pair. Missing sides, failures and metrics are judged here; `weigh` gets only
        pairs of correct results with times."""
        judged = [
            _judge_metric(pair) if pair.metric else _judge_without_times(pair) for pair in pairs
        ]
        rest = [pair for pair, verdict in zip(pairs, judged, strict=True) if verdict is None]
        weighed = iter(self.weigh(rest))
        return [next(weighed) if verdict is None else verdict for verdict in judged]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset(Rule):
    """A rule that comes with kernelmark; its fields are its settings. The first line of its
    module's docstring describes it."""

    @property
    def settings(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def changed(self, settings: Mapping[str, object]) -> Self:
        """Return this rule with other settings."""
        for name, value in settings.items():
            if name not in self.settings:
                raise UsageError(
                    f"unknown setting {name!r} of {self.name}",
                    hint=f"it has: {', '.join(self.settings)}",
                )
            number = value if isinstance(value, int | float) and value is not True else 0
            if not 0 < number < math.inf:
                expected = "a number above 0"
                raise UsageError(f"{name}={value!r} is not {expected}")
        changed_preset = dataclasses.replace(self, **settings)
        if fault := changed_preset.fault():
            raise UsageError(fault)
        return changed_preset

    def fault(self) -> Reason:
        """Return what is wrong with the settings, NO_REASON if nothing."""
        return NO_REASON


def measured(result: Result) -> Measurement:
    """Return the measurement of a result that `weigh` gets."""
    if result.measurement is None:
        raise ValueError("a rule weighs only results with times")
    return result.measurement


def times(pair: Pair) -> tuple[Result, Result]:
    """Return both results of a pair that `weigh` gets."""
    if pair.base is None or pair.head is None:
        raise ValueError("a rule weighs only pairs of two results")
    return pair.base, pair.head


def medians_s(pair: Pair) -> tuple[float, float]:
    """Return the median times of a pair that `weigh` gets, as shown by `kmark show` and history."""
    base, head = times(pair)
    return measured(base).median_s, measured(head).median_s


def checked(
    pair: Pair, status: VerdictStatus, reason: Callable[[], Reason], contrary: Callable[[], Reason]
) -> tuple[VerdictStatus, Callable[[], Reason]]:
    """Return the verdict with its reason. A change becomes unsure if a side is unreliable, as in
    history, or, with the reason `contrary`, if the medians moved in the opposite direction."""
    if status not in (VerdictStatus.SLOWER, VerdictStatus.FASTER):
        return status, reason
    sides = zip(("base", "head"), map(measured, times(pair)), strict=True)
    doubtful = tuple(
        name for name, side in sides if not side.reliable or is_wide(side.low_s, side.high_s)
    )
    if doubtful:
        return VerdictStatus.UNSURE, lambda: Reason(
            f"{reason()}, but {join_and(doubtful)} unreliable: measure again",
            "sides-unreliable",
            cause=reason(),
            sides=doubtful,
        )
    base_s, head_s = medians_s(pair)
    if head_s > base_s if status is VerdictStatus.SLOWER else head_s < base_s:
        return status, reason
    return VerdictStatus.UNSURE, contrary


def disagreement(pair: Pair, judged: float) -> Reason:
    """Return the reason that the medians and the means over blocks (ratio `judged`) disagree."""
    base_s, head_s = medians_s(pair)
    return Reason(
        f"medians changed by {change_text(head_s / base_s)}, means over blocks"
        f" by {change_text(judged)}",
        "medians-disagree",
        ratio=head_s / base_s,
        judged=judged,
    )


def centre_s(result: Result, pair: Pair) -> float:
    """Return the time by which a side is judged: the median, or, in a multimodal pair, the
    geometric mean of its blocks' means."""
    if not pair.multimodal:
        return measured(result).median_s
    means = groups(measured(result), means=True)
    return statistics.geometric_mean([time_s for group in means for time_s in group])


def mode_facts(pair: Pair, names: tuple[str, str] = ("base", "head")) -> Facts:
    """Return the modes of both sides of a multimodal pair; nothing for other pairs."""
    if not pair.multimodal:
        return ()
    return tuple(
        (f"modes of {name}", modes_text(measured(side).modes) or "one")
        for name, side in zip(names, times(pair), strict=True)
    )


def noted(reason: Reason, pair: Pair, medians: float | None = None) -> Reason:
    """Return the reason, wrapped in `by-block-means` for a multimodal pair. `medians` is the ratio
    that the row shows, if it is not that of the block means."""
    if not pair.multimodal:
        return reason
    if medians is None or reason.code == "medians-disagree":  # which has both ratios
        return Reason(
            f"{reason}; multimodal: judged by block means", "by-block-means", cause=reason
        )
    return Reason(
        f"{reason}; multimodal: judged by block means, while medians changed by"
        f" {change_text(medians)}",
        "by-block-means",
        cause=reason,
        medians=medians,
    )


def _judge_metric(pair: Pair) -> Judgement:
    status, reason = match.status_of(pair)
    return Judgement(
        status=status,
        why=reason,
        ratio=match.ratio_of(*pair.metrics),
        explanation=match.facts_of(pair),
    )


def _judge_without_times(pair: Pair) -> Judgement | None:
    base, head = pair.base, pair.head
    if head is None:
        return Judgement(
            status=VerdictStatus.GONE,
            why=Reason("head has no such result", "only-in-base"),
            base_s=_time(base),
        )
    if base is None:
        return Judgement(
            status=VerdictStatus.NEW,
            why=Reason("base has no such result", "only-in-head"),
            head_s=_time(head),
        )
    good = [_is_good(base), _is_good(head)]
    if all(good) and (base.metrics or head.metrics):
        return Judgement(status=VerdictStatus.IGNORED, why=Reason("no metric in common"))
    if all(good):
        return None
    if not any(good):
        base_failure, head_failure = _failure(base), _failure(head)
        reason = Reason(f"base: {base_failure}; head: {head_failure}")
        if str(base_failure) == str(head_failure):  # compare the text, not the fields
            reason = Reason(f"both: {base_failure}", "both-failed", cause=base_failure)
        facts = (("base", _full_failure(base)), ("head", _full_failure(head)))
        return Judgement(status=VerdictStatus.IGNORED, why=reason, explanation=facts)
    if good[0]:
        return Judgement(
            status=VerdictStatus.BROKEN,
            why=_failure(head),
            base_s=_time(base),
            explanation=(("base", _shown_time(base)), ("head", _full_failure(head))),
        )
    return Judgement(
        status=VerdictStatus.FIXED,
        why=Reason(f"it was {_failure(base)}", "failed-before", cause=_failure(base)),
        head_s=_time(head),
        explanation=(("base", _full_failure(base)), ("head", _shown_time(head))),
    )


def _is_good(result: Result) -> bool:
    measured = result.measurement is not None or bool(result.metrics)
    return result.status is Status.OK and measured


def _time(result: Result | None) -> float | None:
    if result is None or result.measurement is None or result.status is not Status.OK:
        return None
    return result.measurement.median_s


def _shown_time(result: Result) -> str:
    time_s = _time(result)
    return "no time" if time_s is None else time_text(time_s)


def _failure(result: Result) -> Reason:
    if result.status is Status.OK:
        return Reason("ok without a time")
    return Reason(
        result.status.value + (f": {shorten(result.why)}" if result.why else ""),
        "failed",
        status=result.status.value,
        cause=result.why,
    )


def _full_failure(result: Result) -> str:
    if result.status is Status.OK or not result.why:
        return _failure(result)
    return f"{result.status.value}: {result.why}"
