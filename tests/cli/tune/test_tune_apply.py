"""`kmark tune apply` and `kmark export --as`, over the fake device."""

import dataclasses
import runpy

import pytest
import yaml

from kernelmark import ops
from kernelmark.backends.iree import choices
from kernelmark.backends.iree.targets import target_named
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import KernelInfo
from kernelmark.iree import gain
from kernelmark.tune import results
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.apply import Proof
from kernelmark.tune.install.emitters import registry
from kernelmark.tune.results import Choice
from kernelmark_dev.raising import tells
from kernelmark_dev.tuning import make_outcome

CONFIG = FrozenDict({"block_m": 16, "num_warps": 4, "num_stages": 2})


def outcome(name="SSS_NN_0", m=8, **more):
    problem = ops.registry.get("gemm").problem(m=m, n=8, k=8, dtype="f32")
    fields = {
        "reference": Choice(backend="fake", config=FrozenDict({"time_us": 20.0}), median_s=2e-5),
        "tuned": Choice(backend="triton", config=CONFIG, median_s=1e-5, worst=0.1),
    }
    return make_outcome(name=name, problem=problem, **{**fields, **more})


@pytest.fixture
def tuned(tmp_path):
    """A tuning folder with these outcomes."""

    def make(*outcomes):
        folder = TuningFolder(tmp_path / "tuning")
        folder.results.mkdir(parents=True, exist_ok=True)
        results.write(folder, outcomes or (outcome(),))
        return str(folder.path)

    return make


@pytest.fixture
def fake_winner(monkeypatch):
    """A winner that can be run here, in a format that takes it."""
    monkeypatch.setattr(type(registry.get("python")), "backends", ("triton", "fake"))
    return outcome(
        tuned=Choice(backend="fake", config=FrozenDict({"time_us": 10.0}), median_s=1e-5, worst=0.1)
    )


def test_export_writes_a_file_that_runs(kmark, tuned, tmp_path):
    ended = kmark("export", tuned(), "--as", "python", "-o", str(tmp_path / "t.py"))
    assert ended.code == 0, ended
    assert ended.out == ""
    assert "read back: 1 winner found, 0 other lookups unchanged" in ended.err
    lookup = runpy.run_path(str(tmp_path / "t.py"))["lookup"]
    assert lookup("gemm", ["f32"] * 4, "nn", 8, 8, 8, arch="fake")["num_warps"] == 4


@pytest.mark.parametrize("measured", [True, False])
def test_an_export_of_iree_has_the_gain_of_its_flags_alone(
    kmark, tuned, tmp_path, monkeypatch, measured
):
    cpu = target_named("cpu")
    problem = ops.parse("gemm m=64 n=64 k=64 dtype=f32")
    config = choices.space(problem, cpu).default
    winner = outcome(
        arch="x86_64", tuned=Choice(backend="iree", config=config, median_s=1e-5, worst=0.1)
    )
    winner = dataclasses.replace(winner, problem=problem)
    given = []

    def measure(modules, spec, flags, target):
        given.append((len(modules), spec.read_text(), flags, target))
        return gain.SpecGain(flags=1.25, spec=3.5)

    monkeypatch.setattr(gain, "measure_gain", measure)
    if measured:
        monkeypatch.setattr(applying, "check_here", lambda outcomes: {})
    file = tmp_path / "t.mlir"
    words = ("--as", "iree-spec", "--with", "verify=no", "-o", str(file))
    ended = kmark("export", tuned(winner), *words)
    assert ended.code == 0
    assert ("1.25 ×" in ended.err and "3.50 ×" in ended.err) == measured
    expected = ["--iree-input-demote-f64-to-f32=false", "--iree-opt-data-tiling=false"]
    assert given == [(1, file.read_text(), tuple(expected), cpu)] * measured


