"""`kmark micro` and `kmark roofs`: measured for real on one core, stored, shown, compared."""

import dataclasses
import json
import platform
import shlex
import shutil

import pytest

from kernelmark import devices
from kernelmark.api.results import Results
from kernelmark.cli.main import main
from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.metric import Metric, Roof
from kernelmark.core.micro import MICRO_SUITE, mode_of, parameters_of
from kernelmark.core.result import ResultSet, Run, RunState, Status
from kernelmark.micro import session
from kernelmark.stores import open_store
from kernelmark.testing.micro import micro_result
from kernelmark_dev.results import make_roof

pytestmark = pytest.mark.usefixtures("compiler")
QUICK = ("micro", "instructions", "--brief", "--threads", "1", "-p", "ops=add_i64")


@pytest.fixture(autouse=True)
def places(tmp_path_factory, tmp_path, monkeypatch):
    """As everywhere, but built kernels are kept between tests."""
    monkeypatch.setenv("KERNELMARK_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A store with one run, and the run as JSON."""
    folder = tmp_path_factory.mktemp("once")
    files = ("--store", str(folder / "store.sqlite"), "--json", str(folder / "run.json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELMARK_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        with pytest.raises(SystemExit) as ended:
            main((*QUICK, *files))
    assert not ended.value.code
    return folder


@pytest.fixture
def measured(once, tmp_path):
    """That run in this test's own store; the path of its JSON."""
    shutil.copy(once / "store.sqlite", tmp_path / "store.sqlite")
    return str(shutil.copy(once / "run.json", tmp_path / "run.json"))


def test_a_benchmark_is_measured_shown_and_stored(kmark, tmp_path):
    ended = kmark(*QUICK)
    assert ended.code == 0, ended.err
    assert "latency_add_i64" in ended.out
    assert ended.err.split()[0] == "instructions"
    assert "stored in" in ended.err
    found = codec.loads(kmark("micro", "show", "latest", "--json", "-").out, ResultSet)
    problem = found.results[0].case.problem
    assert problem.op == "instructions"
    assert (mode_of(problem), parameters_of(problem)["ops"]) == ("brief", "add_i64")
    with open_store(tmp_path / "store.sqlite") as store:
        assert store.result_set(store.runs()[0].id) == found


def test_files_and_figures(kmark, tmp_path):
    csv, md, figure = tmp_path / "m.csv", tmp_path / "m.md", tmp_path / "m.json"
    ended = kmark(*QUICK, "--no-store", "--csv", str(csv), "--md", str(md), "-f", str(figure))
    assert ended.code == 0, ended.err
    assert csv.read_text().splitlines()[0].startswith("benchmark,device,model")
    assert "| benchmark |" in md.read_text()
    assert json.loads(figure.read_text())["title"]["text"].startswith("instructions")
    assert "not stored" in ended.err
    assert not (tmp_path / "store.sqlite").exists()


def test_what_a_device_lacks_is_told_and_is_no_failure(kmark, tmp_path):
    ended = kmark("micro", "l2-cache")
    assert ended.code == 0
    assert "unsupported" in ended.out
    with open_store(tmp_path / "store.sqlite") as store:
        assert store.runs(suites=(MICRO_SUITE,)) == []  # refusals alone are no run
    written = kmark("micro", "l2-cache", "--no-store", "--json", "-").out
    (result,) = codec.loads(written, ResultSet).results
    assert result.status is Status.UNSUPPORTED
    assert result.error.root.code == "device-unsupported"
    fields = result.error.root.fields
    assert (fields["kinds"], fields["kind"]) == (("cuda", "hip"), "cpu")
    assert result.error in " ".join(ended.out.split())
    assert kmark("micro", "l2-cache", "instructions", "--brief", "--threads", "1").code == 0
    with open_store(tmp_path / "store.sqlite") as store:
        (run,) = store.runs(suites=(MICRO_SUITE,))
        assert [one.status for one in store.results(run.id)] == [Status.UNSUPPORTED, Status.OK]


def test_two_runs_compared_and_history(kmark, measured, tmp_path):
    file = measured
    assert kmark(*QUICK).code == 0
    for words in (("latest~1", "latest"), (str(file), "latest")):
        ended = kmark("micro", "compare", *words)
        assert ended.code == 0
        assert "latency_add_i64" in ended.out
    story = kmark("history", "--micro", "instructions")
    assert story.code == 0
    assert len(story.out.strip().splitlines()) >= 4
    assert kmark("history", "--micro", "instructions", "--csv", "-").out.startswith(
        "series,run,started"
    )
    assert "nothing was added" in kmark("micro", "import", str(file)).err
    other = ("--store", str(tmp_path / "other.sqlite"))
    brought = kmark("micro", "import", str(file), *other)
    assert "1 result added" in brought.err
    assert "nothing was added" in kmark("micro", "import", str(file), *other).err
    assert kmark("micro", "import", str(file), "-q", *other).err == ""


def test_a_lost_benchmark_is_a_point_of_its_own_series(kmark, measured, monkeypatch):
    monkeypatch.setitem(session.TIMEOUT_S, "brief", 1e-6)
    assert kmark(*QUICK).code == 3
    story = kmark("history", "--micro", "instructions", "--runs", "5", "--arch", "x" * 9, "-q")
    assert story.code == 4
    found = json.loads(kmark("history", "--micro", "instructions", "--json", "-").out)
    assert {one["state"] for one in found["series"]} == {"broken"}
    assert "instructions brief ops=add_i64" in kmark("history", "--micro", "instructions").out


def test_listing(kmark):
    ended = kmark("micro", "list")
    assert ended.code == 0
    assert "l2-cache" in ended.out
    assert "bytes of the working set" in kmark("micro", "list", "latency").out


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (("micro", "nonsense"), {"name": "nonsense"}),
        (("micro", "cache", "--quick", "--full"), {"options": ("--full",), "other": "--quick"}),
        (("micro", "cache", "-p", "x=1"), {"name": "x"}),
        (("micro", "cache", "-p", "sizes"), {"given": "sizes"}),
        (("micro", "instructions", "-p", "samples=0"), {"name": "samples"}),
        (("micro", "instructions", "-p", "cycles=-1"), {"name": "cycles"}),
        (("micro", "cache", "-f", "x.gif"), {"file": "x.gif"}),
        (("micro", "cache", "-f", "."), {"file": "."}),
        (("micro", "compare", "latest"), {"most": 2, "given": 1}),
        (("micro", "show", "a", "b"), {"most": 1, "given": 2}),
        (("micro", "list", "cache", "latency"), {"most": 1, "given": 2}),
        (("micro", "import"), {}),
        (("micro", "show", "missing.json"), {"file": "missing.json"}),
        (("roofs", "--stored", "--no-store"), {"other": "--stored"}),
        (("micro",), {}),
        (("micro", "--threads", "1"), {}),
        (("history", "--micro", "cache", "--runs", "0"), {"option": "--runs"}),
        (("micro", "cache", "-d", "fake:0"), {"device": "fake:0"}),
        # Options that would be ignored.
        (("micro", "show", "-d", "cpu"), {"options": ("--device",)}),
        (("micro", "show", "--full", "-p", "a=1"), {"options": ("--full", "--parameter")}),
        (("micro", "show", "--no-store"), {"options": ("--no-store",)}),
        (("micro", "compare", "a", "b", "--points"), {"options": ("--points",)}),
        (("micro", "compare", "a", "b", "--brief"), {"options": ("--brief",)}),
        (("micro", "list", "--json", "-"), {"options": ("--json",)}),
        (("micro", "import", "a.json", "--csv", "-"), {"options": ("--csv",)}),
        (("history", "--micro", "cache", "--check"), {"options": ("--check",)}),
        (("history", "--micro", "cache", "-o", "gemm", "--all"), {"options": ("--op", "--all")}),
        (("history", "--micro", "cache", "--min-effect", "0.02"), {"options": ("--min-effect",)}),
        (("history", "--micro", "cache", "--pin", "x"), {"options": ("--pin",)}),
        # A missing store is made by the command that stores.
        (("micro", "show"), {"reason": "store-missing"}),
        (("micro", "compare", "a", "b"), {"reason": "store-missing"}),
        (("history", "--micro", "cache"), {"reason": "store-missing"}),
    ],
)
def test_refusals(refused, words, fields):
    ended = refused(*words, **fields)
    if "reason" in fields:
        assert "`kmark micro NAME`" in ended.err.splitlines()[1]


def test_a_gpu_that_is_not_here_is_refused(refused):
    missing = devices.registry.get("cuda").available()
    refused("micro", "cache", "-d", "cuda:99", missing=missing or "cuda:99")


@pytest.mark.parametrize("words", [("roofs",), ("roofs", "--no-store"), ("micro", "cache")])
def test_more_threads_than_cores_are_refused_and_nothing_is_stored(refused, tmp_path, words):
    refused(*words, "--threads", "9999", threads=9999)
    place = tmp_path / "store.sqlite"
    if place.exists():
        with open_store(place) as store:
            assert not store.roofs()
            assert not store.runs()


@pytest.mark.parametrize("depth", ["--quick", "--full", "--brief"])
def test_a_depth_alone_means_all_benchmarks(kmark, monkeypatch, depth):
    from kernelmark.api import micro as api

    asked = []

    def measure(names, **given):
        asked.append((list(names), given["mode"]))
        return Results(
            ResultSet(run=Run(id="r", started=1.0, environment=Environment()), results=())
        )

    monkeypatch.setattr(api, "measure", measure)
    assert kmark("micro", depth, "--no-store").code == 0
    assert asked == [(api.names_for("cpu"), depth[2:])]


@pytest.mark.parametrize("verb", [(), ("list",)])
def test_an_unknown_name_is_told_in_the_spelling_of_the_list(refused, verb):
    words = ("micro", *verb, "nope")
    hint = refused(*words, name="nope").err.splitlines()[1]
    assert "incore?" not in hint
    assert "l2-cache" in hint
    assert "l2_cache" not in hint
    assert " l2-cache? " in refused("micro", *verb, "l2_cahce").err


@pytest.mark.parametrize("option", ["--csv", "--json", "--md", "-f"])
def test_a_place_that_cannot_hold_a_file_is_refused_before_measuring(
    refused, tmp_path, monkeypatch, option
):
    """Where permissions say nothing, too: root may write into /proc, which has no new files."""
    place = "/proc/x.json"
    words = ("micro", "cache", "--brief", "--no-store", option)
    refused(*words, place, file=place)
    if option == "--json":
        refused("roofs", option, place, file=place)
    (tmp_path / "x.json").mkdir()
    refused(*words, str(tmp_path / "x.json"))
    locked = tmp_path / "locked"
    locked.mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: str(path) != str(locked))
    refused(*words, str(locked / "x.json"))


