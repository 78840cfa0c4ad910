"""Microbenchmarks and roofs become ordinary results, with metrics."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby

from sqlalchemy import text
from sqlalchemy.engine import Connection

from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import CodecError
from kernelmark.core.metric import Roof
from kernelmark.core.micro import micro_case, old_run, upgraded
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result, Status
from kernelmark.stores import roofs, writing


def statements(dialect: str) -> list[str]:
    """Return the DDL statements for `dialect`."""
    return ["ALTER TABLE results ADD COLUMN metrics TEXT"]


def convert(connection: Connection) -> None:
    """Move the rows of the tables `micro` and `roofs`, and drop the tables."""
    query = "SELECT run_id, host, document, benchmark, device, arch, started FROM micro"
    found = connection.execute(text(f"{query} ORDER BY run_id, host, started, no")).all()
    taken = set(connection.execute(text("SELECT id FROM runs")).scalars())
    for (run_id, _), rows in groupby(found, key=lambda row: (row[0], row[1])):
        free = run_id
        while free in taken:  # a file with several hosts was imported under one id
            free += "-2"
        taken.add(free)
        writing.add_result_set(connection, old_run(free, [_upgraded(*row[1:]) for row in rows]))
    hosts: dict[str, list[Roof]] = {}
    query = "SELECT host, document FROM roofs ORDER BY measured, no"
    for host, document in connection.execute(text(query)):
        with suppress(CodecError):  # a damaged roof will be measured again
            hosts.setdefault(host, []).append(codec.loads(document, Roof))
    for host, measured in hosts.items():
        kept = {(r.device, r.arch, r.kind, r.name, r.unit, r.threads): r for r in measured}
        for made in roofs.recorded(kept.values(), host):
            writing.add_result_set(connection, made)
    for table in ("micro", "roofs"):
        connection.execute(text(f"DROP TABLE {table}"))


def _upgraded(
    host: str, document: str, benchmark: str, device: str, arch: str, started: float
) -> tuple[Environment, Result]:
    """Return the environment and result of a row. A damaged row becomes a failed result, so that
    the store can still be opened."""
    try:
        return upgraded(codec.parse(document), benchmark)
    except (ValueError, TypeError, AttributeError, CodecError) as error:
        info = DeviceInfo(name=device, kind=device.partition(":")[0], model="", arch=arch)
        failed = Result(
            case=micro_case("damaged", "unknown", {"benchmark": benchmark}, 0),
            device=device,
            arch=arch,
            status=Status.CRASHED,
            started=started,
            error=Reason("stored-damaged", name=benchmark, cause=str(error)),
        )
        return Environment(host=host, devices=(info,)), failed
