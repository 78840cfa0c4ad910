"""RayPlace: the devices of a Ray cluster, and workers on them.

An actor (`Holder`) reserves each device and holds its worker processes, which are the same as on
one machine (`process.WorkerProcess`): time limits, retries and the order of cases stay in the pool.
A worker has one request at a time, and its messages are fetched by a call that ends when there are
some, so a slow store or terminal slows the devices down instead of filling memory.

If an actor or its node dies, the pool gets the loss `machine-lost` and repeats the job, on a new
actor on the same node if that is alive, else on another device. Ray ends the actors, and these
their workers, when this process ends, however it does.

Kernels are compiled on nodes without GPUs, if there are any, in a cache folder of the compiler's
own. The files of a kernel come with the reply and go to the node of the first device that measures
it. Users' kernel files are sent to each holder, whose workers run in a folder with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import getpass
import importlib.util
import itertools
import json
import os
import platform
import re
import socket
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmark import devices as device_kinds
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.files import write_whole
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.core.units import counted, join_commas
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import private_folder
from kernelmark.runners.capture import kernelmark_version
from kernelmark.runners.kernel_files import loaded_texts
from kernelmark.runners.pool import MACHINE_LOST
from kernelmark.runners.process import LocalWorkers, Loss, WorkerProcess, WorkerSpec
from kernelmark.runners.protocol import Message

NAMESPACE = "kernelmark"
# Ray starts its processes at nice 15. A worker that launches kernels would lose its core to any
# other process. Only `ray start` can change that; root can undo it.
NICENESS = "RAY_worker_niceness", "0"
INSTALL = 'pip install "kernelmark[ray]"'
# A GPU that Ray counts; other kinds of devices are not a resource of Ray.
_GPUS = ("cuda", "hip")
_START = "start one: kmark ray up; or look at it: ray status"
_INSPECT_S = 60.0
_CONNECT_S = 10.0
_PATIENCE_S = 10.0  # before a wait for devices is reported
_ANSWER_S = 5.0  # for the last words of a worker whose time is up
_MOST_COMPILERS = 64
# `4xH200` is any four of these GPUs.
_COUNTED = re.compile(r"(?:(\d+)x)?(.+)\Z")
_RANGE = re.compile(r"(.+/[a-z]+):(\d+)-(\d+)\Z")
# Ray hides all GPUs from a task that reserves none, and an inspection reserves none.
_SEES_GPUS = {
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1",
    "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES": "1",
}
_NUMBERS = itertools.count(1)
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the cluster. `reason` is why it cannot be used; "" if it can."""

    id: str
    name: str
    cpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    python: str = ""
    kernelmark: str = ""
    niceness: int = 0
    infos: tuple[DeviceInfo, ...] = ()
    holders: tuple[str, ...] = ()  # who reserved devices of the node
    reason: str = ""

    @property
    def gpus(self) -> list[DeviceInfo]:
        return [info for info in self.infos if info.kind in _GPUS]


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    """A worker in a holder, or why it could not be started; None before and after."""

    worker: WorkerProcess | Loss | None = None
    turn: int = 0  # of the next call
    is_closed: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    activity: asyncio.Event = field(default_factory=asyncio.Event)


