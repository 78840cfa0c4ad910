"""The pages on comparing and the workflow beside it say what the code does."""

import re
from pathlib import Path

import yaml

from kernelmark.compare.rules import load_rule, names, preset
from kernelmark.core.verdict import VerdictStatus

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("compare", "rules")
TEXT = "\n".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)


def test_the_rule_file_loads(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(block, encoding="utf-8")
    assert load_rule(str(path)).settings["delta"] == 0.02


def test_every_verdict_and_rule_is_described():
    table = TEXT.split("## Verdicts")[1].split("\n# ")[0]
    assert all(status.value in table for status in VerdictStatus)
    assert all(f"`--rule {name}`" in TEXT for name in names())


def test_the_numbers_are_those_of_the_rules():
    golden, ratio, robust = (preset(name).settings for name in ("golden-tot", "ratio", "robust"))
    assert (golden["ignore_below_us"], golden["factor"], golden["slack_us"]) == (4.0, 1.005, 0.5)
    assert "tot > 1.005 × golden + 0.5 µs" in TEXT
    assert (ratio["warn"], ratio["fail"]) == (1.10, 1.15)
    assert robust == {"delta": 0.01, "q": 0.01}


def test_the_workflow_is_yaml_whose_commands_exist():
    file = DOCS / "examples" / "github-actions.yml"
    workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
    steps = workflow["jobs"]["measure"]["steps"]
    text = "\n".join(step.get("run", "") for step in steps)
    assert re.findall(r"^kmark (\w+)", text, flags=re.MULTILINE) == [
        *("run", "history", "history", "compare")
    ]
    assert "--fail-on slower:3%,broken,gone" in text
