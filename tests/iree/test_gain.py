"""What a spec and its flags gain, without the compiler."""

from types import SimpleNamespace

import pytest

from kernelmark.backends.iree.compiler import ToolRound
from kernelmark.backends.iree.targets import target_named
from kernelmark.iree import gain
from kernelmark.iree.signature import Signature

SECONDS = {"none": 8.0, "flags": 4.0, "spec": 1.0}


@pytest.fixture
def calls(monkeypatch):
    """The variants in the order of their calls; the second module gains nothing."""
    order, built = [], []

    def build(module, variant, target, folder):
        built.append(variant)
        return SimpleNamespace(binary=folder / f"{variant.name}.vmfb")

    def times(self, binary, expected_s=0.0):
        order.append(binary.stem)
        seconds = 8.0 if binary.parent.name == "module1" else SECONDS[binary.stem]
        return ToolRound(samples_s=(seconds,) * 3, dispatches={}, cpu_s=(2 * seconds,) * 3)

    signature = Signature(inputs=(), outputs=())
    monkeypatch.setattr(gain, "build_variant", build)
    monkeypatch.setattr(gain, "read_signature", lambda *rest: ("main", signature))
    monkeypatch.setattr(gain.ModuleCall, "times", times)
    return SimpleNamespace(order=order, built=built)


def test_flags_alone_and_spec_are_relative_to_no_flags(calls, tmp_path, monkeypatch):
    spec, cpu = tmp_path / "spec.mlir", target_named("cpu")
    monkeypatch.setattr(gain.os, "sched_getaffinity", lambda pid: {0})
    measured = gain.measure_gain(["a", "b"], spec, ["--f"], cpu)
    assert measured.flags == pytest.approx(2**0.5)
    assert measured.spec == pytest.approx(8**0.5)
    assert [variant.flags for variant in calls.built[:3]] == [(), ("--f",), ("--f",)]
    assert [variant.specs for variant in calls.built[:3]] == [(), (), (spec,)]
    rounds = [calls.order[at : at + 3] for at in (0, 3)]
    assert rounds[1] == rounds[0][::-1]
