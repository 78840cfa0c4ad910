"""Read logs of calls as workloads: one module per format, in `formats`.

    reading = read(["rank0.log", "rank1.log.gz"], arch="gfx942")
    reading.workload.calls

Formats are detected by content, and a file may mix lines of several formats with other lines. A
line that cannot be read is skipped and reported; the rest of the file is still read.
"""

from __future__ import annotations

from kernelmark.workloads.logs.reading import Input, Reading, named, names, read, recognized

__all__ = ["Input", "Reading", "named", "names", "read", "recognized"]
