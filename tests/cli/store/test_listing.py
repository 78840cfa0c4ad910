from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernelmark import backends, devices, ops
from kernelmark.backends.torch import gpu as torch_build
from kernelmark.cli.main import app
from kernelmark.cli.store import listing
from kernelmark.core.dtype import DTYPES
from kernelmark.core.environment import Environment
from kernelmark.core.metric import WIDE, Metric
from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE
from kernelmark.core.result import ResultSet, Run, RunState, Status
from kernelmark.gpu import pack
from kernelmark.report.tables import draw
from kernelmark.stores import open_store
from kernelmark.testing.micro import micro_result
from kernelmark.tune.install import emitters
from kernelmark.workloads import suites

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("ops", ops.registry.names()),
        ("backends", backends.registry.names()),
        ("devices", devices.registry.names()),
        ("suites", suites.names()),
        ("dtypes", list(DTYPES)),
    ],
)
def test_lists_everything(kmark, what, names):
    ended = kmark("list", what)
    assert ended.code == 0
    first_words = [line.split()[0] for line in ended.out.splitlines()[2:]]
    assert {word.partition(":")[0] for word in first_words} >= set(names)
    rows = json.loads(kmark("list", what, "--json", "-").out)
    assert len(rows) == len(first_words)


def test_dtypes_are_numbers(kmark):
    rows = {row["dtype"]: row for row in json.loads(kmark("list", "dtypes", "--json", "-").out)}
    assert (rows["f16"]["bits"], rows["f16"]["max_value"]) == (16, 65504.0)
    assert (rows["f16"]["unit_roundoff"], rows["i8"]["unit_roundoff"]) == (2.0**-11, 0.0)


def test_suites_say_how_many_and_why(kmark):
    rows = json.loads(kmark("list", "suites", "--json", "-").out)
    demo = next(row for row in rows if row["suite"] == "demo")
    assert demo["problems"] == len(suites.load("demo").problems) == sum(demo["ops"].values())
    assert all(row["why"] for row in rows)


@pytest.mark.parametrize("name", ops.registry.names())
def test_one_op_is_explained(kmark, name):
    out = kmark("list", "ops", "-o", name).out
    assert all(word in out for word in ops.registry.get(name).parameters)
    found = json.loads(kmark("list", "ops", "-o", name, "--json", "-").out)
    assert [row["parameter"] for row in found["parameters"]] == [*ops.registry.get(name).parameters]
    told = [row["tensor"] for row in found["tensors"]]
    assert told == [line.name for line in ops.registry.get(name).tensor_help]


def test_the_op_of_a_kernel_file_is_explained(kmark, kernel_repo):
    found = json.loads(kmark("list", "ops", "-o", str(kernel_repo(1)), "--json", "-").out)
    assert [row["parameter"] for row in found["parameters"]] == ["rows", "dtype"]


def test_runs_are_listed_newest_first(kmark, stored, fake_words):
    kmark(*fake_words, "--label", "two", "--config", "behaviour=wrong")
    rows = json.loads(kmark("list", "runs", "--json", "-").out)
    assert [row["label"] for row in rows] == ["two", "mine"]
    assert [row["results"] for row in rows] == [{"wrong": 2}, {"ok": 2}]
    assert [(row["cases"], row["excluded"], row["state"]) for row in rows] == [
        (2, False, "done")
    ] * 2
    assert rows[0]["started"] > rows[1]["started"] > 1e9
    assert all(0 < row["took_s"] < 600 for row in rows)
    wrong, ok = kmark("list", "runs").out.splitlines()[2:]
    assert (wrong.split()[-2:], ok.split()[-3:]) == (["2", "wrong"], ["all", "2", "ok"])
    assert len(json.loads(kmark("list", "runs", "--limit", "1", "--json", "-").out)) == 1


def add_micro(store, run_id, started, *results, **fields):
    usual = {"suite": MICRO_SUITE, "state": RunState.DONE, "environment": Environment(host="box")}
    run = Run(id=run_id, started=started, **usual | fields)
    store.add_result_set(ResultSet(run=run, results=results))


