"""Workers of the fake device that serve requests in this process.

A worker process starts for a third of a second, far longer than a scripted case takes. The code
that serves a request is the worker's own. A case that may not end, or may end its process, gets a
process of its own, and so does all that is not scripted.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from kernelmark.backends.fake import Script
from kernelmark.backends.fake import backend as fake
from kernelmark.core import codec
from kernelmark.core.errors import KernelmarkError, Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Status
from kernelmark.runners.process import LocalWorkers, Loss, WorkerProcess, WorkerSpec
from kernelmark.runners.protocol import Message, decode
from kernelmark.runners.worker import Server

_NEEDS_PROCESS = ("crash", "abort", "hang", "memory_hog")


def _is_scripted(request: Message) -> bool:
    """Return whether a request can be served here."""
    if request["kind"] == "environment":
        return request.get("backends") == ["fake"]
    documents = request.get("cases") or [request.get("case")]
    return all(document is not None and _ends(document) for document in documents)


def _ends(document: Any) -> bool:
    case = codec.from_document(document, Case)
    if case.backend != "fake":
        return False
    try:
        script, _ = Script.read(case.config).on(case.problem)
    except Unsupported:
        return True
    return script.behaviour not in _NEEDS_PROCESS and not script.compile_s


class InProcessWorker:
    """A worker that has its replies when a request was sent; `process` is the one that it needs
    since a request that cannot be served here."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.process: WorkerProcess | None = None
        self._out = io.BytesIO()
        self._messages: list[Message | Loss] = [{"kind": "ready"}]
        self._alive = True
        fake._prepared.clear()  # a process begins its random numbers anew
        self._server = Server(device=spec.device, threads=spec.threads, out=self._out)
        self._server.open(touch=spec.opens_device)

    @property
    def ready(self) -> bool:
        return True

    @property
    def alive(self) -> bool:
        return self._alive if self.process is None else self.process.alive

    def send(self, request: Message) -> None:
        if self.process is None and not _is_scripted(request):
            self.process = WorkerProcess(self.spec)
        if self.process is not None:
            self.process.send(request)
            return
        try:
            self._server.serve(request)
        except KernelmarkError as error:
            self._alive = False
            self._messages.append(Loss(status=Status.CRASHED, error=Reason(error.message)))
        self._messages += map(decode, self._out.getvalue().splitlines())
        self._out.seek(0)
        self._out.truncate()

    def messages(self) -> list[Message | Loss]:
        """Return the messages since the last call."""
        messages, self._messages = self._messages, []
        return messages

    def dump_stacks(self) -> None:
        if self.process is not None:
            self.process.dump_stacks()

    def with_tail(self, reason: Reason) -> Reason:
        return reason if self.process is None else self.process.with_tail(reason)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()

    def close(self) -> None:
        self._alive = False
        if self.process is not None:
            self.process.close()


class InProcessWorkers(LocalWorkers):
    """Starts workers in this process where it can; the others are processes."""

    def start(self, spec: WorkerSpec) -> Any:
        is_fake = spec.device.partition(":")[0] == "fake"
        if not is_fake or spec != WorkerSpec(
            device=spec.device, threads=spec.threads, opens_device=spec.opens_device
        ):
            return super().start(spec)
        return InProcessWorker(spec)

    def wait(self, workers: Sequence[Any], timeout_s: float | None) -> Any:
        here = [worker for worker in workers if isinstance(worker, InProcessWorker)]
        messages = [(worker, message) for worker in here for message in worker.messages()]
        owners = {getattr(worker, "process", worker): worker for worker in workers}
        owners.pop(None, None)
        if not owners:
            return messages
        replies = super().wait(list(owners), 0.0 if messages else timeout_s)
        later = [(owners[process], message) for process, message in replies]
        # The request was sent before the process was ready.
        return messages + [
            (worker, message)
            for worker, message in later
            if worker not in here or isinstance(message, Loss) or message["kind"] != "ready"
        ]
