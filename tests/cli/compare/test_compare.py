"""`kmark compare` and `kmark import` of other tools' files, as a user calls them."""

from __future__ import annotations

import json

import pytest

from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.problem import parse_key
from kernelmark.core.result import Case, Status
from kernelmark.stores import open_store
from kernelmark_dev.results import make_measurement, make_result, make_set

GOLDEN_CSV = """\
index,tag,name,M,N,K,dtype,A,B,mean_microseconds,arithmetic_intensity,tflops,ok
0,one,blas,128,1280,2048,fp16,T,N,10.0,110.1,49.4,True
1,two,blas,64,64,64,bf16,N,N,3.0,1.0,1.0,True
"""


def run(name, *times_us, started=1.0, libraries=None, device="cpu"):
    """A run whose row i has blocks around the i-th time; None is a crash."""
    results = []
    for size, time_us in enumerate(times_us, 1):
        case = Case(problem=parse_key(f"gemm m={size} n=1 k=1"), backend="numpy")
        if time_us is None:
            failure = {"status": Status.CRASHED, "error": "killed by signal 9"}
            results.append(make_result(case, arch="aarch64", device=device, **failure))
        else:
            blocks = [time_us * f * 1e-6 for f in (0.999, 1.0, 1.001)]
            measurement = make_measurement(*blocks, low_s=0.0, high_s=1.0)
            results.append(
                make_result(case, arch="aarch64", device=device, measurement=measurement)
            )
    environment = Environment(libraries=libraries or {})
    return make_set(
        *results, id=name, started=started, label=f"the-{name}", environment=environment
    )


@pytest.fixture
def two(tmp_path):
    with open_store(tmp_path / "store.sqlite") as store:
        for name, started, times_us in (("base", 1.0, (20.0, 30.0)), ("head", 2.0, (21.0, None))):
            libraries = {"torch": f"{started:g}"}
            # On a CPU two rows are too few to call 5 % a change.
            made = run(name, 10.0, *times_us, started=started, libraries=libraries, device="cuda:0")
            store.add_result_set(made)
        store.pin("golden", "base")


def test_regressions_end_with_code_1(kmark, two):
    ended = kmark("compare", "golden", "latest")
    assert ended.code == 1
    assert "+5.0 %" in ended.out
    assert "signal 9" in ended.out
    assert "torch: 1 → 2" in ended.err
    assert "1 slower, 1 same, 1 broken" in ended.err


@pytest.mark.parametrize("refs", [("latest~1", "latest"), ("the-base", "the-head"), ("bas", "hea")])
def test_every_way_to_name_a_run(kmark, two, refs):
    assert kmark("compare", *refs, "-q").code == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("base", "base"), 0),
        (("base", "head", "--fail-on", "none"), 0),
        (("base", "head", "--fail-on", "slower:3%"), 1),
        (("base", "head", "--fail-on", "slower:8%"), 1),
        (("base", "head", "--fail-on", "slower:8%,faster"), 0),
        (("base", "head", "--fail-on", "slower:8%,broken"), 1),
        (("base", "head", "--fail-on", "slower:8%", "--fail-on", "broken"), 1),
        (("base", "head", "--rule", "ratio", "--fail-on", "slower"), 0),
        (("base", "head", "--rule", "golden-tot", "--fail-on", "slower"), 1),
        (("head", "base"), 0),
    ],
)
def test_exit_codes(kmark, two, words, code):
    assert kmark("compare", *words).code == code


