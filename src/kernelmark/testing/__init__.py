"""Contract tests for third-party ops, backends, devices, importers, microbenchmarks and stores.

Subclass a contract in a pytest module and set what it tests:

    from kernelmark.testing import OpContract

    class TestMyOp(OpContract):
        op = my_op
        examples = ({"n": 7, "dtype": "f32"},)

        def dense(self, problem, arrays): ...
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

_WHERE = {
    "BackendContract": "kernelmark.testing.backends",
    "DeviceContract": "kernelmark.testing.devices",
    "ImporterContract": "kernelmark.testing.importers",
    "MicroContract": "kernelmark.testing.micro",
    "OpContract": "kernelmark.testing.ops",
    "StoreContract": "kernelmark.testing.stores",
}
__all__ = [
    "BackendContract",
    "DeviceContract",
    "ImporterContract",
    "MicroContract",
    "OpContract",
    "StoreContract",
]

# Failing contracts then show the values that they compared.
pytest.register_assert_rewrite(*_WHERE.values())


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
