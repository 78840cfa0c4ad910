"""The parts that microbenchmarks are made of, on their own."""

import ctypes
import dataclasses
import itertools
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, UsageError
from kernelmark.core.metric import Metric, impossible
from kernelmark.core.result import Status
from kernelmark.micro import _kernels, hardware, registry, session
from kernelmark.micro.base import MicroRun, Parameter
from kernelmark.micro.benchmarks import cache, incore, latency, small_kernels
from kernelmark.micro.rig import CHUNK_BYTES, Samples
from kernelmark.stores.roofs import roofs_of
from kernelmark.testing.micro import micro_result
from kernelmark_dev.raising import raises


class TestSignatures:
    def test_every_kernel_file_is_understood(self):
        for name in session.kernel_files():
            for kernel, parameters in _kernels.of_file(name).items():
                for kind, word in parameters:
                    assert word.isidentifier(), (kernel, word)
                    assert kind.endswith("*") or kind in {*_kernels._TYPES, "T"}, (kernel, kind)

    def test_values_get_the_declared_size(self):
        given = (0x1000, 4, 2, 0, 1, 10, 0x2000, 0x3000)
        packed = _kernels.pack("micro_window.cu", "window_read", given, {})
        assert [ctypes.sizeof(value) for value in packed] == [8, 4, 4, 4, 4, 4, 8, 8]

    def test_macros_and_type_parameters(self):
        given = (1, 2.5, 0.5, 0, 0x10, 0x20)
        packed = _kernels.pack("micro_ops.cu", "chain_fma_f64_8", given, {"T": "double"})
        assert isinstance(packed[1], ctypes.c_double)
        packed = _kernels.pack("micro_ops.cu", "chain_fma_f32_8", given, {"T": "float"})
        assert isinstance(packed[1], ctypes.c_float)

    @pytest.mark.parametrize(
        "values",
        [
            (1, 2),
            (1, 2**40, 2, 0, 1, 10, 1, 1),
            (1, 2.5, 2, 0, 1, 10, 1, 1),
            ("x", 2, 2, 0, 1, 10, 1, 1),
        ],
    )
    def test_what_does_not_fit_is_refused(self, values):
        with raises(UsageError, kernel="window_read"):
            _kernels.pack("micro_window.cu", "window_read", values, {})
        with raises(UsageError, kernel="nonsense"):
            _kernels.pack("micro_window.cu", "nonsense", values, {})


class TestLevels:
    @pytest.mark.parametrize(
        ("cycles", "found"),
        [
            (
                [30.0] * 5 + [120.0] + [280.0] * 5 + [400.0] + [700.0] * 4,
                [(1, 5, 30.0), (7, 11, 280.0), (13, 16, 700.0)],
            ),
            ([10.0, 10.0, 14.0, 10.2, 10.1, 10.0], [(1, 6, 10.0)]),  # a hump ends no level
        ],
    )
    def test_plateaus_are_found(self, cycles, found):
        levels = latency.find_levels(list(range(1, len(cycles) + 1)), cycles)
        assert [(level.first, level.last) for level in levels] == [one[:2] for one in found]
        assert [level.cycles for level in levels] == pytest.approx(
            [one[2] for one in found], rel=0.05
        )

    @given(st.lists(st.floats(1.0, 1e4), min_size=1, max_size=40))
    def test_levels_rise_and_do_not_overlap(self, cycles):
        found = latency.find_levels(list(range(1, len(cycles) + 1)), cycles)
        for near, far in itertools.pairwise(found):
            assert near.first <= near.last < far.first <= far.last
            assert near.cycles < far.cycles

    def test_confidence_tells_same_from_different(self):
        random = np.random.default_rng(1)
        same = random.normal(30, 1, 500), random.normal(30, 1, 500)
        other = random.normal(60, 1, 500)
        assert latency.edge_confidence(same[0], other) > 0.999
        assert latency.edge_confidence(*same) < 0.99
        assert latency.edge_confidence(same[0][:1], other) == 0.0

    @pytest.mark.parametrize("shift", [0.0, 0.05, 0.1, 0.2, 0.5])
    def test_confidence_is_that_of_the_test_it_names(self, shift):
        from scipy.stats import ks_2samp

        random = np.random.default_rng(2)
        one, other = random.normal(0, 1, 400), random.normal(shift, 1, 600)
        wanted = 1 - ks_2samp(one, other, method="asymp").pvalue
        assert latency.edge_confidence(one, other) == pytest.approx(wanted, abs=0.03)


