import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark import ops
from kernelmark.core.errors import KernelmarkError, ProblemError, UsageError
from kernelmark.workloads import suites
from kernelmark_dev.raising import raises

COUNTS = {  # of the published lists; see docs/suites.md for what was put right in them
    "attention-bert": 2,
    "attention-extend": 6,
    "attention-gqa": 18,
    "attention-llama3-405b": 16,
    "attention-llm": 220,
    "attention-odd-lengths": 8,
    "attention-sdxl": 24,
    "attention-traces": 6,
    "conv-miopen": 316,
    "conv-resnet": 176,
    "conv-sdxl": 2,
    "conv-unet": 432,
    "gemm-compute-bound": 8,
    "gemm-gpt4-compute": 12,
    "gemm-gpt4-memory": 15,
    "gemm-llama-matvec": 80,
    "gemm-llama-prefill": 544,
    "gemm-llama-skinny": 400,
    "gemm-llama8b-prefill": 4,
    "gemm-memory-bound": 6,
    "gemm-square": 7,
    "gemm-tile-steps": 16,
    "gemm-tk": 5,
    "gemm-unet": 80,
}


def write(folder, text, name="mine.toml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", suites.names())
def test_a_shipped_suite_is_valid_named_and_explained(name):
    suite = suites.load(name)
    assert suite.name == name
    assert suite.why.endswith(".")
    assert 40 < len(suite.why) < 200
    assert suite.source
    assert len(set(suite.problems)) == len(suite.problems) > 0
    assert all(ops.parse(p.key) == p for p in suite.problems)


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_published_lists_are_complete_and_without_repetition(name, count):
    suite = suites.load(name)
    assert (len(suite.problems), suite.duplicates) == (count, 0)


def test_the_description_counts_what_is_loaded(monkeypatch):
    described = {i.name: i for i in suites.describe()}
    assert list(described) == suites.names()
    for name, told in described.items():
        assert told == suites.info(suites.load(name))
    # It asks no op: building the problems is most of the time that loading takes.
    monkeypatch.setattr(suites, "registry", None)
    assert suites.describe() == [*described.values()]


@pytest.mark.parametrize(("name", "flops", "nbytes"), [("demo", 5e8, 32e6), ("smoke", 1e5, 1e6)])
def test_small_suites_have_something_of_every_op(name, flops, nbytes):
    problems = suites.load(name).problems
    assert {p.op for p in problems} == {"gemm", "batched_gemm", "attention", "conv"}
    assert len(problems) <= 20
    for p in problems:
        op = ops.registry.get(p.op)
        assert op.flops(p) < flops
        assert op.bytes(p) < nbytes


def test_published_lists_have_no_foreign_shape():
    resnet = suites.load("conv-resnet").problems
    assert {(p.dims["c"], p.dims["k"]) for p in resnet if p.dims["r"] == 7} == {(3, 64)}
    channels = {(256, 512), (512, 1024), (1024, 2048)}
    assert {(p.dims["c"], p.dims["k"]) for p in resnet} >= channels
    assert {p.dims["seq_kv"] for p in suites.load("attention-bert").problems} == {384}


@pytest.mark.parametrize("name", ["conv-resnet", "conv-unet", "conv-miopen", "conv-sdxl"])
def test_convolutions_have_no_row_that_is_not_read(name):
    for p in suites.load(name).problems:
        d = p.dims
        assert (d["h"] - d["r"]) % d["stride_h"] == 0
        assert (d["w"] - d["s"]) % d["stride_w"] == 0


def test_the_dtypes_can_be_replaced():
    suite = suites.load("gemm-square", dtypes=["f32", "bf16"])
    assert [p.dtypes["a"] for p in suite.problems] == ["f32"] * 7 + ["bf16"] * 7
    attention = suites.load("llama3", ["f16"], ["attention"]).problems
    assert {p.dtypes["q"] for p in attention} == {"f16"}
    drawn = suites.load("gemm-random-small", dtypes=["f16"]).problems
    assert [p.dtypes["a"] for p in drawn] == ["f16"] * 200


