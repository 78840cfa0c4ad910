"""GpuDevice on a GPU that is modelled in C, once behind CUDA's names and once behind HIP's."""

import contextlib
import ctypes
import dataclasses
import gc
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kernelmark import devices, ops
from kernelmark.core.errors import CaseError, OutOfMemory, Unsupported
from kernelmark.core.result import KernelInfo
from kernelmark.core.tensor import GivenValues, ValuesOnDevice
from kernelmark.core.timing import Strain, Timer, Timing
from kernelmark.devices import _gpu_kind, _replay
from kernelmark.devices._gpu import GpuDevice
from kernelmark.gpu import driver as drivers
from kernelmark.gpu import pack, rtc
from kernelmark.gpu.driver import GpuError
from kernelmark.gpu.driver import pack as arguments_of
from kernelmark.kernels import rtc as kernels
from kernelmark.measure.protocol import CAPPED_SPREAD, PROCESS_SPREAD, measure
from kernelmark.numerics.generate import offset
from kernelmark.testing.devices import DeviceContract, make_tensor
from kernelmark_dev.raising import raises_code

VENDORS = ("cuda", "hip")
ARCHS = {"cuda": "sm_90", "hip": "gfx90a"}
LIBRARIES = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so.7"}
HANDLES = ("buffers", "host buffers", "streams", "events", "graphs", "executables", "modules")
GEMM_S = 20e-6  # what the model's gemm takes
CORE_MHZ = 1500.0

both = pytest.mark.parametrize("kind_name", VENDORS)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the two libraries are, built from fakegpu.c."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("the model GPU needs a C compiler: cc, gcc or clang")
    folder = tmp_path_factory.mktemp("fakegpu")
    (folder / "lib").mkdir()
    source = str(Path(__file__).parent / "fakegpu.c")
    for vendor, flags in (("cuda", []), ("hip", ["-DHIP"])):
        out = folder / "lib" / LIBRARIES[vendor]
        command = [compiler, "-O3", "-shared", "-fPIC", *flags, source, "-o", str(out)]
        subprocess.run(command, check=True, capture_output=True)
        # What a process has loaded under the vendor's name it would take for the vendor's own.
        shutil.copy(out, folder / f"{vendor}.so")
    return folder


@pytest.fixture(scope="session")
def pack_folder(tmp_path_factory):
    """A pack that holds the device's kernels for both vendors: headers are all that the model
    looks at."""
    folder = tmp_path_factory.mktemp("pack")
    for vendor, machine in (("cuda", 190), ("hip", 224)):
        for name in ("device.cu", "project.cu"):
            key = rtc.cache_key(kernels.source(name), ARCHS[vendor], ())
            pack.add(folder, key, ARCHS[vendor], elf(machine))
    return folder


def elf(machine):
    return b"\x7fELF\2\1\1" + bytes(11) + machine.to_bytes(2, "little") + bytes(44)


class Model:
    """The loaded model, with what it tells beyond the vendor's functions."""

    def __init__(self, library):
        self.library = library

    def fail(self, symbol, code, times=1):
        self.library.fake_fail(symbol.encode(), code, times)

    def live(self):
        return {name: self.library.fake_live(i) for i, name in enumerate(HANDLES)}


@pytest.fixture
def model(kind_name, folder, pack_folder, monkeypatch):
    library = ctypes.CDLL(str(folder / f"{kind_name}.so"))
    monkeypatch.setattr(drivers, "find_library", lambda table: library)
    monkeypatch.setenv("KERNELMARK_PACK", str(pack_folder))
    drivers.driver.cache_clear()
    yield Model(library)
    library.fake_reset()
    drivers.driver.cache_clear()


@pytest.fixture
def device(model, kind_name):
    opened = devices.registry.get(kind_name).open(0)
    assert isinstance(opened, GpuDevice)
    yield opened
    opened.close()


