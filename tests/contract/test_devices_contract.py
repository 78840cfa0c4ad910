"""Every device that the registry knows keeps the contract."""

from __future__ import annotations

import pytest

from kernelmark.devices import registry
from kernelmark.testing.devices import DeviceContract


@pytest.mark.parametrize("kind_name", registry.names())
class TestDevices(DeviceContract):
    pass
