"""judge: whether a kernel that nobody trusts is right and how fast it is, in a process apart."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelmark import backends, ops
from kernelmark.api.plan import problems_of
from kernelmark.api.selection import Selection
from kernelmark.backends._lineage import own_kernels
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, Run, RunState, Status
from kernelmark.core.timing import Timing
from kernelmark.judge.processes import Templates
from kernelmark.judge.referee import ROUNDS, Question
from kernelmark.judge.referee import judge as judge_one
from kernelmark.judge.tasks import Task, read_task
from kernelmark.judge.verdict import Verdict
from kernelmark.report.results import share
from kernelmark.report.summary import print_line
from kernelmark.runners import targets
from kernelmark.runners.capture import environment
from kernelmark.runners.impossible import flag_impossible, threads_of
from kernelmark.runners.locks import hold_lock
from kernelmark.stores import new_run_id, opened

if TYPE_CHECKING:
    from kernelmark.stores import StoreArgument
    from kernelmark.stores.store import Store

# Trusted backends that a kernel is compared with by default, the first that supports the problem.
REFERENCES = {"cpu": ("numpy",), "cuda": ("cublaslt", "torch"), "hip": ("hipblaslt", "torch")}
OnVerdict = Callable[[Verdict], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdicts on a kernel, one for each problem, and the run that they are stored as; its id
    is empty if nothing was stored."""

    verdicts: tuple[Verdict, ...]
    run_id: str = ""
    traces: tuple[dict[str, Any], ...] = ()  # of a solution, as flashinfer-bench writes them

    @property
    def accepted(self) -> bool:
        """Whether every verdict is `accepted`."""
        return all(verdict.accepted for verdict in self.verdicts)

    def documents(self) -> list[dict[str, Any]]:
        """Return the verdicts as JSON values."""
        return [verdict.document() for verdict in self.verdicts]

    def __str__(self) -> str:
        return "".join(verdict.text() for verdict in self.verdicts)


def judge(
    kernel: str,
    problem: str | Sequence[str] = (),
    *,
    suite: str | Sequence[str] = (),
    reference: str | None = "auto",
    device: str = "cpu",
    config: Config | None = None,
    threads: int = 0,
    rounds: int = ROUNDS,
    timeout_s: float = 60.0,
    seed: str = "",
    workloads: str = "",
    forbid_libraries: bool = False,
    store: StoreArgument = False,
    label: str = "",
) -> Judgement:
    """Judge a kernel file that nobody trusts, in a sandboxed process.

        km.judge("./theirs.py", "gemm m=512 n=512 k=512 dtype=f32")

    problem: problems as text; suite: names or TOML files of suites.
    reference: the backend, or a trusted kernel file, that it is compared with; a trusted file may
        also define the op. "auto" takes the first of numpy (CPU), cuBLASLt or hipBLASLt and torch
        that supports the problem; None compares with nothing.
    device: "cpu", "cuda:0", "hip:0", …
    config: options of the kernel by name.
    threads: threads on a CPU, 0 for all.
    rounds: rounds in which both sides are timed.
    timeout_s: limit for each request to the kernel.
    seed: of an earlier verdict, to repeat it; the kernel must not know it.
    workloads: a file with the workloads of a definition (flashinfer-bench, SOL-ExecBench), which is
        given as reference, and whose solution is the kernel.
    store: False, True for the user's store, a path or URL, or an open store.

    forbid_libraries: refuse calls of numeric libraries, such as a BLAS.

    What the kernel does wrong is in the verdicts; an illegal request raises UsageError.
    """
    selection = Selection.parse(
        problems=(problem,) if isinstance(problem, str) else tuple(problem),
        suites=(suite,) if isinstance(suite, str) else tuple(suite),
        devices=(device,),
        config=config or {},
    )
    with opened(store) as target:
        return judge_selection(
            kernel,
            selection,
            reference=reference,
            threads=threads,
            rounds=rounds,
            timeout_s=timeout_s,
            seed=seed,
            workloads=workloads,
            forbid_libraries=forbid_libraries,
            store=target,
            label=label,
        )


