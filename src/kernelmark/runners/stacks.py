"""Parse a lost worker's standard error: its last message, and the frame it ended in.

The text comes from Python's faulthandler and from libraries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

_FRAME = re.compile(r'\s+File "(.+)", line (\d+) in (.+)')
# Frames that occur in every worker, independent of the kernel: kernelmark's and Python's own.
_USUAL_FRAME = re.compile(
    r"/kernelmark/(backends|core|devices|gpu|kernels|measure|numerics|ops|runners|stats)/"
    r"|<frozen |/python3\.\d+/(?!site-packages/|dist-packages/)"
)
_DUMP = ("Fatal Python error", "Current thread", "Thread 0x", "Extension modules", "Traceback")


def parse_stderr(output: str) -> dict[str, str]:
    """Return the fields that describe a worker's loss: the whole `output`, the last line `said`
    that is not part of a stack dump, and the innermost `frame` of code outside kernelmark and
    Python."""
    lines = output.splitlines()
    unindented = [line.strip() for line in lines if line.strip() and not line[0].isspace()]
    messages = [line for line in unindented if not line.startswith(_DUMP)]
    return {"output": output, "said": messages[-1] if messages else "", "frame": _frame(lines)}


def _frame(lines: Sequence[str]) -> str:
    """Return the frame as `own.py line 10 in launch`."""
    start = next((i for i, line in enumerate(lines) if line.startswith("Current thread")), 0)
    for match in filter(None, map(_FRAME.match, lines[start:])):
        if not _USUAL_FRAME.search(match[1]):
            return f"{PurePath(match[1]).name} line {match[2]} in {match[3]}"
    return ""
