"""GPUs that are not here."""

from __future__ import annotations

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.gpu.absent import absent


def test_a_gpu_is_called_as_it_calls_itself() -> None:
    assert absent("sm_90a") == absent("sm_90")
    assert absent("sm_90a").arch == "sm_90"
    assert absent("gfx90a").arch == "gfx90a"


def test_one_that_is_unknown() -> None:
    with pytest.raises(UsageError, match="sm_999 is unknown") as told:
        absent("sm_999")
    assert "sm_90" in (told.value.hint or "")