@both
class TestContract(DeviceContract):
    """Everything a device must do, on both tables."""

    @pytest.fixture
    def kind(self, kind_name, model):
        kind = devices.registry.get(kind_name)
        assert kind.available() is None
        return kind


# -- what the binding tells


@pytest.mark.parametrize("kind_name", ["hip"])
def test_telemetry_is_of_the_gpu_at_the_same_place(model, kind_name, monkeypatch):
    """Under HIP_VISIBLE_DEVICES the package's numbers are not HIP's."""
    clocks = {"0000:C2:00.0": 2000, "0000:C1:00.0": 1000}
    package = ModuleType("amdsmi")
    package.amdsmi_init = lambda: None
    package.amdsmi_get_processor_handles = lambda: list(clocks)
    package.amdsmi_get_gpu_device_bdf = lambda handle: handle
    package.amdsmi_get_gpu_metrics_info = lambda handle: {"current_gfxclk": clocks[handle]}
    monkeypatch.setitem(sys.modules, "amdsmi", package)

    def clock(index):
        opened = devices.registry.get(kind_name).open(index)
        opened.close()
        return opened.telemetry().clock_mhz

    assert (clock(0), clock(1)) == (1000, 2000)
    model.fail("hipDeviceGetPCIBusId", 1, times=3)  # twice for facts, then for telemetry
    assert clock(0) is None


@both
def test_info_comes_from_the_vendors_numbers(device, kind_name):
    info = device.info
    assert (info.name, info.arch, info.units) == (f"{kind_name}:0", ARCHS[kind_name], 4)
    assert (info.model, info.cache_bytes, info.memory_bytes) == ("Fake GPU 0", 2**20, 8 * 2**30)
    assert info.driver == {"cuda": "13.1", "hip": "7.2"}[kind_name]
    assert info.uuid == "10" * 16
    expected = {
        "cuda": {"warp_size": "32", "clock_khz": "1500000", "shared_per_block": "232448"},
        "hip": {"warp_size": "64", "clock_khz": "1500000", "shared_per_block": "65536"},
    }
    assert info.attributes.items() >= expected[kind_name].items()


@both
def test_out_of_memory_says_how_much_there_is(device, kind_name):
    with pytest.raises(OutOfMemory) as caught:
        device.allocate(16 * 2**30)
    name = {"cuda": "CUDA_ERROR_OUT_OF_MEMORY", "hip": "hipErrorOutOfMemory"}[kind_name]
    reason = caught.value.message
    assert reason.code == "out-of-memory"
    assert reason.fields["needed"] == 16 * 2**30
    assert reason.fields["device"] == f"{kind_name}:0"
    assert name in reason.fields["cause"]


@both
def test_freed_memory_is_given_back_later_or_when_it_is_needed(device, model):
    device.release_freed()
    before, free = model.live()["buffers"], device.free_bytes()
    part = int(0.04 * device.info.memory_bytes)
    device.free(device.allocate(part))
    device.free(device.allocate(part))
    assert (model.live()["buffers"], device.free_bytes()) == (before + 2, free)
    device.release_freed()
    assert model.live()["buffers"] == before
    for _ in range(3):  # more than a tenth of the memory is not kept
        device.free(device.allocate(part))
    assert model.live()["buffers"] == before
    device.free(device.allocate(part))
    device.free(device.allocate(free))  # there is room only without what was freed
    assert device.free_bytes() == free


@both
def test_kept_memory_serves_the_next_case_with_the_same_sizes(device, model):
    device.release_freed()
    before, free = model.live()["buffers"], device.free_bytes()
    first, second = device.allocate(1000), device.allocate(2000)
    device.free(first)
    assert device.allocate(1000).address != first.address  # the same case gets other memory
    device.free(second)
    device.keep_freed()
    assert device.allocate(2000).address == second.address
    device.keep_freed()  # nothing was freed since, and the first buffer was not taken
    assert model.live()["buffers"] == before + 2
    device.allocate(1000)
    assert model.live()["buffers"] == before + 3
    assert device.free_bytes() < free