def test_files_of_ours_need_no_store(kmark, tmp_path):
    for name, times in (("a", (10.0,)), ("b", (12.0,))):
        (tmp_path / f"{name}.json").write_text(codec.dumps(run(name, *times)))
    ended = kmark("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert ended.code == 1
    assert not (tmp_path / "store.sqlite").exists()


def test_files_of_another_tool(kmark, tmp_path):
    (tmp_path / "x-gemm.csv").write_text(GOLDEN_CSV)
    slower = GOLDEN_CSV.replace("10.0", "10.6").replace("3.0", "9.0")
    (tmp_path / "new_x-gemm.csv").write_text(slower)
    files = str(tmp_path / "x-gemm.csv"), str(tmp_path / "new_x-gemm.csv")
    ended = kmark("compare", *files, "--match", "problem", "--rule", "golden-tot")
    assert ended.code == 1
    assert "golden-tot: 1 slower, 1 ignored" in ended.err
    ended = kmark("compare", *files, "--match", "problem")
    assert ended.code == 0
    assert "robust: 2 unsure" in ended.err
    made = json.loads(kmark("compare", *files, "--match", "problem", "--json", "-").out)
    assert all(row["reason"] for row in made["rows"])


def test_json_csv_and_md(kmark, two, tmp_path):
    made = json.loads(kmark("compare", "base", "head", "--json", "-").out)
    assert [row["verdict"] for row in made["rows"]] == ["same", "slower", "broken"]
    assert made["base"]["label"] == "the-base"
    assert len(kmark("compare", "base", "head", "--csv", "-").out.splitlines()) == 4
    page = tmp_path / "comment.md"
    assert kmark("compare", "base", "head", "--md", str(page)).code == 1
    assert "kmark compare base head --rule robust" in page.read_text()
    assert "m=1 " not in page.read_text()


def test_explain(kmark, two):
    ended = kmark("compare", "base", "head", "--explain", "2")
    assert ended.code == 0
    assert "degrees of freedom" in ended.out
    assert "kmark run -p" in ended.out


def test_rows_that_head_lacks_are_told(kmark, tmp_path):
    with open_store(tmp_path / "store.sqlite") as store:
        store.add_result_set(run("base", 10.0, 20.0, 30.0))
        store.add_result_set(run("head", 10.0, started=2.0))
    ended = kmark("compare", "base", "head")
    assert ended.code == 0
    assert "note: 2 rows " in ended.err
    assert "--fail-on" in ended.err
    strict = kmark("compare", "base", "head", "--fail-on", "slower:3%,broken,gone", "--md", "-")
    assert strict.code == 1
    assert "note: 2 rows " in strict.err
    assert "--fail-on" not in strict.err
    assert "; 2 " in strict.out


def test_explain_shows_the_digits_that_decide(kmark, tmp_path):
    for name, time_us in (("a", "4.0"), ("tot_a", "4.52000001"), ("new_a", "3.99999")):
        (tmp_path / f"{name}-gemm.csv").write_text(GOLDEN_CSV.replace("10.0", time_us))
    base, slower, less = (str(tmp_path / f"{name}-gemm.csv") for name in ("a", "tot_a", "new_a"))
    shown = kmark("compare", base, slower, "--rule", "golden-tot", "--explain", "1").out
    assert shown.count("4.52000001 µs") >= 2
    assert "4.520 µs" not in shown
    shown = kmark("compare", less, base, "--rule", "golden-tot", "--explain", "1").out
    assert "3.99999 µs, a single run" in shown
    assert "4.000 µs" not in shown


def test_a_table_of_a_rule_that_takes_no_row_is_told(kmark, two, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('rule = "ratio"\n[[where]]\nop = "attention"\nfail = 1.3\n')
    ended = kmark("compare", "base", "head", "--rule", str(mine))
    assert 'note: mine: where 1 (op = "attention") ' in ended.err


def test_json_has_the_whole_rule_as_it_was_used(kmark, two, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'rule = "ratio"\nwarn = 1.05\n[[where]]\nop = "attention"\nfail = 1.3\n'
        '[[where]]\nbackend = "iree"\nproblem = "m=1 "\nrule = "golden-tot"\n'
    )
    words = ("compare", "base", "head", "--json", "-")
    made = json.loads(kmark(*words, "--rule", str(mine)).out)["rule"]
    golden = json.loads(kmark(*words, "--rule", "golden-tot").out)["rule"]
    assert golden.pop("name") == "golden-tot"
    assert made == {
        "name": "mine",
        "rule": "ratio",
        "warn": 1.05,
        "fail": 1.15,
        "where": [
            {"op": "attention", "rule": "ratio", "warn": 1.05, "fail": 1.3},
            {"backend": "iree", "problem": "m=1 ", "rule": "golden-tot", **golden},
        ],
    }


def test_many_rows_show_what_changed(kmark, tmp_path):
    with open_store(tmp_path / "store.sqlite") as store:
        store.add_result_set(run("base", *[10.0] * 30))
        store.add_result_set(run("head", *[10.0] * 29, 20.0, started=2.0))
    ended = kmark("compare", "base", "head")
    assert len(ended.out.splitlines()) == 3
    assert "29 rows" in ended.err
    every = kmark("compare", "base", "head", "--all")
    assert len(every.out.splitlines()) == 32
    assert "29 rows" not in every.err


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (("nosuch.json",), {"file": "nosuch.json"}),
        (("head", "--rule", "rubost"), {"what": "rule", "name": "rubost"}),
        (("head", "--explain", "99"), {"what": "row", "name": "99"}),
        (("head", "--explain", "0"), {"what": "row", "name": "0"}),
        (("head", "--explain", "1", "--json", "-"), {"options": ("--json",)}),
        (("head", "--explain", "1", "--md", "a.md"), {"other": "--explain"}),
        (("nosuch",), {"reason": "run-unknown", "ref": "nosuch"}),
        (("head", "--fail-on", "slow"), {"what": "verdict", "name": "slow"}),
    ],
)
def test_is_refused_with_a_code(refused, two, words, fields):
    refused("compare", "base", *words, **fields)