class TestWindows:
    RIG = SimpleNamespace(grid=132, warps=32)

    def test_scattered_chunks_are_all_alike(self):
        numbers = np.arange(32, dtype=np.uint64)[:, None]
        found = cache.scattered_chunks(numbers, 80, 2000)
        counts = np.bincount(found.ravel().astype(int), minlength=80)
        assert counts.size == 80
        assert 0.8 * counts.mean() < counts.min() <= counts.max() < 1.2 * counts.mean()
        # No two warps go the same way.
        assert len({tuple(row) for row in found[:, :20].tolist()}) == 32

    def test_a_core_reads_its_window_in_turn(self):
        alone = SimpleNamespace(grid=4, warps=1)
        assert cache.private_window(alone, 8 * CHUNK_BYTES).step == 1
        assert cache.private_window(self.RIG, 8 * CHUNK_BYTES).step is None


class TestHardware:
    INFO = DeviceInfo(
        name="cuda:0",
        kind="cuda",
        model="NVIDIA H200",
        arch="sm_90",
        units=132,
        attributes={"clock_khz": "1980000", "memory_clock_khz": "3201000", "bus_bits": "6144"},
    )

    def test_an_h200(self):
        found = hardware.Hardware.of(self.INFO)
        assert found.listed
        assert found.bandwidth("l1").value == pytest.approx(132 * 128 * 1.98e9)
        assert found.flops("vector", "f32").value == pytest.approx(132 * 256 * 1.98e9)
        assert found.bandwidth("dram").value == pytest.approx(4.917e12, rel=1e-3)
        assert found.sheet is not None
        assert found.sheet.name == "H200 SXM"
        assert found.plausible_clock(1980.0)
        assert not found.plausible_clock(30.0)
        assert not found.plausible_clock(198000.0)

    def test_more_lanes_than_there_are_is_no_result(self):
        """As a clock read too late would give."""
        found = hardware.Hardware.of(self.INFO)
        for name in ("incore", "instructions"):
            columns = tuple(column.on(found) for column in registry.get(name).columns)
            rows = ({"per_clk": 128.0}, {"per_clk": 256.0})
            assert not impossible(columns, rows[:1], ())
            (reason,) = impossible(columns, rows, ())
            assert (reason.code, reason.fields["value"]) == ("above-physical", 256.0)

    def test_an_instruction_on_two_halves_may_have_more_lanes_than_one_on_a_float(self):
        """An A100 has 64 lanes for f32 and 128 for pairs of f16."""
        info = dataclasses.replace(self.INFO, model="NVIDIA A100-SXM4-80GB", arch="sm_80")
        columns = [c.on(hardware.Hardware.of(info)) for c in registry.get("instructions").columns]
        assert not impossible(columns, ({"per_clk": 128.0},), ())
        assert len(impossible(columns, ({"per_clk": 10**400},), ())) == 1
        assert impossible(columns, ({"per_clk": 192.0},), ())

    def test_an_unknown_gpu_still_has_limits(self):
        info = dataclasses.replace(self.INFO, model="something", arch="sm_999", attributes={})
        found = hardware.Hardware.of(info)
        assert not found.listed
        assert found.sheet is None
        for level in ("l1", "l2", "shared", "dram"):
            assert found.bandwidth(level).value > 0
        assert found.flops("matrix", "bf16").value > 1e15

    @pytest.mark.parametrize("entry", hardware._tables()["device"], ids=lambda e: e["name"])
    def test_sheets_and_architectures_agree(self, entry):
        """A vendor's total is at most units × rate × clock, and not far below."""
        table = hardware._tables()["arch"][entry["arch"]]
        for unit in ("vector", "matrix"):
            for dtype, total in entry[unit].items():
                bound = table[unit][dtype] * entry["units"] * entry["clock_mhz"] * 1e6
                assert 0.45 * bound <= total <= 1.03 * bound, (unit, dtype)
        assert entry["source"]


class TestSettings:
    LATENCY = registry.get("latency")

    def test_modes_and_choices(self):
        chosen = self.LATENCY.settings("brief", {"samples": "5", "sizes": [4096, 8192]})
        assert chosen["samples"] == 5
        assert chosen["sizes"] == (4096, 8192)
        assert chosen["refine"] == 0
        assert self.LATENCY.settings("quick", {"refine": "0"})["refine"] == 0

    def test_quick_stands_in_for_what_is_not_said(self):
        assert Parameter("x", quick=3).value("full") == 3