@both
def test_another_thread_can_give_memory_back(device, model):
    device.release_freed()
    before, free = model.live()["buffers"], device.free_bytes()
    for _ in range(2):
        device.free(device.allocate(int(0.04 * device.info.memory_bytes)))
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(device.release_freed).result()
    assert (model.live()["buffers"], device.free_bytes()) == (before, free)


@both
def test_what_is_written_is_there_for_the_next_launch(device):
    """A plain copy is not ordered with the stream, and returns before it is done."""
    source, target = device.allocate(64), device.allocate(64)
    device.write(source, 0, np.arange(64, dtype=np.uint8))
    device.driver.copy_on_device(target.address, source.address, 64, device.stream)
    assert list(device.read(target, 0, 64)) == list(range(64))
    device.free(source)
    device.free(target)


@both
def test_scratch_that_cannot_grow_is_not_handed_out_again(model, kind_name):
    before = model.live()
    device = devices.registry.get(kind_name).open(0)
    assert isinstance(device, GpuDevice)
    device.scratch("places", 100)
    with pytest.raises(OutOfMemory):
        device.scratch("places", 16 * 2**30)
    device.driver.fill(device.scratch("places", 100).address, 0, 100, device.stream)
    with pytest.raises(OutOfMemory):
        device.scratch("places", 16 * 2**30)
    device.close()
    assert model.live() == before


class Elsewhere(ValuesOnDevice):
    """Values in memory of the model GPU that its device does not own."""

    def __init__(self, device, bits):
        self.size = bits.size
        self.buffer = device.allocate(bits.nbytes)
        device.write(self.buffer, 0, bits.view(np.uint8))
        self._bits = bits

    @property
    def address(self):
        return self.buffer.address

    def download(self):
        return self._bits


@both
def test_values_on_the_device_are_neither_downloaded_nor_freed(model, kind_name, monkeypatch):
    device = devices.registry.get(kind_name).open(0)
    there = Elsewhere(device, np.arange(1025, dtype=np.uint16))
    tensor = make_tensor(device, "f16", (1025,))
    spec = dataclasses.replace(tensor.spec, given=GivenValues(there))
    tensor = dataclasses.replace(tensor, spec=spec)
    start = offset(spec, 5, 7)
    assert start > 0
    monkeypatch.setattr(there, "download", None)
    device.generate_all([(tensor, 7)], 5)
    device.synchronize()
    found = device.read(tensor.buffer, tensor.offset, spec.nbytes).view(np.uint16)
    assert np.array_equal(found, np.roll(np.arange(1025), -start))
    assert device.count_changed([(tensor, 7)], 5)() == [0]
    device.free(tensor.buffer)
    before = model.live()["buffers"]
    device.release_freed()
    assert device.read(there.buffer, 0, 2 * 1025).view(np.uint16)[1024] == 1024
    assert model.live()["buffers"] < before
    device.free(there.buffer)
    device.close()


@both
def test_closing_gives_everything_back(model, kind_name):
    before = model.live()
    device = devices.registry.get(kind_name).open(0)
    tensor = make_tensor(device, "f16", (1000,), role="out")
    for timer in (Timer.GRAPH, Timer.GATE):
        replay = device.record(lambda stream, index: device.generate(tensor, 1, index), [0], timer)
        replay.run()
        replay.close()
    device.poison(tensor, 0xFF)
    assert device.count_poison(tensor, 0xFF) == 1000
    device.take(tensor, np.arange(5))
    device.evict_cache()
    device.free(tensor.buffer)
    device.close()
    assert model.live() == before