def test_a_disk_that_fills_later_is_told_with_the_command_that_writes_it_again(kmark, tmp_path):
    full = "/dev/full"
    ended = kmark(*QUICK, "--csv", full)
    assert ended.code == 2
    assert str(full) in ended.reason
    run_id = ended.err.partition("\nrun ")[2].partition(":")[0]
    assert f": kmark micro show {run_id} --csv FILE\n" in ended.err
    assert "kmark micro show" not in kmark(*QUICK, "--no-store", "--csv", full).err
    other = str(tmp_path / "other.sqlite")
    told = kmark(*QUICK, "--store", other, "--csv", full).err
    assert told.endswith(f" --csv FILE --store {other}\n")
    for words in (
        ("micro", "compare", "latest", "latest~0"),
        ("history", "--micro", "instructions"),
    ):
        kept = f": kmark {shlex.join(words)} --csv FILE\n"
        assert kept in kmark(*words, "--md", full).err


@pytest.fixture
def roofs(monkeypatch):
    """Roofs at once, where measuring them takes a minute of compilers."""

    def measure(device, threads, tell):
        arch = devices.registry.get("cpu").infos()[0].arch
        about = {"threads": threads or 2, "device": "cpu", "arch": arch}
        metrics = {
            "vector": Metric(name="peak_f32", value=1e11, unit="FLOP/s", roof="flops f32 vector"),
            "stream": Metric(name="copy", value=1e10, unit="B/s", roof="bytes dram"),
        }
        return [micro_result(name, metrics=(one,), **about) for name, one in metrics.items()]

    monkeypatch.setattr(session, "measure_roof_sources", measure)


