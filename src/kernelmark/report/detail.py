"""One result in full, as small tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from kernelmark.core.micro import is_micro
from kernelmark.core.reason import NO_REASON
from kernelmark.core.result import Block, Measurement, Result
from kernelmark.core.units import MOST_PERCENT, bytes_text, rate_text, time_text, width_text
from kernelmark.report.micro import metrics_table, points_table
from kernelmark.report.names import config_text, rerun, timing_text
from kernelmark.report.results import ResultRow, share_text
from kernelmark.report.tables import NONE, Column, Table
from kernelmark.stats.interval import modes_text

# Entries of a cost that are no phases: a sum, and times that overlap with the phases.
_NO_PHASE = ("total", "device", "compile_ahead")
_MIN_OTHER_FRACTION = 0.05


def detail(row: ResultRow, *, samples: bool = True, more: Sequence[str] = ()) -> list[Table]:
    """Return tables of the case, its measurement, check, kernel and cost. `samples` adds
    all samples; `more` arguments are appended to the rerun command."""
    result = row.result
    tables = [_facts("case", _what(row, more))]
    if result.metrics:
        tables.append(metrics_table([result], every=True))
    if result.rows and samples:
        tables.append(points_table(result))
    if result.notes:
        tables.append(_facts("notes", [("note", note) for note in result.notes]))
    if result.measurement is not None:
        tables.append(_facts("measurement", _measured(row, result.measurement)))
        tables.append(_blocks(result.measurement))
        if samples:
            tables.append(_samples(result.measurement))
    if result.check is not None:
        tables.append(_facts("check", _checked(result)))
    if not is_micro(result.case):
        tables.append(_facts("kernel", _kernel(result)))
    if result.cost:
        tables.append(_facts("cost (wall time)", _cost(result.cost)))
    return tables


def facts(title: str, pairs: Sequence[tuple[str, str]]) -> Table:
    """Return a table of names and values."""
    return _facts(title, pairs)


def _facts(title: str, pairs: Sequence[tuple[str, str]]) -> Table:
    return Table(
        title=title, columns=(Column(name="what"), Column(name="value")), rows=tuple(pairs)
    )


def _what(row: ResultRow, more: Sequence[str]) -> list[tuple[str, str]]:
    result, timing = row.result, row.result.case.timing
    key = result.case.problem.key
    pairs = [
        # Without spaces a list of sizes cannot be wrapped, and all values move below their names.
        ("problem", key.replace(",", ", ") if is_micro(result.case) else key),
        ("backend", result.case.backend),
        ("config", config_text(result.case.config) or "the backend's own default"),
        ("device", f"{result.device} ({result.arch})"),
        ("timing", timing_text(result, row.run)),
        ("seed", str(timing.seed)),
        ("case", result.case.id),
        ("status", result.status.value),
    ]
    if result.error:
        pairs.append(("reason", result.error))
    again = rerun(result, more)
    return [*pairs, ("again", again)] if again else pairs


def _cost(cost: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the time per phase, and the rest: evictions, idle gaps and time between phases."""
    pairs = [(name, time_text(value)) for name, value in cost.items() if name != "total"]
    if "total" not in cost:
        return pairs
    within = sum(value for name, value in cost.items() if name not in _NO_PHASE)
    other = cost["total"] - within
    if within and other > _MIN_OTHER_FRACTION * cost["total"]:
        pairs.append(("evictions, idle gaps, other", time_text(other)))
    return [*pairs, ("total", time_text(cost["total"]))]


