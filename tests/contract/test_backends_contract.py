"""Every backend in the registry keeps the backend contract: a new file is tested at once."""

import pytest

from kernelmark import backends
from kernelmark.testing.backends import BackendContract


class _Compiles(BackendContract):
    """The contract of a backend that runs a compiler for each example."""

    @pytest.mark.slow
    def test_computes_what_it_supports(self, kind, example):
        super().test_computes_what_it_supports(kind, example)


for _name in backends.registry.names():
    _base = _Compiles if _name == "iree" else BackendContract
    globals()[f"Test_{_name}"] = type(f"Test_{_name}", (_base,), {"backend": _name})
