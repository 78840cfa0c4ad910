"""Microbenchmarks as users ask for them: run and kept, found again, brought in from files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelmark.core import codec
from kernelmark.core.errors import CodecError, NothingToDo, UsageError
from kernelmark.core.files import json_text, read_whole
from kernelmark.core.micro import MicroResult
from kernelmark.core.plausible import check_micro
from kernelmark.core.reason import Reason
from kernelmark.core.stopping import interruptible
from kernelmark.core.units import counted
from kernelmark.micro import registry, session
from kernelmark.micro.base import Mode
from kernelmark.runners.targets import find
from kernelmark.stores import new_run_id

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

OnResult = Callable[[MicroResult], None]


def names_for(device: str) -> list[str]:
    """Every benchmark that runs on this kind of device."""
    _, info = find(device)
    return [name for name in registry.names() if info.kind in registry.get(name).kinds]


def measure(
    names: Sequence[str],
    *,
    device: str = "cpu",
    threads: int = 0,
    mode: Mode = "quick",
    parameters: Mapping[str, Any] | None = None,
    store: Store | None = None,
    tell: session.Tell | None = None,
    on_result: OnResult | None = None,
) -> tuple[str, list[MicroResult]]:
    """(run id, results); each is stored as it ends."""
    run_id = new_run_id()
    found: list[MicroResult] = []
    results = session.run(
        names, device=device, threads=threads, mode=mode, parameters=parameters, tell=tell
    )
    try:
        # Closed here: where an error ends this, the worker must not wait for a collector.
        with interruptible() as guard, contextlib.closing(results):
            for result in results:
                with guard.finishing():
                    if store is not None:
                        store.add_micro(run_id, [result])
                    found.append(result)
                if on_result is not None:
                    on_result(result)
    except KeyboardInterrupt:
        there = f"after {counted(len(found), 'result')}"
        kept = f"; stored as {run_id}" if store is not None and found else "; nothing is stored"
        raise KeyboardInterrupt(f"interrupted {there}{kept}") from None
    return run_id, found


def to_json(results: Iterable[MicroResult]) -> str:
    """A list of documents, as `read` takes it."""
    documents = [codec.to_document(result) for result in results]
    return json_text(documents)


def read(path: str | Path) -> list[MicroResult]:
    """The results in a file that `to_json` wrote."""
    try:
        document = codec.parse(read_whole(Path(path)))
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except CodecError as error:
        raise CodecError(f"{path}: {error.message}", hint=error.hint) from None
    if not isinstance(document, list):
        raise CodecError(f"{path}: not a list of microbenchmark results")
    if not document:
        raise NothingToDo(f"{path}: holds no results")
    try:
        return [
            check_micro(codec.from_document(one, MicroResult), f"[{number}]")
            for number, one in enumerate(document)
        ]
    except CodecError as error:
        raise CodecError(f"{path}: {error.message}", hint=error.hint) from None


def stored_runs(store: Store) -> dict[str, list[MicroResult]]:
    """The results of every run of microbenchmarks by its id, oldest first."""
    runs: dict[str, list[MicroResult]] = {}
    for run_id, result in store.micro():
        runs.setdefault(run_id, []).append(result)
    return runs


def load(ref: str, store: Store) -> tuple[str, list[MicroResult]]:
    """(run id, results) of a run of microbenchmarks: its id or the beginning of it, `latest`,
    `latest~1`, …"""
    runs = stored_runs(store)
    if not runs:
        raise NothingToDo(
            "no microbenchmarks are stored", hint=Reason("measure-micro", names="cache latency")
        )
    ids = list(runs)
    word, _, back = ref.partition("~")
    if word == "latest" and (back.isdigit() or not back):
        age = int(back or 0)
        if age >= len(ids):
            raise UsageError(
                f"there are only {len(ids)} runs of microbenchmarks", hint=_latest(ids)
            )
        return ids[-1 - age], runs[ids[-1 - age]]
    fitting = [run_id for run_id in ids if run_id.startswith(ref)]
    if ref in runs:
        fitting = [ref]
    if len(fitting) != 1:
        several = f"{len(fitting)} runs of microbenchmarks begin with {ref!r}"
        none = f"there is no run of microbenchmarks {ref!r}"
        raise UsageError(several if fitting else none, hint=_latest(ids))
    return fitting[0], runs[fitting[0]]


def results_of(ref: str, store: Callable[[], Store]) -> list[MicroResult]:
    """The results in a file, or of a run in the store, which is opened only then."""
    if ref.endswith(".json"):
        return read(ref)
    with store() as opened:
        return load(ref, opened)[1]


def _latest(ids: list[str]) -> str:
    return f"the newest are: {', '.join(ids[:-6:-1])}"
