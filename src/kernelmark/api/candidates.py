"""Candidates of a bisection: commits of a repository, wheels, or configs of a kernel."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.api.checkouts import BuildFailed, Checkouts
from kernelmark.api.selection import parse_config
from kernelmark.core.errors import UsageError
from kernelmark.core.files import read_text, read_whole
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Case, Config
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import private_folder
from kernelmark.host.processes import last_line, run_child
from kernelmark.report.names import config_text
from kernelmark.runners.ab import Opener, local_opener
from kernelmark.runners.sides import Side

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
            self._checkouts.side(name, self._commits[place])
            for name, place in (("base", base), ("head", head))
        ]
        return self._where.opener(sides[0], sides[1])

    def case(self, case: Case, place: int) -> Case:
        return case


class Wheels:
    """Wheels, each installed without its dependencies into a folder that PYTHONPATH puts first."""

    def __init__(self, files: Sequence[Path], side: Side, where: Where) -> None:
        for file in files:
            if not file.is_file():
                raise UsageError(
                    f"{file}: there is no such wheel",
                    hint=("paths in the list are absolute, or relative to the folder of the list"),
                )
        self._files, self._side, self._where = files, side, where
        self.names = [file.name for file in files]

    def opener(self, base: int, head: int) -> Opener:
        return self._where.opener(self._installed(base), self._installed(head))

    def case(self, case: Case, place: int) -> Case:
        return case

    def _installed(self, place: int) -> Side:
        file, side = self._files[place], self._side
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

    def case(self, case: Case, place: int) -> Case:
        return dataclasses.replace(case, config={**case.config, **self._configs[place]})


def read_wheels(path: str) -> list[Path]:
    """Read the wheels listed in a text file: one path per line, relative to its folder."""
    given = Path(path).expanduser()
    if given.is_dir() or given.suffix == ".whl":
        # A folder has no order: it may be that of versions or of dates.
        kind, folder = ("folder", given) if given.is_dir() else ("wheel", given.parent)
        raise UsageError(
            f"{path}: is a {kind}; --wheels takes a text file that lists wheels",
            hint=(f"order them from good to bad, by version: ls -1v {folder}/*.whl > wheels.txt"),
        )
    return [given.parent / Path(line).expanduser() for line in _lines(path)]


def read_configs(path: str) -> list[Config]:
    """Read configs from a file: a JSON list of objects, or lines `name=value name=value`."""
    text = _text(path)
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{path}: is not JSON: {error}") from None
        for index, one in enumerate(found):
            if not isinstance(one, dict):
                where, shown = f"{path}: [{index}]", repr(one)[:60]
                raise UsageError(f"{where}: expected an object, found {shown}")
        return [FrozenDict(item) for item in found]
    return [FrozenDict(parse_config(line.split())) for line in _lines(path)]


def _lines(path: str) -> list[str]:
    lines = [line.partition("#")[0].strip() for line in _text(path).splitlines()]
    return [line for line in lines if line]


def _text(path: str) -> str:
    return read_text(Path(path).expanduser(), missing="it lists candidates", shown=path)


def _install(wheel: Path, folder: Path, python: str) -> None:
    """Install a wheel; the folder appears complete or not at all."""
    private_folder(folder.parent)
    part = folder.with_name(f"{folder.name}.{os.getpid()}")
    words = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-input", "--target", str(part))
    try:
        done = run_child([python, *words, str(wheel)], timeout_s=_INSTALL_TIMEOUT_S)
        if done.returncode:
            raise BuildFailed(f"pip cannot install {wheel.name}: {last_line(done.stderr)}")
        part.replace(folder)
    except OSError:
        if not folder.is_dir():  # else another process was first
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