class TestHostCompiler:
    def test_a_program_that_does_not_compile_is_a_sentence(self, compiler, tmp_path, monkeypatch):
        monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
        monkeypatch.setattr(_kernels, "source", lambda file: "this is not C++\n")
        _kernels.library.cache_clear()
        with pytest.raises(CompileError, match="this is not C"):
            _kernels.library("micro_window.cu")

    @pytest.mark.parametrize("asked", ["/nonexistent/cxx", "/bin/false", "'", "/bin/true"])
    def test_a_compiler_that_does_not_work_is_told(self, compiler, monkeypatch, asked):
        monkeypatch.setenv("CXX", asked)
        _kernels.library.cache_clear()
        made = _kernels.library("micro_launch.cu")
        _kernels.library.cache_clear()
        assert made.note.startswith(f"$CXX is {asked!r}, which does not work here: /")
        assert made.note.endswith("+ was used instead")

    def test_a_compiler_that_works_needs_no_word(self, compiler, tmp_path, monkeypatch):
        monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
        working = next(n for n in ("c++", "g++", "clang++") if shutil.which(n))
        made = []
        for name in ("", working, working):
            monkeypatch.setenv("CXX", name)
            _kernels.library.cache_clear()
            made.append(_kernels.library("micro_launch.cu"))
        _kernels.library.cache_clear()
        assert {one.note for one in made} == {""}
        assert made[0].seconds > 0
        assert made[-1].seconds == 0  # from the cache

    def test_arguments_are_unpacked_by_declared_type(self):
        found = _kernels.entries('extern "C" void f(quad* a, u64 n, double q) { }\nint g() { }')
        assert list(found) == ["f"]
        assert "f(*(quad**)a[0], *(u64*)a[1], *(double*)a[2])" in found["f"]


