"""Flow maps: one call in braces on one line, in a form close to YAML.

Some versions leave out values (`scaleC: , swizzleA: ,`), and grouped GEMMs repeat names, which YAML
parsers refuse; this parser accepts both.
"""

from __future__ import annotations

from kernelmark.core.reason import Reason
from kernelmark.workloads.logs.base import BadLine

_QUOTES = " \t'\""


def cut(line: bytes, name: bytes) -> tuple[bytes, bytes]:
    """Return the map without the entry `name`, and the value of that entry or b""."""
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
    """Return the (name, value) pairs between the first and the last brace, without empty values."""
    start, end = text.find("{"), text.rfind("}")
    if end < start:
        raise BadLine(Reason("call-cut", part="closing brace"))
    found = []
    for piece in text[start + 1 : end].split(","):
        name, colon, value = piece.partition(":")
        if name.strip(_QUOTES) == "grouped_gemm":  # followed by the first size of the group
            found.append(("grouped_gemm", value.strip(_QUOTES) if ":" not in value else "1"))
            name, colon, value = value.partition(":")
        if name.strip(_QUOTES) and value.strip(_QUOTES):
            found.append((name.strip(_QUOTES), value.strip(_QUOTES)))
        elif name.strip() and not colon:
            raise BadLine(Reason("call-expected", expected="name: value", found=name.strip()[:24]))
    return found
