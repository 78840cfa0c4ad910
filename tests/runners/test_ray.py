"""Workers in a Ray cluster, without Ray: actors run in this process, on an event loop. The last
tests use a cluster of three nodes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future, wait
from types import SimpleNamespace

import pytest

import kernelmark as km
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.result import Case, Status
from kernelmark.core.timing import Timing
from kernelmark.ops import parse
from kernelmark.runners import kernel_files, places
from kernelmark.runners.events import CaseFinished, DeviceLost
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import MACHINE_LOST
from kernelmark.runners.ray import (
    Cluster,
    Holder,
    Node,
    RayPlace,
    choose,
    gpu_resource,
    inspector,
    open_place,
    pack,
    unpack,
)
from kernelmark_dev.tuning import fake_plans, make_folder

QUICK = Timing.preset("quick", max_s=0.01, warmup_s=0.0, allocations=1, max_allocations=1)
H200 = DeviceInfo(name="cuda:0", kind="cuda", model="NVIDIA H200", arch="sm_90", uuid="u0")
CPU = DeviceInfo(name="cpu", kind="cpu", model="a CPU", arch="x86_64")
FAKE = DeviceInfo(name="fake", kind="fake", model="a script", arch="fake")
MI300 = DeviceInfo(name="hip:0", kind="hip", model="AMD Instinct MI300X", arch="gfx942")


def node(name, *infos, **more):
    return Node(id=name, name=name, cpus=2, infos=infos, **more)


def gpus(count, info=H200):
    kind = info.kind
    return [dataclasses.replace(info, name=f"{kind}:{i}", index=i) for i in range(count)]


NODES = [node("a", *gpus(4)), node("b", *gpus(2), FAKE), node("c", *gpus(1, MI300)), node("d")]


def cases(count, **config):
    return [
        Case(
            problem=parse(f"gemm m={i + 1} n=1 k=1 dtype=f32"),
            backend="fake",
            timing=QUICK,
            config=config,
        )
        for i in range(count)
    ]


# Which devices a text stands for


@pytest.mark.parametrize(
    ("text", "count", "names"),
    [
        ("H200", 6, ("a/cuda:0", "a/cuda:1", "a/cuda:2", "a/cuda:3", "b/cuda:0", "b/cuda:1")),
        ("2xh200", 2, ("a/cuda:0", "a/cuda:1", "a/cuda:2", "a/cuda:3", "b/cuda:0", "b/cuda:1")),
        ("b/cuda:1", 1, ("b/cuda:1",)),
        ("a/cuda:1-2", 2, ("a/cuda:1", "a/cuda:2")),
        ("hip", 1, ("c/hip:0",)),
        ("fake", 1, ("b/fake",)),
    ],
)
def test_a_text_stands_for_devices_of_the_cluster(text, count, names):
    choice = choose(NODES, text)
    assert (choice.count, choice.names) == (count, names)


def test_of_a_node_with_gpus_all_get_an_actor_since_ray_chooses_which_one():
    choice = choose(NODES, "b/cuda:1")
    assert [info.name for _, info in choice.actors(set())] == ["cuda:0", "cuda:1"]
    assert choice.actors({"b/cuda:1"}) == []


@pytest.mark.parametrize("text", ["MI355X", "7xH200", "0xH200", "e/cuda:0", "cpu"])
def test_devices_that_are_not_there_are_refused_with_those_that_are(text):
    with pytest.raises(UsageError) as error:
        choose(NODES, text)
    assert "6 x NVIDIA H200 (cuda)" in error.value.hint


def test_a_node_with_a_reason_has_no_devices():
    broken = node("x", *gpus(1), reason="it has kernelmark 0.0")
    with pytest.raises(UsageError) as error:
        choose([broken], "all")
    assert "0.0" in error.value.hint


def test_a_model_is_a_custom_resource():
    assert gpu_resource(H200) == "gpu_model:NVIDIA-H200"


@pytest.mark.parametrize("runner", ["slurm", "raay"])
def test_an_unknown_runner_is_refused(runner):
    with pytest.raises(UsageError):
        open_place(runner, print)


def test_a_missing_ray_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError) as error:
        open_place("ray", print)
    assert error.value.hint == 'pip install "kernelmark[ray]"'


def test_an_address_that_nobody_listens_at_is_refused_at_once():
    pytest.importorskip("ray")
    begin = time.monotonic()
    with pytest.raises(UsageError):
        open_place("127.0.0.1:1", print)
    assert time.monotonic() - begin < 5


def test_a_node_reports_devices_and_versions():
    report = inspector()()
    assert {info["kind"] for info in report["infos"]} >= {"cpu", "fake"}
    assert report["python"]
    assert DeviceInfo(**report["infos"][0]).model


# Files of compiled kernels


def test_compiled_files_are_packed_once_and_unpacked_below_another_folder(tmp_path):
    here, there, sent = tmp_path / "a", tmp_path / "b", set()
    (here / "triton" / "x").mkdir(parents=True)
    (here / "triton" / "x" / "group.json").write_text(f'"{here}/triton/x/k.cubin"')
    (here / "triton" / "x" / "k.cubin").write_bytes(b"\x01")
    files = pack(here, sent)
    assert pack(here, sent) == {}
    unpack(files, there)
    assert (there / "triton" / "x" / "group.json").read_text() == f'"{there}/triton/x/k.cubin"'
    assert (there / "triton" / "x" / "k.cubin").read_bytes() == b"\x01"


def test_no_file_is_written_outside_the_folder(tmp_path):
    unpack({"../out": b"", "/tmp/out": b""}, tmp_path / "cache")
    assert not (tmp_path / "out").exists()


# Workers, in actors that run on an event loop of this process


class Died(Exception):
    pass


class Actor:
    """What Ray makes of a Holder: methods with `remote`, which return at once."""

    def __init__(self, loop, own_cache):
        self.loop, self.dead = loop, False
        self.calls: list[Future] = []
        self.holder = Holder(own_cache=own_cache)

    def __getattr__(self, name):
        def remote(*arguments, **options):
            if self.dead:
                future: Future = Future()
                future.set_exception(Died("the node has died"))
                return future
            arguments = [a.result() if isinstance(a, Future) else a for a in arguments]
            call = getattr(self.holder, name)(*arguments, **options)
            future = asyncio.run_coroutine_threadsafe(call, self.loop)
            self.calls.append(future)
            return future

        return SimpleNamespace(remote=remote)

    def die(self):
        self.dead = True
        for entry in self.holder._entries.values():
            if hasattr(entry.worker, "kill"):
                entry.worker.kill()
        for call in self.calls:
            call.cancel()


class Double(Cluster):
    """A cluster of nodes in this process."""

    def __init__(self, nodes):
        self.held, self.kernels, self.alive = {}, {}, {n.id for n in nodes}
        self._nodes = nodes
        self._compilers = iter(range(1000))
        self._owner = "me"
        self.created, self.shipped = [], 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def wait(self, calls, timeout_s):
        return list(wait(calls, timeout_s, return_when="FIRST_COMPLETED").done)

    def get(self, call, timeout_s=None):
        try:
            return call.result(timeout_s)
        except BaseException as error:
            return Died(str(error))

    def put(self, files):
        self.shipped += 1
        future: Future = Future()
        future.set_result(files)
        return future

    def kill(self, held):
        if not held.actor.dead:
            self.loop.call_soon_threadsafe(held.actor.die)

    def _create(self, options):
        actor = Actor(self.loop, own_cache=options["num_cpus"] > 0)
        actor.dead = options["scheduling_strategy"] not in self.alive
        self.created.append(options["name"])
        return actor

    def _on(self, node, *, soft):
        return node.id

    def unavailable(self, backend, info):
        return ""

    def close(self):
        for held in self.held.values():
            self.kill(held)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


@pytest.fixture
def cluster():
    infos = [dataclasses.replace(FAKE, index=0)]
    double = Double([node("a", *infos), node("b", *infos)])
    with places.at(RayPlace(double)):
        yield double


def run(*names, count=4, jobs=0, on_event=lambda event: None, **config):
    events = []
    for event in LocalRunner(list(names), jobs=jobs).run(cases(count, **config)):
        on_event(event)
        events.append(event)
    return events


def results(events):
    return [event.result for event in events if isinstance(event, CaseFinished)]


@pytest.mark.slow
def test_devices_of_all_nodes_share_the_cases(cluster):
    done = results(run("fake", count=6))
    assert [result.status for result in done] == [Status.OK] * 6
    assert {result.device for result in done} == {"a/fake", "b/fake"}


@pytest.mark.slow
def test_compiled_files_reach_the_device(cluster):
    done = results(run("a/fake", count=2, jobs=1, compile_s=0.05))
    assert cluster.shipped == 2
    assert all(result.kernel.cached for result in done)
    assert sum("compiler" in name for name in cluster.created) == 1


@pytest.mark.slow
def test_a_case_whose_actor_dies_is_repeated_and_counted_once(cluster):
    left = deque([True])

    def kill(event):
        if isinstance(event, CaseFinished) and left:
            left.pop()
            cluster.kill(cluster.held["a/fake"])

    done = results(run("a/fake", count=4, on_event=kill))
    assert sorted(r.case.problem.dims["m"] for r in done) == [1, 2, 3, 4]
    assert {result.status for result in done} == {Status.OK}


@pytest.mark.slow
def test_a_dead_node_is_given_up_and_the_others_take_its_cases(cluster):
    def kill(event):
        if isinstance(event, CaseFinished) and "a" in cluster.alive:
            cluster.alive.discard("a")
            cluster.kill(cluster.held["a/fake"])

    events = run("fake", count=6, on_event=kill)
    assert [e.device for e in events if isinstance(e, DeviceLost)] in (["a/fake"], [])
    assert sorted(r.case.problem.dims["m"] for r in results(events)) == [1, 2, 3, 4, 5, 6]
    assert {result.status for result in results(events)} == {Status.OK}


@pytest.mark.slow
def test_without_any_node_the_run_ends_and_keeps_its_results(cluster):
    done = []

    def kill(event):
        if isinstance(event, CaseFinished):
            done.append(event.result)
            cluster.alive.clear()
            cluster.kill(cluster.held["a/fake"])

    with pytest.raises(KernelmarkError) as error:
        run("a/fake", count=4, on_event=kill)
    assert error.value.message.code == MACHINE_LOST
    assert all(result.status is Status.OK for result in done)


@pytest.mark.slow
def test_a_crash_of_a_worker_is_a_result_and_its_actor_lives_on(cluster):
    done = results(run("a/fake", count=2, behaviour="crash"))
    assert [result.status for result in done] == [Status.CRASHED] * 2
    assert not cluster.held["a/fake"].is_dead


KERNEL = """
import numpy as np


