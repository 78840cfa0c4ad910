"""Exceptions of kernelmark. A case that fails becomes a `Result`; other failures raise.

KernelmarkError            one sentence, an optional hint, an exit code
├── UsageError       (2)   the request is wrong
│   ├── ProblemError (2)   an op refuses these dims, dtypes or options
│   └── CodecError   (2)   this version cannot read the file
├── NothingToDo      (4)   nothing to run, show or compare
├── StoreError       (2)   the store cannot be opened, read or written
└── CaseError              raised while a case runs; the worker turns it into a status
    ├── Unsupported        the backend cannot do this problem on this device
    ├── CompileError       the backend's compiler failed
    └── OutOfMemory        not enough memory on the device or the host
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernelmark.core.reason import Reason, prefixed

# What code may raise on a damaged file that it did not anticipate.
UNEXPECTED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class KernelmarkError(Exception):
    """The base class of kernelmark's exceptions.

    `message` is one sentence, often a `Reason`; `hint` says what to do, or is None; `exit_code` is
    that of `kmark`."""

    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = Reason.of(message)
        self.hint = hint
        self.about = ""  # the subject, if the hint depends on it: suite-file, device, …

    def __str__(self) -> str:
        """Return the sentence and, on a second line, the hint, for a traceback."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else str(self.message)

    def __reduce__(self) -> tuple[type, tuple[str, str | None]]:
        return type(self), (self.message, self.hint)


@contextmanager
def about(what: str) -> Iterator[None]:
    """Set `about` of errors raised in the `with` block."""
    try:
        yield
    except KernelmarkError as error:
        error.about = error.about or what
        raise


@contextmanager
def located(where: str) -> Iterator[None]:
    """Prefix errors raised in the `with` block with the option or the position in a file."""
    try:
        yield
    except KernelmarkError as error:
        reason = prefixed(error.message, f"{where}: ")
        raise type(error)(reason, hint=error.hint) from None


class UsageError(KernelmarkError):
    """The request is wrong."""


class ProblemError(UsageError):
    """An op refuses this combination of dims, dtypes or options."""


class CodecError(UsageError):
    """This version cannot read the document or line."""


class NothingToDo(KernelmarkError):
    """There is nothing to run, show or compare."""

    exit_code = 4


class StoreError(KernelmarkError):
    """The store cannot be opened, read or written."""


class CaseError(KernelmarkError):
    """A case cannot be completed; the worker turns this into a result's status."""

    exit_code = 3


class Unsupported(CaseError):
    """The backend cannot do this problem on this device."""


class CompileError(CaseError):
    """The backend's compiler failed."""


class OutOfMemory(CaseError):
    """Not enough memory on the device or the host."""
