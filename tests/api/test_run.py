"""Real runs: through workers, on the fake device where the number itself does not matter."""

from __future__ import annotations

import builtins
import csv
import dataclasses
import io
import signal

import ml_dtypes
import numpy as np
import pytest

import kernelmark as km
from kernelmark.api.bench import TIMING
from kernelmark.api.results import read_file
from kernelmark.core import codec
from kernelmark.core.errors import CodecError, ProblemError, StoreError, UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import ResultSet, RunState, Status
from kernelmark.core.units import time_text, width_text
from kernelmark.runners.events import CaseFinished
from kernelmark.workloads.importers import Overrides
from kernelmark_dev.raising import raises, raises_code

QUICK = km.Timing(max_s=0.05, warmup_s=0.01, max_allocations=3)


@pytest.fixture(scope="module")
def results():
    return km.run(
        "gemm",
        m=[8, 16],
        n=8,
        k=8,
        dtype="f32",
        device="fake",
        backend="fake",
        config={"time_us": 20.0},
        timing=QUICK,
    )


def test_a_run_is_a_sequence_of_results(results):
    assert len(results) == 2
    assert all(isinstance(result, km.Result) for result in results)
    assert [r.status for r in results] == ["ok", "ok"]
    assert results[0].measurement.median_s == pytest.approx(20e-6, rel=1e-6)
    assert results[:1] == [results[0]]
    assert results.run.state is RunState.DONE
    assert not results.failed
    assert len(results.best()) == 2
    assert "2 ok" in repr(results)


def test_shows_and_writes_itself(results, tmp_path):
    assert "<table>" in results._repr_html_()
    assert "20.00 µs" in str(results)
    assert codec.loads(results.to_json(tmp_path / "r.json"), ResultSet) == results.result_set
    assert (tmp_path / "r.json").read_text() == results.to_json()
    rows = list(csv.DictReader(io.StringIO(results.to_csv())))
    assert [row["m"] for row in rows] == ["8", "16"]
    assert results.to_md().startswith("| problem |")


def test_it_is_folded_to_the_width_of_a_terminal_and_nowhere_else(results, monkeypatch):
    # Only tables are folded, and a busy machine adds warnings.
    plain = [
        dataclasses.replace(one, measurement=dataclasses.replace(one.measurement, warnings=()))
        for one in results
    ]
    one = km.Results(ResultSet(run=results.run, results=tuple(plain)))
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, str(one).splitlines())) > 60
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert max(map(len, str(one).splitlines())) <= 60


@pytest.mark.parametrize(
    ("timing", "hint"),
    [
        (km.Timing.preset("quick"), 'km.Timing.preset("quick", max_s=0.8)'),
        (km.Timing.preset("full"), 'km.Timing.preset("full", max_s=20)'),
        (km.Timing(), "km.Timing(max_s=4)"),
        (TIMING, "km.Timing(max_s=2)"),
    ],
)
def test_warnings_are_in_the_words_of_python(results, timing, hint):
    told = (Reason("not settled", "not-settled", seconds=0.2, warmup_s=0.1),)
    measured = dataclasses.replace(results[0].measurement, warnings=told)
    case = dataclasses.replace(results[0].case, timing=timing)
    doubtful = dataclasses.replace(results[0], case=case, measurement=measured)
    one = str(km.Results(ResultSet(run=results.run, results=(doubtful,))))
    assert f"timing={hint}\n" in one


def test_a_result_prints_as_one_line(results):
    one = results[0]
    assert "\n" not in str(one)
    assert len(str(one)) < 150
    for word in (one.case.problem.key, one.case.backend, one.status.value):
        assert word in str(one)
    assert time_text(one.measurement.median_s) in str(one)
    assert width_text(one.measurement.rel_half_width) in str(one)
    failed = dataclasses.replace(one, status=Status.CRASHED, measurement=None)
    assert str(failed).endswith("crashed")
    assert failed != one
    assert dataclasses.replace(one) == one


