"""benchmarks/iree_suites.py without the compiler: what it goes on from, and what it counts."""

import json
import sys

import pytest

from kernelmark import ops

KEYS = [
    "gemm m=64 n=64 k=64 dtype=f16",
    "gemm m=64 n=64 k=64 dtype=f8e4m3",
    "conv n=1 c=8 h=8 w=8 k=8 r=3 s=3 dtype=f16",
    "attention heads=2 seq=64 dim=64 dtype=f16",
]
ERROR = "iree-compile: no such type on gfx942 (line 3 of the MLIR: tensor<{n}x64xf16>)"

MADE = {"date": "2026-01-02", "sources": "new", "seconds": 1}


@pytest.fixture
def script(benchmark_script, monkeypatch):
    module = benchmark_script("iree_suites.py")
    made = [
        module.Module(key=f"{number}", problems={key: ("some", ops.parse(key))})
        for number, key in enumerate(KEYS)
    ]
    monkeypatch.setattr(module, "modules", lambda info: made)
    monkeypatch.setattr(module.evidence, "libraries", lambda *names: {})
    return module


def outcome(problem):
    if "f8e4m3" in problem.key:
        return {"status": "compile_error", "reason": ERROR.format(n=7), **MADE}
    return {"status": "ok", **MADE}


def run(script, monkeypatch, *words):
    """The exit code and what was compiled."""
    asked = []

    def compiled(problem, info):
        asked.append(problem.key)
        return outcome(problem)

    monkeypatch.setattr(script, "compiled", compiled)
    monkeypatch.setattr(sys, "argv", ["iree_suites.py", *words])
    return script.main(), asked


def test_goes_on_where_it_was_interrupted(script, monkeypatch, tmp_path):
    state, result = tmp_path / "state.jsonl", tmp_path / "result.json"
    words = ("--state", str(state), "-o", str(result))
    code, first = run(script, monkeypatch, *words, "--part", "1/2")
    assert (code, len(first)) == (1, 2)  # not all problems were tried
    with state.open("a", encoding="utf-8") as file:
        file.write('{"key": "3", "sta')  # ended while it wrote
    code, rest = run(script, monkeypatch, *words)
    assert (code, len(rest)) == (0, 2)
    assert {*first, *rest} == {ops.parse(key).key for key in KEYS}
    assert run(script, monkeypatch, *words) == (0, [])
    figures = json.loads(result.read_text())["figures"]
    assert (figures["total"], figures["tried"]) == (4, 4)
    (found,) = figures["diagnostics"]
    assert (found["status"], found["count"], found["reason"]) == (
        *("compile_error", 1),
        ERROR.format(n=7),
    )


def test_reuses_the_outcomes_of_texts_that_have_not_changed(script, monkeypatch, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    run(script, monkeypatch, "-o", str(first))
    changed = script.modules(None)[2]
    changed.key = "changed"
    words = ("--reuse", str(first), "-o", str(second))
    assert run(script, monkeypatch, *words) == (0, [ops.parse(KEYS[2]).key])
    before, after = (json.loads(path.read_text())["figures"] for path in (first, second))
    assert after["by_op_and_dtype"] == before["by_op_and_dtype"]
    assert after["diagnostics"] == before["diagnostics"]
    (made,) = before["compilations"]
    assert (made["hashes"], made["texts"]) == ("0 1 2 3", 4)
    assert [(row["date"], row["hashes"]) for row in after["compilations"]] == [
        (made["date"], "0 1 3 changed")
    ]


def test_a_result_keeps_the_dates_of_reused_outcomes(script, monkeypatch, tmp_path):
    path = tmp_path / "result.json"
    run(script, monkeypatch, "-o", str(path))
    document = json.loads(path.read_text())
    document["figures"]["compilations"][0] |= {"date": "2020-01-01", "sources": "old"}
    path.write_text(json.dumps(document))
    script.modules(None)[0].key = "changed"
    run(script, monkeypatch, "--reuse", str(path), "-o", str(path))
    origins = json.loads(path.read_text())["figures"]["compilations"]
    assert [(row["date"], row["sources"], row["hashes"]) for row in origins] == [
        ("2020-01-01", "old", "1 2 3"),
        (MADE["date"], MADE["sources"], "changed"),
    ]


def test_a_refusal_of_our_own_fails_a_bar(script):
    row = {"op": "gemm", "dtype": "f16", "status": "ok", "reason": ""}
    good = script.bars_of([row], 1, "gfx942")
    assert all(holds for _, _, holds in good)
    refused = script.bars_of([row | {"status": "unsupported", "reason": "ours"}], 1, "gfx942")
    assert [holds for _, _, holds in refused] == [True, True, False, False]
