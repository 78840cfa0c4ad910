"""kmark import, export and delete."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import completing
from kernelmark.cli import options as o
from kernelmark.cli.output import say, stderr_text
from kernelmark.core.errors import KernelmarkError, UsageError, about
from kernelmark.core.units import counted, join_or

if TYPE_CHECKING:
    from kernelmark.core.result import ResultSet
    from kernelmark.workloads.importers import Overrides

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE…",
        help="JSON of 'kmark export' or 'kmark run --json' (- is stdin); or results of other "
        "tools: nvbench and Google Benchmark JSON, hipblaslt-bench output, tritonbench files, "
        "reference CSVs, profiles of ncu, nsys, rocprofv3 and PyTorch. With --workload, call logs "
        "(kmark list logs), one for each process.",
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
        help="Read this format: nvbench, googlebench, hipblaslt-bench, tritonbench, ncu, nsys, "
        "rocprof, torch-trace, triton-autotune, inductor, miopen-find-db or reference-csv; with "
        "--workload, one of kmark list logs. Default: detected.",
    ),
]
Label = Annotated[str, o.option("--label TEXT", FOREIGN, help="Name the run.")]
Backend = Annotated[
    str, o.option("--backend NAME", FOREIGN, help="Name the backend of the results.")
]
Device = Annotated[
    str, o.option("--device DEVICE", FOREIGN, help="Name the device, such as hip:0.")
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
        help="Read call logs, and write the problems and their counts to DIR/workload.csv.",
    ),
]
ListDtype = Annotated[
    str | None,
    o.option(
        "--dtype DTYPE",
        LOGS,
        help="Set the dtype where the file has none. Default: bf16 for lists of sizes.",
    ),
]
KeyNames = Annotated[
    str | None,
    o.option(
        "--key 'OP NAME,…'",
        LOGS,
        help="Name the values of a Triton autotuner's key, and add fixed parameters of the "
        "problem: 'gemm m,n,k tb=t'.",
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
        autocompletion=completing.runs,
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
        help="Write for this library: cublaslt, iree-spec, python, sglang, sglang-moe, vllm, "
        "vllm-moe; not yet run on AMD hardware: aiter, hipblaslt, rocblas, tensile, tunableop.",
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
        "--with NAME=VALUE", WINNERS, help="Set an option of the format (kmark list emitters)."
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
    from kernelmark.api.load import loaded
    from kernelmark.cli.run_output import put_results

    if form is not None:
        from kernelmark.cli.tune_apply import export_winners

        of_runs = (*asked.given, *_given({"--store": store}))
        if of_runs:
            raise UsageError(
                f"{join_or(of_runs)} cannot be combined with --as",
                hint="--as writes winners of a tuning folder, the others write runs",
            )
        return export_winners(ref, form, output=output, base=base, words=words or ())
    of_winners = _given({"-o": output, "--base": base, "--with": words})
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
) -> int:
    """Import runs, results of other tools, or call logs.

    Stored runs do not change. A mean without dispersion is only used by history and by
    threshold rules.

    For example: kmark import bench.json --arch sm_90 --label nightly

    With --workload, convert call logs to the workload of a tuning folder. Calls are
    counted over all lines and files; an unreadable line is reported and skipped.
    """
    _check_machine(device, arch, of_log=workload is not None)
    if workload is not None:
        metadata = {"--label": label, "--backend": backend, "--device": device}
        if given := _given({**metadata, "--started": started, "--store": store}):
            raise UsageError(
                f"{join_or(given)} cannot be combined with --workload",
                hint="leave it out, or leave --workload out, which is for logs of calls",
            )
        from kernelmark.cli.workload import import_workload

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
    if given := _given(of_logs):
        raise UsageError(f"{join_or(given)} needs --workload", hint="add: --workload DIR")
    from kernelmark.stores import open_store
    from kernelmark.workloads.importers import Overrides, iso_time, notes

    when = None if started is None else iso_time(started)
    if started is not None and when is None:
        raise UsageError(f"--started={started!r} is not a date", hint="write: 2024-10-01")
    origin = Overrides(label=label, backend=backend, device=device, arch=arch, started=when)
    # Read all files before storing any: an invalid one leaves the store unchanged.
    found = [_results(file, origin, form) for file in files]
    with open_store(store) as opened:
        for file, result_set in zip(files, found, strict=True):
            say(str(opened.add_result_set(result_set)))
            for note in notes(result_set.results):
                say(f"note: {file}: {note}")
    return 0


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


def _given(options: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(name for name, value in options.items() if value)


@about("import-file")
def _results(file: str, given: Overrides, form: str | None) -> ResultSet:
    """Load the run in a file; raise UsageError if it is a log of calls."""
    from kernelmark.api.load import read_file
    from kernelmark.workloads import importers, logs

    if file == "-":
        return read_file(file, given, form)
    path = _checked_path(file)
    try:
        return read_file(file, given, form)
    except KernelmarkError:
        # A truncated table of results looks like a list of shapes.
        if form is not None or not os.access(path, os.R_OK) or importers.recognized(path):
            raise
        known = logs.recognized(file)
        if known is None:
            raise
        raise UsageError(
            f"{file}: {known} is a format of logs of calls, not of results",
            hint="add: --workload DIR"
            + (f", or for its times: --as {known}" if known in importers.registry.names() else ""),
        ) from None


def _checked_path(file: str) -> Path:
    """Return the path; raise UsageError if it is no file, before any format is tried."""
    path = Path(file).expanduser()
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
        autocompletion=completing.runs,
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
        if not yes and not _is_confirmed([f"{r.id} {r.label}".strip() for r in runs.values()]):
            say("nothing was deleted")
            return 0
        for run_id in runs:
            count = opened.delete_run(run_id)
            if not quiet:
                say(f"deleted run {run_id} with {counted(count, 'result')}")
    return 0


def _is_confirmed(names: list[str]) -> bool:
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
