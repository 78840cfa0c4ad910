"""What drills share: cases that behave as told, a run of them, and what must be true of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kernelmark.core.result import Case, Result
from kernelmark.core.timing import Timing
from kernelmark.ops import parse
from kernelmark.runners.events import CaseFinished, Event
from kernelmark.runners.local import LocalRunner

PROBLEM = parse("gemm m=16 n=16 k=16 a=f32 b=f32 c=f32")
TIMING = Timing(max_s=0.05, warmup_s=0.01, max_allocations=3)
TIMEOUT_S = 3.0
Facts = dict[str, object]


class Failed(Exception):
    """A drill did not end as it must."""


def case(seed: int, behaviour: str = "ok", **config: float) -> Case:
    config = {"seed": seed, "behaviour": behaviour, **config}  # type: ignore[dict-item]
    return Case(problem=PROBLEM, backend="fake", timing=TIMING, config=config)


def must(condition: object, sentence: str) -> None:
    if not condition:
        raise Failed(sentence)


def run(
    cases: list[Case], on_event: Callable[[Event], None] | None = None, **options: object
) -> tuple[list[Result], list[Event]]:
    """Results in the order of `cases`, exactly one each, and all events."""
    options = {"devices": ["fake"], "jobs": 0, "timeout_s": TIMEOUT_S, **options}
    events: list[Event] = []
    for event in LocalRunner(**options).run(cases):  # type: ignore[arg-type]
        events.append(event)
        if on_event is not None:
            on_event(event)
    finished = [e.result for e in events if isinstance(e, CaseFinished)]
    by_id = {result.case.id: result for result in finished}
    must(len(finished) == len(by_id) == len(cases), "each case has exactly one result")
    return [by_id[c.id] for c in cases], events


def statuses(results: list[Result]) -> dict[str, int]:
    return dict(Counter(result.status.value for result in results))


def expect(results: list[Result], cases: list[Case], wanted: dict[str, str]) -> Facts:
    """Each behaviour ended with its status, everything else is ok."""
    for result, one in zip(results, cases, strict=True):
        behaviour = str(one.config["behaviour"])
        status = wanted.get(behaviour, "ok")
        must(
            result.status.value == status,
            f"{behaviour} ended as {result.status.value}, not {status}: {result.error}",
        )
    errors = {
        str(r.case.config["behaviour"]): r.error.split("\n")[0]
        for r in results
        if r.status.value != "ok"
    }
    return {"cases": len(cases), "statuses": statuses(results), "errors": errors}
