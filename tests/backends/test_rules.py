"""Reasons that several backends give."""

from __future__ import annotations

import pytest

from kernelmark import backends, ops
from kernelmark.backends._rules import ON_AMD, get_flag, refuse_unknown, wrong_scales
from kernelmark.core.errors import Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.gpu.architectures import absent
from kernelmark.runners.execute import explain


@pytest.mark.parametrize("known", [(), ("rows",)])
def test_the_refusal_of_a_name_has_a_code(known: tuple[str, ...]) -> None:
    config = {"rows": 1, "zzz": 2} if known else {"zzz": 2}
    with pytest.raises(Unsupported) as caught:
        refuse_unknown("mine", config, known)
    status, reason = explain(caught.value)
    assert (status, reason.code) == (Status.UNSUPPORTED, "config-unknown-name")
    assert (reason.fields["name"], reason.fields["known"]) == ("zzz", known)


def test_an_op_that_a_backend_lacks_has_a_code() -> None:
    problem = ops.parse("gemm_epilogue m=4 n=4 k=4 dtype=f16 act=relu")
    for name in ("rocblas", "aiter"):
        reason = backends.registry.get(name).supports(problem, absent("gfx942"))
        assert isinstance(reason, Reason)
        assert (reason.code, reason.fields["op"]) == ("op-unsupported", "gemm_epilogue")


def test_the_scale_of_attention_is_not_that_of_a_gemm() -> None:
    problem = ops.parse("attention heads=2 seq=8 dim=8 dtype=f16")
    for name, arch in (("hipblaslt", "gfx942"), ("cublaslt", "sm_80")):
        reason = backends.registry.get(name).supports(problem, absent(arch))
        assert isinstance(reason, Reason)
        assert (reason.code, reason.fields["op"]) == ("op-unsupported", "attention")


def test_what_runs_on_amd_says_that_it_has_not() -> None:
    for name in backends.registry.names():
        backend = backends.registry.get(name)
        assert (ON_AMD in backend.summary) is ("hip" in backend.device_kinds), name


@pytest.mark.parametrize(
    ("rest", "arch", "code"),
    [
        ("dtype=f16", "gfx90a", None),
        ("dtype=f8e4m3 scale=tensor", "sm_89", None),
        ("dtype=f8e4m3 scale=tensor", "sm_80", "scale-arch"),
        ("dtype=f8e4m3 scale=tensor", "gfx1201", None),
        ("dtype=f4e2m1 scale=mx", "gfx950", None),
        ("dtype=f8e4m3 scale=mx", "gfx1201", "scale-arch"),
        ("dtype=f8e4m3 scale=mx", "sm_100", "scale-layout"),
        ("dtype=f8e4m3 scale=mx scale_layout=swizzle_32_4_4", "sm_100", None),
        ("dtype=f4e2m1 scale=mx scale_layout=swizzle_32_4_4", "sm_100", "scale-dtype"),
        ("dtype=f4e2m1 scale=mx scale_layout=swizzle_32_4_4", "sm_90", "scale-arch"),
        ("dtype=f4e2m1 scale=mx scale_layout=swizzle_32_4_4", "gfx950", "scale-layout"),
    ],
)
def test_scales_go_by_architecture(rest: str, arch: str, code: str | None) -> None:
    problem = ops.parse(f"gemm_epilogue m=4 n=4 k=32 {rest}")
    reason = wrong_scales("mine", problem, absent(arch))
    assert (reason and reason.code) == code


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
