"""Commits in worktrees: what is checked out, built once, and kept apart from other commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernelmark.api.checkouts import BuildFailed, Checkouts, Recipe, Repository
from kernelmark.core.errors import UsageError
from kernelmark_dev.raising import raises


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    done = subprocess.run(
        ["git", "-C", str(folder), *named, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "repo"
    (folder / "inside").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for number in range(3):
        (folder / "inside" / "value").write_text(str(number))
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", f"Set {number}")
    return folder


def value(side) -> str:
    return (Path(side.folder) / "value").read_text()


def test_each_side_has_its_commit_in_the_folder_that_was_named(repo):
    with Checkouts(Repository(repo / "inside"), Recipe()) as checkouts:
        base, head = checkouts.side("base", "HEAD~2"), checkouts.side("head", "main")
        assert (value(base), value(head)) == ("0", "2")
        assert value(checkouts.side("head", "HEAD~1")) == "1", "moved"
        assert value(base) == "0"
    assert (repo / "inside" / "value").read_text() == "2", "the user's own tree is left alone"


def test_the_working_tree_is_taken_as_it_is(repo):
    (repo / "inside" / "value").write_text("changed")
    repository = Repository(repo / "inside")
    assert repository.changed
    with Checkouts(repository, Recipe()) as checkouts:
        assert value(checkouts.side("head", ".")) == "changed"


def test_a_commit_is_built_once_and_again_after_another(repo, tmp_path):
    told: list[str] = []
    log = tmp_path / "log"
    recipe = Recipe(build=f"cat inside/value >> {log}; echo $KMARK_SIDE >> {log}")
    for _ in range(2):
        with Checkouts(Repository(repo), recipe, told.append) as checkouts:
            checkouts.side("head", "main")
            checkouts.side("head", "HEAD")
    assert log.read_text() == "2head\n"
    with Checkouts(Repository(repo), recipe) as checkouts:
        checkouts.side("head", "HEAD~1")
        checkouts.side("head", "HEAD")
    assert log.read_text() == "2head\n1head\n2head\n"
    assert len(told) == 1


def test_what_git_ignores_stays_for_the_next_build(repo):
    (repo / ".gitignore").write_text("out\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "Ignore")
    recipe = Recipe(build="echo $KMARK_COMMIT >> out; touch stray")
    with Checkouts(Repository(repo), recipe) as checkouts:
        tree = Path(checkouts.side("head", "HEAD").folder)
        git(repo, "commit", "-q", "--allow-empty", "-m", "Nothing")
        checkouts.side("head", "HEAD")
        assert len((tree / "out").read_text().split()) == 2
        git(repo, "commit", "-q", "--allow-empty", "-m", "Nothing")
        checkouts._checked_out("head", Repository(repo).commit("HEAD"))
        assert not (tree / "stray").exists()


def test_a_build_that_fails_says_how_and_where(repo):
    recipe = Recipe(build="echo no compiler; exit 3")
    with (
        Checkouts(Repository(repo), recipe) as checkouts,
        raises(BuildFailed, exit_code=3) as caught,
    ):
        checkouts.side("head", "main")
    assert "no compiler" in str(caught.value)
    slow = Recipe(build="sleep 600", timeout_s=0.1)
    with Checkouts(Repository(repo), slow) as checkouts, pytest.raises(BuildFailed):
        checkouts.side("head", "main")


def test_two_commands_do_not_share_a_worktree(repo):
    repository = Repository(repo)
    with Checkouts(repository, Recipe()) as one, Checkouts(repository, Recipe()) as other:
        first, second = one.side("head", "HEAD"), other.side("head", "HEAD~1")
        assert first.folder != second.folder
        assert (Path(first.folder) / "inside" / "value").read_text() == "2"


def test_variables_and_interpreter_may_name_the_tree(repo):
    (repo / "bin").mkdir()
    (repo / "bin" / "python").write_text("#!/bin/sh\n")
    (repo / "bin" / "python").chmod(0o755)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "Bring an interpreter")
    recipe = Recipe(python="{tree}", variables={"PYTHONPATH": "{tree}/src"})
    with Checkouts(Repository(repo), recipe) as checkouts:
        side = checkouts.side("head", "HEAD", {"MORE": "{tree}"})
        assert side.python == f"{side.folder}/bin/python"
        assert side.variables == {"PYTHONPATH": f"{side.folder}/src", "MORE": side.folder}


def test_commits_between_are_in_order_and_need_an_ancestor(repo):
    repository = Repository(repo)
    found = repository.between("HEAD~2", "main")
    assert [repository.describe(one).split(" ", 1)[1] for one in found] == ["Set 1", "Set 2"]
    with raises(UsageError, good="HEAD", bad="HEAD~1"):
        repository.between("HEAD", "HEAD~1")
    with raises(UsageError, ref="nothing"):
        repository.commit("nothing")


def test_a_folder_outside_of_git_is_refused(tmp_path):
    with raises(UsageError, folder=str(tmp_path)):
        Repository(tmp_path)
    with raises(UsageError, folder=str(tmp_path / "none")):
        Repository(tmp_path / "none")
