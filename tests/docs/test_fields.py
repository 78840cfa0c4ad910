"""docs/fields.md has every field that commands write, and no other."""

import contextlib
import csv
import io
import json
import platform
import re
from pathlib import Path

import pytest

from kernelmark.cli.main import main
from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.metric import Metric, PointColumn
from kernelmark.core.micro import MICRO_SUITE
from kernelmark.core.reason import Reason
from kernelmark.core.result import (
    Block,
    Case,
    Check,
    Fault,
    KernelInfo,
    Mode,
    ResultSet,
    Status,
    Telemetry,
)
from kernelmark.gpu import pack
from kernelmark.ops import parse
from kernelmark.stores import open_store
from kernelmark.testing.micro import micro_result
from kernelmark.workloads import suites
from kernelmark_dev.results import (
    make_case,
    make_measurement,
    make_result,
    make_roof,
    make_run,
    make_set,
)

PAGE = Path(__file__).parents[2] / "docs" / "fields.md"
SMALL = ("-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32", "-a", "n=8", "-a", "k=8")
FAST = ("--max-s", "0.02", "--warmup-s", "0.01")
LISTS = ("ops", "backends", "suites", "runs", "micro", "dtypes", "logs", "strategies", "emitters")


@pytest.fixture(scope="module")
def page():
    """The type of each field, by section."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"##+ (.*)", line):
            fields = found.setdefault(heading[1], {})
        elif row := re.fullmatch(r"\| `(\w+)` \| (.+?) \| (.*?) \| (.+) \|", line):
            assert row[1] not in fields, line
            fields[row[1]] = row[2]
    return found


def walk(value, section, page, seen):
    """Add the fields of an object, and of all objects in it, to `seen`."""
    assert isinstance(value, dict), (section, value)
    for name, one in value.items():
        kind = page[section].get(name)
        assert kind is not None, f"{section}: {name} is not on the page"
        seen.add((section, name))
        linked = re.search(r"\[(.*)\]\(#", kind)
        if linked is None:
            free = "object of" in kind
            assert free or not any(isinstance(part, dict) for part in flat(one)), (section, name)
        elif kind.startswith("object of"):
            for part in one.values():
                walk_each(part, linked[1], page, seen)
        else:
            walk_each(one, linked[1], page, seen)


def walk_each(value, section, page, seen):
    for one in flat(value):
        if one is not None:
            walk(one, section, page, seen)


def flat(value):
    if isinstance(value, list):
        for one in value:
            yield from flat(one)
    else:
        yield value


MEASURED = make_measurement(
    *[Block(process=0, allocation=0, samples_s=(1e-3, 2e-3), clocks_mhz=(1e3, 1e3))] * 4,
    low_s=1e-3,
    high_s=2e-3,
    warmup_s=0.1,
    timed_s=0.1,
    warnings=(
        Reason("fixed cost", "fixed-cost", samples=2),
        Reason.of("a sentence of an old file"),
    ),
    also={"host_s": 1e-3},
    modes=(Mode(value_s=1e-3, share=0.5), Mode(value_s=2e-3, share=0.5)),
)
CHECK = Check(
    positions=1,
    worst=2.0,
    max_abs=1.0,
    unwritten=0,
    guards_intact=True,
    detail="wrong",
    faults=(Fault.VALUES,),
    rows=1,
    fresh_ratio=1.0,
)
MICRO = micro_result(
    parameters={"samples": 3},
    metrics=(
        Metric(
            name="bytes_per_s",
            value=1.0,
            unit="B/s",
            spread=0.1,
            roof="bytes dram",
            steady=False,
            stand_in=True,
            host_paced=True,
        ),
    ),
    columns=(PointColumn(name="size_bytes", unit="B"),),
    rows=({"size_bytes": 4096},),
    trace=(Telemetry(clock_mhz=1e3),),
    notes=("a note",),
)
# Every optional field has another value than its default.
GPU = DeviceInfo(name="cuda:0", kind="cuda", model="x", arch="sm_90")
FULL = ResultSet(
    run=make_run(
        "full",
        environment=Environment(devices=(GPU,)),
        suite=MICRO_SUITE,
        excluded=True,
        paused_s=1.0,
    ),
    results=(
        make_result(
            make_case("gemm m=8 n=8 k=8 dtype=f32", "x.py", name="x"),
            status=Status.WRONG,
            measurement=MEASURED,
            check=CHECK,
            kernel=KernelInfo(configs={"main": "x"}),
            cost={"compile_ahead": 1.0},  # of GPUs
            error=codec.read_reason({"code": "of-another-version", "fields": {}, "text": "x"}),
        ),
        MICRO,
    ),
    roofs=(make_roof("flops", "f32", 1.0, model="x", steady=False, limit=False),),
)


@pytest.fixture(scope="module")
def kmark(tmp_path_factory):
    """What commands write to stdout, with a store of two runs and microbenchmarks."""
    folder = tmp_path_factory.mktemp("fields")
    pack.add(folder / "bundle", "a", "sm_90", b"code")

    def call(*words):
        out = io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.StringIO()),
            pytest.raises(SystemExit),
        ):
            main(words)
        return out.getvalue()

    with pytest.MonkeyPatch.context() as patch:
        for name in ("STORE", "CACHE", "LOCKS"):
            patch.setenv(f"KERNELMARK_{name}", str(folder / f"{name.lower()}.sqlite"))
        patch.setenv("KERNELMARK_PACK", f"{folder / 'bundle'}:{folder / 'missing'}")
        (folder / "cache.sqlite" / "kernels").mkdir(parents=True)
        # The second run has a failure, whose reason has a code.
        call("run", *SMALL, "-a", "m=8", *FAST, "--label", "one")
        wrong = ("--config", "behaviour=wrong")
        call("run", *SMALL, "-a", "m=8", *FAST, *wrong, "--label", "wrong", "--jobs", "0")
        with open_store(str(folder / "store.sqlite")) as store:
            store.add_result_set(FULL)
            store.add_roofs(FULL.roofs, host=platform.node())
        yield call


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """The option of a store with a step and with a canary that moved in the newest run."""
    place = str(tmp_path_factory.mktemp("nights") / "store.sqlite")
    canary = suites.load("sentinels").problems[0]
    problem = parse("gemm m=7 n=7 k=7 dtype=f32")
    with open_store(place) as store:
        for night in range(25):
            last, library = night == 24, "3.4" if night < 15 else "3.5"
            times = {problem: 1e-3 * (1.3 if night >= 15 else 1.0), canary: 1e-4}
            results = [
                make_result(
                    Case(problem=one, backend="numpy"),
                    arch="aarch64",
                    measurement=timed(time_s * (1.5 if last else 1.0), night),
                    kernel=KernelInfo(binary_hash=library),
                )
                for one, time_s in times.items()
            ]
            environment = Environment(libraries={"triton": library})
            when = {"started": 86400.0 * (night + 1), "environment": environment}
            store.add_result_set(make_set(*results, id=f"night-{night}", **when))
    return "--store", place


def timed(time_s, night):
    """Four blocks that differ a little, from block to block and from night to night."""
    noise = (0.999, 1.0, 1.001, 1.002)
    return make_measurement(*(time_s * one * noise[night % 3] for one in noise))


@pytest.fixture(scope="module")
def sides(kmark, tmp_path_factory):
    """JSON and CSV of `kmark ab`."""
    files = [tmp_path_factory.mktemp("ab") / name for name in ("ab.json", "ab.csv")]
    words = ("--env", "a", "--env", "b", "--rounds", "4", "--alpha", "0.2", "--no-store")
    outputs = ("--json", str(files[0]), "--csv", str(files[1]))
    kmark("ab", *SMALL, "-a", "m=8", *FAST, *words, *outputs)
    return files[0].read_text(encoding="utf-8"), files[1].read_text(encoding="utf-8")


def header(text):
    return next(csv.reader(io.StringIO(text)))


@pytest.fixture(scope="module")
def documents(kmark, nights, sides, tmp_path_factory):
    """JSON values and the section that describes them."""
    found = [("ResultSet", json.loads(kmark("export", name))) for name in ("one", "wrong", "full")]
    found += [("ResultSet", codec.to_document(FULL))]
    found.append(("JSON of kmark ab", json.loads(sides[0])))
    found.append(("JSON of kmark history", json.loads(kmark("history", "--json", "-"))))
    found.append(("JSON of kmark history", json.loads(kmark("history", *nights, "--json", "-"))))
    for base, head in (("14", "15"), ("23", "24")):
        text = kmark("compare", f"night-{base}", f"night-{head}", *nights, "--json", "-")
        found.append(("JSON of kmark compare", json.loads(text)))
    kmark("history", *nights, "--accept", "all", "--reason", "it does more")
    found.append(("JSON of kmark history", json.loads(kmark("history", *nights, "--json", "-"))))
    found.append(("JSON of kmark doctor", json.loads(kmark("doctor", "--json", "-"))))
    broken = tmp_path_factory.mktemp("broken") / "store.sqlite"
    broken.write_text("no database, but words that are long enough")
    unusable = json.loads(kmark("doctor", "--json", "-", "--store", str(broken)))
    found.append(("JSON of kmark doctor", unusable))
    for what in LISTS:
        rows = json.loads(kmark("list", what, "--json", "-"))
        assert len(rows) >= 1, what
        found += [(f"list {what}", row) for row in rows]
    found += [("Device", row) for row in json.loads(kmark("list", "devices", "--json", "-"))]
    found.append(("list ops -o OP", json.loads(kmark("list", "ops", "-o", "gemm", "--json", "-"))))
    for roof in json.loads(kmark("roofs", "--stored", "--json", "-") or "[]"):
        assert (roof.pop("kernelmark"), roof.pop("version")) == ("roof", 1)
        found.append(("Roof", roof))
    return found


def test_every_field_that_is_written_is_on_the_page(page, documents):
    seen = set()
    for section, document in documents:
        walk(document, section, page, seen)
    assert len(seen) > 200


def test_every_field_on_the_page_is_written(page, documents):
    seen = set()
    for section, document in documents:
        walk(document, section, page, seen)
    listed = {(section, name) for section, fields in page.items() for name in fields}
    unseen = {one for one in listed - seen if not one[0].startswith("CSV of ")}
    assert unseen == set()


@pytest.mark.parametrize("kind", ["compare", "history", "ab", "doctor"])
def test_documents_say_what_they_are(documents, kind):
    found = [one for section, one in documents if section == f"JSON of kmark {kind}"]
    assert found
    assert all((one["kernelmark"], one["version"]) == (kind, 1) for one in found)


def test_csv_columns(page, kmark, nights, sides):
    parameters = [*MICRO.case.problem.dims, *MICRO.case.problem.options]
    columns = header(kmark("export", "full", "--csv", "-"))
    assert "samples" in parameters
    assert "param_samples" in columns
    own = {"param_samples", *parameters}
    gemm = FULL.results[0].case.problem
    own |= {*gemm.dims, *gemm.dtypes, *gemm.options}
    common = [name for name in columns if name not in own or name in page["CSV of a run"]]
    assert common == [*page["CSV of a run"]]
    assert header(kmark("history", *nights, "--csv", "-")) == [*page["CSV of kmark history"]]
    compared = kmark("compare", "night-1", "night-2", *nights, "--csv", "-")
    assert header(compared) == [*page["CSV of kmark compare"]]
    points = header(kmark("micro", "show", "full", "--csv", "-"))
    assert points == [*page["CSV of kmark micro"], "size_bytes"]
    assert header(sides[1]) == [*page["CSV of kmark ab"]]


def test_a_missing_field_is_found(page):
    with pytest.raises(AssertionError, match="not on the page"):
        walk({"what": "x", "more": 1}, "Difference", page, set())
    with pytest.raises(AssertionError):
        walk({"what": {"x": 1}}, "Difference", page, set())
