"""Options shared by several commands, each defined once, and the completion of their values.

Options that set a field of a `Selection` or a `Timing` are declared there; `selection_options` and
`timing_options` give a command some of them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints

import typer

from kernelmark.api.selection import Selection as Selection
from kernelmark.api.selection import comma_list as comma_list
from kernelmark.cli.output import check_writable, write
from kernelmark.core.errors import UsageError
from kernelmark.core.files import user_path
from kernelmark.core.immutable import Flag, FrozenDict, flags
from kernelmark.core.timing import Timing
from kernelmark.core.units import join_and, join_or

_RUNS = 50  # newest runs that are offered

Complete = Callable[[str], list[str]]


def complete_ops(incomplete: str) -> list[str]:
    from kernelmark.ops import registry

    return _listed(registry.names(), incomplete)


def complete_backends(incomplete: str) -> list[str]:
    from kernelmark.backends import registry

    return _listed(registry.names(), incomplete)


def complete_devices(incomplete: str) -> list[str]:
    from kernelmark.devices import registry

    names = ["all"]
    with contextlib.suppress(Exception):  # a broken driver
        for name in registry.names():
            if registry.get(name).available() is None:
                names += [info.name for info in registry.get(name).infos()]
    return _listed(names, incomplete)


def complete_suites(incomplete: str) -> list[str]:
    from kernelmark.workloads import suites as known

    return _listed(known.names(), incomplete)


def complete_dtypes(incomplete: str) -> list[str]:
    from kernelmark.core.dtype import DTYPES

    return _listed(DTYPES, incomplete)


def complete_timings(incomplete: str) -> list[str]:
    """Return presets, and files that set fields of a timing."""
    from kernelmark.core.timing import PRESETS

    return [*(n for n in PRESETS if n.startswith(incomplete)), *complete_timing_files(incomplete)]


def complete_timing_files(incomplete: str) -> list[str]:
    """Return TOML files and folders that begin with `incomplete`."""
    folder, slash, name = incomplete.rpartition("/")
    names: list[str] = []
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: ~ of an unknown user
        for path in sorted(user_path(folder + slash or ".").iterdir()):
            hidden = path.name.startswith(".") and not name.startswith(".")
            if path.name.startswith(name) and not hidden:
                end = "/" if path.is_dir() else ""
                if end or path.suffix == ".toml":
                    names.append(f"{folder}{slash}{path.name}{end}")
    return names


def complete_runs(incomplete: str) -> list[str]:
    """Return ids and labels of the newest runs in the default store."""
    from kernelmark.stores import open_store

    names = ["latest"]
    with contextlib.suppress(Exception), open_store(readonly=True) as store:
        for run in store.runs(limit=_RUNS):
            names += [run.id, *([run.label] if run.label else [])]
    return _listed(names, incomplete)


def _listed(names: Iterable[str], incomplete: str) -> list[str]:
    """Return completions of the last item of a comma-separated list, after the given items."""
    before, comma, last = incomplete.rpartition(",")
    listed = set(before.split(","))
    fitting: Iterator[str] = (n for n in names if n.startswith(last) and n not in listed)
    return [f"{before}{comma}{name}" for name in dict.fromkeys(fitting)]


SELECTION = "Selection"
MEASUREMENT = "Measurement"
OUTPUT = "Output"
RUNNING = "Running"


def option(
    usage: str,
    panel: str | None = None,
    *,
    help: str,
    complete: Complete | None = None,
    check: Callable[[float], None] | None = None,
    common: bool = False,
    **settings: Any,
) -> Any:
    """Return an option from its usage text: `"-f --figure FILE"`. Of a command with many options,
    `--help` and completion show those that are `common`; old names are hidden everywhere."""
    names = [part for part in usage.split() if part.startswith("-")]
    made = typer.Option(
        *names,
        help=help,
        metavar=" ".join(usage.split()[len(names) :]) or None,
        rich_help_panel=panel,
        autocompletion=complete,
        callback=None if check is None else _callback(check),
        **settings,
    )
    made.common = common
    return made


def _callback(check: Callable[[float], None]) -> Callable[[Any], Any]:
    """Return a callback of the parser that reports a wrong number with the option's name."""

    def checked(value: Any) -> Any:
        if value is not None:
            try:
                check(value)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
        return value

    return checked


