"""`kmark doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmark.cli import options as o
from kernelmark.cli.output import check_writable, put_tables, write

if TYPE_CHECKING:
    from kernelmark.report.tables import Table


def doctor(store: o.StorePlace = None, json: o.Json = None) -> int:
    """Look at devices, backends, the CPU, the store and the roofs.

    Says what is missing and what to do about it: the first thing to put into a bug report.
    """
    from kernelmark.cli import health

    if json is not None:
        check_writable(json)
    tables = health.examine(store)
    if json is None:
        put_tables(tables)
    else:
        write(json, _as_json(tables))
    return 0


def _as_json(tables: list[Table]) -> str:
    from json import dumps

    from kernelmark.cli.listing import as_json

    body = ",\n".join(f"{dumps(table.title)}: {as_json(table).strip()}" for table in tables)
    return f"{{{body}}}\n"
