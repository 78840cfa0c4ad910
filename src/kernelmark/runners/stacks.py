"""What a lost worker wrote to standard error: its last words, and the frame that it ended in.

This is the text of Python's faulthandler and of libraries, and the only place that looks into it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

_FRAME = re.compile(r'\s+File "(.+)", line (\d+) in (.+)')
# Frames that are there whatever the kernel is: ours, and those of Python itself.
_USUAL_FRAME = re.compile(
    r"/kernelmark/(backends|core|devices|gpu|kernels|measure|numerics|ops|runners|stats)/"
    r"|<frozen |/python3\.\d+/(?!site-packages/|dist-packages/)"
)
_DUMP = ("Fatal Python error", "Current thread", "Thread 0x", "Extension modules", "Traceback")


def last_words(output: str) -> dict[str, str]:
    """Fields of a worker's loss: all of `output`, the last line `said` that is no stack, and the
    innermost `frame` that is not always there."""
    lines = output.splitlines()
    words = [one.strip() for one in lines if one.strip() and not one[0].isspace()]
    said = [one for one in words if not one.startswith(_DUMP)]
    return {"output": output, "said": said[-1] if said else "", "frame": _frame(lines)}


def _frame(lines: Sequence[str]) -> str:
    """`own.py line 10 in launch`."""
    start = next((i for i, one in enumerate(lines) if one.startswith("Current thread")), 0)
    for found in filter(None, map(_FRAME.match, lines[start:])):
        if not _USUAL_FRAME.search(found[1]):
            return f"{PurePath(found[1]).name} line {found[2]} in {found[3]}"
    return ""