@pytest.mark.usefixtures("roofs")
def test_roofs_that_cannot_be_written_are_kept(kmark):
    ended = kmark("roofs", "--json", "/dev/full", "-q")
    assert ended.code == 2
    assert ended.err.endswith(": kmark roofs --stored --json FILE\n")


def test_nothing_stored_is_code_4(refused, tmp_path):
    with open_store(tmp_path / "store.sqlite"):
        pass
    refused("micro", "show", code=4)
    refused("history", "--micro", "cache", code=4, benchmark="cache")
    refused("roofs", "--stored", code=4, device="cpu")


def test_a_run_that_is_not_there(measured, refused):
    refused("micro", "show", "nonsense", reason="run-unknown", ref="nonsense")
    refused("micro", "show", "latest~7", count=1)
    refused("history", "--micro", "instructions", "--arch", "bogus", code=4)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_roofs_are_measured_stored_and_used(kmark, tmp_path, request, real):
    if not real:
        request.getfixturevalue("roofs")
    ended = kmark("roofs", "--threads", "1")
    assert ended.code == 0, ended.err
    assert "FLOP/s" in ended.out
    assert "data sheet" in ended.out
    with open_store(tmp_path / "store.sqlite") as store:
        roofs = store.roofs()
    assert {("flops", "f32"), ("bytes", "dram")} <= {(r.kind, r.name) for r in roofs}
    assert all(isinstance(r, Roof) and r.threads == 1 for r in roofs)
    assert "threads" in kmark("roofs", "--stored").out.splitlines()[0].split()
    stored = kmark("roofs", "--stored", "--threads", "1", "--json", "-")
    assert {one["kernelmark"] for one in json.loads(stored.out)} == {"roof"}


