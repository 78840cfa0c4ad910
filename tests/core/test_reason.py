"""Reasons: sentences where they are raised, and codes with fields where a program decides."""

import ast
import copy
import math
import pickle
from pathlib import Path

import pytest

import kernelmark
from kernelmark.core import codec
from kernelmark.core.errors import UsageError, located
from kernelmark.core.files import json_text
from kernelmark.core.problem import parse_key
from kernelmark.core.reason import (
    CODES,
    NAME_SETTINGS,
    NO_REASON,
    TEXT,
    Reason,
    failed_checks,
    prefixed,
    read_reason,
    reason_document,
    shorten,
    suffixed,
)
from kernelmark.core.result import Case, Check, Result, Status
from kernelmark.core.verdict import Verdict, VerdictStatus

SOURCE = Path(kernelmark.__file__).parent
FULL = Reason("the disk is full", "store-disk-full", store="a.sqlite")
BAD = Reason("set 0: wrong", "values-wrong", set=0)
LATE = Reason("written late", "late-write")


def test_a_reason_is_its_sentence_with_a_code_and_fields():
    store = {"store": "a.sqlite"}
    assert (str(FULL), FULL.code, FULL.fields) == ("the disk is full", "store-disk-full", store)
    assert Reason.of(FULL) is FULL
    assert (Reason.of("so").code, Reason("so").fields) == (TEXT, {})
    assert not NO_REASON
    assert FULL == "the disk is full"
    assert Reason("the disk is full", "store-disk-full", store="b.sqlite") != FULL
    assert Reason("the disk is full") != FULL
    assert Reason("the disk is full", "store-disk-full", **store) == FULL
    assert copy.copy(FULL) == pickle.loads(pickle.dumps(FULL)) == FULL
    assert Reason("outer", "failed", cause=Reason("inner", "failed", cause=FULL)).root == FULL
    assert FULL.root is FULL


def test_text_is_added_before_the_sentence_and_after_its_first_line():
    log = Reason("failed\nline 1\nline 2", "raised", type="E")
    assert prefixed(log, "a.py: ") == Reason("a.py: failed\nline 1\nline 2", "raised", type="E")
    assert suffixed(log, "; see b") == Reason("failed; see b\nline 1\nline 2", "raised", type="E")
    assert prefixed("plain", "x: ").code == TEXT


def test_failed_checks_are_joined_and_counted():
    reason = failed_checks([BAD, LATE], more=3)
    assert (reason.code, reason.fields["findings"]) == ("check-failed", (BAD, LATE))
    assert BAD in reason
    assert LATE in reason
    assert "3" in reason
    assert failed_checks([]) is NO_REASON


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", ""), ("one", "one"), ("one\ntwo", "one …"), ("x" * 300, "x" * 199 + "…")],
)
def test_a_short_reason_is_one_line(text, expected):
    assert shorten(text) == expected


def test_why_is_the_error_or_what_the_check_found():
    case = Case(problem=parse_key("gemm m=1 n=1 k=1"), backend="a")
    figures = {"positions": 1, "worst": 9.0, "max_abs": 1.0, "unwritten": 0, "guards_intact": True}
    check = Check(**figures, detail=failed_checks([BAD]))
    failed = Result(case=case, device="cpu", status=Status.WRONG, check=check)
    raised = Result(case=case, device="cpu", status=Status.CRASHED, error=FULL)
    assert (failed.why, raised.why) == (check.detail, FULL)


@pytest.mark.parametrize(
    "reason",
    [FULL, failed_checks([BAD, LATE], 2), Reason("x", "open", low=math.inf, high=math.nan)],
)
def test_documents_keep_sentence_code_and_fields(reason):
    document = reason_document(reason)
    back = read_reason(document)
    assert (str(back), back.code) == (str(reason), reason.code)
    assert json_text(reason_document(back)) == json_text(document)


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("old", "", Reason("old")),  # before there were codes
        (None, "old", Reason("old")),
        # a code that this version does not have, and whose sentence was made of a template
        ({"code": "gone", "fields": {"n": 3}}, "n is 3", Reason("n is 3", "gone", n=3)),
        ({"code": "gone", "fields": {"n": 3}}, "", Reason("gone (n=3)", "gone", n=3)),
    ],
)
def test_reasons_of_other_versions_stay_readable(document, text, expected):
    assert read_reason(document, text) == expected


def test_a_stored_reason_has_its_sentence_next_to_code_and_fields():
    verdict = Verdict(
        series="s", base="a", head="b", status=VerdictStatus.SAME, reason=Reason("so", "within")
    )
    document = codec.plain(verdict)
    assert document["reason"] == "so"
    assert document["reasons"] == {"reason": {"code": "within", "fields": {}}}
    assert codec.read(document, Verdict, "verdict") == verdict


def test_an_error_is_prefixed_and_keeps_its_class_code_and_hint():
    with pytest.raises(UsageError) as raised, located("--axis"):
        raise UsageError(FULL, hint="free space")
    assert raised.value.message == prefixed(FULL, "--axis: ")
    assert raised.value.hint == "free space"


def test_codes_are_those_of_the_sources():
    named = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Reason":
                for code in node.args[1:2]:
                    if isinstance(code, ast.Constant):
                        assert code.value in CODES, f"{path}:{node.lineno}: {code.value}"
                        named.add(code.value)
            # others are arguments of functions, or in tables
            elif isinstance(node, ast.Constant) and path.name != "reason.py":
                named.add(node.value)
    assert CODES.keys() <= named
    assert len(CODES) <= 100
    assert CODES.keys() >= NAME_SETTINGS
