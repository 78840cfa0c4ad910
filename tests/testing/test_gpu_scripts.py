"""Scripts in benchmarks/gpu end like the CLI where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernelmark.devices import registry

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
SHARED = ("_gpu", "repeats", "scheduler")  # by scripts; nobody runs them
NEEDED = {
    "aa_worker": ("-d", "cuda:0", "--backend", "triton"),
    "tune": ("--folder", "tuned", "--part", "gemm"),
}
OF_TORCH = ("against_ncu", "throughput", "truth")


@pytest.mark.parametrize("name", sorted({p.stem for p in FOLDER.glob("*.py")} - set(SHARED)))
def test_without_a_gpu_a_script_ends_with_a_sentence_and_a_hint(name: str, tmp_path: Path) -> None:
    if registry.get("cuda").available() is None:
        pytest.skip("there is a GPU")
    for library in ("torch", "triton") if name in OF_TORCH else ():
        pytest.importorskip(library, reason=f"{library} is not installed")
    ended = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *NEEDED.get(name, ())],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    told = ended.stderr.splitlines()
    assert ended.returncode == 2, ended.stderr
    assert len(told) == 2, ended.stderr
    assert told[0].startswith("kmark: cuda: ")
    assert "cuda: cuda:" not in told[0]
    assert told[1].startswith("hint: 'kmark list devices' says which devices there are")
    assert ended.stdout == ""
    assert not list(tmp_path.iterdir())
