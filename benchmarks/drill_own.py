"""Whole files of kernelmark's own, to be damaged: what writes each, and what reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kernelmark.api.results import read_file
from kernelmark.compare.rules import load_rule
from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.metric import Metric, PointColumn
from kernelmark.core.result import ResultSet, Run, Status, check_results
from kernelmark.core.timing import Timing
from kernelmark.testing.micro import micro_result
from kernelmark.tune import plans
from kernelmark.tune.journal import Header, Journal, Trial, read_journal
from kernelmark.workloads import importers, suites, workload
from kernelmark.workloads.importers import Overrides
from kernelmark_dev.tuning import fake_plans

_TABLE = "index,tag,name,M,N,K,dtype,A,B,mean_microseconds,arithmetic_intensity,tflops,ok\n"
_TABLE += "0,one,blas,128,1280,2048,fp16,T,N,13.5,110.1,49.4,True\n"
_PLAN = fake_plans(1)[0]
_HEADER = Header(
    plan="p",
    space="s",
    problem=_PLAN.problem.key,
    backend="fake",
    version="1",
    kernelmark_version="0",
    arch="fake",
    model="a script",
    device="fake",
    pool=2,
    refill=1,
    lag=1,
    starts=({"a": 1},),
)
_TRIAL = Trial(config={"a": 1}, step="short", status=Status.OK, seconds=1e-5, at=1.7e9)
_MICRO = micro_result(
    parameters={"sizes": "4096,8192", "seconds": 0.1},
    started=1.7e9,
    columns=(PointColumn(name="size_bytes", unit="B"), PointColumn(name="bytes_per_s")),
    rows=({"size_bytes": 4096, "bytes_per_s": 3.2e13},),
    metrics=(Metric(name="read", value=3.2e13, unit="B/s", limit=4e13),),
)
# As versions wrote it that had a kind of document for it.
_OLD_MICRO = {
    "kernelmark": "micro",
    "version": 1,
    "benchmark": "cache",
    **dict.fromkeys(("mode", "model", "host", "driver"), ""),
    "threads": 2,
    "parameters": {"sizes": "4096,8192"},
    "compilations": 0,
    **{
        name: value
        for name, value in codec.plain(_MICRO).items()
        if name
        in ("device", "arch", "status", "started", "error", "cost", "columns", "rows", "metrics")
    },
    "trace": [],
    "notes": [],
}


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def _none(read: object) -> None:
    """What was read holds no time."""


def _write_journal(path: Path) -> None:
    journal = Journal(path)
    journal.begin(_HEADER)
    journal.record(_TRIAL)
    journal.close()


def _write_results(path: Path) -> None:
    """A results file of our own, made from one of another tool."""
    other = path.with_name("rocblas-gemm.csv")
    other.write_text(_TABLE)
    found = importers.read(other, Overrides())
    run = Run(id="drill", started=1.0, environment=Environment(), cases=len(found.results))
    document = codec.to_document(ResultSet(run=run, results=(*found.results, _MICRO)))
    path.write_text(json.dumps(document, indent=1))


def _read_results(path: Path) -> Iterator[float]:
    for result in check_results(read_file(str(path))).results:
        for block in result.measurement.blocks if result.measurement else ():
            yield from block.samples_s


# kernelmark's own files: a name, what writes one, and what reads it and returns the times in it.
OWN: dict[str, tuple[str, Callable[[Path], object], Callable[[Path], Iterable[float] | None]]] = {
    "results": ("own.json", _write_results, _read_results),
    "suite": (
        "suite.toml",
        _text(
            'why = "x"\nsource = "y"\ndtype = "f32"\n[[problems]]\nop = "gemm"\n'
            'm = "[64:256:*2]"\nn = 1\nk = [64, 128]\n'
        ),
        lambda path: _none(suites.load(str(path))),
    ),
    "rules": ("rules.toml", _text('rule = "robust"\n'), lambda path: _none(load_rule(str(path)))),
    "timing": (
        "timing.toml",
        _text('preset = "quick"\nmax_s = 0.5\nwarmup_s = 0.1\nprocesses = 2\ncache = "hot"\n'),
        lambda path: (Timing.load(str(path)).max_s,),
    ),
    "plan": (
        f"{_PLAN.name}.toml",
        _text(plans.plan_text(_PLAN)),
        lambda path: _none(plans.read_plan(path)),
    ),
    "journal": (
        "trials.jsonl",
        _write_journal,
        lambda path: [one.seconds for one in read_journal(path)[1] if one.seconds is not None],
    ),
    "workload": (
        "workload.csv",
        lambda path: workload.write(
            path, workload.Workload(name="x", calls=(workload.Call(problem=_PLAN.problem),))
        ),
        lambda path: _none(workload.read(path)),
    ),
    "micro": ("micro.json", _text(json.dumps([_OLD_MICRO], indent=1)), _read_results),
}