@pytest.mark.parametrize(
    ("given", "hint"), [(64.0, "m=64"), ("x", "m=512"), (0.5, "m=512"), (True, "m=512")]
)
def test_a_dim_that_is_not_an_integer_gets_a_hint(given, hint):
    with pytest.raises(ProblemError) as refused:
        km.run("gemm", m=given, n=8, k=8, dtype="f32", backend="fake")
    assert refused.value.hint.endswith(hint)


def test_a_field_of_the_timing_is_no_argument():
    with raises(UsageError, name="max_s") as refused:
        km.run("gemm", m=8, n=8, k=8, dtype="f32", backend="fake", max_s=2)
    assert refused.value.hint == 'write: timing=km.Timing.preset("default", max_s=2)'


def test_frame_needs_pandas_and_says_so(results, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "pandas":
            raise ImportError(name)
        return real(name, *rest)

    def imported(name, *rest):
        raise ImportError(name)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("kernelmark.api.results.importlib.import_module", imported)
    with raises(UsageError, name="pandas") as caught:
        results.frame()
    assert "pip install pandas" in caught.value.hint


def test_frame_holds_the_records(results):
    pandas = pytest.importorskip("pandas", reason="needs pandas, which make test installs")
    frame = results.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["m"]) == [8, 16]


def test_a_failing_case_is_a_result(tmp_path):
    found = km.run(
        problem="gemm m=8 n=8 k=8 dtype=f32",
        device="fake",
        config={"behaviour": "wrong"},
        timing=QUICK,
    )
    assert [r.status for r in found] == ["wrong"]
    assert found.failed
    assert found.best() == []
    assert found.ok() == []


def test_stores_only_when_asked(tmp_path):
    place = tmp_path / "mine.sqlite"
    chosen = {"device": "fake", "timing": QUICK, "m": 8, "n": 8, "k": 8, "dtype": "f32"}
    km.run("gemm", **chosen)
    assert not (tmp_path / "store.sqlite").exists()
    found = km.run("gemm", store=place, label="mine", **chosen)
    with km.open_store(place) as store:
        assert store.run("mine").id == found.run.id
        assert store.result_set(found.run.id) == found.result_set
        again = km.run("gemm", store=store, **chosen)
        assert store.run("latest").id == again.run.id


def test_a_label_by_which_no_run_could_be_found_is_refused():
    with raises(UsageError, name="mine.json"):
        km.run("gemm", m=8, n=8, k=8, dtype="f32", device="fake", label="mine.json")
    with raises(UsageError, name="./mine"):
        read_file("-", Overrides(label="./mine"))


@pytest.mark.slow
def test_cpu_runs_are_compared_with_roofs_that_are_measured_once(tmp_path):
    chosen = {
        "backend": "numpy",
        "timing": QUICK,
        "m": 64,
        "n": 64,
        "k": 64,
        "dtype": "f32",
        "store": tmp_path / "s.sqlite",
    }
    told = []
    found = km.run("gemm", on_event=told.append, **chosen)
    assert found.rows[0].share is not None
    assert found.rows[0].share.value > 0
    assert any("measuring the roofs" in getattr(event, "text", "") for event in told)
    told.clear()
    again = km.run("gemm", on_event=told.append, **chosen)
    # Even those that other work disturbed are not measured again at once.
    assert not any("measuring the roofs" in getattr(event, "text", "") for event in told)
    assert set(again.roofs) == set(found.roofs)
    assert km.run("gemm", roofs="none", **chosen).rows[0].share is None


def test_ctrl_c_reaches_the_caller_once_all_is_stored(tmp_path):
    def interrupt(event):
        if isinstance(event, CaseFinished):
            signal.raise_signal(signal.SIGINT)

    chosen = {"device": "fake", "timing": QUICK, "m": [8, 16], "n": 8, "k": 8, "dtype": "f32"}
    place = tmp_path / "s.sqlite"
    with pytest.raises(KeyboardInterrupt, match="after 1 of 2 cases"):
        km.run("gemm", store=place, on_event=interrupt, **chosen)
    with km.open_store(place) as store:
        run = store.run("latest")
        assert run.state is RunState.INTERRUPTED
        assert len(list(store.results(run.id))) == 1


