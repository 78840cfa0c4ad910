"""Regular expressions that users write, with a bound on the time they take."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason

# A sensible expression takes microseconds a key; `(a+)+$` takes longer than anybody lives.
LIMIT_S = 2.0
_LONGEST = 1000


def found_in(pattern: str, texts: Iterable[str], *, hint: str | None = None) -> list[bool]:
    """Return whether the expression is found, for each text."""
    if len(pattern) > _LONGEST:
        raise UsageError(f"a regular expression of {len(pattern)} characters is too long", hint)
    try:
        with _limited():
            compiled = re.compile(pattern)
            return [compiled.search(text) is not None for text in texts]
    except (re.error, OverflowError, RecursionError) as error:
        reason = Reason("not-a-regex", pattern=pattern, error=str(error))
        raise UsageError(reason, hint) from None
    except TimeoutError:
        raise UsageError(
            f"the regular expression {pattern!r} takes more than {LIMIT_S:g} s",
            hint="repeat nothing that is itself repeated, such as (a+)+",
        ) from None


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise TimeoutError after the limit, in seconds of this process, which a busy machine does not
    use up: while it searches, re looks for signals now and then. In other threads nothing can be
    interrupted, and there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, late)
    left_s, interval_s = signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, left_s, interval_s)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL if before is None else before)
