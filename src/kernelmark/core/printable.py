"""Make texts from files and libraries safe for terminals, Markdown and spreadsheets."""

from __future__ import annotations

import re

# Control characters except tab and line feed, and bidirectional overrides: they can move the
# cursor, change colours, hide text or make a terminal send input.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_FORMULA = ("=", "+", "-", "@", "\t")


def printable(text: str) -> str:
    """Return `text` with U+FFFD in place of each control character."""
    return _CONTROL.sub("\ufffd", text)


def markdown_cell(text: str) -> str:
    """Return `text` escaped as one cell of a Markdown table, without tags or links."""
    whole = text.replace("&", "&amp;").replace("<", "&lt;") if "<" in text else text
    return re.sub(r"([\\|\[])", r"\\\1", whole).replace("\n", "<br>")


def csv_word(text: str) -> str:
    """Return `text` safe for a terminal and a spreadsheet: without control characters, and with an
    apostrophe in front of what looks like a formula and is not a number."""
    text = printable(text)
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
