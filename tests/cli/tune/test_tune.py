"""`kmark tune summarise | plan | show` on the fake device and backend."""

import csv
import errno
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest

from kernelmark import backends, ops
from kernelmark.api.tuning import plan as plan_tuning
from kernelmark.backends import cublaslt
from kernelmark.cli.main import main
from kernelmark.core.errors import UsageError
from kernelmark.devices.fake import FakeDevice
from kernelmark.workloads.workload import Call, Workload, write
from kernelmark_dev.raising import tells
from kernelmark_dev.tuning import fake_plans, make_folder

GEMM = ("-o", "gemm", "-a", "m=[8,16,32]", "-a", "n=16", "-a", "k=16", "--dtype", "f32")
RANDOM = ("--strategy", "random")
ON_FAKE = ("-b", "fake", "-d", "fake")
FAKE = (*ON_FAKE, *RANDOM)
LARGE = "gemm m=4096 n=4096 k=4096 dtype=f32"


def rows(path):
    return list(csv.DictReader(path.open()))


def key(m):
    return ops.parse(f"gemm m={m} n=16 k=16 dtype=f32").key


def make_work(place):
    place.mkdir()
    counts = {key(8): 10, key(16): 70, key(32): 20, ops.parse(LARGE).key: 5}
    calls = tuple(Call(problem=ops.parse(k), count=n) for k, n in counts.items())
    write(place / "workload.csv", Workload(name="work", calls=calls))
    return place


@pytest.fixture
def folder(tmp_path):
    """Three problems called 70, 20 and 10 times, and one that the fake backend cannot do."""
    return make_work(tmp_path / "work")


@pytest.fixture(scope="module")
def summarised_once(tmp_path_factory):
    """A folder like `folder`, summarised, and the store of that beside it."""
    place = tmp_path_factory.mktemp("summarised")
    work = make_work(place / "work")
    words = ("tune", "summarise", str(work), *ON_FAKE, "--thr", "15")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELMARK_CACHE", str(place / "cache"))
        with pytest.raises(SystemExit) as ended:
            main((*words, "--store", str(place / "store.sqlite")))
    assert not ended.value.code
    return place


@pytest.fixture
def summarised(summarised_once, tmp_path):
    """This test's own copy of it."""
    return shutil.copytree(summarised_once, tmp_path, dirs_exist_ok=True) / "work"


def test_a_path_that_is_no_tuning_folder_is_told(refused, tmp_path):
    for words in (("summarise",), ("plan", "-b", "fake"), ("show",)):
        asked = ("tune", words[0], str(tmp_path), *words[1:])
        ended = refused(*asked, name="workload.csv")
        assert str(tmp_path) in ended.reason
        assert f"kmark import LOG --workload {tmp_path}" in ended.err.splitlines()[1]


# summarise


def test_shares_are_calls_times_time(kmark, summarised):
    found = {row["problem"]: row for row in rows(summarised / "summary.csv")}
    assert float(found[key(16)]["pct_of_total"]) == pytest.approx(70, abs=0.1)
    assert float(found[key(16)]["total_us"]) == pytest.approx(700, rel=1e-3)
    assert float(found[key(32)]["cumulative_pct"]) == pytest.approx(90, abs=0.1)
    assert [row["selected"] for row in found.values()] == ["yes", "yes", "no", "no"]
    assert found[ops.parse(LARGE).key]["status"] == "unsupported"
    large = found[ops.parse(LARGE).key]["reason"]
    assert large == backends.find("fake").supports(ops.parse(LARGE), FakeDevice().info)
    (run,) = json.loads(kmark("list", "runs", "--json", "-").out)
    assert kmark("show", run["run"], "-q").out.count("gemm") == 4


def test_the_table_and_the_words(kmark, folder):
    ended = kmark("tune", "summarize", str(folder), "-d", "fake", "-b", "fake", "--no-store", "-q")
    lines = ended.out.splitlines()
    assert lines[2].startswith("gemm m=16 n=16 k=16 dtype=f32")
    assert "70.0 %" in lines[2]
    for value in ("100 calls of 3 problems", "1.000 ms", "1 problem (5 calls)"):
        assert value in ended.err
    assert "threshold" not in ended.err


