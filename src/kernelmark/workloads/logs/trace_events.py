"""Read the events of a Chrome trace one at a time: a trace of minutes does not fit into memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from kernelmark.core.reason import Reason

_START = re.compile(r'"traceEvents"\s*:\s*\[')
_NEXT = re.compile(r'\{\s*"(?:ph|name|cat)"')
_BETWEEN = re.compile(r"[\s,]*")
_LONGEST = 1 << 20  # characters of one event
_KEPT = 1000  # longest text from the key of the events to its bracket, in characters
BROKEN = Reason("call-unreadable", what="an event")
CUT_OFF = Reason("trace-cut")
SECOND = Reason("trace-second")


def events(chunks: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield (line number, event), or the reason why the event cannot be read."""
    text = _Text(chunks)
    text.begin()
    decoder = json.JSONDecoder(strict=False)
    while True:
        text.skip()
        if text.rest.startswith("]", text.at):
            if text.find_start():
                yield text.line, SECOND
            return
        try:
            event, end = decoder.raw_decode(text.rest, text.at)
        except (ValueError, RecursionError):
            if len(text.rest) - text.at <= _LONGEST and text.more():
                continue
            found = _NEXT.search(text.rest, text.at + 1)
            yield text.line, BROKEN if found else CUT_OFF
            if found is None:
                return
            text.to(found.start())
            continue
        if isinstance(event, dict):
            yield text.line, event
        text.to(end)


class _Text:
    """A buffer of the text, with a position in it and its line number."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self.rest = ""
        self.at = 0
        self.line = 1

    def more(self) -> bool:
        chunk = next(self._chunks, None)
        self.rest += self._decode.decode(chunk or b"", final=chunk is None)
        return chunk is not None

    def to(self, place: int) -> None:
        self.line += self.rest.count("\n", self.at, place)
        self.at = place
        if place > _LONGEST:
            self.rest, self.at = self.rest[place:], 0

    def skip(self) -> None:
        """Skip the characters between events."""
        if found := _BETWEEN.match(self.rest, self.at):
            self.to(found.end())

    def begin(self) -> None:
        """Go to the first event, or to the end if there is none."""
        while True:
            if self.rest.lstrip()[:1] == "[":
                self.to(self.rest.index("[") + 1)
                return
            if self.rest.strip() or not self.more():
                self.find_start()
                return

    def find_start(self) -> bool:
        """Go past the next opening bracket of events; return False at the end of the text."""
        while True:
            if found := _START.search(self.rest, self.at):
                self.to(found.end())
                return True
            # Text that cannot contain the start of the key is searched once.
            if len(self.rest) - self.at > _KEPT:
                self.to(len(self.rest) - _KEPT)
                self.rest, self.at = self.rest[self.at :], 0
            if not self.more():
                self.to(len(self.rest))
                return False
