"""`kmark history` over a store of made-up nights."""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.problem import parse_key
from kernelmark.core.result import Case, KernelInfo, Run, Status
from kernelmark.stores import open_store
from kernelmark.workloads import suites
from kernelmark_dev.results import make_result

DAY_S = 86400.0
WORK = "gemm m=7 n=7 k=7 a=f32 b=f32 c=f32 acc=f32 ta=n tb=n alpha=1.0 beta=0.0 bias=no"
SENTINEL = suites.load("sentinels").problems[0].key


def result(key, time_s, backend, random, binary):
    case = Case(problem=parse_key(key), backend=backend)
    spread = random.normal(0, 0.002)
    noise = [float(np.exp(spread + random.normal(0, 0.001))) for _ in range(4)]
    failure = {} if time_s else {"status": Status.CRASHED}
    return make_result(
        case,
        *(time_s * factor for factor in noise if time_s),
        arch="aarch64",
        kernel=KernelInfo(binary_hash=binary),
        **failure,
    )


@pytest.fixture
def nights(tmp_path):
    """Adds nights: for each, the factors of the work and of the sentinel."""

    def add(factors, *, triton=lambda night: "3.4"):
        random = np.random.default_rng(1)
        with open_store(tmp_path / "store.sqlite") as store:
            for night, (work, sentinel) in enumerate(factors):
                run_id = f"night-{night:02}"
                environment = Environment(libraries={"triton": triton(night)})
                store.add_run(Run(id=run_id, started=(night + 1) * DAY_S, environment=environment))
                binary = triton(night)
                made = [
                    result(WORK, 1e-3 * work, "triton", random, binary),
                    result(WORK, 2e-3, "numpy", random, ""),
                    result(SENTINEL, 1e-4 * sentinel, "numpy", random, ""),
                ]
                store.add_results(run_id, made)

    return add


def test_csv_without_series_has_a_header(kmark, nights):
    nights([(1.0, 1.0), (1.0, 1.0)])
    whole = kmark("history", "--csv", "-").out.splitlines()
    assert len(whole) > 1
    assert kmark("history", "--changed", "--csv", "-").out.splitlines() == whole[:1]


def test_a_step_and_what_changed_there(kmark, nights):
    nights(
        [(1.0 if n < 15 else 1.05, 1.0) for n in range(25)],
        triton=lambda n: "3.4" if n < 15 else "3.5",
    )
    ended = kmark("history")
    assert ended.code == 0
    assert re.search(r"\+(4\.\d|5\.\d) % on 1970-01-17 00:00", ended.out)
    assert "night-15" in ended.out
    assert "triton 3.4 → 3.5" in ended.out
    for counted in ("3 series", "25 runs", "1 step", "1 alarm", "5 comparisons"):
        assert counted in ended.err
    only = kmark("history", "--changed")
    assert "numpy" not in only.out
    assert "triton" in only.out


def test_an_alarm_comes_with_the_command_that_confirms_it(kmark, nights):
    nights([(1.0, 1.0)] * 20 + [(1.08, 1.0)])
    ended = kmark("history", "--check")
    assert ended.code == 1
    assert re.search(r"slower: gemm m=7 n=7 k=7 dtype=f32 .*triton.* \+[78]\.\d %", ended.err)
    (command,) = [line for line in ended.err.splitlines() if line.startswith("  kmark ab")]
    assert "-p 'gemm m=7 n=7 k=7 dtype=f32' -b triton" in command
    words = shlex.split(command.replace("PYTHON", "python3"))[1:]
    words[words.index("triton")] = "numpy"
    assert kmark(*words, "--dry-run").code == 0
    assert kmark("history").code == 0


def test_the_command_names_the_store_that_was_given(kmark, nights, tmp_path):
    nights([(1.0, 1.0)] * 20 + [(1.08, 1.0)])
    place = str(tmp_path / "store.sqlite")
    told = kmark("history", "--store", place, "--md", "-")
    for text in (told.err, told.out):
        (command,) = [line for line in text.splitlines() if line.strip().startswith("kmark ab")]
        assert command.endswith(f" -b triton --store {place}")
    assert "--store" not in kmark("history").err


def test_an_alarm_of_another_tool_has_no_command(kmark, tmp_path):
    header = "M,N,K,dtype,mean_microseconds\n"
    for night in range(1, 11):
        file = tmp_path / "rocblas-gemm.csv"
        file.write_text(f"{header}8,8,8,f16,{20.0 if night == 10 else 10.0}\n")
        assert kmark("import", str(file), "--started", f"2024-10-{night:02}").code == 0
    ended = kmark("history", "--check")
    assert ended.code == 1
    assert "1 alarm " in ended.err
    assert "kmark ab" not in ended.err


