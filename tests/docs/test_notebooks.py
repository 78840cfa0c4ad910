"""The notebooks run, and hold the figures that they are for."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MOST_BYTES = 150_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_small_and_executed(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    assert not any(output["output_type"] == "error" for output in outputs)


def test_figures_are_in_them():
    kinds = {name for path in NOTEBOOKS for name in path.read_text().split('"') if "/" in name}
    assert {"image/svg+xml", "text/html"} <= kinds


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, monkeypatch):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("KERNELMARK_STORE", "replaced by the script")
    monkeypatch.setenv("COLUMNS", "100")
    book = runpy.run_path(str(ROOT / "scripts" / "run-notebooks"))["execute"](path)
    assert all(cell["execution_count"] for cell in book["cells"] if cell["cell_type"] == "code")
