"""CONTRIBUTING.md shows the packages that exist, in the layers that the linter checks."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_picture_shows_every_package_once():
    house = runpy.run_path(str(ROOT / "scripts" / "house_docs.py"))
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "\n".join(house["picture"]()) in page
    packages = {path.parent.name for path in (ROOT / "src" / "kernelmark").glob("*/__init__.py")}
    drawn = re.findall(r"^│ (\w+) ", page, flags=re.MULTILINE)
    assert len(drawn) == len(set(drawn))
    assert packages - {"kernels"} == set(drawn)  # device code: sources, which no layer imports