class Holder:
    """An actor that holds the worker processes of one device, or of one compiler with a cache
    folder of its own. All calls run in the thread of its event loop, as workers require."""

    def __init__(self, *, own_cache: bool = False) -> None:
        self._entries: defaultdict[int, _Entry] = defaultdict(_Entry)
        self._cache = tempfile.TemporaryDirectory(prefix="kernelmark-") if own_cache else None
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of users' kernel files
        self._sent: set[Path] = set()

    async def describe(self, kind: str, index: int) -> tuple[DeviceInfo, str]:
        """Return the device and its index on the node. Of GPUs, Ray assigned one, which is the only
        visible one."""
        if kind not in _GPUS:
            return _infos(kind)[index], str(index)
        import ray

        return _infos(kind)[0], str(ray.get_gpu_ids()[0])

    async def messages(self, number: int) -> list[Message | Loss]:
        """Wait for messages of a worker, and return them; [] if it was closed meanwhile."""
        entry = self._entries[number]
        while not entry.is_closed:
            await entry.activity.wait()
            entry.activity.clear()
            if isinstance(worker := entry.worker, Loss):
                return [worker]
            if worker is not None:
                items = worker.messages()
                if not (items and isinstance(items[-1], Loss)):
                    self._watch(worker, entry.activity)
                if items:
                    return [self._prepared(item) for item in items]
        return []

    async def call(self, number: int, turn: int, action: str, *arguments: Any) -> Any:
        """Do what `action` names with a worker. Ray may begin the calls of a caller in another
        order, so each waits for its turn."""
        entry = self._entries[number]
        async with entry.changed:
            await entry.changed.wait_for(lambda: entry.turn == turn)
            try:
                return getattr(self, f"_{action}")(entry, *arguments)
            finally:
                entry.turn += 1
                entry.changed.notify_all()

    def _start(self, entry: _Entry, spec: WorkerSpec, uuid: str, files: Files) -> None:
        """Start a worker in a folder with these kernel files, unless this holder has another device
        than the one with this UUID."""
        variables = dict(spec.variables)
        if self._cache is not None:
            variables |= {"KERNELMARK_CACHE": self._cache.name, "TRITON_CACHE_DIR": ""}
        spec = dataclasses.replace(spec, python=spec.python or sys.executable, variables=variables)
        if files and not spec.folder:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="kernelmark-")
            unpack(files, Path(self._folder.name))
            spec = dataclasses.replace(spec, folder=self._folder.name)
        with contextlib.suppress(OSError):  # only root may; `kmark doctor --ray` reports it
            # Of this thread, which its children inherit.
            os.setpriority(os.PRIO_PROCESS, 0, min(0, os.getpriority(os.PRIO_PROCESS, 0)))
        try:
            if uuid and uuid not in {info.uuid for info in _infos(spec.device.partition(":")[0])}:
                raise OSError("Ray assigned another GPU")
            entry.worker = worker = LocalWorkers().start(spec)
        except OSError as error:
            reason = Reason(f"cannot start {spec.python}: {error}")
            entry.worker = Loss(status=Status.CRASHED, error=reason)
            entry.activity.set()
        else:
            self._watch(worker, entry.activity)

    def _send(self, entry: _Entry, request: Message, files: Files | None) -> None:
        """Send a request, after adding files to the cache."""
        if files:
            unpack(files, cache_root())
        if isinstance(entry.worker, WorkerProcess):
            entry.worker.send(request)

    def _dump_stacks(self, entry: _Entry) -> None:
        if isinstance(entry.worker, WorkerProcess):
            entry.worker.dump_stacks()

    def _with_tail(self, entry: _Entry, reason: Reason) -> Reason:
        worker = entry.worker
        return worker.with_tail(reason) if isinstance(worker, WorkerProcess) else reason

    def _close(self, entry: _Entry, gently: bool) -> None:  # noqa: FBT001
        """End a worker; `gently` lets it exit by itself."""
        worker, entry.worker, entry.is_closed = entry.worker, None, True
        entry.activity.set()
        if isinstance(worker, WorkerProcess):
            self._unwatch(worker)
            if gently:
                worker.stop()
            worker.close()

    def _watch(self, worker: WorkerProcess, activity: asyncio.Event) -> None:
        """Set `activity` at the next output of a worker. Then it is no longer watched, or the event
        loop would spin until the output is read."""

        def wake() -> None:
            self._unwatch(worker)
            activity.set()

        loop = asyncio.get_running_loop()
        for descriptor in (worker.out, *((worker.err,) if worker.err_open else ())):
            loop.add_reader(descriptor, wake)

    def _unwatch(self, worker: WorkerProcess) -> None:
        loop = asyncio.get_running_loop()
        for descriptor in (worker.out, worker.err):
            loop.remove_reader(descriptor)

    def _prepared(self, item: Message | Loss) -> Message | Loss:
        """Return a message that is valid on another machine, with the files of a compilation."""
        if isinstance(item, Loss):
            return item
        if "at" in item:  # clocks of machines differ: send how long ago it was
            item = {**item, "at": time.monotonic() - float(item["at"])}
        if self._cache is not None and item["kind"] == "reply":
            item = {**item, "files": pack(Path(self._cache.name), self._sent)}
        return item


def _infos(kind: str) -> list[DeviceInfo]:
    return device_kinds.registry.get(kind).infos()