def test_dtypes_that_are_a_column_are_replaced_too(tmp_path):
    group = "[[problems]]\nop = 'gemm'\nm = 1\nn = 1\ncolumns = ['dtype', 'k']\n"
    path = write(tmp_path, group + "rows = [['f32', 1], ['f16', 2], ['bf16', 2]]")
    assert [p.dtypes["a"] for p in suites.load(path).problems] == ["f32", "f16", "bf16"]
    other = suites.load(path, dtypes=["i8"]).problems
    assert [(p.dtypes["a"], p.dims["k"]) for p in other] == [("i8", 1), ("i8", 2)]
    path = write(
        tmp_path,
        GROUP.replace("dtype", "m").replace("'f32'", "1") + "columns = ['dtype']\nrows = [['f32']]",
    )
    assert [p.dtypes["a"] for p in suites.load(path, dtypes=["i8"]).problems] == ["i8"]


def test_the_ops_can_be_chosen_before_their_dtype_is_looked_at():
    with raises(ProblemError, value="i8") as refused:
        suites.load("demo", dtypes=["i8"])  # attention has no such dtype
    assert "demo.toml: problems" in refused.value.message
    found = suites.load("demo", dtypes=["i8"], ops=["gemm"]).problems
    assert [p.dtypes["a"] for p in found] == ["i8"] * 3


def test_a_file_of_the_users_own(tmp_path):
    path = write(
        tmp_path,
        """
why = "Ours."
dtype = "f32"
[[problems]]
op = "gemm"
m = "[64:256:*2]"
n = [8, 8, 16]
k = 32
[[problems]]
op = "attention"
dtype = ["f16", "bf16"]
heads = 4
dim = 64
columns = ["seq_q", "seq_kv", "causal"]
rows = [[1, 128, false], [16, 128, true]]
""",
    )
    suite = suites.load(path)
    assert (suite.name, suite.why, suite.source) == ("mine", "Ours.", "")
    assert len(suite.problems) == 3 * 2 + 4
    assert suite.duplicates == 3
    assert [p.dims["m"] for p in suite.problems[:6]] == [64, 64, 128, 128, 256, 256]
    assert [p.dtypes["q"] for p in suite.problems[6:]] == ["f16", "f16", "bf16", "bf16"]


def test_a_file_is_found_in_the_working_folder(tmp_path, monkeypatch):
    write(tmp_path, "[[problems]]\nop='gemm'\nm=1\nn=1\nk=1\ndtype='f32'\n")
    monkeypatch.chdir(tmp_path)
    for name in ("mine.toml", "./mine.toml"):
        assert len(suites.load(name).problems) == 1


