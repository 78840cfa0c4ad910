"""What benchmarks/gpu/placement.py and replication.py compute, without a GPU."""

import pytest

from kernelmark import ops
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Case, Status
from kernelmark_dev.emulator import emulated
from kernelmark_dev.results import make_measurement, make_result

H200 = DeviceInfo(name="cuda:0", kind="cuda", model="H200", arch="sm_90")
FAST, MIDDLE, SLOW = 35.2e-6, 36.9e-6, 38.2e-6


@pytest.fixture(scope="module")
def placement(benchmark_script):
    return benchmark_script("gpu/placement.py")


@pytest.fixture(scope="module")
def replication(benchmark_script):
    return benchmark_script("gpu/replication.py")


def test_a_start_predicts_the_mode_of_the_others_with_it(placement):
    pairs = [(4, FAST), (4, 1.004 * FAST), (8, FAST), (8, FAST), (12, SLOW), (12, SLOW), (0, SLOW)]
    right, blind, judged = placement.share_predicted(pairs)
    assert (right, judged) == (1.0, 6)
    assert blind < 1.0
    assert placement.share_predicted([(1, FAST)]) == (0.0, 0.0, 0)
    wrong = [(4, FAST), (4, SLOW), (4, FAST), (4, SLOW)]
    assert placement.share_predicted(wrong)[0] == 0.0


def readings(factor=1.0):
    one = [FAST, 1.002 * FAST]
    names = ("same", "allocations", "after_nothing", "after_gemm", "after_even_spin")
    return {
        "kernels": ["nvjet"],
        **dict.fromkeys(names, one),
        "rewritten_in_place": [FAST, SLOW],
        "pages_in_order": one,
        "pages_permuted": [factor * t for t in one],
        "pages_at_random": one,
        "probed": [(4, FAST), (4, FAST), (12, SLOW), (12, SLOW)],
    }


@pytest.mark.parametrize(("factor", "held"), [(1.005, True), (1.02, False)])
def test_placement_is_judged(placement, factor, held):
    figures = placement.figures_of([readings(factor), readings(factor)])
    bars = placement.bars_of(figures)
    assert [holds for _, _, holds in bars] == [True, True, True, held, True, True, True, True]
    without = readings() | {"probed": []}
    assert len(placement.bars_of(placement.figures_of([without]))) == len(bars) - 1


def test_a_process_reads_every_condition(placement, monkeypatch, compiler):
    """On an emulated GPU, whose times mean nothing: the calls, not the readings, are tested."""

    class Mapped:
        def __init__(self, driver, index, count, mapped):
            self._buffer = device.allocate(mapped * placement.PAGE)
            self.address = self._buffer.address
            self.handles = list(range(count))

        def map(self, handles):
            assert len(set(handles)) == len(handles)

        def unmap(self): ...

        def close(self):
            device.free(self._buffer)

    bench_type = placement.Bench
    monkeypatch.setattr(placement, "Pages", Mapped)
    monkeypatch.setattr(placement, "warm_up", lambda bench, graph, seconds=0.0: graph.run())
    monkeypatch.setattr(bench_type, "load", lambda self, *_: self.device.function("nothing"))
    monkeypatch.setattr(bench_type, "generate", lambda self: self.device.start("nothing", 1, 32))
    with emulated():
        device = placement.open_gpu("cuda:0")
        bench = bench_type(device, "copy n=1024 x=f32", "rtc", 1)
        found = placement.measure_process(bench, placement.QUICK, 1)
        bench.close()
    assert len(found["allocations"]) == placement.QUICK.allocations
    assert len(found["probed"]) == placement.QUICK.probed
    assert placement.bars_of(placement.figures_of([found]))


# -- replication


def a_case(m):
    return Case(problem=ops.parse(f"gemm m={m} n=8 k=8 dtype=f32"), backend="fake")


def a_result(m, seconds, half_width=0.004):
    measurement = make_measurement(
        *(step * seconds for step in (0.998, 1.0, 1.002, 1.0)),
        low_s=seconds * (1 - half_width),
        high_s=seconds * (1 + half_width),
    )
    return make_result(a_case(m), device="fake", measurement=measurement)


def measured(replication, plain):
    processes = tuple(
        replication.Process(number=at, seconds=1.0, results=tuple(results))
        for at, results in enumerate(plain)
    )
    return replication.Measured(plain=processes, spun=(), info=H200, libraries={})


def test_coverage_is_of_the_mean_over_processes(replication):
    near = [a_result(1, 1e-5 * factor) for factor in (0.999, 1.0, 1.001)]
    far = [a_result(2, 1e-5 * factor) for factor in (0.96, 1.0, 1.04)]
    runs = list(zip(near, far, strict=True))
    figures = replication.figures_of(measured(replication, runs))
    assert [row["covered"] for row in figures["rows"]] == [1, 3]
    assert figures["covered"] == 4
    assert figures["median_half_width"] == pytest.approx(0.004, rel=1e-3)


def test_a_case_that_failed_once_is_left_out_and_counted(replication):
    bad = make_result(a_case(2), device="fake", status=Status.CRASHED)
    runs = [[a_result(1, 1e-5), a_result(2, 1e-5)], [a_result(1, 1e-5), bad]]
    figures = replication.figures_of(measured(replication, runs))
    assert len(figures["rows"]) == 1
    assert len(figures["left_out"]) == 1
    assert figures["statuses"] == {"ok": 3, "crashed": 1}


def test_equal_runs_do_not_alarm_and_slower_samples_are_found(replication):
    runs = [[a_result(m, 1e-5) for m in range(1, 17)] for _ in range(4)]
    found = replication.judge_pairs(measured(replication, runs).plain)
    assert (found["pairs"], found["rows"], found["alarms"]) == (6, 96, 0)
    assert found["found_in_samples"] == found["slowed_in_samples"] == 12


def test_spun_rows_are_told_apart_by_who_was_slowed(replication):
    def process(number):
        slowed = {a_case(m).id for m in range(1, 13) if replication.is_slowed(m, number)}
        results = [a_result(m, 1.03e-5 if a_case(m).id in slowed else 1e-5) for m in range(1, 13)]
        return replication.Process(
            number=number, seconds=1.0, results=tuple(results), slowed=frozenset(slowed)
        )

    found = replication.judge_spun([process(0), process(1)])
    assert (found["changed_rows"], found["found"], found["equal_rows"]) == (8, 8, 4)
    assert found["median_ratio"] == pytest.approx(1.03)
    assert found["alarms_on_equal_rows"] == 0


def test_parts_are_merged_in_order_and_never_twice(replication, tmp_path):
    whole = measured(replication, [[a_result(1, 1e-5)], [a_result(1, 1.001e-5)]])
    paths = []
    for process in reversed(whole.plain):
        paths.append(tmp_path / f"{process.number}.json.gz")
        part = replication.dataclasses.replace(whole, plain=(process,))
        replication.save(paths[-1], part)
    assert replication.load(paths) == whole
    with pytest.raises(SystemExit):
        replication.load([paths[0], paths[0]])
    other = replication.dataclasses.replace(part, sources=("another",))
    replication.save(paths[-1], other)
    assert replication.load(paths).sources == tuple(sorted({*whole.sources, "another"}))