def pack(root: Path, sent: set[Path]) -> dict[str, bytes]:
    """Return the files below `root` that are not in `sent`, by relative path, and add them to it.
    Triton writes absolute paths into its files; the folder is replaced by a mark."""
    files: dict[str, bytes] = {}
    for path in sorted(root.rglob("*")):
        if path not in sent and path.is_file() and not path.name.startswith("."):
            sent.add(path)
            data = path.read_bytes()
            if path.suffix == ".json":
                data = data.replace(str(root).encode(), _ROOT)
            files[str(path.relative_to(root))] = data
    return files


_ROOT = b"<kernelmark cache>"


def unpack(files: Files, root: Path) -> None:
    """Write what `pack` returned below another folder, except files that exist there."""
    for name, data in files.items():
        path = root / name
        if path.resolve().is_relative_to(root.resolve()) and not path.exists():
            private_folder(path.parent)
            write_whole(
                path, data.replace(_ROOT, str(root).encode()) if name.endswith(".json") else data
            )


class RayWorker:
    """A worker in a holder. No method waits for the network, except for the last words of a worker
    whose time is up."""

    def __init__(self, spec: WorkerSpec, cluster: Cluster, held: _Held) -> None:
        self.spec = spec
        self.ready = False
        self.alive = True
        self._number = next(_NUMBERS)
        self._turns = itertools.count()
        self._kernel = ""  # whose compilation was requested
        self._cluster = cluster
        self._held = held
        self._pending: Any = None  # the call whose reply will have messages
        self._is_ended = False

    def start(self, spec: WorkerSpec, uuid: str) -> None:
        self._call("start", spec, uuid, loaded_texts())

    def pending(self) -> Any:
        """Return the call whose reply will have messages; None after the last one."""
        if self._pending is None and self.alive:
            self._pending = self._held.actor.messages.remote(self._number)
        return self._pending

    def take(self, items: Sequence[Message | Loss] | Exception) -> Iterator[Message | Loss]:
        """Yield the messages of the pending call, which is done."""
        self._pending = None
        if isinstance(items, Exception):
            self._held.is_dead = True
            first = str(items).strip().splitlines()[:1]
            why = f"{type(items).__name__}: {first[0] if first else ''}"
            reason = Reason(f"Ray lost {self.spec.device}: {why}", MACHINE_LOST)
            items = [Loss(status=Status.CRASHED, error=reason)]
        for item in items:
            if isinstance(item, Loss):
                self.alive = False
            else:
                if "at" in item:
                    item = {**item, "at": time.monotonic() - float(item["at"])}
                if files := item.pop("files", None):
                    self._cluster.kernels[self._kernel] = self._cluster.put(files)
                self.ready = self.ready or item["kind"] == "ready"
            yield item

    def send(self, request: Message) -> None:
        files = None
        if request["kind"] == "compile":
            self._kernel = _kernel(request["case"])
        elif request["kind"] == "measure":
            files = self._cluster.kernels.pop(_kernel(request["case"]), None)
        self._call("send", request, files)

    def dump_stacks(self) -> None:
        self._call("dump_stacks")

    def with_tail(self, reason: Reason) -> Reason:
        answer = self._cluster.get(self._call("with_tail", reason), _ANSWER_S)
        return reason if isinstance(answer, Exception) else answer

    def stop(self) -> None:
        self._end(gently=True)

    def close(self) -> None:
        self._end(gently=False)

    def _end(self, *, gently: bool) -> None:
        if self._held.is_compiler:
            self._cluster.kill(self._held)
        elif not (self._held.is_dead or self._is_ended):
            self._call("close", gently)
        self.alive, self._pending, self._is_ended = False, None, True

    def _call(self, action: str, *arguments: Any) -> Any:
        return self._held.actor.call.remote(self._number, next(self._turns), action, *arguments)


def _kernel(case: Mapping[str, Any]) -> str:
    """Return what identifies a case's kernel, from the case's document."""
    return json.dumps([case.get(name) for name in ("problem", "backend", "config")], sort_keys=True)


@dataclass(slots=True, kw_only=True, eq=False)
class _Held:
    """An actor, and how to create it again. `info` is the device as users see it, `local` its name
    for workers on its node."""

    options: Mapping[str, Any]
    actor: Any
    info: DeviceInfo | None = None
    local: str = ""
    is_compiler: bool = False
    is_dead: bool = False


