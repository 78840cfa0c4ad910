"""Users' kernel files, as the process that plans a run sees them.

A kernel file is executed in a worker only: at import it may crash, hang or end its process. The
worker answers questions about the file, and then goes on to measure, so that what the file imports
(torch takes seconds) is imported once.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelmark import backends, ops
from kernelmark.backends import BackendRef
from kernelmark.backends._several import Several
from kernelmark.backends.base import Backend, Kernel
from kernelmark.core import codec, errors
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, KernelmarkError, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason, read_reason, reason_document, shorten
from kernelmark.core.result import Config, Space
from kernelmark.core.units import duration_text
from kernelmark.devices.base import ArgumentSet, Device
from kernelmark.ops._own import OwnOp
from kernelmark.ops.base import Parameter
from kernelmark.runners import places
from kernelmark.runners.pool import Limits
from kernelmark.runners.process import LocalWorkers, Loss, WorkerProcess, WorkerSpec, keep_spare
from kernelmark.runners.protocol import Message

if TYPE_CHECKING:
    from kernelmark.backends._file import FileBackend
    from kernelmark.runners.worker import Server

_IDS = itertools.count(1)
# For commands whose own workers are of another kind.
_PLAIN = WorkerSpec(device="cpu", opens_device=False)


def find(name: str) -> Backend:
    """Return the backend called `name`, as `load` does."""
    return load(backends.parse(name))


def load(ref: BackendRef) -> Backend:
    """Return a backend; that of a kernel file has no code of the file."""
    if ref.parts:
        return Several([load(part) for part in ref.parts])
    return ref.load() if ref.file is None else _session().file(ref)


@contextlib.contextmanager
def loaded_in(spec: WorkerSpec = _PLAIN, limit_s: float = 0.0) -> Iterator[None]:
    """Load kernel files in a worker of this kind within the `with` block, each file within
    `limit_s` seconds. Afterwards a pool that needs such a worker takes it."""
    global _current
    if _current is not None and _current.is_open:
        yield  # within the block of a caller
        return
    if _current is not None:
        _current.close()
    _current = _Session(spec=spec, limit_s=limit_s or Limits().compile_timeout_s)
    try:
        yield
    finally:
        _current.is_open = False
        _current.give_away()


@dataclass(kw_only=True)
class _Session:
    """A worker that has loaded kernel files, and what it answered."""

    spec: WorkerSpec = _PLAIN
    limit_s: float = Limits().compile_timeout_s
    is_open: bool = True
    worker: WorkerProcess | None = None
    folder: str = field(default_factory=lambda: str(Path.cwd()))
    files: dict[BackendRef, RemoteFile] = field(default_factory=dict)

    def file(self, ref: BackendRef) -> RemoteFile:
        if ref not in self.files:
            self.files[ref] = RemoteFile(ref)
        return self.files[ref]

    def ask(self, file: str, question: str, **fields: object) -> Any:
        """Return the worker's answer. A refusal by the file's code is raised here again."""
        if self.worker is None or not self.worker.alive:
            # Planned here also where the devices are elsewhere.
            spec = self.spec if places.current() is None else _PLAIN
            self.worker = LocalWorkers().start(spec)
        number = next(_IDS)
        function = f"{__name__}:answer"
        request = {"kind": "call", "function": function, "file": file, "question": question}
        self.worker.send({**request, **fields, "id": number})
        try:
            reply = self._reply(self.worker, file, number)
        except BaseException:
            self.close()
            raise
        if "refused" in reply:
            raise _error(reply["refused"])
        return reply["value"]

    def _reply(self, worker: WorkerProcess, file: str, number: int) -> Message:
        end = time.monotonic() + self.limit_s
        while (left_s := end - time.monotonic()) > 0:
            for _, message in LocalWorkers().wait([worker], left_s):
                if isinstance(message, Loss):
                    raise UsageError(
                        f"{file} ended the process that loaded it: {shorten(message.error)}",
                        hint=f"fix it until this works: python {file}",
                    )
                if message["kind"] == "reply" and message.get("id") == number:
                    return message
        raise UsageError(
            f"{file} was not loaded within {duration_text(self.limit_s)}",
            hint="kmark run --compile-timeout allows more",
        )

    def give_away(self) -> None:
        if self.worker is not None and self.worker.alive:
            keep_spare(self.worker, self.folder)
        self.worker = None

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
        self.worker = None


def loaded_texts() -> dict[str, bytes]:
    """Return the kernel files loaded so far, by their paths relative to the current folder, for
    workers on other machines. Raise UsageError for one that is elsewhere."""
    texts = {}
    for ref in _session().files:
        assert ref.file is not None
        if Path(ref.name).is_absolute():
            raise UsageError(
                f"{ref.name} is not below the current folder, so it has no name on another machine",
                hint=f"start the command there: cd {shlex.quote(str(ref.file.parent))}",
            )
        texts[ref.name] = ref.file.read_bytes()
    return texts


_current: _Session | None = None


def _session() -> _Session:
    global _current
    # A worker stays in the folder it was started in, and names of files are relative to that.
    if _current is not None and not _current.is_open and _current.folder != str(Path.cwd()):
        _current.close()
        _current = None
    if _current is None:
        _current = _Session(is_open=False)
    return _current


def _error(refused: Mapping[str, Any]) -> KernelmarkError:
    kind = getattr(errors, str(refused["class"]), UsageError)
    error: KernelmarkError = kind(read_reason(refused["reason"]), hint=refused["hint"])
    return error


class RemoteFile(Backend):
    """The backend of a kernel file, whose code runs in a worker."""

    summary = "your own kernel"

    def __init__(self, ref: BackendRef) -> None:
        self.name = ref.name
        facts = self._ask("describe")
        self.ops = tuple(facts["ops"])
        self.device_kinds = tuple(facts["kinds"])
        self._version = str(facts["version"])
        for name, op in facts["own"].items():
            ops.registry.add(name, RemoteOp(name, self.name, op))

    def _ask(self, question: str, **fields: object) -> Any:
        return _session().ask(self.name, question, **fields)

    def available(self) -> str | None:
        return None

    def version(self) -> str:
        return self._version

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        answer = self._ask("supports", **_documents(problem, info))
        return None if answer is None else read_reason(answer)

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        parameters = self._ask("space", **_documents(problem, info))
        if parameters is None:
            return None
        return Space(parameters={name: tuple(choices) for name, choices in parameters})

    def check_config(self, problem: Problem, config: Config, info: DeviceInfo) -> None:
        self._ask("check_config", **_documents(problem, info), config=dict(config))

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        raise CaseError(f"{self.name} runs in workers only")


class RemoteOp(OwnOp):
    """An op that a kernel file defines, whose functions run in a worker."""

    def __init__(self, name: str, file: str, facts: Mapping[str, Any]) -> None:
        self.name = name
        self.path = str(facts["place"])
        self.parameters = dict(facts["parameters"])
        self._file = file
        self._counts: dict[str, tuple[int, int]] = {}

    def problem(self, /, **parameters: Parameter) -> Problem:
        answer = _session().ask(self._file, "problem", op=self.name, given=parameters)
        problem: Problem = codec.read(answer["problem"], Problem, "problem")
        self._counts[problem.key] = answer["flops"], answer["bytes"]
        return problem

    def flops(self, problem: Problem) -> int:
        return self._counts.get(problem.key, (0, 0))[0]

    def bytes(self, problem: Problem) -> int:
        return self._counts.get(problem.key, (0, 0))[1]


def _documents(problem: Problem, info: DeviceInfo) -> dict[str, Any]:
    return {"problem": codec.plain(problem), "info": codec.plain(info)}


# In the worker


def answer(server: Server, request: Message) -> Message:
    """Answer a question about a kernel file, which is loaded with the first one."""
    from kernelmark.runners.execute import explain

    try:
        file: Any = backends.find(str(request["file"]))
        return {"value": _ANSWERS[str(request["question"])](file, request)}
    except KernelmarkError as error:
        kind, reason, hint = type(error).__name__, error.message, error.hint
    except (Exception, SystemExit) as error:  # raised by the file's own code
        kind, reason, hint = "CaseError", explain(error)[1], None
    return {"refused": {"class": kind, "reason": reason_document(reason), "hint": hint}}


def _describe(file: FileBackend, request: Message) -> Message:
    own = {name: op for name in file.ops if isinstance(op := ops.registry.get(name), OwnOp)}
    return {
        "ops": file.ops,
        "kinds": file.device_kinds,
        "version": file.version(),
        "own": {name: {"place": op.path, "parameters": op.parameters} for name, op in own.items()},
    }


def _problem(file: FileBackend, request: Message) -> Message:
    op = ops.registry.get(str(request["op"]))
    problem = op.problem(**request["given"])
    counts = {"flops": 0, "bytes": 0}
    with contextlib.suppress(KernelmarkError):  # raised again when the problem is measured
        counts = {"flops": op.flops(problem), "bytes": op.bytes(problem)}
    return {"problem": codec.plain(problem), **counts}


def _supports(file: FileBackend, request: Message) -> Any:
    reason = file.supports(*_arguments(request))
    return None if reason is None else reason_document(Reason.of(reason))


def _space(file: FileBackend, request: Message) -> Any:
    space = file.space(*_arguments(request))
    # Pairs: a JSON object would not keep the order on every path, and the order is the default's.
    return None if space is None else [[name, list(v)] for name, v in space.parameters.items()]


def _check_config(file: FileBackend, request: Message) -> None:
    problem, info = _arguments(request)
    file.check_config(problem, request["config"], info)


def _arguments(request: Message) -> tuple[Problem, DeviceInfo]:
    problem: Problem = codec.read(request["problem"], Problem, "problem")
    return problem, codec.read(request["info"], DeviceInfo, "info")


_ANSWERS = {
    "describe": _describe,
    "problem": _problem,
    "supports": _supports,
    "space": _space,
    "check_config": _check_config,
}
