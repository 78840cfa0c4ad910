"""False discovery rate: which alarms of a suite may be chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return the Benjamini–Hochberg q-value of each p-value: the smallest false discovery rate at
    which it would still be a discovery. Rows with a q-value of at most q are the discoveries at q,
    of which on average at most a fraction q is false. If nothing changed, q is the chance of any
    alarm."""
    values = np.asarray(p_values, dtype=np.float64)
    if values.size == 0:
        return []
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError("p-values must be between 0 and 1")
    order = np.argsort(values, kind="stable")[::-1]
    scaled = values[order] * len(values) / np.arange(len(values), 0, -1)
    lifted = np.minimum(np.minimum.accumulate(scaled), 1.0)
    found = np.empty_like(lifted)
    found[order] = lifted
    return [float(value) for value in found]