class RayWorkers:
    """Starts workers in the holders of a cluster, and waits for messages."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def start(self, spec: WorkerSpec) -> RayWorker:
        """Start a worker on a reserved device, or one that compiles for an architecture."""
        held = self._cluster.held.get(spec.device)
        local, uuid = spec.device, ""
        if held is None:
            held = self._cluster.new_compiler()
        else:
            assert held.info is not None
            local, uuid = held.local, held.info.uuid
            if held.is_dead:
                self._cluster.create_again(held)
        # By default, the interpreter of the node; the folders of this machine are not there.
        python = "" if spec.python == sys.executable else spec.python
        remote = dataclasses.replace(spec, device=local, name=spec.device, python=python)
        worker = RayWorker(spec, self._cluster, held)
        worker.start(remote, uuid)
        return worker

    def wait(
        self, workers: Sequence[RayWorker], timeout_s: float | None
    ) -> list[tuple[RayWorker, Message | Loss]]:
        """Wait up to `timeout_s` seconds for messages, and return those of all `workers`."""
        pending = {call: worker for worker in workers if (call := worker.pending()) is not None}
        done = self._cluster.wait(list(pending), timeout_s)
        return [
            (pending[call], item)
            for call in done
            for item in pending[call].take(self._cluster.get(call))
        ]


class Cluster:
    """The calls of Ray that the rest of this module needs; tests replace them."""

    def __init__(self, address: str) -> None:
        self._ray = connected(address)
        self.held: dict[str, _Held] = {}  # by the device's name
        self.kernels: dict[str, Any] = {}  # files of compiled kernels that no device has yet
        self._nodes: list[Node] | None = None
        self._actor = self._ray.remote(Holder)
        self._compilers = itertools.count()
        self._owner = f"{getpass.getuser()}@{platform.node()}, process {os.getpid()}"

    def wait(self, calls: Sequence[Any], timeout_s: float | None) -> list[Any]:
        """Return the calls that are done, after waiting for the first one."""
        if not calls:
            time.sleep(min(timeout_s or 0.0, 1.0))
            return []
        done, rest = self._ray.wait(list(calls), timeout=timeout_s)
        more, _ = self._ray.wait(rest, num_returns=len(rest), timeout=0) if rest else ([], [])
        return [*done, *more]

    def get(self, call: Any, timeout_s: float | None = None) -> Any:
        """Return a call's value, or the error of Ray that replaced it."""
        try:
            return self._ray.get(call, timeout=timeout_s)
        except self._ray.exceptions.RayError as error:
            return error

    def put(self, files: Files) -> Any:
        return self._ray.put(files)

    def kill(self, held: _Held) -> None:
        with contextlib.suppress(Exception):  # it may be dead already
            self._ray.kill(held.actor)

    def create_again(self, held: _Held) -> None:
        """Replace a dead actor by a new one on the same node."""
        self.kill(held)
        held.actor, held.is_dead = self._create(held.options), False

    def _create(self, options: Mapping[str, Any]) -> Any:
        own_cache = "num_cpus" in options and options["num_cpus"] > 0
        name = f"{options['name']} ({next(_NUMBERS)})"
        return self._actor.options(**{**options, "name": name}).remote(own_cache=own_cache)

    def options(self, node: Node, info: DeviceInfo) -> dict[str, Any]:
        """Return the options of an actor for a device of this kind and model on a node."""
        resource = gpu_resource(info)
        return {
            "name": f"{node.name}/{info.kind}: {self._owner}",
            "namespace": NAMESPACE,
            "num_cpus": 0,
            "num_gpus": int(info.kind in _GPUS),
            "resources": {resource: 1} if resource in node.resources else None,
            "scheduling_strategy": self._on(node, soft=False),
        }

    def _on(self, node: Node, *, soft: bool) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.id, soft=soft)

    def compile_nodes(self) -> list[Node]:
        """Return the nodes without GPUs, or all if each has some."""
        nodes = [node for node in self.nodes() if not node.reason and node.cpus >= 1]
        return [node for node in nodes if not node.gpus] or nodes

    def new_compiler(self) -> _Held:
        """Create an actor for a compiler, on the next node for them."""
        nodes = self.compile_nodes()
        if not nodes:
            raise OSError("no node of the cluster has a CPU for compiling")
        node = nodes[next(self._compilers) % len(nodes)]
        options = {
            "name": f"{node.name}/compiler: {self._owner}",
            "namespace": NAMESPACE,
            "num_cpus": 1,
            "scheduling_strategy": self._on(node, soft=True),
        }
        return _Held(options=options, actor=self._create(options), is_compiler=True)

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive, with what they report about themselves."""
        if self._nodes is not None:
            return self._nodes
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        hosts = Counter(node["NodeManagerHostname"] for node in alive)
        inspect = self._ray.remote(inspector())
        calls = {}
        for node in alive:
            options = {
                "num_cpus": 0,
                "scheduling_strategy": self._on(_plain(node, ""), soft=False),
                "runtime_env": {"env_vars": _SEES_GPUS},
            }
            calls[node["NodeID"]] = inspect.options(**options).remote()
        names = [item["name"] for item in self._ray.util.list_named_actors(all_namespaces=True)]
        end, nodes = time.monotonic() + _INSPECT_S, []
        for node in alive:
            host = node["NodeManagerHostname"]
            name = host if hosts[host] == 1 else f"{host}-{node['NodeID'][:6]}"
            report = self.get(calls[node["NodeID"]], max(0.1, end - time.monotonic()))
            nodes.append(_node(_plain(node, name), report, names))
        self._nodes = sorted(nodes, key=lambda node: node.name)
        return self._nodes

    def reserve(self, choice: Choice, tell: Callable[[str], object]) -> list[str]:
        """Create actors for the devices of a choice, and return the devices' names when all are
        there. Of GPUs, Ray chooses the one for an actor: those that were not chosen are freed."""
        calls: dict[Any, tuple[Node, _Held]] = {}
        for node, info in choice.actors(set(self.held)):
            options = self.options(node, info)
            held = _Held(options=options, actor=self._create(options))
            calls[held.actor.describe.remote(info.kind, info.index)] = node, held
        names = [name for name in choice.names if name in self.held][: choice.count]
        begin, is_told = time.monotonic(), False
        try:
            while len(names) < choice.count and calls:
                for call in self.wait(list(calls), 1.0):
                    node, held = calls.pop(call)
                    answer = self.get(call)
                    if isinstance(answer, Exception):
                        raise UsageError(f"no actor starts on {node.name}: {answer}")
                    info, number = answer
                    name = _public(node, dataclasses.replace(info, index=int(number)))
                    if name in choice.names and len(names) < choice.count:
                        held.local, held.info = info.name, dataclasses.replace(info, name=name)
                        self.held[name] = held
                        names.append(name)
                    else:
                        self.kill(held)
                if not is_told and time.monotonic() > begin + _PATIENCE_S:
                    is_told = True
                    users = join_commas([h for node in choice.nodes for h in node.holders])
                    missing = counted(choice.count - len(names), "device")
                    tell(
                        f"waiting for Ray to place {missing}" + (f"; held by {users}" * bool(users))
                    )
        finally:
            for _, held in calls.values():
                self.kill(held)
        return sorted(names, key=choice.names.index)

    def unavailable(self, backend: str, info: DeviceInfo) -> str:
        """Return why a backend cannot run on the node of a reserved device; "" if it can."""
        strategy = self.held[info.name].options["scheduling_strategy"]
        options = {
            "num_cpus": 0,
            "scheduling_strategy": strategy,
            "runtime_env": {"env_vars": _SEES_GPUS},
        }
        call = self._ray.remote(_why_unavailable).options(**options).remote(backend, info.kind)
        answer = self.get(call, _INSPECT_S)
        return f"its node does not say: {answer}" if isinstance(answer, Exception) else answer

    def close(self) -> None:
        """End every actor, and leave the cluster."""
        for held in self.held.values():
            self.kill(held)
        self._ray.shutdown()


def _why_unavailable(backend: str, kind: str) -> str:
    from kernelmark import backends

    chosen = backends.registry.get(backend)
    return chosen.available() or chosen.missing_on(kind)


def gpu_resource(info: DeviceInfo) -> str:
    """Return the custom resource of Ray for a model of devices: gpu_model:NVIDIA-H200. Where a node
    has it, an actor reserves one of it."""
    return "gpu_model:" + re.sub(r"[^A-Za-z0-9]+", "-", info.model).strip("-")


def _public(node: Node, info: DeviceInfo) -> str:
    name = f"{info.kind}:{info.index}" if info.index or info.kind in _GPUS else info.name
    return f"{node.name}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Devices that a text stands for: `count` of those with these `names`."""

    count: int
    names: tuple[str, ...]
    devices: tuple[tuple[Node, DeviceInfo], ...]

    @property
    def nodes(self) -> list[Node]:
        return list({node.id: node for node, _ in self.devices}.values())

    def actors(self, held: set[str]) -> list[tuple[Node, DeviceInfo]]:
        """Return the devices to create actors for. Of GPUs, all of their nodes, since Ray chooses
        which of them an actor gets."""
        missing = self.count - len(held & {*self.names})
        if missing <= 0:
            return []
        if self.devices[0][1].kind not in _GPUS:
            free = [(n, info) for n, info in self.devices if _public(n, info) not in held]
            return free[:missing]
        every = [(node, info) for node in self.nodes for info in node.gpus]
        return [(node, info) for node, info in every if _public(node, info) not in held]


