"""A profile is the same series from its database and its JSON as from its CSV."""

import copy
import gzip
import json
import sqlite3

import pytest

from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.workloads import importers
from kernelmark.workloads.importers import Overrides
from kernelmark_dev.raising import raises

ADD, FILL = "void add<float>(float*, int)", "__amd_rocclr_fillBufferAligned"
SIZES = [f"{what}_{axis}" for what in ("workgroup", "grid") for axis in "xyz"]
# Kernel, start, end, then the sizes.
LAUNCHES = [
    (ADD, 1000, 3000, 64, 1, 1, 1024, 1, 1),
    (FILL, 4000, 4500, 256, 1, 1, 256, 1, 1),
    (ADD, 5000, 8000, 64, 1, 1, 1024, 1, 1),
    (ADD, 9000, 9700, 64, 1, 1, 2048, 1, 1),
    (ADD, 9800, 9900, 64, 2, 1, 2048, 1, 1),
]


@pytest.fixture
def database(tmp_path):
    """A database with these columns and rows, its kernels a view as in a real one."""

    def make(columns, rows):
        path = tmp_path / "1_results.db"
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as connection:
            connection.execute(f"CREATE TABLE dispatches ({', '.join(columns)})")
            connection.execute("CREATE VIEW kernels AS SELECT * FROM dispatches")
            marks = ", ".join("?" * len(columns))
            connection.executemany(f"INSERT INTO dispatches VALUES ({marks})", rows)
        connection.close()
        return path

    return make


def trace(tmp_path):
    sizes = [f"{name[:-2]}_Size_{name[-1]}".title() for name in SIZES]
    head = ["Kernel_Name", "Start_Timestamp", "End_Timestamp", *sizes]
    lines = [head, *([f'"{name}"', *map(str, rest)] for name, *rest in LAUNCHES)]
    path = tmp_path / "1_kernel_trace.csv"
    path.write_text("".join(",".join(cells) + "\n" for cells in lines))
    return path


def series(path):
    """Times in ns by problem."""
    return {
        result.case.problem.key: [
            round(1e9 * s) for block in result.measurement.blocks for s in block.samples_s
        ]
        for result in importers.read(path, Overrides()).results
    }


def test_a_database_has_the_problems_of_its_csv(database, tmp_path):
    found = series(database(["name", "start", "end", *SIZES], LAUNCHES))
    assert found == series(trace(tmp_path))
    assert sorted(found.values()) == [[100], [500], [700], [2000, 3000]]
    key = next(key for key, times in found.items() if times == [700])
    assert "grid_size_x=2048" in key
    assert "workgroup_size_y=1" in key
    columns = ["id", *reversed(SIZES), "end", "queue", "start", "name"]  # in any order
    rows = [
        (number, *reversed(sizes), end, 0, start, name)
        for number, (name, start, end, *sizes) in enumerate(LAUNCHES)
    ]
    assert series(database(columns, rows)) == found