def test_runs_of_microbenchmarks_are_listed_newest_first(kmark, tmp_path):
    place = str(tmp_path / "other.sqlite")
    with open_store(place) as store:
        add_micro(store, "one", 1.0, micro_result(device="cpu"), micro_result("latency"))
        add_micro(store, "two", 3e8, micro_result(status=Status.TIMEOUT, error="slow"))
    shown = kmark("list", "micro", "--store", place)
    assert shown.code == 0
    _, _, first, second = shown.out.splitlines()
    assert first.split()[:2] == ["two", "cuda:0"]
    assert "1979-07-" in first
    assert first.split()[-3:] == ["cache", "1", "timeout"]
    assert second.rstrip().endswith("cache, latency  2 ok")
    (only,) = json.loads(
        kmark("list", "micro", "--limit", "1", "--store", place, "--json", "-").out
    )
    assert (only["run"], only["host"], only["benchmarks"]) == ("two", "box", ["cache"])
    assert (only["started"], only["results"]) == (3e8, {"timeout": 1})
    assert kmark("micro", "show", only["run"], "--store", place).code == 0


@pytest.mark.parametrize("what", ["runs", "micro"])
def test_runs_beyond_the_limit_are_counted(kmark, tmp_path, what):
    place = str(tmp_path / "other.sqlite")
    with open_store(place) as store:
        for number in range(3):
            add_micro(store, f"r{number}", 1.0 + number, micro_result())
        add_micro(store, "roofs", 9.0, suite=ROOFS_SUITE)
    total = {"runs": 3, "micro": 4}[what]  # `list runs` has no runs of roofs
    for limit in range(6):
        words = ("list", what, "--store", place, "--limit", str(limit))
        shown, found = kmark(*words), kmark(*words, "--json", "-")
        assert len(json.loads(found.out)) == min(limit or total, total)
        assert shown.err == found.err
        numbers = [int(word) for word in re.findall(r"\d+", shown.err)]
        assert numbers == ([limit, total, 0] if 0 < limit < total else [])


def test_a_disturbed_benchmark_is_counted_as_such(kmark, tmp_path):
    place = str(tmp_path / "other.sqlite")
    steady = Metric(name="x", value=1.0, unit="", spread=0.01)
    results = (
        micro_result(metrics=(steady,)),
        micro_result("latency", metrics=(replace(steady, spread=2 * WIDE),)),
    )
    with open_store(place) as store:
        add_micro(store, "one", 1.0, *results, cases=8, state=RunState.INTERRUPTED)
    for what in ("runs", "micro"):
        (row,) = json.loads(kmark("list", what, "--store", place, "--json", "-").out)
        assert row["results"] == {"ok": 1, "disturbed": 1}
        shown = kmark("list", what, "--store", place).out.splitlines()[-1]
        assert "1 ok, 1 disturbed" in shown
        assert ("6 missing" in shown) is (what == "runs")
    last = kmark("show", "one", "--store", place).err.splitlines()[-1]
    assert "1 ok, 1 disturbed" in last


def test_every_run_has_its_results_on_a_narrow_terminal(tmp_path):
    place = str(tmp_path / "other.sqlite")
    with open_store(place) as store:
        add_micro(store, "20261118-120000-aaaaaa", 1e9, micro_result(), cases=1, finished=1e9 + 9)
        add_micro(store, "20261118-130000-bbbbbb", 2e9, cases=3, finished=2e9 + 9)
    lines = [line.text for line in draw(listing.table("runs", place, 20), 80)]
    assert max(map(len, lines)) <= 80
    assert [line.split()[-2:] for line in lines[2:]] == [["3", "missing"], ["1", "ok"]]


def test_runs_of_roofs_are_marked_and_not_counted_as_latest(kmark, refused, tmp_path):
    place = ("--store", str(tmp_path / "other.sqlite"))
    with open_store(place[1]) as store:
        add_micro(store, "roofs", 5.0, micro_result(), suite=ROOFS_SUITE)
    refused("micro", "show", *place, code=4)
    with open_store(place[1]) as store:
        add_micro(store, "one", 1.0, micro_result())
    found = json.loads(kmark("list", "micro", *place, "--json", "-").out)
    assert [(row["run"], row["suite"]) for row in found] == [
        ("roofs", ROOFS_SUITE),
        ("one", MICRO_SUITE),
    ]
    lines = kmark("list", "micro", *place).out.splitlines()[2:]
    assert [ROOFS_SUITE in line for line in lines] == [True, False]
    refused("micro", "show", "latest~1", *place, count=1)