def choose(nodes: Sequence[Node], text: str) -> Choice:
    """Return the devices that a user's text stands for: `all` GPUs, a kind (cuda), part of a
    model's name (H200), any four of them (4xH200), or one by its name (NODE/cuda:0,
    NODE/cuda:0-7)."""
    match = _COUNTED.match(text)
    assert match is not None
    number, what = match.groups()
    usable = [(node, info) for node in nodes if not node.reason for info in node.infos]
    found = [(n, info) for n, info in usable if _is_meant(what, n, info) and not info.unusable]
    if what == "all" and not found:
        found = [(node, info) for node, info in usable if info.kind == "cpu"]
    count = int(number) if number else len(found)
    if not 0 < count <= len(found):
        models = Counter(f"{info.model} ({info.kind})" for _, info in usable)
        there_are = join_commas([f"{total} x {model}" for model, total in models.items()])
        refused = [f"{node.name}: {node.reason}" for node in nodes if node.reason]
        have = "no device" if not found else f"only {counted(len(found), 'device')}"
        raise UsageError(
            f"the Ray cluster has {have} for {text!r}",
            hint="; ".join([f"there are: {there_are or 'none'}", *refused]),
        )
    names = tuple(_public(node, info) for node, info in found)
    return Choice(count=count, names=names, devices=tuple(found))


