"""Microbenchmarks in a process of their own, one after the other; one that is lost is a result."""

from __future__ import annotations

import difflib
import os
import platform
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.micro import MicroResult
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.micro import build_ahead, registry
from kernelmark.micro.base import EVERYWHERE, MODES, Microbenchmark, Mode
from kernelmark.runners.lock import held
from kernelmark.runners.process import Loss, WorkerProcess, WorkerSpec, gather
from kernelmark.runners.protocol import Message
from kernelmark.runners.targets import check_threads, find

TIMEOUT_S = {"brief": 120.0, "quick": 180.0, "full": 900.0}
START_TIMEOUT_S = 120.0
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroSpec(WorkerSpec):
    """How to start a worker of microbenchmarks."""

    @property
    def command(self) -> list[str]:
        words = [self.python, "-m", "kernelmark.micro.worker", "--device", self.device]
        return [*words, "--threads", str(self.threads), "--parent", str(os.getpid())]


def plain_name(text: str) -> str:
    """The registry's name for what a user types: l2-cache and l2_cache are the same."""
    return text.strip().replace("-", "_")


def named(text: str) -> Microbenchmark[Any, Any]:
    """The benchmark that a user calls so; an unknown name lists those there are, as `kmark micro
    list` writes them."""
    plain = plain_name(text)
    if plain in registry:
        return registry.get(plain)
    known = [name.replace("_", "-") for name in registry.names()]
    close = difflib.get_close_matches(plain.replace("_", "-"), known, n=1, cutoff=0.7)
    meant = f"did you mean {close[0]}? " if close else ""
    raise UsageError(f"unknown benchmark {text!r}", hint=f"{meant}known: {', '.join(known)}")


def run(
    names: Sequence[str],
    *,
    device: str = "cpu",
    threads: int = 0,
    mode: Mode = "quick",
    parameters: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
    tell: Tell | None = None,
) -> Generator[MicroResult, None, None]:
    """Each benchmark's result as it ends, good or bad. What is illegal raises before any runs."""
    if mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}", hint=f"known: {', '.join(MODES)}")
    for name in names:
        named(name).settings(mode, parameters or {})
    kind, info = find(device)
    if info.kind not in EVERYWHERE:
        raise UsageError(
            f"there are no microbenchmarks for {device}",
            hint=f"they run on: {', '.join(EVERYWHERE)}",
        )
    check_threads(info, threads)
    session = _Session(
        info=info,
        spec=MicroSpec(
            device=info.name,
            threads=threads,
            variables=kind.worker_variables(info.index, threads),
        ),
        mode=mode,
        parameters=dict(parameters or {}),
        timeout_s=timeout_s or TIMEOUT_S[mode],
    )
    return _run_all(session, [plain_name(name) for name in names], tell or (lambda text: None))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    info: DeviceInfo
    spec: MicroSpec
    mode: Mode
    parameters: dict[str, Any]
    timeout_s: float


def _run_all(session: _Session, names: list[str], tell: Tell) -> Generator[MicroResult, None, None]:
    _build_ahead(session.info, tell)
    info = session.info
    worker: WorkerProcess | None = None
    with held(info, lambda who: tell(f"waiting for {who}, which is timing on {info.name}")):
        try:
            for name in names:
                worker = _ready(session, worker)
                yield _one(session, worker, name)
        except BaseException:
            if worker is not None:
                worker.close()  # it may be at work, and would not hear that it should stop
            raise
        if worker is not None:
            worker.stop()
            worker.close()


def _ready(session: _Session, worker: WorkerProcess | None) -> WorkerProcess:
    """A worker that can be asked: the same one, or a new one where that is gone."""
    if worker is not None and worker.alive:
        return worker
    if worker is not None:
        worker.close()
    fresh = WorkerProcess(session.spec)
    end = time.monotonic() + START_TIMEOUT_S
    try:
        while not fresh.ready and fresh.lost is None and time.monotonic() < end:
            gather([fresh], 1.0)
    except BaseException:
        fresh.close()
        raise
    return fresh


def _one(session: _Session, worker: WorkerProcess, name: str) -> MicroResult:
    began = time.time()
    if worker.lost is not None or not worker.ready:
        lost = worker.lost or Loss(status=Status.TIMEOUT, error=Reason("worker-did-not-start"))
        return _failed(session, name, began, lost)
    request: Message = {
        "do": "micro",
        "id": 1,
        "name": name,
        "mode": session.mode,
        "parameters": session.parameters,
    }
    worker.send(request)
    end = time.monotonic() + session.timeout_s
    while time.monotonic() < end:
        for _, heard in gather([worker], min(1.0, session.timeout_s)):
            if isinstance(heard, Loss):
                return _failed(session, name, began, heard)
            if heard["say"] == "closed":
                status, error = Status(str(heard["status"])), Reason.of(str(heard["error"]))
                return _failed(session, name, began, Loss(status=status, error=error))
            if heard["say"] == "result":
                found = codec.from_document(heard["result"], MicroResult)
                if found.status is Status.RUNTIME_ERROR and session.info.kind != "cpu":
                    worker.close()  # its GPU may be spoilt
                return found
    worker.stacks()
    late = Reason("no-answer", limit_s=session.timeout_s)
    loss = Loss(status=Status.TIMEOUT, error=worker.with_tail(late))
    worker.kill()
    return _failed(session, name, began, loss)


def _failed(session: _Session, name: str, began: float, loss: Loss) -> MicroResult:
    info, benchmark = session.info, registry.get(name)
    return MicroResult(
        benchmark=benchmark.name,
        device=info.name,
        arch=info.arch,
        status=loss.status,
        started=began,
        mode=session.mode,
        model=info.model,
        host=platform.node(),
        driver=info.driver,
        threads=(session.spec.threads or info.units) if info.kind == "cpu" else 0,
        parameters=benchmark.settings(session.mode, session.parameters).plain(),
        error=loss.error,
        cost={"total": time.time() - began},
    )


def _build_ahead(info: DeviceInfo, tell: Tell) -> None:
    """Compile a GPU's kernels on all cores at once; what fails will say so when it is used."""
    if info.kind not in ("cuda", "hip"):
        return
    begin = time.monotonic()
    fresh = build_ahead.build_all(info.arch)
    if fresh:
        tell(f"compiled {fresh} kernel files in {time.monotonic() - begin:.1f} s")
