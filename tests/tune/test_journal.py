"""A journal keeps what it was given, drops what was cut in half, and refuses what is foreign."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.errors import UsageError
from kernelmark.core.result import KernelInfo, Status
from kernelmark.devices.fake import FakeDevice
from kernelmark.tune.finals import nothing_found
from kernelmark.tune.journal import COMPILE, Finished, Journal, Trial, load_journal, read_journal
from kernelmark_dev.tuning import fake_plans, make_header

PLAN = fake_plans(1)[0]
INFO = FakeDevice().info

HEADER = make_header(starts=({"a": 1, "b": True, "c": "x", "d": 0.5},))


def trial(number=1, step="short", **changes):
    given = {"config": {"a": number}, "step": step, "status": Status.OK, "seconds": 1e-5}
    return Trial(**{**given, **changes})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trials" / "X.jsonl"


def filled(path, *trials):
    journal = Journal(path)
    journal.begin(HEADER)
    for one in trials:
        journal.record(one)
    journal.close()
    return path


def test_what_is_recorded_is_read_back(path):
    kernel = KernelInfo(name="k", resources={"registers": 5})
    wrong = trial(2, status=Status.WRONG, worst=math.inf, error="set 0: bad", kernel=kernel)
    bad = trial(3, step=COMPILE, status=Status.COMPILE_ERROR, seconds=None)
    filled(path, trial(1), wrong, bad)
    header, trials, outcome = read_journal(path)
    assert (header, outcome) == (HEADER, None)
    assert trials[1] == wrong
    again = Journal(path)
    assert again.find(config={"a": 2}, step="short") == wrong
    assert again.find(config={"a": 2}, step="full") is None
    assert again.find(config={"a": 3}, step="full") == bad  # of every step
    assert again.find(config={"a": 3}, step="full", backend="other") is None


@given(cut=st.integers(min_value=0, max_value=2000))
def test_a_cut_at_any_byte_loses_whole_lines_only(tmp_path_factory, cut):
    path = filled(tmp_path_factory.mktemp("j") / "X.jsonl", *(trial(i) for i in range(4)))
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    journal = Journal(path)
    whole = data[:cut].count(b"\n")
    assert len(journal.trials) + (journal.header is not None) == whole
    journal.begin(HEADER)
    journal.record(trial(9))
    journal.close()
    assert read_journal(path)[1][-1] == trial(9)
    assert len(read_journal(path)[1]) == max(0, whole - 1) + 1


def test_a_spoilt_last_line_is_dropped_and_one_before_it_refused(path):
    filled(path, trial(1), trial(2))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], b"\0\0\0\n"]))
    journal = Journal(path)
    assert len(journal.trials) == 1
    journal.record(trial(3))
    journal.close()
    assert len(read_journal(path)[1]) == 2
    path.write_bytes(b"".join([lines[0], b"{}\n", *lines[1:]]))
    with pytest.raises(UsageError, match="2"):
        Journal(path)


@pytest.mark.parametrize("spoilt", [b"garbage", b"", b"{", b"[" * 100_000, b"\xff"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_spoilt_line_is_told_with_its_number_in_the_file(path, number, spoilt):
    filled(path, trial(1), trial(2), trial(3))
    lines = path.read_bytes().splitlines()
    lines[number - 1] = spoilt
    path.write_bytes(b"\n".join([*lines, b""]))
    for reader in (read_journal, Journal):
        with pytest.raises(UsageError, match=str(number)) as refused:
            reader(path)
        assert str(path) in refused.value.message
        assert ("delete that line" in refused.value.hint) == (number > 1)


def test_without_a_spoilt_line_only_what_it_held_is_asked_again(path):
    filled(path, trial(1), trial(2), trial(3))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    journal = Journal(path)
    assert journal.begin(HEADER) == HEADER
    assert journal.find(config={"a": 2}, step="short") is None
    assert journal.find(config={"a": 3}, step="short") == trial(3)


@pytest.mark.parametrize("name", ["plan", "space", "version", "kernelmark_version", "arch"])
def test_another_plan_or_version_is_refused_with_a_hint(path, name):
    journal = Journal(filled(path))
    with pytest.raises(UsageError, match=name.split("_")[0]) as caught:
        journal.begin(dataclasses.replace(HEADER, **{name: "z"}))
    assert caught.value.hint
    other = dataclasses.replace(HEADER, pool=7, starts=(), device="fake:1")
    assert journal.begin(other) == HEADER  # the first stays


def test_two_runs_cannot_write_one_journal(path):
    first = Journal(filled(path))
    with pytest.raises(UsageError, match=str(path)):
        Journal(path)
    assert read_journal(path)[0] == HEADER
    first.close()
    Journal(path).close()


def test_reached_is_the_furthest_of_each_candidate(path):
    near = trial(1, step="near", problem="gemm m=2")
    journal = Journal(filled(path, trial(1), trial(2), trial(1, step="full", seconds=2e-5), near))
    found = journal.reached(["short", "full"])
    assert [(t.config["a"], t.step) for t in found] == [(1, "full"), (2, "short")]


@pytest.mark.parametrize(
    ("status", "of_the_machine"),
    [
        *((status, True) for status in (Status.TIMEOUT, Status.CRASHED, Status.OUT_OF_MEMORY)),
        *((Status.RUNTIME_ERROR, True), (Status.OK, False), (Status.WRONG, False)),
        *((status, False) for status in (Status.COMPILE_ERROR, Status.SKIPPED)),
        (Status.UNSUPPORTED, False),
    ],
)
def test_only_what_the_machine_may_have_done_is_asked_again(path, status, of_the_machine):
    filled(path, trial(1, status=status), trial(2))
    text = path.read_bytes()
    journal = Journal(path, retry_failed=True)
    assert (journal.find(config={"a": 1}, step="short") is None) is of_the_machine
    assert journal.find(config={"a": 2}, step="short") == trial(2)
    assert len(journal.reached(["short", "full"])) == 2 - of_the_machine
    journal.close()
    assert path.read_bytes() == text
    again = Journal(path)
    assert again.find(config={"a": 1}, step="short") is not None


def test_an_outcome_without_failures_is_not_asked_for_again(path):
    journal = Journal(filled(path, trial(1), trial(2, status=Status.WRONG)))
    finished = Finished(plan="p", outcome=nothing_found(PLAN, FakeDevice().info, journal, 2))
    journal.finish(finished)
    journal.close()
    journal = Journal(path, retry_failed=True)
    assert journal.finished is not None
    journal.record(trial(3, status=Status.TIMEOUT))
    journal.close()
    assert Journal(path, retry_failed=True).finished is None


def test_a_later_answer_takes_the_place_of_a_failure(path):
    filled(path, trial(1, status=Status.TIMEOUT, seconds=None))
    journal = Journal(path, retry_failed=True)
    journal.record(trial(1))
    journal.close()
    again = Journal(path)
    assert again.find(config={"a": 1}, step="short") == trial(1)
    assert again.reached(["short", "full"]) == [trial(1)]


FAILED = Trial(config={"a": 1}, step="short", status=Status.TIMEOUT)


def ended(path, *trials):
    """A journal of a search that came to nothing."""
    journal = Journal(path)
    journal.begin(HEADER)
    for one in trials:
        journal.record(one)
    journal.finish(Finished(plan="p", outcome=nothing_found(PLAN, INFO, journal, 1)))
    journal.close()


def test_a_search_that_went_on_after_its_outcome_has_not_ended(path):
    ended(path, FAILED)
    journal = Journal(path, retry_failed=True)
    assert journal.finished is None
    journal.record(trial(1))
    journal.close()
    assert Journal(path).finished.plan == ""
    assert load_journal(path)[2].plan == ""


def test_what_was_tried_again_is_not_tried_a_third_time(path):
    ended(path, FAILED, trial(1))
    assert Journal(path, retry_failed=True).finished.plan == "p"


@pytest.mark.parametrize("look", [Journal, load_journal])
def test_without_its_header_nobody_knows_what_the_answers_are_for(path, look):
    filled(path, trial(1))
    path.write_bytes(path.read_bytes().partition(b"\n")[2])
    with pytest.raises(UsageError) as caught:
        look(path)
    assert "from the start" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seconds":1e-05', '"seconds":0.0'),
        ('"seconds":1e-05', '"seconds":1e40'),
        ('"seconds":1e-05', '"seconds":-1'),
        ('"line":"trial"', '"line":["trial"]'),
    ],
)
def test_a_line_that_cannot_be_is_refused(path, old, new):
    filled(path, trial(1), trial(2))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError):
        read_journal(path)
