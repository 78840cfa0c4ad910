"""Telemetry from NVML's functions and from AMD's package, both stood in for."""

import sys
import threading
from types import ModuleType

import pytest

from kernelmark.core.result import Telemetry
from kernelmark.gpu import telemetry

UUID = "0123456789abcdef0123456789abcdef"
BUS_IDS = {"first": "0000:c1:00.0", "second": "0000:e1:00.0"}


def nowhere():
    raise RuntimeError("no bus id")


class Nvml:
    """NVML's functions as Python; `numbers` are written through the last argument."""

    def __init__(self, numbers):
        self.numbers = numbers
        self.asked = b""

    def nvmlDeviceGetHandleByUUID(self, name, handle):
        self.asked = name
        handle._obj.value = 7
        return 0

    def __getitem__(self, name):
        if name not in self.numbers:
            raise AttributeError(name)

        def call(handle, *arguments):
            assert handle.value == 7
            value = self.numbers[name]
            if isinstance(value, dict):
                value = value[arguments[0]]
            if value is None:
                return 3  # not supported
            arguments[-1]._obj.value = value
            return 0

        return call


def read_nvml(monkeypatch, numbers):
    library = Nvml(numbers)
    monkeypatch.setattr(telemetry, "_nvml", lambda: library)
    found = telemetry.watcher("cuda", UUID, nowhere).read()
    assert library.asked == b"GPU-01234567-89ab-cdef-0123-456789abcdef"
    return found


def test_nvml_units(monkeypatch):
    found = read_nvml(
        monkeypatch,
        {
            "nvmlDeviceGetPowerUsage": 412_500,
            "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
            "nvmlDeviceGetClockInfo": {1: 1755, 2: 2619},
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x40 | 0x1,
        },
    )
    assert found == Telemetry(
        clock_mhz=1755.0,
        memory_clock_mhz=2619.0,
        power_w=412.5,
        temperature_c=61.0,
        energy_j=5000.0,
        throttle=("power cap", "thermal (hardware)"),
    )


def test_nvml_is_initialised_in_the_background(monkeypatch):
    goes_on = threading.Event()

    def nvml():
        assert goes_on.wait(120)

    monkeypatch.setattr(telemetry, "_nvml", nvml)
    watcher = telemetry.watcher("cuda", UUID, nowhere)
    watcher.begin()
    goes_on.set()  # never, if one of them waited
    assert watcher.read() == Telemetry()


def test_nvml_that_says_little(monkeypatch):
    """Older drivers name the reasons otherwise; a virtual GPU has no power meter."""
    numbers = {
        "nvmlDeviceGetPowerUsage": None,
        "nvmlDeviceGetClockInfo": {1: 1000, 2: None},
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x20,
    }
    found = read_nvml(monkeypatch, numbers)
    assert found == Telemetry(clock_mhz=1000.0, throttle=("thermal (software)",))


def amdsmi(metrics):
    module = ModuleType("amdsmi")

    def info(handle):
        assert handle == "second"
        if isinstance(metrics, Exception):
            raise metrics
        return metrics

    module.amdsmi_init = lambda: None
    module.amdsmi_get_processor_handles = lambda: list(BUS_IDS)
    module.amdsmi_get_gpu_device_bdf = BUS_IDS.__getitem__
    module.amdsmi_get_gpu_metrics_info = info
    return module


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (
            {
                "current_gfxclk": 2100,
                "current_uclk": 1300,
                "current_socket_power": 700,
                "temperature_hotspot": 80,
                "energy_accumulator": 1_000_000,
                "throttle_status": 1,
            },
            Telemetry(
                clock_mhz=2100.0,
                memory_clock_mhz=1300.0,
                power_w=700.0,
                temperature_c=80.0,
                energy_j=15.259,
                throttle=("throttled",),
            ),
        ),
        (
            {"current_gfxclk": 0xFFFF, "current_gfxclks": ["N/A", 1900], "temperature_edge": 50},
            Telemetry(clock_mhz=1900.0, temperature_c=50.0),
        ),
        ({"current_gfxclk": "N/A"}, Telemetry()),
        (RuntimeError("driver gone"), Telemetry()),
    ],
)
def test_amd_metrics(monkeypatch, metrics, expected):
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(metrics))
    found = telemetry.watcher("hip", UUID, lambda: BUS_IDS["second"].upper()).read()
    assert found.energy_j == pytest.approx(expected.energy_j)
    for name in ("clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "throttle"):
        assert getattr(found, name) == getattr(expected, name)


# A data-centre GPU since MI300: the status is always 0, and time spent held down is added up.
HELD = {
    "throttle_status": 0,
    "indep_throttle_status": 0,
    "prochot_residency_acc": 0,
    "ppt_residency_acc": 1000,
    "socket_thm_residency_acc": 20,
    "vr_thm_residency_acc": "N/A",
    "hbm_thm_residency_acc": 0xFFFFFFFFFFFFFFFF,
}


def reasons(monkeypatch, *told):
    """The throttle reasons of blocks: what the GPU tells changes while each is timed."""
    monkeypatch.setattr(telemetry, "REFRESH_S", 0.0)
    metrics = dict(told[0])
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(metrics))
    watcher = telemetry.watcher("hip", UUID, lambda: BUS_IDS["second"])
    found = []
    for after in told[1:]:
        watcher.begin()
        assert watcher._pending is not None
        watcher._pending.result()
        metrics.clear()
        metrics.update(after)
        found.append(watcher.read().throttle)
    return found