def test_illegal_requests_raise_before_anything_runs():
    with raises(km.KernelmarkError, given="m=0"):
        km.run("gemm", m=0, n=8, k=8, dtype="f32")
    with raises(km.KernelmarkError, what="timing preset", name="slow"):
        km.run("gemm", m=8, n=8, k=8, dtype="f32", timing="slow")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("fp32", "f32"), ("FP32", "f32"), ("BF16", "bf16"), ("bfloat16", "bf16"), ("f31", None)],
)
def test_a_dtype_by_another_name_is_suggested(given, meant):
    with pytest.raises(ProblemError) as refused:
        km.run("gemm", m=8, n=8, k=8, dtype=given)
    assert (f"did you mean {meant}? " in refused.value.hint) == (meant is not None)


def test_a_changed_file_of_ours_is_not_taken_for_one_of_another_tool(tmp_path):
    made = km.run("gemm", m=8, n=8, k=8, dtype="f32", device="fake", backend="fake")
    file = tmp_path / "r.json"
    file.write_text(made.to_json().replace('"ok"', '"fine"'))
    with pytest.raises(CodecError) as refused:
        read_file(str(file))
    assert refused.value.hint


@pytest.mark.parametrize(
    ("content", "cut"),
    [
        (b"", False),
        (b" \n", False),
        (b"\x93\xff\x00\xc3", False),
        (b"some words", False),
        (b'{"kernelmark": "results", "ver', True),
        (b'{"other": 1}', False),
    ],
)
def test_what_is_not_json_is_reported_as_what_it_is(tmp_path, content, cut):
    file = tmp_path / "r.json"
    file.write_bytes(content)
    with pytest.raises(CodecError) as refused:
        read_file(str(file))
    assert bool(refused.value.hint) == cut


@pytest.mark.parametrize("stored", [None, 0, 1])
def test_a_full_disk_is_reported_with_the_command_that_resumes(tmp_path, monkeypatch, stored):
    """After so many results; None: not even the run fits, and there is none to resume."""
    chosen = {"m": [8, 16], "n": 8, "k": 8, "dtype": "f32", "device": "fake", "backend": "fake"}
    calls = []

    def full(self, *given, **more):
        if len(calls) == (stored or 0):
            raise StoreError(Reason("the disk is full", "store-disk-full"), hint="free some space")
        calls.append(1)
        return whole(self, *given, **more)

    with km.open_store(tmp_path / "s.sqlite") as store:
        name = "add_run" if stored is None else "add_results"
        whole = getattr(type(store), name)
        monkeypatch.setattr(type(store), name, full)
        with raises_code(StoreError, "store-disk-full") as refused:
            km.run("gemm", store=store, **chosen)
        if stored is None:
            assert refused.value.hint == "free some space"
        else:
            assert f"kmark run --resume {store.run().id}" in refused.value.hint


@pytest.fixture
def planned(monkeypatch):
    """The selections that `run` would measure."""
    selections = []

    def plan(selection, timing):
        selections.append(selection)
        raise UsageError("it is only planned")

    monkeypatch.setattr("kernelmark.api.run.plan", plan)
    return selections


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (np.float32, ["f32"]),
        (np.dtype("float16"), ["f16"]),
        (ml_dtypes.bfloat16, ["bf16"]),
        ([np.dtype(ml_dtypes.float8_e4m3fn), "f32", np.int8], ["f8e4m3", "f32", "i8"]),
    ],
)
def test_a_dtype_may_be_that_of_numpy(planned, given, names):
    with pytest.raises(UsageError):
        km.run("gemm", m=8, n=8, k=8, dtype=given, a=given)
    assert list(planned[0].dtypes) == names
    text = f"[{','.join(names)}]" if isinstance(given, list) else names[0]
    assert planned[0].axes[-1] == f"a={text}"


@pytest.mark.parametrize("given", [float, np.dtype(">f4"), np.complex64, 3])
def test_a_type_that_is_no_dtype_of_ours_is_refused_with_a_name_as_hint(given):
    with raises(UsageError, name="dtype", given=repr(given)) as refused:
        km.run("gemm", m=8, n=8, k=8, dtype=given)
    assert '"f32"' in refused.value.hint
    if given != 3:
        with raises(UsageError, name="a", given=repr(given)):
            km.run("gemm", m=8, n=8, k=8, dtype="f32", a=given)


