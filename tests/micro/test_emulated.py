"""Every GPU benchmark on a GPU made of fibers: real kernels, real binding, real checks. Times mean
nothing there; that the kernels compute what they should, and stay inside their memory, does."""

import itertools
import time
from types import SimpleNamespace

import pytest

from kernelmark.core import codec
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.gpu.driver import Driver
from kernelmark.micro import _kernels, registry
from kernelmark.micro.base import GPUS
from kernelmark.micro.benchmarks import matrix
from kernelmark.micro.rig import Timed
from kernelmark.micro.session import execute, open_rig
from kernelmark.testing.micro import RATES, TIMES, check_spreads
from kernelmark_dev import emulator

KIB, MIB = 2**10, 2**20
SMALL = {
    "atomics": {
        "seconds": 1e-5,
        "turns": 4,
        "samples": 3,
        "units": 3,
        "kernels": ("add_u32", "add_f64"),
    },
    "cache": {"sizes": (4 * KIB, 64 * KIB), "seconds": 1e-5, "samples": 2},
    "incore": {"ops": ("fma_f32", "div_f64"), "cycles": 500, "samples": 2, "seconds": 1e-5},
    "instructions": {"cycles": 300, "samples": 2},
    "l2_cache": {"sizes": (64 * KIB, 640 * KIB), "seconds": 1e-5, "samples": 2},
    "latency": {"sizes": (4 * KIB, 8 * KIB, 32 * KIB), "samples": 2, "most": 64, "refine": 1},
    "loaded_latency": {"pauses": (500, 0), "hops": 64, "nbytes": 8 * MIB},
    "matrix": {"seconds": 1e-5, "sustained": 1e-3, "rest": 0.0, "samples": 2},
    "memcpy": {"sizes": (4 * KIB, 64 * KIB), "samples": 2},
    "peer": {"nbytes": MIB, "repeats": 2},
    "roofline": {"steps": (0, 16), "dtypes": ("f64",), "seconds": 1e-5, "most": 64 * MIB},
    "shared": {"rounds": 3, "samples": 2, "hops": 320, "strides": (1, 32)},
    "small_kernels": {"sizes": (8 * KIB, 16 * KIB), "launches": 4, "samples": 2},
    "stream": {"nbytes": MIB, "samples": 2, "threads": (64,)},
    "strides": {"rounds": 2, "samples": 2, "strides": (0, 1, 17)},
    "tlb": {"span": 16 * MIB, "strides": (64 * KIB,), "hops": 64, "samples": 2},
    "um_stream": {"sizes": (3 * MIB,), "samples": 2},
}

pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture
def rig(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
    _kernels.library.cache_clear()
    # Launches of the roofline read 1 MiB, not the 64 that a GPU needs to get going.
    monkeypatch.setitem(matrix._MOST_FLOPS, True, 1.0)
    with emulator.emulated(devices=2, block=64):
        made = open_rig("cuda:0")
        yield made
        made.close()
    _kernels.library.cache_clear()


GPU_BENCHMARKS = [name for name in registry.names() if set(GPUS) & set(registry.get(name).kinds)]


def run(name, rig, **more):
    """The benchmark with its values in SMALL, or as briefly as it can."""
    mode = "quick" if name in SMALL else "brief"
    return execute(registry.get(name), rig, mode, SMALL.get(name, {}) | more)


# Their figures are all counted by clocks inside the kernels; of loaded_latency those alone are
# more than 0 here, where the chain ends before the other blocks begin.
NO_SECONDS = {"instructions", "latency", "loaded_latency", "shared", "strides", "tlb"}


@pytest.fixture
def few_launches(monkeypatch):
    """By a wrong clock any number of launches is too few."""
    monkeypatch.setattr("kernelmark.micro.rig.MOST_LAUNCHES", 2)
    monkeypatch.setattr("kernelmark.micro.benchmarks.small_kernels._PAIRS", 3)


def refused(result):
    assert result.status is Status.WRONG, result.error
    texts = ("above the physical limit", "below the least")
    stalled = Reason.of(result.error).code == "clock-stalled"
    assert stalled or any(text in result.error for text in texts), result.error


@pytest.mark.parametrize("name", sorted(set(GPU_BENCHMARKS) - NO_SECONDS))
def test_seconds_that_are_too_short_are_never_ok(rig, few_launches, monkeypatch, name):
    """Events and the host's clock: the emulated driver's events are stamped by it. It goes on by a
    picosecond whenever it is read."""
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) * 1e-12)
    few = {
        "atomics": {"kernels": "add_u32", "patterns": "same"},
        "stream": {"kernels": "copy", "threads": 64},
    }
    result = run(name, rig, **few.get(name, {}))
    if name in SMALL or result.status is not Status.OK:
        refused(result)
    else:  # one that was added and counts cycles only
        assert not [one.name for one in result.metrics if one.unit in ("s", "ns", *RATES[:3])]


