"""What to do next, for a refusal that does not say it itself."""

from __future__ import annotations

import pytest

from kernelmark import backends
from kernelmark.cli.errors import command_path


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


@pytest.mark.parametrize(
    ("word", "close"), [("op", "did you mean ops?"), ("lgs", "did you mean logs?"), ("bogus", "")]
)
def test_a_word_is_suggested_only_if_it_is_close(refused, word: str, close: str) -> None:
    hint = refused("list", word).err.splitlines()[1]
    assert close in hint
    assert ("did you mean" in hint) == bool(close)


def test_a_backend_may_be_a_kernel_file_of_any_kind(refused) -> None:
    hint = refused("run", "-o", "gemm", "-b", "nonesuch", reason="unknown-name").err
    assert all(suffix in hint for suffix in backends.FILES)


@pytest.mark.parametrize(("command", "choice"), [("list", "backends"), ("plot", "roofline")])
def test_the_choices_of_a_missing_argument_are_in_the_hint(refused, command, choice) -> None:
    sentence, hint = refused(command).err.splitlines()
    assert sentence.endswith("'")
    assert choice in hint