def _declared(flag: Flag, panel: str, help: str = "") -> tuple[Any, Any]:
    """Return the type and the option of a declared field; None stands for its default."""
    kind: Any = list[str] if flag.takes is list else flag.takes
    usage = flag.usage
    if issubclass(flag.takes, StrEnum):
        values = tuple(member.value for member in flag.takes)
        kind, usage = Literal[values], f"{usage} {'|'.join(values)}"
    complete = globals()[f"complete_{flag.complete}"] if flag.complete else None
    return kind | None, option(
        usage,
        panel,
        help=help or flag.help,
        complete=complete,
        check=flag.check,
        common=flag.common,
    )


Words = list[str] | None
Text = Callable[[], str]

_SELECTION, _TIMING = flags(Selection), flags(Timing)
Ops = Annotated[Words, _declared(_SELECTION["ops"], SELECTION)[1]]
Devices = Annotated[Words, _declared(_SELECTION["devices"], SELECTION)[1]]
Filter = Annotated[str | None, _declared(_SELECTION["filter"], SELECTION)[1]]
Threads = Annotated[int | None, _declared(_TIMING["threads"], MEASUREMENT)[1]]

KeptBackends = Annotated[
    Words,
    option(
        "-b --backend BACKEND",
        SELECTION,
        complete=complete_backends,
        help="Keep only these backends, separated by commas. Repeatable. Default: all.",
        common=True,
    ),
]

Roofs = Annotated[
    Literal["stored", "fresh", "none"],
    option(
        "--roofs stored|fresh|none",
        MEASUREMENT,
        help="Compute 'of roof' from stored roofs (measured again after a week), from newly "
        "measured ones, or not at all.",
    ),
]

Interleave = Annotated[
    Literal["auto", "yes", "no"],
    option(
        "--interleave auto|yes|no",
        MEASUREMENT,
        help="Measure the backends of a problem by turns (default: auto, on a GPU "
        "if the problem may be compute-bound, and on a CPU all cases, block by block).",
    ),
]

StorePlace = Annotated[
    str | None,
    option(
        "--store PATH|URL",
        OUTPUT,
        help="Use this database of results. Default: $KERNELMARK_STORE, else one per user.",
        common=True,
    ),
]
NoStore = Annotated[bool, option("--no-store", OUTPUT, help="Store nothing.")]
NoCanaries = Annotated[
    bool,
    option(
        "--no-canaries",
        SELECTION,
        help="Skip the canaries: an empty launch, a copy and a GEMM that every stored run of a "
        "suite measures too, to detect a change of the machine.",
    ),
]
NoSentinels = Annotated[
    bool, option("--no-sentinels", SELECTION, hidden=True, help="The old name of --no-canaries.")
]
Label = Annotated[str, option("--label TEXT", OUTPUT, help="Name the run.")]
Json = Annotated[
    str | None,
    option("--json FILE|-", OUTPUT, help="Write JSON to a file; - is stdout.", common=True),
]
Csv = Annotated[
    str | None, option("--csv FILE|-", OUTPUT, help="Write CSV to a file; - is stdout.")
]
Md = Annotated[
    str | None, option("--md FILE|-", OUTPUT, help="Write Markdown to a file; - is stdout.")
]
Figure = Annotated[
    str | None,
    option(
        "-f --figure FILE",
        OUTPUT,
        common=True,
        help="Draw a figure into FILE.png, .svg, .html (offline) or .json (Vega-Lite).",
    ),
]
MOST_PROBLEMS = 1000  # in a table, unless the user asks for all; a run may have 20,000
Quiet = Annotated[
    bool,
    option(
        "-q --quiet", OUTPUT, help="Suppress progress and notes; still report what blocks the run."
    ),
]

Resume = Annotated[
    str | None,
    option(
        "--resume [RUN]",
        RUNNING,
        complete=complete_runs,
        help="Continue an unfinished run (default: the newest); measure only cases without a "
        "result.",
    ),
]
RetryFailed = Annotated[
    bool, option("--retry-failed", RUNNING, help="With --resume, also measure failed cases again.")
]
DryRun = Annotated[
    bool,
    option(
        "--dry-run", RUNNING, help="List the cases and the expected time; run nothing.", common=True
    ),
]
Timeout = Annotated[
    float,
    option("--timeout S", RUNNING, help="Limit the seconds of a case, not counting compilation."),
]
CompileTimeout = Annotated[
    float,
    option(
        "--compile-timeout S",
        RUNNING,
        help="Limit the seconds of a compilation, and of importing a kernel file.",
    ),
]
Jobs = Annotated[
    int | None, option("--jobs N", RUNNING, help="Compile ahead on N host cores. Default: all.")
]