def _measured(row: ResultRow, measured: Measurement) -> list[tuple[str, str]]:
    result = row.result
    interval = f"± {width_text(measured.rel_half_width)}"
    if measured.rel_half_width * 100 <= MOST_PERCENT:  # wider bounds are not plausible times
        bounds = f"{time_text(measured.low_s)} … {time_text(measured.high_s)}"
        interval = f"{bounds} ({interval})"
    pairs = [
        ("median", time_text(measured.median_s)),
        ("95 % interval", interval),
        # User-defined ops may declare neither FLOPs nor bytes.
        ("speed", rate_text(result.flops_per_s, "FLOP/s") if result.flops_per_s else NONE),
        ("traffic", rate_text(result.bytes_per_s, "B/s") if result.bytes_per_s else NONE),
        ("of roof", share_text(row.shown_share)),
        ("stopped", measured.stop.value),
        ("method", f"{measured.method}, launches a sample: {measured.launches}"),
        ("argument sets", f"{measured.sets} of {bytes_text(measured.footprint_bytes)}"),
        ("warm-up", time_text(measured.warmup_s)),
        ("timed", time_text(measured.timed_s)),
    ]
    if row.share is not None:
        pairs.insert(5, ("roof", f"{_roof_text(row)}: {row.share.roof.how_text}"))
    if measured.modes:
        pairs.insert(1, ("modes", modes_text(measured.modes)))
    pairs += [(name, time_text(value)) for name, value in measured.also.items()]
    pairs += [("warning", str(text)) for text in measured.warnings]
    return pairs


def _roof_text(row: ResultRow) -> str:
    roof = row.share.roof if row.share else None
    if roof is None:
        return NONE
    return f"{roof.name} {rate_text(roof.value, 'FLOP/s' if roof.kind == 'flops' else 'B/s')}"


def _blocks(measured: Measurement) -> Table:
    names = ("process", "allocation", "samples", "median", "spread", "clock", "load", "throttle")
    columns = tuple(Column(name=name, align="right") for name in names)
    return Table(title="blocks", columns=columns, rows=tuple(map(_block, measured.blocks)))


def _block(block: Block) -> tuple[str, ...]:
    telemetry = block.telemetry
    spread = NONE
    if len(block.samples_s) > 1:
        middle = block.median_s
        deviation = statistics.median(abs(s - middle) for s in block.samples_s)
        spread = f"{100 * deviation / middle:.2f} %"
    clock = telemetry.clock_mhz if block.clock_mhz is None else block.clock_mhz
    return (
        str(block.process),
        str(block.allocation),
        str(len(block.samples_s)),
        time_text(block.median_s),
        spread,
        NONE if clock is None else f"{clock:.0f} MHz",
        NONE if telemetry.load is None else f"{telemetry.load:.2f}",
        ", ".join(telemetry.throttle) or NONE,
    )


def _samples(measured: Measurement) -> Table:
    rows = [
        (f"{block.process}.{block.allocation}", " ".join(map(time_text, block.samples_s)))
        for block in measured.blocks
    ]
    columns = (Column(name="block"), Column(name="samples"))
    return Table(title="samples", columns=columns, rows=tuple(rows))


def _checked(result: Result) -> list[tuple[str, str]]:
    check = result.check
    if check is None:
        return []
    pairs = [
        ("passed", "yes" if check.passed else "no"),
        ("positions", str(check.positions)),
        ("worst error", f"{check.worst:.3g} of its tolerance"),
        ("largest difference", f"{check.max_abs:.3g}"),
        ("unwritten", str(check.unwritten)),
        ("guards", "intact" if check.guards_intact else "overwritten"),
        *([("rows checked whole", str(check.rows))] if check.rows else []),
        *(
            [("launches on new inputs", f"{check.fresh_ratio:.3f} × those on the same ones")]
            if check.fresh_ratio is not None
            else []
        ),
        *([("faults", ", ".join(check.faults))] if check.faults else []),
    ]
    # Usually the detail is the reason of the result, which the table of the case has.
    known_reasons = (NO_REASON, result.error, result.error.root)
    return pairs if check.detail in known_reasons else [*pairs, ("detail", check.detail)]


def _kernel(result: Result) -> list[tuple[str, str]]:
    kernel = result.kernel
    pairs = [("name", kernel.name or NONE)]
    compiled = time_text(kernel.compile_s) if kernel.compile_s else NONE
    pairs.append(("compiled", f"{compiled}{' (from the cache)' if kernel.cached else ''}"))
    if kernel.binary_hash:
        pairs.append(("binary", kernel.binary_hash))
    pairs += [(name, str(value)) for name, value in kernel.resources.items()]
    pairs += [("config", f"{name}: {text}") for name, text in kernel.configs.items() if text]
    return pairs
