"""Timing fields that distinguish otherwise identical rows of a table."""

from __future__ import annotations

from collections.abc import Sequence


def apart(rows: Sequence[tuple[str, ...]], timings: Sequence[str]) -> list[str]:
    """Return for each row the timing fields in which it differs from rows with the same text, as
    `cache=hot threads=1`; "" for a row whose text is unique."""
    alike: dict[tuple[str, ...], list[dict[str, str]]] = {}
    fields = [_fields(timing) for timing in timings]
    for row, mine in zip(rows, fields, strict=True):
        alike.setdefault(row, []).append(mine)
    return [
        " ".join(
            f"{name}={value}"
            for name, value in mine.items()
            if any(other.get(name) != value for other in alike[row])
        )
        for row, mine in zip(rows, fields, strict=True)
    ]


def _fields(timing: str) -> dict[str, str]:
    found = {name: value for name, _, value in (word.partition("=") for word in timing.split())}
    if found.get("threads") == "0":
        found["threads"] = "all"
    return found