GROUP = "[[problems]]\nop = 'gemm'\nn = 8\nk = 8\ndtype = 'f32'\n"
MODEL = "[[problems]]\nmodel = 'llama-3-8b'\ndtype = 'bf16'\n"
DRAWN = "[[problems]]\ngenerator = 'random'\nop = 'gemm'\ndtype = 'f32'\n"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {}),
        ("problems = 3", {}),
        ("problems = [1]", {}),
        ("whi = 'x'\n" + GROUP + "m = 1", {"name": "whi"}),
        ("why = 3\n" + GROUP + "m = 1", {"found": "3"}),
        ("[[problems]]\nm = 1", {"name": "op"}),
        ("[[problems]]\nop = 3", {"expected": "a name", "found": "3"}),
        ("[[problems]]\nop = 'gemn'", {"what": "op", "name": "gemn"}),
        (GROUP + "m = 1\n" + GROUP + "mm = 1", {"name": "mm"}),
        (GROUP, {"name": "m"}),
        (GROUP + "m = 0", {"least": 1}),
        (GROUP + "m = 1099511627776", {}),
        (GROUP + "m = []", {"found": "[]"}),
        (GROUP + "m = [[1]]", {"found": "[1]"}),
        (GROUP + "m = 1979-05-27", {"found": "datetime.date(1979, 5, 27)"}),
        (GROUP + "m = {x = 1}", {"found": "{'x': 1}"}),
        (GROUP + "m = '[4:1]'", {}),
        (GROUP + "rows = [[1]]", {"name": "columns"}),
        (GROUP + "columns = ['m']", {"name": "rows"}),
        (GROUP + "columns = ['m']\nrows = []", {"found": "[]"}),
        (GROUP + "columns = ['m']\nrows = [1, 2]", {"found": "1"}),
        (GROUP + "columns = ['m']\nrows = [[1], [2, 3]]", {"cells": 2, "columns": 1}),
        (GROUP + "columns = ['m', 'n']\nrows = [[1, 2]]", {"what": "axis", "name": "n"}),
        (GROUP + "columns = ['m', 'm']\nrows = [[1, 2]]", {"what": "axis", "name": "m"}),
        (GROUP + "m = '[1:2000000]'", {"count": 2_000_000}),
        (GROUP.replace("f32", "f31") + "m = 1", {"name": "f31"}),
        (MODEL, {}),
        (MODEL + "batch = 3", {"name": "batch"}),
        (MODEL.replace("8b", "9b") + "m = 1", {"name": "llama-3-9b"}),
        (MODEL + "m = 1\ntp = 3", {"tp": 3}),
        (MODEL + "m = 'one'", {"expected": "an integer", "found": "'one'"}),
        (MODEL + "m = 1\nlayers = ['qvk']", {"what": "layer", "name": "qvk"}),
        (MODEL + "context = 8", {"name": "decode_batch"}),
        (DRAWN.replace("random", "wild"), {"what": "generator", "name": "wild"}),
        (DRAWN.replace("op = 'gemm'", ""), {"name": "op"}),
        (DRAWN + "count = 1.5", {"expected": "an integer", "found": "1.5"}),
        (DRAWN + "factor = 2", {"name": "factor"}),
        (DRAWN + "categories = ['round']", {"name": "round"}),
        (DRAWN + "count = 2000000", {"count": 2_000_000}),
    ],
)
def test_what_is_wrong_in_a_file_is_one_sentence(tmp_path, text, fields):
    with raises(UsageError, **fields) as caught:
        suites.load(write(tmp_path, text))
    message = caught.value.message
    assert message.startswith(str(tmp_path / "mine.toml"))
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "line"), [("name = 'x'\nwhy = [1,\n", 2), ("name = 'x'\n\nwhy 3\n", 3), ("x = '", 1)]
)
def test_a_file_cut_short_is_told_with_its_line(tmp_path, text, line):
    with pytest.raises(UsageError) as refused:
        suites.load(write(tmp_path, text))
    assert f"line {line}" in refused.value.message


@given(cut=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_any_cut_of_a_file_is_a_suite_or_a_sentence(tmp_path_factory, cut):
    whole = (suites._FOLDER / "demo.toml").read_bytes()
    path = tmp_path_factory.mktemp("cut") / "cut.toml"
    path.write_bytes(whole[: cut % len(whole)])
    try:
        suites.load(str(path))
    except KernelmarkError as error:
        told = error.message
    else:
        return
    assert told.startswith(str(path))


def test_files_that_cannot_be_read(tmp_path):
    with raises(UsageError, file=str(tmp_path / "none.toml")):
        suites.load(str(tmp_path / "none.toml"))
    with raises(UsageError, file=str(tmp_path)):
        suites.load(str(tmp_path) + "/")
    (tmp_path / "b.toml").write_bytes(b"name = '\xff'")
    with raises(UsageError, file=str(tmp_path / "b.toml")):
        suites.load(str(tmp_path / "b.toml"))


def test_an_unknown_name_says_what_was_meant():
    with raises(UsageError, what="suite", name="lama3") as caught:
        suites.load("lama3")
    assert "did you mean llama3?" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["rows", "columns"])
@pytest.mark.parametrize(
    ("value", "expected"), [(8, [8]), ([64, 8], [64, 8]), ("[8:32:*2]", [8, 16, 32])]
)
def test_rows_and_columns_may_be_parameters_of_an_own_op(name, value, expected):
    """The own op in docs/own-kernel.md has rows."""
    found = list(suites.items({"op": "softmax", name: value}, (), "mine"))
    assert [item.parameters for item in found] == [{name: size} for size in expected]
