"""How a command ends: its exit codes, and Ctrl-C."""

from __future__ import annotations

from kernelmark.core.exit_codes import INTERRUPTED, NOTHING, REGRESSION, SOME_FAILED

__all__ = ["INTERRUPTED", "NOTHING", "REGRESSION", "SOME_FAILED", "Interrupted"]


class Interrupted(Exception):
    """Ctrl-C in a command, with what it left behind in one sentence."""