def test_an_alarm_stands_when_other_runs_follow(kmark, nights, tmp_path):
    nights([(1.0, 1.0)] * 20 + [(1.08, 1.0)], triton=lambda night: "3.4" if night < 20 else "3.5")
    ended = kmark("history", "--check")
    assert ended.code == 1
    assert "triton 3.4 → 3.5" in ended.err
    other = WORK.replace("m=7", "m=9")
    random = np.random.default_rng(2)
    with open_store(tmp_path / "store.sqlite") as store:
        for name, argv, key in (("other", ("run",), other), ("side", ("ab", "-b", "x"), WORK)):
            started = (30 + len(name)) * DAY_S
            store.add_run(Run(id=name, started=started, environment=Environment(), argv=argv))
            store.add_results(name, [result(key, 1e-3, "triton", random, "")])
    again = kmark("history", "--check")
    assert again.code == 1
    assert "1 alarm" in again.err
    assert "22 runs" in again.err  # a side of `kmark ab` is no point of a series


def test_only_what_is_worse_ends_with_code_1(kmark, nights):
    nights([(1.0, 1.0)] * 20 + [(0.9, 1.0)])
    ended = kmark("history", "--check")
    assert "faster: gemm m=7" in ended.err
    assert ended.code == 0


def test_nothing_is_pinned_or_forgotten_where_one_of_both_is_refused(refused, kmark, nights):
    nights([(1.0, 1.0)] * 3)
    refused("history", "--pin", "a", "--unpin", "nosuch", name="nosuch")
    none = kmark("history", "--pins")
    assert (none.code, none.out) == (0, "")
    assert "--pin NAME=RUN" in none.err
    assert kmark("history", "--pin", "a=night-01").code == 0
    words = ("history", "--pin", "b=nosuch", "--unpin", "a")
    refused(*words, reason="run-unknown", ref="nosuch")
    assert kmark("history", "--pins").out == "a  night-01\n"
    assert kmark("history", "--pin", "b=night-02", "--unpin", "a").code == 0
    assert kmark("history", "--pins").out == "b  night-02\n"


def test_a_moved_sentinel_holds_the_alarm(kmark, nights):
    nights([(1.0, 1.0)] * 20 + [(1.08, 1.2)])
    ended = kmark("history", "--check")
    assert ended.code == 0
    assert "night-20" in ended.err
    assert "slower, suppressed" in ended.out
    assert kmark("history", "--check", "--canaries", "").code == 1
    assert kmark("history", "--check", "--sentinels", "").code == 1, "the old name"


def test_a_run_is_marked_where_a_sentinel_stepped(kmark, nights):
    nights([(1.0, 1.0) if n < 15 else (1.06, 1.3) for n in range(25)])
    ended = kmark("history", "--json", "-")
    assert list(json.loads(ended.out)["runs_marked"]) == ["night-15"]
    assert "night-15: copy n=1 dtype=f32: slower" in ended.err
    assert "canary" in kmark("history").out
    free = kmark("history", "--canaries", "")
    assert "canary" not in free.err + free.out


def test_baselines_are_pinned_by_name(kmark, nights):
    nights([(1.0, 1.0)] * 3 + [(1.3, 1.0)])
    assert "night-00" in kmark("history", "--pin", "golden=night-00").err
    assert kmark("history", "--pins").out == "golden  night-00\n"
    ended = kmark("history", "--baseline", "golden", "-b", "triton")
    assert "against golden" in ended.out
    assert re.search(r"\+(29|30)\.\d %", ended.out)
    assert kmark("compare", "golden", "latest", "-q").code == 1
    assert "night-03" in kmark("history", "--pin", "golden").err
    assert kmark("history", "--unpin", "golden").code == 0
    assert kmark("history", "--pins").out == ""


def test_json_csv_md(kmark, nights):
    nights([(1.0 if n < 10 else 1.1, 1.0) for n in range(20)])
    made = json.loads(kmark("history", "--json", "-").out)
    assert len(made["series"]) == 3
    work = next(s for s in made["series"] if " | triton | " in s["series"])
    assert work["steps"][0]["run"] == "night-10"
    assert len(work["points"]) == 20
    assert len(kmark("history", "--csv", "-").out.splitlines()) == 61
    assert kmark("history", "--md", "-").out.startswith("| problem | backend |")


def test_selection(kmark, nights, refused):
    nights([(1.0, 1.0)] * 3)
    for words, series, runs in (
        (("-b", "triton"), 1, 3),
        (("--filter", "m=7"), 2, 3),
        (("--runs", "2", "-o", "gemm,copy"), 3, 2),
    ):
        found = json.loads(kmark("history", *words, "--json", "-").out)
        assert (len(found["series"]), len(found["runs"])) == (series, runs)
    refused("history", "-o", "conv", code=4, what="series")
    refused("history", "--arch", "sm_90", code=4)


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (("--filter", "("), {"pattern": "("}),
        (("--runs", "0"), {"option": "--runs"}),
        (("--min-effect", "2"), {"option": "--min-effect"}),
        (("--unpin", "nosuch"), {"what": "pin", "name": "nosuch"}),
        (("--pin", "latest"), {"name": "latest"}),
        (("--pin", "night-00=latest"), {"run": "night-00"}),
        (("--canaries", "nosuch"), {"what": "suite", "name": "nosuch"}),
        (("--baseline", "nosuch"), {"reason": "run-unknown", "ref": "nosuch"}),
    ],
)
def test_refused(refused, nights, words, fields):
    nights([(1.0, 1.0)] * 2)
    refused("history", *words, **fields)


