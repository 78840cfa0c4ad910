"""Every backend in the registry keeps the backend contract: a new file is tested at once."""

from __future__ import annotations

from kernelmark import backends
from kernelmark.testing.backends import BackendContract

for _name in backends.registry.names():
    globals()[f"Test_{_name}"] = type(f"Test_{_name}", (BackendContract,), {"backend": _name})