def test_a_comparison_goes_where_it_is_asked_for(kmark, measured, tmp_path):
    file, figure = measured, tmp_path / "both.json"
    assert kmark(*QUICK).code == 0
    words = ("micro", "compare", str(file), "latest")
    (record, *_) = json.loads(kmark(*words, "--json", "-").out)["rows"]
    assert record["metric"] == "latency_add_i64"
    assert record["ratio"] == pytest.approx(record["head_value"] / record["base_value"])
    (head, _) = json.loads(kmark("list", "micro", "--json", "-").out)
    as_run = kmark("compare", str(file), head["run"], "--json", "-")
    assert record == json.loads(as_run.out)["rows"][0]
    assert "drawn" in kmark(*words, "-f", str(figure)).err
    drawn = {point["who"] for point in json.loads(figure.read_text())["data"]["values"]}
    assert len(drawn) == 2


def test_runs_of_different_depth_are_compared_with_a_note(kmark, measured):
    assert kmark(*(word for word in QUICK if word != "--brief")).code == 0
    note = "note: instructions: taken as brief and as quick\n"
    assert note in kmark("micro", "compare", "latest~1", "latest").err
    assert "taken" not in kmark("micro", "compare", "latest", "latest~0").err
    assert note not in kmark("micro", "compare", "latest~1", "latest", "-q").err


def test_ctrl_c_tells_what_is_kept(kmark, tmp_path, monkeypatch):
    before = session.run

    def one_and_no_more(names, **given):
        yield from before(names, **given)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "run", one_and_no_more)
    place = tmp_path / "found.json"
    ended = kmark(*QUICK, "--json", str(place))
    assert ended.code == 130
    assert "interrupted after 1 result; stored as" in ended.err
    assert "latency_add_i64" in ended.out
    found = codec.loads(place.read_text(), ResultSet)
    assert [one.case.problem.op for one in found.results] == ["instructions"]
    with open_store(tmp_path / "store.sqlite") as store:
        assert store.runs()[0].state is RunState.INTERRUPTED


def test_a_figure_of_what_failed_is_not_drawn(kmark, tmp_path, monkeypatch):
    before = session.run
    failed = {"status": Status.RUNTIME_ERROR, "rows": (), "metrics": (), "error": "it broke"}

    def failing(names, **given):
        return (dataclasses.replace(result, **failed) for result in before(names, **given))

    monkeypatch.setattr(session, "run", failing)
    assert kmark(*QUICK, "-f", str(tmp_path / "x.svg")).code == 3
    assert not (tmp_path / "x.svg").exists()


def test_a_file_without_results_is_told(kmark, measured, refused, tmp_path):
    empty, odd = tmp_path / "none.json", tmp_path / "run.json"
    empty.write_text("[]")
    for words in (["show", str(empty)], ["compare", str(empty), "latest"], ["import", str(empty)]):
        ended = kmark("micro", *words)
        assert ended.code == 4
        assert str(empty) in ended.reason
    odd.write_text(odd.read_text().replace('"instructions ', '"../x '))
    refused("micro", "import", str(odd), name="../x")


