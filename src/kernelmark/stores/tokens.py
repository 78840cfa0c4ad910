"""Tokens for reading and pushing over the network. Only their digests are stored."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import select
from sqlalchemy.engine import Connection

from kernelmark.core.errors import UsageError
from kernelmark.stores.engine import tokens
from kernelmark.stores.values import check_name

_PREFIX = "kmark_"  # so that scanners for leaked secrets can find one
_BYTES = 32


class Scope(StrEnum):
    READ = "read"
    WRITE = "write"  # push runs, and read


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A stored token. `created` is in seconds since the epoch, UTC."""

    name: str
    scope: Scope
    created: float


def create(connection: Connection, name: str, scope: Scope) -> str:
    """Store a token called `name` and return its secret, which is not stored."""
    check_name("token", name)
    if connection.execute(select(tokens.c.name).where(tokens.c.name == name)).first():
        raise UsageError(
            f"there is already a token {name!r}", hint=f"kmark token revoke {name}, or another name"
        )
    secret = _PREFIX + secrets.token_urlsafe(_BYTES)
    connection.execute(
        tokens.insert().values(
            name=name, digest=_digest(secret), scope=scope.value, created=time.time()
        )
    )
    return secret


def listed(connection: Connection) -> list[Token]:
    """Return all tokens, sorted by name."""
    query = select(tokens.c.name, tokens.c.scope, tokens.c.created).order_by(tokens.c.name)
    return [Token(name=n, scope=Scope(s), created=c) for n, s, c in connection.execute(query)]


def revoke(connection: Connection, name: str) -> bool:
    """Remove a token; return False if there is none of this name."""
    return bool(connection.execute(tokens.delete().where(tokens.c.name == name)).rowcount)


def find(connection: Connection, secret: str) -> Token | None:
    """Return the token with this secret."""
    query = select(tokens.c.name, tokens.c.scope, tokens.c.created)
    row = connection.execute(query.where(tokens.c.digest == _digest(secret))).first()
    return Token(name=row[0], scope=Scope(row[1]), created=row[2]) if row else None


def _digest(secret: str) -> str:
    # A secret has 256 random bits: a slow hash would not make it safer.
    return hashlib.sha256(secret.encode("utf-8", "backslashreplace")).hexdigest()
