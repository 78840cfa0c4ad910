"""What the parent does for a case does not grow with the number of cases.

Function calls are counted, not seconds: they are the same on any machine.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.ops import parse
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import Message, Worker
from kernelmark.runners.process import WorkerSpec
from kernelmark.runners.targets import find
from kernelmark.testing.stores import measured

FEW, MANY = 60, 240
FAKE = find("fake")[1]


class InstantWorker:
    """A worker that has every result at once."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.ready = self.alive = True
        self.replies: list[Message] = [{"kind": "ready"}]

    def send(self, request: Message) -> None:
        if request["kind"] == "measure":
            case = codec.from_document(request["case"], Case)
            result = dataclasses.replace(measured(case, (1e-6,), arch=FAKE.arch), device=FAKE.name)
            reply = {"kind": "result", "result": codec.to_document(result)}
        elif request["kind"] == "compile":
            reply = {"kind": "compiled", "status": "ok"}
        else:
            reply = {"kind": "environment", "environment": codec.to_document(Environment())}
        about = {"id": request["id"]}
        self.replies += [{"kind": "phase", "phase": "timing", **about}, {**reply, **about}]

    def dump_stacks(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def with_tail(self, reason: Reason) -> Reason:
        return reason


class InstantWorkers:
    def start(self, spec: WorkerSpec) -> Worker:
        return InstantWorker(spec)

    def wait(
        self, workers: Sequence[Any], timeout_s: float | None
    ) -> Sequence[tuple[Worker, Message]]:
        messages = [(worker, reply) for worker in workers for reply in worker.replies]
        for worker in workers:
            worker.replies.clear()
        return messages


def calls_per_case(count: int) -> float:
    """Function calls of a run, apart from those before its first case, by its further cases."""
    cases = [
        Case(problem=parse(f"gemm m={i} n=1 k=1 dtype=f32"), backend="fake", timing=Timing())
        for i in range(1, count + 1)
    ]
    events = iter(LocalRunner(["fake"], jobs=1, workers=InstantWorkers()).run(cases))
    while not isinstance(next(events), CaseFinished):
        pass
    calls = 0

    def count_call(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count_call)
    try:
        finished = 1 + sum(isinstance(event, CaseFinished) for event in events)
    finally:
        sys.setprofile(None)
    assert finished == count
    return calls / (count - 1)


def test_the_calls_for_a_case_do_not_grow_with_the_number_of_cases() -> None:
    calls_per_case(10)  # imports and caches
    few, many = calls_per_case(FEW), calls_per_case(MANY)
    # What goes over the queue once for every case takes half a call, or more, for each in it.
    assert many - few < 0.2 * (MANY - FEW)