class TestSession:
    def test_a_benchmark_that_hangs_is_a_result_and_the_next_one_runs(self, compiler):
        found = session.run(["latency"], mode="full", timeout_s=0.3)
        (late,) = list(found)
        assert late.status is Status.TIMEOUT
        (good,) = list(session.run(["instructions"], mode="brief", threads=1))
        assert good.status is Status.OK
        assert good.case.timing.threads == 1

    @pytest.mark.parametrize(
        ("names", "how", "values"),
        [
            (["latency", "nonsense"], {}, ["nonsense"]),
            (["latency"], {"parameters": {"x": 1}}, ["latency", "'x'"]),
            (["latency", "stream"], {"own_parameters": {"stream": {"x": 1}}}, ["stream", "'x'"]),
            (["latency"], {"mode": "thorough"}, ["thorough"]),
            (["latency"], {"device": "nonsense"}, ["nonsense"]),
            (["latency"], {"device": "fake"}, ["fake"]),
        ],
    )
    def test_what_is_illegal_raises_before_anything_runs(self, names, how, values):
        with raises(UsageError, *values):
            session.run(names, **how)

    def test_a_host_without_a_compiler_cannot_run_any(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX", raising=False)
        found = list(session.run(["cache", "incore"], mode="brief", threads=1))
        assert [result.case.problem.op for result in found] == ["cache", "incore"]
        for result in found:
            assert result.status is Status.UNSUPPORTED
            assert result.error

    def test_kernels_that_do_not_compile_are_a_compile_error(self, monkeypatch, tmp_path):
        """By a compiler that tells its version and can do nothing else."""
        compiler = tmp_path / "c++"
        told = '[ "$1" = --version ] && echo 1 && exit'
        compiler.write_text(f"#!/bin/sh\n{told}\necho no >&2; exit 1\n")
        compiler.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("CXX", raising=False)
        (found,) = session.run(["cache"], mode="brief", threads=1)
        assert found.status is Status.COMPILE_ERROR

    def test_names_of_both_spellings(self):
        assert session.plain_name(" l2-cache ") == session.plain_name("l2_cache") == "l2_cache"


def test_micro_is_a_python_api(compiler):
    import kernelmark as km

    result = km.micro.instructions(mode="brief", ops="add_i64", threads=1)
    assert result.status is Status.OK
    assert result.metric("latency_add_i64").unit == "cycles"
    assert "l2_cache" in dir(km.micro)
    assert km.micro.cache.__doc__ == registry.get("cache").summary
    with pytest.raises(AttributeError, match="nonsense"):
        _ = km.micro.nonsense
    with raises(UsageError, name="nonsense") as refused:
        result.metric("nonsense")
    assert refused.value.hint == "it has: latency_add_i64, per_clk_add_i64"


class TestRoofs:
    def results(self):
        def made(name, **values):
            metrics = tuple(
                Metric(name=k, value=v, unit=unit, roof=roof)
                for k, (v, unit, roof) in values.items()
            )
            return micro_result(name, metrics=metrics)

        return [
            made("incore", peak_f32=(6e13, "FLOP/s", "flops f32 vector"), other=(4.0, "", "")),
            made("matrix", flops_bf16=(9e14, "FLOP/s", "flops bf16 matrix")),
            made(
                "stream", **{k: (v, "B/s", "bytes dram") for k, v in (("a", 4.5e12), ("b", 4e12))}
            ),
            made("small-kernels", empty=(2000.0, "ns", "launches plain")),
        ]

    def test_a_metric_says_which_roof_it_is(self):
        info = DeviceInfo(name="cuda:0", kind="cuda", model="M", arch="sm_90")
        every = [roof for result in self.results() for roof in roofs_of(result, info)]
        assert {(r.kind, r.name, r.unit): r.value for r in every} == {
            ("flops", "f32", "vector"): 6e13,
            ("flops", "bf16", "matrix"): 9e14,
            ("bytes", "dram", ""): 4.5e12,
            ("launches", "plain", ""): 5e5,
        }
        assert {(r.model, r.measured, r.steady, r.limit) for r in every} == {("M", 1.0, True, True)}

    def test_what_is_not_ok_gives_none(self):
        bad = [dataclasses.replace(r, status=Status.WRONG) for r in self.results()]
        assert [roof for result in bad for roof in roofs_of(result)] == []

    def test_every_source_is_a_benchmark_of_its_kind(self):
        for kind, sources in session.ROOF_SOURCES.items():
            for name, chosen in sources.items():
                assert kind in registry.get(name).kinds
                registry.get(name).settings("brief", chosen)

    def test_the_data_sheet_stands_beside(self):
        sheet = hardware.find_sheet(TestHardware.INFO)
        every = [roof for result in self.results() for roof in roofs_of(result)]
        assert [hardware.sheet_value(r, sheet) for r in every] == [67e12, 989.5e12, 4.8e12, None]
        assert hardware.sheet_value(every[0], None) is None


class TestLaunchFit:
    def test_a_start_and_a_rate_are_found(self):
        points = [(n, 2e-6 + n / 1e12) for n in (2**16, 2**20, 2**24)]
        start_ns, rate = small_kernels._fit(points)
        assert start_ns == pytest.approx(2000)
        assert rate == pytest.approx(1e12)

    @given(st.lists(st.floats(-0.05, 0.05), min_size=3, max_size=3))
    def test_times_that_do_not_grow_have_no_rate(self, noise):
        points = [(2 ** (14 + i), 2e-6 * (1 + n)) for i, n in enumerate(noise)]
        start_ns, rate = small_kernels._fit(points)
        assert start_ns is not None
        assert rate is None


class TestUnsteady:
    def test_points_that_spread_are_counted(self):
        rows = [{"spread": 0.02}, {"spread": 0.4}, {"spread": None}, {"size": 3}]
        (note,) = session._unsteady(rows)
        assert note.startswith("1 of 2 points spread by over 25 %: did other work run?")
        assert "--points" in note
        assert session._unsteady([{"spread": 0.02}, {"size": 3}]) == []


class TestIncore:
    # An MI300X: one number a lane is half of what pairs reach.
    PER_S = {"fma_f32": 81e12, "fma_f32x2": 163e12, "fma_f64": 81e12}  # noqa: RUF012

    @pytest.mark.parametrize(("names", "f32"), [(list(PER_S), 163e12), (["fma_f32"], 81e12)])
    def test_the_peak_is_that_of_the_fastest_instruction(self, names, f32):
        rig = SimpleNamespace(
            grid=1,
            kernels=lambda file: {f"chain_{name}_8" for name in names},
            hardware=hardware.Hardware.of(TestHardware.INFO),
        )
        timed = Samples(seconds=(1.0, 1.0), block_cycles=(1e9, 1e9))
        chains = SimpleNamespace(peak=lambda op, **more: (self.PER_S[op.name], timed))
        run = MicroRun(rig)
        incore._add_peaks(run, chains, seconds=1e-3, samples=1)
        found = {m.name: m.value for m in run.metrics}
        assert (found["peak_f32"], found["per_clk_f32"]) == (f32, f32 / 1e9)
        assert ("peak_f64" in found) == (len(names) > 1)

    def test_a_step_of_pairs_is_four_operations(self):
        assert incore.OPS["fma_f32x2"].flops == 2 * incore.OPS["fma_f32"].flops

    def test_the_multiply_add_of_integers_is_computed_exactly(self):
        op = incore.OPS["mad_i32"]
        x = op.seed
        for _ in range(16):
            x = (x * op.other + op.other) % 2**32
        assert int(op.after(16)) == x
