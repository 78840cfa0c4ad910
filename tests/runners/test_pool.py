"""The contract of the pool: what becomes of jobs, whatever workers do. No process is started."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from kernelmark.core.reason import Reason, shorten
from kernelmark.core.result import Case, KernelInfo, Status
from kernelmark.ops import parse
from kernelmark.runners.jobs import Compiled, Failure, Job
from kernelmark.runners.pool import (
    CompileAhead,
    Finished,
    Limits,
    Phase,
    Pool,
    Returned,
    Slot,
    kernel_key,
)
from kernelmark.runners.process import Loss, WorkerSpec
from kernelmark.runners.targets import find

LIMITS = Limits(timeout_s=7.0, compile_timeout_s=50.0, start_timeout_s=20.0)
KILLED = Reason("killed\nlast line", "worker-killed", signal=9)
CRASH = Loss(status=Status.CRASHED, error=KILLED)
READY = {"kind": "ready"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Echo(Job[object]):
    """A job whose value is the reply's, or the failure."""

    fresh: bool = False
    threads: int = 0

    @property
    def request(self):
        return {"kind": "echo"}

    def threads_on(self, info):
        return self.threads

    def read(self, info, reply, started):
        return reply["value"]

    def fail(self, info, failure, started):
        return failure

    def spoils(self, value):
        return value == "spoilt"


class FakeWorker:
    """Sends the messages of its script: those before a request, then a list for each request."""

    def __init__(self, spec, start, *replies) -> None:
        self.spec = spec
        self.ready = False
        self.alive = True
        self.ended: list[str] = []
        self.queue = deque(start)
        self._replies = deque(replies)

    def send(self, request) -> None:
        for message in self._replies.popleft() if self._replies else ():
            is_request = isinstance(message, dict) and "id" not in message
            self.queue.append({**message, "id": request["id"]} if is_request else message)

    def dump_stacks(self) -> None:
        self.ended.append("stacks")

    def with_tail(self, text: str) -> str:
        return f"{text}\ntail"

    def stop(self) -> None:
        self.ended.append("stop")

    def close(self) -> None:
        self.ended.append("close")
        self.alive = False


class FakeWorkers:
    """Starts the scripted workers of each device, in order. Waiting for nothing passes time."""

    def __init__(self, clock, **scripts) -> None:
        self.clock = clock
        self.scripts = {name: deque(script) for name, script in scripts.items()}
        self.started: list[FakeWorker] = []

    def start(self, spec):
        name = spec.device.replace(":", "") if spec.opens_device else "compiler"
        script = self.scripts[name].popleft()
        if isinstance(script, OSError):
            raise script
        self.started.append(FakeWorker(spec, *script))
        return self.started[-1]

    def wait(self, workers, timeout_s):
        found = []
        for worker in workers:
            while worker.queue:
                message = worker.queue.popleft()
                worker.ready = worker.ready or message == READY
                found.append((worker, message))
        if not found:
            assert timeout_s is not None, "it would wait for ever"
            self.clock.now += timeout_s
        return found


def reply(value="done"):
    return {"kind": "reply", "value": value}


def phase(name, at=None, **more):
    return {"kind": "phase", "phase": name, **({} if at is None else {"at": at}), **more}


DEAD = ([CRASH],)
OK = ([READY], *([reply()] for _ in range(9)))


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0, time=time.time)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("kernelmark.runners.pool.time", clock)
    return clock


@pytest.fixture
def made(clock, monkeypatch):
    """Makes a pool with scripted workers: `fake0=[script, …]`, `compiler=[…]`."""
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "2")

    def make(kind="fake", compilers=0, **scripts):
        kind_, info = find(kind)
        _, other = find("fake:1")

        def slot(info, **more):
            return Slot(kind_, info, WorkerSpec(device=f"fake:{info.index}", **more), LIMITS)

        devices = [slot(info)] + ([slot(other)] if "fake1" in scripts else [])
        workers = FakeWorkers(clock, **scripts)
        pool = Pool(devices, [slot(info, opens_device=False) for _ in range(compilers)], workers)
        return pool, workers

    return make


def drain(pool):
    found = []
    while (outcome := pool.poll()) is not None:
        found.append(outcome)
    return found


# Workers that work


def test_a_worker_serves_job_after_job(made):
    pool, workers = made(fake0=[OK])
    assert [pool.call(Echo()) for _ in range(3)] == ["done"] * 3
    assert len(workers.started) == 1
    pool.close()
    assert workers.started[0].ended == ["stop", "close"]


@pytest.mark.parametrize(
    ("first", "second"), [(Echo(), Echo(fresh=True)), (Echo(), Echo(threads=2))]
)
def test_a_job_that_needs_another_process_gets_one(made, first, second):
    pool, workers = made(fake0=[OK, OK])
    pool.call(first)
    pool.call(second)
    assert len(workers.started) == 2
    assert not workers.started[0].alive


def test_a_worker_is_replaced_after_a_value_that_may_have_damaged_it(made):
    pool, workers = made(fake0=[([READY], [reply("spoilt")]), OK])
    assert pool.call(Echo()) == "spoilt"
    assert not workers.started[0].alive
    assert pool.call(Echo()) == "done"


