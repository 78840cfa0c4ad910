"""Nsight Systems: the same launches from its export as from its trace; means from summaries."""

import sqlite3

import pytest

from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.workloads import importers
from kernelmark.workloads.importers import Overrides

ADD = "void add<float, (int)4>(float *, int)"
STARTED = 1_763_236_800
# Kernel, device, start, duration, grid, block.
LAUNCHES = [
    (ADD, 0, 1000, 2000, (8, 1, 1), (256, 1, 1)),
    ("mul", 0, 4000, 500, (8, 1, 1), (256, 1, 1)),
    (ADD, 0, 5000, 3000, (8, 1, 1), (256, 1, 1)),
    (ADD, 0, 9000, 700, (16, 1, 1), (256, 1, 1)),
    (ADD, 1, 9800, 100, (8, 1, 1), (256, 1, 1)),
]
SERIES = [("cuda:0", [500]), ("cuda:0", [700]), ("cuda:0", [2000, 3000]), ("cuda:1", [100])]
HEADER = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
    "DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
)
COPY = (
    "3500,66,2,,,,,,,,,,4.194,63.5,Pinned,Device,NVIDIA H200 (0),1,,7,[CUDA memcpy Host-to-Device]"
)
SUMMARY = (
    "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
    f'92.1,5800,4,1450.0,1350.0,100,3000,1300.0,"{ADD}"\n7.9,500,1,500.0,500.0,500,500,0.0,mul\n'
)
NOTICE = (
    "\nNOTICE: Existing SQLite export found: x.sqlite\n\nProcessing [x.sqlite] with [a.py]... \n"
)


def trace(unit="ns", scale=1.0):
    lines = [HEADER.replace("(ns)", f"({unit})"), COPY]
    for name, device, start, duration, grid, block in LAUNCHES:
        shape = ",".join(map(str, (*grid, *block)))
        lines.append(
            f"{start},{duration * scale:.10g},1,{shape},32,0.000,0.000,,,,,NVIDIA H200 ({device}),"
            f'1,,7,"{name}"'
        )
    return "\n".join(lines) + "\n"


@pytest.fixture
def report(tmp_path):
    def make(text):
        path = tmp_path / "report_cuda_gpu_trace.csv"
        path.write_text(text)
        return path

    return make


@pytest.fixture
def export(tmp_path):
    """An export with these launches; `statements` change it."""

    def make(*statements):
        path = tmp_path / "report.sqlite"
        path.unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        connection.executescript(
            "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT);"
            "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, computeMajor INTEGER,"
            " computeMinor INTEGER);"
            "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,"
            " globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER,"
            " gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER,"
            " graphNodeId INTEGER)"
        )
        names = [(1, ADD), (2, "mul"), (3, "add")]
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
        gpus = [(index, "NVIDIA H200", 9, 0) for index in (0, 1)]
        connection.executemany("INSERT INTO TARGET_INFO_GPU VALUES (?, ?, ?, ?)", gpus)
        connection.execute(
            "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '')", (STARTED * 10**9,)
        )
        for name, device, start, duration, grid, block in LAUNCHES:
            ids = (1, 3) if name == ADD else (2, 2)
            row = (start, start + duration, device, 42 << 24, *ids, *grid, *block, None)
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", row)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()
        return path

    return make


def series(path):
    return sorted(
        (one.device, [round(1e9 * s) for block in one.measurement.blocks for s in block.samples_s])
        for one in importers.read(path, Overrides()).results
    )


def test_an_export_has_the_launches_of_its_trace(export, report):
    assert series(export()) == series(report(trace())) == SERIES
    keys = [
        {one.case.id for one in importers.read(p, Overrides()).results}
        for p in (export(), report(trace()))
    ]
    assert keys[0] == keys[1]


def test_an_export_says_when_and_on_what(export):
    found = importers.read(export(), Overrides())
    assert found.run.started == pytest.approx(STARTED)
    assert {one.arch for one in found.results} == {"sm_90"}
    assert [device.model for device in found.run.environment.devices] == ["NVIDIA H200"] * 2


@pytest.mark.parametrize(
    ("unit", "scale"), [("us", 1e-3), ("μs", 1e-3), ("ms", 1e-6), ("s", 1e-9), ("sec", 1e-9)]
)
def test_times_of_any_unit(report, unit, scale):
    assert series(report(trace(unit, scale))) == SERIES


def test_reports_one_after_the_other(report):
    path = report(NOTICE + SUMMARY + "\n" + NOTICE + trace() + "\n" + NOTICE + SUMMARY)
    assert series(path) == SERIES


