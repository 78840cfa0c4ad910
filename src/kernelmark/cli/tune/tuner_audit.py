"""`kmark audit`: measure the choices of other tuners against the default and alternatives."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.compare.ab import (
    Alpha,
    ComparedOptions,
    Delta,
    Device,
    jobs_for,
    reporter,
    round_timing,
    rule_of,
)
from kernelmark.cli.output import put_table, say
from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unreadable, read_whole
from kernelmark.core.units import counted
from kernelmark.core.verdict import INTERRUPTED

if TYPE_CHECKING:
    from kernelmark.api.tuner_audit import Contest, TunedFile
    from kernelmark.tune.recorded.audited import AuditPlan, AuditReport
    from kernelmark.tune.recorded.base import AuditFacts

AUDIT = "Audit"
_STYLES = {
    **dict.fromkeys(("failed", "slower than default", "beaten"), "red"),
    **dict.fromkeys(("unsure", "not measured"), "dim"),
    "best": "green",
}

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE…", help="Files of a tuner: caches, configs or logs.")
]
Form = Annotated[
    str, o.option("--as FORMAT", AUDIT, help="Read the files in this format. Default: detected.")
]
KernelName = Annotated[
    str,
    o.option(
        "--kernel FILE.py|BACKEND",
        AUDIT,
        help="Measure with this kernel file, or backend, the rows of a tuner whose file has no "
        "kernel: triton-autotune, triton-log, flashinfer, helion.",
        common=True,
    ),
]
KeyNames = Annotated[
    str,
    o.option(
        "--key 'OP NAME,… NAME=VALUE'",
        AUDIT,
        help="Name the values of an autotuner's key: --key 'gemm m,n,k tb=t'; of helion, the "
        "whole problem.",
        common=True,
    ),
]
Values = Annotated[
    list[str] | None,
    o.option(
        "--with NAME=VALUE,…",
        AUDIT,
        help="Add parameters of the problems that the file lacks: k=4096,top_k=8. Repeatable.",
        common=True,
    ),
]
Alternatives = Annotated[
    int,
    o.option(
        "--alternatives N",
        AUDIT,
        help="Compare each choice with N configs besides the default: those that the tuner timed, "
        "else some of the backend's space, drawn by --seed.",
        common=True,
    ),
]
Processes = Annotated[
    str,
    o.option(
        "--processes N,N,…",
        AUDIT,
        help="Test for a verdict after these numbers of fresh processes; stop after the last.",
        common=True,
    ),
]
LogFile = Annotated[
    list[Path] | None,
    o.option(
        "--log FILE",
        AUDIT,
        help="Prove by this log of the framework, or list of kernel names, that rows are used. "
        "Repeatable.",
        common=True,
    ),
]
Stable = Annotated[
    Path | None,
    o.option(
        "-o --output FILE",
        o.OUTPUT,
        help="Write the file with stable choices: changed only where another is proven faster.",
        common=True,
    ),
]


def audit(
    *,
    files: Files,
    form: Form = "",
    kernel: KernelName = "",
    key: KeyNames = "",
    values: Values = None,
    device: Device = "cpu",
    alternatives: Alternatives = 4,
    processes: Processes = "10,16,24,32",
    alpha: Alpha = 0.01,
    delta: Delta = 0.01,
    timing: Annotated[o.TimingChoice, o.timing_options("min_samples")],
    log: LogFile = None,
    output: Stable = None,
    timeout: o.Timeout = 300.0,
    jobs: o.Jobs = None,
    dry_run: o.DryRun = False,
    outputs: o.Outputs,
    quiet: o.Quiet = False,
) -> int:
    """Judge the choices of other tuners; exit 1 on a slow one.

    Measures every choice in a file of Triton, inductor, TunableOp, vLLM, SGLang, aiter,
    FlashInfer or Helion alternately with the default and with alternatives, in fresh
    processes: its regret, ties, rows slower than the default, and how often a tuner would
    choose otherwise. Rows that cannot be measured are listed with the reason.

    For example: kmark audit E=128,N=192,device_name=NVIDIA_H200.json --with k=4096,top_k=8
    -d cuda:0 -o stable.json

    Or: kmark audit matmul.autotune.json --kernel matmul.py --key 'gemm m,n,k' -d cuda:0
    """
    from kernelmark.api import tuner_audit
    from kernelmark.runners.targets import find
    from kernelmark.tune.recorded.audited import AuditPlan

    compared = ComparedOptions(
        selection=o.Selection(), timing=timing, rounds=processes, alpha=alpha, delta=delta
    )
    info = find(device)[1]
    plan = AuditPlan(
        device=info.name,
        facts=_facts(key, kernel, values),
        format=form,
        alternatives=_at_least_none(alternatives),
        rule=rule_of(compared),
        timing=round_timing(timing),
        timeout_s=timeout,
        jobs=jobs_for(jobs, info.kind),
        log="\n".join(map(_text, log or ())),
    )
    if output is not None and len(files) > 1:
        raise UsageError(
            f"-o writes one file, and {len(files)} are audited", hint="audit them one by one"
        )
    read = [tuner_audit.read_file(path, plan) for path in files]
    if output is not None:
        _check_output(output, read[0])
    contested = {str(file.path): tuner_audit.contests(file.rows, plan) for file in read}
    if dry_run:
        return _preview(contested)
    report = _measured(read, plan, contested, quiet=quiet)
    _put(report, outputs, quiet=quiet)
    if output is not None and report.code != INTERRUPTED:
        _write(output, read[0], report)
    return report.code


def _facts(key: str, kernel: str, values: list[str] | None) -> AuditFacts:
    from kernelmark import backends
    from kernelmark.core.immutable import FrozenDict
    from kernelmark.tune.recorded.base import AuditFacts

    pairs = {}
    for word in o.comma_list(values):
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise UsageError(f"--with {word!r} is not NAME=VALUE", hint="as --with k=4096,top_k=8")
        pairs[name] = value
    name = backends.parse(kernel).name if kernel else ""
    return AuditFacts(key=key, kernel=name, values=FrozenDict(pairs))


def _at_least_none(alternatives: int) -> int:
    if alternatives < 0:
        raise UsageError(
            f"--alternatives must be at least 0, not {alternatives}",
            hint="0 compares each choice with the default only",
        )
    return alternatives


def _text(path: Path) -> str:
    try:
        return read_whole(path.expanduser()).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(
            file_unreadable(path, error), hint="--log takes a log of the framework, or a profile"
        ) from None


def _check_output(output: Path, file: TunedFile) -> None:
    """Raise UsageError before measuring if the stable file cannot be written."""
    from kernelmark.api.tuner_audit import stable_text
    from kernelmark.tune.folder import check_writable
    from kernelmark.tune.recorded.audited import AuditPlan, AuditReport

    stable_text(file, AuditReport(plan=AuditPlan(), rows=()))
    check_writable(output.expanduser())


def _preview(contested: dict[str, list[Contest]]) -> int:
    from kernelmark.report.tables import NONE, Column, tabulate

    every = [contest for contests in contested.values() for contest in contests]
    columns = (
        Column("row", text=lambda contest: contest.row.label),
        Column("choice", text=lambda contest: contest.row.recorded),
        Column("contenders", text=lambda contest: str(len(contest.contenders)), align="right"),
        Column("not measured, because", text=lambda contest: contest.reason or NONE),
    )
    put_table(tabulate(columns, every))
    pairs = sum(len(contest.contenders) for contest in every)
    say(f"{counted(len(every), 'row')}, {counted(pairs, 'pair')} to measure")
    return 0


def _measured(
    files: list[TunedFile], plan: AuditPlan, contested: dict[str, list[Contest]], *, quiet: bool
) -> AuditReport:
    from kernelmark.api import tuner_audit
    from kernelmark.cli.compare.ab import expected

    pairs = tuner_audit.ab_plan([each for rows in contested.values() for each in rows], plan)
    with contextlib.ExitStack() as stack:
        notify = None
        if pairs.pairs:
            if not quiet:
                say(expected(pairs))
            notify = stack.enter_context(reporter(pairs, quiet=quiet))
        return tuner_audit.audit(files, plan, contested=contested, on_event=notify)


def _put(report: AuditReport, outputs: o.Outputs, *, quiet: bool) -> None:
    from kernelmark.report import tuner_audit as made

    if not outputs.stdout_taken:
        rows = made.sorted_rows(report)
        put_table(
            made.audit_table(report), styles=[_STYLES.get(row.verdict.value, "") for row in rows]
        )
    outputs.put(
        json=lambda: made.to_json(report),
        csv=lambda: made.to_csv(report),
        md=lambda: made.to_md(report),
    )
    if report.code == INTERRUPTED:
        say("interrupted: rows without a verdict are unsure, and no file is written")
    if not quiet:
        say(made.summary(report))
        for note in made.notes(report):
            say(f"note: {note}")


def _write(output: Path, file: TunedFile, report: AuditReport) -> None:
    from kernelmark.api.tuner_audit import stable_text
    from kernelmark.tune.folder import write_whole

    write_whole(output.expanduser(), stable_text(file, report))
    changed = sum(row.is_changed for row in report.rows)
    say(f"{output}: {counted(changed, 'choice')} changed, {len(report.rows) - changed} kept")
