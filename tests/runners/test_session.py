"""Runner and store together: nothing finished is lost, nothing finished is measured again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.errors import StoreError, UsageError
from kernelmark.core.metric import Roof
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Result, Run, RunState, Status
from kernelmark.core.timing import Timing
from kernelmark.devices.fake import FakeDevice
from kernelmark.ops import parse
from kernelmark.runners.events import (
    CaseFinished,
    CaseStarted,
    EnvironmentRead,
    Event,
    Note,
    Progress,
)
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.session import run_cases
from kernelmark.stores import open_store
from kernelmark_dev.results import make_measurement, make_result, make_roof

PROBLEM = parse("gemm m=8 n=8 k=8 a=f32 b=f32 c=f32")
QUICK = Timing(max_s=0.02, warmup_s=0.0, max_allocations=3)
SO_FAR = Progress(done=0, total=0, remaining_s=0.0)


def case(seed: int, **config: object) -> Case:
    return Case(problem=PROBLEM, backend="fake", timing=QUICK, config={"seed": seed, **config})


def new_run(name: str = "r1") -> Run:
    return Run(id=name, started=time.time(), environment=Environment(host="here"))


class Scripted:
    """A runner that gives each case a status without measuring."""

    def __init__(
        self, status: Status = Status.OK, *, device: str = "fake", before_end: object = None
    ) -> None:
        self.status = status
        self.device = device
        self.seen: list[Case] = []
        self.closed = False
        self._before_end = before_end

    def run(self, cases: Iterable[Case]) -> Iterator[Event]:
        try:
            for one in cases:
                self.seen.append(one)
                yield CaseStarted(case=one, device=self.device, progress=SO_FAR)
                result = Result(case=one, device=self.device, status=self.status, arch="fake")
                yield CaseFinished(result=result, progress=SO_FAR)
            if callable(self._before_end):
                self._before_end()
        finally:
            self.closed = True


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "results.sqlite") as opened:
        yield opened


def test_results_are_stored_and_given_back(store):
    runner = LocalRunner(["fake"], jobs=0)
    cases = [case(1), case(2, behaviour="wrong"), case(1)]
    got = run_cases(run=new_run(), cases=cases, runner=runner, store=store)
    assert [r.status.value for r in got.results] == ["ok", "wrong"]
    assert got.run.state is RunState.DONE
    assert got.run.cases == 2
    assert got.run.finished is not None
    assert "numpy" in got.run.environment.libraries
    assert got.run.environment.host == "here"
    kept = store.result_set("r1")
    assert kept == got


def test_results_are_in_the_order_asked_for_however_they_came(store):
    class Backwards(Scripted):
        def run(self, cases):
            return super().run(reversed(list(cases)))

    cases = [case(n) for n in (3, 1, 2)]
    got = run_cases(run=new_run(), cases=cases, runner=Backwards(), store=store)
    assert [result.case for result in got.results] == cases


def test_each_result_is_stored_before_its_event_is_told(store):
    counts: list[int] = []

    def on_event(event: Event) -> None:
        if isinstance(event, CaseFinished):
            counts.append(len(list(store.results("r1"))))

    cases = [case(i) for i in range(3)]
    run_cases(run=new_run(), cases=cases, runner=Scripted(), store=store, on_event=on_event)
    assert counts == [1, 2, 3]


class Refusing(Scripted):
    """A runner whose backend knows no name of a config, but for the cases given as `known`."""

    def __init__(self, *known: Case) -> None:
        super().__init__()
        self._known = known

    def run(self, cases: Iterable[Case]) -> Iterator[Event]:
        error = Reason(
            "config unknown name",
            "config-unknown-name",
            backend="fake",
            name="sed",
            config="{}",
            known=(),
            why="",
        )
        with contextlib.closing(super().run(cases)) as events:  # type: ignore[type-var]
            for event in events:
                if isinstance(event, CaseFinished) and event.result.case not in self._known:
                    refused = dataclasses.replace(
                        event.result, status=Status.UNSUPPORTED, error=error
                    )
                    event = dataclasses.replace(event, result=refused)
                yield event


def test_a_config_that_every_case_refuses_is_a_mistake_and_leaves_no_run(store):
    told: list[Event] = []
    runner, cases = Refusing(), [case(1), case(2)]
    with pytest.raises(UsageError) as caught:
        run_cases(
            run=new_run(),
            cases=cases,
            runner=runner,
            store=store,
            refuse_config=True,
            on_event=told.append,
        )
    assert caught.value.message.root.code == "config-unknown-name"
    assert runner.closed
    assert store.runs() == []
    assert not any(isinstance(event, CaseFinished) for event in told)


@pytest.mark.parametrize("known", [1, 2, 3])
def test_a_config_that_some_case_takes_gives_rows_in_order(store, known):
    cases = [case(n) for n in (1, 2, 3)]
    got = run_cases(
        run=new_run(), cases=cases, runner=Refusing(case(known)), store=store, refuse_config=True
    )
    assert [result.case for result in got.results] == cases
    assert [result.status for result in got.results].count(Status.UNSUPPORTED) == 2
    assert store.result_set("r1") == got


def test_canaries_have_no_config_and_do_not_hide_a_mistake(store):
    canary = Case(problem=PROBLEM, backend="fake", timing=QUICK)
    with pytest.raises(UsageError):
        run_cases(
            run=new_run(),
            cases=[case(1), canary],
            runner=Refusing(canary),
            store=store,
            refuse_config=True,
        )
    assert store.runs() == []


def test_resume_measures_only_what_has_no_result(store):
    run_cases(run=new_run(), cases=[case(1)], runner=Scripted(), store=store)
    failing = Scripted(Status.CRASHED)
    run_cases(run=new_run(), cases=[case(1), case(2)], runner=failing, store=store, resume=True)
    assert failing.seen == [case(2)]
    third = Scripted()
    cases = [case(1), case(2), case(3)]
    got = run_cases(run=store.run("r1"), cases=cases, runner=third, store=store, resume=True)
    assert third.seen == [case(3)]
    assert [r.status for r in got.results] == [Status.OK, Status.CRASHED, Status.OK]
    assert store.run("r1").cases == 3
    assert store.run("r1").state is RunState.DONE


def test_resume_reads_only_what_is_shown(store):
    keys = [f"gemm m=8 n=8 k={k} dtype=f32" for k in range(1, 7)]
    cases = [Case(problem=parse(key), backend="fake", timing=QUICK) for key in keys]
    store.add_run(new_run())
    statuses = [Status.OK, Status.OK, Status.OK, Status.CRASHED, Status.OK]
    for number, status in enumerate(statuses):
        one = Result(case=cases[number], device="fake", status=status, arch="fake")
        store.add_results("r1", [one])
    runner = Scripted()
    resume = {"cases": cases, "runner": runner, "store": store, "resume": True, "problems": 2}
    got = run_cases(run=store.run("r1"), **resume)
    assert runner.seen == [cases[5]]
    assert [result.case for result in got.results] == [*cases[:2], cases[3], cases[5]]
    assert len(store.result_set("r1").results) == store.run("r1").cases == 6
    again = run_cases(run=store.run("r1"), retry_failed=True, **resume)
    assert runner.seen == [cases[5], cases[3]]
    assert [result.case for result in again.results] == [*cases[:2], cases[3]]
    assert not any(result.status.failed for result in store.results("r1"))


@pytest.fixture
def clock(monkeypatch):
    """The time of day, set by hand."""
    now = SimpleNamespace(s=1000.0)
    fake = SimpleNamespace(time=lambda: now.s)
    monkeypatch.setattr("kernelmark.runners.session.time", fake)
    return now


def ending(clock, at_s: float, *, stop: bool = False):
    def end() -> None:
        clock.s = at_s
        if stop:
            raise KeyboardInterrupt

    return Scripted(before_end=end)


def test_the_pause_before_a_run_is_resumed_is_not_time_that_it_took(store, clock):
    run = dataclasses.replace(new_run(), started=clock.s)
    first = run_cases(
        run=run, cases=[case(1), case(2)], runner=ending(clock, 1010.0, stop=True), store=store
    )
    assert first.run.state is RunState.INTERRUPTED
    assert first.run.took_s == 10.0
    for at_s, took_s, number in ((5000.0, 30.0, 3), (9000.0, 50.0, 4)):
        clock.s = at_s
        cases = [case(n + 1) for n in range(number)]
        runner = ending(clock, at_s + 20.0)
        run_cases(run=store.run("r1"), cases=cases, runner=runner, store=store, resume=True)
        assert store.run("r1").took_s == took_s


def test_a_run_that_was_killed_ended_with_its_last_result(store, clock):
    run = dataclasses.replace(new_run(), started=clock.s)
    store.add_run(run)
    assert store.run("r1").took_s is None
    result = Result(case=case(1), device="fake", status=Status.OK, started=1004.0)
    store.add_results("r1", [dataclasses.replace(result, cost={"total": 3.0})])
    clock.s = 5000.0
    seen = []

    def look() -> None:
        seen.append(store.run("r1"))
        clock.s = 5020.0

    runner = Scripted(before_end=look)
    cases = [case(1), case(2)]
    run_cases(run=store.run("r1"), cases=cases, runner=runner, store=store, resume=True)
    assert seen[0].took_s is None, "it goes on"
    assert store.run("r1").took_s == 27.0
    # Killed again after it was resumed, before its next result: only the time until then is lost.
    store.update_run(seen[0])
    clock.s = 9000.0
    runner = ending(clock, 9010.0)
    run_cases(run=store.run("r1"), cases=[*cases, case(3)], runner=runner, store=store, resume=True)
    assert store.run("r1").took_s == 17.0


def test_failures_are_measured_again_when_asked(store):
    cases = [case(1), case(2)]
    run_cases(run=new_run(), cases=cases[:1], runner=Scripted(), store=store)
    broken = Scripted(Status.TIMEOUT)
    run_cases(run=new_run(), cases=cases, runner=broken, store=store, resume=True)
    again = Scripted()
    got = run_cases(
        run=new_run(), cases=cases, runner=again, store=store, resume=True, retry_failed=True
    )
    assert again.seen == [case(2)]
    assert [r.status for r in got.results] == [Status.OK, Status.OK]
    assert [r.status for r in store.results("r1")] == [Status.OK, Status.OK]


@pytest.mark.parametrize("status", [Status.OK, Status.CRASHED])
def test_a_failure_that_is_measured_again_on_another_device_is_gone(store, status):
    cases = [case(1), case(2)]
    run_cases(run=new_run(), cases=cases[:1], runner=Scripted(device="fake:1"), store=store)
    broken = Scripted(Status.TIMEOUT, device="fake:3")
    run_cases(run=new_run(), cases=cases, runner=broken, store=store, resume=True)
    again = Scripted(status, device="fake:1")
    got = run_cases(
        run=new_run(), cases=cases, runner=again, store=store, resume=True, retry_failed=True
    )
    assert [(r.status, r.device) for r in got.results] == [
        (Status.OK, "fake:1"),
        (status, "fake:1"),
    ]
    assert tuple(store.results("r1")) == got.results


class Seeing(Scripted):
    """A runner whose workers have this version of torch."""

    def __init__(self, version: str) -> None:
        super().__init__()
        self._version = version

    def run(self, cases: Iterable[Case]) -> Iterator[Event]:
        yield EnvironmentRead(environment=Environment(libraries={"torch": self._version}))
        yield from super().run(cases)


def resumed_by(runner: Scripted, store, told: list[Event]) -> None:
    run_cases(
        run=store.run("r1"),
        cases=[case(1), case(2)],
        runner=runner,
        store=store,
        resume=True,
        on_event=told.append,
    )


def test_resuming_in_a_changed_environment_says_so(store):
    run_cases(run=new_run(), cases=[case(1)], runner=Seeing("1"), store=store)
    told: list[Event] = []
    resumed_by(Seeing("2"), store, told)
    notes = [event.text for event in told if isinstance(event, Note)]
    assert any("library torch" in text for text in notes)
    assert store.run("r1").environment.libraries == {"torch": "1"}


def test_an_environment_that_no_worker_reported_is_not_recorded(store):
    guessed = Environment(host="here", libraries={"torch": "0"}, variables={"OMP_PLACES": "cores"})
    run = dataclasses.replace(new_run(), environment=guessed)
    got = run_cases(run=run, cases=[case(1)], runner=Scripted(Status.CRASHED), store=store)
    assert got.run.environment == store.run("r1").environment == Environment(host="here")
    told: list[Event] = []
    resumed_by(Seeing("2"), store, told)
    assert not [event for event in told if isinstance(event, Note)]
    assert store.run("r1").environment.libraries == {"torch": "2"}


@pytest.mark.usefixtures("default_signals")
def test_an_interrupt_gives_what_there_is(store):
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(600)

    runner = Scripted(before_end=interrupt)
    got = run_cases(run=new_run(), cases=[case(1)], runner=runner, store=store)
    assert got.run.state is RunState.INTERRUPTED
    assert store.run("r1").state is RunState.INTERRUPTED
    assert len(got.results) == 1
    assert runner.closed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("method", ["add_run", "update_run"])
def test_a_run_that_the_store_knows_is_not_left_running(store, monkeypatch, method):
    real, called = getattr(store, method), []

    def change_and_signal(run: Run) -> None:
        real(run)
        called.append(run)
        if len(called) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(store, method, change_and_signal)
    with pytest.raises(KeyboardInterrupt):
        run_cases(run=new_run(), cases=[case(1)], runner=Scripted(), store=store)
    assert store.run("r1").state is RunState.INTERRUPTED


def test_a_run_that_the_store_refuses_changes_no_other(store):
    run_cases(run=new_run(), cases=[case(1)], runner=Scripted(), store=store)
    with pytest.raises(StoreError):
        run_cases(run=new_run(), cases=[case(1)], runner=Scripted(), store=store)
    assert store.run("r1").state is RunState.DONE


@pytest.mark.usefixtures("default_signals")
def test_a_signal_while_storing_waits_until_it_is_stored():
    class Slow:
        def __init__(self) -> None:
            self.stored: list[Result] = []

        def add_run(self, run: Run) -> None: ...

        def update_run(self, run: Run) -> None: ...

        def add_results(self, run_id: str, new: list[Result], *, alone: bool) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)  # Python calls the handler before this returns
            self.stored += new

    slow, runner = Slow(), Scripted()
    got = run_cases(run=new_run(), cases=[case(1), case(2)], runner=runner, store=slow)
    assert [r.case for r in slow.stored] == [case(1)]
    assert [r.case for r in got.results] == [case(1)]
    assert got.run.state is RunState.INTERRUPTED
    assert runner.closed


def test_a_store_that_fails_ends_the_run_and_the_workers(store):
    runner = Scripted()

    def fail(run_id: str, new: object, *, alone: bool) -> int:
        raise StoreError("the disk is full")

    store.add_results = fail
    with pytest.raises(StoreError, match="full"):
        run_cases(run=new_run(), cases=[case(1)], runner=runner, store=store)
    assert runner.closed


def test_a_refused_request_leaves_no_run_behind(store):
    many = Case(problem=PROBLEM, backend="fake", timing=Timing(threads=100_000))
    with pytest.raises(UsageError):
        run_cases(run=new_run(), cases=[many], runner=LocalRunner(["cpu"]), store=store)
    assert store.runs() == []


SESSION = """
import json, sys, time
from kernelmark.core.environment import Environment
from kernelmark.core.result import Case, Run
from kernelmark.core import codec
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.session import run_cases
from kernelmark.stores import open_store
where, resume = sys.argv[1], sys.argv[2] == "resume"
cases = [codec.from_document(d, Case) for d in json.loads(sys.stdin.read())]
def told(event):
    if isinstance(event, CaseFinished):
        print(event.result.case.id, flush=True)
