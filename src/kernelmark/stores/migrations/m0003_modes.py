"""Modes of a result, which history judges by."""

from __future__ import annotations


def statements(dialect: str) -> list[str]:
    """Return the DDL in the words of `dialect`."""
    return ["ALTER TABLE results ADD COLUMN modes TEXT"]