def test_a_figure_of_several_is_named_by_them_whatever_came_of_them(kmark, tmp_path):
    figure = tmp_path / "two.json"
    words = ("micro", "cache", "atomics", "--brief", "--no-store", "--threads", "1")
    assert kmark(*words, "-f", str(figure)).code == 0
    assert (tmp_path / "two-cache.json").exists()
    assert not figure.exists()


def test_what_all_results_note_is_said_once(kmark, monkeypatch):
    monkeypatch.setenv("CXX", "/bin/false")
    words = ("micro", "cache", "memcpy", "--brief", "--no-store", "--threads", "1")
    assert kmark(*words).err.count("$CXX is '/bin/false', which does not work here") == 1


def test_a_run_of_microbenchmarks_is_a_run_like_others(kmark, measured, tmp_path):
    file = measured
    other = ("--store", str(tmp_path / "other.sqlite"))
    assert kmark("import", file, *other).code == 0
    written = codec.loads((tmp_path / "run.json").read_text(), ResultSet)
    run = written.run.id
    for words in (("show", file), ("show", run, *other), ("show", run, *other, "--samples")):
        assert "latency_add_i64" in kmark(*words).out
    record = kmark("export", run, *other, "--csv", "-").out
    assert record.splitlines()[0].endswith(",metric,value,unit")
    assert codec.loads(kmark("export", run, *other).out, ResultSet) == written
    assert "| latency_add_i64 |" in kmark("export", run, *other, "--md", "-").out
    same = json.loads(kmark("compare", file, run, *other, "--json", "-").out)
    assert same["counts"] == {"same": len(same["rows"])}
    assert "latency_add_i64" in kmark("history", "-o", "instructions", *other).out
    (row,) = json.loads(kmark("list", "runs", *other, "--json", "-").out)
    assert row["results"] in ({"ok": 1}, {"disturbed": 1})  # as the machine is quiet or not


@pytest.mark.parametrize(
    "words",
    [
        ("show",),
        ("export", "latest", "--csv", "-"),
        ("compare", "latest", "latest~1"),
        ("plot", "bars", "-f", "x.json"),
        ("report", "-f", "x.html"),
        ("delete", "latest", "-y"),
        ("history", "--pin", "golden"),
    ],
)
def test_latest_is_a_run_of_cases_outside_of_micro(kmark, measured, refused, words):
    refused(*words, code=4)
    assert kmark("micro", "show", "latest").code == 0


def memory_of(device, arch, value):
    return make_roof("bytes", "dram", value, device=device, arch=arch)


def test_stored_roofs_need_no_device(kmark, refused, tmp_path):
    with open_store(tmp_path / "store.sqlite") as store:
        store.add_roofs([memory_of("hip:77", "gfx942", 4e12)], host=platform.node())
    ended = kmark("roofs", "--stored", "-d", "hip:77")
    assert ended.code == 0, ended.err
    assert "4.000 TB/s" in ended.out
    here = kmark("roofs", "--stored")
    assert here.code == 4
    assert "hip:77" in here.reason
    words = ("roofs", "--stored", "-d")
    refused(*words, "hip:78", code=4, device="hip:78")
    refused(*words, "hip:x", device="hip:x")


def test_stored_roofs_have_the_data_sheet_of_what_a_run_saw(kmark, tmp_path):
    roof = memory_of("cuda:77", "sm_90", 4.32e12)
    seen = DeviceInfo(name="cuda:77", kind="cuda", model="NVIDIA H200", arch="sm_90")
    with open_store(tmp_path / "store.sqlite") as store:
        store.add_roofs([roof], host=platform.node())
        assert "90 %" not in kmark("roofs", "--stored", "-d", "cuda:77").out
        store.add_run(Run(id="r1", started=1.0, environment=Environment(devices=(seen,))))
    assert "90 %" in kmark("roofs", "--stored", "-d", "cuda:77").out


def test_a_pack_where_no_folder_can_be_is_told(refused, tmp_path):
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "pack")
    words = ("micro", "--precompile", "sm_90", "-o", folder)
    refused(*words, file=folder)
