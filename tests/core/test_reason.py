"""Reasons: codes with fields, sentences made of them in one place, and nobody who reads those."""

from __future__ import annotations

import ast
import copy
import pickle
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import kernelmark
from kernelmark.core import codec
from kernelmark.core.errors import UsageError
from kernelmark.core.files import json_text
from kernelmark.core.messages import SETTINGS, TEMPLATES
from kernelmark.core.problem import parse_key
from kernelmark.core.reason import (
    BRIEF,
    NO_REASON,
    OPTIONS,
    PYTHON,
    TEXT,
    Reason,
    format_reason,
    names_settings,
    read_reason,
    reason_document,
)
from kernelmark.core.result import Case, Check, Result, Status
from kernelmark.core.verdict import Verdict, VerdictStatus
from kernelmark.stores import engine

WIDE = Reason("interval-above-target", width=0.056, target=0.05)
SOURCE = Path(kernelmark.__file__).parent


def failed(status, error="", check=None):
    case = Case(problem=parse_key("gemm m=1 n=1 k=1"), backend="a")
    return Result(case=case, device="cpu", status=status, error=error, check=check)


def test_a_reason_is_its_sentence():
    assert str(WIDE) == WIDE
    assert f"{WIDE}" == format_reason(WIDE)
    assert (WIDE.code, WIDE.fields) == ("interval-above-target", {"width": 0.056, "target": 0.05})
    assert Reason.of(WIDE) is WIDE
    assert Reason.of("so").code == TEXT
    assert not NO_REASON


def test_reasons_are_equal_by_code_and_fields():
    assert Reason("interval-above-target", width=0.0561, target=0.05) != WIDE  # of one sentence
    assert Reason.of(str(WIDE)) != WIDE
    assert Reason("interval-above-target", width=0.056, target=0.05) == WIDE


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_a_copy_has_code_and_fields(copied):
    again = copied(WIDE)
    assert (again, again.code, again.fields) == (WIDE, WIDE.code, WIDE.fields)


def test_settings_are_named_as_the_reader_types_them():
    assert "--max-s" in format_reason(WIDE, OPTIONS)
    assert "Timing.max_s" in format_reason(WIDE, PYTHON)
    assert "Timing.max_s" in format_reason(Reason("worst-of", cause=WIDE, count=2), PYTHON)
    assert names_settings(WIDE)
    assert not names_settings(Reason("late-write"))


@pytest.mark.parametrize("target", [0.0001, 0.00034, 1e-6])
def test_a_small_target_is_not_rounded_to_zero(target):
    text = str(Reason("interval-above-target", width=3 * target, target=target))
    shown = [float(number) for number in re.findall(r"±([0-9.e-]+) %", text)]
    assert shown == pytest.approx([300 * target, 100 * target], rel=0.05)


@pytest.mark.parametrize(("hint", "nested"), [("install x", False), ("install x (libx.so)", True)])
def test_a_hint_with_brackets_is_not_put_in_brackets(hint, nested):
    text = str(Reason("hinted", cause=Reason("library-missing", library="y", vendor=""), hint=hint))
    assert hint in text
    assert (f"({hint})" in text) is not nested


def test_a_cause_is_found_inside():
    inner = Reason("late-write")
    outer = Reason(
        "process-failed", process=2, processes=3, cause=Reason("hinted", cause=inner, hint="x")
    )
    assert outer.root is inner


def test_in_brief_findings_of_one_kind_are_told_once():
    def wrong(index):
        return Reason("not-written", set=index, count=1, elements=9, tensor="d")

    other = Reason("guards-overwritten", set=3, tensor="d")
    many = Reason("check-failed", findings=(wrong(0), wrong(1), other))
    assert str(many) == f"{wrong(0)}; {wrong(1)}; {other}"
    brief = format_reason(Reason("process-failed", process=1, processes=3, cause=many), BRIEF)
    assert str(wrong(0)) in brief
    assert str(wrong(1)) not in brief
    assert str(other) in brief


def test_failed_checks_that_are_not_shown_are_counted_together():
    """In brief, a finding of a kind that is shown already counts with those of `more`."""
    found = tuple(
        Reason("not-written", set=index, count=1, elements=9, tensor="d") for index in range(3)
    )
    many = Reason("check-failed", findings=found, more=4)
    assert [part.split()[:2] for part in str(many).split("; ")[3:]] == [["and", "4"]]
    assert format_reason(many, BRIEF).split("; ")[0] == found[0]
    assert format_reason(many, BRIEF).split("; ")[1].split()[:2] == ["and", "6"]


