"""`kmark judge`: whether a kernel that nobody trusts is right, and how fast it is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import check_writable, extended, put, say, store_words, write
from kernelmark.core.verdict import NOTHING, SOME_FAILED
from kernelmark.report.names import short

if TYPE_CHECKING:
    from kernelmark.judge.verdict import Verdict
    from kernelmark.stores.store import Store

Kernel = Annotated[
    str,
    typer.Argument(
        metavar="KERNEL",
        help="The kernel file to judge (.py, .cu, .hip), which is not trusted; or a solution of "
        "flashinfer-bench or SOL-ExecBench (.json), or of KernelBench (ModelNew in a .py).",
        show_default=False,
    ),
]
Reference = Annotated[
    str,
    o.option(
        "--reference BACKEND|FILE|none",
        o.MEASUREMENT,
        help="Compare with this backend or kernel file, which is trusted and may define the op; or "
        "with the definition (.json) or task (Model in a .py) that KERNEL solves. "
        "Default: numpy on a CPU, else cublaslt, hipblaslt or torch.",
        complete=o.complete_backends,
        common=True,
    ),
]
Rounds = Annotated[
    int,
    o.option(
        "--rounds N", o.MEASUREMENT, help="Time both sides in so many rounds.", min=6, max=1000
    ),
]
Timeout = Annotated[
    float,
    o.option(
        "--timeout S", o.RUNNING, help="Limit the seconds of a request to the kernel.", min=0.1
    ),
]
Seed = Annotated[
    str,
    o.option(
        "--seed HEX",
        o.MEASUREMENT,
        help="Repeat the judgement with this seed of a verdict, which the kernel must not know.",
    ),
]


ForbidLibraries = Annotated[
    bool,
    o.option(
        "--forbid-libraries",
        o.MEASUREMENT,
        help="Refuse calls of numeric libraries (a BLAS, cuBLAS, cuDNN, …) in the kernel.",
    ),
]
Workloads = Annotated[
    str,
    o.option(
        "--workloads FILE",
        o.SELECTION,
        help="Judge the workloads of this file (.jsonl), of a definition given by --reference.",
    ),
]
Traces = Annotated[
    str,
    o.option(
        "--traces FILE",
        o.OUTPUT,
        help="Append the verdicts on a solution to this file, as traces of flashinfer-bench.",
    ),
]


def judge(
    context: typer.Context,
    *,
    kernel: Kernel,
    selection: Annotated[o.Selection, o.selection_options("devices", "config")],
    reference: Reference = "auto",
    threads: o.Threads = None,
    rounds: Rounds = 12,
    timeout: Timeout = 60.0,
    seed: Seed = "",
    workloads: Workloads = "",
    traces: Traces = "",
    forbid_libraries: ForbidLibraries = False,
    store: o.StorePlace = None,
    no_store: o.NoStore = False,
    label: o.Label = "",
    json_file: o.Json = None,
    quiet: o.Quiet = False,
) -> int:
    """Judge a kernel that nobody trusts, in a sandboxed process (docs/judge.md).

    For example: kmark judge ./theirs.py -p "gemm m=512 n=512 k=512 dtype=f32"

    Exit code: 0 accepted, 3 refused, 4 it supports none of the problems.
    """
    from kernelmark.api.judge import judge_selection

    for file in filter(None, (json_file, traces)):
        check_writable(file)

    def show(verdict: Verdict) -> None:
        if json_file != "-":
            put(verdict.text(short(verdict.problem)))

    with _opened(store, no_store) as target:
        judgement = judge_selection(
            kernel,
            selection,
            reference=reference,
            threads=threads or 0,
            rounds=rounds,
            timeout_s=timeout,
            seed=seed,
            workloads=workloads,
            forbid_libraries=forbid_libraries,
            store=target,
            label=label,
            argv=tuple(context.obj or ()),
            on_verdict=show,
        )
    lines = "".join(json.dumps(trace) + "\n" for trace in judgement.traces)
    if traces == "-":
        put(lines)
    elif traces:
        with Path(traces).open("a", encoding="utf-8") as trace_file:
            trace_file.write(lines)
    if json_file is not None:
        write(json_file, json.dumps(judgement.documents(), indent=1) + "\n")
    if judgement.run_id and not quiet:
        say(f"stored: {extended(f'kmark show {judgement.run_id}', store_words(store))}")
    if judgement.accepted:
        return 0
    unsupported = {verdict.status.value for verdict in judgement.verdicts} == {"unsupported"}
    return NOTHING if unsupported else SOME_FAILED


@contextlib.contextmanager
def _opened(store: str | None, no_store: bool) -> Iterator[Store | None]:
    if no_store:
        yield None
        return
    from kernelmark.stores import open_store

    with open_store(store) as target:
        yield target
