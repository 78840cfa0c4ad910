"""Options shared by several commands, each defined once."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

import typer

from kernelmark.cli import completing
from kernelmark.cli.output import check_writable, write
from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason

if TYPE_CHECKING:
    from kernelmark.api.plan import Selection

SELECTION = "Selection"
MEASUREMENT = "Measurement"
OUTPUT = "Output"
RUNNING = "Running"


def option(
    words: str,
    panel: str | None = None,
    *,
    help: str,
    complete: completing.Complete | None = None,
    **settings: Any,
) -> Any:
    """Return an option from its usage text: `"-f --figure FILE"`. Hidden options set fields that
    `--timing FILE.toml` also has."""
    names = [word for word in words.split() if word.startswith("-")]
    return typer.Option(
        *names,
        help=help,
        metavar=" ".join(words.split()[len(names) :]) or None,
        rich_help_panel=panel,
        autocompletion=complete,
        **settings,
    )


def _positive(value: float | None) -> float | None:
    if value is not None and not value > 0:
        raise typer.BadParameter(f"{value:g} must be positive")
    return value


def below_one(value: float | None) -> float | None:
    """Refuse 1 or more for a fraction: the user meant a percentage."""
    if value is not None and value >= 1:
        meant = f"write {value / 100:g} for {value:g} %" if value <= 100 else "write 0.05 for 5 %"
        raise typer.BadParameter(f"{value:g} must be below 1\nit is a fraction: {meant}")
    return value


def _fraction(value: float | None) -> float | None:
    return below_one(_positive(value))


def _not_negative(value: float | None) -> float | None:
    if value is not None and not value >= 0:
        raise typer.BadParameter(f"{value:g} must not be negative")
    return value


Words = list[str] | None
Text = Callable[[], str]

Ops = Annotated[
    Words,
    option(
        "-o --op OP",
        SELECTION,
        complete=completing.ops,
        help="Select ops, separated by commas. Repeatable.",
    ),
]
Backends = Annotated[
    Words,
    option(
        "-b --backend BACKEND",
        SELECTION,
        complete=completing.backends,
        help="Select backends, separated by commas. Repeatable. Default: every available one that "
        "supports a selected problem.",
    ),
]
KeptBackends = Annotated[
    Words,
    option(
        "-b --backend BACKEND",
        SELECTION,
        complete=completing.backends,
        help="Keep only these backends, separated by commas. Repeatable. Default: all.",
    ),
]
Devices = Annotated[
    Words,
    option(
        "-d --device DEVICE",
        SELECTION,
        complete=completing.devices,
        help="Spread the cases over these devices: cpu, cuda:0, cuda:0-7, all. Default: cpu.",
    ),
]
Suites = Annotated[
    Words,
    option(
        "-s --suite SUITE",
        SELECTION,
        complete=completing.suites,
        help="Select suites, by name (kmark list suites) or TOML file.",
    ),
]
Axes = Annotated[
    Words,
    option(
        "-a --axis NAME=VALUES",
        SELECTION,
        help="Set a parameter of the op, or sweep it: m=512, m=[1,2,4], m=[1024:8192:*2] "
        "(doubling), ta=t. Repeatable.",
    ),
]
Problems = Annotated[
    Words,
    option(
        "-p --problem KEY",
        SELECTION,
        help="Add one complete problem: 'gemm m=512 n=512 k=512 dtype=f32'. Repeatable.",
    ),
]
Dtypes = Annotated[
    Words,
    option(
        "--dtype DTYPE",
        SELECTION,
        complete=completing.dtypes,
        help="Set the dtypes, separated by commas; overrides those of a suite. Repeatable.",
    ),
]
Filter = Annotated[
    str | None,
    option(
        "--filter REGEX",
        SELECTION,
        help="Keep only problems whose text matches, such as 'm=4096 '.",
    ),
]
Limit = Annotated[
    int | None, option("--limit N", SELECTION, help="Sample at most N problems, stratified.")
]
ConfigWords = Annotated[
    Words,
    option(
        "--config NAME=VALUE", SELECTION, help="Set a tuning parameter of the backend. Repeatable."
    ),
]

TimingName = Annotated[
    str,
    option(
        "--timing PRESET|FILE",
        MEASUREMENT,
        complete=completing.timings,
        help="Set duration and precision by a preset (quick, default, full) or a TOML file "
        "(docs/measuring.md).",
    ),
]
TimingFile = Annotated[
    str | None,
    option(
        "--timing FILE.toml",
        MEASUREMENT,
        complete=completing.timing_files,
        help="Read the timing of a round from a TOML file (docs/measuring.md).",
    ),
]
CacheState = Annotated[
    Literal["cold", "hot", "flush"] | None,
    option(
        "--cache cold|hot|flush",
        MEASUREMENT,
        help="Set the cache state before each launch. Default: cold, or that of --timing FILE.",
    ),
]
TimerKind = Annotated[
    Literal["auto", "loop", "cpu", "graph", "gate", "profiler", "iree-benchmark-module"] | None,
    option(
        "--timer auto|loop|cpu|graph|gate|profiler|iree-benchmark-module",
        MEASUREMENT,
        hidden=True,
        help="Select the timing method.",
    ),
]
StrainKind = Annotated[
    Literal["none", "bandwidth", "compute"] | None,
    option(
        "--strain none|bandwidth|compute",
        MEASUREMENT,
        help="Run background load between launches, to imitate a full model. Default: none.",
    ),
]
DutyKind = Annotated[
    Literal["sustained", "burst"] | None,
    option(
        "--duty sustained|burst",
        MEASUREMENT,
        hidden=True,
        help="Launch back to back, or with idle gaps between samples.",
    ),
]
Threads = Annotated[
    int | None,
    option(
        "--threads N",
        MEASUREMENT,
        callback=_not_negative,
        help="Use N CPU threads. Default: every usable core.",
    ),
]
Processes = Annotated[
    int | None,
    option(
        "--processes N",
        MEASUREMENT,
        hidden=True,
        callback=_positive,
        help="Measure each case in N fresh processes.",
    ),
]
MaxSeconds = Annotated[
    float | None,
    option(
        "--max-s S",
        MEASUREMENT,
        callback=_positive,
        help="Limit the timed seconds of a case in each process. Default: that of --timing.",
    ),
]
WarmupSeconds = Annotated[
    float | None,
    option(
        "--warmup-s S",
        MEASUREMENT,
        hidden=True,
        callback=_not_negative,
        help="Limit the warm-up seconds of a case in each process.",
    ),
]
MaxBlocks = Annotated[
    int | None,
    option(
        "--max-blocks N",
        MEASUREMENT,
        hidden=True,
        help="Limit the blocks (fresh allocations) of a case in each process.",
    ),
]
TargetCi = Annotated[
    float | None,
    option(
        "--target-ci FRACTION",
        MEASUREMENT,
        callback=_fraction,
        help="Stop when the half-width of the 95 % confidence interval is below this fraction of "
        "the median: 0.02 is 2 %. Default: that of --timing.",
    ),
]
Seed = Annotated[
    int | None,
    option(
        "--seed N",
        MEASUREMENT,
        callback=_not_negative,
        help="Seed the random inputs and the sample of --limit.",
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

StorePlace = Annotated[
    str | None,
    option(
        "--store PATH|URL",
        OUTPUT,
        help="Use this database of results. Default: $KERNELMARK_STORE, else one per user.",
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
    str | None, option("--json FILE|-", OUTPUT, help="Write JSON to a file; - is stdout.")
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
        help="Draw a figure into FILE.png, .svg, .html (offline) or .json (Vega-Lite).",
    ),
]
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
        complete=completing.runs,
        help="Continue an unfinished run (default: the newest); measure only cases without a "
        "result.",
    ),
]
RetryFailed = Annotated[
    bool, option("--retry-failed", RUNNING, help="With --resume, also measure failed cases again.")
]
DryRun = Annotated[
    bool, option("--dry-run", RUNNING, help="List the cases and the expected time; run nothing.")
]
Timeout = Annotated[
    float,
    option("--timeout S", RUNNING, help="Limit the seconds of a case, not counting compilation."),
]
Jobs = Annotated[
    int | None, option("--jobs N", RUNNING, help="Compile ahead on N host cores. Default: all.")
]

RunRef = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        autocompletion=completing.runs,
        help="A run: its id or a prefix of it, a label, latest, latest~1, or an exported JSON "
        "file.",
    ),
]
StatusWords = Annotated[
    Words,
    option("--status STATUS", SELECTION, help="Keep only results with this status: ok, wrong, …"),
]


def comma_list(given: Iterable[str] | None) -> tuple[str, ...]:
    """Split the words of a repeatable option at commas, without duplicates: `-b numpy,torch -b
    iree` gives three words."""
    words = [word.strip() for text in given or () for word in text.split(",")]
    if words and not any(words):
        raise UsageError(Reason("list-empty"), hint="leave it out, or name something")
    return tuple(dict.fromkeys(word for word in words if word))


@dataclass(frozen=True, kw_only=True)
class Options:
    """A group of options: a command with a parameter of such a class gets its fields as options. No
    slots, because a class cannot have two bases with slots."""

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """Return an instance from the parameters of a command, which may have more."""
        return cls(**{field.name: params[field.name] for field in fields(cls)})


def expand_options(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with its Options parameters expanded to their fields, for the parser."""
    hints = get_type_hints(call, include_extras=True)
    groups = {n: h for n, h in hints.items() if isinstance(h, type) and issubclass(h, Options)}
    if not groups:
        return call
    parameters: dict[str, inspect.Parameter] = {}
    for own in inspect.signature(call).parameters.values():
        if own.name in groups:
            kinds = get_type_hints(groups[own.name], include_extras=True)
            found = {field.name: field.default for field in fields(groups[own.name])}
        else:
            kinds, found = hints, {own.name: own.default}
        for name, default in found.items():
            if name in parameters:
                raise TypeError(f"{call.__name__} has two options {name}")
            parameters[name] = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kinds[name]
            )

    @functools.wraps(call)
    def expanded(**given: Any) -> Any:
        made = {name: group.of(given) for name, group in groups.items()}
        taken = {field.name for group in groups.values() for field in fields(group)}
        return call(**made, **{name: given[name] for name in given if name not in taken})

    expanded.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
    expanded.__annotations__ = {name: one.annotation for name, one in parameters.items()}
    return expanded


