"""Logs of calls as workloads: one file a format, in `formats`.

    reading = read(["rank0.log", "rank1.log.gz"], arch="gfx942")
    reading.workload.calls

Formats are found out by what a file holds, and lines of several may be in one file between lines of
anything else. A line that cannot be read is skipped and reported, never the file.
"""

from __future__ import annotations

from kernelmark.workloads.logs.reading import Input, Reading, named, names, read, recognized

__all__ = ["Input", "Reading", "named", "names", "read", "recognized"]
