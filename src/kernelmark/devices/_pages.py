"""Reuse large host buffers: touching a gigabyte of new pages takes a second on some machines, and
would be repeated for every block of every case. Blocks still differ in placement, since each lays
out its tensors anew within its buffer. Smaller buffers, where page placement matters most, are
always new."""

from __future__ import annotations

from kernelmark.devices._host import HostBuffer

MIN_BYTES = 64 * 2**20
_MAX_KEPT = 2  # one for argument sets, one for another large buffer
_EXTRA = 3  # allocate 1/3 more, so that the next case fits too


class PagePool:
    """Freed buffers, kept for reuse."""

    def __init__(self) -> None:
        self._kept: list[HostBuffer] = []

    @property
    def nbytes(self) -> int:
        return sum(buffer.capacity for buffer in self._kept)

    def take(self, nbytes: int) -> HostBuffer | None:
        """Return the smallest kept buffer that is large enough, cut to `nbytes`."""
        fitting = [buffer for buffer in self._kept if buffer.capacity >= nbytes]
        if nbytes < MIN_BYTES or not fitting:
            return None
        smallest = min(fitting, key=lambda buffer: buffer.capacity)
        self._kept.remove(smallest)
        smallest.cut(nbytes)
        return smallest

    def capacity(self, nbytes: int) -> int:
        """Return the size to allocate when no kept buffer fits."""
        return nbytes if nbytes < MIN_BYTES else nbytes + nbytes // _EXTRA

    def put(self, buffer: HostBuffer) -> None:
        """Keep a buffer; drop the smallest if there are more than _MAX_KEPT."""
        if buffer.capacity < MIN_BYTES:
            buffer.close()
            return
        self._kept.append(buffer)
        self._kept.sort(key=lambda kept: -kept.capacity)
        while len(self._kept) > _MAX_KEPT:
            self._kept.pop().close()

    def clear(self) -> None:
        while self._kept:
            self._kept.pop().close()
