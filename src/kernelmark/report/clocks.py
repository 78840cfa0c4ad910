"""Changes of time in a comparison beside changes of the core clock.

A GPU at its power cap runs the same kernel at a clock that depends on heat, on its power limit and
on what ran before. A rule that judges times alone calls such a row changed; the cycles tell a
reader which of the two it was. The rule robust compares at equal clocks and says so itself.
"""

from __future__ import annotations

import math

from kernelmark.compare.verdicts import ALARMS, Comparison, Row

# Clocks that differ by less cannot explain a change: it is the robust rule's effect floor.
_FLOOR = 0.01


def explains(row: Row) -> bool:
    """Return whether the row's time changed and the core clock is another one too."""
    if row.status not in ALARMS or row.judgement.reason.code == "at-equal-clock":
        return False
    clocks = row.pair.clocks_mhz
    return clocks is not None and abs(math.log(clocks[1] / clocks[0])) > _FLOOR


def change_text(row: Row) -> str:
    """`1402 → 1606 MHz: -1.4 % in cycles`; "" where a side did not measure its clock."""
    if row.pair.clocks_mhz is None:
        return ""
    base, head = row.pair.clocks_mhz
    text = f"{base:.0f} → {head:.0f} MHz"
    ratio = row.judgement.ratio
    if ratio is None:
        return text
    return f"{text}: {100 * (ratio * head / base - 1):+.1f} % in cycles"


def notes(comparison: Comparison) -> list[str]:
    """That rows changed with the clock, and whether both sides were warmed up alike."""
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
