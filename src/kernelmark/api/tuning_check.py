"""Compile a sample of the candidates of a tuning folder, without the target GPU.

from kernelmark.api import tuning_check
for one in tuning_check.check("mymodel", candidates=32):
    print(one.plan.name, [c.kernel.resources for c in one.candidates])
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from kernelmark.api.tuning_run import COMPILE_TIMEOUT_S, picked
from kernelmark.tune.folder import TuningFolder, hinted
from kernelmark.tune.search import check as checks
from kernelmark.tune.search.check import Check


def check(
    place: str | os.PathLike[str],
    *,
    only: Sequence[str] = (),
    candidates: int = 16,
    jobs: int | None = None,
    compile_timeout_s: float = COMPILE_TIMEOUT_S,
) -> Iterator[Check]:
    """Compile a sample of the candidates of every plan, or of those that `only` names, and yield a
    `Check` for each plan. Nothing is written to the folder."""
    asked = picked(TuningFolder.open(place), only)
    with hinted("'kmark doctor' says what is missing for it"):
        return checks.check(
            asked, candidates=candidates, jobs=jobs, compile_timeout_s=compile_timeout_s
        )
