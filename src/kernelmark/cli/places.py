"""What to do where measured data could not be written."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence

from kernelmark.core.errors import UsageError


@contextlib.contextmanager
def kept_by(words: Sequence[str], store: str | None = None) -> Iterator[None]:
    """Whoever cannot be written to inside is told of the command of these words, which writes the
    same again; without words, that nothing is kept."""
    try:
        yield
    except UsageError as error:
        command = shlex.join(["kmark", *words, *(("--store", store) if store else ())])
        again = f"to write it again: {command}" if words else "nothing is stored: measure again"
        raise UsageError(error.message, hint=f"make room or name another place; {again}") from None
