"""Canaries of a suite: which, by what, and that nothing chosen touches them."""

from __future__ import annotations

import pytest

from kernelmark import backends
from kernelmark.api.plan import canary_cases, plan
from kernelmark.api.selection import Selection
from kernelmark.backends import BackendRef
from kernelmark.backends.base import Backend
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.timing import Timing
from kernelmark.workloads.suites import added_canaries, canary_keys

GPU = DeviceInfo(name="cuda:0", kind="cuda", model="m", arch="sm_90")


class Known(Backend):
    """A backend that is there and can do some ops."""

    summary = "some ops"
    device_kinds = ("cuda", "cpu")

    def __init__(self, name, *ops, missing=None, built_for=("cuda", "cpu")):
        self.name, self._ops, self._missing, self._built_for = name, ops, missing, built_for

    def missing_on(self, kind):
        return NO_REASON if kind in self._built_for else Reason.of("built for others")

    def available(self):
        return self._missing

    def version(self):
        return "1"

    def supports(self, problem, info):
        return None if problem.op in self._ops else "no"

    def prepare(self, problem, config, device, sets):
        raise AssertionError("nothing is measured here")


@pytest.fixture
def here(monkeypatch):
    def put(*found):
        for one in found:
            monkeypatch.setitem(backends.registry._loaded, one.name, one)

    return put


def made(**choice):
    chosen = {"suites": ("smoke",), "backends": ("numpy",), "canaries": True, **choice}
    return plan(Selection.parse(**chosen), Timing())


def test_a_suite_has_all_three_by_numpy_after_its_own_cases():
    alone, found = made(canaries=False), made()
    assert found.cases[: len(alone.cases)] == alone.cases
    added = found.cases[len(alone.cases) :]
    assert [case.problem.key for case in added] == canary_keys()
    assert {case.backend for case in added} == {"numpy"}
    assert (alone.suite, found.suite) == ("smoke", "smoke,sentinels")


def test_nothing_that_is_chosen_touches_them():
    found = made(limit=1, filter="conv", dtypes=("f32",), ops=("conv",))
    assert [case.problem.op for case in found.cases] == ["conv", "copy", "copy", "gemm"]
    configured = made(limit=1, config=["tile=64"])
    assert [dict(case.config) for case in configured.cases] == [{"tile": 64}, {}, {}, {}]


def test_who_measures_them_is_told_where_nobody_asked_for_it():
    pytest.importorskip("torch", reason="needs torch, which make test installs")
    assert "canaries are measured by numpy" in made(backends=("torch",)).notes
    assert not made(backends=("numpy",)).notes


def test_only_suites_have_them_and_none_twice():
    assert len(made(suites=("sentinels",)).cases) == 3
    assert made(suites=("sentinels",)).suite == "sentinels"
    assert len(made(suites=("smoke", "sentinels"), limit=None).cases) == len(made().cases)
    single = made(suites=(), ops=("gemm",), axes=("m=8", "n=8", "k=8"), dtypes=("f32",))
    assert len(single.cases) == 1


def test_a_case_that_was_asked_for_is_not_measured_twice(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('dtype = "f32"\n[[problems]]\nop = "copy"\nn = 1\n')
    found = made(suites=(str(file),))
    assert [case.problem.key for case in found.cases] == canary_keys()


def test_a_device_that_is_not_real_has_none():
    found = made(devices=("fake",), backends=("fake",))
    assert found.suite == "smoke"
    assert not [case for case in found.cases if case.problem.op == "copy"]


def test_on_a_gpu_what_is_not_under_test_comes_first(here):
    here(Known("rtc", "copy"), Known("cublaslt", "gemm"), Known("triton", "gemm"))
    found = canary_cases([BackendRef("triton")], GPU, Timing())
    assert [case.backend for case in found] == ["rtc", "rtc", "cublaslt"]


def test_without_its_vendors_library_the_first_chosen_backend_that_can(here):
    here(Known("rtc", "copy"), Known("cublaslt", "gemm", missing="no library"))
    here(Known("torch", "conv"), Known("triton", "gemm"))
    found = canary_cases([BackendRef("torch"), BackendRef("triton")], GPU, Timing())
    assert [case.backend for case in found] == ["rtc", "rtc", "triton"]
    here(Known("torch", "gemm", built_for=("cpu",)))
    found = canary_cases([BackendRef("torch"), BackendRef("triton")], GPU, Timing())
    assert [case.backend for case in found] == ["rtc", "rtc", "triton"]


def test_a_file_of_the_users_own_is_no_canary(here, tmp_path):
    here(Known("rtc", "copy"), Known("cublaslt", missing="no library"))
    found = canary_cases([backends.parse(str(tmp_path / "mine.py"))], GPU, Timing())
    assert [case.problem.op for case in found] == ["copy", "copy"]


@pytest.mark.parametrize(
    ("suite", "count"), [("demo,sentinels", 3), ("sentinels", 0), ("demo", 0), ("", 0)]
)
def test_canaries_are_told_from_the_suites_they_were_added_to(suite, count):
    assert len(added_canaries(suite)) == count
