"""The pages on the method say what the code does: limits, presets and warnings are compared."""

import dataclasses
import re
from pathlib import Path

import pytest

from kernelmark.api.roofs import MAX_AGE_S
from kernelmark.core.reason import CODES
from kernelmark.core.result import Block, Mode, StopReason, Telemetry
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import PRESETS, Cache, Duty, Strain, Timer, Timing
from kernelmark.devices._gpu import GpuDevice
from kernelmark.devices.base import GUARD_BYTES
from kernelmark.measure import audit, blocks, check, loop, protocol, sets, stop, warmup
from kernelmark.ops.base import SCATTERED
from kernelmark.report import results, summary
from kernelmark.runners import local
from kernelmark.stats import interval
from kernelmark_dev.results import make_measurement, make_result, make_roof, make_set

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("measuring", "measuring-gpu", "checks", "roof", "warnings")
TEXT = "\n".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
SMALL = "gemm m=64 n=64 k=64 dtype=f32"
FLAT = " ".join(TEXT.split())


def rows(name):
    found = re.search(rf"<!-- {name}: .*? -->\n(.*?)<!-- end -->", TEXT, flags=re.DOTALL)
    assert found, f"there is no {name} table"
    lines = found[1].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def percent(share):
    return f"{100 * share:g} %"


def test_the_table_of_presets_is_true():
    """`write-docs --check` compares the whole table; this, that it compares something."""
    told = {row[0].strip("`"): row for row in rows("presets")}
    assert told.keys() == PRESETS.keys()
    for name, timing in PRESETS.items():
        assert told[name][3] == f"± {percent(timing.target_rel_ci)}"


@pytest.mark.parametrize(
    "sentence",
    [
        f"up to {local.SPREAD_S:g} s of them, alternate",
        f"together are {sets.CACHE_FACTOR} times the last-level cache",
        f"No more than {sets.MAX_SETS} sets are made ({sets.MAX_RECORDED_SETS} on a GPU)",
        f"in at most {percent(sets.MEMORY_FRACTION)} of",
        f"Each output has {GUARD_BYTES} guard bytes on both sides",
        f"at least {Timing().allocations} blocks ({PRESETS['full'].allocations} with",
        f"until the last {warmup.WINDOW} readings show no drift beyond {percent(warmup.SETTLED)}",
        f"until that moves by at most {percent(warmup.CLOCK_SETTLED)}",
        f"for at least {percent(warmup.LEAST_SHARE)} of the cap",
        f"about {loop.SAMPLES_PER_BLOCK} to a block ({loop.ENQUEUED_PER_BLOCK} on a GPU), "
        f"at least {Timing().min_samples}",
        f"A block is timed for {stop.SETUP_FACTOR:g} times what setting it up took "
        f"({stop.ENQUEUED_FACTOR:g} times on a GPU)",
        f"block medians, at {percent(interval.LEVEL)}",
        f"after the first look it is computed at {percent(stop.LOOKED_LEVEL)}",
        f"(one on a GPU, {audit._HOST_SINGLE_LAUNCHES} on a CPU)",
        f"in replays of about {audit._REPLAY_S * 1e3:g} ms",
        f"({audit._HOST_LEAST_PAIRS} on a CPU, {audit._LEAST_LONG_PAIRS} of launches over "
        f"{audit._LONG_LAUNCH_S * 1e3:g} ms)",
        f"plus {audit._CLEAR_ERRORS:g} standard errors is at most {percent(audit.CLEAR)}",
        f"more than {percent(audit.GAIN)} of a launch and significant (signed ranks, "
        f"α = {audit.LOOKS.alpha:g} over all looks at {audit.LOOKS.rounds[0]} to "
        f"{audit.LOOKS.last} pairs; at most {audit.LOOKS.rounds[2]} of launches over "
        f"{audit._SHORT_LAUNCH_S * 1e3:g} ms, {audit.LOOKS.rounds[0]} over",
        f"or all up to {audit._ALL_PROJECTED}, must satisfy",
        f"| GPU | {audit.FACTOR:g} × timed + {audit.LATENCY_S * 1e6:g} µs "
        f"| + {audit.REPLAY_S * 1e6:g} µs |",
        f"evicts inputs from the cache | {audit.FACTOR_UNCACHED:g} × timed",
        f"| CPU, cold | {audit.FACTOR:g} × timed | + {audit.HOST_REPLAY_S * 1e6:g} µs |",
        f"| CPU, hot | {audit.FACTOR_UNCACHED:g} × timed | + {audit.HOST_REPLAY_S * 1e6:g} µs |",
        f"So up to {local.MOST_INTERLEAVED} backends or configs of a problem",
        f"with at least {local._INTENSITY:g} FLOPs per byte",
        f"N is repeated up to {audit.MORE_ROUNDS} times",
        f"if the first took more than {audit.FACTOR:g} times the median block",
    ],
)
def test_limits_are_those_of_the_code(sentence):
    assert sentence in FLAT