def test_export_to_stdout_is_only_data(kmark, tuned):
    ended = kmark("export", tuned(), "--as", "python", "-o", "-")
    assert ended.code == 0
    assert ended.out.startswith('"""Tuned configs')
    compile(ended.out, "tuned.py", "exec")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--as", "nonsense", "-o", "x"], "nonsense"),
        (["--as", "python"], "-o"),
        (["--as", "python", "-o", "x", "--csv", "-", "--store", "s"], "--csv"),
        (["-o", "x"], "--as"),
        (["--as", "aiter", "-o", "x"], "--base"),
        (["--as", "python", "-o", "x", "--with", "a=1"], "'a'"),
    ],
)
def test_export_refuses(refused, tuned, words, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown in refused("export", tuned(), *words).err.splitlines()[0]


def test_export_does_not_overwrite(refused, tuned, tmp_path):
    (tmp_path / "t.py").write_text("mine")
    words = ("export", tuned(), "--as", "python", "-o", str(tmp_path / "t.py"))
    assert str(tmp_path / "t.py") in refused(*words).err
    assert (tmp_path / "t.py").read_text() == "mine"


def test_a_dry_run_shows_the_difference_and_writes_nothing(kmark, refused, tuned, tmp_path):
    to = tmp_path / "t.py"
    words = ("tune", "apply", tuned(), "--as", "python", "--to", str(to), "--dry-run")
    ended = kmark(*words)
    assert ended.code == 0
    assert ended.out.startswith("--- /dev/null")
    assert "+CONFIGS = {" in ended.out
    assert "dry run: 1 file would change" in ended.err
    refused(*words, "--write")
    assert not to.exists()


def test_a_dry_run_compares_and_writes_nothing(kmark, tuned, fake_winner, tmp_path):
    to = tmp_path / "t.py"
    words = ("tune", "apply", tuned(fake_winner), "--as", "python", "--to", str(to), "--dry-run")
    ended = kmark(*words)
    assert ended.code == 0, ended
    assert "comparing 1 winner " in ended.err
    assert "2.000 × (2.000 to 2.000)" in ended.out
    shown = kmark(*words, "--no-compare")
    assert shown.code == 0
    assert "compar" not in shown.err
    assert "2.000 ×" not in shown.out
    slow = dataclasses.replace(fake_winner.tuned, config=FrozenDict({"time_us": 40.0}))
    tuned(dataclasses.replace(fake_winner, tuned=slow))
    assert kmark(*words).code == 1
    assert not to.exists()


def test_a_comparison_that_breaks_off_is_a_failure(
    kmark, tuned, fake_winner, tmp_path, monkeypatch
):
    def broken(*given, **more):
        raise KernelmarkError("no worker can be started")

    monkeypatch.setattr("kernelmark.tune.install.apply.recompare", broken)
    to = tmp_path / "t.py"
    words = ("tune", "apply", tuned(fake_winner), "--as", "python", "--to", str(to))
    ended = kmark(*words, "--dry-run")
    assert ended.code == 3, ended
    told = "no worker can be started"
    assert told in ended.err
    assert not to.exists()
    ended = kmark(*words)
    assert ended.code == 3, ended
    assert told in ended.err
    assert to.exists()


def test_applying_writes_backs_up_and_compares(kmark, tuned, fake_winner, tmp_path):
    to = tmp_path / "t.py"
    words = ("tune", "apply", tuned(), "--as", "python", "--to", str(to), "--no-compare")
    assert kmark(*words).code == 0
    before = to.read_text()
    other = dataclasses.replace(outcome("SSS_NN_1", m=16), kept=False)
    ended = kmark("tune", "apply", tuned(fake_winner, other), "--as", "python", "--to", str(to))
    assert ended.code == 0, ended
    assert [copy.read_text() for copy in tmp_path.glob("t.py.*.bak")] == [before]
    assert "1 winner found, 1 other lookup unchanged" in ended.err
    assert "SSS_NN_0: faster: 2.000 ×" in ended.err
    assert "2.000 × (2.000 to 2.000)" in ended.out
    again = kmark("tune", "apply", tuned(fake_winner, other), "--as", "python", "--to", str(to))
    assert (again.code, again.out) == (0, "")
    assert "already" in again.err


def test_another_kernel_than_was_tuned_is_a_regression(kmark, tuned, fake_winner, tmp_path):
    to = ("--as", "python", "--to", str(tmp_path / "t.py"))
    other = dataclasses.replace(fake_winner.tuned, kernel=KernelInfo(name="the_tuned_one"))
    folder = tuned(dataclasses.replace(fake_winner, tuned=other))
    ended = kmark("tune", "apply", folder, *to, "-q")
    assert ended.code == 1, ended
    (told,) = (line for line in ended.err.splitlines() if line.startswith("SSS_NN_0: "))
    assert tells(told, now="fake_ok", was="the_tuned_one")
    # And so is a gain that is gone.
    slow = dataclasses.replace(fake_winner.tuned, config=FrozenDict({"time_us": 40.0}))
    folder = tuned(dataclasses.replace(fake_winner, tuned=slow))
    assert kmark("tune", "apply", folder, *to).code == 1


def test_a_winner_that_does_not_run_has_no_time_and_a_reason(kmark, tuned, fake_winner, tmp_path):
    broken = dataclasses.replace(fake_winner.tuned, config=FrozenDict({"behaviour": "crash"}))
    folder = tuned(dataclasses.replace(fake_winner, tuned=broken))
    to = ("--as", "python", "--to", str(tmp_path / "t.py"))
    ended = kmark("tune", "apply", folder, *to, "-q")
    assert ended.code == 3, ended
    assert "nan" not in ended.out
    row = next(line for line in ended.out.splitlines() if line.startswith("SSS_NN_0"))
    assert row.split()[1:] == ["–", "–", "–", "2.000", "×"]
    told = [line for line in ended.err.splitlines() if line.startswith("SSS_NN_0: ")]
    assert len(told) == 1
    assert "not verified: it is crashed" in told[0]


def test_a_device_that_is_not_here_is_one_sentence(kmark, tuned, tmp_path):
    folder, to = tuned(outcome(device="hip:0", arch="gfx950")), tmp_path / "t.py"
    words = ("tune", "apply", folder, "--as", "python", "--to", str(to))
    ended = kmark(*words, "--dry-run")
    assert ended.code == 0
    assert "hip" in ended.err.splitlines()[-1]
    assert not to.exists()
    ended = kmark(*words)
    assert ended.code == 3
    assert "hip" in ended.err.splitlines()[-1]
    assert "comparing" not in ended.err
    to.unlink()
    ended = kmark(*words, "--no-compare")
    assert ended.code == 0
    assert "hip" not in ended.err.splitlines()[-1]
    assert to.exists()


def test_nothing_kept_is_nothing_to_do(refused, kmark, tuned, tmp_path):
    folder = tuned(outcome(kept=False))
    ended = kmark("tune", "apply", folder, "--as", "python", "--to", str(tmp_path / "t.py"))
    assert ended.code == 4
    ended = kmark("tune", "apply", tuned(), "--as", "rocblas", "--to", str(tmp_path / "t.csv"))
    assert ended.code == 4
    assert "SSS_NN_0" in ended.err
    (tmp_path / "empty").mkdir()
    words = ("export", str(tmp_path / "empty"), "--as", "python", "-o", "x")
    refused(*words, code=4, folder=str(tmp_path / "empty"))


def test_tensile_is_written_only_when_asked(kmark, tmp_path):
    table = [[[64, 64, 1, 64], [0, 0.5]]]
    head = [{"MinimumRequiredVersion": "4.33.0"}, "gfx950", "gfx950", [], {"DataType": 7}]
    for name, depth, better in (("base", 1, 0.5), ("inc", 2, 0.9)):
        table = [[[64, 64, 1, 64], [0, better]]]
        made = {"SolutionIndex": 0, "SolutionNameMin": name, "DepthU": depth}
        document = [*head, [made], [2, 3, 0, 1], table, None, None, "DeviceEfficiency", "Equality"]
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.yaml").write_text(yaml.safe_dump(document))
    before = (tmp_path / "base/x.yaml").read_text()
    words = ("tune", "apply", str(tmp_path / "inc"), "--as", "tensile", "--to")
    ended = kmark(*words, str(tmp_path / "base"))
    assert ended.code == 0
    assert "--write writes it" in ended.err
    assert "Not yet run on AMD hardware" in ended.err
    assert (tmp_path / "base/x.yaml").read_text() == before
    ended = kmark(*words, str(tmp_path / "base"), "--write")
    assert ended.code == 0
    assert "[O] [64, 64, 1, 64] efficiency 0.5 -> 0.9" in ended.err
    assert yaml.safe_load((tmp_path / "base/x.yaml").read_text())[5][0]["DepthU"] == 2
    assert len(list((tmp_path / "base").glob("x.yaml.*.bak"))) == 1


def test_help_names_every_format_and_what_was_not_tried(kmark):
    for words in (("tune", "apply"), ("export",)):
        shown = " ".join(kmark(*words, "--help").out.replace("│", " ").split())
        assert all(name.replace("_", "-") in shown for name in registry.names())
        assert "not yet run on AMD hardware" in shown
    cautious = [name for name in registry.names() if registry.get(name).caution]
    assert cautious == ["aiter", "aiter_tables", "hipblaslt", "rocblas", "tensile", "tunableop"]


@pytest.mark.parametrize(
    ("form", "file", "code"),
    [("aiter", "there", 2), ("hipblaslt", "missing", 2), ("hipblaslt", "there", 4)],
)
def test_confirm_checks_the_file_before_it_loads_winners(refused, tmp_path, form, file, code):
    (tmp_path / "there").touch()
    empty = tmp_path / "tuning"
    empty.mkdir()
    words = ("tune", "confirm", str(empty), "--as", form, "--to", str(tmp_path / file))
    refused(*words, code=code)


def test_confirm_ends_with_3_if_a_winner_is_not_in_the_file(kmark, tuned, tmp_path):
    (tmp_path / "empty.txt").touch()
    tuned_with_it = Choice(
        backend="hipblaslt",
        config=FrozenDict({"solution_index": 3}),
        median_s=1e-5,
        worst=0.1,
        kernel=KernelInfo(name="Cijk"),
    )
    folder = tuned(outcome(tuned=tuned_with_it))
    ended = kmark(
        "tune", "confirm", folder, "--as", "hipblaslt", "--to", str(tmp_path / "empty.txt")
    )
    assert ended.code == 3, ended
    assert f" {Proof.ABSENT.value} " in ended.out
