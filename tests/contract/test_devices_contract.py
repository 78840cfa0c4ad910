"""Every device that the registry knows keeps the contract."""

import pytest

from kernelmark.devices import registry
from kernelmark.testing.devices import DeviceContract

MISSING = {name: registry.get(name).available() for name in registry.names()}


@pytest.mark.parametrize("kind_name", [name for name, reason in MISSING.items() if reason is None])
class TestDevices(DeviceContract):
    pass


@pytest.mark.parametrize("kind_name", [name for name, reason in MISSING.items() if reason])
def test_a_device_that_is_not_here_says_why(kind_name):
    """One skip of a kind, instead of one of each of its tests."""
    pytest.skip(MISSING[kind_name])
