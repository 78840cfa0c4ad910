"""Runs in the JSON of other dashboards: one time for each result that has one, with its interval.

bencher                  Bencher Metric Format: latency in nanoseconds by the name of a benchmark
conbench                 bodies of POST /api/benchmark-results/, each to be sent by itself: the
                         medians of blocks in seconds. Results of one device are one run there.
github-action-benchmark  its list for the tool customSmallerIsBetter
pytorch-hud              records of PyTorch's benchmark database (v3): benchmark, model and metric.
                         The upload adds the runner and the commit; maps have strings only.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Measurement, Result, Run, Status
from kernelmark.report.names import backend_text, short, timing_text

Options = Mapping[str, str]

_NS = 1e9
_GITHUB = "https://github.com/"
# The --with options of each format, with help texts.
OPTIONS: Mapping[str, Options] = {
    "conbench": FrozenDict(
        {
            "repository": "URL of the GitHub repository that was measured (required)",
            "commit": "its commit (default: that of the folder in which the run was started)",
        }
    )
}


def timed(results: Sequence[Result], run: Run) -> list[tuple[str, Result, Measurement]]:
    """Return the results that are ok, by unique names: problem and backend, and device and timing
    (of imported results the case) if several results are of both."""
    ok = [r for r in results if r.status is Status.OK]
    names = Counter(map(_name, ok))
    return [
        (
            _name(r)
            if names[_name(r)] == 1
            else f"{_name(r)} · {r.device} · "
            f"{f'{r.arch} case {r.case.id}'.strip() if run.imported else r.case.timing.identity}",
            r,
            r.measurement,
        )
        for r in ok
        if r.measurement is not None
    ]


def _name(result: Result) -> str:
    return f"{short(result.case.problem)} · {backend_text(result.case)}"


def _case(name: str, result: Result, run: Run) -> dict[str, str]:
    """Return the case of an imported result whose name alone is that of several."""
    return {"case": result.case.id} if run.imported and name != _name(result) else {}


def bencher(results: Sequence[Result], run: Run, options: Options) -> dict[str, Any]:
    return {
        name: {
            "latency": {"value": measured.median_s * _NS}
            | ({"lower_value": low, "upper_value": high} if math.isfinite(high) else {})
        }
        for name, _, measured in timed(results, run)
        for low, high in [(measured.low_s * _NS, measured.high_s * _NS)]
    }


def github_action_benchmark(
    results: Sequence[Result], run: Run, options: Options
) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "unit": "ns",
            "value": measured.median_s * _NS,
            "range": f"{low:.6g} to {high:.6g}" if math.isfinite(high) else "unknown",
            "extra": f"device: {result.device}\narch: {result.arch}\n"
            f"timing: {timing_text(result, run)}",
        }
        for name, result, measured in timed(results, run)
        for low, high in [(measured.low_s * _NS, measured.high_s * _NS)]
    ]


def pytorch_hud(results: Sequence[Result], run: Run, options: Options) -> list[dict[str, Any]]:
    return [
        {
            "benchmark": {
                "name": "kernelmark",
                "dtype": next(iter(result.case.problem.dtypes.values()), ""),
                "extra_info": {
                    "timing": timing_text(result, run),
                    "device": result.device,
                    "arch": result.arch,
                    **_case(name, result, run),
                },
            },
            "model": {
                "name": short(result.case.problem),
                "type": result.case.problem.op,
                "backend": backend_text(result.case),
            },
            "metric": {
                "name": "latency_s",
                "benchmark_values": [
                    sample_s for block in measured.blocks for sample_s in block.samples_s
                ],
            },
        }
        for name, result, measured in timed(results, run)
    ]


def conbench(results: Sequence[Result], run: Run, options: Options) -> list[dict[str, Any]]:
    repository = options.get("repository", "")
    if not repository.startswith(_GITHUB):
        raise UsageError(
            "conbench requires the repository that was measured",
            hint=f"--with repository={_GITHUB}ORG/NAME",
        )
    commit = options.get("commit", run.environment.commit)
    return [
        {
            "run_id": f"{run.id} {result.device}",
            "run_tags": {"name": run.label} if run.label else {},
            "batch_id": run.id,
            "timestamp": datetime.fromtimestamp(result.started or run.started, UTC).isoformat(),
            "cluster_info": {
                "name": f"{run.environment.host} {result.device}".strip(),
                "info": {"device": result.device, "arch": result.arch},
                "optional_info": {},
            },
            "stats": {
                "data": [statistics.median(block.samples_s) for block in measured.blocks],
                "unit": "s",
            },
            "tags": {
                "name": result.case.problem.op,
                "problem": result.case.problem.key,
                "backend": backend_text(result.case),
                **_case(name, result, run),
            },
            "context": {"timing": timing_text(result, run)},
            "info": {"kernelmark": run.environment.kernelmark_version},
            "github": {"repository": repository, **({"commit": commit} if commit else {})},
        }
        for name, result, measured in timed(results, run)
    ]


FORMATS: Mapping[str, Callable[[Sequence[Result], Run, Options], Any]] = {
    "bencher": bencher,
    "conbench": conbench,
    "github-action-benchmark": github_action_benchmark,
    "pytorch-hud": pytorch_hud,
}
