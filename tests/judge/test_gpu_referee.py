"""The referee on an emulated GPU: the kernel's process is this one, all else is as on a GPU."""

from __future__ import annotations

import contextlib
import os
import time
from types import SimpleNamespace

import pytest

from kernelmark import ops
from kernelmark.judge import child, referee, side
from kernelmark.judge.referee import Question, judge
from kernelmark_dev.emulator import emulated

pytestmark = pytest.mark.slow

SOURCE = r"""/* kmark
op = "gemm"
kernel = "gemm"
grid = ["m"]
block = ["32"]
args = ["d", "a", "b", "n", "k"]
dtypes = ["f32"]
*/
extern "C" __global__ void gemm(float* d, const float* a, const float* b, int n, int k) {
  const int row = blockIdx.x;
  for (int j = threadIdx.x; j < n; j += blockDim.x) {
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + j];
    d[row * n + j] = sum;
  }
}
"""
PROBLEM = "gemm m=9 n=8 k=7 dtype=f32"


class SideHere(side.Side):
    """A side whose child is an object of this process."""

    requests: list[bytes]

    def _start(self, bindings, config, threads) -> None:
        segments, placed = self._segments()
        described = [
            {
                "problem": side.codec.plain(binding.problem),
                "tensors": [side._spec_document(spec) for spec in binding.tensors],
                "sets": sets,
            }
            for binding, sets in zip(bindings, placed, strict=True)
        ]
        pages = [
            (self._orders.descriptor, side._PAGES, False),
            (self._progress.descriptor, 1, True),
            (self._facts.descriptor, side._FACT_PAGES, True),
        ]
        setup = {
            "segments": segments,
            "bindings": described,
            "config": dict(config),
            "backend": self.backend,
            "pages": pages,
        }
        descriptors = {number: os.dup(number) for number, _, _ in pages}
        self._kernels = child._Kernels(setup, self._device, descriptors)
        self.requests = []
        self.pid = os.getpid()

    def wait_until_ready(self) -> None: ...

    def check_leftovers(self) -> None: ...

    def idle(self, seconds: float) -> None: ...

    def threads(self) -> int:
        return 1

    def log_tail(self) -> str:
        return ""

    def _request(self, request, limit_s, at_ring=None, meanwhile=None):
        self.requests.append(request)
        start = time.perf_counter()
        answer = self._kernels.answer(request)
        self.wall_s = time.perf_counter() - start
        if at_ring is not None:
            at_ring()
        if answer == child.RAISED:
            raise side.Raised(side.Status.RUNTIME_ERROR, side.Reason("it raised an error"))
        return answer, self.wall_s


@pytest.fixture
def gpu(compiler, monkeypatch):
    monkeypatch.setattr(referee, "Side", SideHere)
    monkeypatch.setattr(referee, "_MOST_GPU_SETS", 14)
    monkeypatch.setattr(referee, "_GPU_SINGLE_S", 1.0)  # the emulator's times mean nothing
    monkeypatch.setattr(side, "_GPU_BLOCK", 1)
    with emulated():
        with contextlib.closing(referee.open_device("cuda:0")) as device:
            driver = device.driver
        handles = SimpleNamespace(
            handle=lambda address: address.to_bytes(8, "little"),
            opened=lambda handle: int.from_bytes(handle, "little"),
        )
        monkeypatch.setattr(driver, "ipc_handle", handles.handle, raising=False)
        monkeypatch.setattr(driver, "open_ipc_handle", handles.opened, raising=False)
        yield


def judged(tmp_path, source: str = SOURCE, **changes):
    kernel = tmp_path / "gemm.cu"
    kernel.write_text(source)
    question = Question(
        kernel=str(kernel), problem=ops.parse(PROBLEM), device="cuda:0", rounds=6, **changes
    )
    return judge(question)


def test_an_honest_kernel_is_accepted(gpu, tmp_path):
    kernel = tmp_path / "reference.cu"
    kernel.write_text(SOURCE)
    verdict = judged(tmp_path, reference=str(kernel))
    assert verdict.accepted, verdict.reason
    assert verdict.measurement is not None
    assert verdict.ratio is not None
    assert "timed launches" in verdict.passed


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("i < k;", "i < k - 1;"), "projection-wrong"),
        (("const int row = blockIdx.x;", "const int row = 2 * (blockIdx.x / 2);"), "not-written"),
        (("float sum = 0.0f;", "float sum = 0.0f; ((float*)a)[0] = 1;"), "inputs-changed"),
    ],
)
def test_a_wrong_kernel_is_refused(gpu, tmp_path, change, code):
    assert change[0] in SOURCE
    verdict = judged(tmp_path, SOURCE.replace(*change))
    assert verdict.code == code
    assert verdict.counter_example is None or verdict.counter_example.seed == verdict.seed
