"""Warnings in the words of whoever reads them: they are stored with the names of a timing's fields,
which are options on the command line and arguments of `Timing` in Python."""

from __future__ import annotations

import re

_OPTIONS = {
    "max_s": "--max-s",
    "max_allocations": "--max-blocks",
    "min_samples": "--samples",
    "warmup_s": "--warmup-s",
    "target_rel_ci": "--target-ci",
    "duty=burst": "--duty burst",
}
_FIELD = re.compile(r"\b(" + "|".join(_OPTIONS) + r")\b")
IN_PYTHON = 'fields of Timing are given as timing=km.Timing.preset("quick", max_s=2)'


def as_options(text: str) -> str:
    """Fields of a timing as the options that change them."""
    return _FIELD.sub(lambda found: _OPTIONS[found[0]], text)


def as_arguments(text: str) -> str:
    """Fields of a timing, and options, as Python has them."""
    python = text.replace("--roofs fresh", 'roofs="fresh"')
    return _FIELD.sub(lambda found: f"Timing.{found[0]}", python).replace("=burst", '="burst"')


def names_fields(text: str) -> bool:
    return _FIELD.search(text) is not None