def test_phases_are_reported_and_other_requests_replies_are_not(made):
    other = {"kind": "reply", "value": "old", "id": -1}
    pool, _ = made(fake0=[([READY], [phase("waiting", holder="p 7"), other, reply()])])
    job = Echo()
    pool.submit(pool.devices[0], job)
    waiting, finished = drain(pool)
    assert isinstance(waiting, Phase)
    assert (waiting.name, waiting.holder, waiting.job) == ("waiting", "p 7", job)
    assert isinstance(finished, Finished)
    assert finished.value == "done"


def test_a_slot_is_free_only_when_its_outcome_was_polled(made):
    """Two devices reply in the same moment: the second must not get a job over its outcome."""
    pool, _ = made(fake0=[OK], fake1=[OK])
    jobs = [Echo(), Echo()]
    for slot, job in zip(pool.devices, jobs, strict=True):
        pool.submit(slot, job)
    first = pool.poll()
    assert first is not None
    assert [slot.job for slot in pool.devices] == [None, jobs[1]]
    second = pool.poll()
    assert second is not None
    assert second.job is jobs[1]
    assert all(slot.idle for slot in pool.devices)


# Workers that are lost


def test_a_worker_lost_at_work_costs_its_job_alone(made):
    pool, _ = made(fake0=[([READY], [phase("timing"), CRASH]), OK])
    failure = pool.call(Echo())
    assert failure == Failure(
        status=Status.CRASHED, error=CRASH.error, phase="timing", started=True
    )
    assert pool.call(Echo()) == "done"


@pytest.mark.parametrize("noticed", [True, False])
def test_a_worker_lost_while_idle_costs_nothing(made, noticed):
    pool, workers = made(fake0=[OK, OK], fake1=[OK])
    pool.call(Echo())
    if noticed:  # while another device works
        workers.started[0].queue.append(CRASH)
        pool.submit(pool.devices[1], Echo())
        assert [outcome.value for outcome in drain(pool)] == ["done"]
    else:
        workers.started[0].alive = False
    assert pool.call(Echo()) == "done"


def test_a_worker_that_dies_of_its_last_job_does_not_cost_the_next(made):
    pool, workers = made(fake0=[([READY], [reply()], [CRASH]), OK])
    pool.call(Echo())
    assert pool.call(Echo()) == "done"
    assert len(workers.started) == 2


def test_a_job_that_kills_every_worker_at_once_is_tried_twice_at_most(made):
    pool, workers = made(fake0=[([READY], [reply()], [CRASH]), ([READY], [CRASH]), OK])
    pool.call(Echo())
    assert pool.call(Echo()) == Failure(
        status=Status.CRASHED, error=CRASH.error, phase="load", started=True
    )
    assert len(workers.started) == 2


def test_three_failed_starts_give_a_device_up_and_return_the_job(made):
    pool, _ = made(fake0=[DEAD, OSError("too many processes"), DEAD])
    slot, job = pool.devices[0], Echo()
    for _ in range(2):
        pool.submit(slot, job)
        (returned,) = drain(pool)
        assert isinstance(returned, Returned)
        assert (returned.job, returned.lost) == (job, "")
        assert slot.idle
    pool.submit(slot, job)
    (returned,) = drain(pool)
    assert returned.lost == slot.lost == shorten(KILLED)
    pool.submit(slot, job)  # no worker is started for it
    assert [outcome.lost for outcome in drain(pool)] == [""]
    assert not slot.idle


def test_only_failed_starts_in_a_row_count(made):
    pool, _ = made(fake0=[DEAD, DEAD, OK, DEAD, DEAD, OK])
    assert pool.call(Echo()) == "done"
    assert pool.call(Echo(fresh=True)) == "done"


def test_the_job_of_a_lost_device_goes_to_another(made):
    pool, _ = made(fake0=[DEAD] * 3, fake1=[OK])
    jobs = [Echo() for _ in range(4)]
    assert {job for job, _ in pool.run_all(jobs, pool.devices)} == set(jobs)
    assert [bool(slot.lost) for slot in pool.devices] == [True, False]


def test_when_the_last_device_is_lost_the_jobs_left_are_not_done(made):
    pool, _ = made(
        fake0=[([READY], [reply()], [phase("timing"), CRASH]), *[DEAD] * 3], fake1=[DEAD] * 3
    )
    values = [value for _, value in pool.run_all([Echo() for _ in range(4)], pool.devices)]
    assert values[0] == "done"
    assert [value.started for value in values[1:]] == [True]
    assert all(slot.lost for slot in pool.devices)


def test_a_device_that_is_given_up_has_no_more_outcomes(made):
    pool, workers = made(fake0=[([READY], [phase("timing"), reply()])])
    slot = pool.devices[0]
    pool.submit(slot, Echo())
    assert isinstance(pool.poll(), Phase)
    pool.give_up(slot, "it is sick")
    assert pool.poll() is None
    assert slot.lost == "it is sick"
    assert not workers.started[0].alive


