"""CONTRIBUTING.md shows the packages that exist, in the layers that the linter checks."""

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
    source = ROOT / "src" / "kernelmark"
    drawn = [name for name in drawn if not (source / f"{name}.py").is_file()]  # a module
    assert packages - {"kernels"} == set(drawn)  # device code: sources, which no layer imports


def test_the_path_of_a_case_names_files_that_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    path = re.search(r"<!-- path: .*? -->\n(.*?)<!-- end -->", page, flags=re.DOTALL)
    assert path
    files = re.findall(r"`([a-z_]+/[a-z_]+\.py)`", path[1])
    assert len(files) >= 10
    assert all((ROOT / "src" / "kernelmark" / file).is_file() for file in files)


def test_every_file_in_a_sentence_exists():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = re.findall(r"`([\w/]+/\w+\.(?:py|toml))`", page)
    assert len(files) >= 20
    folders = (ROOT, ROOT / "src" / "kernelmark")
    assert not [file for file in files if not any((folder / file).is_file() for folder in folders)]


def test_every_extension_point_has_its_folder():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [a-z][^|]+ \| `([a-z_/]+)/` \|", page, flags=re.MULTILINE)
    assert len(rows) >= 9
    assert all((ROOT / "src" / "kernelmark" / folder).is_dir() for folder in rows)
