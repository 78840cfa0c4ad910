"""Our own formats: cuBLASLt's JSON and the Python dict."""

from __future__ import annotations

import json
import runpy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.emitters import registry

CUBLASLT, PYTHON = registry.get("cublaslt"), registry.get("python")
NOTHING = FrozenDict()
ALGO = "id=66 tile=20 split_k=2 reduction=1"


def algo(w, name="BBS_TN_0", version="13.1.0", text=ALGO, **more):
    config = {"algo": text, **more}
    return w.outcome(name, None, "cublaslt", config, version=version, arch="sm_90")


# -- cuBLASLt


def test_the_file_says_what_it_is(w, tmp_path):
    change = applying.prepare(CUBLASLT, [algo(w)], tmp_path / "a.json")
    document = json.loads(change.edits[0].after)
    assert (document["format"], document["version"]) == ("kernelmark-cublaslt", 1)
    assert document["cublaslt"] == "13.1.0"
    (entry,) = document["entries"]
    assert entry["algo"] == {"id": 66, "tile": 20, "split_k": 2, "reduction": 1}
    assert (entry["arch"], entry["us"], entry["reference_us"]) == ("sm_90", 10.0, 20.0)
    assert ops.parse(entry["problem"]) == w.product()


def test_versions_are_not_mixed(w, tmp_path):
    file = tmp_path / "a.json"
    applying.write(CUBLASLT, applying.prepare(CUBLASLT, [algo(w)], file), file)
    with pytest.raises(UsageError, match=r"12.8.0 and 13.1.0"):
        CUBLASLT.emit([algo(w, "BBS_TN_1", "12.8.0")], file, NOTHING)
    with pytest.raises(UsageError):
        CUBLASLT.emit([algo(w, version="")], tmp_path / "b.json", NOTHING)


@pytest.mark.parametrize("text", ["id=x", "66", "id=1=2"])
def test_no_algorithm(w, tmp_path, text):
    change = CUBLASLT.emit([algo(w, text=text)], tmp_path / "a.json", NOTHING)
    assert not change.edits
    assert text in change.skipped[0].reason


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"format": "other"},
        {"entries": {}},
        {"entries": [3]},
        {"entries": [{"problem": "gemm"}]},
        {"entries": [{"problem": "", "arch": "", "kernel": "", "algo": {"id": "1"}}]},
    ],
)
def test_a_file_that_is_not_ours_is_told(w, tmp_path, change):
    file = tmp_path / "a.json"
    good = applying.prepare(CUBLASLT, [algo(w)], file).edits[0].after
    file.write_text(json.dumps(json.loads(good) | change))
    with pytest.raises(UsageError, match=str(file)):
        CUBLASLT.read(file)


# -- Python


def run(path):
    return runpy.run_path(str(path))


def test_the_file_runs_alone_and_finds(w, tmp_path):
    file = tmp_path / "tuned.py"
    change = applying.prepare(PYTHON, [w.outcome(arch="sm_90")], file)
    applying.write(PYTHON, change, file)
    assert "import" not in file.read_text().split('"""')[2]
    lookup = run(file)["lookup"]
    found = lookup("gemm", ["bf16", "bf16", "bf16", "f32"], "nt", 16, 512, 1024, arch="sm_90")
    assert found["kwargs"]["BLOCK_M"] == 16
    assert found["kwargs"]["waves_per_eu"] == 2
    assert (found["num_warps"], found["num_stages"]) == (4, 2)
    assert lookup("gemm", ["bf16"] * 3 + ["f32"], "nt", 17, 512, 1024, arch="sm_90") is None
    found["kwargs"]["BLOCK_M"] = 1
    again = lookup("gemm", ["bf16", "bf16", "bf16", "f32"], "nt", 16, 512, 1024, arch="sm_90")
    assert again["kwargs"]["BLOCK_M"] == 16


def test_names_of_other_kernels_stay_as_they_are(w, tmp_path):
    file = tmp_path / "tuned.py"
    mine = w.outcome(backend="./mine.py", config={"rows": 256, "Cols": 2, "num_warps": 4})
    change = applying.prepare(PYTHON, [mine], file)
    applying.write(PYTHON, change, file)
    (found,) = run(file)["CONFIGS"].values()
    assert found == {"kwargs": {"rows": 256, "Cols": 2}, "num_warps": 4}


def test_options_tell_problems_apart(w, tmp_path):
    outcomes = [
        w.outcome("A_0", w.product()),
        w.outcome("A_1", w.product(bias=True), kept=False),
        w.outcome("A_2", w.product(tb="n"), config={**w.TRITON, "num_warps": 8}),
    ]
    change = applying.prepare(PYTHON, outcomes, tmp_path / "t.py")
    assert not change.skipped
    assert len(change.winners) == 2


def test_what_a_user_added_stays(w, tmp_path):
    file = tmp_path / "tuned.py"
    change = applying.prepare(PYTHON, [w.outcome()], file)
    mine = "    ('sm_90', 'gemm', ('f16',), 'nn', (1, 2, 3)): {'kwargs': {'BLOCK_M': 1}},\n}"
    file.write_text(change.edits[0].after.replace("\n}", "\n" + mine, 1))
    more = w.outcome("A_1", w.product(m=1))
    change = applying.prepare(PYTHON, [more], file)
    applying.write(PYTHON, change, file)
    assert len(PYTHON.read(file)) == 3
    assert len(run(file)["CONFIGS"]) == 3


def test_a_user_s_own_code_stays(w, tmp_path):
    file = tmp_path / "tuned.py"
    file.write_text(
        '"""Mine."""\n\nCONFIGS = {}  # to be filled\n\n\ndef helper():\n    return 1\n'
    )
    change = applying.prepare(PYTHON, [w.outcome()], file)
    applying.write(PYTHON, change, file)
    found = run(file)
    assert found["helper"]() == 1
    assert found["__doc__"] == "Mine."
    assert len(found["CONFIGS"]) == 1


@pytest.mark.parametrize("text", ["x = 1; CONFIGS = {}\n", "CONFIGS = {}; x = 1\n"])
def test_a_line_that_holds_other_code_too_is_refused(w, tmp_path, text):
    file = tmp_path / "tuned.py"
    file.write_text(text)
    with pytest.raises(UsageError, match="line 1"):
        applying.prepare(PYTHON, [w.outcome()], file)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        "CONFIGS = make()\n",
        "CONFIGS = {1: 2}\n",
        "CONFIGS = {('a', 'b', ('c',), 'd', (1,)): {}}\n",
        "CONFIGS = (\n",
    ],
)
def test_a_file_that_is_not_ours_is_not_run(tmp_path, text):
    file = tmp_path / "t.py"
    file.write_text("raise SystemExit\n" + text)
    with pytest.raises(UsageError, match=str(file)):
        PYTHON.read(file)


names = st.sampled_from(
    ["block_m", "block_n", "group_m", "num_warps", "num_stages", "kpack", "persistent"]
)
values = st.one_of(st.integers(-5, 999), st.booleans(), st.sampled_from([".cg", "it's"]))


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(names, values, min_size=1), st.integers(1, 10**6), st.booleans())
def test_any_config_reads_back(tmp_path_factory, w_module, config, m, bias):
    file = tmp_path_factory.mktemp("python") / "t.py"
    problem = w_module.product(m=m, bias=bias)
    outcome = w_module.outcome(problem=problem, backend="./mine.py", config=config)
    change = applying.prepare(PYTHON, [outcome], file)
    applying.write(PYTHON, change, file)
    (entry,) = PYTHON.read(file)
    assert entry.config == config
