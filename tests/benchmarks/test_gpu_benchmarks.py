"""What the scripts in benchmarks/gpu choose, compare and count, without a GPU."""

from types import SimpleNamespace

import pytest

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Block, Result, Status
from kernelmark.core.timing import Duty
from kernelmark.gpu import pack

H200 = DeviceInfo(name="cuda:0", kind="cuda", model="H200", arch="sm_90")
GEMM = "nvjet_sm90_tst_128x64_64x8_1x2_h_bz_splitK_TNT"
SUM = (
    "_ZN8cublasLt19splitKreduce_kernelILi32ELi16Eif13__nv_bfloat16fS1_Lb0EfS1_S1_Lb1ELb0ELb0ELb0EEE"
    "vNS_18cublasSplitKParamsIT4_EEPKT2_PKT8_PT7_PT3_PKS3_SG_PKT9_S7_PSH_PvlPS3_PiSM_SM_SG_SG_SG_SG"
    "_SG_"
)
WRITTEN_OUT = (
    "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, __nv_bfloat16, float, "
    "__nv_bfloat16, (bool)0, float, __nv_bfloat16, __nv_bfloat16, (bool)1>"
    "(cublasLt::cublasSplitKParams<T6>, const T4 *, const T10 *, T9 *, void *, long)"
)


@pytest.fixture(scope="module")
def against_ncu(benchmark_script):
    for name in ("torch", "triton"):
        pytest.importorskip(name, reason=f"needs {name}, which make test installs")
    return benchmark_script("gpu/against_ncu.py")


@pytest.fixture(scope="module")
def coverage(benchmark_script):
    return benchmark_script("gpu/coverage.py")


@pytest.mark.parametrize(
    ("ours", "ncu", "same"),
    [
        ([GEMM], [GEMM], True),
        ([GEMM], [GEMM.replace("128x64", "96x64")], False),
        ([GEMM, SUM], [GEMM, WRITTEN_OUT], True),
        ([GEMM, SUM], [GEMM, "splitKreduce_kernel"], True),
        ([GEMM, SUM], [GEMM], False),
        ([GEMM, SUM], [GEMM, GEMM], False),
        ([], [GEMM], False),
        ([], [], False),
    ],
)
def test_kernels_are_compared_by_their_names(against_ncu, ours, ncu, same):
    assert against_ncu.same_kernels(ours, ncu) is same


def a_row(m, us, factor, *, same=True, apart=0.02):
    return {
        "m": m,
        "n": 64,
        "k": 64,
        "ncu_us": us,
        "ncu_between_us": [us, us * (1 + apart)],
        "ncu_cycles": 1000 * us,
        "ours_us": factor * us,
        "ours_cycles": 1000 * factor * us,
        "do_bench_us": 1.5 * us,
        "same_kernels": same,
    }


def test_rows_of_other_kernels_are_counted_and_not_compared(against_ncu):
    rows = [a_row(1, 100, 1.01), a_row(2, 100, 0.97), a_row(3, 100, 1.02), a_row(4, 5, 0.5)]
    figures = against_ncu.figures_of([*rows, a_row(5, 100, 0.2, same=False)])
    found = figures["from_20us"]["ours_cycles"]
    assert found["median"] == pytest.approx(0.02)
    assert found["worst"] == pytest.approx(-0.03)
    assert found["worst_shape"] == "m=2 n=64 k=64"
    assert figures["from_20us"]["ours_us"]["median"] == pytest.approx(0.02)
    assert figures["below_20us"]["shapes"] == 1
    assert figures["other_kernels"]["which"] == ["m=5 n=64 k=64"]
    ((_, text, holds),) = against_ncu.bars_of(figures)
    assert holds
    assert "1 of 5 shapes" in text
    ((_, _, holds),) = against_ncu.bars_of(against_ncu.figures_of([a_row(1, 100, 1, same=False)]))
    assert not holds


def test_where_ncu_does_not_agree_with_itself_is_told_apart(against_ncu):
    rows = [a_row(1, 100, 1.01), a_row(2, 100, 0.75, apart=0.3)]
    figures = against_ncu.figures_of(rows)
    assert figures["from_20us"]["shapes"] == 2
    assert figures["from_20us_where_ncu_agrees"]["shapes"] == 1
    ((_, text, _),) = against_ncu.bars_of(figures)
    assert "worst -25.0% (m=2 n=64 k=64)" in text
    assert "1 shapes, worst +1.0% (m=1 n=64 k=64)" in text


