"""Every microbenchmark in the registry keeps the contract: a new file is tested at once."""

from __future__ import annotations

import pytest

from kernelmark.micro import registry
from kernelmark.testing.micro import MicroContract


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", registry.names())
class TestMicrobenchmarks(MicroContract):
    pass
