"""The roofs of a CPU, from the microbenchmarks that they come from."""

import shutil

import numpy as np
import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason, shorten
from kernelmark.core.result import Status
from kernelmark.devices import registry as devices
from kernelmark.devices.cpu import CpuDevice
from kernelmark.micro import registry, session
from kernelmark.micro._rigs import CpuRig, confirmed
from kernelmark.micro.benchmarks import matrix, stream
from kernelmark.micro.session import execute
from kernelmark.stores.roofs import newest
from kernelmark.testing.micro import micro_result
from kernelmark_dev.raising import raises

COMPILED = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="needs a C++ compiler: c++, g++ or clang++",
)
MIB = 2**20


@pytest.fixture
def rig():
    made = CpuRig(CpuDevice(1))
    yield made
    made.close()


@pytest.fixture
def no_compiler(monkeypatch):
    from kernelmark.micro import _kernels

    _kernels.library.cache_clear()
    monkeypatch.setattr(_kernels, "_commands", list)
    yield
    _kernels.library.cache_clear()


def found_roofs(results):
    wanted = {"host": None, "threads": None}
    return {r.name: r for r in newest([(Environment(), one) for one in results], wanted)}


def brief(rig, name, **given):
    return execute(registry.get(name), rig, "brief", given)


@COMPILED
def test_a_cpu_has_roofs_of_its_vectors_and_its_memory(rig):
    few = {"kernels": "read,copy,triad", "nbytes": 8 * MIB, "samples": 1}
    results = [brief(rig, "vector", passes=2), brief(rig, "stream", **few)]
    found = found_roofs(results)
    assert {"f32", "f64", "dram"} <= found.keys()
    info = devices.get("cpu").infos()[0]
    for roof in found.values():
        assert (roof.device, roof.arch, roof.threads) == ("cpu", info.arch, 1)
        assert roof.limit
        assert roof.value > 0


@pytest.mark.parametrize(
    ("rounds", "best", "steady", "taken"),
    [
        ([10.0, 10.0, 10.0], 10.0, True, 3),
        # Slowed down by other work at first: what is lower counts neither for nor against.
        ([3.0, 10.0, 5.0, 9.95, 4.0, 10.05], 10.05, True, 6),
        ([1.0 * 2**n for n in range(10)], 512.0, False, 10),  # never twice the same
    ],
)
def test_rounds_go_on_until_two_more_agree_with_the_best(rounds, best, steady, taken):
    left = iter(rounds)
    assert confirmed(lambda: next(left)) == (best, steady)
    assert len(list(left)) == len(rounds) - taken


def test_the_stack_of_a_worker_that_did_not_answer_is_not_in_the_notes(monkeypatch):
    stack = 'Current thread 0x01 (most recent call first):\n  File "/a/_host.py", line 10 in run'
    lost = Reason(f"no answer\n{stack}", "no-answer", limit_s=120.0)
    late = micro_result("stream", device="cpu", status=Status.TIMEOUT, error=lost)
    assert len(late.error.splitlines()) > 1
    monkeypatch.setattr(session, "run", lambda names, **given: [late])
    notes = []
    assert session.measure_roof_sources("cpu", 1, notes.append) == [late]
    assert [len(note.splitlines()) for note in notes] == [1, 1]
    assert notes[1].endswith(shorten(late.error))


def test_one_session_measures_all_roofs_of_a_cpu(monkeypatch):
    calls = []
    monkeypatch.setattr(session, "run", lambda names, **given: calls.append((names, given)) or [])
    assert session.measure_roof_sources("cpu", 0, print) == []
    ((names, given),) = calls
    assert names == ["vector", "stream"]
    assert given["own_parameters"]["stream"] == {"kernels": "read,copy,triad"}


def test_more_threads_than_cores_are_refused():
    with raises(UsageError, threads=9999):
        session.measure_roof_sources("cpu", 9999, print)


@COMPILED
class TestPasses:
    def call(self, rig, steps, grid=1):
        out = rig.memory(64)
        return rig.call(matrix.VECTOR_FILE, "vector_f32", steps, out, grid=grid), out

    def test_a_chain_computes_what_it_counts(self, rig):
        made, out = self.call(rig, 100)
        done = rig.passes([made], 3)
        count = rig.memory(64)
        rig.run(rig.call(matrix.VECTOR_FILE, "vector_chains", count))
        chains = int(rig.read(count, np.uint32, 1)[0])
        assert float(rig.read(out, np.float64, 1)[0]) == 100 * chains * rig.vector_bytes / 4
        assert len(done.whole_s) == 3
        assert 0 < done.alone_s[0] <= min(done.whole_s)

    def test_threads_that_share_a_core_are_timed_as_a_whole(self, rig):
        """Each alone would be as fast as if it had the core for itself: their sum is a lie."""
        made, _ = self.call(rig, 100_000, grid=2)
        done = rig.passes([made], 5)
        assert done.alone_s == (min(done.whole_s),) * 2

    def test_threads_that_cannot_be_pinned_are_timed_as_a_whole(self, rig, monkeypatch):
        made, _ = self.call(rig, 1000)
        monkeypatch.setattr(rig.device, "cores", (1023,))
        done = rig.passes([made], 2)
        assert done.alone_s == (min(done.whole_s),)

    def test_passes_take_their_calls_in_turn_and_touch_all_of_the_arrays(self, rig):
        arrays = stream.allocate(rig, 8 * MIB, 1)
        parts = stream.parts(arrays)
        rig.zero(arrays.buffers[0])
        calls = [stream.stream_call(rig, one, "copy", grid=1, block=1) for one in parts]
        rig.passes(calls, len(parts))
        copied, source = (
            rig.read(buffer, np.float64, arrays.count, stream.PAD_BYTES)
            for buffer in arrays.buffers[:2]
        )
        assert (copied == source).all()
        assert stream.check(rig, arrays, "read", grid=1, block=1) is None

    def test_a_wrong_sum_is_no_result(self, rig, monkeypatch):
        monkeypatch.setattr(rig, "read", lambda *given, **more: np.ones(1))
        assert brief(rig, "vector", passes=1, dtypes="f32").status is Status.WRONG


def test_without_a_compiler_numpy_stands_in_and_says_so(no_compiler, rig):
    results = [brief(rig, "vector"), brief(rig, "stream", nbytes=8 * MIB)]
    assert [result.status for result in results] == [Status.OK] * 2
    found = found_roofs(results)
    assert set(found) == {"f32", "f64", "dram"}
    assert all(not roof.limit for roof in found.values())
    assert {m.name for result in results for m in result.metrics} == {
        *("numpy_f32", "numpy_f64", "numpy_copy")
    }
    assert brief(rig, "cache").status is Status.UNSUPPORTED


@pytest.mark.parametrize("value", [2e12, 0.0, -1.0])
def test_an_impossible_peak_is_refused(rig, monkeypatch, value):
    """A planted unit error: FLOP/ms."""
    rate = matrix.FlopRate(per_s=value, right=True, spread=None)
    for name in ("time_chains", "_time_numpy"):
        monkeypatch.setattr(matrix, name, lambda *given: rate)
    result = brief(rig, "vector", dtypes="f32")
    assert result.status is (Status.WRONG if value else Status.OK)
    assert found_roofs([result]) == {}
