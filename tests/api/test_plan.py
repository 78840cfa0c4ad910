from __future__ import annotations

import sys

import pytest

from kernelmark import backends
from kernelmark.api.plan import plan, problems_of
from kernelmark.api.selection import Selection, format_axes, parse_config
from kernelmark.backends.base import Backend
from kernelmark.core.errors import NothingToDo, ProblemError, UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.timing import Timing
from kernelmark_dev.raising import raises, raises_code, tells

SMALL = ("m=8", "n=8", "k=8")


class Missing(Backend):
    """A backend whose library is not installed."""

    name = "missing"
    summary = "not there"
    device_kinds = ("cpu", "fake")

    def available(self):
        return "libmissing.so not found; install missing"

    def version(self):
        raise AssertionError("asked of an unavailable backend")

    def supports(self, problem, info):
        raise AssertionError("asked of an unavailable backend")

    def prepare(self, problem, config, device, sets):
        raise AssertionError("asked of an unavailable backend")


@pytest.fixture
def missing(monkeypatch):
    monkeypatch.setitem(backends.registry._loaded, "missing", Missing())
    names = [*backends.registry.names(), "missing"]
    monkeypatch.setattr(backends.registry, "names", lambda: names)


def made(**choice):
    return plan(
        Selection.parse(**{"ops": ("gemm",), "axes": SMALL, "dtypes": ("f32",), **choice}), Timing()
    )


@pytest.fixture
def kernel(tmp_path):
    """Writes a kernel file with this space; its path."""

    def write(space, name="mine"):
        path = tmp_path / f"{name}.py"
        prepare = "def prepare(problem, config, sets):\n    return lambda index: None\n"
        path.write_text(f"op = 'gemm'\n{prepare}{space}\n")
        return str(path)

    return write


SPACES = ("space = {'block': [2, 3]}", "def space(problem):\n    return {'block': [2, 3]}")


@pytest.mark.parametrize("space", SPACES)
def test_a_config_whose_names_no_case_knows_is_refused(kernel, space):
    mine = kernel(space)
    with pytest.raises(UsageError) as refused:
        made(axes=("m=[8,16]", "n=8", "k=8"), backends=(mine,), config=["blok=3"])
    reason = refused.value.message.root
    assert (reason.code, reason.fields["name"]) == ("config-unknown-name", "blok")
    assert reason.fields["known"] == ("block",)
    for value in (3, 5):  # one that the space does not have is a result
        assert len(made(backends=(mine,), config=[f"block={value}"]).cases) == 1


UNKNOWN = (
    "def space(problem):\n    return 1 / 0",
    "def prepare(problem, config, sets):\n    return make(**config)\n",
)


@pytest.mark.parametrize("space", UNKNOWN)
def test_a_config_that_cannot_be_checked_here_is_left_to_the_workers(kernel, space):
    assert len(made(backends=(kernel(space),), config=["blok=3"]).cases) == 1


def test_a_config_that_one_backend_may_know_is_left_to_the_workers(kernel):
    choice = (kernel(SPACES[0]), kernel(UNKNOWN[1], "other"))
    assert len(made(backends=choice, config=["blok=3"]).cases) == 2


def test_cases_are_the_product_problem_by_problem():
    found = made(axes=("m=[8,16]", "n=8", "k=8"), backends=("numpy", "fake"))
    assert [(c.problem.dims["m"], c.backend) for c in found.cases] == [
        (8, "numpy"),
        (8, "fake"),
        (16, "numpy"),
        (16, "fake"),
    ]
    assert found.backends == ("numpy", "fake")
    assert len(found.problems) == 2


def test_without_backends_all_that_can_are_taken_and_fake_is_not():
    found = made()
    assert "numpy" in found.backends
    assert "fake" not in found.backends
    assert made(devices=("fake",)).backends == ("fake",)


def test_a_backend_that_can_do_none_is_left_out_with_a_note():
    found = made(dtypes=("bf16",), ops=("gemm",))
    assert "numpy" not in found.backends
    assert any("numpy is left out" in note and "bf16" in note for note in found.notes)


def test_problems_that_nobody_can_do_are_counted(monkeypatch):
    plan_module = sys.modules["kernelmark.api.plan"]
    supported = plan_module._supported_ops
    monkeypatch.setattr(
        plan_module,
        "_supported_ops",
        lambda *given: (supported(*given)[0] - {"conv"}, "no convolution"),
    )
    found = made(ops=(), axes=(), suites=("demo",))
    assert {case.problem.op for case in found.cases} == {"gemm", "batched_gemm", "attention"}
    assert any("left out: no backend that is available here can do any of conv" in note
               for note in found.notes)  # fmt: skip


def test_a_backend_that_can_do_some_gets_a_case_for_each():
    found = made(dtypes=("f32", "bf16"))
    assert [c.problem.dtypes["a"] for c in found.cases if c.backend == "numpy"] == ["f32", "bf16"]


def test_a_missing_backend_is_a_note_unless_it_is_named(missing):
    assert any("missing is left out: libmissing.so" in note for note in made().notes)
    cause = Reason.of("libmissing.so not found; install missing")
    with raises_code(UsageError, "backend-unavailable", backend="missing", cause=cause):
        made(backends=("missing",))


def test_nothing_left_is_told():
    with pytest.raises(NothingToDo):
        made(
            devices=("cpu",),
            dtypes=("f8e4m3fnuz",),
            ops=("batched_gemm",),
            axes=(*SMALL, "batch=2"),
        )