def test_a_wrong_clock_does_not_calibrate_for_hours(rig, monkeypatch):
    """Launches that all take no time would be made longer and longer. By the host's clock, which
    is scripted, a round takes a millisecond."""
    plain_call, plain_time, calls, longest, now = rig.call, rig.time, {}, [], [0.0]

    def call(file, kernel, *values, **more):
        made = plain_call(file, kernel, *values, **more)
        rounds = 1 if kernel in ("atomic_chain", "atomic_ping_pong") else values[3]
        calls[id(made.arguments)] = rounds, made  # kept, so that no id comes twice
        return made

    def none(call, launches=1):
        plain_time(call, launches)
        longest.append(1e-3 * calls[id(call.arguments)][0])
        now[0] += longest[-1]
        return Timed(elapsed_s=1e-15)

    monkeypatch.setattr(rig, "call", call)
    monkeypatch.setattr(rig, "time", none)
    monkeypatch.setattr("kernelmark.micro.rig.time", SimpleNamespace(monotonic=lambda: now[0]))
    refused(run("atomics", rig, kernels="add_u32", patterns="spread"))
    assert 0.001 < max(longest) < 5


@pytest.mark.parametrize("name", ["memcpy", "peer"])
def test_copies_between_devices_are_bounded_by_their_link(rig, name):
    other, found = ("peer", {}) if name == "peer" else ("host", {})
    for one in run(name, rig).metrics:
        found[one.name] = one.limit
    link = rig.hardware.link(other).value
    assert link < rig.hardware.bandwidth("dram").value
    twice = {"both_pinned", "both_ways_least"} & set(found)
    once = {"h2d_pinned", "h2d_pageable", "d2h_pinned", "d2h_pageable", "one_way_least"} & set(
        found
    )
    assert len(twice) == 1
    assert once
    assert all(found[word] == link for word in once)
    assert all(found[word] == 2 * link for word in twice)


@pytest.fixture
def replaced(monkeypatch):
    """Replaces text in a kernel file or in all that have it, and in what is put before them."""
    plain = emulator.emulation_source

    def replace(right, wrong, file=None):
        def broken(asked):
            text = plain(asked)
            assert asked != file or right in text
            return text.replace(right, wrong) if file in (None, asked) else text

        monkeypatch.setattr(emulator, "emulation_source", broken)

    return replace


@pytest.mark.parametrize("name", sorted(NO_SECONDS))
def test_cycles_that_are_too_few_are_never_ok(rig, few_launches, replaced, name):
    right = "return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;"
    # It goes on when it was read a thousand times, however long that takes.
    replaced(right, "static u64 reads; return ++reads / 1000u;")
    assert right not in emulator.emulation_source("micro_chase.cu")
    refused(run(name, rig))


@pytest.mark.parametrize("name", GPU_BENCHMARKS)
def test_runs_and_verifies(rig, name):
    result = run(name, rig)
    if result.status is Status.WRONG:
        # Emulated times may be none; what the kernels computed must be right.
        told = ("below the least", "no measurement", "above the physical limit")
        assert any(words in result.error for words in told), result.error
    else:
        assert result.status is Status.OK, result.error
    names = {column.name for column in result.columns}
    assert result.rows
    assert all(set(row) == names for row in result.rows)
    assert not rig.ledger.buffers
    assert codec.loads(codec.dumps(result), type(result)) == result
    for one in result.metrics:  # what has no bound could hold any number and be `ok`
        assert one.unit not in RATES or one.limit is not None, one.name
        assert one.unit not in TIMES or one.least is not None, one.name
    check_spreads(registry.get(name), result)


