"""Microbenchmarks as cases: the op is the benchmark, its parameters and mode are the problem.

Also reads the documents of older versions: one of kind `micro`, or a list of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.metric import Value, with_spreads
from kernelmark.core.problem import Problem, parse_key
from kernelmark.core.reason import prefixed
from kernelmark.core.result import Case, KernelInfo, Result, ResultSet, Run, RunState
from kernelmark.core.timing import Timing

MICRO = "micro"  # the backend of every microbenchmark
# Suites of the runs of `kmark micro` and `kmark roofs`. No suite file can have such a name.
MICRO_SUITE = "kmark micro"
ROOFS_SUITE = "kmark roofs"
# Metrics that depend on the host as much as on the device, in documents that do not mark them.
_HOST_PACED = {
    "memcpy": ("h2d_pageable", "d2h_pageable"),
    "um-stream": ("migration",),
    "small-kernels": (
        *("plain_empty_ns", "plain_ns", "plain_start_ns", "plain_rate", "round_trip_ns"),
    ),
}
_OLD_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def micro_case(benchmark: str, mode: str, parameters: Mapping[str, Value], threads: int) -> Case:
    """Return the case of a microbenchmark; `threads` is the number of CPU cores, 0 on a GPU."""
    key_words = [benchmark.replace("-", "_"), f"mode={_word(mode)}"]
    key_words += [f"{name.replace('-', '_')}={_word(value)}" for name, value in parameters.items()]
    problem = parse_key(" ".join(key_words))
    return Case(problem=problem, backend=MICRO, timing=Timing(threads=threads))


def is_micro(case: Case) -> bool:
    """Return whether the case is a microbenchmark."""
    return case.backend == MICRO


def benchmark_name(problem: Problem) -> str:
    """Return the user-visible name of the benchmark: l2-cache."""
    return problem.op.replace("_", "-")


def mode_of(problem: Problem) -> str:
    return str(problem.options.get("mode", ""))


def parameters_of(problem: Problem) -> dict[str, Any]:
    """Return the parameters, without the mode."""
    values = {**problem.dims, **problem.dtypes, **problem.options}
    return {name: value for name, value in values.items() if name != "mode"}


def _word(value: Value) -> str:
    """Return a value as a word of a problem key. Text that is not a valid word is replaced by its
    hash: it is enough that different parameters have different keys."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = repr(value) if isinstance(value, float) else str(value)
    try:
        parse_key(f"x y={text}")
    except UsageError:
        return f"x{hashlib.sha256(text.encode('utf-8', 'backslashreplace')).hexdigest()[:12]}"
    return text


def is_old(document: Any) -> bool:
    """Return whether this is a document of an older version: kind `micro`, or a list of them."""
    first = document[0] if isinstance(document, list) and document else document
    return isinstance(first, dict) and first.get("kernelmark") == "micro"


def read_old(document: Any) -> ResultSet:
    """Return the run in a list of `micro` documents. Its id is derived from the contents, so that
    importing it twice adds nothing."""
    from kernelmark.core import codec

    every = document if isinstance(document, list) else [document]
    upgraded_results = [upgraded(item, f"[{number}]") for number, item in enumerate(every)]
    started = min(result.started for _, result in upgraded_results)
    text = "".join(codec.dumps(result) for _, result in upgraded_results)
    tail = hashlib.sha256(text.encode()).hexdigest()[:6]
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(max(0.0, min(started, 2.0**33))))
    return old_run(f"{moment}-{tail}", upgraded_results)


def old_run(run_id: str, environment_results: Iterable[tuple[Environment, Result]]) -> ResultSet:
    """Return a run for results that were stored without one; its environment is taken from
    them."""
    environments, results = zip(*environment_results, strict=True)
    devices = {d.name: d for environment in environments for d in environment.devices}
    ends = [result.started + result.cost.get("total", 0.0) for result in results]
    run = Run(
        id=run_id,
        started=min(result.started for result in results),
        environment=Environment(host=environments[0].host, devices=tuple(devices.values())),
        suite=MICRO_SUITE,
        cases=len(results),
        state=RunState.DONE,
        finished=max(ends),
    )
    return ResultSet(run=run, results=tuple(results))


def upgraded(document: Any, where: str) -> tuple[Environment, Result]:
    """Return the environment and the result in a `micro` document."""
    from kernelmark.core import codec

    fields = codec.open_envelope(document, "micro")

    def take(name: str, default: Any = None) -> Any:
        if name not in fields and default is None:
            raise CodecError(f"{where}: field {name!r} is missing")
        return fields.pop(name, default)

    name, device, mode = (str(take(field)) for field in ("benchmark", "device", "mode"))
    parameters, threads, compilations = take("parameters"), take("threads"), take("compilations")
    host, model, driver = (str(take(field)) for field in ("host", "model", "driver"))
    if not _OLD_NAME.fullmatch(name) or not isinstance(parameters, dict):
        shown = str(parameters)[:40]
        raise CodecError(f"{where}: {name[:40]!r} with {shown} is no microbenchmark")
    kind = device.partition(":")[0]
    cores = threads if kind == "cpu" and isinstance(threads, int) else 0
    try:
        case = micro_case(name, mode, parameters, cores)
    except UsageError as error:
        reason = prefixed(error.message, f"{where}: ")
        raise CodecError(reason, hint=error.hint) from None
    whole = {
        **fields,
        "device": device,
        "case": codec.plain(case),
        "flops": 0,
        "bytes": 0,
        "measurement": None,
        "check": None,
        "kernel": codec.plain(KernelInfo(resources={"compilations": compilations})),
    }
    result = cast(Result, codec.read(whole, Result, where))
    metrics = tuple(
        dataclasses.replace(metric, host_paced=metric.name in _HOST_PACED.get(name, ()))
        for metric in with_spreads(result.metrics, result.columns, result.rows)
    )
    result = dataclasses.replace(result, metrics=metrics)
    info = DeviceInfo(
        name=device, kind=kind, model=model, arch=result.arch, driver=driver, units=max(1, cores)
    )
    return Environment(host=host, devices=(info,)), result
