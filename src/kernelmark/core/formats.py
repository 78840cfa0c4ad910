"""FormatFacts: documentation of a foreign file format that kernelmark reads or writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFacts:
    """Facts about a file format. `versions` of the tool whose code defined it; `exactness`: what is
    read or written exactly, and what is refused or reported; `checked`: how this was verified."""

    versions: str
    exactness: str
    checked: str
