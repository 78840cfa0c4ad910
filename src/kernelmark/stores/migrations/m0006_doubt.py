"""Why the median of a result is no headline: such a point is not judged in history."""

from __future__ import annotations


def statements(dialect: str) -> list[str]:
    """Return the DDL in the words of `dialect`."""
    return ["ALTER TABLE results ADD COLUMN doubt TEXT"]
