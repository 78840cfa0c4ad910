"""Reasons that several backends give."""

from __future__ import annotations

import pytest

from kernelmark.backends._rules import refuse_unknown
from kernelmark.core.errors import Unsupported
from kernelmark.core.result import Status
from kernelmark.runners.execute import explain


@pytest.mark.parametrize("known", [(), ("rows",)])
def test_the_refusal_of_a_name_has_a_code(known: tuple[str, ...]) -> None:
    config = {"rows": 1, "zzz": 2} if known else {"zzz": 2}
    with pytest.raises(Unsupported) as caught:
        refuse_unknown("mine", config, known)
    status, reason = explain(caught.value)
    assert (status, reason.code) == (Status.UNSUPPORTED, "config-unknown-name")
    assert (reason.fields["name"], reason.fields["known"]) == ("zzz", known)


def test_a_name_that_is_known_is_not_refused() -> None:
    refuse_unknown("mine", {"rows": 1}, ("rows",))
