"""`kmark doctor`: what works on this machine, what does not, and how to fix it."""

from __future__ import annotations

from kernelmark.cli import options as o
from kernelmark.cli.output import check_writable, put_tables, write


def doctor(store: o.StorePlace = None, json: o.Json = None) -> int:
    """Check this machine: devices, backends, store and roofs.

    Also checks the CPU's settings and precompiled bundles. Lists what is missing
    and how to fix it. Include the output in a bug report.
    """
    from kernelmark.cli import health
    from kernelmark.core.files import json_text

    if json is not None:
        check_writable(json)
    if json is None:
        put_tables(health.examine(store))
    else:
        write(json, json_text(health.document(store)))
    return 0