@both
def test_function_facts(device):
    driver, function = device.driver, device.function("spin")
    assert driver.occupancy(function, 256) == 8
    assert driver.occupancy(function, 256, 100_000) == 0
    symbols = driver.table.symbols
    with raises_code(GpuError, "driver-failed", call=symbols["module_function"]):
        driver.function(device._module, "missing")
    for code in (b"not an object", elf(62)):  # a foreign binary
        with raises_code(GpuError, "driver-failed", call=symbols["module_load"]):
            driver.load(code + bytes(64))


def test_cuda_asks_for_more_shared_memory_and_hip_does_not_need_to(folder):
    """The launch is refused without `allow_shared` on CUDA; the binding's callers rely on it."""
    asked = {}
    for vendor, table in (("cuda", drivers.CUDA), ("hip", drivers.HIP)):
        library = ctypes.CDLL(str(folder / f"{vendor}.so"))
        driver = drivers.Driver(table, library)
        driver.use(0)
        stream = driver.stream()
        module = driver.load(elf(190 if vendor == "cuda" else 224))
        function = driver.function(module, "nothing")
        asked[vendor] = []
        for prepare in (lambda: None, lambda d=driver, f=function: d.allow_shared(f, 100_000)):
            prepare()
            try:
                driver.launch(function, (1, 1, 1), (32, 1, 1), arguments_of(), stream, 100_000)
                asked[vendor].append(0)
            except GpuError as error:
                asked[vendor].append(error.code)
        driver.destroy("module", module)
        driver.destroy("stream", stream)
    assert asked == {"cuda": [1, 0], "hip": [0, 0]}


# -- replays


def spinning(device, microseconds):
    cycles = ctypes.c_uint64(round(microseconds * CORE_MHZ))

    def launch(stream, index):
        assert stream == device.stream
        device.start("spin", 1, 1, cycles)

    return launch


@pytest.mark.parametrize("kind_name", ["hip"])
def test_a_series_that_waits_for_the_host_is_not_used(device, model):
    """HIP's host sends a graph's kernels one by one; here each takes it 5 µs."""
    launch = spinning(device, 2.0)
    replays = [device.record(launch, [0] * n, Timer.GRAPH) for n in (10, 20)]
    model.library.fake_host_ns(ctypes.c_uint64(5000))
    costs = {cost.kernel: cost for cost in device.dispatch_costs()}
    assert costs["3 µs"].gated_s == pytest.approx(3e-6, rel=0.01)
    assert costs["3 µs"].series_s == pytest.approx(5e-6, rel=0.01)
    assert not costs["empty"].agrees
    short, long = (reading.elapsed_s for reading in device.run_all(replays))
    assert (long - short) / 10 == pytest.approx(2e-6, rel=0.01)
    model.library.fake_host_ns(ctypes.c_uint64(50))  # below the clock's noise
    assert all(cost.agrees for cost in device.dispatch_costs())


@both
@pytest.mark.parametrize("timer", [Timer.GRAPH, Timer.GATE])
def test_replays_of_two_lengths_cancel_the_fixed_cost(device, timer):
    launch = spinning(device, 50.0)
    short, long = (device.record(launch, [0] * n, timer) for n in (10, 20))
    first, second = short.run(), long.run()
    assert (short.method, short.launches, long.launches) == (timer, 10, 20)
    assert (second.elapsed_s - first.elapsed_s) / 10 == pytest.approx(50e-6, rel=1e-5)
    # The stamps' own time, and a graph's, are in each reading.
    assert first.elapsed_s > 10 * 50e-6 + 1e-6
    assert first.clock_mhz == pytest.approx(CORE_MHZ, rel=1e-3)
    short.close()
    long.close()


