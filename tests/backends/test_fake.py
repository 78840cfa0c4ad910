"""The fake backend does what its script says, and nothing else."""

import itertools
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from kernelmark import ops
from kernelmark.backends import fake
from kernelmark.backends.fake import MAX_FLOPS, Script, backend
from kernelmark.core.errors import CompileError, OutOfMemory, Unsupported
from kernelmark.core.timing import Timer
from kernelmark.devices import cpu
from kernelmark.devices.cpu import CpuDevice
from kernelmark.devices.fake import FakeDevice
from kernelmark.testing.backends import bench
from kernelmark_dev.raising import raises

PROBLEM = ops.parse("gemm m=8 n=9 k=10 dtype=f32")
INTS = ops.parse("gemm m=8 n=9 k=10 dtype=i8")
POISON = 0xFF


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))


def launched(problem=PROBLEM, launches=1, **config):
    """(bench-like facts) after some launches on set 0: error, unwritten, guards."""
    device = FakeDevice()
    with bench(backend, problem, device, config=config) as made:
        for _ in range(launches):
            made.outcome(0, POISON)
        out = made.output(0)
        return made.worst(0), device.count_poison(out, POISON), device.guards_intact(out)


@pytest.mark.parametrize(
    ("problem", "faults"),
    [
        (PROBLEM, ("wrong", "nan")),
        (INTS, ("wrong", "nan")),
        (ops.parse("gemm m=8 n=8 k=64 dtype=f8e4m3 c=f8e4m3"), ("wrong",)),
        # Two elements of four bits share a byte.
        (ops.parse("batched_gemm_quant batch=2 m=3 n=4 k=64 scheme=afp4wfp4"), ()),
    ],
    ids=["f32", "i8", "f8", "f4"],
)
def test_answers_are_right_or_wrong_as_asked(problem, faults):
    assert launched(problem)[0] <= 1
    assert all(launched(problem, behaviour=fault)[0] > 1 for fault in faults)


def test_each_fault_is_the_one_asked_for_and_begins_after_some_launches():
    assert launched()[1:] == (0, True)
    assert launched(behaviour="unwritten")[1:] == (1, True)
    assert launched(behaviour="overrun") == (pytest.approx(0, abs=1), 0, False)
    assert launched(behaviour="wrong", after=2, launches=2)[0] <= 1
    assert launched(behaviour="wrong", after=2, launches=3)[0] > 1


def test_nothing_is_written_without_a_launch():
    device = FakeDevice()
    with bench(backend, PROBLEM, device) as made:
        made.kernel.collect(0)
        assert device.count_poison(made.output(0), POISON) == made.output(0).spec.count


def times(config, launches=10, device=None):
    device = device or FakeDevice()
    with bench(backend, PROBLEM, device, config=config) as made:
        replays = [device.record(made.kernel.launch, [0, 1], Timer.AUTO) for _ in range(launches)]
        return [replay.run().elapsed_s - device.script.replay_s for replay in replays]


def test_time_on_the_fake_device_is_exact():
    assert times({"time_us": 25.0}) == pytest.approx([50e-6] * 10, rel=1e-9)
    assert times(dict(fake.DEFAULT)) == pytest.approx(times({}), rel=1e-9)  # its own choice


def test_noise_is_seeded_and_of_the_size_asked_for():
    noisy = times({"time_us": 100.0, "noise": 0.05, "seed": 3}, launches=400)
    assert np.std(noisy) == pytest.approx(200e-6 * 0.05 / 2**0.5, rel=0.2)
    assert np.median(noisy) == pytest.approx(200e-6, rel=0.02)
    other = times({"time_us": 100.0, "noise": 0.05, "seed": 4}, launches=400)
    assert noisy != other


def test_blocks_differ_by_block_noise_alone():
    config = {"time_us": 100.0, "block_noise": 0.1, "seed": 5}
    first, second = times(config), times(config)
    assert np.ptp(first) < 1e-12
    assert np.ptp(second) < 1e-12
    assert abs(first[0] - second[0]) > 1e-7


@pytest.mark.parametrize("time_us", [300.0, 3000.0])
def test_on_the_cpu_a_launch_really_takes_its_time(time_us, monkeypatch):
    """By a clock that goes on by a microsecond whenever it is read."""
    clock = itertools.count(step=1000)
    monkeypatch.setattr(cpu, "_WALL_CLOCK", lambda: next(clock))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) * 1e-9)
    device = CpuDevice()
    try:
        with bench(backend, PROBLEM, device, config={"time_us": time_us}) as made:
            replay = device.record(made.kernel.launch, [0], Timer.AUTO)
            readings = [replay.run().elapsed_s * 1e6 for _ in range(10)]
    finally:
        device.close()
    assert min(readings) >= time_us
    assert max(readings) < time_us + 5