def test_a_compressed_database_is_read(database):
    path = database(["name", "start", "end", *SIZES], LAUNCHES)
    packed = path.with_name("1_results.db.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert series(packed) == series(path)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(UsageError):
        series(packed)


def test_a_database_without_sizes_goes_by_names(database):
    found = series(database(["name", "start", "end"], [row[:3] for row in LAUNCHES]))
    assert sorted(found.values()) == [[500], [2000, 3000, 700, 100]]
    assert f"kernel name={FILL}" in found
    assert not any("size" in key for key in found)


def test_sizes_that_are_not_known_are_left_out(database):
    rows = [(ADD, 0, 2000, 64, None), (ADD, 3000, 6000, 64, None), (ADD, 7000, 8000, None, None)]
    found = series(database(["name", "start", "end", "workgroup_x", "grid_x"], rows))
    assert sorted(found.values()) == [[1000], [2000, 3000]]
    assert not any("grid_size" in key for key in found)


ENDLESS = """CREATE VIEW kernels AS WITH RECURSIVE one(name, start, end) AS
    (SELECT 'add', 1, 2 UNION ALL SELECT name, start + 1, end + 1 FROM one) SELECT * FROM one"""


@pytest.mark.parametrize("statement", ["CREATE TABLE other (name TEXT)", ENDLESS])
def test_a_database_without_kernels_or_end_is_told(tmp_path, statement):
    path = tmp_path / "1_results.db"
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    with raises(UsageError, str(path)):
        importers.read(path, Overrides())


def test_nanoseconds_since_1970_keep_their_digits(database, tmp_path):
    start = 1_763_236_800_000_000_001
    path = database(["name", "start", "end"], [(ADD, start, start + 1501)])
    assert list(series(path).values()) == [[1501]]
    table = tmp_path / "x_kernel_trace.csv"
    table.write_text(f"Kernel_Name,Start_Timestamp,End_Timestamp\nadd,{start},{start + 1501}\n")
    assert list(series(table).values()) == [[1501]]


@pytest.mark.parametrize(("end", "value"), [(1500, 500), (None, "missing")])
def test_a_launch_of_a_database_that_cannot_be_is_told(database, end, value):
    path = database(["name", "start", "end"], [(ADD, 1000, 1500), (FILL, 2000, end)])
    with raises(UsageError, value, FILL, 2000):
        importers.read(path, Overrides())


COUNTERS = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size",'
    '"Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count",'
    '"SGPR_Count","Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"\n'
)


def counted(dispatch, grid, counter, start, end):
    return (
        f'{dispatch},{dispatch},"Agent 4",1,9,9,{grid},16,"add",64,0,0,8,16,"{counter}",3,'
        f"{start},{end}\n"
    )


def test_a_dispatch_is_one_sample_however_many_counters_it_has(tmp_path):
    path = tmp_path / "1_counter_collection.csv"
    path.write_text(
        COUNTERS
        + counted(1, 1024, "SQ_WAVES", 1000, 3000)
        + counted(1, 1024, "GRBM_COUNT", 1000, 3000)
        + counted(2, 2048, "SQ_WAVES", 4000, 5000)
        + counted(2, 2048, "GRBM_COUNT", 4000, 5000)
    )
    assert sorted(series(path).values()) == [[1000], [2000]]


def test_counters_without_times_are_refused(tmp_path):
    path = tmp_path / "1_counter_collection.csv"
    path.write_text(COUNTERS.replace(',"Start_Timestamp","End_Timestamp"', "") + "1," * 15 + "1\n")
    with pytest.raises(UsageError):
        importers.read(path, Overrides(), "rocprof")


STATS = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("1_hip_api_stats.csv", '"f",1,2,2,100,2,2,0\n'),
        ("1_hsa_api_stats.csv", '"f",1,2,2,100,2,2,0\n'),
        ("1_memory_copy_stats.csv", '"f",1,2,2,100,2,2,0\n'),
        ("1_domain_stats.csv", '"KERNEL_DISPATCH",1,2,2,100,2,2,0\n'),
        ("results.hip_stats.csv", '"f",1,2,2,100,2,2,0\n'),
        ("mine.csv", '"hipFree",1,2,2,100,2,2,0\n'),
        ("mine.csv", '"hsa_queue_create",1,2,2,100,2,2,0\n'),
        ("mine.csv", '"MEMORY_COPY_HOST_TO_DEVICE",1,2,2,100,2,2,0\n'),
        ("mine.csv", '"ncclAllReduce",1,2,2,100,2,2,0\n'),
        ("mine.csv", '"mscclRunAlgo",1,2,2,100,2,2,0\n'),
        ("mine.csv", '"__hipPushCallConfiguration",1,2,2,100,2,2,0\n'),
    ],
)
def test_statistics_of_anything_but_kernels_are_refused(tmp_path, name, row):
    path = tmp_path / name
    path.write_text(STATS + row)
    with pytest.raises(UsageError):
        importers.read(path, Overrides())