def test_nothing_is_timed_twice(kmark, summarised):
    before = (summarised / "summary.csv").read_text()
    again = ("tune", "summarise", str(summarised), *ON_FAKE)
    ended = kmark(*again, "--thr", "15")
    assert "note: 4 of 4 problems " in ended.err
    assert "[1/" not in ended.err
    assert (summarised / "summary.csv").read_text() == before
    ended = kmark(*again, "--timing", "default")
    assert "[4/4]" in ended.err


def test_only_what_is_new_is_timed(kmark, summarised):
    calls = [Call(problem=ops.parse(key(m)), count=10) for m in (8, 16, 64)]
    write(summarised / "workload.csv", Workload(name="work", calls=tuple(calls)))
    ended = kmark("tune", "summarise", str(summarised), *ON_FAKE)
    assert "note: 2 of 3 problems " in ended.err
    assert "[1/1]" in ended.err
    found = rows(summarised / "summary.csv")
    assert [row["count"] for row in found] == ["10", "10", "10"]
    assert [float(row["pct_of_total"]) for row in found] == pytest.approx([33.33] * 3, abs=0.1)


def chosen(folder):
    return {row["problem"]: row["selected"] for row in rows(folder / "summary.csv")}


def test_what_was_selected_by_hand_stays_until_a_threshold_is_given(kmark, summarised):
    path, again = summarised / "summary.csv", ("tune", "summarise", str(summarised))
    again += ON_FAKE
    by_hand = {key(16): "no", key(32): "yes", key(8): "yes", ops.parse(LARGE).key: "no"}
    edited = [row | {"selected": by_hand[row["problem"]]} for row in rows(path)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(edited[0]))
        writer.writeheader()
        writer.writerows(edited)
    kmark(*again)
    assert chosen(summarised) == by_hand
    path.write_text(path.read_text().replace(",ok,", ",crashed,"))
    assert "[3/3]" in kmark(*again, "--retry-failed").err
    assert chosen(summarised) == by_hand
    calls = [Call(problem=ops.parse(key(m)), count=10) for m in (8, 16, 64)]
    write(summarised / "workload.csv", Workload(name="work", calls=tuple(calls)))
    kmark(*again)
    assert chosen(summarised) == {key(8): "yes", key(16): "no", key(64): "yes"}
    assert {row["threshold_pct"] for row in rows(path)} == {"15.0"}
    kmark(*again, "--thr", "0")
    assert {row["threshold_pct"] for row in rows(path)} == {"0.0"}
    assert set(chosen(summarised).values()) == {"yes"}
    kmark(*again, "--thr", "50")
    assert set(chosen(summarised).values()) == {"no"}


def test_data_goes_where_it_is_asked_to(kmark, folder, tmp_path):
    words = ("tune", "summarise", str(folder), *ON_FAKE, "--no-store", "-q")
    ended = kmark(*words, "--csv", "-", "--json", str(tmp_path / "x.json"))
    found = list(csv.DictReader(io.StringIO(ended.out)))
    assert [row["count"] for row in found] == ["70", "20", "10", "5"]
    document = json.loads((tmp_path / "x.json").read_text())
    assert document["total_us"] == pytest.approx(1000, rel=1e-3)
    assert kmark(*words, "--md", "-").out.startswith("| problem | calls |")


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ((*ON_FAKE, "--thr", "-1"), {}),
        ((*ON_FAKE, "--thr", "101"), {}),
        (("-b", "nump"), {"what": "backend", "name": "nump"}),
        (
            ("-b", "numpy", "-d", "fake"),
            {"reason": "device-unsupported", "backend": "numpy", "kind": "fake"},
        ),
    ],
)
def test_what_cannot_be_summarised_is_told(refused, folder, words, fields):
    refused("tune", "summarise", str(folder), *words, **fields)