@both
def test_a_series_reads_what_single_replays_read(device):
    short, long = (device.record(spinning(device, 50.0), [0] * n, Timer.GRAPH) for n in (10, 20))
    alone = [short.run(), long.run()]
    # More than are enqueued at once, and the same graph again and again.
    found = device.run_all([short, long] * 40)
    assert [r.elapsed_s for r in found] == pytest.approx([r.elapsed_s for r in alone] * 40)
    assert [r.clock_mhz for r in found] == pytest.approx([CORE_MHZ] * 80, rel=1e-3)
    evicted = device.run_all([short, long], before=lambda at: device.evict_cache())
    assert [r.elapsed_s for r in evicted] == pytest.approx([r.elapsed_s for r in alone])
    behind = device.record(spinning(device, 50.0), [0] * 10, Timer.GATE)
    assert len(device.run_all([short, behind])) == 2
    for replay in (short, long, behind):
        replay.close()


@both
def test_the_host_time_before_a_graph_is_not_counted(device, monkeypatch):
    """The stream is held from before the start event until the graph is enqueued."""
    replay = device.record(spinning(device, 5.0), [0], Timer.GRAPH)
    calls = []

    def recorded(owner, name):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: (calls.append(name), real(*given))[1])

    recorded(device._gate, "close_behind")
    recorded(device._gate, "open")
    recorded(device.driver, "record")
    recorded(device.driver, "launch_graph")
    replay.run()
    replay.close()
    assert calls[:5] == ["close_behind", "record", "launch_graph", "record", "open"]


@both
def test_a_refused_capture_falls_back_to_the_gate(device, model, kind_name):
    symbol = {"cuda": "cuStreamBeginCapture_v2", "hip": "hipStreamBeginCapture"}[kind_name]
    launch = spinning(device, 5.0)
    before = model.live()
    assert gc.isenabled()
    model.fail(symbol, 900, times=1)
    replay = device.record(launch, [0, 0], Timer.AUTO)
    assert replay.method is Timer.GATE
    replay.close()
    model.fail(symbol, 900, times=1)
    with raises_code(GpuError, "driver-failed", call=symbol):
        device.record(launch, [0, 0], Timer.GRAPH)
    assert gc.isenabled()
    after = model.live()
    assert [after[name] - before[name] for name in ("events", "graphs")] == [0, 0]


@both
def test_a_launch_that_waits_cannot_be_captured(device, model):
    work = spinning(device, 5.0)

    def waits(stream, index):
        work(stream, index)
        device.synchronize()

    call = device.driver.table.symbols["stream_synchronize"]
    with raises_code(GpuError, "driver-failed", call=call):
        device.record(waits, [0], Timer.GRAPH)
    # The stream is usable again.
    assert device.record(work, [0], Timer.GRAPH).run().elapsed_s > 5e-6


@both
def test_a_launch_that_waits_is_refused_behind_the_gate(device, monkeypatch):
    """It waits until the gate gives up, in every replay: seconds, and nothing that is held."""
    monkeypatch.setattr(_replay, "_GATE_HOLDS_S", 0.0)  # the model's seconds are not the host's
    work = spinning(device, 5.0)

    def waits(stream, index):
        work(stream, index)
        device.synchronize()

    replay = device.record(waits, [0, 0], Timer.AUTO)
    assert replay.method is Timer.GATE
    with pytest.raises(Unsupported) as caught:
        replay.run()
    assert caught.value.hint
    replay.close()
    # A slow host alone is no reason.
    behind = device.record(work, [0, 0], Timer.GATE)
    assert behind.run().elapsed_s > 10e-6
    behind.close()


@both
@pytest.mark.parametrize("error", [RuntimeError, CaseError, KeyError])
def test_whatever_a_library_raises_while_captured_falls_back_to_the_gate(device, model, error):
    work = spinning(device, 5.0)
    capturing = [True]

    def picky(stream, index):
        work(stream, index)
        if capturing[0]:
            raise error("not while the stream is captured")

    device.record(work, [0], Timer.GATE).run()  # the device's own events are there
    before = model.live()
    with pytest.raises(error):
        device.record(picky, [0], Timer.GRAPH)
    assert device.kernel_names(picky) == ()
    replay = device.record(picky, [0, 0], Timer.AUTO)
    assert replay.method is Timer.GATE
    # What has another cause comes again, and leaves the stream usable.
    with pytest.raises(error):
        replay.run()
    capturing[0] = False
    assert replay.run().elapsed_s > 10e-6
    replay.close()
    after = model.live()
    assert [after[name] - before[name] for name in ("events", "graphs")] == [0, 0]
    assert device.record(work, [0], Timer.GRAPH).run().elapsed_s > 5e-6


