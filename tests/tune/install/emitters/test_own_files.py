"""Our own formats: cuBLASLt's JSON and the Python dict."""

import json
import runpy
from dataclasses import replace

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


def algo(w, name="BBS_TN_0", version="13.1.0", text=ALGO, problem=None, **more):
    config = {"algo": text, **more}
    return w.outcome(name, problem, "cublaslt", config, version=version, arch="sm_90")


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


def applied(folder, *outcomes):
    """The file of the folder with these winners."""
    file = folder / "tuned.py"
    applying.write(PYTHON, applying.prepare(PYTHON, outcomes, file), file)
    return file


def test_the_file_runs_alone_and_finds(w, tmp_path):
    file = tmp_path / "tuned.py"
    change = applying.prepare(PYTHON, [w.outcome(arch="sm_90")], file)
    applying.write(PYTHON, change, file)
    assert file.read_text().count("import ") == 1, "torch, and only when it is asked for the GPU"
    lookup = run(file)["lookup"]
    found = lookup("gemm", ["bf16", "bf16", "bf16", "f32"], "nt", 16, 512, 1024, arch="sm_90")
    assert found["kwargs"]["BLOCK_M"] == 16
    assert found["kwargs"]["waves_per_eu"] == 2
    assert (found["num_warps"], found["num_stages"]) == (4, 2)
    assert lookup("gemm", ["bf16"] * 3 + ["f32"], "nt", 17, 512, 1024, arch="sm_90") is None
    found["kwargs"]["BLOCK_M"] = 1
    again = lookup("gemm", ["bf16", "bf16", "bf16", "f32"], "nt", 16, 512, 1024, arch="sm_90")
    assert again["kwargs"]["BLOCK_M"] == 16


def test_winners_of_several_backends_name_theirs(w, tmp_path):
    reached = {"cublaslt": 1e-5, "triton": 1.1e-5, "torch": 2e-5}
    outcomes = [
        w.outcome("A", w.product(m=16), arch="sm_90"),
        algo(w, "B", problem=w.product(m=64)),
        w.outcome("C", w.product(m=4096), "torch", {}, arch="sm_90", reference="cublaslt"),
    ]
    several = [replace(outcome, reached_s=FrozenDict(reached)) for outcome in outcomes]
    lookup = run(applied(tmp_path, *several))["lookup"]

    def found(m):
        return lookup("gemm", ["bf16"] * 3 + ["f32"], "nt", m, 512, 1024, arch="sm_90")

    assert "backend" not in found(16), "what triton.Config takes"
    assert found(64) == {"backend": "cublaslt", "kwargs": {"algo": ALGO}}
    assert found(4096) == {"backend": "torch", "kwargs": {}}
    alone = PYTHON.emit(outcomes[2:], tmp_path / "b.py", NOTHING)
    assert [skipped.name for skipped in alone.skipped] == ["C"], "the default of a single backend"


def test_a_dispatcher_takes_the_nearest_m_and_a_default_and_counts(w, tmp_path):
    arch = "gfx950:sramecc+:xnack-"
    winners = [
        w.outcome(f"A{m}", w.product(m=m), config={**w.TRITON, "num_warps": warps}, arch=arch)
        for m, warps in ((16, 2), (64, 4), (1024, 8))
    ]
    ran = run(applied(tmp_path, *winners))
    dtypes, default = ["bf16"] * 3 + ["f32"], {"kwargs": {}, "num_warps": 1}

    def warps(m, *sizes, op="gemm", layout="nt", gpu="gfx950", **more):
        sizes = sizes or (512, 1024)
        return ran["choose"](op, dtypes, layout, m, *sizes, default=default, arch=gpu, **more)[
            "num_warps"
        ]

    expected = {16: 2, 17: 2, 8: 2, 7: 1, 31: 2, 33: 4, 128: 4, 129: 1, 512: 8, 2048: 8, 2049: 1}
    assert {m: warps(m) for m in expected} == expected
    assert warps(32) == 2, "of two that are equally near, the smaller"
    assert warps(2049, reach=3) == 8
    assert warps(16, gpu=arch) == 2
    assert warps(16, gpu="gfx942") == warps(16, layout="nn") == warps(16, 512, 1000) == 1
    assert warps(16, op="copy") == 1
    assert ran["HITS"] == {"exact": 2, "nearest": 9, "default": 7}
    assert ran["choose"]("gemm", dtypes, "nt", 5, 6, 7, arch="gfx950") is None
    chosen = ran["choose"]("gemm", dtypes, "nt", 16, 512, 1024, arch="gfx950")
    chosen["kwargs"]["BLOCK_M"] = -1
    assert ran["choose"]("gemm", dtypes, "nt", 16, 512, 1024, arch="gfx950") != chosen