def test_a_folder_that_cannot_be_written_is_found_before_the_timing(refused, folder, monkeypatch):
    def denied(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.touch", denied)
    refused("tune", "summarise", str(folder), *ON_FAKE, file=str(folder / "summary.csv"))


def test_a_killed_summary_goes_on(folder, kmark, tmp_path):
    """What was timed before a kill is in the file within seconds, and is not timed again."""
    problems = [ops.parse(f"gemm m={m} n=8 k=8 dtype=f32") for m in range(1, 41)]
    calls = tuple(Call(problem=problem) for problem in problems)
    write(folder / "workload.csv", Workload(name="work", calls=calls))
    words = ("tune", "summarise", str(folder), *ON_FAKE, "--no-store")
    with subprocess.Popen(
        [sys.executable, "-m", "kernelmark", *words], stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            timed = rows(folder / "summary.csv") if _there(folder) else []
            if any(row["status"] for row in timed) or "[40/" in line:
                break
        running.send_signal(signal.SIGKILL)
    done = sum(bool(row["status"]) for row in rows(folder / "summary.csv"))
    assert 0 < done < 40
    ended = kmark(*words)
    assert f"note: {done} of 40 problems are timed already" in ended.err
    assert all(row["status"] == "ok" for row in rows(folder / "summary.csv"))


def _there(folder):
    return (folder / "summary.csv").exists()


# plan


def test_plans_of_a_summary(kmark, summarised):
    ended = kmark("tune", "plan", str(summarised), "-b", "fake", "--strategy", "random")
    assert ended.code == 0, ended.err
    assert sorted(p.name for p in (summarised / "plans").iterdir()) == [
        "SSS_NN_0.toml",
        "SSS_NN_1.toml",
    ]
    found = tomllib.loads((summarised / "plans" / "SSS_NN_0.toml").read_text())
    assert found["problem"] == key(16)
    assert found["count"] == 70
    assert found["share"] == pytest.approx(0.7, abs=1e-3)
    assert found["reference"]["backend"] == "fake"
    assert found["reference"]["time_s"] == pytest.approx(10e-6, rel=1e-3)
    assert re.search(r"2 plans \(2 new\) .*90\.0 %.*, 1 .*, 1 ", ended.err)
    new = Call(problem=ops.parse(key(64)), count=1)
    before = tuple(Call(problem=ops.parse(key(m)), count=10) for m in (8, 16, 32))
    write(summarised / "workload.csv", Workload(name="work", calls=(*before, new)))
    ended = kmark("tune", "plan", str(summarised), "-b", "fake", "--strategy", "random")
    assert re.search(r" plans? \(.*, 1 below .*, 1 not timed", ended.err)


def test_another_threshold_and_names_that_stay(kmark, summarised):
    words = ("tune", "plan", str(summarised), "-b", "fake", "--strategy", "random")
    kmark(*words)
    ended = kmark(*words, "--thr", "0")
    assert "SSS_NN_2" in ended.out
    assert "1 problem (gemm m=4096" in ended.err
    assert "fake unsupported: " in ended.err
    assert "3 plans (1 new, 2 same)" in ended.err


def test_a_suite_or_problems_need_no_log(kmark, tmp_path):
    place = tmp_path / "direct"
    ended = kmark("tune", "plan", str(place), *FAKE, *GEMM)
    assert ended.code == 0, ended.err
    assert [row["count"] for row in rows(place / "workload.csv")] == ["1", "1", "1"]
    assert "note: " in ended.err
    ended = kmark("tune", "plan", str(place), *FAKE, "-p", "gemm m=64 n=16 k=16 dtype=f32")
    assert "4 plans (1 new, 3 same)" in ended.err
    ended = kmark("tune", "plan", str(place), *FAKE, "--filter", "m=8 ")
    assert "1 plan (1 same)" in ended.err
    assert "note: 3 other plans " in ended.err


@pytest.fixture
def planned(kmark, tmp_path):
    """A folder with three plans, and the file of the second."""
    place = tmp_path / "direct"
    kmark("tune", "plan", str(place), *FAKE, *GEMM)
    return place, place / "plans" / "SSS_NN_1.toml"


def test_an_edited_plan_is_left_alone(kmark, planned):
    place, path = planned
    path.write_text(path.read_text().replace("seed = 1", "seed = 7"))
    ended = kmark("tune", "plan", str(place), *FAKE, "--evaluations", "9")
    assert "edited" in ended.out
    assert "3 plans (2 changed, 1 edited)" in ended.err
    assert "seed = 7" in path.read_text()
    ended = kmark("tune", "plan", str(place), *FAKE, "--evaluations", "9", "--force")
    assert "3 plans (1 changed, 2 same)" in ended.err
    assert "evaluations = 9" in path.read_text()


def test_a_plan_that_cannot_be_read_is_told_and_left_alone(kmark, planned):
    place, path = planned
    path.write_text(cut := path.read_text() + "[space\n")
    ended = kmark("tune", "plan", str(place), *FAKE)
    assert "3 plans (2 same, 1 unreadable)" in ended.err
    assert f"{path}: " in ended.err
    assert "--force" in ended.err
    assert path.read_text() == cut


def test_plans_for_a_gpu_that_is_not_here(kmark, tmp_path):
    place = tmp_path / "amd"
    words = ("-b", "triton", "--strategy", "random", "-o", "gemm", "-a", "m=[16,4096]")
    words += ("-a", "n=4096", "-a", "k=4096", "-a", "tb=t", "--dtype", "bf16,f8e4m3")
    ended = kmark("tune", "plan", str(place), "--arch", "gfx942", *words, "--json", "-")
    assert ended.code == 0, ended.err
    refused = [one["reason"] for one in json.loads(ended.out) if not one["plan"]]
    assert len(refused) == 2
    assert all("triton" in one and "f8e4m3" in one for one in refused)
    found = tomllib.loads((place / "plans" / "BBS_TN_0.toml").read_text())
    assert found["arch"] == "gfx942"
    assert found["space"]["kpack"] == [1, 2]
    assert "no plan for 2 problems " in ended.err


SMALL = ("-o", "gemm", "-a", "m=64", "-a", "n=64", "-a", "k=64", "--dtype", "f16")


def test_what_this_machine_lacks_is_no_reason_against_a_gpu_that_is_not_here(kmark, tmp_path):
    """IREE loads the libraries of a GPU, and they are not here."""
    words = ("-b", "triton", "--reference", "iree", "--arch", "gfx942", *SMALL)
    ended = kmark("tune", "plan", str(tmp_path / "one"), *words)
    assert ended.code == 0, ended.err
    assert "1 plan (1 new)" in ended.err
    ended = kmark("tune", "plan", str(tmp_path / "two"), "-b", "iree", "--arch", "sm_90", *SMALL)
    assert ended.code == 4
    assert "sm_90" in ended.err
    assert " triton, " in ended.err


def test_a_library_that_lists_its_own_choices_is_planned_where_it_is(kmark, tmp_path, monkeypatch):
    cublaslt._library.cache_clear()
    monkeypatch.setattr(cublaslt, "_shared_object", lambda: None)
    words = ("-b", "cublaslt", "--arch", "sm_90", *SMALL)
    ended = kmark("tune", "plan", str(tmp_path / "lt"), *words)
    assert ended.code == 4
    assert "libcublasLt" in ended.err
    assert " triton, " in ended.err


def test_the_next_step_of_what_check_refuses_is_to_run_it(kmark, refused, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "op = 'gemm'\nspace = {'rows': [1, 2]}\ndef prepare(problem, config, sets): return print\n"
    )
    place = str(tmp_path / "own")
    ended = kmark("tune", "plan", place, "-b", str(mine), "--arch", "sm_90", *SMALL)
    assert ended.err.endswith(f"next, where there is a sm_90: kmark tune run {place}\n")
    refused("tune", "check", place, backend=str(mine))


@pytest.mark.parametrize(
    ("words", "fields", "hint"),
    [
        ((*ON_FAKE, "--arch", "gfx942"), {}, ""),
        (("-b", "triton", "--arch", "mi300"), {"arch": "mi300"}, ""),
        (("-b", "triton", "--arch", "gfx9"), {"arch": "gfx9"}, "gfx942"),
        (("-b", "triton", "--arch", "sm_12"), {"arch": "sm_12"}, "sm_75, "),
        (
            ("-b", "hipblaslt", "-d", "fake"),
            {"reason": "device-unsupported", "backend": "hipblaslt", "kind": "fake"},
            "",
        ),
        (
            ("-b", "cublaslt", "--arch", "gfx942"),
            {
                "reason": "device-unsupported",
                "backend": "cublaslt",
                "kind": "hip",
                "arch": "gfx942",
            },
            "",
        ),
        ((*ON_FAKE, "--strategy", "best"), {"what": "strategy"}, ""),
        ((*ON_FAKE, "--thr", "1"), {}, "kmark tune summarise"),
        ((*ON_FAKE, "--evaluations", "0"), {"evaluations": 0}, ""),
        ((*ON_FAKE, "--seed", "-1"), {"name": "seed", "given": -1}, ""),
        ((*ON_FAKE, "--minutes", "nan"), {"name": "--minutes"}, ""),
        ((*ON_FAKE, "--thr", "nan"), {"name": "--thr"}, ""),
        ((*ON_FAKE, "-a", "m=3"), {}, "-o"),
        (("-b", "fake", "-d", "fake:7"), {"device": "fake:7"}, ""),
        (("-b", "numpy", "-d", "fake"), {"reason": "device-unsupported", "backend": "numpy"}, ""),
    ],
)
def test_what_cannot_be_planned_is_told(refused, folder, words, fields, hint):
    ended = refused("tune", "plan", str(folder), *words, **fields)
    assert hint in ended.err.splitlines()[1]
    assert not (folder / "plans").exists()


def test_where_nothing_can_be_tuned_nothing_is_written(kmark, folder):
    ended = kmark("tune", "plan", str(folder), "-b", "numpy", "-d", "cpu", *RANDOM)
    assert ended.code == 4
    assert ended.out == ""
    assert "numpy" in ended.err
    assert "0 plans" in ended.err
    assert "hint: " in ended.err


def test_a_file_without_a_space_is_told_what_it_lacks(kmark, folder, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("op = 'gemm'\ndef prepare(problem, config, sets): return print\n")
    ended = kmark("tune", "plan", str(folder), "-b", str(mine))
    assert ended.code == 4
    (hint,) = [line for line in ended.err.splitlines() if line.startswith("hint: ")]
    assert str(mine) in hint
    assert "space = " in hint


def test_a_folder_is_of_one_backend_and_architecture(kmark, refused, folder):
    assert kmark("tune", "plan", str(folder), *FAKE, "--evaluations", "2").code == 0
    before = (folder / "plans" / "SSS_NN_1.toml").read_text()
    words = ("tune", "plan", str(folder), "-b", "numpy", "--force")
    refused(*words, planned="fake", backend="numpy")
    words = ("--timeout", "120", "--jobs", "1", "--only", "SSS_NN_1", "-q")
    assert kmark("tune", "run", str(folder), *words).code in (0, 3)
    words = ("tune", "plan", str(folder), "-b", "fake", "-d", "cpu", "--force")
    ended = refused(*words, backend="fake", planned="fake")
    assert "-d or --arch" in ended.err
    assert (folder / "plans" / "SSS_NN_1.toml").read_text() == before
    shutil.rmtree(folder / "plans")
    ended = refused(*words, tried_backend="fake", tried_arch="fake")
    assert "-d or --arch" in ended.err


def test_a_folder_without_trials_is_of_one_architecture_too(kmark, refused, tmp_path):
    words = ("tune", "plan", str(tmp_path / "amd"), "-b", "triton", *RANDOM)
    more = ("-p", "gemm m=16 n=64 k=64 dtype=bf16", "-p", "gemm m=32 n=64 k=64 dtype=bf16")
    assert kmark(*words, *more, "--arch", "gfx942").code == 0
    before = {path: path.read_text() for path in (tmp_path / "amd" / "plans").iterdir()}
    for again in ((), ("--force",), ("--limit", "1"), ("-p", "gemm m=8 n=64 k=64 dtype=bf16")):
        asked = (*words, "--arch", "gfx950", *again)
        refused(*asked, planned="gfx942", arch="gfx950")
    assert {path: path.read_text() for path in (tmp_path / "amd" / "plans").iterdir()} == before
    assert kmark(*words, "--arch", "gfx942", "--limit", "1").code == 0


def test_a_reference_that_does_not_run_on_the_device_is_named_as_such(refused, summarised):
    def reason(**given):
        with pytest.raises(UsageError) as caught:
            plan_tuning(summarised, **given)
        return caught.value.message

    assert tells(reason(backend="triton", arch="gfx942"), reference="fake", arch="gfx942")
    assert "numpy" in reason(backend="triton", arch="gfx942", reference="numpy")
    assert reason(backend="numpy", arch="gfx942").code == "device-unsupported"
    words = ("tune", "plan", str(summarised), "-b", "fake", "--reference", "numpy")
    ended = refused(*words)
    assert {"-d", "--reference"} <= set(ended.err.splitlines()[1].split())


@pytest.mark.parametrize("others", ["", "bf16_r"])
def test_floats_that_a_log_does_not_tell_apart_can_be_imported_again(kmark, tmp_path, others):
    line = (
        "hipblaslt-bench --api_method c -m 48 -n 16 -k 32 --transA T --transB N --a_type {0} "
        "--b_type {0} --c_type bf16_r --d_type bf16_r --compute_type f32_r --activation_type none\n"
    )
    log, place = tmp_path / "a.log", str(tmp_path / "amd")
    log.write_text("".join(line.format(name) for name in ("f8_r", others) if name))
    assert kmark("import", str(log), "--workload", place).code == 0
    words = ("tune", "plan", place, "-b", "triton", "--arch", "gfx942", *RANDOM)
    ended = kmark(*words)
    assert ended.code == (0 if others else 4)
    again = ("import", "LOG", "--workload", place, "--arch", "gfx942")
    kind = "note" if others else "hint"
    assert re.search(rf"^{kind}: .*FNUZ.*: kmark {' '.join(again)}$", ended.err, re.M)
    assert kmark(*(str(log) if word == "LOG" else word for word in again)).code == 0
    ended = kmark(*words)
    assert ended.code == 0, ended.err
    assert "FNUZ" not in ended.err


def test_plans_as_data(kmark, refused, folder, tmp_path):
    ended = kmark("tune", "plan", str(folder), *FAKE, "--json", "-", "--csv", str(tmp_path / "x"))
    found = json.loads(ended.out)
    assert [one["file"] for one in found] == ["new", "new", "new", None]
    assert found[0]["problem"] == key(16)
    assert "fake" in found[3]["reason"]
    assert [row["plan"] for row in rows(tmp_path / "x")][:2] == ["SSS_NN_1", "SSS_NN_2"]
    none = ("tune", "plan", str(folder), *FAKE, "--filter", "m=9 ")
    assert "--filter" in refused(*none, code=4, folder=str(folder)).err.splitlines()[1]


def test_times_of_another_architecture_are_not_the_references(kmark, summarised):
    words = ("-b", "triton", "--reference", "triton", "--arch", "gfx942", "--strategy", "random")
    ended = kmark("tune", "plan", str(summarised), *words)
    assert ended.code == 0, ended.err
    found = tomllib.loads((summarised / "plans" / "SSS_NN_0.toml").read_text())
    assert found["share"] == pytest.approx(0.7, abs=1e-3)
    assert found["reference"]["time_s"] == 0


def test_the_logged_fields_of_the_most_frequent_call_are_in_the_plan(tmp_path):
    one = ops.parse(key(8))
    calls = (
        Call(problem=one, count=2, blas={"transA": "N", "lda": "16"}),
        Call(problem=one, count=9, blas={"transA": "N", "lda": "99"}, lost=("lda",)),
    )
    write(tmp_path / "workload.csv", Workload(name="x", calls=calls))
    done = plan_tuning(tmp_path, backend="fake", device="fake", strategy="random")
    (draft,) = done.drafts
    assert draft.plan.blas["lda"] == "99"
    assert draft.plan.count == 11
    (lost,) = (note for note in done.notes if "lda" in note)
    assert tells(lost, calls=11, more=9)


# show


def test_show_before_anything_ran(kmark, refused, folder):
    refused("tune", "show", str(folder), code=4)
    kmark("tune", "plan", str(folder), *FAKE)
    ended = kmark("tune", "show", str(folder))
    assert ended.code == 0
    assert ended.out.count("not started") == 3
    assert "3 not started" in ended.err
    found = json.loads(kmark("tune", "show", str(folder), "--json", "-").out)
    assert [one["state"] for one in found] == ["not started"] * 3
    assert found[0]["budget"] == 100


def test_another_timing_keeps_what_was_selected_by_hand(kmark, tmp_path):
    folder = make_folder(tmp_path / "t", fake_plans(2))
    words = ("tune", "summarise", str(folder.path), *ON_FAKE, "--no-store")
    assert kmark(*words).code == 0
    folder.summary.write_text(folder.summary.read_text().replace(",yes", ",no"))
    assert kmark(*words, "--timing", "default").code == 0
    assert ",yes" not in folder.summary.read_text()


# Damaged files


def test_a_damaged_summary_is_told_with_its_line_and_column(kmark, refused, summarised):
    path = summarised / "summary.csv"
    text = path.read_text()
    path.write_text(text.replace(",70,", ",ten,", 1))
    for words in (("plan", "-b", "fake"), ("summarise", *ON_FAKE)):
        asked = ("tune", words[0], str(summarised), *words[1:])
        ended = refused(*asked)
        assert f"{path}: line 2: count is 'ten'" in ended.err
        again = f"kmark tune summarise {summarised}"
        assert ended.err.endswith(f": {again}\n")
    path.unlink()
    assert kmark(*again.split()[1:], *ON_FAKE).code == 0


@pytest.mark.parametrize(
    "damage",
    [b"problem,count\ngemm m=8 n=8 k=8 dtype=f32\n", b"problem,count\ngemm m=0,1\n", b"\xff"],
)
def test_a_damaged_workload_is_told_with_a_way_out(refused, kmark, folder, tmp_path, damage):
    (folder / "workload.csv").write_bytes(damage)
    words = ("tune", "summarise", str(folder), *ON_FAKE, "--no-store")
    ended = refused(*words)
    assert f"{folder / 'workload.csv'}: " in ended.err
    told = f"kmark import LOG --workload {folder} --force"
    assert ended.err.endswith(f": {told}\n")
    (tmp_path / "log").write_text("M,N,K\n8,16,16\n")
    again = told.replace("LOG", str(tmp_path / "log")).split()[1:]
    assert kmark(*again, "--dtype", "f32").code == 0
    assert kmark(*words).code == 0


@pytest.mark.parametrize("damage", [b"seed =", b"\xff\xfe"])
def test_a_plan_that_is_no_toml_can_be_written_anew_as_told(kmark, refused, planned, damage):
    place, path = planned
    before = path.read_text()
    path.write_bytes(damage)
    ended = refused("tune", "run", str(place))
    assert str(path) in ended.err
    assert f"'kmark tune plan {place} -b BACKEND'" in ended.err
    assert kmark("tune", "plan", str(place), *FAKE, "--force").code == 0
    assert path.read_text() == before
    path.unlink()
    assert kmark("tune", "plan", str(place), *FAKE).code == 0
    assert path.read_text() == before