def test_limits_in_words_are_those_of_the_code():
    assert Timing().min_sample_s == 0.0005  # half a millisecond
    assert protocol.REWARM_FRACTION == 0.1  # a tenth of the block's time
    assert GpuDevice.more_blocks == 1  # one more
    assert stop.ENQUEUED_FRACTION < 1  # shorter ones
    assert Timing().cache is Cache.COLD
    assert {t.min_samples for t in PRESETS.values()} == {Timing().min_samples}
    assert (check.CHECKED_SETS, check.REWRITTEN_SETS) == (4, 16)
    assert SCATTERED == 12
    assert MAX_AGE_S == 7 * 24 * 3600  # a week


@pytest.mark.parametrize("words", [Cache, Strain, Duty, StopReason, Timer])
def test_every_choice_is_explained(words):
    for word in words:
        if str(word) != "none":
            assert f"`{word}`" in TEXT or f" {word}`" in TEXT, f"{word} is not explained"


def block(*samples, **more):
    told = Telemetry(**more)
    return Block(process=0, allocation=0, samples_s=samples, telemetry=told)


def some_warnings():
    """Every warning that the code can make, made."""
    timing = Timing()
    unsettled = warmup.Warmup(
        seconds=0.5, wall_s=0.5, launch_s=1.0, settled=False, method=Timer.LOOP, trace_s=(1, 2, 3)
    )
    wide = interval.Interval(low_s=1.0, high_s=2.0)
    wildly = interval.Interval(low_s=1.0, high_s=9.0)
    one_block = interval.measured_interval([block(1.0, 1.1, 1.2)])
    one_sample = interval.measured_interval([block(1.0)])
    found = [
        *blocks.interval_warnings(wide, 0.02),
        *blocks.interval_warnings(one_block, 0.02),
        *blocks.interval_warnings(one_sample, 0.02),
        *blocks.reliability_warnings([block(1.0), block(9.0)], wildly, 3),
        *blocks.audit_warnings([block(9.0), block(1.0), block(1.0)], [9.0], audit.FACTOR),
        *blocks.data_warnings([0.2]),
        *blocks.warmup_warnings(unsettled, timing),
        *blocks.sample_warnings([block(1.0)], timing, fallbacks=2),
        *blocks.block_warnings([block(1.0, load=1.5)], 2, Duty.SUSTAINED),
        *blocks.block_warnings(
            [block(1.0, clock_mhz=900), block(1.0, clock_mhz=1200)], 2, Duty.SUSTAINED
        ),
        *blocks.block_warnings([block(1.0, throttle=("power",))], 2, Duty.SUSTAINED),
    ]
    big = TensorSpec(name="a", shape=(2**20,), dtype="f32")
    small = sets.plan_sets([big], cache=Cache.COLD, cache_bytes=2**30, free_bytes=2**25)
    found += small.warnings
    return [*found, *above_the_roof(), *multimodal()]


def multimodal():
    """As many rows as are told, and more."""
    modes = (Mode(value_s=1e-6, share=0.5), Mode(value_s=2e-6, share=0.5))
    measurement = make_measurement(1e-6, modes=modes)
    found = [make_result(SMALL, device=f"cpu:{i}", measurement=measurement) for i in range(7)]
    return summary.collect_warnings(results.result_rows(make_set(*found)))


def above_the_roof():
    roof = make_roof("flops", "f32", 1e9, arch="x")
    result = make_result(SMALL, 1e-6, arch="x", flops=10**6)
    told = []
    for found in ((result,), (result, dataclasses.replace(result, device="cpu:1"))):
        told += summary.collect_warnings(results.result_rows(make_set(*found), [roof]))
    return told


def test_every_warning_is_in_the_table_and_nothing_else_is():
    table = {row[0].strip("`"): row[1] for row in rows("warnings")}
    made = [one for one in some_warnings() if one.code in CODES]
    assert {one.code for one in made} == table.keys()
    for one in made:
        shape = re.escape(table[one.code]).replace("…", ".+")
        assert re.fullmatch(shape, one), one.code


@pytest.mark.parametrize("module", [blocks, interval, sets, summary])
def test_no_warning_was_forgotten(module):
    """A warning that is added to the code has to be added to the page and to `some_warnings`."""
    source = Path(module.__file__).read_text(encoding="utf-8")
    errors = {"out-of-memory"}
    known = {one.code for one in some_warnings()} | errors
    assert {code for code in CODES if f'"{code}"' in source} <= known
