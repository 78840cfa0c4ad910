"""Results of microbenchmarks as rows, and back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.engine import Connection

from kernelmark.core import codec
from kernelmark.core.errors import CodecError, StoreError, UsageError
from kernelmark.core.micro import MicroResult
from kernelmark.core.result import Status
from kernelmark.stores.ids import check_name
from kernelmark.stores.schema import micro
from kernelmark.stores.writing import clean

T = TypeVar("T")


class MicroStore(ABC):
    """The part of a store that keeps results of microbenchmarks."""

    @abstractmethod
    def _read(self, work: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    def _write(self, work: Callable[[Connection], T]) -> T: ...

    def add_micro(self, run_id: str, new: Iterable[MicroResult]) -> None:
        """Store results that were taken together, under their common id."""
        check_name("run", run_id)
        rows = [values(run_id, result) for result in new]
        if rows:
            self._write(lambda c: c.execute(micro.insert(), rows))

    def micro(
        self,
        *,
        benchmark: str | None = None,
        run_id: str | None = None,
        device: str | None = None,
        arch: str | None = None,
        status: Status | None = None,
        limit: int | None = None,
    ) -> list[tuple[str, MicroResult]]:
        """(run id, result) of every one that matches, oldest first; `limit` keeps the newest."""
        wanted = {
            "benchmark": benchmark,
            "run_id": run_id,
            "device": device,
            "arch": arch,
            "status": status.value if status else None,
        }
        return self._read(lambda c: read(c, wanted, limit))


def values(run_id: str, result: MicroResult) -> dict[str, Any]:
    """The columns of a result."""
    if not math.isfinite(result.started):
        raise UsageError(f"{result.benchmark}: {result.started} is not a time to start at")
    return {
        "run_id": run_id,
        "host": clean(result.host),
        "benchmark": clean(result.benchmark),
        "device": clean(result.device),
        "arch": clean(result.arch),
        "status": result.status.value,
        "started": result.started,
        "document": codec.dumps(result),
    }


def read(
    connection: Connection, wanted: Mapping[str, str | None], limit: int | None
) -> list[tuple[str, MicroResult]]:
    """Results that match, oldest first; `limit` keeps the newest."""
    conditions = [micro.c[name] == clean(v) for name, v in wanted.items() if v is not None]
    query = (
        select(micro.c.no, micro.c.run_id, micro.c.document)
        .where(*conditions)
        .order_by(micro.c.started.desc(), micro.c.no.desc())
        .limit(limit)
    )
    found = []
    for number, run_id, document in connection.execute(query):
        try:
            found.append((str(run_id), codec.loads(document, MicroResult)))
        except CodecError as error:
            raise StoreError(
                f"stored microbenchmark {number} is damaged: {error.message}", hint="restore a copy"
            ) from None
    return found[::-1]
