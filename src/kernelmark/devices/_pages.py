"""Large host buffers that are kept for the next one: to have a gigabyte of pages made present takes
a second on some machines, and that for every block of every case.

Blocks still differ in where things lie: each lays its tensors out anew within its buffer. Smaller
buffers, where luck with pages matters most, are always fresh.
"""

from __future__ import annotations

from kernelmark.devices._host import HostBuffer

LEAST = 64 * 2**20
_MOST_KEPT = 2  # of a block, and of what else is large
_SLACK = 3  # a third more is asked for, so that the next case fits too


class PagePool:
    """Buffers that were given back."""

    def __init__(self) -> None:
        self._kept: list[HostBuffer] = []

    @property
    def nbytes(self) -> int:
        return sum(buffer.capacity for buffer in self._kept)

    def take(self, nbytes: int) -> HostBuffer | None:
        """The smallest kept buffer that is large enough, cut to `nbytes`."""
        fitting = [buffer for buffer in self._kept if buffer.capacity >= nbytes]
        if nbytes < LEAST or not fitting:
            return None
        found = min(fitting, key=lambda buffer: buffer.capacity)
        self._kept.remove(found)
        found.cut(nbytes)
        return found

    def capacity(self, nbytes: int) -> int:
        """What to ask for where none fits."""
        return nbytes if nbytes < LEAST else nbytes + nbytes // _SLACK

    def give(self, buffer: HostBuffer) -> None:
        """Keep it, or the larger ones of too many."""
        if buffer.capacity < LEAST:
            buffer.close()
            return
        self._kept.append(buffer)
        self._kept.sort(key=lambda one: -one.capacity)
        while len(self._kept) > _MOST_KEPT:
            self._kept.pop().close()

    def clear(self) -> None:
        while self._kept:
            self._kept.pop().close()
