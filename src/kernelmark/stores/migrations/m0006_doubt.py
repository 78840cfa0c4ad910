"""Why the median of a result is unreliable: history does not judge such a point."""

from __future__ import annotations


def statements(dialect: str) -> list[str]:
    """Return the DDL statements for `dialect`."""
    return ["ALTER TABLE results ADD COLUMN doubt TEXT"]