def _is_meant(what: str, node: Node, info: DeviceInfo) -> bool:
    if what == "all":
        return info.kind in _GPUS
    if what in device_kinds.registry:
        return info.kind == what
    if match := _RANGE.match(what):
        same = match[1] == f"{node.name}/{info.kind}"
        return same and int(match[2]) <= info.index <= int(match[3])
    if "/" in what:
        return what in (_public(node, info), f"{node.name}/{info.kind}:{info.index}")
    return what.lower() in info.model.lower()


class RayPlace:
    """A Ray cluster as a place: its devices by name, and workers on them."""

    def __init__(self, cluster: Cluster, tell: Callable[[str], object] = lambda text: None) -> None:
        self._cluster = cluster
        self._tell = tell
        self._names: dict[str, list[str]] = {}  # by the text that chose them
        self._unavailable: dict[tuple[str, str], str] = {}
        self.workers = RayWorkers(cluster)

    @property
    def compilers(self) -> int:
        cpus = sum(int(node.cpus) for node in self._cluster.compile_nodes())
        return max(1, min(_MOST_COMPILERS, cpus))

    def devices(self, names: Sequence[str]) -> list[DeviceInfo]:
        chosen: dict[str, DeviceInfo] = {}
        for text in names:
            if text not in self._names and text not in self._cluster.held:
                choice = choose(self._cluster.nodes(), text)
                self._names[text] = self._cluster.reserve(choice, self._tell)
            for name in self._names.get(text, [text]):
                info = self._cluster.held[name].info
                assert info is not None
                chosen[name] = info
        return list(chosen.values())

    def unavailable(self, backend: str, info: DeviceInfo) -> str:
        key = backend, info.kind
        if key not in self._unavailable:
            self._unavailable[key] = self._cluster.unavailable(backend, info)
        return self._unavailable[key]

    def close(self) -> None:
        self._cluster.close()


