"""A night: set-up, runs, two-stage judgement, summary, push, site, messages, retention; and
nightly.toml, which says what is measured, how it is judged, and who is notified.

Unknown keys and wrong types are refused before anything runs.

Finished steps are recorded in a state file, and runs in progress in the store, so that the same
command after a reboot repeats no finished work. A lock prevents two nights of one file at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import fcntl
import json
import os
import platform
import re
import subprocess
import time
import types
import typing
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernelmark.api import retention
from kernelmark.api.plan import Plan, plan
from kernelmark.api.roofs import DeviceRoofs, known_roofs, measure_roofs, roofs_for_plan
from kernelmark.api.run import Conduct, measure
from kernelmark.api.selection import Selection
from kernelmark.api.suspects import Doubt, Judged, Rules, confirm_paired, confirm_repeated, judge
from kernelmark.backends import BackendRef
from kernelmark.compare import alarms
from kernelmark.compare.alarms import LEAST
from kernelmark.compare.history import MIN_EFFECT
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.files import json_text, load_toml, user_path, write_whole
from kernelmark.core.immutable import FrozenDict, flags
from kernelmark.core.metric import Roof
from kernelmark.core.result import Run, RunState
from kernelmark.core.timing import Timing
from kernelmark.core.units import counted
from kernelmark.core.verdict import SOME_FAILED
from kernelmark.host.cache import digest
from kernelmark.host.permissions import make_folder
from kernelmark.host.processes import last_line, own_command, run_child
from kernelmark.report.changes import comment, ranked
from kernelmark.report.tables import date_text
from kernelmark.runners.session import OnEvent
from kernelmark.runners.targets import find
from kernelmark.stores import new_run_id
from kernelmark.workloads.suites import CANARIES

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

T = TypeVar("T")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?\Z")
_DOCS = "docs/nightly.md explains the file"
WHEN = ("alarm", "change", "always")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """[setup]: shell commands to run before measuring; a failure ends the night."""

    commands: tuple[str, ...] = ()
    timeout_s: float = 3600.0


# Keys of a [[run]] table that are fields of a Selection.
_SELECTED = ("suites", "backends", "devices", "dtypes", "filter", "limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """[[run]]: what to measure on each of the devices. `selected` are texts for fields of a
    Selection: kernel files and backends are looked up when their turn comes, since a table that
    cannot be measured must not stop the others."""

    selected: Mapping[str, Any]
    timing: str = "default"
    processes: int = 0  # fresh processes per case; 0: as in the timing

    @property
    def suites(self) -> tuple[str, ...]:
        return tuple(self.selected["suites"])

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.selected.get("devices", ("cpu",)))

    def load_timing(self) -> Timing:
        return Timing.load(self.timing, **({"processes": self.processes} if self.processes else {}))

    def load_backends(self) -> tuple[BackendRef, ...]:
        """Return the backends that the table names."""
        return Selection.parse(backends=list(self.selected.get("backends", ()))).backends

    def select(self, device: str, canary_suite: str) -> Selection:
        """Return what is measured on one device; canaries of kernelmark's own suite are added."""
        usual = canary_suite == CANARIES
        extra = canary_suite and not usual and canary_suite not in self.suites
        suites = [*self.suites, *([canary_suite] if extra else ())]
        texts = {**self.selected, "suites": suites, "devices": [device]}
        return Selection.parse(**texts, canaries=usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """[canaries]: how to distinguish changes of the machine from changes of the code. With `roofs`,
    every night measures the device's roofs, and reports those that moved by more than
    `roof_limit`."""

    suite: str = CANARIES
    roofs: bool = False
    roof_limit: float = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """[judge]: how many nights to consider, what is suspect, and how to confirm suspects."""

    nights: int = 60
    suspect: float = LEAST
    min_effect: float = MIN_EFFECT
    baseline: str = ""
    fail_on: tuple[str, ...] = ()
    repeats: int = 5  # fresh processes per suspect, if there is no base to compare with
    budget_s: float = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """[base]: what suspects are compared with: a fixed environment (`python`, `set`), or, with
    `repo`, the commit before the change, checked out and built."""

    python: str = ""
    set: Mapping[str, str] = field(default_factory=FrozenDict)
    repo: str = ""
    build: str = ""
    build_timeout_s: float = 3600.0

    @property
    def is_configured(self) -> bool:
        return bool(self.python or self.set or self.repo)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """[notify]: who is notified, and when: at an alarm, at any change, or always. A webhook `$NAME`
    is read from that environment variable, which keeps the secret out of the file."""

    when: str = "alarm"
    webhook: str = ""
    mail_to: tuple[str, ...] = ()
    mail_from: str = ""
    sendmail: str = "/usr/sbin/sendmail"
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """[keep]: retention in days; 0 keeps everything. Results older than `samples` keep one time per
    block; runs older than `runs` are deleted, except one per week and pinned ones."""

    samples: int = 0
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nightly:
    """The contents of the file at `path`."""

    name: str
    run: tuple[RunTable, ...]
    store: str = ""
    state: str = ""
    summary: str = ""
    push: str = ""
    site: str = ""
    resume_h: float = 12.0
    setup: Setup = field(default_factory=Setup)
    canaries: Canaries = field(default_factory=Canaries)
    judge: Judge = field(default_factory=Judge)
    base: Base = field(default_factory=Base)
    notify: Notify = field(default_factory=Notify)
    keep: Keep = field(default_factory=Keep)
    path: Path = field(default=Path(), metadata={"own": True})

    @property
    def folder(self) -> Path:
        """The folder that commands run in, and that paths in the file are relative to."""
        return self.path.parent

    @property
    def state_folder(self) -> Path:
        return self.folder / (self.state or f"{self.path.stem}.state")


def load(path: str | os.PathLike[str]) -> Nightly:
    """Load and check a nightly file."""
    resolved = user_path(path).absolute()
    document = load_toml(
        resolved,
        missing="examples/nightly/nightly.toml is one to begin with",
        hint="see docs/nightly.md",
        shown=str(path),
    )
    nightly = dataclasses.replace(_read(document, Nightly, str(path)), path=resolved)
    return _checked(nightly, str(path))


def expanded(text: str) -> str:
    """Return the environment variable that `$NAME` refers to; other texts unchanged."""
    match = _VARIABLE.match(text)
    if match is None:
        return text
    value = os.environ.get(match[1], "")
    if not value:
        raise UsageError(f"the variable {match[1]} is not set", hint="nightly.toml names it")
    return value


def _checked(nightly: Nightly, file: str) -> Nightly:
    from kernelmark.api.results import check_name
    from kernelmark.compare import alarms

    if not nightly.run:
        raise UsageError(f"{file}: [[run]] is missing", hint='[[run]]\n  suites = ["smoke"]')
    check_name(nightly.name, f"{file}: name")
    if nightly.notify.when not in WHEN:
        raise UsageError(
            f"{file}: notify.when = {nightly.notify.when!r} is unknown",
            hint=f"known: {', '.join(WHEN)}",
        )
    for text in (nightly.notify.webhook, nightly.push):
        expanded(text)  # raises for an unset variable, before hours of measuring
    if nightly.judge.fail_on:
        alarms.parse(nightly.judge.fail_on)
    limits = {
        "resume_h": nightly.resume_h,
        "setup.timeout_s": nightly.setup.timeout_s,
        "judge.nights": nightly.judge.nights,
        "judge.suspect": nightly.judge.suspect,
        "judge.min_effect": nightly.judge.min_effect,
        "judge.repeats": nightly.judge.repeats,
        "judge.budget_s": nightly.judge.budget_s,
        "canaries.roof_limit": nightly.canaries.roof_limit,
    }
    for name, value in limits.items():
        if value <= 0:
            raise UsageError(f"{file}: {name} = {value:g} must be positive")
    for name in ("samples", "runs"):
        if (days := getattr(nightly.keep, name)) < 0:
            raise UsageError(f"{file}: keep.{name} = {days} is not a whole number of at least 0")
    if nightly.base.build and not nightly.base.repo:
        raise UsageError(
            f"{file}: base.repo is missing", hint='base.build is for a repository: base.repo = "."'
        )
    if nightly.notify.mail_to and not nightly.notify.mail_from:
        raise UsageError(f"{file}: notify.mail_from is missing", hint="mail needs a sender")
    return nightly


def _read(table: object, kind: type[T], file: str, key: str = "") -> T:
    """Return a dataclass from a TOML table; `key` is the table's key in the file."""
    if not isinstance(table, dict):
        raise UsageError(f"{file}: {key} is not a table", hint="write its keys below [name]")
    prefix = f"{key}." if key else ""
    keys, required = _keys(kind)
    for name in table:
        if name not in keys:
            close = difflib.get_close_matches(name, keys, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(
                f"{file}: {prefix}{name} is unknown", hint=f"{meant}known: {', '.join(keys)}"
            )
    for name in required:
        if name not in table:
            raise UsageError(f"{file}: {prefix}{name} is missing", hint=_DOCS)
    values = {
        name: _value(value, keys[name], file, f"{prefix}{name}") for name, value in table.items()
    }
    if kind is RunTable:
        values["selected"] = {name: values.pop(name) for name in _SELECTED if name in values}
    return kind(**values)


def _keys(kind: type) -> tuple[dict[str, Any], list[str]]:
    """Return the type of each key of a table, and the keys that are required."""
    hints = typing.get_type_hints(kind)
    shown = [field for field in dataclasses.fields(kind) if "own" not in field.metadata]
    keys = {field.name: hints[field.name] for field in shown}
    empty = dataclasses.MISSING
    required = [f.name for f in shown if f.default is empty and f.default_factory is empty]
    if kind is RunTable:
        declared = flags(Selection)
        texts = {name: declared[name].takes for name in _SELECTED}
        texts = {name: tuple[str, ...] if kind is list else kind for name, kind in texts.items()}
        keys, required = {**texts, **keys}, ["suites"]
        del keys["selected"]
    return keys, required


def _value(value: Any, hint: Any, file: str, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _read(value, hint, file, key)  # type: ignore[arg-type]
    origin = typing.get_origin(hint)
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        if not isinstance(value, list):
            raise _wrong(value, file, key, "[…]")
        return tuple(_value(item, inner, file, key) for item in value)
    if origin is Mapping or origin is types.MappingProxyType or hint is Mapping:
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise _wrong(value, file, key, '{ NAME = "value" }')
        return FrozenDict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise _wrong(value, file, key, {str: '"text"', int: "3", float: "0.5", bool: "true"}[hint])
    return value


def _wrong(value: object, file: str, key: str, example: str) -> UsageError:
    return UsageError(f"{file}: {key} cannot be {value!r}", hint=f"for example: {example}")


_VERSION = 1
_COMMAND_TIMEOUT_S = 3600.0
_MOST_MOVERS = 5  # in a message
_LOOKED_AT = 50  # newest runs that are searched for the run of a step

Tell = Callable[[str], None]
Reporter = Callable[[Plan], AbstractContextManager[OnEvent]]


class SetupFailed(KernelmarkError):
    """A set-up command failed, so that the wrong software would be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Callbacks and options of a night."""

    tell: Tell = field(default=lambda text: None)
    reporter: Reporter = field(default=lambda plan: contextlib.nullcontext(lambda event: None))
    now: Callable[[], float] = time.time
    fresh: bool = False  # start a new night even if one is unfinished


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The outcome of a night; `summary` is Markdown."""

    code: int
    answer: str
    summary: str


def run_night(file: Nightly, store: Store, tools: Tools | None = None) -> Ended:
    """Run a night as the file describes it, or the rest of an unfinished one."""
    tools = tools or Tools()
    with contextlib.chdir(file.folder), _locked(file):
        return _Night(file, store, tools).ended()


class _State:
    """The state file: finished steps of the current night."""

    def __init__(self, file: Nightly, tools: Tools) -> None:
        self._path = file.state_folder / "state.json"
        self._key = digest(file.path.read_bytes())[:16]
        document: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            document = dict(json.loads(self._path.read_bytes()))
        now = tools.now()
        young = now - document.get("started", 0.0) < 3600 * file.resume_h
        same = (document.get("version"), document.get("file")) == (_VERSION, self._key)
        self.resumed = bool(
            same and young and not document.get("finished") and document.get("done")
        )
        if self.resumed and not tools.fresh:
            self._document = document
            return
        self.resumed = False
        # Not only the time: a night started in the same second would continue this one's runs.
        night = new_run_id(now)
        empty: dict[str, Any] = {"version": _VERSION, "file": self._key, "night": night}
        self._document = {**empty, "started": now, "done": {}, "finished": False}

    @property
    def night(self) -> str:
        return str(self._document["night"])

    @property
    def started(self) -> float:
        return float(self._document["started"])

    def recorded(self, step: str) -> Any:
        """Return the recorded value of a finished step; None for other steps."""
        return self._document["done"].get(step)

    def note(self, step: str, left: Any) -> None:
        self._document["done"][step] = left
        self._save()

    def finish(self) -> None:
        self._document["finished"] = True
        self._save()

    def _save(self) -> None:
        write_whole(self._path, json_text(self._document).encode(), sync=True)


class _Night:
    def __init__(self, file: Nightly, store: Store, tools: Tools) -> None:
        self._file, self._store, self._tools = file, store, tools
        self._state = _State(file, tools)
        self._tell = tools.tell
        if self._state.resumed:
            self._tell(f"going on with the night of {date_text(self._state.started)} UTC")

    def ended(self) -> Ended:
        try:
            for number, command in enumerate(self._file.setup.commands, 1):
                self._step(f"setup {number}", partial(self._set_up, command))
        except SetupFailed as error:
            ended = Ended(code=2, answer=str(error.message), summary=f"### {error.message}\n")
            self._notify(ended, changed=True)
            raise
        roofs = self._step("roofs", self._roofs) if self._file.canaries.roofs else []
        runs, troubles = [], []
        for number, table in enumerate(self._file.run, 1):
            for device in table.devices:
                step = f"run {number} {device}"
                left = self._step(step, partial(self._measure, table, device, step))
                runs += [left["run"]] if "run" in left else []
                troubles += [left["trouble"]] if "trouble" in left else []
        left = self._step("judge", lambda: self._judge(runs, [*roofs, *troubles]))
        ended = Ended(code=left["code"], answer=left["answer"], summary=left["summary"])
        if self._file.push and runs:
            self._step("push", lambda: self._command("push", expanded(self._file.push), *runs))
        if self._file.site:
            self._step("site", lambda: self._command("site", "-o", self._file.site))
        self._step("notify", lambda: self._notify(ended, changed=left["changed"]))
        self._step("thin", self._thin)
        self._state.finish()
        return ended

    def _step(self, name: str, work: Callable[[], Any]) -> Any:
        outcome = self._state.recorded(name)
        if outcome is None:
            outcome = work()
            self._state.note(name, {} if outcome is None else outcome)
        return outcome

    # Steps

    def _set_up(self, command: str) -> None:
        self._tell(f"set-up: {command}")
        limit_s = self._file.setup.timeout_s
        try:
            done = run_child(["/bin/sh", "-c", f"{{ {command}\n}} 2>&1"], timeout_s=limit_s)
        except subprocess.TimeoutExpired:
            raise SetupFailed(f"set-up did not end within {limit_s:g} s: {command}") from None
        if done.returncode:
            tail = done.stdout.decode(errors="replace").strip().splitlines()[-15:]
            raise SetupFailed(
                "\n".join([f"set-up failed with exit code {done.returncode}: {command}", *tail]),
                hint="the same command goes on with this one",
            )

    def _roofs(self) -> list[str]:
        """Measure the roofs of every device; return a sentence for each that moved."""
        moved = []
        for name in dict.fromkeys(d for table in self._file.run for d in table.devices):
            before = known_roofs(self._store, [name])
            after = measure_roofs(
                DeviceRoofs(info=find(name)[1], stored=before), self._store, self._tell
            )
            moved += moved_roofs(before, after, self._file.canaries.roof_limit)
        return moved

    def _measure(self, table: RunTable, device: str, step: str) -> dict[str, str]:
        """Measure one [[run]] table on one device, or the rest of it."""
        label = self._file.name
        argv = ("nightly", self._file.path.name, self._state.night, step)
        resumed = self._begun(argv)
        self._tell(f"{step}: {', '.join(table.suites)}")
        try:
            cases = plan(table.select(device, self._file.canaries.suite), table.load_timing())
            conduct = Conduct(
                label=label,
                argv=argv,
                roofs=roofs_for_plan(cases, self._store, "stored"),
                repository=self._file.base.repo,
            )
            with self._tools.reporter(cases) as on_event:
                results = measure(
                    cases, conduct=conduct, store=self._store, on_event=on_event, resumed=resumed
                )
        except (UsageError, NothingToDo) as error:
            # A table that cannot be measured must not stop the others.
            self._tell(f"{step} is left out: {error.message}")
            return {"trouble": f"{step} was not measured: {error.message}"}
        if results.run.state is RunState.INTERRUPTED:
            raise KeyboardInterrupt
        return {"run": results.run.id}

    def _begun(self, argv: tuple[str, ...]) -> Run | None:
        """Return the unfinished run of an interrupted step."""
        newest = self._store.runs(limit=_LOOKED_AT, label=self._file.name)
        return next((run for run in newest if run.argv == argv), None)

    def _judge(self, runs: Sequence[str], troubles: Sequence[str]) -> dict[str, Any]:
        file = self._file
        facts = [f"{file.name}, {date_text(self._state.started)} UTC on {platform.node()}"]
        try:
            judged = judge(self._store, runs, self._rules(), self._confirm)
        except NothingToDo as error:
            reasons = [*troubles, str(error.message)]
            summary = comment([], facts=[*facts, *reasons])
            self._write_summary(summary)
            return {"code": 4, "answer": "; ".join(reasons), "summary": summary, "changed": True}
        if judged.code == 0 and troubles:
            judged = dataclasses.replace(judged, code=SOME_FAILED)
        if file.notify.link:
            facts.append(file.notify.link)
        summary = comment(judged.changes, facts=facts, notes=[*troubles, *judged.notes])
        self._write_summary(summary)
        movers = [
            f"• {change.problem} by {change.backend}: {change.status.value}, {change.reason}"
            for change in ranked(judged.changes)[:_MOST_MOVERS]
            if not change.since  # a reminder is one line
        ]
        return {
            "code": judged.code,
            "answer": "\n".join([str(judged.answer), *movers]),
            "summary": summary,
            "changed": _is_news(judged),
        }

    def _rules(self) -> Rules:
        file = self._file
        verdicts = file.judge.fail_on
        return Rules(
            label=file.name,
            nights=file.judge.nights,
            least=file.judge.suspect,
            min_effect=file.judge.min_effect,
            canaries=file.canaries.suite,
            baseline=file.judge.baseline,
            limits=alarms.parse(verdicts) if verdicts else alarms.FailOn(),
            paired=file.base.is_configured,
        )

    def _confirm(self, doubts: Sequence[Doubt]) -> Any:
        how = "paired rounds" if self._file.base.is_configured else "repeated runs"
        self._tell(f"measuring {counted(len(doubts), 'suspect')} again by {how}")
        call = confirm_paired if self._file.base.is_configured else confirm_repeated
        return call(doubts, self._file, self._store, self._tell)

    def _write_summary(self, text: str) -> None:
        path = Path(self._file.summary or self._file.state_folder / "summary.md")
        write_whole(path, text.encode())
        self._tell(f"wrote {path}")

    def _command(self, name: str, *arguments: str) -> None:
        """Run another kmark command. Its failure is reported, and does not stop the night."""
        # Not as --store: other users can see the arguments of a process.
        env = {**os.environ, "KERNELMARK_STORE": self._file.store} if self._file.store else None
        command = own_command("kernelmark", name, *arguments)
        try:
            done = run_child(command, env=env, timeout_s=_COMMAND_TIMEOUT_S)
            failed = done.stderr.decode(errors="replace").strip() if done.returncode else ""
        except subprocess.TimeoutExpired:
            failed = f"it did not end within {_COMMAND_TIMEOUT_S:g} s"
        if failed:
            self._tell(f"note: kmark {name} failed: {failed.splitlines()[0]}")

    def _notify(self, ended: Ended, *, changed: bool) -> None:
        notify = self._file.notify
        is_due = {"alarm": ended.code != 0, "change": changed or ended.code != 0, "always": True}
        if not is_due[notify.when]:
            return
        name = self._file.name
        with self._excused():
            if notify.webhook:
                link = f"\n{notify.link}" if notify.link else ""
                post_webhook(expanded(notify.webhook), f"*{name}*: {ended.answer}{link}")
        with self._excused():
            if notify.mail_to:
                subject = f"{name}: {ended.answer.splitlines()[0]}"
                mail = (notify.mail_from, notify.mail_to, subject, ended.summary)
                send_mail(notify.sendmail, *mail)

    @contextlib.contextmanager
    def _excused(self) -> Iterator[None]:
        """Report a message that could not be sent, without stopping the night."""
        try:
            yield
        except (NotSent, UsageError) as error:
            self._tell(f"note: {error.message}")

    def _thin(self) -> None:
        keep = self._file.keep
        again = {f"{self._file.name}-again"}
        again |= {f"{self._file.name}-confirm-{side}" for side in ("base", "head")}
        pruned = retention.prune(
            self._store,
            now=self._tools.now(),
            runs_days=keep.runs,
            samples_days=keep.samples,
            labels={self._file.name, *again},
            spares=again,
        )
        removed, thinned = len(pruned.removed), len(pruned.thinned)
        if removed or thinned:
            self._tell(
                f"retention: {counted(removed, 'run')} removed, "
                f"samples of {counted(thinned, 'run')} thinned"
            )


def moved_roofs(before: Sequence[Roof], after: Sequence[Roof], limit: float) -> list[str]:
    """Return a sentence for each roof that moved by more than `limit`. Unsteady roofs, which other
    work disturbed, are ignored."""
    steady = {(r.device, r.kind, r.name, r.unit, r.threads): r for r in before if r.steady}
    moved = []
    for roof in after:
        old = steady.get((roof.device, roof.kind, roof.name, roof.unit, roof.threads))
        if old is None or not roof.steady or not old.value or roof.measured == old.measured:
            continue
        change = roof.value / old.value - 1
        if abs(change) > limit:
            moved.append(f"the {roof.name} roof of {roof.device} moved by {100 * change:+.1f} %")
    return moved


def steps_of(file: Nightly) -> list[str]:
    """Return the steps of a night as text, in order."""
    steps = [f"set-up: {command}" for command in file.setup.commands]
    steps += ["measure the roofs of every device"] if file.canaries.roofs else []
    for number, table in enumerate(file.run, 1):
        backends = ", ".join(table.selected.get("backends", ())) or "all backends"
        steps += [
            f"run {number} on {device}: {', '.join(table.suites)} by {backends}, {table.timing}"
            for device in table.devices
        ]
    how = "paired rounds" if file.base.is_configured else f"{file.judge.repeats} fresh processes"
    steps.append(f"judge: suspects are measured again by {how}")
    steps += [f"push to {file.push}"] if file.push else []
    steps += [f"write the site to {file.site}"] if file.site else []
    ways = {"webhook": file.notify.webhook, "mail": file.notify.mail_to}
    used = [name for name, used_for in ways.items() if used_for]
    steps += [f"notify by {' and '.join(used)} ({file.notify.when})"] if used else []
    kept = {"runs": file.keep.runs, "samples": file.keep.samples}
    steps += [f"thin {name} older than {days} days" for name, days in kept.items() if days]
    return steps


def _is_news(judged: Judged) -> bool:
    news = [change for change in ranked(judged.changes) if not (change.held or change.since)]
    return any(change.base is not None for change in news)


@contextlib.contextmanager
def _locked(file: Nightly) -> Iterator[None]:
    """Lock out a second night of this file; the OS releases the lock if this process dies."""
    try:
        folder = make_folder(file.state_folder)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"{file.state_folder} cannot be written: {error.strerror}",
            hint='name another folder in the file: state = "…"',
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise NothingToDo(
                f"a night of {file.path.name} is running already"
                + (f" (process {holder})" if holder else ""),
                hint="nothing was started; wait for it, or end it",
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


_TIMEOUT_S = 30.0
_TRIES = 3
_MOST_LETTERS = 3000  # Slack truncates longer text blocks


class NotSent(KernelmarkError):
    """A message that could not be sent."""


def post_webhook(url: str, text: str, *, wait: Callable[[float], None] = time.sleep) -> None:
    """POST `{"text": …}`, which Slack, Mattermost, Discord (/slack) and Teams workflows take."""
    if not url.startswith(("https://", "http://")):
        raise NotSent("the webhook's address does not begin with https://", hint="check it")
    shown = text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 2]} …"
    request = urllib.request.Request(
        url,
        data=json.dumps({"text": shown}).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    for attempt in range(1, _TRIES + 1):
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            failed = f"status {error.code}"
            if error.code < 500:  # another attempt would fail too
                break
        except (OSError, ValueError) as error:
            failed = str(getattr(error, "reason", error))
        if attempt < _TRIES:
            wait(2.0**attempt)
    # The address is a secret: anyone who knows it can post.
    raise NotSent(f"the webhook did not accept the message: {failed}", hint="check its address")


def send_mail(
    program: str, sender: str, recipients: Sequence[str], subject: str, text: str
) -> None:
    """Hand a message to sendmail, which queues it."""
    message = EmailMessage()
    message["From"], message["To"] = sender, ", ".join(recipients)
    message["Subject"] = " ".join(subject.split())[:200]
    message.set_content(text)
    try:
        done = run_child([program, "-t", "-i"], input=bytes(message), timeout_s=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotSent(
            f"{program} cannot send mail: {getattr(error, 'strerror', None) or str(error)}",
            hint="notify.sendmail names another program",
        ) from None
    if done.returncode:
        why = last_line(done.stderr) or f"code {done.returncode}"
        raise NotSent(f"{program} failed: {why}")