@dataclass(frozen=True, kw_only=True)
class ProblemOptions(Options):
    """Options that select problems."""

    ops: Ops = None
    suites: Suites = None
    axes: Axes = None
    dtypes: Dtypes = None
    problems: Problems = None
    filter: Filter = None
    limit: Limit = None

    def select(self, **more: Any) -> Selection:
        """Return the selected problems; `more` are other fields of the selection."""
        from kernelmark.api.plan import Selection

        return Selection(
            ops=comma_list(self.ops),
            problems=tuple(self.problems or ()),
            suites=comma_list(self.suites),
            axes=tuple(self.axes or ()),
            dtypes=comma_list(self.dtypes),
            filter=self.filter,
            limit=self.limit,
            **more,
        )


# Options whose names differ from the field of Timing.
_TIMING_FIELDS = {
    "max_blocks": "max_allocations",
    "samples": "min_samples",
    "target_ci": "target_rel_ci",
}


@dataclass(frozen=True, kw_only=True)
class TimingOptions(Options):
    """Options that set fields of a Timing, for every command that measures."""

    timing: TimingFile = None
    cache: CacheState = None
    strain: StrainKind = None
    duty: DutyKind = None
    threads: Threads = None
    max_s: MaxSeconds = None
    warmup_s: WarmupSeconds = None
    seed: Seed = None

    def timing_changes(self) -> dict[str, Any]:
        """Return the fields of Timing that the options set, including those of a subclass."""
        from kernelmark.core.timing import Timing

        known = {field.name for field in fields(Timing)}
        given = {_TIMING_FIELDS.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}
        return {n: value for n, value in given.items() if n in known and value is not None}


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
        asked = {name: getattr(self, name[2:]) for name in self.given}
        on_stdout = tuple(name for name, place in asked.items() if place == "-")
        if len(on_stdout) > 1:
            raise UsageError(
                Reason("stdout-shared", options=on_stdout), hint="give the others a file name"
            )
        for place in asked.values():
            check_writable(place)

    @property
    def given(self) -> tuple[str, ...]:
        """The options that were given."""
        names = ("json", "csv", "md")
        return tuple(f"--{name}" for name in names if getattr(self, name) is not None)

    @property
    def any(self) -> bool:
        return bool(self.given)

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
        asked = [(place, text) for place, text in pairs if place is not None and text is not None]
        with contextlib.ExitStack() as waiting:
            # Callbacks run in reverse order: stdout, last here, is written first.
            for place, text in sorted(asked, key=lambda pair: pair[0] == "-"):
                waiting.callback(lambda place, text: write(place, text()), place, text)


def check_alone(context: typer.Context, kept: Sequence[str], beside: str, *, hint: str) -> None:
    """Refuse options other than `kept`, which would be ignored in combination with `beside`."""
    words = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        ignored = parameter.name not in kept
        if ignored and source is not None and source.name == "COMMANDLINE":
            words.append(parameter.opts[-1])
    if words:
        raise UsageError(Reason("options-exclusive", options=tuple(words), other=beside), hint=hint)
