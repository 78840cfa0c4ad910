"""What to do next, for a refusal that does not say it itself."""

from __future__ import annotations

import pytest

from kernelmark.cli.hints import command_path


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["run", "-b", "numpy"], "kmark run"),
        (["--debug", "tune", "plan", "folder"], "kmark tune plan"),
        (["iree", "ab", "run"], "kmark iree ab"),
        (["iree", "nothing"], "kmark iree"),
        (["nothing"], "kmark"),
        ([], "kmark"),
    ],
)
def test_a_command_is_named_with_its_group(words: list[str], path: str) -> None:
    assert command_path(words) == path
