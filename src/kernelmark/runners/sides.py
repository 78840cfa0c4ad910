"""Sides of a comparison: interpreter, variables, and the environment of the workers."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelmark.core.environment import Environment
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import shorten
from kernelmark.runners.capture import git_state, kernelmark_version
from kernelmark.runners.jobs import Failure, ReadEnvironment
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import Limits, Pool

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Variables that list folders from which libraries or packages are loaded.
_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD")
USUAL_NAMES = ("base", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two environments; `variables` are set on top of this process's. `folder` is the
    workers' working directory, where kernel files are searched."""

    name: str
    python: str = sys.executable
    variables: Mapping[str, str] = field(default_factory=FrozenDict)
    folder: str = ""

    def pool(self, device: str, timeout_s: float = Limits().timeout_s, jobs: int = 0) -> Pool:
        """Return a pool whose workers run in this environment."""
        runner = LocalRunner(
            [device],
            timeout_s=timeout_s,
            python=self.python,
            variables=self.variables,
            folder=self.folder,
        )
        return runner.pool(jobs)


def parse_sides(environments: Sequence[str], settings: Sequence[str]) -> tuple[Side, Side]:
    """Parse base and head from `NAME[=PYTHON]` and `NAME:VARIABLE=VALUE`.

    The default is `base` and `head` under this interpreter."""
    texts = list(environments) or list(USUAL_NAMES)
    if len(texts) != 2:
        raise UsageError(
            f"two environments are compared, not {len(texts)}",
            hint="write: --env golden=/path/to/python --env tot=/path/to/python",
        )
    sides = [parse_side(text) for text in texts]
    if sides[0].name == sides[1].name:
        raise UsageError(f"both environments are called {sides[0].name!r}")
    for word in settings:
        name, colon, setting = word.partition(":")
        variable, equals, value = setting.partition("=")
        known = [side.name for side in sides]
        if not colon or not equals or not VARIABLE.match(variable):
            raise UsageError(
                f"{word!r} is not NAME:VARIABLE=VALUE",
                hint=f"for example: --set {known[0]}:LD_LIBRARY_PATH=/new/lib",
            )
        if name not in known:
            raise UsageError(
                f"there is no environment {name!r} to set {variable} in",
                hint=f"there are: {', '.join(known)}",
            )
        index = known.index(name)
        variables = {**sides[index].variables, variable: value}
        sides[index] = dataclasses.replace(sides[index], variables=FrozenDict(variables))
    return sides[0], sides[1]


def parse_side(word: str) -> Side:
    """Parse `NAME` or `NAME=PYTHON`; PYTHON may be the folder of a virtual environment."""
    name, equals, python = word.partition("=")
    if not _NAME.match(name) or (equals and not python):
        raise UsageError(
            f"{word!r} is not an environment", hint="write: --env golden=/path/to/python"
        )
    if not equals:
        return Side(name=name)
    path = Path(python).expanduser()
    if path.is_dir():  # a virtual environment's folder
        path = path / "bin" / "python"
    # Not resolved: an interpreter finds its virtual environment through the link that started it.
    executable = shutil.which(str(path))
    if executable is None:
        raise UsageError(f"{name}: there is no interpreter {python}", hint="give its full path")
    return Side(name=name, python=str(Path(executable).absolute()))


def environment_of(
    side: Side, device: str, backends: Iterable[str], timeout_s: float = 120.0
) -> Environment:
    """Start a worker of this side and return its environment, with the side's variables and
    checkouts. Raise UsageError if no worker starts."""
    job = ReadEnvironment(backends=list(backends))
    with side.pool(device, timeout_s) as pool:
        environment = pool.call(job)
        if isinstance(environment, Failure):
            # Try again: the first worker may have been killed from outside.
            environment = pool.call(job)
    if isinstance(environment, Failure):
        raise UsageError(
            f"{side.name}: no worker runs under {side.python}: {shorten(environment.error)}",
            hint="the interpreter needs Python 3.11 or newer and numpy",
        )
    environment = pool.devices[0].without_own_variables(environment)
    return dataclasses.replace(
        environment,
        kernelmark_version=kernelmark_version(),  # workers run this kernelmark
        variables=FrozenDict({**environment.variables, **side.variables}),
        libraries=FrozenDict(
            {**environment.libraries, "interpreter": side.python, **checkouts(side.variables)}
        ),
    )


def checkouts(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the commits of the git checkouts among the folders in path variables."""
    commits: dict[str, str] = {}
    for name in _PATHS:
        for entry in filter(None, variables.get(name, "").split(os.pathsep)):
            folder = Path(entry) if Path(entry).is_dir() else Path(entry).parent
            commit, dirty = git_state(folder)
            if commit:
                commits[f"checkout in {name}"] = commit[:12] + (" with changes" if dirty else "")
    return commits