BROKEN = [
    ("cache", "micro_window.cu", "v[i] = chunk[i * LANES];", "v[i] = chunk[0];"),
    ("l2_cache", "micro_window.cu", "* chunks) >> 32", "* chunks) >> 33"),
    ("stream", "micro_stream.cu", "a[i] = q * total;", "a[i] = total;"),
    ("stream", "micro_stream.cu", "total[k % IN_FLIGHT] + v[k];", "v[k];"),
    ("latency", "micro_chase.cu", "offsets[i + 1 < count ? i + 1 : 0];", "offsets[i];"),
    ("tlb", "micro_chase.cu", "offsets[i + 1 < count ? i + 1 : 0];", "offsets[0];"),
    ("loaded_latency", "micro_chase.cu", "k < 32; ++k) at = Load", "k < 31; ++k) at = Load"),
    ("latency", "micro_chase.cu", "h += 32", "h += 64"),
    ("roofline", "micro_roofline.cu", "f < 16;", "f < 15;"),
    ("incore", "micro_ops.cu", "d < DEPTH;", "d < DEPTH - 1;"),
    ("shared", "micro_shared.cu", "(i + 33) % LINKS", "(i + 32) % LINKS"),
    ("strides", "micro_strides.cu", "(lane / width) * pitch", "(lane / width)"),
    ("atomics", "micro_atomics.cu", "r < rounds; ++r) add_to", "r < rounds - 1; ++r) add_to"),
    ("small_kernels", "micro_launch.cu", "to[i] = 0.25 * from[i];", "to[i] = 0.5 * from[i];"),
    ("matrix", "micro_matrix.cu", "k < 64; ++k", "k < 63; ++k"),
    ("um_stream", "micro_stream.cu", "b[i] + q * c[i]", "b[i] + c[i]"),
]


# All ten streams take seconds.
AFFECTED = {
    "a[i] = q * total;": {"kernels": "stencil3"},
    "total[k % IN_FLIGHT] + v[k];": {"kernels": "read"},
}


@pytest.mark.parametrize(("name", "file", "right", "wrong"), BROKEN)
def test_a_kernel_that_computes_something_else_is_wrong(rig, replaced, name, file, right, wrong):
    replaced(right, wrong, file)
    result = run(name, rig, **AFFECTED.get(right, {}))
    assert result.status is Status.WRONG, result.error
    assert not any(word in result.error for word in ("limit", "below the least", "no measurement"))


@pytest.mark.parametrize(
    ("name", "right", "wrong", "limit", "told"),
    [
        (
            *("small_kernels", "atomicAdd(arrived, 1u);", ""),
            *("small_kernels._GIVE_UP_CYCLES", "waited in vain"),
        ),
        (
            *("atomics", "blockIdx.x == second ? 1 : 2", "2"),
            *("atomics._ROUNDS_GIVE_UP", "did not pass the word"),
        ),
    ],
)
def test_blocks_that_wait_in_vain_give_up(
    rig, monkeypatch, replaced, name, right, wrong, limit, told
):
    """A barrier that nobody reaches must end by itself: a GPU has no Ctrl-C."""
    replaced(right, wrong)
    monkeypatch.setattr(f"kernelmark.micro.benchmarks.{limit}", 100_000)
    result = run(name, rig)
    assert result.status is Status.WRONG
    assert told in result.error


def test_more_memory_than_there_is_is_no_crash(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
    with emulator.emulated(memory_bytes=8 * MIB, block=64):
        made = open_rig("cuda:0")
        few = {"nbytes": 2**40, "samples": 1, "kernels": ("copy",), "threads": (64,)}
        assert execute(registry.get("stream"), made, "quick", few).status is Status.OK
        huge = {"sizes": (64 * MIB,), "windows": ("shared",), "samples": 1, "seconds": 1e-5}
        result = execute(registry.get("cache"), made, "quick", huge)
        made.close()
    assert result.status is Status.UNSUPPORTED
    assert result.error


def test_one_gpu_has_no_peer(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
    with emulator.emulated(devices=1, block=64):
        made = open_rig("cuda:0")
        result = execute(registry.get("peer"), made, "quick")
        made.close()
    assert result.status is Status.UNSUPPORTED
    assert result.error == "there is only one cuda device here"


def test_a_copy_to_a_peer_that_is_late_does_not_matter(rig, monkeypatch):
    """From pageable memory it may return before the bytes are there, and no stream of our own
    waits for them."""
    late = []
    plain, call = Driver.copy_to_device, Driver.call

    def copy_to_device(self, *arguments):
        late.append(lambda: plain(self, *arguments))

    def with_late(self, word, *arguments):
        call(self, word, *arguments)
        if word == "stream_synchronize":
            while late:
                late.pop()()

    monkeypatch.setattr(Driver, "copy_to_device", copy_to_device)
    monkeypatch.setattr(Driver, "call", with_late)
    result = run("peer", rig)
    assert result.status is Status.OK, result.error
