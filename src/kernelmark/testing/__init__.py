"""For the tests of other projects: `assert_close`, which knows how far a correct kernel may be from
float64, and contracts of ops, backends, devices, importers, microbenchmarks and stores.

    assert_close(out, op="gemm", inputs=[a, b])

Subclass a contract in a pytest module and set what it tests:

    from kernelmark.testing import OpContract

    class TestMyOp(OpContract):
        op = my_op
        examples = ({"n": 7, "dtype": "f32"},)

        def dense(self, problem, arrays): ...
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

_WHERE = {
    "BackendContract": "kernelmark.testing.backends",
    "DeviceContract": "kernelmark.testing.devices",
    "ImporterContract": "kernelmark.testing.importers",
    "MicroContract": "kernelmark.testing.micro",
    "OpContract": "kernelmark.testing.ops",
    "StoreContract": "kernelmark.testing.stores",
    "assert_close": "kernelmark.testing.close",
}
__all__ = [
    "BackendContract",
    "DeviceContract",
    "ImporterContract",
    "MicroContract",
    "OpContract",
    "StoreContract",
    "assert_close",
]

# Failing contracts then show the values that they compared. `assert_close` needs no pytest.
if importlib.util.find_spec("pytest") is not None:
    import pytest

    pytest.register_assert_rewrite(*_WHERE.values())


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