def test_statistics_of_kernels_by_any_name(tmp_path):
    for name in ("1_kernel_stats.csv", "results.stats.csv", "mine.csv"):
        path = tmp_path / name
        names_ = ("hip_add", "ncclDevKernel_Generic_4", "ncclKernel_AllReduce", "mscclKernel_Sum")
        path.write_text(STATS + "".join(f'"{one}",1,2,2,100,2,2,0\n' for one in names_))
        assert len(series(path)) == len(names_)


def test_launches_on_several_agents_stay_apart(tmp_path, database):
    path = tmp_path / "1_kernel_trace.csv"
    head = '"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n'
    rows = [f'"KERNEL_DISPATCH","Agent {i}","add",1000,{2000 + i}\n' for i in (4, 5, 4)]
    path.write_text(head + "".join(rows))
    columns = ("name", "start", "end", "agent_abs_index")
    made = database(columns, [("add", 1000, 2000 + i, i) for i in (4, 5, 4)])
    for file in (path, made):
        found = importers.read(file, Overrides()).results
        assert {one.device for one in found} == {"agent:4", "agent:5"}
        assert sorted(len(b.samples_s) for one in found for b in one.measurement.blocks) == [1, 2]
        with pytest.raises(UsageError):
            importers.read(file, Overrides(device="hip:0"))
    path.write_text(head + rows[0])
    assert importers.read(path, Overrides()).results[0].device == "unknown", "as before: it is one"


def test_a_database_numbers_agents_as_the_csv_does(database):
    """rocprofv3's default is --agent-index=relative: nodes that are visible, from 0."""
    columns = ("name", "start", "end", "agent_abs_index", "agent_log_index", "agent_type_index")
    made = database(columns, [("add", 1000, 2000 + i, i + 4, i, i - 2) for i in (2, 3)])
    found = importers.read(made, Overrides()).results
    assert {one.device for one in found} == {"agent:2", "agent:3"}


def test_tables_of_rocprof_compute_go_by_launch_shape_and_gpu(tmp_path):
    """Its pmc_perf.csv has a row for each dispatch, with times averaged over runs."""
    path = tmp_path / "pmc_perf.csv"
    head = "Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size,Kernel_Name,Start_Timestamp,End_Timestamp\n"
    rows = [
        f'{i},{gpu},{grid},256,"copy(double*, int)",1248227792617386.5,1248227792618386.5\n'
        for i, (gpu, grid) in enumerate([(0, 1024), (0, 2048), (1, 1024), (0, 1024)])
    ]
    path.write_text(head + "".join(rows))
    found = importers.read(path, Overrides()).results
    assert sorted((one.device, len(one.measurement.blocks[0].samples_s)) for one in found) == [
        ("agent:0", 1),
        ("agent:0", 2),
        ("agent:1", 1),
    ]
    assert {one.case.problem.dims["grid_size"] for one in found} == {1024, 2048}


AGENTS = [
    {"id": {"handle": 2**63 + node}, "type": 2, "node_id": node, "name": "gfx942"}
    for node in (4, 5)
]
KERNELS = [
    {"kernel_id": 0, "formatted_kernel_name": "", "kernel_name": ""},
    {"kernel_id": 16, "formatted_kernel_name": ADD},
    {"kernel_id": 18, "formatted_kernel_name": FILL},
]


def dispatch(name, start, end, *sizes, node=4, external=0):
    workgroup, grid = (dict(zip("xyz", some, strict=True)) for some in (sizes[:3], sizes[3:]))
    return {
        "kind": 11,
        "start_timestamp": start,
        "end_timestamp": end,
        "correlation_id": {"internal": 1, "external": external},
        "dispatch_info": {
            "agent_id": {"handle": 2**63 + node},
            "kernel_id": 16 if name == ADD else 18,
            "workgroup_size": workgroup,
            "grid_size": grid,
        },
    }


