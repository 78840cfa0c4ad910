"""Words that a shell offers after Tab. What cannot be listed offers nothing, and says nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

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
