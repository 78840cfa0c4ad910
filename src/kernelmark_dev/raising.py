"""Assertions on errors by code and fields, so that a sentence can be improved without a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kernelmark.core.errors import KernelmarkError


@contextmanager
def raises_code(
    kind: type[KernelmarkError], code: str, **fields: Any
) -> Iterator[pytest.ExceptionInfo[KernelmarkError]]:
    """Expect an error of `kind` whose reason, or the root of it, has `code` and these fields."""
    with pytest.raises(kind) as raised:
        yield raised
    message = raised.value.message
    reason = message if message.code == code else message.root
    assert reason.code == code, f"{message.code} ({message})"
    found = {name: reason.fields.get(name) for name in fields}
    assert found == fields


@contextmanager
def raises_with(
    kind: type[KernelmarkError], *values: object
) -> Iterator[pytest.ExceptionInfo[KernelmarkError]]:
    """Expect an error of `kind` whose message has all these values."""
    with pytest.raises(kind) as raised:
        yield raised
    missing = [value for value in values if str(value) not in raised.value.message]
    assert not missing, raised.value.message
