"""run, load and suites: measure a selection of cases in worker processes, or read a stored run."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelmark import ops
from kernelmark.api.plan import Selection, axis_words, plan
from kernelmark.api.reading import load_timing
from kernelmark.api.results import Results
from kernelmark.api.roofs import RoofMode
from kernelmark.api.running import Conduct, measure
from kernelmark.core.dtype import foreign_dtype
from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, RunState
from kernelmark.core.timing import Timing
from kernelmark.core.units import plain_number
from kernelmark.report.progress import ProgressLines
from kernelmark.runners.events import WAITS, Event, Waiting
from kernelmark.runners.session import OnEvent
from kernelmark.stores import opened
from kernelmark.workloads.suites import Suite
from kernelmark.workloads.suites import load as load_suite

if TYPE_CHECKING:
    from kernelmark.stores import StoreArgument

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
    dtype: Dtypes = None,
    config: Config | None = None,
    timing: str | Timing = "default",
    store: StoreArgument = False,
    label: str = "",
    limit: int | None = None,
    filter: str | None = None,
    canaries: bool = False,
    roofs: RoofMode = "stored",
    timeout_s: float = 300.0,
    progress: bool = False,
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
    config: options of the kernel by name.
    timing: "quick", "default", "full", a TOML file, or a `Timing`.
    store: False, True for the user's store, a path or URL, or an open store.
    label: label of the run.
    filter: keep the problems whose key matches a regular expression.
    limit: keep at most this many problems, a sample over ops, dtypes and sizes.
    canaries: add the canaries, three problems that should never change, to a suite.
    roofs: "stored" reuses roofs of the last week, "fresh" measures them, "none" does without.
    timeout_s: limit for one case.
    progress: write a line to stderr after each case, with the time left. A wait for a locked
        device is always reported.
    on_event: callback for progress events.

    An illegal request raises UsageError before anything runs; a case that fails is a result with
    its status. Ctrl-C raises KeyboardInterrupt after the finished results are stored.
    """
    if not isinstance(progress, bool):
        raise UsageError(
            Reason("argument-type", name="progress", given=repr(progress), wanted="True or False"),
            hint="progress=True writes a line for each case; on_event=f gets the events",
        )
    _check_axes(axes, timing)
    selection = Selection(
        ops=_words(op, "op"),
        problems=(problem,) if isinstance(problem, str) else _words(problem, "problem"),
        suites=_words(suite, "suite"),
        axes=axis_words(axes),
        dtypes=_words(dtype, "dtype"),
        backends=_words(backend, "backend"),
        devices=_words(device, "device"),
        config=_mapping(config or {}),
        filter=filter,
        limit=_whole(limit, "limit"),
        sentinels=canaries or sentinels,
    )
    how = load_timing(timing)
    made = plan(selection, how)
    conduct = Conduct(label=label, roofs=roofs, timeout_s=timeout_s, refuse_config=True)
    with opened(store) as target:
        if progress and on_event is None:
            on_event = ProgressLines(_write_line)
        results = measure(made, conduct=conduct, store=target, on_event=on_event or _report_wait)
    if results.run.state is RunState.INTERRUPTED:
        kept = "" if target is None else f"; run {results.run.id} is stored so far"
        raise KeyboardInterrupt(
            f"interrupted after {len(results)} of {len(made.cases)} cases{kept}"
        )
    return results


def _write_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _report_wait(event: Event) -> None:
    """Report a wait for a locked device, also without `progress`: it may take minutes."""
    if isinstance(event, Waiting) and WAITS.is_due(event.device):
        _write_line(str(event))


def _check_axes(axes: Mapping[str, object], timing: str | Timing) -> None:
    """Raise UsageError, with a hint, for an axis that is a field of `Timing` or a misspelt argument
    of `run`."""
    fields = [field.name for field in dataclasses.fields(Timing)]
    own = inspect.signature(run).parameters
    for name in axes:
        if any(name in ops.registry.get(op).parameters for op in ops.registry.names()):
            continue
        if name.endswith("s") and name[:-1] in own:
            raise UsageError(
                Reason("unknown-name", what="argument", name=name, of="run"),
                hint=f"did you mean {name[:-1]}?",
            )
        if name not in fields:
            continue
        preset = timing if isinstance(timing, str) else "default"
        raise UsageError(
            Reason("timing-field", name=name),
            hint=f'write: timing=km.Timing.preset("{preset}", {name}={axes[name]!r})',
        )


def load(ref: str | os.PathLike[str] = "latest", *, store: StoreArgument = True) -> Results:
    """Return a stored run as `Results`.

    ref: id, label or pinned name of a run, "latest", "latest~1", …, or a file.
    store: path, URL or open store (default: $KERNELMARK_STORE, or the user's store).
    """
    from kernelmark.api.loading import loaded

    with loaded(ref, store) as (results, _):
        return results


def suite(name_or_path: str | os.PathLike[str]) -> Suite:
    """Return a suite by its name, or from a TOML file."""
    return load_suite(os.fspath(name_or_path))


def suites() -> list[str]:
    """Return the names of the suites that come with kernelmark."""
    from kernelmark.workloads.suites import names

    return names()


def _words(given: object, name: str) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str):
        return tuple(word.strip() for word in given.split(",") if word.strip())
    words: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else (given,)
    if name == "dtype":
        words = tuple(foreign_dtype(word) or word for word in words)
    for word in words:
        if not isinstance(word, str):
            raise UsageError(
                Reason("argument-type", name=name, given=repr(word), wanted="text"),
                hint=f'give text or a list of texts, such as {name}="{_EXAMPLES[name]}"',
            )
    return words


def _mapping(config: Config) -> Config:
    if not isinstance(config, Mapping):
        raise UsageError(
            Reason("argument-type", name="config", given=repr(config), wanted="a mapping"),
            hint='write: config={"tile": 64}',
        )
    return config


def _whole(value: int | None, name: str) -> int | None:
    value = plain_number(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(
            Reason("argument-type", name=name, given=repr(value), wanted="a whole number")
        )
    return value