Runner = Annotated[
    str,
    option(
        "--runner local|ray|HOST:PORT",
        RUNNING,
        help="Run on this machine, or on the devices of a Ray cluster: ray, HOST:PORT, "
        "ray://HOST:PORT (docs/fleet.md).",
    ),
]


def placed(runner: str, *, quiet: bool = False) -> contextlib.AbstractContextManager[None]:
    """Return a context in which devices are those of the place that --runner names."""
    from kernelmark.cli.output import say
    from kernelmark.runners.places import opened

    return opened(runner, lambda text: None if quiet else say(f"note: {text}"))


RunRef = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        autocompletion=complete_runs,
        help="A run: its id or a prefix of it, a label, latest, latest~1, or an exported JSON "
        "file.",
    ),
]
StatusWords = Annotated[
    Words,
    option("--status STATUS", SELECTION, help="Keep only results with this status: ok, wrong, …"),
]


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


@dataclass(frozen=True, kw_only=True)
class DeclaredOptions:
    """The options for some fields of a request that declares them (core/immutable.py), part of an
    annotation: `selection: Annotated[Selection, DeclaredOptions(…)]`. `build` returns the request
    from the texts of the fields, and from the `own` options that are no fields."""

    kind: type
    names: tuple[str, ...]
    panel: str
    build: Callable[..., Any]
    own: Mapping[str, inspect.Parameter] = field(default_factory=FrozenDict)
    helps: Mapping[str, str] = field(default_factory=FrozenDict)  # instead of the declared help

    def parameters(self) -> dict[str, inspect.Parameter]:
        """Return the options as parameters of a function."""
        parameters = dict(self.own)
        for name in self.names:
            declared = flags(self.kind)[name]
            help = self.helps.get(name, declared.help)
            kind, shown = _declared(declared, self.panel, help)
            parameters[declared.parameter] = _parameter(declared.parameter, Annotated[kind, shown])
        return parameters

    def of(self, params: Mapping[str, Any]) -> Any:
        """Return the request from the parameters of a command, which may have more."""
        declared = flags(self.kind)
        texts = {name: params[declared[name].parameter] for name in self.names}
        return self.build(**{name: params[name] for name in self.own}, **texts)


@dataclass(frozen=True, kw_only=True)
class Options:
    """A group of options, one a field; a field may be a group itself. No slots, because a class
    cannot have two bases with slots."""

    @classmethod
    def parameters(cls) -> dict[str, inspect.Parameter]:
        """Return the options as parameters of a function."""
        hints = get_type_hints(cls, include_extras=True)
        return _expand({f.name: _parameter(f.name, hints[f.name], f.default) for f in fields(cls)})

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """Return an instance from the parameters of a command, which may have more."""
        hints = get_type_hints(cls, include_extras=True)
        return cls(
            **{field.name: _value(field.name, hints[field.name], params) for field in fields(cls)}
        )


Group = type[Options] | DeclaredOptions


def _group(hint: Any) -> Group | None:
    """Return the group of options that a type hint stands for, if it does."""
    if isinstance(hint, type) and issubclass(hint, Options):
        return hint
    return next((part for part in get_args(hint) if isinstance(part, DeclaredOptions)), None)


def _value(name: str, hint: Any, params: Mapping[str, Any]) -> Any:
    group = _group(hint)
    return params[name] if group is None else group.of(params)


def _expand(parameters: Mapping[str, inspect.Parameter]) -> dict[str, inspect.Parameter]:
    """Return parameters with each group replaced by its options."""
    expanded: dict[str, inspect.Parameter] = {}
    for name, parameter in parameters.items():
        group = _group(parameter.annotation)
        for option_name, declared in (group.parameters() if group else {name: parameter}).items():
            if option_name in expanded:
                raise TypeError(f"two options {option_name}")
            expanded[option_name] = declared
    return expanded


