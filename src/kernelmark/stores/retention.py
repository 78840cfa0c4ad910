"""Thin old runs: keep one time per block instead of every sample."""

from __future__ import annotations

import dataclasses

from sqlalchemy import update
from sqlalchemy.engine import Connection

from kernelmark.core.result import Block, Result
from kernelmark.stores.engine import results
from kernelmark.stores.reading import Decoder, results_query
from kernelmark.stores.writing import packed


def thin_samples(connection: Connection, decoder: Decoder, number: int) -> int:
    """Replace the samples of each block by their median, and return how many results changed.
    Medians, intervals and what rules compute from blocks stay the same."""
    rows = connection.execute(results_query(number, {})).all()
    count = 0
    for row in rows:
        thinned = _thinned(decoder.decode(row))
        if thinned is not None:
            values = {"detail": packed(thinned)}
            connection.execute(update(results).where(results.c.no == row.no).values(values))
            count += 1
    return count


def _thinned(result: Result) -> Result | None:
    measured = result.measurement
    # A single block with one sample would look like a bare mean from another tool.
    if measured is None or len(measured.blocks) < 2 or measured.samples == len(measured.blocks):
        return None
    blocks = tuple(map(_median, measured.blocks))
    return dataclasses.replace(result, measurement=dataclasses.replace(measured, blocks=blocks))


def _median(block: Block) -> Block:
    clock = block.clock_mhz
    whole = len(block.clocks_mhz) == len(block.samples_s)
    return dataclasses.replace(
        block,
        samples_s=(block.median_s,),
        clocks_mhz=(clock,) if clock is not None and whole else (),
    )
