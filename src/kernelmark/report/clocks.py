"""Changes of time in a comparison, next to changes of the core clock.

A GPU at its power cap runs the same kernel at a clock that depends on temperature, on its power
limit and on the load before. A rule that judges only times calls such a row changed; the change in
cycles shows whether the kernel or the clock changed. The rule robust compares at equal clocks and
reports that itself.
"""

from __future__ import annotations

import math

from kernelmark.compare.verdicts import ALARMS, Comparison, Row

# The robust rule's effect floor: clocks that differ by less cannot explain a change.
_FLOOR = 0.01


def explains(row: Row) -> bool:
    """Return whether the row's time changed and its core clock changed too."""
    if row.status not in ALARMS or row.judgement.reason.code == "at-equal-clock":
        return False
    clocks = row.pair.clocks_mhz
    return clocks is not None and abs(math.log(clocks[1] / clocks[0])) > _FLOOR


def change_text(row: Row) -> str:
    """Return `1402 → 1606 MHz: -1.4 % in cycles`; "" if a side has no measured clock."""
    if row.pair.clocks_mhz is None:
        return ""
    base, head = row.pair.clocks_mhz
    text = f"{base:.0f} → {head:.0f} MHz"
    ratio = row.judgement.ratio
    if ratio is None:
        return text
    return f"{text}: {100 * (ratio * head / base - 1):+.1f} % in cycles"


def notes(comparison: Comparison) -> list[str]:
    """Return a note if rows changed along with the clock, and if the sides' warm-ups differ."""
    rows = [row for row in comparison.rows if explains(row)]
    if not rows:
        return []
    what = "1 changed row" if len(rows) == 1 else f"{len(rows)} changed rows"
    text = (
        f"{what} ran at another core clock in head, so the change in cycles is beside: heat, power "
        "and the work before set the clock; kmark ab measures both sides in turns"
    )
    base, head = max((_warmups(row) for row in rows), key=lambda both: abs(both[0] - both[1]))
    if base != head:
        text += (
            f". Base was warmed up for up to {base:g} s, head for {head:g} s: measure both with "
            "the same --timing"
        )
    return [text]


def _warmups(row: Row) -> tuple[float, float]:
    base, head = row.pair.base or row.pair.shown, row.pair.shown
    return base.case.timing.warmup_s, head.case.timing.warmup_s
