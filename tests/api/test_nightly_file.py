"""nightly.toml: what is read, and what is refused with what was meant."""

from __future__ import annotations

import pytest

from kernelmark.api.nightly_file import expanded, load
from kernelmark.core.errors import UsageError
from kernelmark_dev.raising import raises_code

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
    assert not found.base.given
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
    assert found.base.given


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("name = ", "not valid TOML", ""),
        ('name = "n"', "run is missing", ""),
        ('[[run]]\nsuites = ["demo"]', "name is missing", ""),
        (LEAST + "backend = ['numpy']", "unknown key 'backend'", "did you mean backends?"),
        (LEAST + "[judge]\nnight = 3", "unknown key 'night'", "did you mean nights?"),
        (LEAST + "[jugde]\nnights = 3", "unknown key 'jugde'", "did you mean judge?"),
        (LEAST + "[judge]\nnights = 'x'", "nights = 'x' is of the wrong type", "3"),
        (LEAST + "[judge]\nnights = true", "is of the wrong type", "3"),
        (LEAST + "timing = 3", "timing = 3 is of the wrong type", '"text"'),
        (LEAST + "[judge]\nnights = 0", "must be positive", ""),
        (LEAST + "[judge]\nfail_on = ['slowest']", "unknown verdict", ""),
        (LEAST + "[notify]\nwhen = 'now'", "notify.when", "alarm, change, always"),
        (LEAST + "[notify]\nmail_to = ['a@x.org']", "mail_from is missing", ""),
        (LEAST + "[base]\nbuild = 'make'", "base.build is for a repository", ""),
        (LEAST + "[base]\nset = { A = 1 }", "is of the wrong type", ""),
        (LEAST + "[keep]\nruns = -1", "must not be negative", ""),
        ("run = []\nname = 'n'", "has no [[run]]", ""),
        ("run = 3\nname = 'n'", "is of the wrong type", ""),
        ("run = [3]\nname = 'n'", "is not a table", ""),
        ('name = "a.json"\n[[run]]\nsuites = ["demo"]', "would be taken for a file", ""),
    ],
)
def test_what_is_refused(file, text, told, hint):
    with pytest.raises(UsageError) as caught:
        file(text)
    assert told in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_missing_file(tmp_path):
    with raises_code(UsageError, "file-missing", file=str(tmp_path / "none.toml")):
        load(tmp_path / "none.toml")


def test_secrets_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("HOOK", "https://x")
    assert expanded("$HOOK") == expanded("${HOOK}") == expanded("https://x") == "https://x"
    with raises_code(UsageError, "variable-unset", name="NOT_THERE"):
        expanded("$NOT_THERE")
