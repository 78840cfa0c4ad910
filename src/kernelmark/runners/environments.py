"""Sides of a comparison: an interpreter with its variables, and what a worker sees in it."""

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
from kernelmark.core.frozen import FrozenDict
from kernelmark.core.reason import BRIEF, format_reason
from kernelmark.runners.capture import git_state, kernelmark_version
from kernelmark.runners.jobs import Failure, ReadEnvironment
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import Limits, Pool

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Variables that list folders a library or package may be taken from.
_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD")
USUAL_NAMES = ("base", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two environments; `variables` are set on top of this process's. `folder` is where its
    workers work: kernel files are found from there."""

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
    """Base and head from `NAME[=PYTHON]` words and `NAME:VARIABLE=VALUE` words.

    Without any environment they are `base` and `head` under this interpreter."""
    given = list(environments) or list(USUAL_NAMES)
    if len(given) != 2:
        raise UsageError(
            f"two environments are compared, not {len(given)}",
            hint="write: --env golden=/path/to/python --env tot=/path/to/python",
        )
    sides = [parse_side(word) for word in given]
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
        place = known.index(name)
        variables = {**sides[place].variables, variable: value}
        sides[place] = dataclasses.replace(sides[place], variables=FrozenDict(variables))
    return sides[0], sides[1]


def parse_side(word: str) -> Side:
    """The side that `NAME` or `NAME=PYTHON` names; PYTHON may be a virtual environment."""
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
    # Not resolved: an interpreter finds its virtual environment by the link it was started by.
    found = shutil.which(str(path))
    if found is None:
        raise UsageError(f"{name}: there is no interpreter {python}", hint="give its full path")
    return Side(name=name, python=str(Path(found).absolute()))


def environment_of(
    side: Side, device: str, backends: Iterable[str], timeout_s: float = 120.0
) -> Environment:
    """Read the environment that a worker of this side sees, with the variables and checkouts it
    was given. Refuse a side whose worker does not start."""
    job = ReadEnvironment(backends=list(backends))
    with side.pool(device, timeout_s) as pool:
        seen = pool.call(job)
        if isinstance(seen, Failure):
            # A worker can be killed from outside; a second one that fails is to blame itself.
            seen = pool.call(job)
    if isinstance(seen, Failure):
        raise UsageError(
            f"{side.name}: no worker runs under {side.python}: {format_reason(seen.error, BRIEF)}",
            hint="the interpreter needs Python 3.11 or newer and numpy",
        )
    seen = pool.devices[0].without_own_variables(seen)
    return dataclasses.replace(
        seen,
        kernelmark_version=kernelmark_version(),  # its workers run this one
        variables=FrozenDict({**seen.variables, **side.variables}),
        libraries=FrozenDict(
            {**seen.libraries, "interpreter": side.python, **checkouts(side.variables)}
        ),
    )


def checkouts(variables: Mapping[str, str]) -> dict[str, str]:
    """The commit of every folder that a variable puts in front and that is a git checkout."""
    found: dict[str, str] = {}
    for name in _PATHS:
        for entry in filter(None, variables.get(name, "").split(os.pathsep)):
            folder = Path(entry) if Path(entry).is_dir() else Path(entry).parent
            commit, dirty = git_state(folder)
            if commit:
                found[f"checkout in {name}"] = commit[:12] + (" with changes" if dirty else "")
    return found
