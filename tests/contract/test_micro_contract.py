"""Every microbenchmark in the registry keeps the contract: a new file is tested at once."""

from __future__ import annotations

import shutil

import pytest

from kernelmark.micro import registry
from kernelmark.testing.micro import MicroContract

COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++"))


@pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler here")
@pytest.mark.parametrize("name", registry.names())
class TestMicrobenchmarks(MicroContract):
    pass
