"""docs/suites.md says what the code does."""

import re
from pathlib import Path

import pytest

from kernelmark.workloads import suites

PAGE = Path(__file__).parents[2] / "docs" / "suites.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_examples_load(number, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(BLOCKS[number], encoding="utf-8")
    assert suites.load(str(path)).problems


def test_there_are_examples_of_each_kind():
    assert len(BLOCKS) == 3


def test_every_suite_named_in_the_text_exists():
    named = set(re.findall(r"`((?:gemm|attention|conv|batched-gemm)-[a-z0-9-]+)`", TEXT))
    assert named <= set(suites.names())
