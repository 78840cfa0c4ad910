"""Reuse large host buffers: touching a gigabyte of new pages takes a second on some machines, for
every block of every case. Blocks still differ in placement, since each lays out its tensors anew
within its buffer. Smaller buffers, where page placement matters most, are always new."""

from __future__ import annotations

from kernelmark.devices._host import HostBuffer

LEAST = 64 * 2**20
_MOST_KEPT = 2  # of a block, and of what else is large
_SLACK = 3  # a third more is asked for, so that the next case fits too


class PagePool:
    """Returned buffers."""

    def __init__(self) -> None:
        self._kept: list[HostBuffer] = []

    @property
    def nbytes(self) -> int:
        return sum(buffer.capacity for buffer in self._kept)

    def take(self, nbytes: int) -> HostBuffer | None:
        """Return the smallest kept buffer that is large enough, cut to `nbytes`."""
        fitting = [buffer for buffer in self._kept if buffer.capacity >= nbytes]
        if nbytes < LEAST or not fitting:
            return None
        found = min(fitting, key=lambda buffer: buffer.capacity)
        self._kept.remove(found)
        found.cut(nbytes)
        return found

    def capacity(self, nbytes: int) -> int:
        """Return the size to allocate where no kept buffer fits."""
        return nbytes if nbytes < LEAST else nbytes + nbytes // _SLACK

    def give(self, buffer: HostBuffer) -> None:
        """Keep a buffer; drop the smallest if there are too many."""
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