@both
@pytest.mark.parametrize("error", [OutOfMemory, KeyboardInterrupt])
def test_what_is_no_refusal_does_not_fall_back(device, model, error):
    def raises(stream, index):
        raise error("no more")

    before = model.live()["graphs"]
    with pytest.raises(error):
        device.record(raises, [0], Timer.AUTO)
    assert model.live()["graphs"] == before
    assert device.record(spinning(device, 5.0), [0], Timer.GRAPH).run().elapsed_s > 5e-6


@both
def test_a_gate_that_is_not_opened_gives_up(device):
    device._gate.close_behind(device.stream)
    device.synchronize()  # would never return if the gate held for ever
    device._gate.open()


@both
def test_kernel_names_come_from_the_graph(device):
    tensor = make_tensor(device, "f32", (8,))

    def launch(stream, index):
        device.driver.fill(tensor.address, 0, 4, stream)
        device.generate(tensor, 1, index)
        device.start("nothing", 1, 1)

    names = device.kernel_names(launch)
    assert names == ("generate_4", "nothing")
    assert device.kernel_names(lambda stream, index: device.synchronize()) == ()
    device.free(tensor.buffer)


@pytest.mark.parametrize("kind_name", ["hip"])
@pytest.mark.parametrize(
    "symbol", ["hipEventElapsedTime", "hipGraphInstantiateWithFlags", "hipDeviceEnablePeerAccess"]
)
def test_no_error_is_left_in_the_runtime_that_torch_shares(device, model, symbol):
    model.fail(symbol, 704)
    with contextlib.suppress(GpuError):
        device.record(spinning(device, 5.0), [0], Timer.GRAPH).run()
        device.driver.enable_peer(0, 1)
    assert model.library.fake_times() == 0, "it has not failed"
    assert model.library.hipGetLastError() == 0


# -- a whole measurement


class Product:
    """The model's gemm, bound to argument sets."""

    def __init__(self, device, sets, problem, name):
        self.info = KernelInfo(name=name)
        self._device = device
        machine = 190 if device.info.kind == "cuda" else 224
        self._module = device.driver.load(elf(machine))
        self._function = device.driver.function(self._module, name)
        sizes = [ctypes.c_int32(problem.dims[x]) for x in "mnk"]
        self._arguments = [
            arguments_of(*(ctypes.c_void_p(s[x].address) for x in "abd"), *sizes) for s in sets
        ]

    def launch(self, stream, set_index):
        arguments = self._arguments[set_index]
        self._device.driver.launch(self._function, (1, 1, 1), (64, 1, 1), arguments, stream)

    def collect(self, set_index):
        pass

    def close(self):
        self._device.driver.destroy("module", self._module)


def measured(device, name="gemm", product=Product, **changes):
    op = ops.registry.get("gemm")
    problem = op.problem(m=192, n=160, k=8, dtype="f32")
    assert isinstance(device, GpuDevice)
    timing = {"max_s": 0.02, "warmup_s": 0.005, "allocations": 3, **changes}
    return measure(
        problem=problem,
        op=op,
        device=device,
        timing=Timing(**timing),
        prepare=lambda sets: product(device, sets, problem, name),
    )