@pytest.mark.parametrize("given", ["yes", 1])
def test_progress_is_true_or_false(given):
    chosen = {"m": 8, "n": 8, "k": 8, "dtype": "f32", "device": "fake", "backend": "fake"}
    with raises(UsageError, name="progress", given=repr(given)) as refused:
        km.run("gemm", progress=given, **chosen)
    assert refused.value.hint


@pytest.mark.parametrize("name", ["canaries", "sentinels"])
def test_canaries_are_asked_for_by_either_name(planned, name):
    for given in ({}, {name: True}):
        with pytest.raises(UsageError):
            km.run(suite="smoke", **given)
    assert [selection.canaries for selection in planned] == [False, True]


def test_a_stored_run_is_loaded_with_its_roofs(tmp_path):
    place = tmp_path / "s.sqlite"
    made = km.run("gemm", m=8, n=8, k=8, dtype="f32", device="fake", backend="fake", store=place)
    found = km.load(made.run.id, store=place)
    assert found.run.id == made.run.id
    assert [one.case.id for one in found] == [one.case.id for one in made]
    with km.open_store(place) as store:
        assert km.load(store=store).run.id == made.run.id
        assert store.run().id == made.run.id, "it is still open"
    made.to_json(tmp_path / "r.json")
    assert km.load(str(tmp_path / "r.json")).run.id == made.run.id
    assert km.load(tmp_path / "r.json").run.id == made.run.id
    for ref, more, fields in (
        (3, {}, {"name": "ref", "given": "3"}),
        ("latest", {"store": False}, {"name": "latest"}),
    ):
        with raises(UsageError, **fields):
            km.load(ref, **more)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: km.run("gemm", m=8, n=8, k=8, dtype="f32", store=store),
        lambda store: km.bench(np.abs, np.ones(8, np.float32), store=store),
        lambda store: km.load(store=store),
        lambda store: km.plot("roofline", store=store),
        lambda store: km.plot("history", store=store),
    ],
)
def test_what_is_not_a_store_is_refused(call):
    with raises(UsageError, name="store", given="5") as refused:
        call(5)
    assert refused.value.hint


def test_an_unknown_field_of_a_preset_is_refused_with_the_known_ones():
    with pytest.raises(UsageError) as refused:
        km.Timing.preset("quick", max_sec=1)
    assert "did you mean max_s? " in refused.value.hint


def test_waiting_is_reported_once_a_minute_and_device(capsys, monkeypatch):
    from kernelmark.api import bench, run
    from kernelmark.report.summary import ProgressLines
    from kernelmark.runners import events

    run._report_wait(events.Note(text="of no interest"))
    now = [1000.0]
    monkeypatch.setattr(events.time, "monotonic", lambda: now[0])
    lines: list[str] = []
    progress = ProgressLines(lines.append)
    for holder in ("process 1", "process 2"):
        run._report_wait(events.Waiting(device="b", holder=holder))
        bench._report_wait("b", holder)
        progress(events.Waiting(device="b", holder=holder))
    progress(events.Waiting(device="c", holder="process 1"))
    assert (len(capsys.readouterr().err.splitlines()), len(lines)) == (1, 1)
    now[0] += 61
    bench._report_wait("b", "process 1")
    bench._report_wait("b", "process 1")
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("name", ["backends", "devices", "suites", "dtypes"])
def test_an_argument_in_the_plural_suggests_the_singular(name):
    with raises(UsageError, what="argument", name=name) as caught:
        km.run("gemm", m=8, n=8, k=8, **{name: "numpy"})
    assert name[:-1] in caught.value.hint.removesuffix("?").split()


def test_threads_are_those_of_the_command_line():
    asked = {"m": 8, "n": 8, "k": 8, "dtype": "f32", "backend": "fake", "device": "fake"}
    (result,) = km.run("gemm", **asked, timing="quick", threads=1, roofs="none")
    assert result.case.timing == km.Timing.preset("quick", threads=1)
    for bad in (-1, 1.5, "two"):
        with pytest.raises(UsageError):
            km.run("gemm", **asked, timing="quick", threads=bad)
