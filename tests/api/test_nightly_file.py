"""nightly.toml: what is read, and what is refused with what was meant."""

from __future__ import annotations

import pytest

from kernelmark.api.nightly import expanded, load
from kernelmark.core.errors import UsageError
from kernelmark_dev.raising import raises

LEAST = 'name = "n"\n[[run]]\nsuites = ["demo"]\n'


@pytest.fixture
def file(tmp_path):
    def write(text: str):
        path = tmp_path / "nightly.toml"
        path.write_text(text)
        return load(path)

    return write


def test_little_is_needed(file, tmp_path):
    found = file(LEAST)
    assert found.run[0].suites == ("demo",)
    assert found.run[0].devices == ("cpu",)
    assert found.canaries.suite == "sentinels"
    assert not found.base.is_configured
    assert found.folder == tmp_path
    assert found.state_folder == tmp_path / "nightly.state"


def test_everything(file):
    found = file(
        LEAST.replace("[[run]]", 'store = "s.sqlite"\nsite = "out"\nresume_h = 3\n[[run]]')
        + 'backends = ["numpy"]\ndevices = ["cpu", "cuda:0"]\nprocesses = 3\n'
        '[[run]]\nsuites = ["smoke"]\n[setup]\ncommands = ["git pull"]\n'
        '[base]\npython = "/opt/a"\nset = { A = "1" }\n[judge]\nsuspect = 0.02\n'
        'fail_on = ["slower:3%"]\n[notify]\nwhen = "always"\nmail_to = ["a@x.org"]\n'
        'mail_from = "b@x.org"\n[keep]\nruns = 90\n'
    )
    assert [len(table.devices) for table in found.run] == [2, 1]
    assert found.resume_h == 3.0
    assert found.base.set == {"A": "1"}
    assert found.base.is_configured


@pytest.mark.parametrize(
    ("text", "fields", "hint"),
    [
        ("name = ", {}, ""),
        ('name = "n"', {"key": "run"}, ""),
        ('[[run]]\nsuites = ["demo"]', {"key": "name"}, ""),
        (LEAST + "backend = ['numpy']", {"key": "run.backend"}, "backends?"),
        (LEAST + "[judge]\nnight = 3", {"key": "judge.night"}, "nights?"),
        (LEAST + "[jugde]\nnights = 3", {"key": "jugde"}, "judge?"),
        (LEAST + "[judge]\nnights = 'x'", {"key": "judge.nights", "given": "'x'"}, "3"),
        (LEAST + "[judge]\nnights = true", {"given": "True"}, "3"),
        (LEAST + "timing = 3", {"key": "run.timing", "given": "3"}, '"text"'),
        (LEAST + "[judge]\nnights = 0", {"key": "judge.nights"}, ""),
        (LEAST + "[notify]\nwhen = 'now'", {"key": "notify.when"}, "alarm, change"),
        (LEAST + "[notify]\nmail_to = ['a']", {"key": "notify.mail_from"}, ""),
        (LEAST + "[base]\nbuild = 'make'", {"key": "base.repo"}, "base.build"),
        (LEAST + "[base]\nset = { A = 1 }", {"key": "base.set"}, ""),
        (LEAST + "[keep]\nruns = -1", {"key": "keep.runs", "given": -1}, ""),
        (LEAST + "[judge]\nfail_on = ['slowest']", {"name": "slowest"}, "slower"),
        ("run = []\nname = 'n'", {"key": "[[run]]"}, ""),
        ("run = 3\nname = 'n'", {"key": "run", "given": "3"}, ""),
        ("run = [3]\nname = 'n'", {"key": "run"}, ""),
        ('name = "a.json"\n[[run]]\nsuites = ["demo"]', {"name": "a.json"}, ""),
    ],
)
def test_what_is_refused(file, text, fields, hint):
    with raises(UsageError, **fields) as caught:
        file(text)
    assert hint in (caught.value.hint or "")


def test_secrets_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("HOOK", "https://x")
    assert expanded("$HOOK") == expanded("${HOOK}") == expanded("https://x") == "https://x"
    with raises(UsageError, name="NOT_THERE"):
        expanded("$NOT_THERE")