def test_closing_ends_a_busy_worker_at_once(made):
    pool, workers = made(fake0=[([READY],)])
    pool.submit(pool.devices[0], Echo())
    pool.close()
    assert workers.started[0].ended == ["close"]
    assert pool.poll() is None


# Time limits


@pytest.mark.parametrize(
    ("phases", "last", "ends"),
    [
        ([], "load", 150.0),
        ([phase("compile", 110.0)], "compile", 150.0),  # loading and compiling share a limit
        ([phase("inputs", 130.0)], "inputs", 137.0),
        ([phase("inputs", 130.0), phase("timing", 133.0)], "timing", 137.0),  # all others together
        ([phase("inputs", 130.0), phase("waiting", 132.0), phase("timing", 900.0)], "timing", 905),
        ([phase("timing", 130.0), phase("profile", 136.0)], "profile", 173.0),
    ],
)
def test_each_phase_has_its_limit(made, clock, phases, last, ends):
    pool, workers = made(fake0=[([READY], phases)])
    failure = pool.call(Echo())
    assert (failure.status, failure.phase, failure.started) == (Status.TIMEOUT, last, True)
    assert clock.now == ends
    assert workers.started[0].ended == ["stacks", "close"]


def test_a_worker_that_is_not_ready_in_time_is_a_failed_start(made, clock):
    pool, _ = made(fake0=[([],)] * 2 + [OK])
    assert pool.call(Echo()) == "done"
    assert clock.now == 100.0 + 2 * LIMITS.start_timeout_s


def test_a_reply_that_came_in_time_counts_however_late_it_is_read(made, clock):
    pool, _ = made(fake0=[([READY], [phase("timing", 101.0), reply()])])
    pool.submit(pool.devices[0], Echo())
    clock.now = 1e6
    assert [outcome.value for outcome in drain(pool)[1:]] == ["done"]


# Compiling ahead


def case(m: int = 8, backend: str = "fake") -> Case:
    return Case(problem=parse(f"gemm m={m} n=8 k=8 dtype=f32"), backend=backend)


def compiled(status="ok", seconds=2.0):
    return {"kind": "reply", "status": status, "seconds": seconds}


def test_cases_are_ready_once_they_are_compiled(made):
    pool, workers = made(compilers=2, compiler=[([READY], *[[compiled()]] * 3)] * 2)
    ahead = CompileAhead(pool)
    cases = [case(m) for m in (8, 16, 24)]
    keys = [kernel_key(one) for one in cases]
    assert not any(map(ahead.ready, keys))
    assert ahead.start(cases), "a GPU may be timed meanwhile"
    assert len(workers.started) == 2
    for outcome in drain(pool):
        ahead.on_outcome(outcome)
    assert list(map(ahead.ready, keys)) == [True, True, False]
    ahead.start(cases)
    for outcome in drain(pool):
        ahead.on_outcome(outcome)
    assert all(map(ahead.ready, keys))
    assert ahead.result(keys[0]) == Compiled(status=Status.OK, kernel=KernelInfo(), seconds=2.0)
    assert [ahead.collect_cost_s(keys[0]) for _ in range(2)] == [2.0, 0.0]
    ahead.forget(cases[0].problem.key)
    assert ahead.result(keys[0]) is None


def test_what_has_nothing_to_compile_or_no_slot_is_ready_at_once(made):
    pool, _ = made(compilers=1)
    assert CompileAhead(pool).ready(kernel_key(case(backend="numpy")))
    pool, _ = made()
    assert CompileAhead(pool).ready(kernel_key(case()))


def test_on_the_cpu_either_compilers_or_the_device_work(made):
    pool, _ = made("cpu", 1, fake0=[OK], compiler=[([READY], *[[compiled()]] * 3)])
    ahead = CompileAhead(pool)
    assert not ahead.start([case()])
    for outcome in drain(pool):
        ahead.on_outcome(outcome)
    assert ahead.start([case()]), "all is compiled"
    pool.submit(pool.devices[0], Echo())
    assert not ahead.start([case(16)])
    assert pool.compilers[0].idle


def test_a_lost_compile_worker_is_a_failure_that_the_device_tries_again(made):
    pool, _ = made(compilers=1, compiler=[([READY], [CRASH])])
    ahead = CompileAhead(pool)
    ahead.start([case()])
    for outcome in drain(pool):
        ahead.on_outcome(outcome)
    found = ahead.result(kernel_key(case()))
    assert found is not None
    assert found.status is Status.CRASHED
    assert ahead.ready(kernel_key(case()))


def test_when_no_compiler_starts_the_device_compiles(made):
    pool, _ = made(compilers=1, compiler=[DEAD] * 3)
    ahead, one = CompileAhead(pool), iter([case()])  # a source that gives each case once
    for _ in range(3):
        assert not ahead.ready(kernel_key(case()))
        ahead.start(one)
        for outcome in drain(pool):
            ahead.on_outcome(outcome)
    assert pool.compilers[0].lost
    assert ahead.result(kernel_key(case())) is None
    assert ahead.ready(kernel_key(case()))
