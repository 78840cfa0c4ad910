"""Flow maps: one call in braces on one line, as libraries write YAML without a library for it.

Some versions leave values out (`scaleC: , swizzleA: ,`) and entries of grouped GEMMs repeat
their names, which no YAML reader takes; here both are read.
"""

from __future__ import annotations

from kernelmark.workloads.logs.base import BadLine

_QUOTES = " \t'\""


def cut(line: bytes, name: bytes) -> tuple[bytes, bytes]:
    """Return (the map without the entry `name`, its value); the value is empty if there is none."""
    at = line.find(name)
    if at < 0:
        return line, b""
    start = at + len(name)
    comma = line.find(b",", start)
    end = line.find(b"}", start) if comma < 0 else comma
    if end < 0:
        return line, b""
    return line[:at] + line[end + (comma >= 0) :], line[start:end].strip(b" \t:'\"")


def entries(text: str) -> list[tuple[str, str]]:
    """Names and values in order, from the first brace to the last; empty values are left out."""
    start, end = text.find("{"), text.rfind("}")
    if end < start:
        raise BadLine("ends before its closing brace")
    found = []
    for piece in text[start + 1 : end].split(","):
        name, colon, value = piece.partition(":")
        if name.strip(_QUOTES) == "grouped_gemm":  # its value is the first size of the group
            found.append(("grouped_gemm", value.strip(_QUOTES) if ":" not in value else "1"))
            name, colon, value = value.partition(":")
        if name.strip(_QUOTES) and value.strip(_QUOTES):
            found.append((name.strip(_QUOTES), value.strip(_QUOTES)))
        elif name.strip() and not colon:
            raise BadLine(f"has {name.strip()[:24]!r} where a name and a value should be")
    return found
