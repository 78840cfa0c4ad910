"""FormatFacts: what is known of a file format of others that kernelmark reads or writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFacts:
    """`versions` are those whose code decided what is right; `exactness` says what of a file is
    read or written as it is and what is refused or reported; `checked` says how that is known."""

    versions: str
    exactness: str
    checked: str