@both
@pytest.mark.parametrize("timer", ["auto", "gate"])
def test_measure_finds_the_kernels_own_time(device, timer):
    outcome = measured(device, timer=timer)
    found = outcome.measurement
    assert found.method == {"auto": "graph"}.get(timer, timer)
    assert found.median_s == pytest.approx(GEMM_S, rel=1e-4)
    assert found.rel_half_width == pytest.approx(PROCESS_SPREAD, rel=0.1)
    assert found.sets * found.footprint_bytes >= 3 * device.info.cache_bytes
    assert outcome.check.passed
    assert outcome.check.positions > 100
    clocks = [mhz for block in found.blocks for mhz in block.clocks_mhz]
    assert clocks == pytest.approx([CORE_MHZ] * len(clocks), rel=1e-2)
    assert found.also["host_s"] > 0


@both
@pytest.mark.parametrize("changes", [{}, {"cache": "flush"}, {"strain": "bandwidth"}])
def test_beside_a_given_stream_the_own_one_is_only_captured(device, changes, monkeypatch):
    own, given = device.stream, device.driver.stream()
    now = []  # what is being captured
    launched = set()
    captured = set()
    launch_one = drivers.Driver.launch

    @contextlib.contextmanager
    def while_capturing(stream):
        now.append(stream)
        yield
        now.pop()

    def launch(driver, function, grid, block, arguments, stream):
        (captured if now else launched).add(stream)
        launch_one(driver, function, grid, block, arguments, stream)

    monkeypatch.setattr(drivers.Driver, "launch", launch)
    device.launch_on(given, while_capturing)
    found = measured(device, **changes).measurement
    assert found.method == "graph"
    assert found.median_s == pytest.approx(GEMM_S, rel=1e-4)
    assert (launched, captured) == ({given}, {own})


@pytest.fixture
def capped(device, monkeypatch):
    """A device that never reaches its highest clock."""
    highest = str(int(1.2 * CORE_MHZ * 1e3))
    attributes = {**device.info.attributes, "clock_khz": highest}
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, attributes=attributes))
    return device


@both
def test_at_a_power_cap_processes_differ_by_more(capped):
    found = measured(capped).measurement
    assert found.rel_half_width == pytest.approx(CAPPED_SPREAD, rel=0.1)


@both
def test_further_blocks_are_touched_first_and_that_is_warm_up(device, monkeypatch):
    """Enqueued ahead of the samples and never waited for alone; none of it is a sample's time."""
    told = []
    ahead = device.run_ahead

    def run_ahead(replays):
        seconds = ahead(replays)

        def tell():
            told.append(seconds())
            return told[-1]

        return tell

    monkeypatch.setattr(device, "run_ahead", run_ahead)
    outcome = measured(device)
    blocks = outcome.measurement.blocks
    # The first block's warm-up runs what it has again while the host records more.
    assert len(told) == len(blocks)
    assert min(told) >= GEMM_S
    assert outcome.measurement.warmup_s > sum(told)
    assert all(s == pytest.approx(GEMM_S, rel=1e-3) for b in blocks for s in b.samples_s)


class Failing(Product):
    """Fails in the launches of the audit, after the first check."""

    def __init__(self, *given):
        super().__init__(*given)
        self.collected = False

    def collect(self, set_index):
        self.collected = True

    def launch(self, stream, set_index):
        if self.collected:
            raise CaseError("no more")
        super().launch(stream, set_index)


@both
@pytest.mark.parametrize("product", [Product, Failing])
def test_a_measurement_returns_its_pinned_memory_when_it_ends(device, model, product):
    """Not when the garbage collector comes: the next case would pin more memory meanwhile."""
    pinned = []
    gc.disable()
    try:
        for _ in range(2):
            with contextlib.suppress(CaseError):
                measured(device, product=product)
            pinned.append(model.live()["host buffers"] - len(device._readback._free))
    finally:
        gc.enable()
    assert pinned == [1] * 2  # the gate's flag


