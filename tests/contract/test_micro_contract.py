"""Every microbenchmark in the registry keeps the contract: a new file is tested at once."""

import pytest

from kernelmark.core.immutable import FrozenDict
from kernelmark.micro import registry
from kernelmark.testing.micro import MicroContract


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", registry.names())
class TestMicrobenchmarks(MicroContract):
    # Its arrays are beyond the caches of the largest CPUs otherwise.
    parameters = FrozenDict({"stream": {"nbytes": 16 * 2**20}})
