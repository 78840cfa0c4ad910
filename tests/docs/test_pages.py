"""Links lead somewhere, and pages keep to the house's style."""

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SCRIPT = ROOT / "scripts" / "write-docs"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links(page):
    """The links of a page; code such as `kernel[grid](...)` has none."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return LINK.findall(re.sub(r"`[^`]*`", "", text))


def slug(heading):
    """The anchor that a heading gets."""
    plain = re.sub(r"[`*_]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")


def anchors(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return {slug(line) for line in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {link}"
        assert not path.is_absolute() or path.is_relative_to(ROOT), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(path), f"{page.name}: {link}"


def test_every_page_can_be_reached_from_the_readme():
    seen = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        todo += [
            (page.parent / link.partition("#")[0]).resolve()
            for link in links(page)
            if ":" not in link
        ]
    assert {page for page in PAGES if page.parent.name == "docs"} <= seen


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_hold_nothing_of_one_machine(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users)/", text)
    assert "—" not in text
    assert not re.search("[\U0001f300-\U0001faff]", text)


def a_result(**changes):
    return {
        "title": "Something",
        "command": "python benchmarks/something.py",
        "date": "2030-01-02",
        "machine": {"python": "3.11", "cpu": "aarch64", "device": "A CPU", "arch": "aarch64"},
        "libraries": {"numpy": "2.0"},
        "bars": [
            {"asked": "a < b", "measured": "a | b", "holds": True},
            {"asked": "c < d", "measured": "more", "holds": False},
        ],
        **changes,
    }


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def test_evidence_tells_what_holds_and_what_does_not(script, tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(a_result()))
    page = script["evidence"](tmp_path)
    assert "1 of 2 bars hold." in page
    assert "| a < b | a \\| b | yes |" in page
    assert "| c < d | more | **no** |" in page
    assert "on A CPU, aarch64, Python 3.11, numpy 2.0" in page
    assert "](../benchmarks/results/one.json)" in page


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", ""),
        ("[]", "title"),
        (json.dumps({k: v for k, v in a_result().items() if k != "bars"}), "bars"),
        (json.dumps(a_result(bars=[{"asked": "x"}])), "'asked': 'x'"),
    ],
)
def test_a_file_of_another_form_is_refused(script, tmp_path, text, wrong):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(SystemExit, match=rf"bad\.json .*{wrong}"):
        script["evidence"](tmp_path)


def test_every_benchmark_writes_evidence():
    """A result that no page shows is no evidence."""
    for path in (ROOT / "benchmarks").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if '/ "results"' in text:
            assert "evidence.write(" in text or "evidence.conclude(" in text, path.name
