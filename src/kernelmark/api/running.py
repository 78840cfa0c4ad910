"""Measure a plan: capture the environment, get the roofs, run the workers, store the results."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelmark.api.folders import remember_folder
from kernelmark.api.plan import Plan
from kernelmark.api.reading import check_name
from kernelmark.api.results import Results
from kernelmark.api.roofs import RoofMode, roofs_for_plan, stored_roofs
from kernelmark.backends._lineage import remember
from kernelmark.core.errors import KernelmarkError, StoreError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Run
from kernelmark.runners.capture import environment, overridden_variables
from kernelmark.runners.events import Note
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.locks import hold_run_locks
from kernelmark.runners.session import OnEvent, run_cases
from kernelmark.stores import new_run_id

if TYPE_CHECKING:
    from kernelmark.stores.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """Settings of a run that do not change what is measured."""

    label: str = ""
    roofs: RoofMode = "stored"
    timeout_s: float = 300.0
    compile_timeout_s: float = 600.0
    jobs: int | None = None
    retry_failed: bool = False
    refuse_config: bool = False  # raise if every case refuses a name in its config
    repository: str = ""  # its commit is recorded; by default that of the working folder

    def __post_init__(self) -> None:
        check_name(self.label)


def measure(
    plan: Plan,
    *,
    conduct: Conduct | None = None,
    store: Store | None = None,
    argv: Sequence[str] = (),
    on_event: OnEvent | None = None,
    resumed: Run | None = None,
) -> Results:
    """Measure and check every case of the plan; with a store, save each result when it ends.
    `resumed` is a run to continue. An interrupted run returns the results so far."""
    conduct = conduct or Conduct()
    notify = on_event or (lambda event: None)
    names = [info.name for info in plan.devices]
    runner = LocalRunner(
        names,
        timeout_s=conduct.timeout_s,
        compile_timeout_s=conduct.compile_timeout_s,
        jobs=conduct.jobs,
    )
    try:
        here = environment(names, plan.backends, repository=conduct.repository)
        cpus = [info.name for info in plan.devices if info.kind == "cpu"]
        for name, (given, used) in overridden_variables(cpus).items():
            text = f"{name}={given} is overruled: workers have {used}; --threads sets their number"
            notify(Note(text=text))
        roofs = roofs_for_plan(plan, store, conduct.roofs, lambda text: notify(Note(text=text)))
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
            argv=tuple(argv),
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
                error.hint = Reason("free-space-and-resume", run=run_id)
        raise
