"""Format numbers and lists for people. Internally: seconds, bytes, MHz."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

# Larger percentages are not shown.
MOST_PERCENT = 999
NOISY = "too noisy to report"
_NOISE_FACTOR = 2.0
_FEW_DIGITS, _MOST_DIGITS = 4, 10
_RATES = ("B/s", "FLOP/s", "1/s")  # units that take decimal prefixes
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def time_text(seconds: float) -> str:
    """Format a time with four significant digits in the unit that fits: 12.34 µs."""
    seconds = float(f"{seconds:.4g}")
    for size, unit in _TIMES:
        if seconds >= size:
            return f"{_four_digits(seconds / size)} {unit}"
    return f"{_four_digits(seconds / 1e-9)} ns"


def rate_text(per_second: float, unit: str) -> str:
    """Format a rate with a decimal prefix: 1.234 TFLOP/s, 56.70 GB/s."""
    per_second = float(f"{per_second:.4g}")
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= size:
            return f"{_four_digits(per_second / size)} {prefix}{unit}"
    return f"{_four_digits(per_second)} {unit}"


def bytes_text(count: float) -> str:
    """Format a size with a binary prefix: 96.0 MiB."""
    for size, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def value_text(value: float, unit: str) -> str:
    """Format a value of any unit."""
    if unit == "s":
        return time_text(value)
    if unit in _RATES:
        return rate_text(value, unit)
    if unit == "B":
        return bytes_text(value)
    digits = f"{value:.0f}" if value >= 10_000 else f"{value:.4g}"
    return f"{digits} {unit}".strip()


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: `1 step`, `3 steps`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration_text(seconds: float) -> str:
    """Format a duration for progress and estimates: 1.4 s, 45 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 3:  # rounding to whole seconds could be wrong by a third
        return f"{round(seconds, 1):g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def about_text(low_s: float, high_s: float) -> str:
    """Format an expected duration: `about 1 min 05 s`, or `about 2.1 s to 3 s` if the ends differ
    by more than a quarter."""
    if high_s <= 1.25 * low_s:
        return f"about {duration_text((low_s * high_s) ** 0.5)}"
    return f"about {duration_text(low_s)} to {duration_text(high_s)}"


def _four_digits(value: float) -> str:
    value = float(f"{value:.4g}")  # a division may leave 10 as 9.999999999999998
    for limit, digits in ((10, 3), (100, 2), (1000, 1)):
        if value < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def percent_text(log_ratio: float) -> str:
    """Format the logarithm of a ratio as a change: `+1.2 %`."""
    return f"{_percent(log_ratio):+.1f} %" if math.isfinite(log_ratio) else "any size"


def is_noise(low: float, high: float) -> bool:
    """Return whether the interval of a time or ratio says too little to print a number with it: it
    spans more than a factor of 2."""
    return not 0 < low <= high <= _NOISE_FACTOR * low


def span_text(low: float, high: float) -> str:
    """Format the logarithms of two ratios as an interval: `+1.2 % to +3.4 %`, or that it is too
    noisy."""
    if math.isfinite(high) and _percent(high) - _percent(low) > 2 * MOST_PERCENT:
        return NOISY
    return f"{percent_text(low)} to {percent_text(high)}"


def detectable_text(share: float) -> str:
    """Format the least detectable change, given as a fraction."""
    if not math.isfinite(share):
        return "any size"
    return f"{100 * share:.1f} %" if 100 * share <= MOST_PERCENT else f"> {MOST_PERCENT} %"


def width_text(fraction: float) -> str:
    """Format half the width of an interval, a fraction of its median: `0.4 %`, `547 %`,
    `too noisy`; a dash without an interval."""
    if not math.isfinite(fraction):
        return "–"
    percent = 100 * fraction
    if percent > MOST_PERCENT:
        return "too noisy"
    return f"{percent:.1f} %" if percent < 99.95 else f"{percent:.0f} %"


def told_apart(value: float, limit: float) -> tuple[str, str]:
    """Format two numbers with enough digits to distinguish them; four if that is impossible."""
    least = min(value, limit)
    for count in (*range(_FEW_DIGITS, _MOST_DIGITS + 1), _FEW_DIGITS):
        places = _places(least, count)
        texts = f"{value:.{places}f}", f"{limit:.{places}f}"
        if texts[0] != texts[1]:
            break
    return texts


def exact(value: float) -> str:
    """Format a number with all its significant digits, without those that are rounding errors."""
    text = f"{value:.{_places(value, _MOST_DIGITS)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _percent(log_ratio: float) -> float:
    """Return the change of a ratio in percent; infinite on overflow."""
    try:
        return 100 * math.expm1(log_ratio)
    except OverflowError:
        return math.inf


def _places(value: float, digits: int) -> int:
    """Return the decimal places that give `digits` significant digits."""
    return max(0, digits - 1 - math.floor(math.log10(value)))


def plain_number(value: Any) -> Any:
    """Return a NumPy scalar as a Python number; anything else unchanged."""
    return value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value


WIDEST = 1.0  # largest relative half-width that is shown: a wider interval includes zero
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
    return percent_text(_log(ratio))


def change_span(low: float, high: float) -> str:
    """Format an interval of ratios as changes: `+1.2 % to +3.4 %`."""
    return span_text(_log(low), _log(high))


def _log(ratio: float) -> float:
    return math.log(ratio) if 0 < ratio < math.inf else math.copysign(math.inf, ratio - 1)


def spread_text(width: float) -> str:
    """Format a relative half-width: `±0.4 %`, or that it is too noisy."""
    if 0 < width < _SMALL:
        return f"±{100 * width:.2g} %"
    return f"±{width_text(width)}" if width <= WIDEST else NOISY
