"""A repository's own configuration runs no program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernelmark.api.checkouts import WORKING_TREE, Checkouts, Recipe, Repository
from kernelmark.host.processes import run_git
from kernelmark.runners.capture import git_state

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
PROGRAMS = {
    "fsmonitor": ("core.fsmonitor", "{}"),
    "clean": ("filter.x.clean", "{}; cat"),
    "smudge": ("filter.x.smudge", "{}; cat"),
    "process": ("filter.x.process", "{}"),
    "odd filter": ("filter.x=y.smudge", "{}; cat"),
    "diff": ("diff.external", "{}"),
    "textconv": ("diff.x.textconv", "{}"),
    "merge": ("merge.x.driver", "{}"),
    "ssh": ("core.sshCommand", "{}"),
    "proxy": ("core.gitProxy", "{}"),
    "pager": ("core.pager", "{}"),
    "editor": ("core.editor", "{}"),
    "credentials": ("credential.helper", "!{}"),
    "signature": ("gpg.program", "{}"),
    "submodule": ("submodule.sub.update", "!{}"),
    "transport": ("protocol.ext.allow", "always"),
    "hooks": ("core.hooksPath", "{hooks}"),
}
HOOKS = ("post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman")


@pytest.fixture
def planted(tmp_path, monkeypatch, request):
    """A repository with one planted program, and the log that it writes when it is run."""
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "global"))
    repo, log, hooks = tmp_path / "repo", tmp_path / "log", tmp_path / "hooks"

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(repo), *AUTHOR, *words], check=True, capture_output=True)

    for folder in (repo, hooks):
        folder.mkdir()
    git("init", "-q")
    (repo / ".gitattributes").write_text("k.py filter=x diff=x merge=x\nk2.py filter=x=y\n")
    (repo / ".gitmodules").write_text('[submodule "sub"]\n path = sub\n url = ext::sh -c "id"\n')
    for number in (1, 2):
        for name in ("k.py", "k2.py"):
            (repo / name).write_text(f"n = {number}\n")
        git("add", ".")
        git("commit", "-qm", f"{number}")
    program = tmp_path / "program"
    for file in (program, *(hooks / name for name in HOOKS)):
        file.write_text(f"#!/bin/sh\necho run >> {log}\n")
        file.chmod(0o755)
    for name in request.param:
        key, value = PROGRAMS[name]
        git("config", key, value.replace("{}", str(program)).replace("{hooks}", str(hooks)))
    git("config", "log.showSignature", "true")
    (repo / "k.py").write_text("n = 2\n")  # its time changed: git compares contents
    log.unlink(missing_ok=True)
    return repo, log


@pytest.mark.parametrize(
    "planted", [(name,) for name in PROGRAMS], ids=list(PROGRAMS), indirect=True
)
def test_no_program_of_a_repository_runs(planted):
    repo, log = planted
    repository = Repository(repo)
    with Checkouts(repository, Recipe()) as checkouts:
        base = checkouts.side("base", "HEAD~1")
        head = checkouts.side("head", WORKING_TREE)
        checkouts.side("base", "HEAD")
    assert repository.changed is False
    assert repository.describe("HEAD").endswith("2")
    assert git_state(repo)[1] is False
    assert (Path(base.folder) / "k.py").read_text() == "n = 2\n"
    assert head.folder == str(repo)
    assert not log.exists()


@pytest.mark.parametrize("planted", [("smudge",)], indirect=True)
def test_the_users_own_configuration_applies(planted, tmp_path):
    repo, log = planted
    (tmp_path / "global").write_text('[filter "x"]\n\tsmudge = sed s/n/m/\n')
    with Checkouts(Repository(repo), Recipe()) as checkouts:
        base = checkouts.side("base", "HEAD~1")
    assert (Path(base.folder) / "k.py").read_text() == "m = 1\n"
    assert not log.exists()


def test_configuration_of_the_environment_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.name")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "me")
    done = run_git(tmp_path, "config", "user.name", timeout_s=600)
    assert done.stdout == b"me\n"
