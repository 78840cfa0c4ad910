"""benchmarks/iree_spaces.py without the compiler: what it counts, and what it goes on from."""

import json
import sys

import pytest

from kernelmark import ops
from kernelmark.core.errors import CompileError

KEYS = [
    ("gemm-some", "gemm m=64 n=64 k=64 dtype=f16"),
    ("gemm-some", "gemm m=64 n=64 k=64 dtype=f8e4m3"),
    ("conv-some", "conv n=2 c=8 h=9 w=9 k=16 r=3 s=3 dtype=f16"),
    ("attention-some", "attention heads=2 seq=64 dim=64 dtype=f16"),
]


@pytest.fixture
def script(benchmark_script, monkeypatch):
    module = benchmark_script("iree_spaces.py")
    problems = [(suite, ops.parse(key)) for suite, key in KEYS]
    monkeypatch.setattr(module, "problems", lambda: iter(problems))
    monkeypatch.setattr(module.evidence, "libraries", lambda *names: {})
    return module


def run(script, monkeypatch, compile_one, *words):
    monkeypatch.setattr(script, "run_compiler", compile_one)
    monkeypatch.setattr(sys, "argv", ["iree_spaces.py", "--arch", "gfx942", *words])
    return script.main()


def applied(source, flags, spec, *, dumps):
    """Write what the compiler would: a dispatch with the configs of the spec."""
    infos = [line.partition("constant ")[2] for line in spec.splitlines() if "constant" in line]
    text = " ".join(infos).replace(" -> !transform.any_param", "")
    body = f"  func.func @a() {{ {text} decomposition_config = {infos[-1]}"
    (dumps / "configured_a.mlir").write_text(body.replace(" -> !transform.any_param", ""))
    return b"module"


def test_counts_plans_and_candidates_and_goes_on(script, monkeypatch, tmp_path):
    state, result = tmp_path / "state.jsonl", tmp_path / "result.json"
    words = ("--state", str(state), "-o", str(result))
    # One GEMM of two has no instruction on gfx942.
    assert run(script, monkeypatch, applied, *words) == 1
    figures = json.loads(result.read_text())["figures"]
    planned = {(row["suite"], row["planned"], row["problems"]) for row in figures["planned"]}
    assert planned == {("gemm-some", 1, 2), ("conv-some", 1, 1), ("attention-some", 1, 1)}
    assert {row["op"]: row["ok"] for row in figures["compiled"]} == dict.fromkeys(
        ("gemm", "conv", "attention"), 2
    )
    bars = {bar["asked"]: bar["holds"] for bar in json.loads(result.read_text())["bars"]}
    assert list(bars.values()) == [False, True]

    def again(*words, **more):
        raise AssertionError("compiled twice")

    assert run(script, monkeypatch, again, *words) == 1


def test_a_config_that_no_dispatch_has_does_not_count(script, monkeypatch, tmp_path):
    def ignored(source, flags, spec, *, dumps):
        (dumps / "configured_a.mlir").write_text("  func.func @a() {")
        return b"module"

    def refused(*words, **more):
        raise CompileError("iree-compile: no")

    for compile_one, status in ((ignored, "not_applied"), (refused, "compile_error")):
        result = tmp_path / f"{status}.json"
        run(script, monkeypatch, compile_one, "-o", str(result))
        failed = json.loads(result.read_text())["figures"]["failed"]
        assert {row["status"] for row in failed} == {status}
        assert len(failed) == 6
