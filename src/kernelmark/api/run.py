"""run, load and suites: measure a selection of cases in worker processes, or read a stored run."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelmark import ops
from kernelmark.api.plan import Plan, plan
from kernelmark.api.results import Results, check_name, load_timing
from kernelmark.api.roofs import NO_ROOFS, RoofMode, RunRoofs, roofs_for_plan, stored_roofs
from kernelmark.api.selection import Selection, format_axes
from kernelmark.backends._lineage import remember
from kernelmark.core.dtype import foreign_dtype
from kernelmark.core.errors import KernelmarkError, StoreError, UsageError
from kernelmark.core.files import write_whole
from kernelmark.core.result import Config, Run, RunState
from kernelmark.core.timing import Timing
from kernelmark.core.units import plain_number
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import private_folder
from kernelmark.report.summary import NotebookBar, ProgressLines, in_notebook, print_line
from kernelmark.runners import places
from kernelmark.runners.capture import environment, overridden_variables
from kernelmark.runners.events import WAITS, Event, Note, Waiting
from kernelmark.runners.local import Interleave, LocalRunner
from kernelmark.runners.locks import hold_run_locks
from kernelmark.runners.session import OnEvent, run_cases
from kernelmark.stores import new_run_id, opened
from kernelmark.workloads.suites import Suite
from kernelmark.workloads.suites import load as load_suite

if TYPE_CHECKING:
    from kernelmark.stores import StoreArgument
    from kernelmark.stores.store import Store

_EXAMPLES = {
    "op": "gemm",
    "problem": "gemm m=512 n=512 k=512 dtype=f32",
    "suite": "demo",
    "dtype": "f32",
    "backend": "numpy",
    "device": "cpu",
}
Words = str | Sequence[str] | None
Dtypes = object  # names, or dtypes of NumPy, ml_dtypes or torch


def run(
    op: Words = None,
    *,
    problem: Words = None,
    suite: Words = None,
    backend: Words = None,
    device: Words = "cpu",
    runner: str = "local",
    dtype: Dtypes = None,
    config: Config | None = None,
    timing: str | Timing = "default",
    threads: int | None = None,
    store: StoreArgument = False,
    label: str = "",
    limit: int | None = None,
    filter: str | None = None,
    canaries: bool = False,
    roofs: RoofMode = "stored",
    interleave: Interleave = "auto",
    timeout_s: float = 300.0,
    progress: bool | None = None,
    on_event: OnEvent | None = None,
    sentinels: bool = False,  # the old name of `canaries`
    **axes: object,
) -> Results:
    """Measure an op over axes, a suite, or single problems, in worker processes.

        km.run("gemm", m=[256, 512], n=512, k=512, dtype="f32", backend=["numpy", "torch"])
        km.run("gemm", …, timing=km.Timing.preset("quick", max_s=2, target_rel_ci=0.02))

    op, axes: op and its dims and options; a list of values gives one problem for each.
    problem: problems as text, such as "gemm m=512 n=512 k=512 a=f32".
    suite: names or TOML files of suites; `op` then filters them.
    backend: backends or kernel files (default: all that support the problems).
    dtype: names such as "f32", or dtypes of NumPy, ml_dtypes or torch.
    device: "cpu", "cuda:0", "hip:0", …, or several.
    runner: "local", or the Ray cluster whose devices are meant: "ray", "HOST:PORT".
    config: options of the kernel by name.
    timing: "quick", "default", "full", a TOML file, or a `Timing`.
    threads: threads on a CPU, 0 for all (default: that of the timing, where it is all).
    store: False, True for the user's store, a path or URL, or an open store.
    label: label of the run.
    filter: keep the problems whose key matches a regular expression.
    limit: keep at most this many problems, a sample over ops, dtypes and sizes.
    canaries: add the canaries, three problems that should never change, to a suite.
    roofs: "stored" reuses roofs of the last week, "fresh" measures them, "none" does without.
    interleave: "yes" measures the backends of a problem by turns; "auto" does so on
        a GPU if the problem may be compute-bound, and on a CPU with all cases, block by block.
    timeout_s: limit for one case.
    progress: write a line to stderr after each case, with the time left; in a notebook, where it
        is the default, draw a bar. A wait for a locked device is always reported.
    on_event: callback for progress events.

    An illegal request raises UsageError before anything runs; a case that fails is a result with
    its status. Ctrl-C raises KeyboardInterrupt after the finished results are stored.
    """
    if not isinstance(progress, bool | None):
        raise UsageError(
            f"progress={progress!r} is not True or False",
            hint="progress=True writes a line for each case; on_event=f gets the events",
        )
    _check_axes(axes, timing)
    selection = Selection.parse(
        ops=_texts(op, "op"),
        problems=(problem,) if isinstance(problem, str) else _texts(problem, "problem"),
        suites=_texts(suite, "suite"),
        axes=format_axes(axes),
        dtypes=_texts(dtype, "dtype"),
        backends=_texts(backend, "backend"),
        devices=_texts(device, "device"),
        config=_mapping(config or {}),
        filter=filter,
        limit=_whole(limit, "limit"),
        canaries=canaries or sentinels,
    )
    chosen_timing = load_timing(timing)
    if threads is not None:
        chosen_timing = dataclasses.replace(chosen_timing, threads=threads)
    with contextlib.ExitStack() as stack:
        stack.enter_context(places.opened(runner, print_line))
        cases = plan(selection, chosen_timing)
        target = stack.enter_context(opened(store))
        conduct = Conduct(
            label=label,
            roofs=roofs_for_plan(cases, target, roofs),
            timeout_s=timeout_s,
            interleave=interleave,
            refuse_config=True,
        )
        if progress is not False and on_event is None and in_notebook():
            on_event = NotebookBar()
        elif progress and on_event is None:
            on_event = ProgressLines(print_line)
        results = measure(cases, conduct=conduct, store=target, on_event=on_event or _report_wait)
    if results.run.state is RunState.INTERRUPTED:
        kept = "" if target is None else f"; run {results.run.id} is stored so far"
        raise KeyboardInterrupt(
            f"interrupted after {len(results)} of {len(cases.cases)} cases{kept}"
        )
    return results


def _report_wait(event: Event) -> None:
    """Report a wait for a locked device, also without `progress`: it may take minutes."""
    if isinstance(event, Waiting) and WAITS.is_due(event.device):
        print_line(str(event))


def _check_axes(axes: Mapping[str, object], timing: str | Timing) -> None:
    """Raise UsageError, with a hint, for an axis that is a field of `Timing` or a misspelt argument
    of `run`."""
    fields = [field.name for field in dataclasses.fields(Timing)]
    own = inspect.signature(run).parameters
    for name in axes:
        if any(name in ops.registry.get(op).parameters for op in ops.registry.names()):
            continue
        if name.endswith("s") and name[:-1] in own:
            raise UsageError(f"unknown argument {name!r} of run", hint=f"did you mean {name[:-1]}?")
        if name not in fields:
            continue
        preset = timing if isinstance(timing, str) else "default"
        raise UsageError(
            f"{name} is a field of the timing, not an argument of run",
            hint=f'write: timing=km.Timing.preset("{preset}", {name}={axes[name]!r})',
        )


def suite(name_or_path: str | os.PathLike[str]) -> Suite:
    """Return a suite by its name, or from a TOML file."""
    return load_suite(os.fspath(name_or_path))


def suites() -> list[str]:
    """Return the names of the suites that come with kernelmark."""
    from kernelmark.workloads.suites import names

    return names()


def _texts(argument: object, name: str) -> tuple[str, ...]:
    """Return the texts of an argument: one, several, or several separated by commas."""
    if argument is None:
        return ()
    if isinstance(argument, str):
        return tuple(text.strip() for text in argument.split(",") if text.strip())
    texts: tuple[Any, ...] = tuple(argument) if isinstance(argument, Iterable) else (argument,)
    if name == "dtype":
        texts = tuple(foreign_dtype(text) or text for text in texts)
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(
                f"{name}={text!r} is not text",
                hint=f'give text or a list of texts, such as {name}="{_EXAMPLES[name]}"',
            )
    return texts


def _mapping(config: Config) -> Config:
    if not isinstance(config, Mapping):
        raise UsageError(f"config={config!r} is not a mapping", hint='write: config={"tile": 64}')
    return config


def _whole(value: int | None, name: str) -> int | None:
    value = plain_number(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(f"{name}={value!r} is not a whole number")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """Settings of a run that do not change what is measured."""

    label: str = ""
    argv: tuple[str, ...] = ()  # the command line that is recorded
    roofs: RunRoofs = NO_ROOFS
    timeout_s: float = 300.0
    compile_timeout_s: float = 600.0
    jobs: int | None = None
    interleave: Interleave = "auto"
    retry_failed: bool = False
    refuse_config: bool = False  # raise if every case refuses a name in its config
    problems: int | None = None  # of a resumed run, read only the results of so many, and failures
    repository: str = ""  # its commit is recorded; by default that of the working folder

    def __post_init__(self) -> None:
        check_name(self.label)


def measure(
    plan: Plan,
    *,
    conduct: Conduct | None = None,
    store: Store | None = None,
    on_event: OnEvent | None = None,
    resumed: Run | None = None,
) -> Results:
    """Measure and check every case of the plan; with a store, save each result when it ends.
    `resumed` is a run to continue. An interrupted run returns the results so far."""
    conduct = conduct or Conduct()
    notify = on_event or (lambda event: None)
    runner = LocalRunner(
        [info.name for info in plan.devices],
        timeout_s=conduct.timeout_s,
        compile_timeout_s=conduct.compile_timeout_s,
        jobs=conduct.jobs,
        interleave=conduct.interleave,
    )
    try:
        here = environment(plan.devices, plan.backends, repository=conduct.repository)
        cpus = [info for info in plan.devices if info.kind == "cpu"]
        for name, (value, used) in overridden_variables(cpus).items():
            text = f"{name}={value} is overruled: workers have {used}; --threads sets their number"
            notify(Note(text=text))
        roofs = conduct.roofs.complete(lambda text: notify(Note(text=text)))
    except KeyboardInterrupt:
        kept = "nothing was stored" if resumed is None else f"run {resumed.id} is as it was"
        raise KeyboardInterrupt(f"interrupted before the first case; {kept}") from None
    remember(plan.own)
    if resumed is None:
        run = Run(
            id=new_run_id(),
            started=time.time(),
            environment=here,
            label=conduct.label,
            suite=plan.suite,
            argv=conduct.argv,
            cases=len(plan.cases),
        )
        if store is not None:
            remember_folder(run.id)
    else:
        run = resumed
    locked = [run.id] if store is not None else []
    with hold_run_locks(locked), _resume_hint(run.id, store):
        result_set = run_cases(
            run=run,
            cases=plan.cases,
            runner=runner,
            store=store,
            on_event=on_event,
            resume=resumed is not None,
            retry_failed=conduct.retry_failed,
            refuse_config=conduct.refuse_config,
            roofs=roofs,
            problems=conduct.problems,
        )
    if resumed is not None and store is not None:
        roofs = stored_roofs(store, result_set)  # a resumed run keeps the roofs of its start
    return Results(result_set, roofs=roofs, notes=plan.notes)


@contextlib.contextmanager
def _resume_hint(run_id: str, store: Store | None) -> Iterator[None]:
    """If the disk gets full, add the command that resumes the run, if that is stored."""
    try:
        yield
    except StoreError as error:
        if store is not None and error.message.code == "store-disk-full":
            with contextlib.suppress(KernelmarkError):
                store.run(run_id)
                error.hint = (
                    f"free some space, then: kmark run --resume {run_id}; what was stored before"
                    " is intact"
                )
        raise


_MOST_RUNS = 1000  # the latest ones are kept


def remember_folder(run_id: str) -> None:
    """Store the working folder of a run. A failure to write is ignored: it only matters if the run
    is resumed from another folder."""
    folders = {**_load_folders(), run_id: str(Path.cwd())}
    with contextlib.suppress(OSError):
        private_folder(_folders_path().parent)
        write_whole(_folders_path(), json.dumps(dict(list(folders.items())[-_MOST_RUNS:])).encode())


def folder_of(run_id: str) -> Path | None:
    """Return the folder that a run was started in; None if it is not in the cache."""
    folder = _load_folders().get(run_id)
    return None if folder is None else Path(folder)


def _folders_path() -> Path:
    return cache_root() / "folders.json"


def _load_folders() -> dict[str, str]:
    try:
        folders = json.loads(_folders_path().read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(folders, dict):
        return {}
    return {name: folder for name, folder in folders.items() if isinstance(folder, str)}