def test_coverage_has_a_row_for_each_dtype_and_status(coverage):
    made = coverage.cases(["rtc copy", "rtc attention"])
    refused = [case for case in made if case.problem.op == "attention"]
    results = [
        Result(case=case, device="cuda:0", status=Status.UNSUPPORTED, error="no " + 200 * "x")
        if case in refused
        else Result(case=case, device="cuda:0", status=Status.OK)
        for case in made
    ]
    rows = coverage.rows_of(results)
    assert sum(row["count"] for row in rows) == len(made)
    assert len({(row["op"], row["dtypes"], row["status"]) for row in rows}) == len(rows)
    bf16 = next(row for row in rows if row["dtypes"] == "x=bf16")
    assert (bf16["count"], bf16["reasons"]) == (3, [])
    reasons = [reason for row in rows for reason in row["reasons"]]
    assert {len(reason) for reason in reasons} == {160}


def test_iree_runs_what_its_pack_holds(coverage, tmp_path, monkeypatch):
    words = ["torch gemm", "iree gemm m=512 n=512 k=512 a=bf16"]
    words += ["iree gemm m=512 n=512 k=512 a=f8e4m3fnuz"]
    made = coverage.cases(words)
    kept, told = coverage.without_unpacked(made, None, H200)
    assert {case.backend for case in kept} == {"torch"}
    assert "no pack was given" in told
    monkeypatch.setenv("KERNELMARK_PACK", str(tmp_path))
    one = next(case for case in made if case.problem.dtypes["a"] == "bf16" and is_iree(case))
    pack.add(tmp_path, *key_of(one), b"module")
    kept, told = coverage.without_unpacked(made, tmp_path, H200)
    mine = [case for case in kept if case.backend == "iree"]
    # Which dtypes a GPU has is only known with the compiler: no case says it without a module.
    assert mine == [one]
    assert told.startswith("3 of 4 ")


def is_iree(case):
    return case.backend == "iree"


def key_of(case):
    from kernelmark.backends.iree import choices
    from kernelmark.backends.iree.compiler import pack_key
    from kernelmark.backends.iree.targets import target

    goal = target(H200)
    assert goal is not None
    choice = choices.choose(case.problem, case.config, goal)
    return pack_key(choices.source(case.problem, choice), choice.flags), goal.pack


@pytest.mark.parametrize(
    ("rests", "status", "holds"),
    [
        (0.019, "same", [True, True]),
        (0.021, "same", [False, True]),
        (0.01, "slower", [True, False]),
    ],
)
def test_rests_must_halve_an_interval_and_call_nothing_changed(
    benchmark_script, rests, status, holds
):
    script = benchmark_script("gpu/ab_capped.py")

    def report(half_width, status):
        block = Block(process=0, allocation=0, samples_s=(1e-5,), clocks_mhz=(1500.0,))
        side = SimpleNamespace(measurement=SimpleNamespace(blocks=(block,)))
        paired = SimpleNamespace(low=1 - half_width, high=1 + half_width)
        row = SimpleNamespace(
            base=side, head=side, paired=paired, status=SimpleNamespace(value=status)
        )
        return SimpleNamespace(rows=(row,))

    reports = {Duty.SUSTAINED: report(0.04, "unsure"), Duty.BURST: report(rests, status)}
    bars = script.judged(reports, dict.fromkeys(reports, 1.0))
    assert [held for _, _, held in bars] == holds


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "hip:1"])
def test_programs_of_bench_overhead_are_python(benchmark_script, device):
    script = benchmark_script("gpu/bench_overhead.py")
    for tool in script._TOOLS:
        for case in script._CASES:
            compile(script.program(tool, case, device), "program", "exec")


def test_bench_overhead_compares_medians(benchmark_script):
    script = benchmark_script("gpu/bench_overhead.py")
    ours = script.medians(
        [{"wall_s": s, "status": "ok", "phases_s": {"check": s / 2}} for s in (3.0, 1.0, 2.0)]
    )
    assert ours == {"wall_s": 2.0, "status": ["ok"], "phases_s": {"check": 1.0}}
    row = {"case": "gemm", "ratio": 1.1, "km.bench": ours, "do_bench": {"wall_s": 1.8}}
    wrong = {**ours, "status": ["ok", "wrong"]}
    rows = [row, {**row, "ratio": 1.3}, {**row, "km.bench": wrong}]
    assert [holds for *_, holds in script.bars(rows)] == [True, False, False]
