"""The documentation site builds without a warning, and fetches nothing."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def named(nav):
    """The pages in the navigation."""
    for entry in nav:
        for target in entry.values():
            yield from named(target) if isinstance(target, list) else [target]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "docs"
    subprocess.run([sys.executable, str(ROOT / "scripts" / "site-docs"), str(folder)], check=True)
    return folder


def test_the_navigation_has_every_page(sources):
    pages = {str(path.relative_to(sources)) for path in sources.rglob("*.md")}
    assert sorted(named(CONFIG["nav"])) == sorted(pages)


def test_links_stay_inside_the_site(sources):
    for page in sources.rglob("*.md"):
        code = r"^```.*?^```$|`[^`\n]+`(?!\])"
        text = re.sub(code, "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for link in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", text):
            assert re.match(r"[a-z]+:", link) or (page.parent / link).exists(), f"{page}: {link}"


def test_files_outside_the_pages_are_copied(sources):
    """The site works wherever it is, also before there is a public repository."""
    assert (sources / "files" / "benchmarks" / "results" / "gpu_readme.txt").exists()
    assert (sources / "files" / "examples" / "gemm_numpy.py").exists()


def test_either_builder_can_build_it():
    assert "plugins" not in CONFIG
    assert CONFIG["theme"]["font"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "words"), [("material", "mkdocs build --strict"), ("zensical", "zensical build")]
)
def test_it_builds_without_a_warning(sources, tmp_path, package, words):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    shutil.copytree(sources, tmp_path / "build" / "site-docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", *words.split()],
        cwd=tmp_path, env={"PATH": "", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert (tmp_path / "build" / "site" / "index.html").exists()
