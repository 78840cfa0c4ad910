"""Which exceptions of libraries mean out of memory."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from kernelmark.backends.base import is_out_of_memory
from kernelmark.core.errors import CaseError, OutOfMemory

HUGE = 2**62


def raised(work) -> Exception:
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
