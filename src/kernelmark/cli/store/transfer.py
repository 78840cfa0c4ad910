"""`kmark import`, `kmark export` and `kmark delete`."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.options import complete_runs
from kernelmark.cli.output import check_writable, complain, say, stderr_text, write
from kernelmark.core.errors import KernelmarkError, NothingToDo, StoreError, UsageError, about
from kernelmark.core.files import json_text, user_path
from kernelmark.core.units import counted, join_or
from kernelmark.core.verdict import SOME_FAILED

if TYPE_CHECKING:
    from kernelmark.core.result import ResultSet
    from kernelmark.workloads.importers import Overrides
    from kernelmark.workloads.logs import LogReading, Skips

_REASONS = 8  # maximum reasons printed


def import_workload(
    files: Sequence[str],
    folder: str,
    *,
    form: str | None = None,
    arch: str = "",
    dtype: str = "",
    key: str = "",
    skipped: str | None = None,
    force: bool = False,
) -> int:
    """Read logs, write FOLDER/workload.csv, and print what was read and what was skipped."""
    from kernelmark.core.dtype import dtype as checked
    from kernelmark.tune.folder import TuningFolder
    from kernelmark.workloads import logs
    from kernelmark.workloads.calls import LogOptions

    if skipped is not None:
        check_writable(skipped)
    if dtype:
        checked(dtype)
    name = user_path(folder).absolute().name
    options = LogOptions(arch=arch, dtype=dtype, key=key)
    reading = logs.read(files, name=name, options=options, form=form)
    if skipped is not None:
        write(skipped, _table(reading.skipped))
    tuning_folder = TuningFolder.make(folder)
    logs.save(reading, tuning_folder.workload, arch=arch, force=force)
    _print_notes(reading, arch)
    say(f"written: {tuning_folder.workload}; next: kmark tune summarise {shlex.quote(folder)}")
    return 0


def _print_notes(reading: LogReading, arch: str) -> None:
    workload = reading.workload
    problems = len({call.problem for call in workload.calls})
    formats = dict.fromkeys(name for entry in reading.inputs for name in entry.formats)
    say(
        f"{_many(workload.total, 'call')} of {_many(problems, 'problem')} "
        f"in {_many(len(reading.inputs), 'file')} ({', '.join(formats)})"
    )
    _print_lost(reading)
    again = sum(entry.again for entry in reading.inputs)
    if again:
        say(f"{_many(again, 'call')} logged a second time by another kind of line, counted once")
    _print_copies(reading)
    for item in reading.inputs:
        for note in item.notes:
            say(f"{item.place}: {note}")
    if not arch and _has_shared_f8(reading, formats):
        say("8-bit floats were read as OCP's; if the log is of gfx940 to gfx942: --arch gfx942")
    _print_skipped(reading.skipped)


def _print_copies(reading: LogReading) -> None:
    first: dict[str, str] = {}
    for item in reading.inputs:
        if item.sha256 in first:
            say(f"{first[item.sha256]} and {item.place} hold the same bytes, and both were counted")
        first.setdefault(item.sha256, item.place)


def _print_lost(reading: LogReading) -> None:
    lost: dict[str, int] = {}
    for call in reading.workload.calls:
        for word in call.lost:
            lost[word] = lost.get(word, 0) + call.count
    if lost:
        most = sorted(lost.items(), key=lambda item: (-item[1], item[0]))
        causes = ", ".join(f"{word} ({_many(count, 'call')})" for word, count in most)
        say(f"left out of the problems: {causes}")


def _print_skipped(skips: Skips) -> None:
    groups = skips.groups()
    say(f"{_many(len(skips), 'line')} skipped{':' if groups else ''}")
    for group in groups[:_REASONS]:
        first = group.first[0]
        numbers = ", ".join(str(item.line) for item in group.first if item.file == first.file)
        more = ", …" if group.count > len(group.first) else ""
        say(f"  {group.count:,} × {group.reason} ({first.file}: line {numbers}{more})")
    if len(groups) > _REASONS:
        say(f"  and {len(groups) - _REASONS} other reasons; --skipped FILE writes all")


def _table(skips: Skips) -> str:
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("file", "line", "reason"))
    rows.writerows((skip.file, skip.line, skip.reason) for skip in skips)
    return text.getvalue()


def _has_shared_f8(reading: LogReading, formats: Iterable[str]) -> bool:
    from kernelmark.workloads.blas import SHARED_BY, SHARED_F8

    types = {call.blas.get(f"{name}_type") for call in reading.workload.calls for name in "ab"}
    return bool(SHARED_BY.intersection(formats) and SHARED_F8 & types)


def _many(count: int, noun: str) -> str:
    return counted(count, noun).replace(str(count), f"{count:,}", 1)


Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE…",
        help="JSON of 'kmark export' or 'kmark run --json' (- is stdin); or times of other tools "
        "(kmark list formats). With --workload, call logs (kmark list logs), one for each "
        "process. They may be compressed with gzip.",
    ),
]
FOREIGN = "Files of other tools"
# Other tools may have measured GPUs that kernelmark does not support.
_GPU_ARCH = re.compile(r"(gfx[0-9a-f]{3,4}(:[a-z+-]+)*|sm_[0-9]{2,3}[af]?)\Z")


Form = Annotated[
    str | None,
    o.option(
        "--as FORMAT",
        FOREIGN,
        help="Read this format, one of 'kmark list formats'; with --workload, one of 'kmark list "
        "logs'. Default: detected.",
        common=True,
    ),
]
Label = Annotated[str, o.option("--label TEXT", FOREIGN, help="Name the run.", common=True)]
Backend = Annotated[
    str, o.option("--backend NAME", FOREIGN, help="Name the backend of the results.", common=True)
]
Device = Annotated[
    str, o.option("--device DEVICE", FOREIGN, help="Name the device, such as hip:0.", common=True)
]
Arch = Annotated[
    str, o.option("--arch ARCH", FOREIGN, help="Name the device's architecture, such as gfx942.")
]
Started = Annotated[
    str | None,
    o.option(
        "--started DATE",
        FOREIGN,
        help="Set the date of the run, such as 2024-10-01. Default: the date in the file, else "
        "that of the file.",
    ),
]
LOGS = "Call logs"


WorkloadFolder = Annotated[
    str | None,
    o.option(
        "--workload DIR",
        LOGS,
        common=True,
        help="Read call logs, and write the problems and their counts to DIR/workload.csv.",
    ),
]
ListDtype = Annotated[
    str | None,
    o.option(
        "--dtype DTYPE",
        LOGS,
        help="Set the dtype where the file has none. Default: bf16 for lists of sizes.",
        common=True,
    ),
]
KeyNames = Annotated[
    str | None,
    o.option(
        "--key 'OP NAME,…'",
        LOGS,
        help="Name the values of a Triton autotuner's key, and add fixed parameters of the "
        "problem: 'gemm m,n,k tb=t'; or the four numbers of a list: batch,m,n,k.",
    ),
]
SkippedFile = Annotated[
    str | None,
    o.option("--skipped FILE", LOGS, help="Write every skipped line as CSV; - is stdout."),
]
Force = Annotated[
    bool,
    o.option("--force", LOGS, help="Overwrite a workload that is from other logs or was edited."),
]
WINNERS = "Winners of a tuning folder"


Exported = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        autocompletion=complete_runs,
        help="A run: its id or a prefix of it, a label, latest, latest~1, or an exported JSON "
        "file; "
        "with --as a tuning folder.",
    ),
]
As = Annotated[
    str | None,
    o.option(
        "--as FORMAT",
        WINNERS,
        help="Write a run for bencher, conbench, github-action-benchmark or pytorch-hud; or "
        "winners for this library: cublaslt, iree-spec, python, sglang, sglang-moe, vllm, "
        "vllm-moe; not yet run on AMD hardware: aiter, aiter-tables, hipblaslt, rocblas, tensile, "
        "tunableop.",
    ),
]
Output = Annotated[
    str | None, o.option("-o --output PATH", WINNERS, help="Write this new file or folder.")
]
Base = Annotated[
    str | None,
    o.option(
        "--base PATH",
        WINNERS,
        help="Merge the winners with the files of this folder; -o gets the changed files. Required "
        "for aiter and tensile.",
    ),
]
With = Annotated[
    list[str] | None,
    o.option(
        "--with NAME=VALUE",
        WINNERS,
        help="Set an option of the format (kmark list emitters); for conbench: repository=URL.",
    ),
]


def export(
    *,
    ref: Exported = "latest",
    store: o.StorePlace = None,
    asked: o.Outputs,
    form: As = None,
    output: Output = None,
    base: Base = None,
    words: With = None,
) -> int:
    """Write a run as JSON, CSV or Markdown; or tuned configs.

    The default is JSON to stdout. JSON is lossless and can be imported; CSV has one row
    per result, in seconds and bytes. docs/fields.md explains every field.

    For example: kmark export latest --csv results.csv

    Configs of a tuning folder: kmark export DIR --as python -o tuned.py
    """
    from kernelmark.api.results import loaded
    from kernelmark.cli.measure.run import put_results

    if form is not None:
        from kernelmark.cli.tune.apply import export_winners
        from kernelmark.report import dashboards
        from kernelmark.tune.install.emitters.base import parse_options

        if form in dashboards.FORMATS and not asked.any:
            options = parse_options(form, dashboards.OPTIONS.get(form, {}), words or ())
            with loaded(ref, store) as (results, _):
                named = dashboards.timed(results, results.run)
                if not named:
                    raise NothingToDo(
                        f"run {results.run.id} has no ok result with a time: nothing was written",
                        hint=f"'kmark show {results.run.id}' says why",
                    )
                document = dashboards.FORMATS[form](results, results.run, options)
                write(output or "-", json_text(document))
                if missing := len(results) - len(named):
                    say(f"note: left out: {counted(missing, 'result')} without an ok time")
            return 0

        of_runs = (*asked.file_options, *_options_in_use({"--store": store}))
        if of_runs:
            raise UsageError(
                f"{join_or(of_runs)} cannot be combined with --as",
                hint="--as writes winners of a tuning folder, the others write runs",
            )
        return export_winners(ref, form, output=output, base=base, words=words or ())
    of_winners = _options_in_use({"-o": output, "--base": base, "--with": words})
    if of_winners:
        raise UsageError(f"{join_or(of_winners)} needs --as", hint="name a format: --as python")
    outputs = asked if asked.any else o.Outputs(json="-")
    with loaded(ref, store) as (results, _):
        put_results(results, outputs, table=False)
    return 0


def import_results(
    files: Files,
    workload: WorkloadFolder = None,
    form: Form = None,
    label: Label = "",
    backend: Backend = "",
    device: Device = "",
    arch: Arch = "",
    started: Started = None,
    dtype: ListDtype = None,
    key: KeyNames = None,
    skipped: SkippedFile = None,
    force: Force = False,
    store: o.StorePlace = None,
    quiet: o.Quiet = False,
) -> int:
    """Import runs, results of other tools, or call logs.

    Stored runs do not change. Of several files, those that cannot be read are reported
    and skipped, with exit code 3. A mean without dispersion is only used by history and by
    threshold rules.

    For example: kmark import bench.json --arch sm_90 --label nightly

    With --workload, convert call logs to the workload of a tuning folder. Calls are
    counted over all lines and files; an unreadable line is reported and skipped.
    """
    _check_machine(device, arch, of_log=workload is not None)
    if workload is not None:
        metadata = {"--label": label, "--backend": backend, "--device": device}
        if option_names := _options_in_use({**metadata, "--started": started, "--store": store}):
            raise UsageError(
                f"{join_or(option_names)} cannot be combined with --workload",
                hint="leave it out, or leave --workload out, which is for logs of calls",
            )

        return import_workload(
            files,
            workload,
            form=form,
            arch=arch,
            dtype=dtype or "",
            key=key or "",
            skipped=skipped,
            force=force,
        )
    of_logs = {"--dtype": dtype, "--key": key, "--skipped": skipped, "--force": force}
    if option_names := _options_in_use(of_logs):
        raise UsageError(f"{join_or(option_names)} needs --workload", hint="add: --workload DIR")
    from kernelmark.stores import open_store
    from kernelmark.workloads.importers import Overrides, iso_time, notes

    when = None if started is None else iso_time(started)
    if started is not None and when is None:
        raise UsageError(f"--started={started!r} is not a date", hint="write: 2024-10-01")
    origin = Overrides(label=label, backend=backend, device=device, arch=arch, started=when)
    imported = 0
    with contextlib.ExitStack() as stack:
        opened = None
        for file in files:
            try:
                result_set = _results(file, origin, form)
                # Opened for the first readable file: an unreadable one makes no store.
                opened = opened or stack.enter_context(open_store(store))
                outcome = opened.add_result_set(result_set)
            except KernelmarkError as error:
                of_file = not isinstance(error, StoreError) or error.message.code == "run-differs"
                if len(files) == 1 or not of_file:
                    raise
                complain(error.message, error.hint)
                continue
            imported += 1
            if not quiet:
                say(str(outcome))
                for note in notes(result_set.results):
                    say(f"note: {file}: {note}")
    if not imported:
        raise UsageError(f"none of {len(files)} files could be imported")
    return 0 if imported == len(files) else SOME_FAILED


def _check_machine(device: str, arch: str, *, of_log: bool) -> None:
    """Refuse names that are not devices or GPUs: they would start separate series. A log's GPU must
    be known, because its dtypes are needed."""
    from kernelmark import devices
    from kernelmark.gpu.architectures import absent

    kind, colon, index = device.partition(":")
    kinds = devices.registry.names()
    if device and (kind not in kinds or (colon and not re.fullmatch("[0-9]+", index))):
        raise UsageError(
            f"{device!r} is not a device",
            hint=f"write a kind and a number, as hip:0; kinds: {', '.join(kinds)}",
        )
    if of_log and arch:
        absent(arch)
    elif arch.startswith(("gfx", "sm")) and not _GPU_ARCH.match(arch):
        raise UsageError(
            f"{arch!r} is not a GPU architecture", hint="write, for example: gfx942, sm_90"
        )


def _options_in_use(options: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(name for name, value in options.items() if value)


@about("import-file")
def _results(file: str, overrides: Overrides, form: str | None) -> ResultSet:
    """Load the run in a file; raise UsageError if it is a log of calls."""
    from kernelmark.api.results import read_file
    from kernelmark.workloads import importers, logs

    if file == "-":
        return read_file(file, overrides, form)
    path = _checked_path(file)
    try:
        return read_file(file, overrides, form)
    except KernelmarkError:
        # A truncated table of results looks like a list of shapes.
        if form is not None or not os.access(path, os.R_OK) or importers.recognized(path):
            raise
        log_format = logs.recognized(file)
        if log_format is None:
            raise
        if log_format in importers.registry.names():
            raise UsageError(
                f"{file} has calls of {log_format}, and no times that can be read",
                hint=f"import the calls: --workload DIR; --as {log_format} says why",
            ) from None
        raise UsageError(
            f"{file}: {log_format} is a format of logs of calls, not of results",
            hint="add: --workload DIR",
        ) from None


def _checked_path(file: str) -> Path:
    """Return the path; raise UsageError if it is no file, before any format is tried."""
    path = user_path(file)
    if path.is_dir():
        hint = f"name the files in it: {file.rstrip('/')}/*"
        raise UsageError(f"{file} is a folder, not a file", hint=hint)
    if not path.exists():
        raise UsageError(
            f"there is no file {file}",
            hint="look at its spelling; 'kmark import --help' says which files can be read",
        )
    return path


Refs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN…",
        autocompletion=complete_runs,
        help="Runs by id or a prefix of it, label, pinned name or latest.",
    ),
]
Yes = Annotated[bool, o.option("-y --yes", help="Delete without asking.")]


def delete(refs: Refs, yes: Yes = False, store: o.StorePlace = None, quiet: o.Quiet = False) -> int:
    """Delete runs with all their results.

    For example: kmark delete 20261117-031840

    To only hide a run from history: kmark history --exclude RUN
    """
    from kernelmark.core.result import RunState
    from kernelmark.runners import locks
    from kernelmark.stores import open_store

    with open_store(store) as opened:
        # Resolve all before deleting any: after the first deletion, `latest` is another run.
        runs = {run.id: run for run in map(opened.run, refs)}
        for run in runs.values():
            if locks.current_state(run) is RunState.RUNNING:
                raise UsageError(f"run {run.id} is still running", hint="interrupt it first")
        if not yes and not is_confirmed([f"{r.id} {r.label}".strip() for r in runs.values()]):
            say("nothing was deleted")
            return 0
        for run_id in runs:
            count = opened.delete_run(run_id)
            if not quiet:
                say(f"deleted run {run_id} with {counted(count, 'result')}")
    return 0


def is_confirmed(names: list[str]) -> bool:
    """Ask on the terminal; the end of input (Ctrl-D) means no."""
    if not sys.stdin.isatty():
        raise UsageError("deleting cannot be undone: nothing was deleted", hint="confirm by --yes")
    try:
        question = stderr_text(f"delete {', '.join(names)}? [y/N]:", spare=2)  # for " y"
        return typer.confirm(question, show_default=False, prompt_suffix=" ", err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, EOFError):
            return False
        raise
