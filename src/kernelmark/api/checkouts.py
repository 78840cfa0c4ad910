"""What kmark bisect and gate compare: commits checked out and built, wheels, and configs."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelmark.api.selection import parse_config
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.files import read_text, read_whole, user_path
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Case, Config
from kernelmark.host.cache import cache_root, digest
from kernelmark.host.permissions import private_folder
from kernelmark.host.processes import last_line, run_child, run_git
from kernelmark.report.names import config_text
from kernelmark.runners.ab import Opener, Side, local_opener, parse_side

WORKING_TREE = "."  # the ref of the working tree, uncommitted changes included
WORKING_TREE_TEXT = "the working tree"
_TREE = "{tree}"
_GIT_TIMEOUT_S = 600.0  # a checkout of a large repository on a slow disk
_SLOTS = 16  # commands that may use worktrees of one repository at the same time
_TAIL_LINES = 15


class BuildFailed(KernelmarkError):
    """The build command of a checkout failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to turn a checkout into a side: build command, Python interpreter and environment
    variables. `{tree}` in the last two stands for the worktree."""

    build: str = ""
    python: str = ""
    variables: Mapping[str, str] = field(default_factory=FrozenDict)
    timeout_s: float = 3600.0


class Repository:
    """The git repository that `folder` is in."""

    def __init__(self, folder: str | os.PathLike[str] = ".") -> None:
        here = user_path(folder).resolve()
        if not here.is_dir():
            raise UsageError(f"there is no folder {folder}", hint="--repo names a git repository")
        try:
            self.top = Path(_git(here, "rev-parse", "--show-toplevel"))
        except UsageError:
            raise UsageError(
                f"{folder} is not in a git repository",
                hint="name one by --repo, or compare two environments: --base-env, --head-env",
            ) from None
        # Paths of kernel files are relative to the folder that the command runs in.
        inside = here.relative_to(self.top) if here.is_relative_to(self.top) else Path()
        self.inside = inside

    def commit(self, ref: str) -> str:
        """Return the id of the commit that a ref names."""
        try:
            return _git(self.top, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        except UsageError:
            shallow = _git(self.top, "rev-parse", "--is-shallow-repository") == "true"
            hint = "the clone is shallow: git fetch --unshallow" if shallow else "see 'git log'"
            raise UsageError(f"{self.top} has no commit {ref!r}", hint=hint) from None

    def between(self, good: str, bad: str) -> list[str]:
        """Return the commits after `good` up to `bad` along first parents, oldest first. `good`
        must be an ancestor of `bad`."""
        first, last = self.commit(good), self.commit(bad)
        try:
            _git(self.top, "merge-base", "--is-ancestor", first, last)
        except UsageError:
            raise UsageError(
                f"{good} is not an ancestor of {bad}",
                hint=f"bisect from their common ancestor: git merge-base {good} {bad}",
            ) from None
        commits = _git(self.top, "rev-list", "--first-parent", "--reverse", f"{first}..{last}")
        return commits.split()

    def describe(self, ref: str) -> str:
        """Return hash and subject of a commit: `a1b2c3d4e5f6 Tune the tiles`."""
        if ref == WORKING_TREE:
            return WORKING_TREE_TEXT
        arguments = ("show", "--no-patch", "--format=%h %s", "--abbrev=12")
        return _git(self.top, *arguments, self.commit(ref))

    @property
    def changed(self) -> bool:
        """Whether tracked files differ from the commit that is checked out."""
        return bool(_git(self.top, "status", "--porcelain", "--untracked-files=no"))


class Checkouts:
    """Worktrees of one repository that this command has locked; `close` releases them."""

    def __init__(
        self, repository: Repository, recipe: Recipe, tell: Callable[[str], None] | None = None
    ) -> None:
        self.repository = repository
        self._recipe = recipe
        self._tell: Callable[[str], None] = tell or (lambda text: None)
        self._open = contextlib.ExitStack()
        self._trees: dict[str, Path] = {}

    def __enter__(self) -> Checkouts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the worktrees for other commands."""
        self._open.close()

    def side(self, name: str, ref: str, variables: Mapping[str, str] | None = None) -> Side:
        """Check out and build a commit, and return it as side `name`. A second call with the same
        name moves its worktree. `variables` are added to those of the recipe."""
        if ref == WORKING_TREE:
            tree, commit = self.repository.top, WORKING_TREE_TEXT
        else:
            commit = self.repository.commit(ref)
            tree = self._checked_out(name, commit)
        self._build(name, tree, commit, again=ref == WORKING_TREE)
        python = self._recipe.python.replace(_TREE, str(tree))
        side = parse_side(f"{name}={python}" if python else name)
        merged = {**self._recipe.variables, **(variables or {})}
        folder = tree / self.repository.inside
        return Side(
            name=name,
            python=side.python,
            variables=FrozenDict({n: v.replace(_TREE, str(tree)) for n, v in merged.items()}),
            folder=str(folder if folder.is_dir() else tree),
        )

    def _checked_out(self, name: str, commit: str) -> Path:
        if name not in self._trees:
            self._trees[name] = self._open.enter_context(_slot(self._root, name))
        tree = self._trees[name]
        quiet = ("-c", "advice.detachedHead=false")
        if (tree / ".git").exists():
            there = _git(tree, "rev-parse", "HEAD") == commit
            if there and not _git(tree, "status", "--porcelain", "--untracked-files=no"):
                return tree
            # Build outputs that git ignores stay, for incremental builds.
            _mark(tree).unlink(missing_ok=True)
            _git(tree, "clean", "-ffdq")
            _git(tree, *quiet, "checkout", "--force", "--detach", "--quiet", commit)
        else:
            _git(
                self.repository.top,
                *(*quiet, "worktree", "add", "--force", "--detach", "--quiet", str(tree), commit),
            )
        if (tree / ".gitmodules").is_file():
            _git(tree, *quiet, "submodule", "update", "--init", "--recursive", "--force", "--quiet")
        return tree

    @property
    def _root(self) -> Path:
        root = cache_root().absolute() / "worktrees" / digest(str(self.repository.top))[:12]
        private_folder(root)
        return root

    def _build(self, name: str, tree: Path, commit: str, *, again: bool) -> None:
        command = self._recipe.build
        if not command:
            return
        key = digest(commit, command)
        if not again:
            if _mark(tree).is_file() and _mark(tree).read_text() == key:
                return
            _mark(tree).unlink(missing_ok=True)
        self._tell(f"building {name} ({_short(commit)}): {command}")
        more = {"KMARK_SIDE": name, "KMARK_COMMIT": commit, "KMARK_TREE": str(tree)}
        building = f"building {name} ({_short(commit)})"
        hint = f"it ran in {tree}"
        try:
            done = run_child(
                ["/bin/sh", "-c", f"{{ {command}\n}} 2>&1"],
                cwd=tree,
                env={**os.environ, **more},
                timeout_s=self._recipe.timeout_s,
            )
        except subprocess.TimeoutExpired:
            limit = f"{self._recipe.timeout_s:g} s"
            message = f"{building} did not end within {limit}: {command}"
            raise BuildFailed(message, hint=hint) from None
        if done.returncode:
            lines = done.stdout.decode(errors="replace").rstrip().splitlines()
            tail = "\n".join(lines[-_TAIL_LINES:])
            message = f"{building} failed with exit code {done.returncode}: {command}\n{tail}"
            raise BuildFailed(message, hint=hint)
        if not again:
            _mark(tree).write_text(key)