@pytest.mark.parametrize(
    ("choice", "error", "fields"),
    [
        ({"axes": (*SMALL, "q=3")}, ProblemError, {"what": "parameter"}),
        ({"ops": (), "suites": ("smoke",)}, UsageError, {}),
        ({"ops": (), "problems": ("gemm m=8",)}, UsageError, {}),
        ({"limit": 0}, UsageError, {"limit": 0}),
    ],
)
def test_illegal_requests_are_refused(choice, error, fields):
    with raises(error, **fields):
        made(**choice)


def test_suites_are_chosen_from_by_op_filter_and_limit():
    found = plan(
        Selection.parse(suites=("smoke",), ops=("gemm",), backends=("fake",), limit=2), Timing()
    )
    assert len(found.cases) == 2
    assert {c.problem.op for c in found.cases} == {"gemm"}
    assert found.suite == "smoke"
    with raises(NothingToDo, suites=("gemm-square",), ops=("conv",)):
        plan(Selection.parse(suites=("gemm-square",), ops=("conv",)), Timing())


def test_what_environment_variables_set_is_part_of_the_config(monkeypatch):
    backend = type(backends.registry.get("numpy"))
    monkeypatch.setattr(backend, "settings", lambda self, info: {"size": 3, "kind": "a"})
    (case,) = made(backends=("numpy",), config=["kind=b"]).cases
    assert case.config == {"size": 3, "kind": "b"}


def test_config_words():
    assert parse_config(["tile=64", "fast=yes", "x=0.5", "how=split"]) == {
        "tile": 64,
        "fast": True,
        "x": 0.5,
        "how": "split",
    }
    for word in ("tile", "=3", "tile="):
        with raises(UsageError, given=word):
            parse_config([word])
    with raises(UsageError, what="config", name="a"):
        parse_config(["a=1", "a=2"])


def test_format_axes():
    given = {"m": [1, 2], "n": 8, "causal": True, "ta": ("n", "t"), "k": "[1:16]", "alpha": 0.5}
    assert format_axes(given) == (
        "m=[1,2]",
        "n=8",
        "causal=yes",
        "ta=[n,t]",
        "k=[1:16]",
        "alpha=0.5",
    )
    with raises(UsageError, name="m"):
        format_axes({"m": object()})


def test_a_file_on_the_scripted_device_is_told_of_its_clock(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("op = 'gemm'\n\n\ndef prepare(problem, config, sets):\n    return print\n")

    def notes(device: str, backend: str) -> str:
        return " ".join(made(backends=(backend,), devices=(device,)).notes)

    assert f"it checks the answers of {path}, and its times are made up" in notes("fake", str(path))
    assert "made up" not in notes("cpu", str(path)) + notes("fake", "fake")


OWN_GEMM = "op = 'gemm'\ndef prepare(problem, config, sets): ...\n"


@pytest.mark.parametrize(
    ("asked", "values"),
    [
        ({"ops": ("conv",), "backends": ("./mine.py",)}, ("./mine.py", "conv", "gemm", "-o")),
        ({"ops": ("gemm",), "backends": ("./gone.py",)}, ("gone.py", "-b")),
        ({"ops": ("./mine.py",)}, ("./mine.py", "-b", "-o")),
        ({}, ("kmark run -s demo", "--dtype f32")),
        ({"suites": ("demo",), "axes": SMALL}, ("axes", "--filter")),
    ],
)
@pytest.mark.parametrize("made_by", [plan, problems_of])
def test_what_is_wrong_with_a_file_is_told_before_what_its_op_misses(
    tmp_path, monkeypatch, made_by, asked, values
):
    (tmp_path / "mine.py").write_text(OWN_GEMM)
    monkeypatch.chdir(tmp_path)
    with raises(UsageError, *values):
        made_by(Selection.parse(**asked), Timing())


OWN_OP = """
def inputs(rows=8, cols=8): return {"x": (rows, cols)}
def reference(x): return x
def prepare(problem, config, sets): ...
"""


def test_another_op_than_that_of_a_file_is_told_what_to_write(tmp_path, monkeypatch):
    (tmp_path / "soft.py").write_text(OWN_OP)
    monkeypatch.chdir(tmp_path)
    # Both with what gemm lacks and with all that it needs.
    for axes, dtypes in (((), ()), (("rows=4",), ()), (SMALL, ("f32",))):
        asked = Selection.parse(ops=("gemm",), backends=("./soft.py",), axes=axes, dtypes=dtypes)
        for made_by in (plan, problems_of):
            with pytest.raises(UsageError) as refused:
                made_by(asked, Timing())
            assert tells(refused.value.message, file="./soft.py", op="soft", asked="gemm")
            assert tells(refused.value.hint, op="soft", parameters=("rows", "cols"))


def test_a_file_of_another_environment_leaves_the_complaint_about_the_op(tmp_path, monkeypatch):
    (tmp_path / "there.py").write_text("import not_installed_here\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProblemError):
        problems_of(Selection.parse(ops=("gemm",), backends=("./there.py",)), Timing(), here=False)


def test_a_kernel_file_and_axes_need_no_op(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN_GEMM)
    monkeypatch.chdir(tmp_path)
    asked = Selection.parse(backends=("./mine.py",), axes=SMALL, dtypes=("f32",))
    assert [problem.op for problem in plan(asked, Timing()).problems] == ["gemm"]
