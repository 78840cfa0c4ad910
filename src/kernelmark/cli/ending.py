"""How a command ends: its exit codes, and Ctrl-C."""

from __future__ import annotations

REGRESSION = 1
SOME_FAILED = 3
NOTHING = 4
INTERRUPTED = 130


class Interrupted(Exception):
    """Ctrl-C in a command, with what it left behind in one sentence."""
