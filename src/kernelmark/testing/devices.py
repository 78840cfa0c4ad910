"""Contract tests of devices. A plugin's tests inherit them:

@pytest.mark.parametrize("kind_name", ["mydevice"])
class TestMyDevice(DeviceContract): ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelmark.core.dtype import DTYPES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import OutOfMemory
from kernelmark.core.result import Telemetry
from kernelmark.core.tensor import GivenValues, Role, TensorSpec
from kernelmark.core.timing import Timer
from kernelmark.devices import registry
from kernelmark.devices.base import GUARD_BYTES, Device, DeviceKind, Stream, Tensor
from kernelmark.numerics.floats import storage
from kernelmark.numerics.generate import POOL, offset, source_bits

PACKED = [name for name, kind in DTYPES.items() if kind.bits < 8]
WHOLE = [name for name, kind in DTYPES.items() if kind.bits >= 8]


class DeviceContract:
    """Parametrise `kind_name` with names in the device registry."""

    @pytest.fixture
    def kind(self, kind_name: str) -> DeviceKind:
        kind = registry.get(kind_name)
        reason = kind.available()
        if reason is not None:
            pytest.skip(reason)
        return kind

    @pytest.fixture
    def device(self, kind: DeviceKind) -> Iterator[Device]:
        device = kind.open(0)
        yield device
        device.close()

    def test_infos_name_what_can_be_opened(self, kind: DeviceKind) -> None:
        infos = kind.infos()
        assert infos
        assert [info.index for info in infos] == list(range(len(infos)))
        assert len({info.name for info in infos}) == len(infos)
        for info in infos:
            assert isinstance(info, DeviceInfo)
            assert info.kind == kind.name
            assert info.name.split(":")[0] == kind.name
            assert info.arch
            assert info.model
            assert info.units >= 1
            assert info.cache_bytes > 0
            assert info.memory_bytes > 0

    def test_worker_variables_are_text(self, kind: DeviceKind) -> None:
        for name, value in kind.worker_variables(0, 1).items():
            assert isinstance(name, str)
            assert isinstance(value, str)

    def test_opened_device_is_the_one_listed(self, kind: DeviceKind, device: Device) -> None:
        listed = kind.infos()[0]
        assert (device.info.name, device.info.arch) == (listed.name, listed.arch)

    def test_write_reads_back(self, device: Device) -> None:
        buffer = device.allocate(4096)
        data = np.arange(1000, dtype=np.int64).astype(np.uint8)
        device.write(buffer, 100, data)
        assert buffer.address % 256 == 0
        assert buffer.nbytes >= 4096
        assert np.array_equal(device.read(buffer, 100, 1000), data)
        device.free(buffer)

    def test_buffers_do_not_overlap(self, device: Device) -> None:
        first, second = device.allocate(8192), device.allocate(8192)
        device.write(first, 0, np.full(8192, 1, np.uint8))
        device.write(second, 0, np.full(8192, 2, np.uint8))
        assert (device.read(first, 0, 8192) == 1).all()
        assert (device.read(second, 0, 8192) == 2).all()
        device.free(first)
        device.free(second)

    def test_absurd_sizes_are_out_of_memory(self, device: Device) -> None:
        for nbytes in (2**50, 2**62):
            with pytest.raises(OutOfMemory) as caught:
                device.allocate(nbytes)
            assert caught.value.message
        assert device.free_bytes() < 2**50

    def test_memory_comes_back(self, device: Device) -> None:
        for _ in range(5):  # another process may take memory meanwhile, but not each time
            before = device.free_bytes()
            size = min(before // 8, 64 * 2**20)
            for _ in range(32):
                device.free(device.allocate(size))
            device.synchronize()
            if device.free_bytes() > before - 8 * size:
                return
        pytest.fail("freed buffers are still in use")

    @pytest.mark.parametrize("dtype", WHOLE)
    @pytest.mark.parametrize("count", [1, 7, 1025])
    def test_generate_is_the_generator(self, device: Device, dtype: str, count: int) -> None:
        tensor = make_tensor(device, dtype, (count,))
        device.generate(tensor, 5, 3)
        device.synchronize()
        raw = device.read(tensor.buffer, tensor.offset, tensor.spec.nbytes)
        assert np.array_equal(raw.view(storage(dtype)), expected_bits(tensor.spec, 5, 3))
        device.free(tensor.buffer)

    def test_generate_goes_round_the_pool(self, device: Device) -> None:
        tensor = make_tensor(device, "f32", (2 * POOL + 11,))
        device.generate(tensor, 1, 0)
        device.synchronize()
        raw = device.read(tensor.buffer, tensor.offset, tensor.spec.nbytes)
        assert np.array_equal(raw.view(np.uint32), expected_bits(tensor.spec, 1, 0))
        device.free(tensor.buffer)

    @pytest.mark.parametrize("how", ["rotates", "stays"])
    def test_given_values_are_written_and_recognised(self, device: Device, how: str) -> None:
        tensor = make_tensor(device, "f16", (1025,))
        values = GivenValues(np.arange(1025, dtype=np.uint16), rotates=how == "rotates")
        spec = dataclasses.replace(tensor.spec, given=values)
        tensor = dataclasses.replace(tensor, spec=spec)
        for number in (0, 7):
            device.generate_all([(tensor, number)], 5)
            device.synchronize()
            raw = device.read(tensor.buffer, tensor.offset, spec.nbytes).view(np.uint16)
            assert np.array_equal(raw, expected_bits(spec, 5, number))
            assert values.rotates or np.array_equal(raw, values.bits)
            assert device.count_changed([(tensor, number)], 5)() == [0]
        device.write(tensor.buffer, tensor.offset + 2, np.array([255, 255], np.uint8))
        assert device.count_changed([(tensor, 7)], 5)() == [1]
        device.free(tensor.buffer)

    def test_many_tensors_at_once_are_those_one_by_one(self, device: Device) -> None:
        shapes = (("f32", 1025), ("f32", 1025), ("f16", 7), ("f4e2m1", 64), ("f4e2m1", 64))
        tensors = [make_tensor(device, dtype, (count,)) for dtype, count in shapes]
        device.generate_all([(tensor, 3 + i) for i, tensor in enumerate(tensors)], 5)
        device.synchronize()
        contents = [device.read(t.buffer, t.offset, t.spec.nbytes) for t in tensors]
        for i, tensor in enumerate(tensors):
            device.generate(tensor, 5, 3 + i)
        device.synchronize()
        for raw, tensor in zip(contents, tensors, strict=True):
            again = device.read(tensor.buffer, tensor.offset, tensor.spec.nbytes)
            assert np.array_equal(raw, again)
            device.free(tensor.buffer)

    def test_changed_inputs_are_counted(self, device: Device) -> None:
        shapes = (("f32", 1025), ("f16", 700), ("f32", 1025), ("f4e2m1", 64))
        tensors = [make_tensor(device, dtype, (count,)) for dtype, count in shapes]
        numbered = [(tensor, 3 + i) for i, tensor in enumerate(tensors)]
        device.generate_all(numbered, 5)
        device.synchronize()
        assert device.count_changed(numbered, 5)() == [0, 0, 0, 0]
        assert device.count_changed([], 5)() == []  # a call without arguments
        first, second, third, _ = tensors
        for tensor, at, count in ((first, 0, 1), (second, 698, 2), (third, 1024, 1)):
            width = tensor.spec.type.bits // 8
            start = tensor.offset + at * width
            flipped = ~device.read(tensor.buffer, start, count * width)
            device.write(tensor.buffer, start, flipped)
        assert device.count_changed(numbered, 5)() == [1, 2, 1, 0]
        moved = [(first, 9)]
        assert device.count_changed(moved, 5)()[0] > 1000
        for tensor in tensors:
            device.free(tensor.buffer)

    def test_many_outputs_are_poisoned_as_one_by_one(self, device: Device) -> None:
        for dtype, count in (("f16", 48), ("f32", 1025), ("i8", 13)):
            tensors = [make_tensor(device, dtype, (count,), role="out") for _ in range(3)]
            device.poison_all(tensors[:2], 0x80)
            device.poison(tensors[2], 0x80)
            device.synchronize()
            around = []
            for tensor in tensors:
                whole = tensor.spec.nbytes + 2 * GUARD_BYTES
                around.append(device.read(tensor.buffer, tensor.offset - GUARD_BYTES, whole))
            assert np.array_equal(around[0], around[2])
            assert np.array_equal(around[1], around[2])
            for tensor in tensors:
                device.free(tensor.buffer)

    def test_disturbing_the_scheduler_leaves_data_alone(self, device: Device) -> None:
        tensor = make_tensor(device, "f32", (1000,))
        device.generate(tensor, 1, 0)
        device.disturb_scheduler()
        device.synchronize()
        assert device.count_changed([(tensor, 0)], 1)() == [0]
        device.free(tensor.buffer)

    def test_generate_stays_in_its_tensor(self, device: Device) -> None:
        tensor = make_tensor(device, "f16", (33,))
        nbytes = tensor.buffer.nbytes
        device.write(tensor.buffer, 0, np.full(nbytes, 7, np.uint8))
        device.generate(tensor, 1, 0)
        device.synchronize()
        raw = device.read(tensor.buffer, 0, nbytes)
        assert (raw[: tensor.offset] == 7).all()
        assert (raw[tensor.offset + tensor.spec.nbytes :] == 7).all()
        device.free(tensor.buffer)

    @pytest.mark.parametrize("dtype", WHOLE)
    def test_take_gives_the_bits(self, device: Device, dtype: str) -> None:
        tensor = make_tensor(device, dtype, (9, 13))
        device.generate(tensor, 2, 1)
        where = np.array([0, 116, 5, 5, 64], np.int64)
        taken = device.take(tensor, where)
        assert device.take(tensor, where[:0]).size == 0  # an output without a reference
        assert taken.dtype == storage(dtype)
        assert np.array_equal(taken, expected_bits(tensor.spec, 2, 1)[where])
        device.free(tensor.buffer)

    @pytest.mark.parametrize("dtype", WHOLE)
    @pytest.mark.parametrize("byte", [0xFF, 0x80, 0x55])
    def test_poison_is_counted_by_element(self, device: Device, dtype: str, byte: int) -> None:
        tensor = make_tensor(device, dtype, (50,), role="out")
        device.poison(tensor, byte)
        assert device.count_poison(tensor, byte) == 50
        width = storage(dtype).itemsize
        device.write(tensor.buffer, tensor.offset + 3 * width, np.array([1], np.uint8))
        device.write(tensor.buffer, tensor.offset + 40 * width, np.full(width, 2, np.uint8))
        assert device.count_poison(tensor, byte) == 48
        assert device.guards_intact(tensor)
        device.free(tensor.buffer)

    def test_poison_leaves_neighbours_alone(self, device: Device) -> None:
        """Check that only the output and its guards change, as argument sets share a buffer."""
        first = make_tensor(device, "f32", (64,), role="out", room=4096)
        second = Tensor(spec=first.spec, buffer=first.buffer, offset=first.offset + 2048)
        device.write(first.buffer, 0, np.full(first.buffer.nbytes, 9, np.uint8))
        device.poison(first, 0xFF)
        device.synchronize()
        raw = device.read(first.buffer, 0, first.buffer.nbytes)
        outer = first.offset + first.spec.nbytes + GUARD_BYTES
        assert (raw[: first.offset - GUARD_BYTES] == 9).all()
        assert (raw[outer:] == 9).all()
        device.poison(second, 0xFF)
        assert device.count_poison(first, 0xFF) == 64
        device.free(first.buffer)

    @pytest.mark.parametrize("side", ["first before", "last before", "first after", "last after"])
    def test_a_write_into_a_guard_is_caught(self, device: Device, side: str) -> None:
        tensor = make_tensor(device, "f16", (37,), role="out")
        end = tensor.offset + tensor.spec.nbytes
        where = {
            "first before": tensor.offset - GUARD_BYTES,
            "last before": tensor.offset - 1,
            "first after": end,
            "last after": end + GUARD_BYTES - 1,
        }[side]
        device.poison(tensor, 0xFF)
        device.synchronize()
        assert device.guards_intact(tensor)
        device.write(tensor.buffer, where, np.array([0], np.uint8))
        assert not device.guards_intact(tensor)
        device.free(tensor.buffer)

    @pytest.mark.parametrize("dtype", ["f16", *PACKED])
    def test_many_outputs_are_inspected_at_once(self, device: Device, dtype: str) -> None:
        tensors = [make_tensor(device, dtype, (48,), role="out") for _ in range(3)]
        for tensor in tensors:
            device.poison(tensor, 0xFF)
        device.synchronize()
        written, beside, whole = tensors
        device.write(written.buffer, written.offset, np.zeros(written.spec.nbytes, np.uint8))
        device.write(beside.buffer, beside.offset - 1, np.zeros(1, np.uint8))
        assert device.inspect(tensors, 0xFF)() == [(0, True), (48, False), (48, True)]
        assert device.inspect([whole], 0x11)() == [(0, True)]
        assert device.inspect([], 0xFF)() == []
        for tensor in tensors:
            device.free(tensor.buffer)

    @pytest.mark.parametrize("dtype", PACKED)
    def test_half_bytes_come_low_half_first(self, device: Device, dtype: str) -> None:
        tensor = make_tensor(device, dtype, (2, 6))
        device.generate(tensor, 4, 0)
        device.synchronize()
        bits = expected_bits(tensor.spec, 4, 0).astype(np.uint8)
        raw = device.read(tensor.buffer, tensor.offset, tensor.spec.nbytes)
        assert np.array_equal(raw, bits[0::2] | (bits[1::2] << np.uint8(4)))
        where = np.arange(12, dtype=np.int64)
        assert np.array_equal(device.take(tensor, where), bits)
        device.free(tensor.buffer)

    def test_record_keeps_the_order(self, device: Device) -> None:
        seen: list[int] = []

        def launch(stream: Stream, index: int) -> None:
            assert stream == device.stream
            seen.append(index)

        replay = device.record(launch, [2, 0, 1, 1], Timer.AUTO)
        reading = replay.run()
        replay.close()
        assert seen == [2, 0, 1, 1]
        assert replay.launches == 4
        assert replay.method is not Timer.AUTO
        assert reading.elapsed_s >= 0
        assert reading.clock_mhz is None or reading.clock_mhz > 0

    def test_more_launches_take_longer(self, device: Device) -> None:
        """Check times with the device's own work as the launch; the fake device's time is set."""
        tensor = make_tensor(device, "f32", (1 << 18,))
        advance = getattr(device, "advance", lambda seconds: None)

        def launch(stream: Stream, index: int) -> None:
            device.generate(tensor, 1, index)
            advance(1e-4)

        launch(device.stream, 0)
        device.synchronize()
        short = device.record(launch, [0] * 4, Timer.AUTO)
        long = device.record(launch, [0] * 40, Timer.AUTO)
        short_s = min(short.run().elapsed_s for _ in range(5))
        long_s = min(long.run().elapsed_s for _ in range(5))
        short.close()
        long.close()
        device.free(tensor.buffer)
        assert 0 < short_s < long_s

    def test_what_runs_ahead_has_run_when_its_seconds_are_told(self, device: Device) -> None:
        tensor = make_tensor(device, "f32", (1 << 18,))
        advance = getattr(device, "advance", lambda seconds: None)

        def launch(stream: Stream, index: int) -> None:
            device.generate(tensor, 1, index)
            advance(1e-4)

        short = device.record(launch, [0], Timer.AUTO)
        long = device.record(launch, [0] * 40 + [3], Timer.AUTO)
        device.run_ahead([short, long])()
        short_s = min(device.run_ahead([short])() for _ in range(5))
        long_s = min(device.run_ahead([short, long])() for _ in range(5))
        raw = device.read(tensor.buffer, tensor.offset, tensor.spec.nbytes)
        assert np.array_equal(raw.view(np.uint32), expected_bits(tensor.spec, 1, 3))
        assert 0 < short_s < long_s
        for replay in (short, long):
            replay.close()
        device.free(tensor.buffer)

    def test_evicting_leaves_data_alone(self, device: Device) -> None:
        tensor = make_tensor(device, "f32", (1000,))
        device.generate(tensor, 1, 0)
        device.evict_cache()
        device.synchronize()
        raw = device.read(tensor.buffer, tensor.offset, tensor.spec.nbytes)
        assert np.array_equal(raw.view(np.uint32), expected_bits(tensor.spec, 1, 0))
        device.free(tensor.buffer)

    def test_telemetry_is_typed(self, device: Device) -> None:
        device.telemetry()
        telemetry = device.telemetry()
        assert isinstance(telemetry, Telemetry)
        for name in ("clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "load"):
            value = getattr(telemetry, name)
            assert value is None or (isinstance(value, float) and value >= 0)
        assert isinstance(telemetry.throttle, tuple)
        assert all(isinstance(reason, str) for reason in telemetry.throttle)


def make_tensor(
    device: Device, dtype: str, shape: tuple[int, ...], *, role: Role = "in", room: int = 0
) -> Tensor:
    """Return a tensor in its own buffer, with space for guards and `room` more bytes after it."""
    low, high = (-4.0, 4.0) if DTYPES[dtype].kind == "int" else (-1.0, 1.0)
    spec = TensorSpec(name="x", shape=shape, dtype=dtype, role=role, low=low, high=high)
    start = 2 * GUARD_BYTES
    nbytes = start + -(-spec.nbytes // 256) * 256 + 2 * GUARD_BYTES + room
    return Tensor(spec=spec, buffer=device.allocate(nbytes), offset=start)


def expected_bits(spec: TensorSpec, seed: int, set_index: int) -> NDArray[np.generic]:
    """Return the elements as `numerics.generate` defines them, as bit patterns."""
    pool = source_bits(spec, seed)
    where = (offset(spec, seed, set_index) + np.arange(spec.count)) % pool.size
    return pool[where]
