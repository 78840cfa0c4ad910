"""Reasons that several backends give."""

from __future__ import annotations

import pytest

from kernelmark import backends
from kernelmark.backends._rules import ON_AMD, get_flag, refuse_unknown
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


def test_what_runs_on_amd_says_that_it_has_not() -> None:
    for name in backends.registry.names():
        backend = backends.registry.get(name)
        assert (ON_AMD in backend.summary) is ("hip" in backend.device_kinds), name


def test_a_name_that_is_known_is_not_refused() -> None:
    refuse_unknown("mine", {"rows": 1}, ("rows",))


@pytest.mark.parametrize("value", ["yes", "maybe", 1, 0, 1.0])
def test_a_flag_is_a_bool_and_nothing_that_python_takes_for_one(value: str | float) -> None:
    with pytest.raises(Unsupported) as caught:
        get_flag("mine", {"fast": value}, "fast", default=True)
    status, reason = explain(caught.value)
    assert (status, reason.code) == (Status.UNSUPPORTED, "config-not-yes-or-no")
    assert reason.fields == {"backend": "mine", "name": "fast", "value": value}


@pytest.mark.parametrize("default", [True, False])
def test_a_flag_has_a_default(default: bool) -> None:
    assert get_flag("mine", {}, "fast", default=default) is default
    assert get_flag("mine", {"fast": not default}, "fast", default=default) is not default
