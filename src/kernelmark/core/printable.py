"""Texts from files and libraries, made safe for terminals, Markdown and spreadsheets."""

from __future__ import annotations

import re

# Control characters but for tab and line feed, and what turns the direction of writing round: they
# move the cursor, change colours, hide text or make a terminal answer.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_FORMULA = ("=", "+", "-", "@", "\t")


def printable(text: str) -> str:
    """`text` with a mark in place of each control character."""
    return _CONTROL.sub("\ufffd", text)


def markdown_cell(text: str) -> str:
    """`text` as one cell of a Markdown table: no column, row, tag or link begins in it."""
    whole = text.replace("&", "&amp;").replace("<", "&lt;") if "<" in text else text
    return re.sub(r"([\\|\[])", r"\\\1", whole).replace("\n", "<br>")


def csv_word(text: str) -> str:
    """`text` as a terminal and a spreadsheet must take it: without control characters, and what
    begins like a formula and is no number gets an apostrophe in front."""
    text = printable(text)
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