def judge_selection(
    kernel: str,
    selection: Selection,
    *,
    reference: str | None = "auto",
    threads: int = 0,
    rounds: int = ROUNDS,
    timeout_s: float = 60.0,
    seed: str = "",
    workloads: str = "",
    forbid_libraries: bool = False,
    store: Store | None = None,
    label: str = "",
    argv: Sequence[str] = (),
    on_verdict: OnVerdict = lambda verdict: None,
) -> Judgement:
    """Judge a kernel on every problem of a selection; store each verdict as it comes."""
    task = read_task(kernel, reference, workloads)
    if task is not None:
        kernel, reference = task.kernel, task.reference
        if not (selection.problems or selection.ops or selection.suites):
            if not task.workloads:
                raise UsageError(
                    "nothing says which sizes to judge", hint="give --workloads FILE, or -p PROBLEM"
                )
            texts = tuple(text for text, _ in task.workloads)
            selection = dataclasses.replace(selection, problems=texts)
    ref = backends.parse(kernel)
    if ref.file is not None and not ref.file.is_file():
        raise UsageError(f"there is no file {kernel}", hint="a kernel file ends in .py, .cu, .hip")
    if reference is not None and reference != "auto" and backends.is_file(reference):
        backends.find(reference)  # trusted: it may define the op
    info = targets.parse_devices(selection.devices)[0]
    problems = _problems(selection, kernel)
    question = Question(
        kernel=kernel if ref.file is None else str(ref.file),
        problem=problems[0],
        device=info.name,
        config=selection.config,
        threads=threads,
        rounds=rounds,
        limit_s=timeout_s,
        seed=_seed(seed),
        forbid_libraries=forbid_libraries,
    )
    name = own_kernels([ref])[ref.name].name if ref.file is not None else ""
    here = environment([info], [ref.name])
    run = Run(
        id=new_run_id(),
        started=time.time(),
        environment=here,
        label=label,
        argv=tuple(argv),
        cases=len(problems),
    )
    verdicts, traces = [], []
    with _stored_run(store, run), Templates() as templates:
        for problem in problems:
            compared = _reference(reference, problem, info)
            with _locked(info):
                verdict = judge_one(
                    dataclasses.replace(question, problem=problem, reference=compared), templates
                )
            shown = None if compared is None else backends.canonical(compared)
            verdict = dataclasses.replace(verdict, kernel=ref.name, name=name, reference=shown)
            verdict = _against_roofs(verdict, info, here.host, store)
            if store is not None:
                store.add_results(run.id, verdict.results())
            on_verdict(verdict)
            verdicts.append(verdict)
            if task is not None:
                workload = _workload(task, problem)
                traces.append(task.trace(verdict, workload, info.model, here.libraries))
    return Judgement(
        verdicts=tuple(verdicts), run_id="" if store is None else run.id, traces=tuple(traces)
    )


def _workload(task: Task, problem: Problem) -> Mapping[str, Any]:
    """Return the workload that a problem came from, or one that says its sizes."""
    for text, workload in task.workloads:
        if ops.parse(text) == problem:
            return workload
    return {"axes": dict(problem.dims), "inputs": {}, "uuid": problem.key}


def _problems(selection: Selection, kernel: str) -> Sequence[Problem]:
    try:
        return problems_of(selection, Timing())
    except UsageError as error:
        if "unknown op" in str(error.message) and backends.is_file(kernel):
            error.hint = (
                "an op that a kernel file defines needs a trusted file: --reference FILE; the"
                " kernel that is judged cannot define what is right"
            )
        raise


def _seed(text: str) -> bytes:
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        seed = b"?"
    if len(seed) not in (0, 16):
        raise UsageError(f"{text!r} is not a seed", hint="copy the 32 digits of a verdict")
    return seed


def _reference(wanted: str | None, problem: Problem, info: DeviceInfo) -> str | None:
    """Return the trusted backend that a problem's kernel is compared with, or None."""
    if wanted != "auto":
        if wanted is None or wanted == "none":
            return None
        ref = backends.parse(wanted)
        return ref.name if ref.file is None else str(ref.file)
    for name in REFERENCES.get(info.kind, ()):
        backend = backends.find(name)
        if info.kind in backend.device_kinds and backend.available() is None:
            with contextlib.suppress(KernelmarkError):
                if backend.supports(problem, info) is None:
                    return name
    return None


@contextlib.contextmanager
def _locked(info: DeviceInfo) -> Iterator[None]:
    with hold_lock(info, lambda text: print_line(f"waiting for {info.name}, used by {text}")):
        yield


@contextlib.contextmanager
def _stored_run(store: Store | None, run: Run) -> Iterator[None]:
    """With a store, keep a run there that ends with the block."""
    if store is None:
        yield
        return
    store.add_run(run)
    state = RunState.INTERRUPTED
    try:
        yield
        state = RunState.DONE
    finally:
        store.update_run(dataclasses.replace(run, state=state, finished=time.time()))


def _against_roofs(verdict: Verdict, info: DeviceInfo, host: str, store: Store | None) -> Verdict:
    """Refuse what is faster than the device's stored roofs allow; add the share of the roof."""
    if store is None or verdict.measurement is None or not verdict.accepted:
        return verdict
    result = verdict.results()[0]
    threads = threads_of(result, info)
    roofs = store.roofs(host=host, device=info.name, arch=info.arch, threads=threads)
    result = flag_impossible(result, roofs, info)
    if result.status is Status.IMPOSSIBLE:
        return dataclasses.replace(verdict, status=result.status, reason=result.error)
    found = share(result, roofs, info)
    if found is None:
        return verdict
    theirs = verdict.reference_measurement
    way = None
    roof_s = found.value * verdict.measurement.median_s
    if theirs is not None and theirs.median_s > roof_s:
        way = (theirs.median_s - verdict.measurement.median_s) / (theirs.median_s - roof_s)
    return dataclasses.replace(
        verdict, roof_share=found.value, roof_bound=found.bound, way_to_roof=way
    )