def test_a_file_of_ones_own_is_found_by_any_of_its_names(kmark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store(tmp_path / "store.sqlite") as store:
        store.add_run(Run(id="one", started=1.0, environment=Environment()))
        store.add_results("one", [result(WORK, 1e-3, "mine.py", np.random.default_rng(1), "")])
    ended = kmark("history", "-b", str(tmp_path / "mine.py"))
    assert ended.code == 0, ended.err
    assert "mine.py" in ended.out


def test_many_series_are_cut_and_those_that_changed_come_first(kmark, tmp_path):
    random = np.random.default_rng(1)
    with open_store(tmp_path / "store.sqlite") as store:
        for night in range(12):
            run_id = f"night-{night:02}"
            environment = Environment(libraries={})
            store.add_run(Run(id=run_id, started=(night + 1) * DAY_S, environment=environment))
            made = [
                result(WORK.replace("m=7", f"m={m}"), 1e-3, "numpy", random, "")
                for m in range(1, 60)
            ]
            stepped = WORK.replace("m=7", "m=60")
            made.append(result(stepped, 1e-3 * (1 + (night > 5)), "numpy", random, ""))
            store.add_results(run_id, made)
    ended = kmark("history")
    table = ended.out.split("steps\n")[0].strip().splitlines()
    assert len(table) == 52
    assert table[2].startswith("gemm m=60 ")
    assert "note: 10 more series" in ended.err
    assert "--all" in ended.err
    for words in (("--all",), ("-o", "gemm"), ("--filter", "gemm")):
        ended = kmark("history", *words)
        assert len(ended.out.split("steps\n")[0].strip().splitlines()) == 62
        assert "more series" not in ended.err
    assert len(kmark("history", "--csv", "-").out.splitlines()) == 60 * 12 + 1
    assert len(json.loads(kmark("history", "--json", "-").out)["series"]) == 60


def test_excluded_runs_take_no_part_until_they_are_included_again(kmark, refused, fake_words):
    for label in ("one", "two"):
        assert kmark(*fake_words, "--limit", "1", "--label", label).code == 0
    both = json.loads(kmark("history", "--json", "-").out)
    assert kmark("history", "--exclude", "two").code == 0
    assert "excluded" in kmark("list", "runs").out
    fewer = json.loads(kmark("history", "--json", "-").out)
    assert len(fewer["runs"]) == len(both["runs"]) - 1
    refused(
        "history", "--exclude", "nosuch", "--include", "two", reason="run-unknown", ref="nosuch"
    )
    assert kmark("history", "--include", "two").code == 0
    assert json.loads(kmark("history", "--json", "-").out)["runs"] == both["runs"]


def json_of(kmark, *words):
    (row,) = json.loads(kmark("history", *words, "--json", "-").out)["series"]
    return row


@pytest.mark.parametrize("nights_after", [1, 2, 12])
def test_a_crash_is_an_alarm_every_night_until_it_is_accepted(kmark, nights, nights_after):
    nights([(1.0, 1.0)] * 38 + [(0, 1.0)] * nights_after)
    ended = kmark("history", "--check", "-b", "triton")
    assert ended.code == 1
    assert "1 alarm" in ended.err
    row = json_of(kmark, "-b", "triton")
    assert (row["state"], row["alarm"], row["since"]) == ("broken", True, "night-38")
    (command,) = [x for x in ended.err.splitlines() if x.startswith("  kmark history --accept")]
    words = shlex.split(command.replace("…", "known"))[1:]
    assert kmark(*words).code == 0
    assert kmark("history", "--check").code == 0
    row = json_of(kmark, "-b", "triton")
    assert (row["alarm"], row["accepted"]["reason"]) == (False, "known")
    assert "accepted" in kmark("history").out
    assert kmark("history", "--unaccept", row["id"]).code == 0
    assert kmark("history", "--check").code == 1


@pytest.mark.parametrize("runs", [1, 20])
def test_a_slowdown_that_nobody_touched_is_an_alarm(kmark, nights, runs):
    nights([(1.0, 1.0)] * 20 + [(1.17, 1.0)] * runs)
    assert kmark("history", "--check").code == 1
    row = json_of(kmark, "-b", "triton")
    assert (row["state"], row["since"]) == ("slower", "night-20")
    assert kmark("history", "--accept", "all", "--reason", "it does more").code == 0
    assert kmark("history", "--check").code == 0


def test_what_cannot_be_accepted(kmark, nights, refused):
    nights([(1.0, 1.0)] * 20 + [(1.17, 1.0)])
    refused("history", "--accept", "triton", option="--reason TEXT")
    refused("history", "--reason", "x", option="--accept SERIES")
    refused("history", "--accept", "nothing", "--reason", "x", text="nothing")
    refused("history", "--accept", "triton", "--reason", " ")
    numpy = json_of(kmark, "-b", "numpy", "--filter", "m=7")["id"]
    refused("history", "--accept", numpy, "--reason", "x", code=4)
    refused("history", "--unaccept", "triton")
