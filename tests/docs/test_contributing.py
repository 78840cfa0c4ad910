"""CONTRIBUTING.md says of the layers what the linter holds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_layers_are_those_of_the_linter():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    told = re.search(r"<!-- layers: .*? -->\n```text\n(.*?)```", page, flags=re.DOTALL)
    assert told
    assert told[1].splitlines() == [layer.replace("kernelmark.", "") for layer in layers]
