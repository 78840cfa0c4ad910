from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kernelmark.stats.estimators import t_distribution, t_quantile


@pytest.mark.parametrize("dof", [1, 2, 3, 5, 9, 29, 100, 1000])
@pytest.mark.parametrize("share", [0.001, 0.025, 0.2, 0.5, 0.9, 0.975, 0.995, 0.9999])
def test_agrees_with_scipy(share: float, dof: int) -> None:
    expected = stats.t.ppf(share, dof)
    assert t_quantile(share, dof) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.floats(0.001, 0.999), st.integers(1, 400))
def test_quantile_inverts_the_distribution(share: float, dof: int) -> None:
    assert t_distribution(t_quantile(share, dof), dof) == pytest.approx(share, abs=1e-10)


@pytest.mark.parametrize(("share", "dof"), [(0.0, 3), (1.0, 3), (-1.0, 3), (0.5, 0)])
def test_refuses_what_has_no_quantile(share: float, dof: int) -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(share, dof)