def test_in_brief_a_lost_worker_is_one_line():
    lost = Reason("worker-signalled", signal=6, name="Aborted").having(
        phase="warmup", output="x > 0\nstack", said="x > 0", frame="own.py line 10 in launch"
    )
    assert str(lost).splitlines() == [
        "killed by signal 6 (Aborted) (in phase warmup)",
        "x > 0",
        "stack",
    ]
    assert format_reason(lost, BRIEF) == (
        "killed by signal 6 (Aborted) (in phase warmup): x > 0, at own.py line 10 in launch"
    )


def test_in_brief_the_text_of_others_is_cut():
    assert format_reason("bad tile\nat x", BRIEF) == "bad tile …"
    assert len(format_reason("x" * 999, BRIEF)) == 200


def test_why_is_the_error_or_what_the_check_found():
    wrong = Check(positions=1, worst=2.0, max_abs=1.0, unwritten=0, guards_intact=True)
    assert failed(Status.WRONG, check=wrong).why.code == "output-wrong"
    assert failed(Status.WRONG, "so", check=wrong).why == "so"
    assert failed(Status.OK).why == ""


@pytest.mark.parametrize(
    "value",
    [
        failed(Status.CRASHED, Reason("worker-exited", exit_code=3, output="a\nb")),
        Verdict(
            series="s",
            base="a",
            head="b",
            status=VerdictStatus.SAME,
            reason=Reason("open", rounds=2, low=0.0, high=float("inf")),
        ),
    ],
)
def test_documents_have_sentence_code_and_fields(value):
    again = codec.loads(codec.dumps(value), type(value))
    assert again == value
    (name, coded), *rest = codec.to_document(value)["reasons"].items()
    assert not rest
    assert coded["code"] == getattr(again, name).code == getattr(value, name).code


def test_what_has_no_code_is_a_plain_sentence_as_in_old_files():
    document = codec.to_document(failed(Status.CRASHED, "signal 11"))
    assert document["error"] == "signal 11"
    assert "reasons" not in document
    assert codec.from_document(document, Result).error.code == TEXT


@pytest.mark.parametrize(
    "document",
    [
        {"code": "of-a-newer-version", "fields": {"a": 1}},
        {"code": "interval-above-target", "fields": {"width": "wide"}},
        {"code": "interval-above-target", "fields": None},
        {"code": "interval-above-target", "fields": 1},
        {"code": "samples-spread", "fields": {"spread": 10**400}},
    ],
)
def test_what_this_version_cannot_format_keeps_its_sentence(document):
    assert read_reason(document, "as it was") == "as it was"
    assert read_reason(document, "as it was").code == document["code"]
    assert read_reason(document)  # some text there is


def test_reports_carry_codes_beside_sentences():
    (row,) = codec.parse(json_text([{"reason": WIDE, "all": (WIDE, "so"), "other": "x"}]))
    assert row["reason"] == row["all"][0] == str(WIDE)
    assert row["reasons"] == {"reason": reason_document(WIDE), "all": [reason_document(WIDE), None]}


def test_errors_carry_reasons():
    error = pickle.loads(pickle.dumps(UsageError(WIDE, hint="so")))
    assert (error.message, error.message.code, error.hint) == (WIDE, WIDE.code, "so")
    assert UsageError("plain").message.code == TEXT


# The table of sentences