@both
@pytest.mark.parametrize(
    "changes", [{"strain": Strain.BANDWIDTH}, {"strain": Strain.COMPUTE}, {"cache": "flush"}]
)
def test_strain_and_evictions_are_not_part_of_the_time(device, changes):
    outcome = measured(device, **changes)
    assert outcome.measurement.median_s == pytest.approx(GEMM_S, rel=1e-3)
    assert outcome.check.passed


@both
@pytest.mark.parametrize(("cache", "traffic"), [(2**20, 2**26), (260 * 2**20, 520 * 2**20)])
def test_bandwidth_strain_does_not_fit_into_the_cache(device, monkeypatch, cache, traffic):
    device.info = dataclasses.replace(device.info, cache_bytes=cache)
    started = {}

    def start(name, grid, block, *arguments):
        started[name] = arguments[1].value

    monkeypatch.setattr(device, "start", start)
    device.strain(Strain.BANDWIDTH)
    device.evict_cache()
    assert started == {"strain_bandwidth": traffic // 16, "evict": traffic // 8}


class Picky(Product):
    """Refuses to be captured, in an error of its own."""

    def launch(self, stream, set_index):
        super().launch(stream, set_index)
        if self._device.__dict__.get("captured"):
            raise RuntimeError("operation not permitted when stream is capturing")


@both
def test_a_library_that_refuses_to_be_captured_is_measured(device, monkeypatch):
    begin, end = device.driver.begin_capture, device.driver.end_capture

    def begun(stream):
        device.__dict__["captured"] = True
        begin(stream)

    def ended(stream):
        device.__dict__["captured"] = False
        return end(stream)

    monkeypatch.setattr(device.driver, "begin_capture", begun)
    monkeypatch.setattr(device.driver, "end_capture", ended)
    outcome = measured(device, product=Picky)
    assert outcome.measurement.method == "gate"
    assert outcome.measurement.median_s == pytest.approx(GEMM_S, rel=1e-4)
    assert outcome.check.passed


@both
def test_a_kernel_that_leaves_elements_out_is_wrong(device):
    check = measured(device, "gemm_short").check
    assert not check.passed
    assert check.unwritten > 0
    assert "not-written" in [one.code for one in check.detail.fields["findings"]]


# -- finding the library


@both
def test_a_fresh_process_finds_the_library_where_it_is_installed(folder, pack_folder, kind_name):
    say = (
        "from kernelmark.devices import registry\n"
        f"kind = registry.get('{kind_name}')\n"
        "print(kind.available())\n"
        "print(*(info.name for info in kind.infos()))\n"
        "device = kind.open(1)\n"
        "print(device.info.arch, device.info.index)\n"
        "device.close()\n"
    )
    place = {"cuda": {"LD_LIBRARY_PATH": str(folder / "lib")}, "hip": {"ROCM_PATH": str(folder)}}
    done = subprocess.run(
        [sys.executable, "-c", say],
        env={**os.environ, "KERNELMARK_PACK": str(pack_folder), **place[kind_name]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    expected = f"None\n{kind_name}:0 {kind_name}:1\n{ARCHS[kind_name]} 1\n"
    assert done.stdout == expected


@pytest.mark.parametrize("kind_name", ["hip"])
def test_an_amd_gpu_tells_its_features_and_partition_modes(model, kind_name, tmp_path, monkeypatch):
    monkeypatch.setattr(_gpu_kind, "_PCI", tmp_path)
    kind = devices.registry.get(kind_name)
    plain = kind.infos()[0]
    assert plain.attributes["features"] == "sramecc+:xnack-"
    assert not {"compute_partition", "memory_partition", "chiplets"} & plain.attributes.keys()
    folder = tmp_path / drivers.driver("hip").bus_id(0).lower()
    folder.mkdir()
    (folder / "current_compute_partition").write_text("CPX\n")
    (folder / "current_memory_partition").write_text("NPS4\n")
    divided = kind.infos()[0].attributes
    assert (divided["compute_partition"], divided["memory_partition"]) == ("CPX", "NPS4")
