"""Reasons that several backends give, and how they are known again in a result."""

from __future__ import annotations

import pytest

from kernelmark import ops
from kernelmark.backends._rules import refuse_unknown, refused_name
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.result import Case, Config, Status
from kernelmark.runners.execute import failure

INFO = DeviceInfo(name="cpu", kind="cpu", model="a CPU", arch="x")


def refusal(config: Config, status: Status = Status.UNSUPPORTED, error: str = "") -> bool:
    case = Case(problem=ops.parse("gemm m=8 n=8 k=8 dtype=f32"), backend="mine", config=config)
    return refused_name(failure(case, INFO, status, error, started=0.0))


@pytest.mark.parametrize("known", [(), ("rows",)])
def test_the_refusal_of_a_name_is_known_again(known: tuple[str, ...]) -> None:
    config = {"rows": 1, "zzz": 2} if known else {"zzz": 2}
    with pytest.raises(Unsupported) as caught:
        refuse_unknown("mine", config, known)
    assert refusal(config, error=caught.value.message)
    assert not refusal(config, Status.RUNTIME_ERROR, caught.value.message)


def test_other_refusals_are_not_taken_for_it() -> None:
    assert not refusal({"zzz": 2}, error="mine has no gemm (it has copy)")
    assert not refusal({}, error="mine does not know the word config")
    refuse_unknown("mine", {"rows": 1}, ("rows",))
