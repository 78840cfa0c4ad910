"""Run ids: they sort by time, are short enough to type, and are unlikely to collide."""

from __future__ import annotations

import re
import time
from random import Random, SystemRandom

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason

# Crockford's base 32: without i, l and o, which look like digits, and without u.
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
_LEGAL = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}\Z")


def new_run_id(now: float | None = None, random: Random | None = None) -> str:
    """Return an id like 20261115-031502-k3f9x2: UTC to the second, then 30 random bits."""
    moment = time.gmtime(time.time() if now is None else now)
    source = SystemRandom() if random is None else random
    tail = "".join(source.choice(_LETTERS) for _ in range(6))
    return f"{time.strftime('%Y%m%d-%H%M%S', moment)}-{tail}"


def check_name(what: str, name: str) -> str:
    """Return `name`; raise UsageError if it is not valid as the name of a `what`."""
    if not _LEGAL.match(name) or name.lower().startswith("latest"):
        raise UsageError(
            Reason("name-illegal", name=name[:80], what=what),
            hint="use up to 64 letters, digits, '.', '_' or '-', not beginning with 'latest'",
        )
    return name
