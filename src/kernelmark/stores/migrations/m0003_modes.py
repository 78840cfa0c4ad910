"""Modes of a result, which history uses to judge it."""

from __future__ import annotations


def statements(dialect: str) -> list[str]:
    """Return the DDL statements for `dialect`."""
    return ["ALTER TABLE results ADD COLUMN modes TEXT"]
