"""Words and numbers in sentences: lists, changes, intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kernelmark.core import units

WIDEST = 9.99  # largest relative width of an interval that is shown as a number
_SMALL = 0.001  # below it, one decimal of a percentage could be 0.0


def join_commas(values: Iterable[object]) -> str:
    """Format `a, b, c`."""
    return ", ".join(map(str, values))


def join_and(values: Sequence[object]) -> str:
    """Format `a, b and c`."""
    return _joined(values, " and ")


def join_or(values: Sequence[object]) -> str:
    """Format `a, b or c`."""
    return _joined(values, " or ")


def _joined(values: Sequence[object], last: str) -> str:
    return last.join(filter(None, (join_commas(values[:-1]), *map(str, values[-1:]))))


def change_text(ratio: float) -> str:
    """Format a ratio as a change: `+1.2 %`."""
    return units.percent_text(_log(ratio))


def change_span(low: float, high: float) -> str:
    """Format an interval of ratios as changes: `+1.2 % to +3.4 %`."""
    return units.span_text(_log(low), _log(high))


def _log(ratio: float) -> float:
    return math.log(ratio) if 0 < ratio < math.inf else math.copysign(math.inf, ratio - 1)


def spread_text(width: float) -> str:
    """Format a relative half-width: `±0.4 %`, `more than ±999 %`."""
    if 0 < width < _SMALL:
        return f"±{100 * width:.2g} %"
    return f"±{units.width_text(width)}" if width <= WIDEST else f"more than ±{100 * WIDEST:.0f} %"


def within_text(value: float, half: float) -> str:
    """Format a value with its ±, with as many decimals as two digits of the width need."""
    digits = min(3, max(0, 1 - math.floor(math.log10(half)))) if half else 3
    return f"{value:.{digits}f} ± {max(half, 10**-digits):.{digits}f}"


def factor_text(ratio: float) -> str:
    """Format a factor with two decimals, or two digits where these would not do."""
    return f"{ratio:.2f}" if 0.1 <= ratio < 100 else f"{ratio:.2g}"