def connected(address: str) -> Any:
    """Connect to a Ray cluster, and return the module. `ray` is the cluster of $RAY_ADDRESS, or a
    new one on this machine; `auto` is one that runs on it."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError("Ray is not installed", hint=INSTALL)
    import ray

    if match := re.search(r"([^/:]+):(\d+)$", address):
        try:  # Ray would try for minutes
            socket.create_connection((match[1], int(match[2])), _CONNECT_S).close()
        except OSError as error:
            raise UsageError(
                f"no Ray cluster answers at {address}: {error.strerror or error}", hint=_START
            ) from None
    how = {"log_to_driver": False, "logging_level": "ERROR", "namespace": NAMESPACE}
    os.environ.setdefault(*NICENESS)
    try:
        if address == "ray" and "RAY_ADDRESS" not in os.environ:
            ray.init(address="local", include_dashboard=False, **how)
        else:
            ray.init(address=os.environ["RAY_ADDRESS"] if address == "ray" else address, **how)
    except ImportError as error:
        raise UsageError(f"Ray cannot connect: {error}", hint='pip install "ray[client]"') from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        # A version mismatch is a RuntimeError.
        first = str(error).strip().splitlines()
        raise UsageError(
            f"cannot connect to the Ray cluster {address}: {' '.join(first[:4])}", hint=_START
        ) from None
    return ray


def inspector() -> Callable[[], dict[str, Any]]:
    """Return the function that a node runs to report about itself. It is defined here, inside a
    function, so that Ray sends its code: the node may have no kernelmark, or another one."""

    def inspect() -> dict[str, Any]:
        import dataclasses
        import importlib.metadata
        import os
        import platform

        report: dict[str, Any] = {
            "python": platform.python_version(),
            "kernelmark": "",
            "infos": [],
        }
        try:
            from kernelmark.devices import registry
        except ImportError as error:
            return {**report, "reason": f"kernelmark is missing: {error}"}
        report["kernelmark"] = importlib.metadata.version("kernelmark")
        report["niceness"] = os.getpriority(os.PRIO_PROCESS, 0)
        for name in registry.names():
            kind = registry.get(name)
            try:
                infos = kind.infos() if kind.available() is None else []
            except Exception as error:  # a broken driver: other devices may work
                report["reason"] = f"{name}: {type(error).__name__}: {error}"
                continue
            report["infos"] += [
                {**vars_of, "attributes": dict(vars_of["attributes"])}
                for info in infos
                for vars_of in [{f.name: getattr(info, f.name) for f in dataclasses.fields(info)}]
            ]
        return report

    return inspect


def _plain(node: Mapping[str, Any], name: str) -> Node:
    resources = node["Resources"]
    cpus = float(resources.get("CPU", 0.0))
    return Node(id=node["NodeID"], name=name, cpus=cpus, resources=resources)


def _node(node: Node, report: Mapping[str, Any] | Exception, names: Sequence[str]) -> Node:
    """Add to a node what it reported, and the reason not to use it."""
    if isinstance(report, Exception):
        first = str(report).strip().splitlines()[:1]
        return dataclasses.replace(node, reason=f"no report: {first[0] if first else report!r}")
    holders = [name.partition(": ")[2] for name in names if name.startswith(f"{node.name}/")]
    node = dataclasses.replace(
        node,
        python=report["python"],
        kernelmark=report["kernelmark"],
        niceness=report.get("niceness", 0),
        holders=tuple(dict.fromkeys(re.sub(r" \(\d+\)$", "", name) for name in holders)),
    )
    reason = report.get("reason", "")
    own = kernelmark_version()
    if report["kernelmark"] and report["kernelmark"] != own:
        reason = f"it has kernelmark {report['kernelmark']}, and {own} is here"
    infos = () if reason else tuple(DeviceInfo(**fields) for fields in report["infos"])
    return dataclasses.replace(node, infos=infos, reason=reason)


def open_place(runner: str, tell: Callable[[str], object]) -> RayPlace:
    """Return the cluster that `--runner` names: ray, auto, ray://HOST:PORT or HOST:PORT."""
    if runner not in ("ray", "auto") and ":" not in runner:
        raise UsageError(f"{runner!r} is not a runner", hint="known: local, ray, auto, HOST:PORT")
    return RayPlace(Cluster(runner), tell)