def _mark(tree: Path) -> Path:
    """Return the file that records the commit and command a worktree was built from."""
    return tree.with_name(f"{tree.name}.built")


def _short(commit: str) -> str:
    return commit if commit == WORKING_TREE_TEXT else commit[:12]


@contextlib.contextmanager
def _slot(root: Path, name: str) -> Iterator[Path]:
    """Yield a worktree folder, locked against other commands."""
    for number in range(_SLOTS):
        handle = os.open(root / f"{name}-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            continue
        try:
            yield root / f"{name}-{number}"
        finally:
            os.close(handle)
        return
    raise UsageError(f"{_SLOTS} other commands use worktrees of this repository", hint="wait")


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = run_git(folder, *arguments, timeout_s=_GIT_TIMEOUT_S)
    except FileNotFoundError:
        raise UsageError(
            "checking out a commit needs git, which is not installed",
            hint="install it, or use --base-env",
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"git {_verb(arguments)} did not end within {_GIT_TIMEOUT_S:g} s"
        ) from None
    if done.returncode:
        why = last_line(done.stderr) or f"exit code {done.returncode}"
        raise UsageError(f"git {_verb(arguments)} failed: {why}", hint=f"it ran in {folder}")
    return done.stdout.decode(errors="replace").strip()


def _verb(arguments: Sequence[str]) -> str:
    """Return the git subcommand, without leading `-c name=value` options."""
    rest = list(arguments)
    while rest and rest[0] == "-c":
        rest = rest[2:]
    return rest[0] if rest else ""


_INSTALL_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """How candidates are measured."""

    device: str
    timeout_s: float = 300.0
    threads: int = 0

    def opener(self, base: Side, head: Side) -> Opener:
        return local_opener((base, head), self.device, self.timeout_s, self.threads)


class Commits:
    """Commits along first parents, checked out and built on demand."""

    def __init__(self, checkouts: Checkouts, good: str, bad: str, where: Where) -> None:
        repository = checkouts.repository
        self._commits = [repository.commit(good), *repository.between(good, bad)]
        self._checkouts, self._where = checkouts, where
        self.names = [repository.describe(commit) for commit in self._commits]

    def opener(self, base: int, head: int) -> Opener:
        sides = [
            self._checkouts.side(name, self._commits[commit])
            for name, commit in (("base", base), ("head", head))
        ]
        return self._where.opener(sides[0], sides[1])

    def case(self, case: Case, position: int) -> Case:
        return case


class Wheels:
    """Wheels, each installed without its dependencies into a folder that PYTHONPATH puts first."""

    def __init__(self, files: Sequence[Path], side: Side, where: Where) -> None:
        for file in files:
            if not file.is_file():
                raise UsageError(
                    f"{file}: there is no such wheel",
                    hint="paths in the list are absolute, or relative to the folder of the list",
                )
        self._files, self._side, self._where = files, side, where
        self.names = [file.name for file in files]

    def opener(self, base: int, head: int) -> Opener:
        return self._where.opener(self._installed(base), self._installed(head))

    def case(self, case: Case, position: int) -> Case:
        return case

    def _installed(self, position: int) -> Side:
        file, side = self._files[position], self._side
        digest = hashlib.sha256(read_whole(file)).hexdigest()[:16]
        folder = cache_root().absolute() / "wheels" / digest
        if not folder.is_dir():
            _install(file, folder, side.python)
        path = [str(folder), side.variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))]
        variables = {**side.variables, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        return dataclasses.replace(side, variables=FrozenDict(variables))


class Configs:
    """Configs of one kernel in one environment."""

    def __init__(self, configs: Sequence[Config], side: Side, where: Where) -> None:
        self._configs, self._side, self._where = configs, side, where
        self.names = [
            f"{number}: {config_text(config) or 'default'}"
            for number, config in enumerate(configs, 1)
        ]

    def opener(self, base: int, head: int) -> Opener:
        return self._where.opener(self._side, self._side)

    def case(self, case: Case, position: int) -> Case:
        return dataclasses.replace(case, config={**case.config, **self._configs[position]})


def read_wheels(path: str) -> list[Path]:
    """Read the wheels listed in a text file: one path per line, relative to its folder."""
    listing = user_path(path)
    if listing.is_dir() or listing.suffix == ".whl":
        # A folder has no order: it may be that of versions or of dates.
        kind, folder = ("folder", listing) if listing.is_dir() else ("wheel", listing.parent)
        raise UsageError(
            f"{path}: is a {kind}; --wheels takes a text file that lists wheels",
            hint=f"order them from good to bad, by version: ls -1v {folder}/*.whl > wheels.txt",
        )
    return [listing.parent / user_path(line) for line in _lines(path)]


def read_configs(path: str) -> list[Config]:
    """Read configs from a file: a JSON list of objects, or lines `name=value name=value`."""
    text = _text(path)
    if text.lstrip().startswith("["):
        try:
            configs = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{path}: is not JSON: {error}") from None
        for index, config in enumerate(configs):
            if not isinstance(config, dict):
                where, shown = f"{path}: [{index}]", repr(config)[:60]
                raise UsageError(f"{where}: expected an object, found {shown}")
        return [FrozenDict(item) for item in configs]
    return [FrozenDict(parse_config(line.split())) for line in _lines(path)]


def _lines(path: str) -> list[str]:
    lines = [line.partition("#")[0].strip() for line in _text(path).splitlines()]
    return [line for line in lines if line]


def _text(path: str) -> str:
    return read_text(user_path(path), missing="it lists candidates", shown=path)


def _install(wheel: Path, folder: Path, python: str) -> None:
    """Install a wheel; the folder appears complete or not at all."""
    private_folder(folder.parent)
    part = folder.with_name(f"{folder.name}.{os.getpid()}")
    arguments = ("install", "--quiet", "--no-deps", "--no-input", "--target", str(part))
    try:
        done = run_child(
            [python, "-P", "-m", "pip", *arguments, str(wheel)], timeout_s=_INSTALL_TIMEOUT_S
        )
        if done.returncode:
            raise BuildFailed(f"pip cannot install {wheel.name}: {last_line(done.stderr)}")
        part.replace(folder)
    except OSError:
        if not folder.is_dir():  # else another process was first
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
