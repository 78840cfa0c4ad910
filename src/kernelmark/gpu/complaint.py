"""Format a compiler's log as an error that shows the offending source line."""

from __future__ import annotations

import re

from kernelmark.core.reason import Reason

# NVRTC writes file(12): error: …, clang file:12:3: error: …
_NVRTC = re.compile(r"^(?P<file>[^()\n]*)\((?P<line>\d+)\): (?:catastrophic )?error\b")
_CLANG = re.compile(r"^(?P<file>[^:\n]*):(?P<line>\d+):\d+: (?:fatal )?error\b")
_LOG_CHARACTERS = 1500


def explain(log: str, source: str, name: str) -> Reason:
    """Return the compiler's first error with its line of `source`, and the end of the log."""
    end = log[-_LOG_CHARACTERS:]
    for text in log.splitlines():
        found = _NVRTC.match(text) or _CLANG.match(text)
        if found:
            file = found["file"].rpartition("/")[2]
            shown = _line(source, file, name, int(found["line"]))
            place = f"  {file}:{found['line']}: {shown}\n" if shown else ""
            return Reason("source-refused", error=text.strip(), file=file, output=f"{place}{end}")
    return Reason("source-not-compiled", file=name, error=end)


def _line(source: str, file: str, name: str, number: int) -> str:
    """Return line `number` of `file`; in `source`, a #line directive starts each file."""
    _, directive, after = source.partition(f'#line 1 "{file}"\n')
    if not directive and file != name:
        return ""
    lines = (after if directive else source).splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""
