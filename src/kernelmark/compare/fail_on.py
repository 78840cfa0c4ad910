"""Parser of `--fail-on`: `slower,broken`, `slower:3%`, `none`, `held`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.core.errors import UsageError, located
from kernelmark.core.verdict import Verdict, VerdictStatus

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*%?\Z")
_HELD = "held"
# A smaller number without % was probably meant as a fraction: 0.03 for 3 %.
_LEAST_BARE = 0.1
# Tolerance for a change that is exactly on a limit in decimal but not in binary.
_ROUNDING = 1e-9
_SIZED = (VerdictStatus.SLOWER, VerdictStatus.FASTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailOn:
    """Verdicts that fail a comparison, each with the least size of the change (0.03 is 3 %);
    `held`: suppressed alarms fail too."""

    sizes: tuple[tuple[VerdictStatus, float], ...] = (
        (VerdictStatus.SLOWER, 0.0),
        (VerdictStatus.BROKEN, 0.0),
    )
    held: bool = False

    def __contains__(self, verdict: object) -> bool:
        if not isinstance(verdict, Verdict):
            return False
        ratio = 1 + _size(verdict)
        return any(
            verdict.status is status and ratio >= (1 + size) * (1 - _ROUNDING)
            for status, size in self.sizes
        )


@located("--fail-on")
def parse(words: Sequence[str]) -> FailOn:
    """Parse words like `slower:3%`. `none` fails on nothing, `held` alone adds suppressed alarms to
    the default. Where all verdicts have a size, `broken` is added."""
    held = _HELD in words
    words = [word for word in words if word != _HELD]
    if words == ["none"]:
        return FailOn(sizes=(), held=held)
    if held and not words:
        return FailOn(held=True)
    known = [status.value for status in VerdictStatus]
    sizes = []
    for word in words:
        name, colon, size = word.partition(":")
        if name not in known:
            raise UsageError(
                f"unknown verdict {name!r}", hint=f"known: {', '.join(known)}, held, or none"
            )
        status = VerdictStatus(name)
        found = _SIZE.match(size.strip())
        if colon and (found is None or status not in _SIZED):
            raise UsageError(
                f"{word!r} is not a verdict with a size",
                hint="slower:3% fails on rows that are at least 3 % slower",
            )
        sizes.append((status, _fraction(word, found[1]) if found else 0.0))
    if all(":" in word for word in words):
        sizes.append((VerdictStatus.BROKEN, 0.0))
    return FailOn(sizes=tuple(sizes), held=held)


def _fraction(word: str, size: str) -> float:
    percent = float(size)
    if 0 < percent < _LEAST_BARE and not word.endswith("%"):
        raise UsageError(
            f"{word!r} means {percent:g} %, which is less than any rule can detect",
            hint=f"{100 * percent:g} % is written {word.partition(':')[0]}:{100 * percent:g}%",
        )
    return percent / 100


def _size(verdict: Verdict) -> float:
    """Return the distance of the ratio from 1, as a fraction of the smaller time."""
    if not verdict.ratio:
        return 0.0
    return max(verdict.ratio, 1 / verdict.ratio) - 1