def expand_options(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with its groups of options expanded, for the parser."""
    hints = get_type_hints(call, include_extras=True)
    if not any(map(_group, hints.values())):
        return call
    own = inspect.signature(call).parameters
    parameters = _expand({name: _parameter(name, hints[name], own[name].default) for name in own})

    @functools.wraps(call)
    def expanded(**params: Any) -> Any:
        return call(**{name: _value(name, hints[name], params) for name in own})

    expanded.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
    expanded.__annotations__ = {
        name: parameter.annotation for name, parameter in parameters.items()
    }
    return expanded


_PROBLEMS = ("ops", "suites", "axes", "dtypes", "problems", "filter", "limit")


def selection_options(*more: str, **helps: str) -> DeclaredOptions:
    """Return the options that select problems, and those of `more` fields of a Selection."""
    return DeclaredOptions(
        kind=Selection,
        names=(*_PROBLEMS, *more),
        panel=SELECTION,
        build=Selection.parse,
        helps=helps,
    )


class TimingChoice:
    """The preset or file that `--timing` names, and the fields that other options set."""

    def __init__(self, timing: str, **options: Any) -> None:
        self.name = timing
        self.changes = {name: value for name, value in options.items() if value is not None}

    def load(self) -> Timing:
        return Timing.load(self.name, **self.changes)


TimingName = Annotated[
    str,
    option(
        "--timing PRESET|FILE",
        MEASUREMENT,
        complete=complete_timings,
        help="Set duration and precision by a preset (quick, default, full) or a TOML file "
        "(docs/measuring.md).",
        common=True,
    ),
]
_TimingFile = Annotated[
    str,
    option(
        "--timing FILE.toml",
        MEASUREMENT,
        complete=complete_timing_files,
        help="Read the timing of a round from a TOML file (docs/measuring.md).",
    ),
]
_CONDITIONS = ("cache", "strain", "duty", "threads", "max_s", "warmup_s", "seed")


def timing_options(*more: str, preset: str = "") -> DeclaredOptions:
    """Return the options for a TimingChoice, with those of `more` fields of a Timing. Without a
    default `preset`, `--timing` only takes a file."""
    source = TimingName if preset else _TimingFile
    return DeclaredOptions(
        kind=Timing,
        names=(*_CONDITIONS, *more),
        panel=MEASUREMENT,
        build=TimingChoice,
        own={"timing": _parameter("timing", source, preset)},
    )


@dataclass(frozen=True, kw_only=True)
class StoredOptions(Options):
    """Options of commands that measure and store cases."""

    store: StorePlace = None
    no_store: NoStore = False
    label: Label = ""
    quiet: Quiet = False
    dry_run: DryRun = False
    timeout: Timeout = 300.0
    jobs: Jobs = None


@dataclass(frozen=True, kw_only=True)
class Outputs(Options):
    """Output files; `-` is stdout, which then contains nothing else."""

    json: Json = None
    csv: Csv = None
    md: Md = None

    def __post_init__(self) -> None:
        files = {name: getattr(self, name[2:]) for name in self.file_options}
        on_stdout = tuple(name for name, file in files.items() if file == "-")
        if len(on_stdout) > 1:
            raise UsageError(
                f"only one of {join_and(on_stdout)} can go to stdout",
                hint="give the others a file name",
            )
        for file in files.values():
            check_writable(file)

    @property
    def file_options(self) -> tuple[str, ...]:
        """The options that were given."""
        names = ("json", "csv", "md")
        return tuple(f"--{name}" for name in names if getattr(self, name) is not None)

    @property
    def any(self) -> bool:
        return bool(self.file_options)

    @property
    def shows_percent(self) -> bool:
        """Whether any output has percentages of the roof; JSON on stdout alone has none."""
        return not (self.json == "-" and self.csv is None and self.md is None)

    @property
    def stdout_taken(self) -> bool:
        return "-" in (self.json, self.csv, self.md)

    def put(self, *, json: Text, csv: Text | None = None, md: Text | None = None) -> None:
        """Format and write the requested outputs. If one cannot be written, the others are."""
        pairs = ((self.json, json), (self.csv, csv), (self.md, md))
        requested = [(file, text) for file, text in pairs if file is not None and text is not None]
        with contextlib.ExitStack() as waiting:
            # Callbacks run in reverse order: stdout, last here, is written first.
            for file, text in sorted(requested, key=lambda pair: pair[0] == "-"):
                waiting.callback(lambda file, text: write(file, text()), file, text)


def check_alone(context: typer.Context, kept: Sequence[str], beside: str, *, hint: str) -> None:
    """Refuse options other than `kept`, which would be ignored in combination with `beside`."""
    ignored_options = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        ignored = parameter.name not in kept
        if ignored and source is not None and source.name == "COMMANDLINE":
            ignored_options.append(parameter.opts[-1])
    if ignored_options:
        raise UsageError(
            f"{join_or(tuple(ignored_options))} cannot be combined with {beside}", hint=hint
        )
