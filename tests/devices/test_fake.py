import pytest

from kernelmark.core.errors import UsageError
from kernelmark.core.timing import Timer
from kernelmark.devices.fake import FakeDevice, Script, kind
from kernelmark_dev.raising import raises


def timed(device, seconds, launches):
    replay = device.record(
        lambda stream, index: device.advance(seconds), [0] * launches, Timer.AUTO
    )
    return replay.run().elapsed_s


def test_a_replay_takes_its_launches_and_a_fixed_cost():
    device = FakeDevice(script=Script(replay_s=1e-3))
    assert timed(device, 1e-4, 5) == pytest.approx(1.5e-3)
    assert timed(device, 1e-4, 10) == pytest.approx(2e-3)
    assert device.now_s == pytest.approx(3.5e-3)


def test_scripts_are_walked_and_begin_again():
    device = FakeDevice(script=Script(replay_s=0.0, slow=(1.0, 3.0), clock_mhz=(1000.0, 500.0)))
    replay = device.record(lambda stream, index: device.advance(1.0), [0], Timer.AUTO)
    readings = [replay.run() for _ in range(3)]
    assert [r.elapsed_s for r in readings] == [1.0, 3.0, 1.0]
    assert [r.clock_mhz for r in readings] == [1000.0, 500.0, 1000.0]


def test_telemetry_follows_its_script():
    device = FakeDevice(script=Script(throttle=((), ("power",)), load=(0.0, 2.5)))
    first, second = device.telemetry(), device.telemetry()
    assert (first.throttle, first.load) == ((), 0.0)
    assert (second.throttle, second.load) == (("power",), 2.5)


def test_jitter_is_seeded():
    def readings(seed):
        device = FakeDevice(script=Script(jitter=0.05, seed=seed))
        return [timed(device, 1e-3, 3) for _ in range(4)]

    assert readings(1) == readings(1)
    assert readings(1) != readings(2)


def test_environment_gives_count_and_script(monkeypatch):
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "3")
    monkeypatch.setenv("KERNELMARK_FAKE_SCRIPT", '{"clock_mhz": [900], "throttle": [["heat"]]}')
    assert [info.name for info in kind.infos()] == ["fake", "fake:1", "fake:2"]
    device = kind.open(2)
    assert device.info.index == 2
    assert device.telemetry().throttle == ("heat",)
    with raises(UsageError, device="fake:3"):
        kind.open(3)


@pytest.mark.parametrize("text", ["[1", "[1]", '"x"', '{"speed": 1}'])
def test_bad_scripts_are_refused(text):
    with pytest.raises(UsageError):
        Script.from_text(text)


def test_no_devices_when_the_count_is_zero(monkeypatch):
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "0")
    assert kind.infos() == []
    assert "KERNELMARK_FAKE_DEVICES" in (kind.available() or "")
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "two")
    with raises(UsageError, value="two"):
        kind.available()