def test_a_summary_has_means_and_no_samples(report):
    found = importers.read(report(NOTICE + SUMMARY), Overrides()).results
    assert [one.measurement.median_s for one in found] == pytest.approx([1.45e-6, 5e-7])
    assert all(one.measurement.warnings for one in found)
    assert found[0].measurement.also == pytest.approx(
        {"median_s": 1.35e-6, "min_s": 1e-7, "max_s": 3e-6, "stdev_s": 1.3e-6}
    )
    assert {one.device for one in found} == {"unknown"}


def test_a_summary_by_launch_shape_and_of_2020(report):
    text = SUMMARY.replace(",Name", ",GridXYZ,BlockXYZ,Name")
    text = text.replace(',"void', ',   8    1    1, 256    1    1,"void')
    text = text.replace(",mul", ",   9    1    1, 256    1    1,mul")
    found = importers.read(report(text), Overrides()).results
    assert [one.case.problem.dims["grid_x"] for one in found] == [8, 9]
    head = '"Time(%)","Total Time (ns)","Instances","Average","Minimum","Maximum","Name"'
    (old,) = importers.read(
        report(f'{head}\n100.0,600,2,300.0,200,400,"add"\n'), Overrides()
    ).results
    assert old.measurement.median_s == pytest.approx(3e-7)


def test_the_gpu_that_a_process_means(export):
    """Process 42 sees GPU 1 as its device 0."""
    path = export(
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER)",
        "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (1, 0, 42), (0, 1, 42), (0, 0, 43)",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = 43 << 24 WHERE start = 5000",
    )
    assert series(path) == [
        *(("cuda:0", [3000, 100]), ("cuda:1", [500]), ("cuda:1", [700]), ("cuda:1", [2000]))
    ]


GRAPHS = "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER)"


def test_the_share_of_graphs_is_told(export):
    path = export(GRAPHS, "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (0, 6300)")
    found = importers.read(path, Overrides()).results
    (told,) = importers.notes(found)
    assert (told.code, told.fields["share"]) == ("graphs-untraced", 0.5)
    assert not importers.notes(importers.read(export(GRAPHS), Overrides()).results)
    with pytest.raises(NothingToDo):
        importers.read(
            export(
                *(GRAPHS, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL"),
                "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (0, 6300)",
            ),
            Overrides(),
        )


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM StringIds WHERE id = 2",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 0 WHERE start = 4000",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = NULL WHERE start = 4000",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = NULL",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = NULL",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN gridX",
        "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "DROP TABLE StringIds",
    ],
)
def test_an_export_that_does_not_say_all_is_refused(export, statement):
    with pytest.raises(KernelmarkError) as refused:
        importers.read(export(statement), Overrides())
    assert refused.value.hint


@pytest.mark.parametrize(
    "text",
    [
        trace()[:-4],
        trace()[:-40],
        trace("parsec"),
        trace().replace("(0)", ""),
        trace().replace("8,1,1,256,1,1", ",1,1,256,1,1"),
        HEADER + "\n" + COPY + "\n",
        SUMMARY.replace("Avg (ns)", "Mean (ns)"),
        "Time (%),Total Time (ns),Instances,Avg (ns),Range\n100.0,1,1,1,push\n",
        f"{trace()}\n{trace()}",  # two tables of one report
        f"{SUMMARY}\n{SUMMARY}",
    ],
)
def test_a_report_that_does_not_say_all_is_refused(report, text):
    with pytest.raises(KernelmarkError) as refused:
        importers.read(report(text), Overrides(), "nsys")
    assert refused.value.hint


def test_several_devices_are_not_one(export):
    with pytest.raises(UsageError):
        importers.read(export(), Overrides(device="cuda:0"))


def test_a_summary_of_mpi_events_is_refused(report):
    """Its columns are those of a kernel summary and Source."""
    text = SUMMARY.replace(",Name", ",Source,Name").replace(',"void', ',p2p,"void')
    text = text.replace(",mul", ",collectives,mul")
    with pytest.raises(KernelmarkError):
        importers.read(report(text), Overrides())
    found = importers.read(report(NOTICE + text + "\n" + NOTICE + SUMMARY), Overrides()).results
    assert [one.measurement.median_s for one in found] == pytest.approx([1.45e-6, 5e-7])


def test_two_summaries_of_one_kernel_are_refused(report):
    with pytest.raises(UsageError):
        importers.read(report(SUMMARY + "7.9,900,1,900.0,900.0,900,900,0.0,mul\n"), Overrides())


def test_a_summary_with_a_column_that_is_not_known_is_refused(report):
    lines = SUMMARY.splitlines()
    lines = [f"Proj,{lines[0]}", *(f"1,{line}" for line in lines[1:])]
    with pytest.raises(UsageError):
        importers.read(report("\n".join([*lines, ""])), Overrides())