def test_doctor_explains_every_backend_and_device(kmark, stored):
    ended = kmark("doctor")
    assert ended.code == 0
    assert ended.err == ""
    for name in (*backends.registry.names(), *devices.registry.names()):
        assert name in ended.out
    for word in ("governor", "load", "store", "cache", "roofs", "schema"):
        assert word in ended.out
    found = json.loads(kmark("doctor", "--json", "-").out)
    assert (found["kernelmark"], found["version"]) == ("doctor", 1)
    states = {row["backend"]: row for row in found["backends"]}
    assert states["numpy"]["state"] == "ready"
    assert all(row["version"] or row["reason"] for row in states.values())
    assert found["store"]["state"] == "ready"
    cpu = next(row for row in found["devices"] if row["device"] == "cpu")
    assert cpu["memory_bytes"] > 1 << 20
    assert cpu["units"] == found["cpu"]["cores_used"] >= 1
    assert isinstance(found["cpu"]["load_1min"], float)


@pytest.mark.parametrize("present", [False, True])
def test_list_and_doctor_tell_the_same_of_a_backend(kmark, monkeypatch, present):
    for name in ("cuda", "hip"):
        kind = devices.registry.get(name)
        monkeypatch.setattr(kind, "available", lambda: None if present else "no driver")
        monkeypatch.setattr(kind, "infos", list)
    monkeypatch.setattr(backends.registry.get("rtc"), "available", lambda: None)
    listed = {
        row["backend"]: row["state"]
        for row in json.loads(kmark("list", "backends", "--json", "-").out)
    }
    examined = json.loads(kmark("doctor", "--json", "-").out)["backends"]
    assert listed == {row["backend"]: row["state"] for row in examined}
    assert listed["rtc"] == ("ready" if present else "no device")


def test_a_build_for_other_devices_is_not_ready_for_this_one(kmark, monkeypatch):
    """torch's wheels are for one vendor each; the one for CPUs runs on no GPU."""
    for name in ("cuda", "hip"):
        kind = devices.registry.get(name)
        monkeypatch.setattr(kind, "available", lambda: None)
        monkeypatch.setattr(kind, "infos", list)
    torch = backends.registry.get("torch")
    monkeypatch.setattr(torch, "available", lambda: None)
    monkeypatch.setattr(torch, "version", lambda: "2.9.1")
    monkeypatch.setattr(torch_build, "platforms", lambda: frozenset({"cuda"}))

    def found() -> tuple[object, ...]:
        listed = json.loads(kmark("list", "backends", "--json", "-").out)
        examined = json.loads(kmark("doctor", "--json", "-").out)["backends"]
        (row,) = (row for row in listed if row["backend"] == "torch")
        (state,) = (row for row in examined if row["backend"] == "torch")
        return row["state"], row["devices"], state["state"], state["devices"]

    assert found() == ("ready", ["cpu", "cuda"], "ready", ["cpu", "cuda"])
    monkeypatch.setattr(torch_build, "platforms", lambda: frozenset({"hip"}))
    assert found() == ("ready", ["cpu", "hip"], "ready", ["cpu", "hip"])
    monkeypatch.setattr(torch_build, "platforms", lambda: None)  # a build that does not say
    assert found() == ("ready", ["cpu", "cuda", "hip"], "ready", ["cpu", "cuda", "hip"])


def test_doctor_looks_at_a_broken_store_and_goes_on(kmark, tmp_path):
    (tmp_path / "store.sqlite").write_text("no database, but words that are long enough")
    ended = kmark("doctor")
    assert ended.code == 0
    shown = " ".join(ended.out.split())
    assert str(tmp_path / "store.sqlite") in shown


def test_doctor_tells_what_packs_hold(kmark, tmp_path, monkeypatch):
    monkeypatch.delenv("KERNELMARK_PACK", raising=False)

    def packs() -> list[tuple[object, ...]]:
        found = json.loads(kmark("doctor", "--json", "-").out)["bundles"]
        return [tuple(row.values()) for row in found]

    assert packs() == []
    full, empty, gone = tmp_path / "full", tmp_path / "empty", tmp_path / "gone"
    empty.mkdir()
    for key, arch in (("a", "sm_90"), ("b", "sm_90"), ("a", "iree-sm_89")):
        pack.add(full, key, arch, b"code")
    pack.path_in(full, "a", "sm_90").write_bytes(b"not what was put there")
    endless = tmp_path / ("a" * 300)
    monkeypatch.setenv("KERNELMARK_PACK", f"{full}:{empty}:{gone}:{endless}")
    assert packs() == [
        (str(full), "iree-sm_89", 1, 0),
        (str(full), "sm_90", 1, 1),
        (str(gone), "No such file or directory"),
        (str(endless), "File name too long"),
    ]
    shown = kmark("doctor").out
    assert "1 damaged" in shown
    assert "look at KERNELMARK_PACK" in shown
    assert kmark("list", "backends").code == 0


