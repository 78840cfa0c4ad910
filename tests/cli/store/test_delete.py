from __future__ import annotations

import io
import shutil
import sys

import pytest

from kernelmark.cli.main import main


@pytest.fixture(scope="module")
def labelled_once(tmp_path_factory, fake_words):
    """A store with two runs of one result each."""
    folder = tmp_path_factory.mktemp("labelled")
    words = (*fake_words, "--limit", "1", "--quiet", "--store", str(folder / "store.sqlite"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELMARK_CACHE", str(folder / "cache"))
        for label in ("one", "two"):
            with pytest.raises(SystemExit) as ended:
                main((*words, "--label", label))
            assert not ended.value.code
    return folder / "store.sqlite"


@pytest.fixture
def labelled(labelled_once, tmp_path):
    shutil.copy(labelled_once, tmp_path / "store.sqlite")


def test_a_run_is_deleted_with_its_results_and_pins(kmark, refused, labelled):
    assert kmark("history", "--pin", "golden=one").code == 0
    ended = kmark("delete", "one", "--yes")
    assert ended.code == 0
    assert "1 result" in ended.err
    refused("show", "one", reason="run-unknown", ref="one")
    assert kmark("history", "--pins").out == ""
    assert kmark("show", "two").code == 0


def test_nothing_is_deleted_unasked_or_if_one_run_is_unknown(kmark, refused, labelled):
    assert kmark("delete", "one").reason
    refused("delete", "one", "nosuch", "--yes", reason="run-unknown", ref="nosuch")
    assert kmark("show", "one").code == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "code"), [("n\n", 0), ("", 0), ("y\n", 2)])
def test_only_yes_deletes(kmark, labelled, monkeypatch, typed, code):
    """`code` is that of `show` afterwards; "" is the end of input, Ctrl-D."""
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert kmark("delete", "one").code == 0
    assert kmark("show", "one").code == code


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_question_is_folded(kmark, labelled, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("kernelmark.cli.output.fancy", lambda stream: True)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    asked, end, _ = kmark("delete", "one", "two").err.partition("[y/N]:")
    lines = f"{asked}{end}".splitlines()
    assert max(map(len, lines)) <= width - 2, "room for the answer"
    assert len(lines) == (1 if width == 80 else 2)
    assert kmark("show", "one").code == 0


def test_latest_is_found_once(kmark, refused, labelled):
    assert kmark("delete", "latest", "latest", "-y", "-q").code == 0
    refused("show", "two", reason="run-unknown", ref="two")
    assert kmark("show", "one").code == 0
