"""Verdict: what the referee found, as JSON, as text, and as stored results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelmark.core import codec
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason, reason_document
from kernelmark.core.result import Case, Check, Config, ConfigValue, Measurement, Result, Status
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.core.units import change_span, change_text, duration_text, time_text, width_text

VERSION = 1
# Errors, relative to a sum's terms, up to which a format explains them: sums in it included. Above
# the errors of f32 is f16 or tf32, which have as many digits.
_PRECISIONS = (
    ("f64", 2.0**-38),
    ("f32", 2.0**-16),
    ("f16 or tf32", 2.0**-10),
    ("bf16", 2.0**-7),
    ("8 bits", 2.0**-2),
)
_NEAR_ROOF = 0.9
_HINTS = {
    "projection-wrong": "compare whole outputs with a float64 reference on these inputs",
    "values-wrong": "compare with a float64 reference on these inputs",
    "not-written": "every launch has to write its whole output; sizes need not fit its tiles",
    "late-write": "the launch has to wait for what it starts elsewhere",
    "stray-write": "a launch may write its own set only",
    "inputs-changed": "inputs are read-only",
    "less-work": "a launch may not use what another one computed",
    "no-answer": "a longer limit: --timeout",
    "library-used": "leave --forbid-libraries out to judge it all the same",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterExample:
    """Inputs that a kernel is wrong for: `judge.values.inputs_of` computes them again."""

    problem: str
    seed: str
    number: int
    family: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a kernel for one problem.

    It is accepted if its status is `ok`. `passed` lists the checks that it passed, `lacks` what the
    host does not offer to confine it, `notes` what is worth knowing. `ratio` is its time over that
    of the reference, with its 95 % interval. The inputs of the judgement follow from `seed`."""

    kernel: str
    problem: Problem
    device: str
    name: str = ""  # of the kernel file in history
    arch: str = ""
    status: Status = Status.OK
    reason: Reason = NO_REASON
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    threads: int = 0
    reference: str | None = None
    flops: int = 0
    bytes: int = 0
    seed: str = ""
    check: Check | None = None
    counter_example: CounterExample | None = None
    measurement: Measurement | None = None
    reference_measurement: Measurement | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    roof_share: float | None = None
    roof_bound: str = ""
    way_to_roof: float | None = None  # from the reference's time; 1 is the roof
    # What the process used: threads, memory, numeric libraries that it mapped; kernels and their
    # resources as its own process says.
    resources: Mapping[str, Any] = field(default_factory=dict)
    # Root mean square of the errors at sampled positions, relative to a sum's terms.
    delivered_roundoff: float | None = None
    passed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    started: float = 0.0
    took_s: float = 0.0

    @property
    def accepted(self) -> bool:
        return self.status is Status.OK

    @property
    def code(self) -> str:
        """`accepted`, or the code of the first thing that is wrong."""
        if self.accepted:
            return "accepted"
        findings = self.reason.fields.get("findings", ())
        first = findings[0] if findings else self.reason
        code = Reason.of(first).code
        return code if code not in ("text", "") else self.status.value

    @property
    def precision(self) -> str:
        """The format whose roundings explain the errors that were seen; "" if none was measured."""
        seen = self.delivered_roundoff
        if seen is None:
            return ""
        return next((name for name, most in _PRECISIONS if seen <= most), "less than 8 bits")

    @property
    def hints(self) -> list[str]:
        """What to do next."""
        found = [hint for code, hint in _HINTS.items() if code == self.code]
        if (example := self.counter_example) is not None:
            found.append(
                "its inputs: kernelmark.judge.values.inputs_of(tensors,"
                f" bytes.fromhex({example.seed!r}), {example.number})"
            )
        if not self.accepted:
            return found
        if self.roof_share is None:
            found.append("kmark micro measures the roofs, for the share of them")
        elif self.roof_share > _NEAR_ROOF:
            found.append(f"it is near the roof: less {self.roof_bound} is the only way left")
        if self.ratio_low is not None and self.ratio_low > 1:
            found.append(f"it is slower than {(self.reference or '').rpartition('/')[2]}")
        return found

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        measured = {"kernel": self.measurement, "reference": self.reference_measurement}
        return {
            "judge": VERSION,
            "kernel": self.kernel,
            "problem": self.problem.key,
            "device": self.device,
            "verdict": "accepted" if self.accepted else "refused",
            "code": self.code,
            "status": self.status.value,
            "reason": reason_document(self.reason) if self.reason else "",
            "config": dict(self.config),
            "reference": self.reference,
            "time": {name: _times(m) for name, m in measured.items() if m is not None},
            "ratio": _ratio(self.ratio, self.ratio_low, self.ratio_high),
            "roof": {
                "share": self.roof_share,
                "bound": self.roof_bound,
                "way_from_reference": self.way_to_roof,
            },
            "bottleneck": self.roof_bound or None,
            "precision": {"format": self.precision, "roundoff": self.delivered_roundoff},
            "resources": dict(self.resources),
            "check": None if self.check is None else codec.plain(self.check),
            "counter_example": (
                None if self.counter_example is None else codec.plain(self.counter_example)
            ),
            "seed": self.seed,
            "passed": list(self.passed),
            "notes": list(self.notes),
            "hints": self.hints,
            "lacks": list(self.lacks),
            "took_s": round(self.took_s, 3),
        }

    def text(self, problem: str = "") -> str:
        """Return the verdict as lines, with a short name of the problem if it is given."""
        head = "accepted" if self.accepted else f"refused ({self.code})"
        lines = [f"{head}: {self.kernel} for {problem or self.problem.key} on {self.device}"]
        if not self.accepted:
            lines.append(f"  {self.reason}")
        if (example := self.counter_example) is not None:
            other = "" if example.problem == self.problem.key else f"{example.problem}, "
            lines.append(
                f"  counter-example: {other}inputs of the family {example.family},"
                f" number {example.number} of seed {example.seed}"
            )
        if self.measurement is not None:
            lines.append(f"  time      {_time_line(self.measurement)}")
        if self.reference_measurement is not None:
            name = (self.reference or "").rpartition("/")[2]
            lines.append(f"  {name:<9} {_time_line(self.reference_measurement)}")
        if self.ratio is not None and self.ratio_low is not None and self.ratio_high is not None:
            span = change_span(self.ratio_low, self.ratio_high)
            lines.append(f"  against it {change_text(self.ratio)} ({span})")
        if self.roof_share is not None:
            lines.append(f"  of roof   {100 * self.roof_share:.2g} % {self.roof_bound}")
        if self.precision:
            lines.append(f"  precision {self.precision} (errors of {self.delivered_roundoff:.1g})")
        if self.resources.get("libraries"):
            lines.append(f"  libraries {', '.join(self.resources['libraries'])}")
        if kernels := self.resources.get("kernels"):
            more = f" and {len(kernels) - 3} more" if len(kernels) > 3 else ""
            lines.append(f"  kernels   {', '.join(name[:60] for name in kernels[:3])}{more}")
        lines.append(f"  passed    {len(self.passed)} checks in {duration_text(self.took_s)}")
        lines += [f"  note      {note}" for note in self.notes]
        lines += [f"  hint      {hint}" for hint in self.hints if not self.accepted]
        lines += [f"  host      {lack}" for lack in self.lacks]
        return "\n".join(lines) + "\n"

    def results(self) -> list[Result]:
        """Return the results to store: the kernel's, and the reference's if it was timed."""
        mine = self._result(self.kernel, self.config, self.status, self.measurement, self.check)
        if self.reference is None or self.reference_measurement is None:
            return [mine]
        theirs = self._result(self.reference, {}, Status.OK, self.reference_measurement, None)
        return [mine, theirs]

    def _result(
        self,
        backend: str,
        config: Config,
        status: Status,
        measurement: Measurement | None,
        check: Check | None,
    ) -> Result:
        timing = Timing(cache=Cache.COLD, timer=Timer.OUTSIDE, threads=self.threads)
        return Result(
            case=Case(
                problem=self.problem,
                backend=backend,
                timing=timing,
                config=config,
                name=self.name if backend == self.kernel else "",
            ),
            device=self.device,
            status=status,
            arch=self.arch,
            flops=self.flops,
            bytes=self.bytes,
            measurement=measurement,
            check=check,
            error=self.reason if backend == self.kernel else NO_REASON,
            started=self.started,
            cost={"total": self.took_s},
            notes=(*self.notes, *self.lacks) if backend == self.kernel else (),
        )


def _times(measurement: Measurement) -> dict[str, float | None]:
    return {
        "median_s": measurement.median_s,
        "low_s": measurement.low_s,
        "high_s": measurement.high_s if math.isfinite(measurement.high_s) else None,
    }


def _ratio(
    ratio: float | None, low: float | None, high: float | None
) -> dict[str, float | None] | None:
    if ratio is None or high is None:
        return None
    return {"ratio": ratio, "low": low, "high": high if math.isfinite(high) else None}


def _time_line(measurement: Measurement) -> str:
    width = width_text(measurement.rel_half_width)
    return f"{time_text(measurement.median_s)} ± {width}"