def test_a_file_of_no_known_format_points_to_import(refused, two, tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    file = str(tmp_path / "x.csv")
    ended = refused("compare", "base", file)
    assert "kmark import --as" in ended.err


def test_nothing_to_compare_is_code_4(refused, tmp_path):
    (tmp_path / "x-gemm.csv").write_text(GOLDEN_CSV)
    (tmp_path / "a.json").write_text(codec.dumps(run("a", 1.0)))
    words = ("compare", str(tmp_path / "x-gemm.csv"), str(tmp_path / "a.json"))
    refused(*words, code=4, head="a")


def test_import_of_another_tool_is_kept_once(kmark, tmp_path):
    file = tmp_path / "x-gemm.csv"
    file.write_text(GOLDEN_CSV)
    words = ("import", str(file), "--arch", "gfx942", "--started", "2024-10-01", "--label", "old")
    assert "2 results added" in kmark(*words).err
    assert "nothing was added" in kmark(*words).err
    shown = kmark("show", "old")
    assert "gemm m=128 n=1280 k=2048 dtype=f16 tb=t" in shown.out
    assert kmark("import", str(file), "--as", "reference-csv", "--backend", "y").code == 0


def test_an_import_says_that_its_last_value_may_be_cut(kmark, tmp_path):
    file = tmp_path / "x-gemm.csv"
    file.write_text(GOLDEN_CSV.rstrip())
    ended = kmark("import", str(file))
    assert "2 results added" in ended.err
    assert f"note: {file}: " in ended.err
    assert "(gemm m=64" in ended.err
    other = tmp_path / "y-gemm.csv"
    other.write_text(GOLDEN_CSV)
    assert "note" not in kmark("import", str(other)).err
    ended = kmark("compare", str(other), str(file), "--match", "problem", "--rule", "ratio")
    assert "note: head: " in ended.err
    assert "environment: " in ended.err


def test_an_import_says_which_times_it_left_out(kmark, tmp_path):
    file = tmp_path / "x-gemm.csv"
    file.write_text(GOLDEN_CSV + "2,two,blas,64,64,64,bf16,N,N,-3.0,1.0,1.0,True\n")
    ended = kmark("import", str(file))
    assert "2 results added" in ended.err
    note = next(line for line in ended.err.splitlines() if f"note: {file}: 1 time" in line)
    assert "1 of gemm m=64 n=64 k=64 " in note
    other = tmp_path / "y-gemm.csv"
    other.write_text(GOLDEN_CSV)
    ended = kmark("compare", str(other), str(file), "--match", "problem", "--rule", "ratio")
    note = next(line for line in ended.err.splitlines() if "note: head: 1 time" in line)
    assert "1 of gemm m=64 " in note
    assert "2 same" in ended.err


HIPBLASLT = """\
[0]:transA,transB,batch_count,m,n,k,a_type,b_type,c_type,d_type,hipblaslt-Gflops,us
    T,N,1,1024,512,256,f16_r,f16_r,f16_r,f16_r,66613.8,16.5
"""


@pytest.mark.parametrize(
    ("name", "text", "value", "code"),
    [
        ("a-gemm.csv", GOLDEN_CSV.splitlines()[0] + "\n", "", 4),
        ("a-gemm.csv", GOLDEN_CSV[:-16], "10 values for 13", 2),
        ("a.txt", HIPBLASLT[:-30], "8 values for 12", 2),
        ("a.csv", "x_val;aten-latency;b-latency\n(8, 8);0.01", "2 values for 3", 2),
        ("a.csv", "x_val;aten-speedup;b-latency-x\n(8, 8);0.01\n", "*-latency", 2),
    ],
)
def test_a_file_that_is_cut_has_its_own_error(refused, tmp_path, name, text, value, code):
    place = str(tmp_path / name)
    (tmp_path / name).write_text(text)
    line = len(text.splitlines())  # the last, which is cut
    where = f"{place}: line {line}: " if "values" in value else place
    for words in (("import", place), ("compare", place, place)):
        ended = refused(*words, code=code)
        assert where in ended.err
        assert value in ended.err
        assert "--workload" not in ended.err, "a file of results is no log of calls"
        assert "kmark run" not in ended.err


def test_import_refuses(refused, tmp_path):
    file = tmp_path / "x-gemm.csv"
    file.write_text(GOLDEN_CSV)
    refused("import", str(file), "--started=no", name="--started")
    refused("import", str(file), "--as", "excel", name="excel")
    other = tmp_path / "y.csv"
    other.write_text("a,b\n")
    refused("import", str(other), file=str(other))
    refused("import", "-", "--as", "googlebench", format="googlebench")


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (("--device", "foo"), {"device": "foo"}),
        (("--device", "hip:x"), {"device": "hip:x"}),
        (("--device", "hip:"), {"device": "hip:"}),
        (("--arch", "gfxfoo"), {"arch": "gfxfoo"}),
        (("--arch", "sm90"), {"arch": "sm90"}),
        (("--workload", "w", "--arch", "gfxfoo"), {"arch": "gfxfoo"}),
        (("--workload", "w", "--arch", "gfx999"), {"arch": "gfx999"}),
    ],
)
def test_import_refuses_a_machine_that_cannot_be(refused, tmp_path, words, fields):
    file = tmp_path / "x-gemm.csv"
    file.write_text(GOLDEN_CSV)
    refused("import", str(file), *words, **fields)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("device", "arch"), [("hip:3", "gfx906"), ("cuda:0", "sm_90a"), ("cpu", "aarch64")]
)
def test_import_takes_a_machine_that_may_be(kmark, tmp_path, device, arch):
    file = tmp_path / "x-gemm.csv"
    file.write_text(GOLDEN_CSV)
    ended = kmark("import", str(file), "--device", device, "--arch", arch)
    assert ended.code == 0, ended.err


