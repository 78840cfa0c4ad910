"""Which vendor's sheet a device gets, and what its links can carry."""

import pytest

from kernelmark.core.environment import DeviceInfo
from kernelmark.micro.hardware import Hardware, find_sheet, lanes_of, most_lanes


def device(model, arch, units=132, kind="cuda"):
    return DeviceInfo(name=f"{kind}:0", kind=kind, model=model, arch=arch, units=units)


@pytest.mark.parametrize(
    ("model", "arch", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "sm_80", "A100 SXM 40 GB"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", "A100 SXM 80 GB"),
        ("NVIDIA A100-PCIE-40GB", "sm_80", "A100 40 GB PCIe"),
        ("NVIDIA A100 80GB PCIe", "sm_80", "A100 80 GB PCIe"),
        ("NVIDIA A100-SXM-64GB", "sm_80", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "sm_80", None),
        ("NVIDIA A100X", "sm_80", None),
        ("NVIDIA A40", "sm_86", "A40"),
        ("NVIDIA A10", "sm_86", "A10"),
        ("NVIDIA A10G", "sm_86", None),
        ("NVIDIA RTX A6000", "sm_86", "RTX A6000"),
        ("NVIDIA GeForce RTX 3090", "sm_86", None),
        ("NVIDIA H100 80GB HBM3", "sm_90", "H100 SXM"),
        ("NVIDIA H100 PCIe", "sm_90", "H100 PCIe"),
        ("NVIDIA H100 NVL", "sm_90", None),
        ("NVIDIA H800", "sm_90", None),
        ("NVIDIA H20", "sm_90", None),
        ("NVIDIA H200", "sm_90", "H200 SXM"),
        ("NVIDIA H200 NVL", "sm_90", "H200 NVL"),
        ("NVIDIA GH200 480GB", "sm_90", "GH200 96 GB"),
        ("NVIDIA GH200 144G HBM3e", "sm_90", None),
        ("NVIDIA B200", "sm_100", "B200"),
        ("NVIDIA GB200", "sm_100", None),
        ("NVIDIA GeForce RTX 4090", "sm_89", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 D", "sm_89", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "sm_89", None),
        ("NVIDIA L40S", "sm_89", "L40S"),
        ("NVIDIA L40", "sm_89", None),
        ("AMD Instinct MI250X", "gfx90a", "MI250X (one of its two dies)"),
        ("AMD Instinct MI300X", "gfx942", "MI300X"),
        ("AMD Instinct MI300X", "gfx90a", None),
        ("AMD Instinct MI300A", "gfx942", None),
        ("AMD Instinct MI325X", "gfx942", "MI325X"),
        ("AMD Instinct MI355X", "gfx950", "MI355X"),
    ],
)
def test_a_sheet_is_found_by_whole_words(model, arch, name):
    found = find_sheet(device(model, arch))
    assert (found.name if found else None) == name


def test_the_memory_of_a_pcie_card_is_its_own():
    assert find_sheet(device("NVIDIA A100 80GB PCIe", "sm_80")).dram == 1.935e12
    assert find_sheet(device("NVIDIA A100-SXM4-80GB", "sm_80")).dram == 2.039e12


def test_a_professional_card_is_not_held_to_a_gaming_cards_rate():
    """NVIDIA's data sheet of the A40: 149.7 TFLOP/s of bf16 without sparsity, 74.8 of tf32."""
    found = Hardware.of(device("NVIDIA A40", "sm_86", units=84))
    assert found.flops("matrix", "bf16").value == pytest.approx(149.7e12, rel=0.01)
    assert found.flops("matrix", "tf32").value == pytest.approx(74.8e12, rel=0.01)


def link(model, arch, end="host", kind="cuda", ways=1):
    return Hardware.of(device(model, arch, kind=kind)).link(end, ways=ways)


class TestLinks:
    def test_bits_taken_for_bytes_are_above_the_bus(self):
        """55 GB/s from pinned memory on an H200, as measured; eight times that cannot be."""
        host = link("NVIDIA H200", "sm_90")
        assert 55.5e9 < host.value < 8 * 55.5e9
        assert "one way to the host" in host.why
        assert link("NVIDIA H200", "sm_90", ways=2).value == 2 * host.value

    @pytest.mark.parametrize(
        ("model", "arch", "end", "value"),
        [
            ("NVIDIA GH200 480GB", "sm_90", "host", 450e9),  # NVLink-C2C, one way
            ("NVIDIA H200", "sm_90", "peer", 450e9),
            ("NVIDIA L40S", "sm_89", "peer", 32e9),
            ("something", "sm_999", "host", 900e9),  # an unknown GPU may have any link
            ("something", "sm_999", "peer", 1800e9),
        ],
    )
    def test_links(self, model, arch, end, value):
        assert link(model, arch, end).value == value

    def test_memory_that_both_have_is_no_link(self):
        mi300a = Hardware.of(device("AMD Instinct MI300A", "gfx942", units=228, kind="hip"))
        assert mi300a.link("host") == mi300a.bandwidth("dram")
        assert mi300a.link("peer").value < mi300a.link("host").value


def test_double_precision_is_held_to_its_own_units():
    h200 = Hardware.of(device("NVIDIA H200", "sm_90"))
    assert lanes_of(h200, "fma_f64").value == 64
    assert lanes_of(h200, "fma_f32").value == 128
    unknown = Hardware.of(device("a GPU of tomorrow", "sm_999"))
    assert lanes_of(unknown, "fma_f64") == most_lanes(unknown)
