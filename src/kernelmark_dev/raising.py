"""Assertions on errors by class, values and code, so that a sentence can be improved without a
test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from kernelmark.core.errors import KernelmarkError

_Error = TypeVar("_Error", bound=Exception)


@contextmanager
def raises(
    kind: type[_Error], *values: object, **named: object
) -> Iterator[pytest.ExceptionInfo[_Error]]:
    """Expect an error of `kind` whose sentence or hint has these values; see `tells`."""
    with pytest.raises(kind) as raised:
        yield raised
    assert tells(raised.value, *values, **named)


def tells(sentence: object, *values: object, **named: object) -> bool:
    """Return whether a sentence has the text of each value, and of each element of a list; None is
    not looked for. The names only document the values."""
    text = str(sentence)
    for value in [*values, *named.values()]:
        for item in value if isinstance(value, list | tuple) else [value]:
            forms = [str(item), f"{item:,}"] if isinstance(item, int) else [str(item)]
            assert item is None or any(f in text for f in forms), f"{item} is not in: {text}"
    return True


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