op = "gemm"
devices = ("cpu",)


def prepare(problem, config, sets):
    def launch(index):
        np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
"""


@pytest.mark.slow
def test_a_kernel_file_runs_on_nodes_that_do_not_have_it(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.py").write_text(KERNEL)
    cluster._nodes[0] = node("a", dataclasses.replace(CPU, index=0))
    backend = kernel_files.find("sub/mine.py")
    case = Case(problem=parse("gemm m=4 n=4 k=4 dtype=f32"), backend=backend.name, timing=QUICK)
    events = list(LocalRunner(["a/cpu"], jobs=0).run([case]))
    (result,) = results(events)
    assert (result.status, result.device) == (Status.OK, "a/cpu")


def test_a_kernel_file_elsewhere_has_no_name_on_another_machine(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "mine.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(kernel_files, "_current", None)
    kernel_files.find("../mine.py")
    with pytest.raises(UsageError):
        kernel_files.loaded_texts()


def test_a_request_waits_for_its_worker_to_be_started():
    """Ray may begin the calls of a caller in another order."""

    async def calls():
        holder, sent = Holder(), []
        holder._send = lambda entry, *_: sent.append(entry.turn)
        holder._start = lambda entry, *_: sent.append("start")
        second = asyncio.ensure_future(holder.call(1, 1, "send", {}, None))
        await asyncio.sleep(0.01)
        assert not second.done()
        await holder.call(1, 0, "start", None, "")
        await second
        return sent

    assert asyncio.run(calls()) == ["start", 1]


# Ray itself


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "180")  # read when Ray is imported
        ray_utils = pytest.importorskip("ray.cluster_utils")
        made = ray_utils.Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        for number in range(2):
            locks = str(tmp_path_factory.mktemp(f"locks{number}"))
            made.add_node(num_cpus=1, env_vars={"KERNELMARK_LOCKS": locks, **os.environ})
        yield made
        made.shutdown()


@pytest.mark.slow
def test_ray_runs_cases_survives_a_dead_actor_and_leaves_nothing(nodes):
    import ray

    with places.at(open_place(nodes.address, print)):
        place = places.current()
        runner, killed, done = LocalRunner(["3xfake"], jobs=1), [], []
        for event in runner.run(cases(9)):
            if isinstance(event, CaseFinished):
                done.append(event.result)
                if not killed:
                    killed.append(runner.infos[0].name)
                    ray.kill(place._cluster.held[killed[0]].actor)
    assert sorted(r.case.problem.dims["m"] for r in done) == list(range(1, 10))
    assert {result.status for result in done} == {Status.OK}
    assert len({result.device for result in done}) >= 2
    assert_no_actor_is_left(nodes)


def assert_no_actor_is_left(nodes):
    import ray

    ray.init(address=nodes.address, namespace="kernelmark", log_to_driver=False)
    try:
        end = time.monotonic() + 30
        while left := ray.util.list_named_actors(all_namespaces=True):
            assert time.monotonic() < end, left
            time.sleep(0.2)
    finally:
        ray.shutdown()


def start(nodes, folder, *words):
    """Start a command on the cluster, with files of its own."""
    own = {name: str(folder / name.lower()) for name in ("KERNELMARK_CACHE", "KERNELMARK_STORE")}
    return subprocess.Popen(
        [sys.executable, "-m", "kernelmark", *words, "--runner", nodes.address],
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


GEMM = ["-b", "fake", "-o", "gemm", "-a", "m=8", "-a", "n=8", "-a", "k=8", "--dtype", "f32"]


@pytest.mark.slow
def test_ab_measures_both_sides_on_one_device_of_the_cluster(nodes, tmp_path):
    command = start(nodes, tmp_path, "ab", "-d", "1xfake", *GEMM, "--config", "head:time_us=20")
    told, _ = command.communicate()
    assert command.returncode == 1, told
    assert "1 slower" in told


@pytest.mark.slow
def test_a_tuning_run_uses_the_cluster_and_its_end_leaves_nothing(nodes, tmp_path):
    """Ended by Ctrl-C in the middle, its trials are kept."""
    folder = make_folder(tmp_path / "t", fake_plans(2, evaluations=900))
    command = start(nodes, tmp_path, "tune", "run", str(folder.path), "-d", "2xfake")
    end = time.monotonic() + 300
    while not any(path.stat().st_size for path in folder.trials.glob("*.jsonl")):
        assert time.monotonic() < end
        assert command.poll() is None, command.stdout.read()
        time.sleep(0.2)
    command.send_signal(signal.SIGINT)
    told, _ = command.communicate(timeout=300)
    assert command.returncode == 130, told
    assert_no_actor_is_left(nodes)


@pytest.mark.slow
def test_a_fleet_of_the_cluster_runs_microbenchmarks(nodes, tmp_path):
    words = ["micro", "stream", "--fleet", "--quick", "-d", "1xcpu", "--json", "-"]
    command = start(nodes, tmp_path, *words)
    told, _ = command.communicate()
    assert command.returncode == 0, told


@pytest.mark.slow
def test_python_runs_on_the_cluster(nodes, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
    found = km.run(
        problem="gemm m=8 n=8 k=8 a=f32",
        backend="fake",
        device="1xfake",
        timing=QUICK,
        runner=nodes.address,
    )
    (result,) = found.result_set.results
    assert result.status is Status.OK
    assert result.device.endswith("/fake")