def test_amd_reasons_are_those_of_the_block(monkeypatch):
    powered = {**HELD, "ppt_residency_acc": 1001}
    hot = {**powered, "socket_thm_residency_acc": 25, "prochot_residency_acc": 1}
    wrapped = {**hot, "socket_thm_residency_acc": 3}
    found = reasons(monkeypatch, HELD, powered, powered, hot, wrapped, {}, hot)
    assert found == [
        ("power cap",),
        (),
        ("processor hot", "thermal (socket)"),
        (),  # the counter began again
        (),
        (),  # since when, nobody knows
    ]


def test_either_status_of_an_amd_gpu_counts(monkeypatch):
    neither = {"throttle_status": 0xFFFFFFFF, "indep_throttle_status": "N/A"}
    first, second = {"throttle_status": 0, "indep_throttle_status": 4}, {"throttle_status": True}
    found = reasons(monkeypatch, first, second, neither, neither)
    assert found == [("throttled",), ("throttled",), ()]


def elsewhere():
    return "0000:c1:00.1"


def test_amd_smi_of_rocms_share_folder(monkeypatch, tmp_path):
    """A stock ROCm has the package where Python does not look."""
    package = tmp_path / "rocm" / "share" / "amd_smi" / "amdsmi"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "amdsmi_init = lambda: None\n"
        f"amdsmi_get_processor_handles = lambda: ['first', 'second']\n"
        f"amdsmi_get_gpu_device_bdf = {BUS_IDS!r}.__getitem__\n"
        "amdsmi_get_gpu_metrics_info = lambda handle: {'current_gfxclk': 2100}\n"
    )
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    before = list(sys.path)
    found = telemetry.watcher("hip", UUID, lambda: BUS_IDS["second"]).read()
    monkeypatch.delitem(sys.modules, "amdsmi")
    assert (found.clock_mhz, sys.path) == (2100, before)


@pytest.mark.parametrize(
    ("files", "power"),
    [
        ({"power1_average": "250000000", "temp2_input": "61000", "temp1_input": "50000"}, 250.0),
        ({"power1_input": "700000000", "temp2_input": "61000"}, 700.0),
        ({"temp1_input": "61000", "power1_average": ""}, None),
    ],
)
def test_without_amd_smi_the_kernels_files_are_read(monkeypatch, tmp_path, files, power):
    folder = tmp_path / BUS_IDS["second"] / "hwmon" / "hwmon7"
    folder.mkdir(parents=True)
    for name, text in {"freq1_input": "2100000000", "freq2_input": "900000000", **files}.items():
        (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(telemetry, "_PCI", tmp_path)
    monkeypatch.setitem(sys.modules, "amdsmi", None)  # not installed
    found = telemetry.watcher("hip", UUID, lambda: BUS_IDS["second"].upper()).read()
    assert found == Telemetry(
        clock_mhz=2100.0, memory_clock_mhz=900.0, power_w=power, temperature_c=61.0
    )


@pytest.mark.parametrize("bus_id", [elsewhere, nowhere])
def test_an_amd_gpu_that_the_package_does_not_show_says_nothing(monkeypatch, bus_id):
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi({"current_gfxclk": 2100}))
    assert telemetry.watcher("hip", UUID, bus_id).read() == Telemetry()
