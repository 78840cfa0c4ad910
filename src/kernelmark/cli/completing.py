"""Shell completion. Errors are suppressed: what cannot be listed is not offered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_RUNS = 50  # newest runs that are offered

Complete = Callable[[str], list[str]]


def ops(incomplete: str) -> list[str]:
    from kernelmark.ops import registry

    return _listed(registry.names(), incomplete)


def backends(incomplete: str) -> list[str]:
    from kernelmark.backends import registry

    return _listed(registry.names(), incomplete)


def devices(incomplete: str) -> list[str]:
    from kernelmark.devices import registry

    names = ["all"]
    with contextlib.suppress(Exception):  # a broken driver
        for name in registry.names():
            if registry.get(name).available() is None:
                names += [info.name for info in registry.get(name).infos()]
    return _listed(names, incomplete)


def suites(incomplete: str) -> list[str]:
    from kernelmark.workloads import suites as known

    return _listed(known.names(), incomplete)


def dtypes(incomplete: str) -> list[str]:
    from kernelmark.core.dtype import DTYPES

    return _listed(DTYPES, incomplete)


def timings(incomplete: str) -> list[str]:
    """Return presets, and files that set fields of a timing."""
    from kernelmark.core.timing import PRESETS

    return [*(n for n in PRESETS if n.startswith(incomplete)), *timing_files(incomplete)]


def timing_files(incomplete: str) -> list[str]:
    """Return TOML files and folders that begin with `incomplete`."""
    folder, slash, name = incomplete.rpartition("/")
    names: list[str] = []
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: ~ of an unknown user
        for path in sorted(Path(folder + slash or ".").expanduser().iterdir()):
            hidden = path.name.startswith(".") and not name.startswith(".")
            if path.name.startswith(name) and not hidden:
                end = "/" if path.is_dir() else ""
                if end or path.suffix == ".toml":
                    names.append(f"{folder}{slash}{path.name}{end}")
    return names


def runs(incomplete: str) -> list[str]:
    """Return ids and labels of the newest runs in the default store."""
    from kernelmark.stores import open_store

    names = ["latest"]
    with contextlib.suppress(Exception), open_store(readonly=True) as store:
        for run in store.runs(limit=_RUNS):
            names += [run.id, *([run.label] if run.label else [])]
    return _listed(names, incomplete)


def _listed(names: Iterable[str], incomplete: str) -> list[str]:
    """Return completions of the last item of a comma-separated list, after the given items."""
    before, comma, last = incomplete.rpartition(",")
    listed = set(before.split(","))
    fitting: Iterator[str] = (n for n in names if n.startswith(last) and n not in listed)
    return [f"{before}{comma}{name}" for name in dict.fromkeys(fitting)]