with open_store(where) as store:
    run = store.run("r1") if resume else Run(id="r1", started=1.0, environment=Environment())
    got = run_cases(run=run, cases=cases, runner=LocalRunner(["fake"], jobs=0), store=store,
                    on_event=told, resume=resume)
    print(got.run.state.value, flush=True)
"""


def session(where: Path, mode: str, cases: list[Case]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SESSION, str(where), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps([codec.to_document(c) for c in cases]))
    process.stdin.close()
    return process


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_parent_loses_only_what_was_in_flight(tmp_path, number):
    where = tmp_path / "results.sqlite"
    cases = [case(0), case(1), case(2), case(3, behaviour="hang"), case(4)]
    first = session(where, "new", cases)
    assert first.stdout is not None
    done = [first.stdout.readline().strip() for _ in range(3)]
    assert done == [c.id for c in cases[:3]]
    time.sleep(0.3)
    first.send_signal(number)
    rest = first.stdout.read().split()
    first.wait(timeout=600)
    first.stdout.close()
    state = RunState.RUNNING if number == signal.SIGKILL else RunState.INTERRUPTED
    assert rest == ([] if number == signal.SIGKILL else ["interrupted"])
    with open_store(where) as store:
        assert store.run("r1").state is state
        assert store.finished("r1") == set(done)
        before = list(store.results("r1"))
    if number == signal.SIGINT:
        return
    # The hanging case is replaced by one that ends, as a fixed kernel would be.
    second = session(where, "resume", [*cases[:3], case(4), case(5)])
    assert second.stdout is not None
    out = second.stdout.read()
    second.wait(timeout=600)
    second.stdout.close()
    assert out.split() == [case(4).id, case(5).id, "done"]
    with open_store(where) as store:
        after = list(store.results("r1"))
    assert after[:3] == before
    assert len(after) == 5


def fast(one: Case) -> Result:
    """A result of the fake device over cold sets, in a microsecond."""
    found = {"launches": 2**11, "sets": 2**11, "footprint_bytes": 3 * 256}
    measurement = make_measurement(1e-6, **found)
    return make_result(one, device="fake", arch="fake", measurement=measurement)


class Fast(Scripted):
    def run(self, cases: Iterable[Case]) -> Iterator[Event]:
        for one in cases:
            yield CaseFinished(result=fast(one), progress=SO_FAR)


def roof(per_s: float, **given: Any) -> Roof:
    info = FakeDevice().info
    return make_roof("bytes", "dram", per_s, device="fake", arch="fake", model=info.model, **given)


@pytest.mark.parametrize(
    ("roofs", "status"),
    [
        ((), Status.OK),
        ((roof(1e9),), Status.OK),
        ((roof(1e8),), Status.IMPOSSIBLE),
        ((roof(1e8, steady=False),), Status.OK),
    ],
)
def test_what_is_beyond_a_roof_is_stored_and_told_as_impossible(store, roofs, status):
    told: list[Event] = []
    here = Environment(host="here", devices=(FakeDevice().info,))
    got = run_cases(
        run=dataclasses.replace(new_run(), environment=here),
        cases=[case(1)],
        runner=Fast(),
        store=store,
        on_event=told.append,
        roofs=roofs,
    )
    (kept,) = store.results("r1")
    assert [kept] == list(got.results)
    assert kept.status is status
    assert kept.measurement is not None
    assert [event.result for event in told if isinstance(event, CaseFinished)] == [kept]
    assert store.counts("r1") == {status: 1}
    assert bool(list(store.results("r1", status=Status.IMPOSSIBLE))) == bool(kept.error)


def test_a_kept_result_is_not_judged_again(store):
    here = Environment(host="here", devices=(FakeDevice().info,))
    run = dataclasses.replace(new_run(), environment=here)
    run_cases(run=run, cases=[case(1)], runner=Fast(), store=store)
    got = run_cases(
        run=run,
        cases=[case(1), case(2)],
        runner=Fast(),
        store=store,
        resume=True,
        roofs=(roof(1e8),),
    )
    assert [one.status for one in got.results] == [Status.OK, Status.IMPOSSIBLE]
