"""The backend contract catches each fault it is there for."""

import numpy as np
import pytest

from kernelmark import backends, ops
from kernelmark.backends.base import Kernel
from kernelmark.backends.fake import backend as fake
from kernelmark.core.result import KernelInfo, Space
from kernelmark.devices.fake import FakeDevice
from kernelmark.testing.backends import BackendContract, assert_sentence, bench

PROBLEM = ops.parse("gemm m=8 n=9 k=10 dtype=f32")


def check(config=None, around=None):
    """The contract's checks on a kernel of the fake backend, with something put around it."""
    with bench(fake, PROBLEM, FakeDevice(), config=config) as made:
        if around is not None:
            object.__setattr__(made, "kernel", around(made))
        BackendContract().check(made)


class Around(Kernel):
    def __init__(self, made):
        self.made, self.inner = made, made.kernel
        self.info = KernelInfo(name="around")

    def launch(self, stream, set_index):
        self.inner.launch(stream, set_index)

    def collect(self, set_index):
        self.inner.collect(set_index)

    def put(self, set_index, name, value):
        tensor = self.made.sets[set_index][name]
        data = np.array([value], np.uint8)
        self.made.device.write(tensor.buffer, tensor.offset, data)


class ChangesInput(Around):
    def collect(self, set_index):
        super().collect(set_index)
        old = self.made.bytes_of(self.made.sets[set_index]["b"])[0]
        self.put(set_index, "b", old ^ 1)


class WritesOtherSet(Around):
    def collect(self, set_index):
        super().collect(set_index)
        self.inner._ended[1 - set_index] = "ok"
        self.inner.collect(1 - set_index)


class Wavers(Around):
    """One bit differs each time: within the tolerance, but not the same."""

    flip = 0

    def collect(self, set_index):
        super().collect(set_index)
        old = self.made.bytes_of(self.made.output(set_index))[0]
        self.put(set_index, "d", old ^ self.flip)
        if set_index == 0:
            self.flip ^= 1


class SwapsSets(Around):
    """Right once, but always set 0."""

    def launch(self, stream, set_index):
        self.inner.launch(stream, 0)


def test_a_good_kernel_passes():
    check()
    check(around=Around)


@pytest.mark.parametrize(
    ("behaviour", "found"),
    [
        ("wrong", "is wrong by"),
        ("nan", "is wrong by inf"),
        ("unwritten", "is wrong by|wrote less"),
        ("overrun", "around the output"),
    ],
)
def test_scripted_faults_are_caught(behaviour, found):
    with pytest.raises(AssertionError, match=found):
        check({"behaviour": behaviour})


@pytest.mark.parametrize(
    ("around", "found"),
    [
        (ChangesInput, "changed its inputs"),
        (WritesOtherSet, "wrote to another"),
        (Wavers, "other bits"),
        (SwapsSets, "is wrong by"),
    ],
)
def test_subtle_faults_are_caught(around, found):
    with pytest.raises(AssertionError, match=found):
        check(around=around)


@pytest.mark.parametrize("text", ["", "no", "two\nlines of it", " padded text here"])
def test_a_reason_must_be_a_sentence(text):
    with pytest.raises(AssertionError):
        assert_sentence(text)


def test_an_unavailable_backend_is_skipped_with_its_reason(monkeypatch):
    contract = BackendContract()
    monkeypatch.setattr(type(fake), "available", lambda self: "fake needs a library: pip install x")
    monkeypatch.setattr(BackendContract, "backend", "fake", raising=False)
    assert "fake" in backends.registry
    with pytest.raises(pytest.skip.Exception, match="pip install x"):
        contract.the_backend()
    contract.test_says_what_it_is()


def test_support_is_what_is_declared(monkeypatch):
    """Less than declared is a loss; more could be lost unnoticed."""
    contract = BackendContract()
    monkeypatch.setattr(BackendContract, "backend", "fake", raising=False)
    contract.test_supports_what_it_declares()
    with monkeypatch.context() as patch:
        patch.setattr(type(fake), "supports", lambda self, problem, info: "not any longer")
        with pytest.raises(AssertionError, match="and refuses them"):
            contract.test_supports_what_it_declares()
    monkeypatch.setattr(type(fake), "supports_examples", {"fake": ("*", "!gemm *")})
    with pytest.raises(AssertionError, match="gemm m=1 n=1 k=1 dtype=f32"):
        contract.test_supports_what_it_declares()


@pytest.mark.parametrize("values", [("yes", "no"), ("8", "16"), (8, 16, "1e3")])
def test_values_of_a_space_are_those_of_the_command_line(monkeypatch, values):
    monkeypatch.setattr(BackendContract, "backend", "fake", raising=False)
    contract = BackendContract()
    contract.test_values_of_its_space_can_be_given("fake")
    space = Space(parameters={"tile": values})
    monkeypatch.setattr(type(fake), "space", lambda self, problem, info: space)
    with pytest.raises(AssertionError, match="--config tile="):
        contract.test_values_of_its_space_can_be_given("fake")


def test_a_value_that_would_be_taken_for_another_is_caught(monkeypatch):
    monkeypatch.setattr(BackendContract, "backend", "fake", raising=False)
    contract = BackendContract()
    contract.test_refuses_an_unknown_value("fake")
    monkeypatch.setattr(type(fake), "prepare", lambda self, problem, config, device, sets: None)
    with pytest.raises(pytest.fail.Exception):
        contract.test_refuses_an_unknown_value("fake")
