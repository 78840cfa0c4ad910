from __future__ import annotations

import pytest


@pytest.fixture
def labelled(kmark, fake_words):
    for label in ("one", "two"):
        assert kmark(*fake_words, "--limit", "1", "--label", label).code == 0


def test_a_run_is_deleted_with_its_results_and_pins(kmark, labelled):
    assert kmark("history", "--pin", "golden=one").code == 0
    ended = kmark("delete", "one", "--yes")
    assert ended.code == 0
    assert "1 result" in ended.err
    assert kmark("show", "one").code == 2
    assert kmark("history", "--pins").out == ""
    assert kmark("show", "two").code == 0


def test_nothing_is_deleted_unasked_or_if_one_run_is_unknown(kmark, labelled):
    assert kmark("delete", "one").code == 2
    assert kmark("delete", "one", "nosuch", "--yes").code == 2
    assert kmark("show", "one").code == 0


def test_latest_is_found_once(kmark, labelled):
    assert kmark("delete", "latest", "latest", "-y", "-q").code == 0
    assert kmark("show", "two").code == 2
    assert kmark("show", "one").code == 0
