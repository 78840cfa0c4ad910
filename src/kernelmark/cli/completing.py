"""Words that a shell offers after Tab. What cannot be listed offers nothing, and says nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_RUNS = 50  # newest ones that are offered

Complete = Callable[[str], list[str]]


def ops(incomplete: str) -> list[str]:
    from kernelmark.ops import registry

    return _listed(registry.names(), incomplete)


def backends(incomplete: str) -> list[str]:
    from kernelmark.backends import registry

    return _listed(registry.names(), incomplete)


def devices(incomplete: str) -> list[str]:
    from kernelmark.devices import registry

    found = ["all"]
    with contextlib.suppress(Exception):  # a driver that is broken
        for name in registry.names():
            if registry.get(name).available() is None:
                found += [info.name for info in registry.get(name).infos()]
    return _listed(found, incomplete)


def suites(incomplete: str) -> list[str]:
    from kernelmark.workloads import suites as known

    return _listed(known.names(), incomplete)


def dtypes(incomplete: str) -> list[str]:
    from kernelmark.core.dtype import DTYPES

    return _listed(DTYPES, incomplete)


def timings(incomplete: str) -> list[str]:
    """Presets, and files that set fields of a timing."""
    from kernelmark.core.timing import PRESETS

    return [*(n for n in PRESETS if n.startswith(incomplete)), *timing_files(incomplete)]


def timing_files(incomplete: str) -> list[str]:
    """TOML files that begin so, and folders that may hold some."""
    folder, slash, name = incomplete.rpartition("/")
    found: list[str] = []
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: ~ of a user who is not there
        for path in sorted(Path(folder + slash or ".").expanduser().iterdir()):
            hidden = path.name.startswith(".") and not name.startswith(".")
            if path.name.startswith(name) and not hidden:
                end = "/" if path.is_dir() else ""
                if end or path.suffix == ".toml":
                    found.append(f"{folder}{slash}{path.name}{end}")
    return found


def runs(incomplete: str) -> list[str]:
    """Ids and labels of the newest runs of the user's own store."""
    from kernelmark.stores import open_store

    found = ["latest"]
    with contextlib.suppress(Exception), open_store(readonly=True) as store:
        for run in store.runs(limit=_RUNS):
            found += [run.id, *([run.label] if run.label else [])]
    return _listed(found, incomplete)


def _listed(names: Iterable[str], incomplete: str) -> list[str]:
    """Names that go on with the last part of a list with commas, behind what is there of it."""
    before, comma, last = incomplete.rpartition(",")
    given = set(before.split(","))
    fitting: Iterator[str] = (n for n in names if n.startswith(last) and n not in given)
    return [f"{before}{comma}{name}" for name in dict.fromkeys(fitting)]
