"""Tables of Nsight Compute: the same launches from either page, and what is refused."""

import pytest

from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.workloads import importers
from kernelmark.workloads.importers import Overrides

PREAMBLE = """\
==PROF== Connected to process 42 (/home/me/app)
==PROF== Profiling "add" - 0: 0%....50%....100% - 9 passes
output of the program, "with quotes"
==PROF== Disconnected from process 42
"""
COLUMNS = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
COLUMNS += '"Block Size","Grid Size","Device","CC"'
ADD = "void add<float>(float *, int)"


def launch(number, kernel=ADD, grid="(4096, 1, 1)", device=0, process=42, host="127.0.0.1"):
    cells = (number, process, "app", host, kernel, 1, 7, "(256, 1, 1)", grid, device, "9.0")
    return ",".join(f'"{cell}"' for cell in cells)


# A launch and its time in ns.
LAUNCHES = [
    (launch(0), 4256),
    (launch(1, kernel="mul"), 1000),
    (launch(2), 4384),
    (launch(3, grid="(64, 2, 1)"), 2048),
    (launch(4, device=1), 8000),
]
TIMES = [[1000], [2048], [4256, 4384], [8000]]


def raw(unit="ns", scale=1, form="{:,}"):
    lines = [f'{COLUMNS},"gpu__time_duration.sum","sm__cycles_elapsed.max"']
    lines.append(",".join(['""'] * 11) + f',"{unit}","cycle"')
    lines += [f'{cells},"{form.format(ns * scale)}","7,018"' for cells, ns in LAUNCHES]
    return PREAMBLE + "\n".join(lines) + "\n"


def details(metric="Duration"):
    lines = [
        f'{COLUMNS},"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name",'
        '"Rule Type","Rule Description"'
    ]
    for cells, ns in LAUNCHES:
        sections = "GPU Speed Of Light Throughput"
        lines.append(f'{cells},"{sections}","DRAM Frequency","Ghz","2.59",')
        lines.append(f'{cells},"{sections}","{metric}","us","{ns / 1000:.3f}",')
        lines.append(f'{cells},"{sections}","","","","Bottleneck","INF","Low, ""very"" low"')
        lines.append(f'{cells},"Occupancy","Achieved Occupancy","%","n/a",')
    return PREAMBLE + "\n".join(lines) + "\n==WARNING== See the manual.\n"


@pytest.fixture
def read(tmp_path):
    def read(text, given=None):
        path = tmp_path / "ncu.csv"
        path.write_text(text)
        return importers.read(path, given or Overrides())

    return read


def times_ns(results):
    return sorted(
        [round(1e9 * s) for block in one.measurement.blocks for s in block.samples_s]
        for one in results
    )


@pytest.mark.parametrize(
    "text",
    [
        raw(),
        raw("us", 1e-3, "{:.3f}"),
        raw("ms", 1e-6, "{:.6f}"),
        raw("s", 1e-9, "{:.9f}"),
        raw("nsecond"),
        raw("usecond", 1e-3, "{:.3f}"),
        details(),
        details("gpu__time_duration.sum"),
    ],
)
def test_launches_of_another_kernel_grid_or_device_stay_apart(read, text):
    found = read(text).results
    assert times_ns(found) == TIMES
    assert {one.device for one in found} == {"cuda:0", "cuda:1"}
    assert {one.arch for one in found} == {"sm_90"}
    one = next(one for one in found if times_ns([one]) == [[2048]])
    shape = {"grid_x": 64, "grid_y": 2, "grid_z": 1}
    assert dict(one.case.problem.dims) == shape | {"block_x": 256, "block_y": 1, "block_z": 1}
    assert one.kernel.name == ADD


def test_both_pages_are_one_series_and_processes_are_blocks(read):
    keys = {one.case.id for one in read(raw()).results}
    assert keys == {one.case.id for one in read(details()).results}
    text = raw() + f'{launch(5, process=43)},"4,000","7"\n'
    blocks = [len(one.measurement.blocks) for one in read(text).results]
    assert sorted(blocks) == [1, 1, 1, 2]