def process(records, counted=()):
    return {
        "metadata": {"pid": 9, "init_time": 1, "fini_time": 2},
        "agents": AGENTS,
        "strings": {"correlation_id": {"external": [{"key": 2**63 + 7, "value": "my range"}]}},
        "kernel_symbols": KERNELS,
        "callback_records": {"counter_collection": [{"dispatch_data": one} for one in counted]},
        "buffer_records": {"kernel_dispatch": list(records), "hip_api": [{"kind": 1}]},
    }


@pytest.fixture
def document(tmp_path):
    def make(*processes):
        path = tmp_path / "1_results.json"
        path.write_text(json.dumps({"rocprofiler-sdk-tool": processes}))
        return path

    return make


def test_json_has_the_problems_of_its_csv(document, tmp_path):
    launches = [dispatch(*row) for row in LAUNCHES]
    for path in (document(process(launches)), document(process([], launches))):
        assert series(path) == series(trace(tmp_path))
    found = importers.read(path, Overrides()).results
    assert {(one.device, one.arch) for one in found} == {("unknown", "gfx942")}


def test_json_of_several_agents_and_processes(document):
    one, other = dispatch(*LAUNCHES[0]), dispatch(*LAUNCHES[0], node=5)
    found = importers.read(document(process([one, other]), process([one])), Overrides()).results
    blocks = {result.device: len(result.measurement.blocks) for result in found}
    assert blocks == {"agent:4": 2, "agent:5": 1}
    made = process([one, other])  # agents are numbered as the CSV does
    made["agents"] = [one | {"logical_node_id": one["node_id"] - 2} for one in AGENTS]
    found = importers.read(document(made), Overrides()).results
    assert {one.device for one in found} == {"agent:2", "agent:3"}


def test_json_of_renamed_kernels(document):
    path = document(process([dispatch(*LAUNCHES[0], external=2**63 + 7)]))
    assert [one.kernel.name for one in importers.read(path, Overrides()).results] == ["my range"]


@pytest.mark.parametrize(
    "broken",
    [
        lambda one: one["kernel_symbols"].pop(),
        lambda one: one["agents"].pop(0),
        lambda one: one["buffer_records"]["kernel_dispatch"][1].pop("end_timestamp"),
        lambda one: one["buffer_records"]["kernel_dispatch"][1].update(end_timestamp=1),
        lambda one: one["buffer_records"]["kernel_dispatch"][1]["dispatch_info"].pop("grid_size"),
        lambda one: one.update(buffer_records=None),
        lambda one: one.update(buffer_records={}),
    ],
)
def test_json_that_does_not_say_all_is_refused(document, broken):
    told = copy.deepcopy(process([dispatch(*row) for row in LAUNCHES]))
    broken(told)
    with pytest.raises(KernelmarkError):
        importers.read(document(told), Overrides())


def test_two_statistics_of_one_kernel_are_refused(tmp_path):
    path = tmp_path / "1_kernel_stats.csv"
    row = '"add",1,2,2,100,2,2,0\n'
    path.write_text(STATS + row + row)
    assert len(series(path)) == 1, "one row, repeated"
    path.write_text(STATS + row + row.replace(",2,2,100", ",4,4,100"))
    with pytest.raises(UsageError):
        importers.read(path, Overrides())


@pytest.mark.parametrize(
    "text",
    [
        '"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"\n"MEMORY_COPY","k",1000,3000\n',
        '"KernelName","BeginNs","EndNs","DurationNs"\n"k",1000,3000,9000\n',
    ],
)
def test_rows_of_something_else_and_contradicting_times_are_refused(tmp_path, text):
    path = tmp_path / "1_kernel_trace.csv"
    path.write_text(text)
    with pytest.raises(UsageError):
        importers.read(path, Overrides())
    path.write_text(text.replace("MEMORY_COPY", "KERNEL_DISPATCH").replace("9000", "2000"))
    assert len(series(path)) == 1
