"""Tokens for clients that read or push over the network."""

from __future__ import annotations

_REAL = {"sqlite": "REAL", "postgresql": "DOUBLE PRECISION"}


def statements(dialect: str) -> list[str]:
    """Return the DDL statements for `dialect`."""
    return [
        "CREATE TABLE tokens (name TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE,"
        f" scope TEXT NOT NULL, created {_REAL[dialect]} NOT NULL)"
    ]
