"""Reasons that several backends give, and which exceptions mean out of memory."""

import errno

import numpy as np
import pytest

from kernelmark import backends
from kernelmark.backends._rules import ON_AMD, get_flag, refuse_unknown
from kernelmark.backends.base import is_out_of_memory
from kernelmark.core.errors import CaseError, OutOfMemory, Unsupported
from kernelmark.core.result import Status
from kernelmark.runners.execute import explain
from kernelmark_dev.raising import tells


@pytest.mark.parametrize("known", [(), ("rows",)])
def test_the_refusal_of_a_name_has_a_code(known):
    config = {"rows": 1, "zzz": 2} if known else {"zzz": 2}
    with pytest.raises(Unsupported) as caught:
        refuse_unknown("mine", config, known)
    status, reason = explain(caught.value)
    assert (status, reason.code) == (Status.UNSUPPORTED, "config-unknown-name")
    assert (reason.fields["name"], reason.fields["known"]) == ("zzz", known)


def test_what_runs_on_amd_says_that_it_has_not():
    for name in backends.registry.names():
        backend = backends.registry.get(name)
        assert (ON_AMD in backend.summary) is ("hip" in backend.device_kinds), name


def test_a_name_that_is_known_is_not_refused():
    refuse_unknown("mine", {"rows": 1}, ("rows",))


@pytest.mark.parametrize("value", ["yes", "maybe", 1, 0, 1.0])
def test_a_flag_is_a_bool_and_nothing_that_python_takes_for_one(value):
    with pytest.raises(Unsupported) as caught:
        get_flag("mine", {"fast": value}, "fast", default=True)
    status, reason = explain(caught.value)
    assert status is Status.UNSUPPORTED
    assert tells(reason, backend="mine", name="fast", value=value)


@pytest.mark.parametrize("default", [True, False])
def test_a_flag_has_a_default(default):
    assert get_flag("mine", {}, "fast", default=default) is default
    assert get_flag("mine", {"fast": not default}, "fast", default=default) is not default


HUGE = 2**62


def raised(work):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        work()
    return caught.value


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (OutOfMemory("no"), True),
        (MemoryError(), True),
        (OSError(errno.ENOMEM, ""), True),
        (OSError(errno.ENOSPC, ""), False),
        (CaseError("out of memory"), False),
        (RuntimeError("out of memory"), False),
    ],
)
def test_types_and_codes_decide(error, memory):
    assert is_out_of_memory(error) is memory


def test_a_real_failure_of_numpy():
    assert is_out_of_memory(raised(lambda: np.empty(HUGE, np.uint8)))


def test_real_failures_of_torch():
    torch = pytest.importorskip("torch", reason="needs torch, which make test installs")
    assert is_out_of_memory(raised(lambda: torch.empty(HUGE, dtype=torch.uint8)))
    assert not is_out_of_memory(raised(lambda: torch.ones(2) @ torch.ones(3)))


@pytest.mark.parametrize(("code", "memory"), [(2, True), (700, False)])
def test_the_code_of_an_accelerator_decides(code, memory):
    torch = pytest.importorskip("torch", reason="needs torch, which make test installs")
    error = torch.AcceleratorError("CUDA error")
    error.error_code = code
    assert is_out_of_memory(error) is memory


@pytest.mark.parametrize(
    "text", ["CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", "std::bad_alloc"]
)
def test_torch_has_only_a_text_for_some(text):
    torch = pytest.importorskip("torch", reason="needs torch, which make test installs")
    assert is_out_of_memory(RuntimeError(text))
    assert not is_out_of_memory(ValueError(text))
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