@pytest.fixture(scope="module")
def sources() -> list[tuple[Path, list[ast.AST]]]:
    """Every file of kernelmark, and the nodes of its syntax tree."""
    return [
        (path, list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
        for path in sorted(SOURCE.rglob("*.py"))
    ]


def _names(template: str) -> Iterator[tuple[str, bool]]:
    """Fields of a template, and whether each must be given."""
    for _, name, spec, _ in string.Formatter().parse(template):
        if name is None:
            continue
        kind, _, word = (spec or "").partition(" ")
        if name.startswith("@"):
            assert name == "@store" or name[1:] in SETTINGS
            continue
        yield name, kind not in ("if", "phase")
        yield from ((inner, must and kind != "if") for inner, must in _names(word))


def test_every_code_has_a_template_and_every_template_its_fields(sources):
    used = set()
    for path, nodes in sources:
        for call in nodes:
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                continue
            if call.func.id != "Reason" or not isinstance(call.args[0], ast.Constant):
                continue
            code = call.args[0].value
            assert code in TEMPLATES, f"{path}:{call.lineno}: {code}"
            used.add(code)
            given = {word.arg for word in call.keywords}
            needed = {name for name, must in _names(TEMPLATES[code]) if must}
            assert None in given or needed <= given, f"{path}:{call.lineno}: {code}"
    # Those whose code is in a variable.
    used |= {"fails-in-step", "fails-on"}
    used |= {code for _, code, _ in (*engine.SQLITE, *engine.POSTGRES)}
    assert TEMPLATES.keys() == used


def _alternatives(node: ast.AST) -> Iterator[ast.AST]:
    """Values that an expression may have: those of both branches of a conditional one."""
    if isinstance(node, ast.IfExp):
        yield from _alternatives(node.body)
        yield from _alternatives(node.orelse)
    else:
        yield node


def test_errors_are_made_of_reasons(sources):
    """An error in plain text has no code, so that a program could only read its sentence."""
    errors = {"KernelmarkError"}
    bases = {
        node.name: {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}
        for _, nodes in sources
        for node in nodes
        if isinstance(node, ast.ClassDef)
    }
    while more := {name for name, of in bases.items() if of & errors} - errors:
        errors |= more
    plain = [
        f"{path}:{call.lineno}"
        for path, nodes in sources
        for call in nodes
        if isinstance(call, ast.Call)
        and getattr(call.func, "id", getattr(call.func, "attr", "")) in errors
        and call.args
        and any(
            isinstance(one, ast.JoinedStr | ast.Constant | ast.BinOp)
            for one in _alternatives(call.args[0])
        )
    ]
    assert plain == []


# Nobody decides by a sentence

_SENTENCES = {
    "message",
    "error",
    "warnings",
    "warning",
    "reason",
    "detail",
    "note",
    "hint",
    "sentence",
}
_SEARCHES = {"startswith", "endswith", "partition", "rpartition", "find", "index", "count"}
_SEARCHES |= {"removeprefix", "removesuffix", "split", "replace"}
_PATTERNS = {"search", "match", "fullmatch", "findall", "finditer", "sub", "split"}
_EXCEPTIONS = {"error", "exc", "caught"}
# Text of others: compilers, libraries, parsers.
_FOREIGN = {
    "backends/torch/gpu.py": 1,  # torch has one exception type for everything
    "backends/base.py": 1,  # the same
    "runners/execute.py": 1,  # a compiler's log below its sentence
    "runners/worker.py": 1,  # the same
    "backends/iree/runtime.py": 1,  # the same
    "core/files.py": 1,  # a parser's "at end of document"
    "testing/ops.py": 1,  # that an error is one line
    "testing/importers.py": 1,  # that an error names its file
}


def _is_sentence(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _SENTENCES
    if isinstance(node, ast.Name):
        return node.id in _SENTENCES - {"error"}
    if isinstance(node, ast.Subscript):  # but for a field of a worker's message
        return not _is_text(node.slice) and _is_sentence(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        (first,) = node.args[:1] or [None]
        return node.func.id == "str" and isinstance(first, ast.Name) and first.id in _EXCEPTIONS
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("lower", "strip", "splitlines") and _is_sentence(node.func.value)
    return False


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""
    )


def _searches(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            return _is_sentence(sides[-1])
        return any(map(_is_sentence, sides)) and any(map(_is_text, sides))
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if node.func.attr in _SEARCHES and _is_sentence(node.func.value):
        return True
    return node.func.attr in _PATTERNS and any(map(_is_sentence, node.args))


def test_no_code_looks_into_a_sentence(sources):
    found: dict[str, list[int]] = {}
    for path, nodes in sources:
        lines = [node.lineno for node in nodes if _searches(node)]
        if lines:
            found[str(path.relative_to(SOURCE))] = lines
    for name, count in _FOREIGN.items():
        assert len(found.pop(name, [])) == count, name
    assert not found


def test_the_number_of_an_output_is_no_output_of_a_worker():
    fields = {"against": "base", "fraction": 0.5, "first": 3, "tolerance": 0.01}
    assert len(Reason("variant-diverges", output=1, **fields).splitlines()) == 1