def test_an_m_that_was_tuned_without_a_gain_keeps_the_default(w, tmp_path):
    arch, dtypes = "gfx950", ["bf16"] * 3 + ["f32"]
    outcomes = [
        w.outcome(f"A{m}", w.product(m=m), arch=arch, **({} if m != 32 else {"kept": False}))
        for m in (16, 32, 64)
    ]
    file = applied(tmp_path, *outcomes)
    ran = run(file)

    def config(m, choose=ran["choose"]):
        return choose("gemm", dtypes, "nt", m, 512, 1024, arch=arch)

    assert [bool(config(m)) for m in (16, 17, 31, 32, 33, 64, 128)] == [1, 1, 0, 0, 0, 1, 1]
    assert ran["HITS"] == {"exact": 2, "nearest": 2, "default": 3}
    assert ran["lookup"]("gemm", dtypes, "nt", 32, 512, 1024, arch=arch) is None
    assert len(PYTHON.read(file)) == 2
    # A winner of a later run replaces it; one without a gain does not replace a winner.
    applied(tmp_path, w.outcome("A32", w.product(m=32), arch=arch))
    applied(tmp_path, w.outcome("A1", w.product(m=1), arch=arch), outcomes[1])
    assert config(32, run(file)["choose"])


def test_the_dispatcher_knows_where_every_op_has_m(w, tmp_path):
    places = run(applied(tmp_path, w.outcome()))["_M"]
    known = (ops.registry.get(name) for name in ops.registry.names())
    # An op of a kernel file, which another test may have loaded into this process, has no examples.
    every = (ops.parse(op.examples[0]) for op in known if op.examples)
    dims = {problem.op: list(problem.dims) for problem in every}
    assert {name: sizes.index("m") for name, sizes in dims.items() if "m" in sizes} == places


def test_names_of_other_kernels_stay_as_they_are(w, tmp_path):
    mine = w.outcome(backend="./mine.py", config={"rows": 256, "Cols": 2, "num_warps": 4})
    (found,) = run(applied(tmp_path, mine))["CONFIGS"].values()
    assert found == {"kwargs": {"rows": 256, "Cols": 2}, "num_warps": 4}


def test_what_a_user_added_stays(w, tmp_path):
    file = applied(tmp_path, w.outcome())
    mine = "    ('sm_90', 'gemm', ('f16',), 'nn', (1, 2, 3)): {'kwargs': {'BLOCK_M': 1}},\n}"
    file.write_text(file.read_text().replace("\n}", "\n" + mine, 1))
    applied(tmp_path, w.outcome("A_1", w.product(m=1)))
    assert len(PYTHON.read(file)) == len(run(file)["CONFIGS"]) == 3


def test_a_user_s_own_code_stays(w, tmp_path):
    own = '"""Mine."""\n\nCONFIGS = {}  # to be filled\n\n\ndef helper():\n    return 1\n'
    (tmp_path / "tuned.py").write_text(own)
    found = run(applied(tmp_path, w.outcome()))
    assert (found["helper"](), found["__doc__"], len(found["CONFIGS"])) == (1, "Mine.", 1)


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
