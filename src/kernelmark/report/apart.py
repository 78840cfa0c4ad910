"""What tells rows of a table apart that would read the same."""

from __future__ import annotations

from collections.abc import Sequence


def apart(rows: Sequence[tuple[str, ...]], timings: Sequence[str]) -> list[str]:
    """For each row the words of its timing's identity in which it differs from rows that read the
    same, as `cache=hot threads=1`; empty for a row that reads like no other."""
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
