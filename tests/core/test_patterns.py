from __future__ import annotations

import signal

import pytest

from kernelmark.core import text
from kernelmark.core.errors import UsageError
from kernelmark.core.text import found_in


def test_found_or_not():
    assert found_in("m=8 ", ["gemm m=8 n=8", "gemm m=16 n=8"]) == [True, False]


@pytest.mark.parametrize("bad", ["(", "a{99999999999}", "[", "(?P<a>x)(?P<a>y)", "a" * 5000])
def test_what_is_none_is_a_sentence(bad):
    with pytest.raises(UsageError):
        found_in(bad, ["a"])


def test_one_that_would_never_end_is_a_sentence(monkeypatch):
    monkeypatch.setattr(text, "LIMIT_S", 0.2)
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(UsageError):
        found_in("(a+)+$", ["a" * 200 + "b"])
    assert signal.getsignal(signal.SIGVTALRM) is before