def test_a_compiler_takes_its_time_once():
    info = FakeDevice().info
    config = {"behaviour": "slow_compile", "compile_s": 0.2}
    start = time.perf_counter()
    first = backend.compile(PROBLEM, config, info)
    assert time.perf_counter() - start >= 0.2
    again = backend.compile(PROBLEM, config, info)
    assert (first.cached, first.compile_s) == (False, 0.2)
    assert (again.cached, again.compile_s) == (True, 0.0)


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [("oom", OutOfMemory), ("compile_error", CompileError), ("raise", RuntimeError)],
)
def test_failures_raise_as_asked(behaviour, error):
    with pytest.raises(error):
        launched(behaviour=behaviour)


def test_a_memory_hog_meets_its_own_limit():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError):
        launched(behaviour="memory_hog", hog_bytes=1 << 26)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def ended(config, timeout_s=600.0):
    """Exit code of a process that launches once; None when it was still going."""
    code = (
        "from kernelmark import ops\n"
        "from kernelmark.backends.fake import backend\n"
        "from kernelmark.devices.fake import FakeDevice\n"
        "from kernelmark.testing.backends import bench\n"
        "problem = ops.parse('gemm m=8 n=8 k=8 dtype=f32')\n"
        f"with bench(backend, problem, FakeDevice(), config={config!r}) as made:\n"
        "    print('launching', flush=True)\n"
        "    made.kernel.launch(0, 0)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "launching\n"
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None
    finally:
        process.stdout.close()


@pytest.mark.parametrize(
    ("behaviour", "timeout_s", "code"),
    [("crash", 600.0, -signal.SIGKILL), ("abort", 600.0, -signal.SIGABRT), ("hang", 1.0, None)],
)
def test_a_crash_kills_the_process_and_a_hang_does_not_end(behaviour, timeout_s, code):
    assert ended({"behaviour": behaviour}, timeout_s) == code


@pytest.mark.parametrize(
    "config",
    [
        {"behaviour": "sleepy"},
        {"behaviour": 3},
        {"speed": 1},
        {"time_us": "10"},
        {"time_us": -1.0},
        {"time_us": float("nan")},
        {"after": True},
        {"after": 1.5},
        {"tile_m": 32},  # tiles are given whole
    ],
)
def test_a_bad_script_is_refused_in_one_sentence(config):
    (name,) = config
    values = {"names": tuple(fake.TILES)} if name in fake.TILES else {"name": name}
    with raises(Unsupported, **values):
        Script.read(config)


def test_large_problems_are_refused_with_the_limit():
    reason = backend.supports(ops.parse("gemm m=4096 n=4096 k=4096 dtype=f32"), FakeDevice().info)
    assert reason is not None
    assert str(MAX_FLOPS) in reason


# Tiles


def test_tiles_cost_what_the_model_says():
    config = dict(fake.DEFAULT)
    factor = fake.tiled(PROBLEM, config).factor
    assert times(config) == pytest.approx([2 * 10e-6 * factor] * 10, rel=1e-9)
    assert times({**config, "time_us": 50.0})[0] == pytest.approx(2 * 50e-6 * factor, rel=1e-9)
    info = backend.compile(PROBLEM, config, FakeDevice().info)
    assert info.resources["shared_bytes"] == (32 + 32) * 16 * 2


def test_the_space_has_something_to_find_and_every_way_to_fail():
    space = backend.space(PROBLEM, FakeDevice().info)
    costs = [fake.tiled(PROBLEM, config) for config in space]
    good = sorted(cost.factor for cost in costs if not cost.fault)
    default = fake.tiled(PROBLEM, space.default)
    assert not default.fault
    assert good[0] < 0.85 * default.factor < default.factor < good[-1]
    faults = {cost.fault for cost in costs}
    assert faults == {"", "wrong", "raise", "crash", "hang", "compile_error"}
    assert sum(bool(cost.fault) for cost in costs) < len(costs) / 5
    assert any(cost.resources["stack_bytes"] > 1024 for cost in costs)


def test_where_the_best_tiles_are_depends_on_the_problem():
    def best(key):
        problem = ops.parse(key)
        costs = ((fake.tiled(problem, c), c) for c in fake.space())
        return min((cost.factor, tuple(c.values())) for cost, c in costs if not cost.fault)[1]

    assert best("gemm m=8 n=8 k=8 dtype=f32") != best("gemm m=4096 n=4096 k=64 dtype=f32")