def test_a_summary_has_means_and_no_samples(read):
    columns = COLUMNS.removeprefix('"ID",').replace('"Context","Stream",', "")
    row = '"42","app","127.0.0.1","add","(256, 1, 1)","(8, 1, 1)","0","9.0","14",'
    found = read(
        f'{columns},"Invocations","Section Name","Metric Name","Metric Unit","Minimum","Maximum",'
        f'"Average"\n{row}"SOL","Duration","us","4.10","4.50","4.26"\n'
        f'{row}"SOL","Elapsed Cycles","cycle","1","2","1.5"\n'
    ).results
    assert times_ns(found) == [[4260]]
    measured = found[0].measurement
    assert measured.warnings
    assert measured.also == pytest.approx({"min_s": 4.1e-6, "max_s": 4.5e-6})


def test_a_launch_shape_that_is_a_metric(read):
    columns = '"ID","Process ID","Process Name","Host Name","Kernel Name","Kernel Time","Context",'
    columns += '"Stream","Section Name","Metric Name","Metric Unit","Metric Value"'
    row = '"{}","42","app","127.0.0.1","add","2021-May-07 14:54:04","1","7",'
    lines = [columns]
    for number, grid in enumerate(("4,096", "8")):
        lines.append(f'{row.format(number)}"SOL","Duration","usecond","4.26"')
        lines.append(f'{row.format(number)}"Launch Statistics","Grid Size","","{grid}"')
        lines.append(f'{row.format(number)}"Launch Statistics","Block Size","","256"')
    found = read("\n".join(lines) + "\n").results
    assert {one.case.problem.dims["grid_size"] for one in found} == {4096, 8}
    with pytest.raises(UsageError):
        read("\n".join(lines[:2]) + "\n")


@pytest.mark.parametrize(
    "text",
    [
        raw().replace('"4,256"', '"n/a"'),
        raw().replace('"4,256"', '"(!) nan"'),
        raw("cycle"),
        raw().replace("gpu__time_duration.sum", "gpu__time_active.sum"),
        details().replace('"4.256"', '"n/a"'),
        details("Elapsed"),
        details().replace('"Metric Value"', '""'),
        details() + f'{LAUNCHES[0][0]},"SOL","Duration","us","9.00",\n',
        raw() + f'{launch(5, host="other")},"4,000","7"\n',
        raw().replace('"(4096, 1, 1)"', '""'),
        "\n".join(line for line in raw().splitlines() if '"cycle"' not in line) + "\n",
        PREAMBLE,
        # Cut in the middle of a row, and inside quotes.
        raw()[:-20],
        raw()[:-3],
        details().rpartition('"Duration"')[0],
        # Decimal commas.
        raw("us", 1e-3, "{:.3f}").replace("4.256", "4,26"),
        raw().replace("7,018", "13.490.336"),
        raw().replace("4,256", "4.256"),  # ns: 4256 where a dot separates thousands
        details().replace('"2.59"', '"2,59"'),
        raw("us", 1e-3, "{:.3f}").replace("4.256", "4,256"),  # 4256 us, or 4.256 us
    ],
)
def test_what_is_not_exact_is_refused(read, text):
    with pytest.raises(KernelmarkError) as refused:
        read(text)
    assert refused.value.hint


def test_a_last_line_without_an_end_is_doubtful(read):
    found = read(details().removesuffix("\n==WARNING== See the manual.\n")).results
    doubtful = [one for one in found if "may-be-cut" in {w.code for w in one.measurement.warnings}]
    assert [one.device for one in doubtful] == ["cuda:1"]


def test_several_devices_are_not_one(read):
    with pytest.raises(UsageError):
        read(raw(), Overrides(device="cuda:0"))
