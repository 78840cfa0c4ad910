"""Scripts in benchmarks/gpu end like the CLI where there is no GPU."""

import runpy
import sys
from pathlib import Path

import pytest

from kernelmark.devices import registry

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
SHARED = ("_gpu", "repeats", "scheduler")  # by scripts; nobody runs them
NEEDED = {
    "aa_worker": ("-d", "cuda:0", "--backend", "triton"),
    "families": ("--folder", "tuned"),
    "moe": ("--folder", "tuned"),
    "several": ("--folder", "tuned", "--seed", "1"),
    "tune": ("--folder", "tuned", "--part", "gemm"),
}
OF_TORCH = ("against_ncu", "throughput")


@pytest.mark.parametrize("name", sorted({p.stem for p in FOLDER.glob("*.py")} - set(SHARED)))
def test_without_a_gpu_a_script_ends_with_a_sentence_and_a_hint(
    name, tmp_path, monkeypatch, capsys
):
    if registry.get("cuda").available() is None:
        pytest.skip("there is a GPU: this tests what scripts say without one")
    for library in ("torch", "triton") if name in OF_TORCH else ():
        pytest.importorskip(library, reason=f"needs {library}, which make test installs")
    script = str(FOLDER / f"{name}.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(FOLDER)  # as for a script that is run
    monkeypatch.setattr(sys, "argv", [script, *NEEDED.get(name, ())])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    out, err = capsys.readouterr()
    told = err.splitlines()
    assert ended.value.code == 2, err
    assert len(told) == 2, err
    assert told[0].startswith("kmark: cuda: ")
    assert "cuda: cuda:" not in told[0]
    assert told[1].startswith("hint: 'kmark list devices' says which devices there are")
    assert out == ""
    assert not list(tmp_path.iterdir())
