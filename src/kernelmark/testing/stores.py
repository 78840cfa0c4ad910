"""Contract tests of stores, and Hypothesis strategies that draw values by the types of their
fields, so that a new field is drawn, and must round-trip, without a change here. A plugin's tests
inherit the contract and define how to open a store:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def opener(self, tmp_path):
            return lambda: open_store(tmp_path / "results.sqlite")

Every call of the opener returns a new `Store` on the same path, which is empty at first.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelmark.core.dtype import DTYPES
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import KernelmarkError, NothingToDo, StoreError, UsageError
from kernelmark.core.metric import Metric, PointColumn, Roof
from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE
from kernelmark.core.problem import Problem
from kernelmark.core.reason import TEXT, Reason, failed_checks
from kernelmark.core.result import (
    Block,
    Case,
    Measurement,
    Mode,
    Result,
    ResultSet,
    Run,
    RunState,
    Status,
    StopReason,
    Telemetry,
)
from kernelmark.core.timing import Timing
from kernelmark.core.units import spread_text
from kernelmark.stores.store import Scope, Store
from kernelmark.testing.micro import micro_result

_names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
_any_text = st.text(st.characters(), max_size=12)  # NUL and lone surrogates too


def problems() -> st.SearchStrategy[Problem]:
    """Return a strategy for legal problems of any op."""
    options = st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
    return st.builds(
        lambda op, dims, dtypes, options: Problem(
            op=op,
            dims={f"d_{name}": value for name, value in dims.items()},
            dtypes={f"t_{name}": value for name, value in dtypes.items()},
            options={f"o_{name}": value for name, value in options.items()},
        ),
        _names,
        st.dictionaries(_names, st.integers(1, 2**40), max_size=3),
        st.dictionaries(_names, st.sampled_from(sorted(DTYPES)), max_size=3),
        st.dictionaries(_names, options, max_size=3),
    )


def timings() -> st.SearchStrategy[Timing]:
    """Return a strategy for legal timings."""
    positive = st.floats(1e-9, 9e5)
    special: dict[str, st.SearchStrategy[Any]] = {
        "processes": st.integers(1, 9),
        "allocations": st.integers(1, 9),
        "max_allocations": st.integers(9, 99),
        "min_samples": st.integers(1, 99),
        "threads": st.integers(0, 999),
        "seed": st.integers(0, 2**40),
    }
    fields = dict.fromkeys(("min_sample_s", "target_rel_ci", "max_s", "warmup_s"), positive)
    return _built(Timing, special | fields)


def results() -> st.SearchStrategy[Result]:
    """Return a strategy for results with every field drawn by its type."""
    backends = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9)
    values = (
        _any_text | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
    )
    cases = _built(
        Case,
        {
            "problem": problems(),
            "timing": timings(),
            "backend": backends,
            "config": st.dictionaries(_any_text, values, max_size=3),
            "name": st.just(""),  # a store keeps it instead of the backend's path
        },
    )
    counts = st.integers(0, 2**80)
    # Ok results have no impossible values: limits are tested elsewhere.
    figures = st.floats(0, 1e300)
    metrics = _built(Metric, {"value": figures, "limit": st.none(), "least": st.none()})
    columns = _built(PointColumn, {"name": _any_text.map("c_{}".format)})
    cells = _any_text | st.integers() | st.booleans() | figures | st.none()
    special = {
        "metrics": st.lists(metrics, max_size=3).map(tuple),
        "columns": st.lists(columns, max_size=3).map(tuple),
        "rows": st.lists(st.dictionaries(_any_text, cells, max_size=3), max_size=3).map(tuple),
        "case": cases,
        "flops": counts,
        "bytes": counts,
        "measurement": st.none() | measurements(),
    }
    return _built(Result, special)


def measurements() -> st.SearchStrategy[Measurement]:
    """Return a strategy for legal measurements: times are positive and finite."""
    times = st.lists(st.floats(5e-324, 1e300), min_size=1, max_size=4).map(tuple)
    blocks = _built(Block, {"samples_s": times})
    modes = _built(
        Mode, {"value_s": st.floats(5e-324, 1e300), "share": st.floats(0, 1, exclude_min=True)}
    )
    special = {
        "blocks": st.lists(blocks, min_size=1, max_size=4).map(tuple),
        "modes": st.lists(modes, max_size=4).map(tuple),
    }
    return _built(Measurement, special)


def _built(kind: type, special: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind,
        **{
            f.name: special[f.name] if f.name in special else _drawn(hints[f.name])
            for f in dataclasses.fields(kind)
        },
    )


@functools.cache
def _drawn(hint: Any) -> st.SearchStrategy[Any]:
    origin, items = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(st.none() if i is type(None) else _drawn(i) for i in items))
    if origin is typing.Literal:
        return st.sampled_from(items)
    if origin is tuple:
        return st.lists(_drawn(items[0]), max_size=4).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(_any_text, _drawn(items[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        return _built(typing.cast(type, hint), {})
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    simple: dict[Any, st.SearchStrategy[Any]] = {
        Reason: reasons(),
        float: st.floats(),
        int: st.integers(0, 2**53),
        str: _any_text,
        bool: st.booleans(),
    }
    return simple[hint]


def reasons() -> st.SearchStrategy[Reason]:
    """Return a strategy for sentences and for reasons with numbers, lists and causes."""
    plain = _any_text.map(Reason.of)
    limit = st.floats(allow_nan=False)
    wide = st.builds(
        lambda width: Reason(
            f"interval: {spread_text(width)} is above the target of "
            f"{spread_text(0.1)}: allow more time (--max-s) or more blocks (max_allocations)",
            "interval-above-target",
            width=width,
            target=0.1,
        ),
        limit,
    )
    many = st.lists(st.one_of(plain, wide), max_size=3).map(lambda found: failed_checks(found, 2))
    caused = st.builds(
        lambda cause: Reason(f"not cross-checked: {cause}", "not-cross-checked", cause=cause), many
    )
    return st.one_of(plain, wide, many, caused)


def same(left: object, right: object) -> bool:
    """Return whether values are bit-identical: nan equals nan, and -0.0 differs from 0.0."""
    return type(left) is type(right) and _all_values(left) == _all_values(right)


def _all_values(value: object) -> str:
    """Return a value as text; `repr` of a Result is a summary."""
    if isinstance(value, Result):
        return repr([getattr(value, field.name) for field in dataclasses.fields(value)])
    return repr(value)


Opener = Callable[[], Store]


def problem(size: int) -> Problem:
    """Return a different problem for every size."""
    return Problem(op="gemm", dims={"m": size, "n": 8, "k": 8}, dtypes={"a": "f32"})


def measured(case: Case, *blocks: tuple[float, ...], process: int = 0, arch: str = "a") -> Result:
    """Return an ok result with these blocks of samples, in seconds."""
    measured_blocks = tuple(
        Block(process=process, allocation=i, samples_s=samples) for i, samples in enumerate(blocks)
    )
    measurement = Measurement(
        blocks=measured_blocks,
        low_s=min(min(samples) for samples in blocks),
        high_s=max(max(samples) for samples in blocks),
        method="loop",
        launches=1,
        sets=1,
        footprint_bytes=64,
        stop=StopReason.FIXED,
        warmup_s=0.0,
        timed_s=1.0,
    )
    return Result(
        case=case, device="cpu", status=Status.OK, arch=arch, flops=100, measurement=measurement
    )


def _ordered(result: Result) -> Result:
    """Return the result with its config in sorted order, as the order has no meaning."""
    config = dict(sorted(result.case.config.items()))
    return dataclasses.replace(result, case=dataclasses.replace(result.case, config=config))


@contextmanager
def _refused(
    kind: type[KernelmarkError], code: str = TEXT
) -> Iterator[pytest.ExceptionInfo[KernelmarkError]]:
    with pytest.raises(kind) as raised:
        yield raised
    assert raised.value.message.code == code


class StoreContract:
    """Base class of a store's tests; a subclass defines the fixture `opener`."""

    @pytest.fixture
    def opener(self) -> Opener:
        """Return a function that opens the store under test, which is empty at first."""
        raise AssertionError("a store contract needs the fixture `opener`")

    @pytest.fixture
    def store(self, opener: Opener) -> Iterator[Store]:
        with opener() as store:
            yield store

    @pytest.fixture
    def environment(self) -> Environment:
        cpu = DeviceInfo(name="cpu", kind="cpu", model="some", arch="a")
        return Environment(host="h", devices=(cpu,), libraries={"numpy": "2.0"})

    @pytest.fixture
    def new_run(self, store: Store, environment: Environment) -> Callable[..., Run]:
        """Return a function that adds a run, each later than the one before."""
        counter = itertools.count()

        def add(**fields: Any) -> Run:
            number = next(counter)
            fields.setdefault("environment", environment)
            run = Run(**{"id": f"run-{number:04}", "started": 1000.0 + number, **fields})
            store.add_run(run)
            return run

        return add

    # Exactness

    @settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)
    @given(new=st.lists(results(), max_size=3))
    def test_results_come_back_exactly(
        self, store: Store, new_run: Callable[..., Run], new: list[Result]
    ) -> None:
        run = new_run()
        for number, result in enumerate(new):
            store.add_results(run.id, [result], process=number)
        back = list(store.results(run.id))
        assert len(back) == len(new)
        for stored, other in zip(back, new, strict=True):
            assert same(_ordered(stored), _ordered(other))

    def test_a_named_kernel_comes_back_under_its_name(
        self, store: Store, new_run: Callable[..., Run]
    ) -> None:
        run = new_run()
        case = Case(problem=problem(1), backend="./kernels/gemm.py", name="gemm")
        store.add_results(run.id, [measured(case, (1.0,))])
        (back,) = store.results(run.id)
        assert (back.case.backend, back.case.series, back.case.id) == ("gemm", case.series, case.id)

    def test_results_survive_reopening(
        self, opener: Opener, store: Store, new_run: Callable[..., Run]
    ) -> None:
        run = new_run(label="x", argv=("kmark", "run\0", "\ud800"), suite="demo")
        case = Case(problem=problem(1), backend="numpy", config={"fast": True, "tile": 32})
        result = measured(case, (1.0, 2.0, 5e-324), (1e300, 0.1))
        result = dataclasses.replace(result, started=float("nan"), cost={"total": float("inf")})
        store.add_results(run.id, [result])
        with opener() as again:
            assert same(again.result_set(run.id), ResultSet(run=run, results=(result,)))

    def test_order_is_that_of_adding(self, store: Store, new_run: Callable[..., Run]) -> None:
        run = new_run()
        added = [
            measured(Case(problem=problem(m), backend="numpy"), (1.0,))
            for m in (5, 3, 9, 1, *range(100, 700))
        ]
        store.add_results(run.id, added[:3])
        store.add_results(run.id, iter(added[3:]))
        assert [r.case.problem.key for r in store.results(run.id)] == [
            r.case.problem.key for r in added
        ]

    def test_the_first_problems_come_with_every_failure(
        self, store: Store, new_run: Callable[..., Run]
    ) -> None:
        run = new_run()
        cases = [
            Case(problem=problem(m), backend=backend)
            for backend in ("numpy", "torch")
            for m in (5, 3, 9)
        ]
        added = [measured(case, (1.0,)) for case in cases]
        added[-1] = dataclasses.replace(added[-1], status=Status.CRASHED, measurement=None)
        store.add_results(run.id, added)
        first = store.result_set(run.id, problems=1).results
        assert first == (added[0], added[3], added[5])
        assert store.result_set(run.id, problems=2).results == (*added[:2], *added[3:])

    # Adding

    def test_adding_again_replaces(self, store: Store, new_run: Callable[..., Run]) -> None:
        run = new_run()
        case = Case(problem=problem(1), backend="numpy")
        crashed = Result(
            case=case, device="cpu", status=Status.CRASHED, error=Reason.of("signal 11")
        )
        good = measured(case, (1.0,))
        store.add_results(run.id, [crashed])
        store.add_results(run.id, [good])
        assert list(store.results(run.id)) == [good]
        other_device = dataclasses.replace(good, device="cuda:0")
        store.add_results(run.id, [other_device])
        store.add_results(run.id, [measured(case, (2.0,), process=1)], process=1)
        assert len(list(store.results(run.id))) == 3
        assert store.counts(run.id) == {Status.OK: 3}

    def test_finished_names_every_case_with_a_result(
        self, store: Store, new_run: Callable[..., Run]
    ) -> None:
        run, other = new_run(), new_run()
        good, bad = (Case(problem=problem(m), backend="numpy") for m in (1, 2))
        assert store.finished(run.id) == set()
        failed = Result(case=bad, device="cuda:0", status=Status.TIMEOUT)
        store.add_results(run.id, [measured(good, (1.0,)), failed])
        assert store.finished(run.id) == {good.id, bad.id}
        assert store.finished(run.id, device="cpu") == {good.id}
        assert store.finished(other.id) == set()

    def test_results_can_be_selected(self, store: Store, new_run: Callable[..., Run]) -> None:
        run = new_run()
        first, two = (Case(problem=problem(m), backend=b) for m, b in ((1, "numpy"), (2, "torch")))
        failed = Result(case=two, device="cpu", status=Status.WRONG)
        store.add_results(run.id, [measured(first, (1.0,)), failed])
        assert list(store.results(run.id, backend="torch")) == [failed]
        assert list(store.results(run.id, status=Status.WRONG)) == [failed]
        assert [r.case for r in store.results(run.id, problem=problem(1))] == [first]
        assert list(store.results(run.id, op="conv")) == []

    def test_an_unknown_run_is_refused(self, store: Store) -> None:
        with _refused(UsageError, "run-unknown"):
            store.add_results("nothing", [])
        with _refused(UsageError, "run-unknown"):
            list(store.results("nothing"))

    def test_latest_is_suggested_for_a_ref_that_is_close_to_it(
        self, store: Store, new_run: Callable[..., Run]
    ) -> None:
        new_run()
        for ref, close in (("lates", True), ("lastest~1", True), ("nightly", False)):
            with _refused(UsageError, "run-unknown") as raised:
                store.run(ref)
            assert ("latest" in (raised.value.hint or "")) is close

    # Runs

    def test_runs_newest_first_and_updated(self, store: Store, new_run: Callable[..., Run]) -> None:
        first, second = new_run(label="base"), new_run(label="head")
        assert store.runs() == [second, first]
        assert store.runs(limit=1) == [second]
        assert store.runs(label="base") == [first]
        done = dataclasses.replace(first, state=RunState.DONE, finished=2000.0)
        store.update_run(done)
        assert store.runs(label="base") == [done]
        with _refused(StoreError):
            store.add_run(first)
        with _refused(UsageError):
            store.add_run(dataclasses.replace(first, id="a b"))

    def test_a_run_is_found_by_what_a_user_types(
        self, store: Store, new_run: Callable[..., Run]
    ) -> None:
        with _refused(NothingToDo, "store-empty"):
            store.run("latest")
        runs = [new_run(label=label) for label in ("base", "base", "head")]
        other = new_run(id="20260101-000000-abcdef", started=0.5)
        assert store.run() == store.run("latest") == store.run("latest~0") == runs[2]
        assert store.run("latest~1") == runs[1]
        assert store.run("base") == runs[1]
        assert store.run("run-0000") == runs[0]
        # The run of the roofs has an id of the same second.
        new_run(id="20260101-000000-roofsx", started=0.5, suite=ROOFS_SUITE)
        assert store.run("2026") == other
        store.pin("golden", runs[0].id)
        assert store.run("golden") == runs[0]
        with _refused(UsageError, "run-ambiguous") as error:
            store.run("run-")
        assert error.value.message.fields["count"] == 3
        assert "run-0001 (base)" in str(error.value.hint)
        for bad in ("", "nothing", "run%", "run\0", "\ud800", "latest~9", "x" * 5000):
            with pytest.raises(UsageError) as error:
                store.run(bad)
            assert "run-0002 (head)" in str(error.value.hint)
            assert len(error.value.message) < 200
        assert store.roofs(device="\0", arch="\ud800") == ()

    def test_latest_counts_runs_of_cases_only(
        self, store: Store, new_run: Callable[..., Run]
    ) -> None:
        micro = new_run(id="20260101-000000-microx", suite=MICRO_SUITE)
        for ref in ("latest", "latest~1"):
            with _refused(NothingToDo):
                store.run(ref)
        assert store.run(micro.id) == store.run("2026") == micro
        first = new_run()
        new_run(suite=MICRO_SUITE)
        second = new_run()
        new_run(suite=MICRO_SUITE)
        new_run(suite=ROOFS_SUITE)
        for command in ("tune", "gate", "bisect", "nightly-again"):
            new_run(argv=(command, "x"))
        assert (store.run("latest"), store.run("latest~1")) == (second, first)
        with _refused(UsageError) as raised:
            store.run("latest~2")
        assert "2" in raised.value.message

    def test_pins(self, store: Store, new_run: Callable[..., Run]) -> None:
        first, two = new_run(), new_run()
        assert store.pinned("golden") is None
        store.pin("golden", first.id)
        store.pin("golden", two.id)
        store.pin("older", first.id)
        assert store.pinned("golden") == two.id
        assert store.pins() == {"golden": two.id, "older": first.id}
        store.unpin("golden")
        assert store.pins() == {"older": first.id}
        for bad in ("latest", "latest~2", "", "a b", "x\0"):
            with _refused(UsageError):
                store.pin(bad, first.id)
        with _refused(UsageError, "run-unknown"):
            store.pin("golden", "nothing")

    # Queries of the dashboard

    def test_the_version_changes_with_every_change(
        self, opener: Opener, store: Store, new_run: Callable[..., Run]
    ) -> None:
        """Check changes by another connection too: a dashboard renders pages again only then."""
        seen = [store.version()]
        assert store.version() == seen[0]
        run = new_run()
        seen.append(store.version())
        with opener() as other:
            other.add_results(run.id, [measured(Case(problem=problem(1), backend="b"), (1.0,))])
            seen.append(store.version())
            other.update_run(dataclasses.replace(run, state=RunState.DONE))
            seen.append(store.version())
        assert len(set(seen)) == 4

    def test_runs_are_found_page_by_page(self, store: Store, new_run: Callable[..., Run]) -> None:
        for number in range(5):
            new_run(label="50%_" if number % 2 else "nightly", suite="Demo")
        page, total = store.find_runs(limit=2, offset=1)
        assert ([run.id for run in page], total) == (["run-0003", "run-0002"], 5)
        assert store.find_runs(limit=9, label="nightly")[1] == 3
        assert store.find_runs(limit=9, text="%_")[1] == 2  # literal, not a pattern
        assert store.find_runs(limit=9, text="demo")[1] == 5
        assert store.find_runs(limit=9, text="nightly", state="done")[1] == 0
        assert store.run_names()["label"] == ["50%_", "nightly"]

    def test_results_are_counted_and_placed(
        self, store: Store, new_run: Callable[..., Run]
    ) -> None:
        runs = [new_run(), new_run()]
        case = Case(problem=problem(1), backend="numpy")
        for process in range(2):
            store.add_results(runs[0].id, [measured(case, (1.0,))], process=process)
        assert store.sizes([run.id for run in runs]) == {"run-0000": 2, "run-0001": 0}
        assert store.positions(runs[0].id) == {(case.id, "cpu", 0), (case.id, "cpu", 1)}

    def test_environments_tell_their_runs(
        self, store: Store, new_run: Callable[..., Run], environment: Environment
    ) -> None:
        other = dataclasses.replace(environment, host="other")
        for environment_of_run in (environment, other, environment):
            new_run(environment=environment_of_run)
        environments = store.environments()
        assert [(p.environment, p.runs, p.newest) for p in environments] == [
            (environment, 2, 1002.0),
            (other, 1, 1001.0),
        ]
        assert environments[0].fingerprint == environment.fingerprint

    def test_a_token_is_found_until_it_is_revoked(self, opener: Opener, store: Store) -> None:
        secret = store.create_token("host", Scope.WRITE)
        with opener() as other:
            stored_token = other.find_token(secret)
            assert stored_token is not None
            assert (stored_token.name, stored_token.scope) == ("host", Scope.WRITE)
            assert other.find_token(f"{secret}x") is None
        assert [token.name for token in store.tokens()] == ["host"]
        with pytest.raises(UsageError):
            store.create_token("host", Scope.READ)
        store.revoke_token("host")
        assert store.find_token(secret) is None
        with pytest.raises(UsageError):
            store.revoke_token("host")

    # History

    def test_a_point_has_the_modes_of_its_result(
        self, store: Store, new_run: Callable[..., Run]
    ) -> None:
        result = measured(Case(problem=problem(1), backend="numpy"), (1.0, 2.0))
        assert result.measurement is not None
        modes = (Mode(value_s=0.1 + 0.2, share=1 / 3), Mode(value_s=2.0, share=2 / 3))
        mixed = dataclasses.replace(result.measurement, modes=modes)
        run = new_run()
        store.add_results(run.id, [dataclasses.replace(result, measurement=mixed)])
        (point,) = store.history()
        assert point.modes == modes
        (newest,) = store.latest()
        assert newest.modes == modes

    def test_a_result_with_metrics_is_a_point_for_each_headline(
        self, store: Store, new_run: Callable[..., Run]
    ) -> None:
        rate = Metric(name="read", value=0.1 + 0.2, unit="B/s", spread=0.25, roof="bytes dram")
        aside = Metric(name="size", value=1.0, unit="B", better="", headline=False)
        good = micro_result(
            "l2-stream",
            parameters={"sizes": "1,2", "seconds": 0.1},
            metrics=(rate, aside),
            columns=(PointColumn(name="n", unit="B", limit=3.0),),
            rows=({"n": 1, "who": "a", "odd": None, "so": True}, {"n": 2.5}),
            trace=(Telemetry(power_w=1.5, throttle=("hot",)),),
            notes=("a note",),
        )
        failed = dataclasses.replace(good, status=Status.CRASHED, metrics=(), rows=())
        runs = [new_run(), new_run()]
        store.add_results(runs[0].id, [good])
        store.add_results(runs[1].id, [failed])
        assert list(store.results(runs[0].id)) == [good]
        points = store.history(op="l2_stream")
        assert [(p.metric, p.value, p.unit, p.better) for p in points] == [
            ("read", rate.value, "B/s", "higher"),
            ("read", None, "B/s", "higher"),
        ]
        assert {p.series for p in points} == {f"{good.series} | read"}
        assert store.series(points[0].series) == points
        assert store.result_set(runs[0].id) == ResultSet(run=runs[0], results=(good,))
        again = ResultSet(run=runs[0], results=(good,))
        assert not store.add_result_set(again).changed

    def test_history_is_one_point_a_result(
        self, store: Store, new_run: Callable[..., Run], environment: Environment
    ) -> None:
        case = Case(problem=problem(1), backend="numpy", config={"s": "a | b", "n": 1})
        other = Case(problem=problem(2), backend="torch")
        changed = dataclasses.replace(environment, libraries={"numpy": "2.1"})
        runs = [new_run(), new_run(environment=changed), new_run(label="head")]
        for number, run in enumerate(runs):
            good = measured(case, (number + 1.0,), (number + 2.0,), (number + 9.0,))
            elsewhere = dataclasses.replace(good, arch="b", device="cuda:0")
            store.add_results(
                run.id,
                [
                    good,
                    elsewhere,
                    Result(case=other, device="cpu", status=Status.CRASHED, arch="a"),
                ],
            )
        points = store.series(good.series)
        assert points == store.history(problem=problem(1), backend="numpy", arch="a")
        assert points == store.history(config=case.config, timing=case.timing, device="cpu")
        assert [p.run_id for p in points] == [run.id for run in runs]
        assert [p.started for p in points] == [run.started for run in runs]
        assert [p.median_s for p in points] == [2.0, 3.0, 4.0]
        assert [p.low_s for p in points] == [1.0, 2.0, 3.0]
        assert [p.high_s for p in points] == [9.0, 10.0, 11.0]
        assert {p.modes for p in points} == {()}
        assert {p.series for p in points} == {good.series}
        assert [p.fingerprint for p in points] == [run.environment.fingerprint for run in runs]
        assert points[0].fingerprint != points[1].fingerprint
        assert store.series(good.series, limit=2) == points[1:]
        assert store.history(backend="numpy", arch="a", since=runs[1].started) == points[1:]
        assert store.history(backend="numpy", arch="a", label="head") == points[2:]
        assert store.history(backend="numpy", arch="a", run_id=runs[0].id) == points[:1]
        assert [p.median_s for p in store.history(backend="torch")] == [None] * 3
        assert store.series("no such series") == []

    def test_latest_is_the_newest_point_of_each_series(
        self, store: Store, new_run: Callable[..., Run]
    ) -> None:
        late, early = new_run(started=9.0), new_run(started=5.0)
        first, two = (Case(problem=problem(m), backend="numpy") for m in (1, 2))
        store.add_results(late.id, [measured(first, (1.0,))])
        store.add_results(early.id, [measured(first, (2.0,)), measured(two, (3.0,))])
        points = store.latest(backend="numpy")
        assert [(p.run_id, p.median_s) for p in points] == [(late.id, 1.0), (early.id, 3.0)]
        assert len(store.latest()) == 2
        assert store.latest(backend="torch") == []

    # Exchange

    def test_a_result_set_comes_in_once(
        self, store: Store, new_run: Callable[..., Run], environment: Environment
    ) -> None:
        run = Run(id="from-file", started=5.0, environment=environment)
        results = tuple(
            measured(Case(problem=problem(m), backend="numpy"), (1.0,)) for m in range(1, 4)
        )
        first = store.add_result_set(ResultSet(run=run, results=results[:2]))
        assert (first.added, first.known, first.changed) == (2, 0, True)
        again = store.add_result_set(ResultSet(run=run, results=results[:2]))
        assert (again.added, again.known, again.changed) == (0, 2, False)
        assert "already in the store" in str(again)
        done = dataclasses.replace(run, state=RunState.DONE)
        longer = store.add_result_set(ResultSet(run=done, results=results))
        assert (longer.added, longer.known, longer.changed) == (1, 2, True)
        assert store.result_set(run.id) == ResultSet(run=done, results=results)
        by_process = (results[0], measured(results[0].case, (2.0,), process=1), *results[1:])
        widened = store.add_result_set(ResultSet(run=done, results=by_process))
        assert (widened.added, widened.known) == (1, 3)
        assert store.result_set(run.id).results == (*results, by_process[1])
        stranger = dataclasses.replace(run, started=6.0)
        with _refused(StoreError, "run-differs"):
            store.add_result_set(ResultSet(run=stranger, results=results))

    # Roofs

    def test_roofs_are_the_newest_of_each(self, store: Store) -> None:
        def roof(name: str, value: float, measured: float, threads: int = 1) -> Roof:
            return Roof(
                device="cpu",
                arch="a",
                kind="flops",
                name=name,
                value=value,
                how="fma",
                measured=measured,
                threads=threads,
            )

        assert store.roofs() == ()
        store.add_roofs([])
        new, old, two = roof("f32", 2.0, 9.0), roof("f32", 1.0, 5.0), roof("f32", 3.0, 5.0, 2)
        other = roof("f64", 1.0, 5.0)
        store.add_roofs([new, old, two, other])
        assert set(store.roofs()) == {new, two, other}
        assert set(store.roofs(device="cpu", arch="a", threads=1)) == {new, other}
        assert store.roofs(arch="b") == ()
        store.add_roofs([old], host="elsewhere")
        assert store.roofs(host="elsewhere") == (old,)