def test_the_comment_repeats_the_whole_command(kmark, two):
    words = ("compare", "golden", "head", "--rule", "ratio", "--match", "problem")
    words = (*words, "--fail-on", "slower:3%,broken")
    again = " ".join(words).replace("golden", "base")  # a pinned name may mean another run later
    assert f"\nkmark {again}\n" in kmark(*words, "--md", "-").out


def test_broken_rows_that_do_not_fail_are_told(kmark, two):
    ended = kmark("compare", "base", "head", "--fail-on", "faster")
    assert ended.code == 0
    assert "1 broken row " in ended.err


def test_files_of_golden_and_tot_join(kmark, tmp_path):
    for name in ("golden_iree_gemm.csv", "tot_iree_gemm.csv", "golden.csv", "tot.csv"):
        (tmp_path / name).write_text(GOLDEN_CSV)
    for pair in (("golden_iree_gemm.csv", "tot_iree_gemm.csv"), ("golden.csv", "tot.csv")):
        places = [str(tmp_path / name) for name in pair]
        ended = kmark("compare", *places, "--rule", "golden-tot")
        assert ended.code == 0, ended.err
        assert "1 same, 1 ignored" in ended.err


@pytest.fixture
def moved(tmp_path, monkeypatch):
    """Everything is slower in head, the first row by more, and that one is the sentinel."""
    keys = ("gemm m=1 n=1 k=1",)
    monkeypatch.setattr("kernelmark.api.compare.canary_keys", lambda name: keys)
    with open_store(tmp_path / "store.sqlite") as store:
        store.add_result_set(run("base", 10.0, 20.0, 30.0))
        store.add_result_set(run("head", 20.0, 24.0, 33.0, started=2.0))
        store.add_result_set(run("crash", 20.0, 24.0, None, started=3.0))


def test_changes_of_a_machine_that_moved_are_held(kmark, moved):
    ended = kmark("compare", "base", "head")
    assert ended.code == 0
    assert ended.out.count("slower, suppressed") == 3
    assert "--fail-on held" in ended.err
    comment = kmark("compare", "base", "head", "--md", "-").out
    assert comment.startswith("### kernelmark: 3 of 3 kernels changed, but so did a canary")
    rows = json.loads(kmark("compare", "base", "head", "--json", "-").out)["rows"]
    (held,) = {row["held"] for row in rows}
    assert held in kmark("compare", "base", "head", "--explain", "2").out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("base", "head", "--fail-on", "held"), 1),
        (("base", "head", "--fail-on", "slower:30%,held"), 1),
        (("base", "head", "--fail-on", "slower:300%,held"), 0),
        (("base", "head", "--fail-on", "slower,broken"), 0),
        (("base", "head", "--rule", "golden-tot"), 1),
        (("base", "crash"), 1),
    ],
)
def test_held_rows_fail_only_if_asked(kmark, moved, words, code):
    assert kmark("compare", *words).code == code
