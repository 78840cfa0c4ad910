"""Values as TOML text; the standard library only reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from kernelmark.core.result import ConfigValue

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_WIDTH = 100


def value_text(value: ConfigValue) -> str:
    """A value that reads back as itself, of the same type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON leaves DEL as it is, which TOML does not allow.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def key_text(key: str) -> str:
    return key if _BARE.match(key) else value_text(key)


def list_text(key: str, values: Sequence[ConfigValue]) -> str:
    """`key = [a, b]`, over several lines where one is too short."""
    line = f"{key_text(key)} = [{', '.join(map(value_text, values))}]"
    if len(line) <= _WIDTH:
        return line
    lines = [f"{key_text(key)} = ["]
    row = "   "
    for value in values:
        word = f" {value_text(value)},"
        if len(row) + len(word) > _WIDTH and row.strip():
            lines.append(row)
            row = "   "
        row += word
    return "\n".join([*lines, row, "]"])


def table_text(items: Mapping[str, ConfigValue]) -> list[str]:
    """Lines of a table's body."""
    return [f"{key_text(key)} = {value_text(value)}" for key, value in items.items()]