def test_doctor_survives_a_library_that_cannot_be_loaded(kmark, monkeypatch):
    numpy = backends.registry.get("numpy")

    def fail():
        raise OSError("libblas.so: cannot open shared object file")

    monkeypatch.setattr(numpy, "version", fail)
    ended = kmark("doctor")
    assert ended.code == 0
    assert "libblas.so" in ended.out


def test_help_needs_nothing_heavy():
    program = (
        "import sys\nfrom kernelmark.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = ('numpy', 'scipy', 'sqlalchemy', 'torch', 'iree', 'triton')\n"
        "sys.stderr.write(repr([m for m in heavy if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]"
    for command in ("doctor", "list", "run", "show", "export", "import"):
        assert command in done.stdout


def test_version_and_module(kmark):
    import kernelmark

    assert kmark("--version").out == f"kernelmark {kernelmark.__version__}\n"
    done = subprocess.run(
        [sys.executable, "-m", "kernelmark", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("kernelmark ")


def test_a_command_that_loads_every_library_says_nothing_at_its_end():
    # nanobind, which IREE uses, prints hundreds of lines if objects are left at Python's end
    words = [sys.executable, "-m", "kernelmark", "list", "backends"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr == ""


def test_a_profiler_sees_the_end_of_a_command():
    words = [sys.executable, "-m", "cProfile", "-m", "kernelmark", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "function calls" in done.stdout


# options of Python, pip, IREE, iconv and profilers
FOREIGN = "-m -t --force-reinstall --iree-opt-data-tiling --import --kernel-trace --metrics --page"
FOREIGN += " --section --trace --help"


def test_hints_name_options_that_exist():
    from typer.main import get_command

    def options(command):
        found = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        return found.union(*map(options, getattr(command, "commands", {}).values()))

    known = options(get_command(app)) | set(FOREIGN.split())
    for path in Path(listing.__file__).parent.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", ast.unparse(node.value)))
                assert named <= known, f"{path}:{node.value.lineno}: {named - known}"


def test_every_option_is_explained():
    from typer.main import get_command

    commands = dict(get_command(app).commands)  # type: ignore[attr-defined]
    for name, group in list(commands.items()):
        commands |= {f"{name} {word}": one for word, one in getattr(group, "commands", {}).items()}
    assert "tune plan" in commands
    for name, command in commands.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"


def test_emitters_are_listed_with_what_was_not_tried(kmark, tmp_path):
    assert kmark("list", "emitters", "--json", str(tmp_path / "all.json")).code == 0
    rows = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    found = {row["emitter"]: row["caution"] or "" for row in rows}
    cautions = {name: emitters.registry.get(name).caution for name in emitters.registry.names()}
    assert sum(map(bool, cautions.values())) >= 5
    assert found == cautions
    shown = kmark("list", "emitters").out
    assert all(text in shown for text in cautions.values())


def test_show_prints_the_first_problems_and_every_failure(kmark, monkeypatch):
    axes = ("-a", "m=[1:6]", "-a", "n=8", "-a", "k=8")
    timing = ("--max-s", "0.01", "--warmup-s", "0", "--jobs", "0")
    words = ("run", "-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32", *timing)
    whole = kmark(*words, *axes)
    assert kmark("show").out == whole.out
    few = kmark("show", "-q", "--limit", "2")
    assert few.out.splitlines() == whole.out.splitlines()[:4]
    assert "--limit 0" in few.err
    assert kmark("show", "--limit", "0").out == whole.out
    rows = kmark("show", "--limit", "2", "--csv", "-").out.splitlines()
    assert len(rows) == len(kmark("show", "--csv", "-").out.splitlines()) == 7
    assert len(kmark("show", "--limit", "2", "--filter", "m=[456]").out.splitlines()) == 5
    monkeypatch.setattr("kernelmark.cli.options.MOST_PROBLEMS", 2)
    again = kmark(*words, *axes, "-q")
    assert (len(again.out.splitlines()), "--limit 0" in again.err) == (4, True)
    resumed = kmark("run", "--resume", "--retry-failed", "-q")
    assert (resumed.out, resumed.err) == (again.out, again.err)
    data = kmark("run", "--resume", "--retry-failed", "--csv", "-")
    assert len(data.out.splitlines()) == 7
    crashed = kmark(
        *words, "-a", "m=[1:3]", "-a", "n=8", "-a", "k=8", "--config", "behaviour=raise"
    )
    assert (len(crashed.out.splitlines()), "--limit 0" in crashed.err) == (5, False)
