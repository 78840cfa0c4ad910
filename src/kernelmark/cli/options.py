"""Every option, written once; commands that share a meaning share the option."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import typer

from kernelmark.core.errors import UsageError

SELECTION = "Selection"
MEASUREMENT = "Measurement"
OUTPUT = "Output"
RUNNING = "Running"


def _option(
    panel: str,
    *names: str,
    help: str,
    metavar: str | None = None,
    callback: Callable[[Any], Any] | None = None,
) -> Any:
    return typer.Option(
        *names, help=help, metavar=metavar, rich_help_panel=panel, callback=callback
    )


def _positive(value: float | None) -> float | None:
    if value is not None and not value > 0:
        raise typer.BadParameter(f"{value:g} must be positive")
    return value


def below_one(value: float | None) -> float | None:
    """A share, not a percentage: 5 would be ± 500 %."""
    if value is not None and value >= 1:
        meant = f"write {value / 100:g} for {value:g} %" if value <= 100 else "write 0.05 for 5 %"
        raise typer.BadParameter(f"{value:g} must be below 1\nit is a share: {meant}")
    return value


def _share(value: float | None) -> float | None:
    return below_one(_positive(value))


def _not_negative(value: float | None) -> float | None:
    if value is not None and not value >= 0:
        raise typer.BadParameter(f"{value:g} must not be negative")
    return value


Words = list[str] | None

Ops = Annotated[
    Words,
    _option(SELECTION, "-o", "--op", metavar="OP", help="Ops: a comma list, or repeated."),
]
Backends = Annotated[
    Words,
    _option(
        SELECTION,
        "-b",
        "--backend",
        metavar="BACKEND",
        help="Backends: a comma list, or repeated. For run the default is all that are available "
        "and can do one of the op's problems.",
    ),
]
Devices = Annotated[
    Words,
    _option(
        SELECTION,
        "-d",
        "--device",
        metavar="DEVICE",
        help="Devices that share the cases: cpu, cuda:0, cuda:0-7, all. Default: cpu.",
    ),
]
Suites = Annotated[
    Words,
    _option(
        SELECTION,
        "-s",
        "--suite",
        metavar="SUITE",
        help="Suites by name (kmark list suites), or TOML files of your own.",
    ),
]
Axes = Annotated[
    Words,
    _option(
        SELECTION,
        "-a",
        "--axis",
        metavar="NAME=VALUES",
        help="A parameter and its values: m=512, m=[1,2,4], m=[1024:8192:*2], ta=t. Repeated.",
    ),
]
Problems = Annotated[
    Words,
    _option(
        SELECTION,
        "-p",
        "--problem",
        metavar="KEY",
        help="A problem written out: 'gemm m=512 n=512 k=512 dtype=f32'. Repeated.",
    ),
]
Dtypes = Annotated[
    Words,
    _option(
        SELECTION,
        "--dtype",
        metavar="DTYPE",
        help="Dtypes: a comma list, or repeated. Replaces those of a suite.",
    ),
]
Filter = Annotated[
    str | None,
    _option(
        SELECTION,
        "--filter",
        metavar="REGEX",
        help="Only problems whose key the expression is found in.",
    ),
]
Limit = Annotated[
    int | None,
    _option(SELECTION, "--limit", metavar="N", help="A fair sample of at most N problems."),
]
ConfigWords = Annotated[
    Words,
    _option(
        SELECTION, "--config", metavar="NAME=VALUE", help="A backend's tunable choice. Repeated."
    ),
]

Preset = Annotated[
    Literal["quick", "default", "full"],
    _option(
        MEASUREMENT, "--timing", metavar="quick|default|full", help="How thoroughly to measure."
    ),
]
CacheState = Annotated[
    Literal["cold", "hot", "flush"] | None,
    _option(
        MEASUREMENT, "--cache", metavar="cold|hot|flush", help="State of the caches at each launch."
    ),
]
TimerKind = Annotated[
    Literal["auto", "loop", "graph", "gate", "profiler"] | None,
    _option(
        MEASUREMENT,
        "--timer",
        metavar="auto|loop|graph|gate|profiler",
        help="What the clock is put around.",
    ),
]
StrainKind = Annotated[
    Literal["none", "bandwidth", "compute"] | None,
    _option(
        MEASUREMENT,
        "--strain",
        metavar="none|bandwidth|compute",
        help="Work between launches, to stand for a model's rest.",
    ),
]
DutyKind = Annotated[
    Literal["sustained", "burst"] | None,
    _option(
        MEASUREMENT,
        "--duty",
        metavar="sustained|burst",
        help="Launch without a pause, or with rests.",
    ),
]
Threads = Annotated[
    int | None,
    _option(
        MEASUREMENT,
        "--threads",
        metavar="N",
        callback=_not_negative,
        help="CPU threads. Default: every usable core.",
    ),
]
Processes = Annotated[
    int | None,
    _option(
        MEASUREMENT,
        "--processes",
        metavar="N",
        callback=_positive,
        help="Measure each case in N fresh processes.",
    ),
]
MaxSeconds = Annotated[
    float | None,
    _option(
        MEASUREMENT,
        "--max-s",
        metavar="S",
        callback=_positive,
        help="Cap on the timed seconds of a case in a process.",
    ),
]
WarmupSeconds = Annotated[
    float | None,
    _option(
        MEASUREMENT,
        "--warmup-s",
        metavar="S",
        callback=_not_negative,
        help="Cap on the seconds of warm-up of a case in a process.",
    ),
]
MaxBlocks = Annotated[
    int | None,
    _option(
        MEASUREMENT,
        "--max-blocks",
        metavar="N",
        help="Cap on the blocks (sets of fresh memory) of a case in a process.",
    ),
]
TargetCi = Annotated[
    float | None,
    _option(
        MEASUREMENT,
        "--target-ci",
        metavar="SHARE",
        callback=_share,
        help="Stop when the interval's half-width is under this share of the median: 0.02 is 2 %.",
    ),
]
Seed = Annotated[
    int | None,
    _option(
        MEASUREMENT,
        "--seed",
        metavar="N",
        callback=_not_negative,
        help="Seed of the inputs and of --limit.",
    ),
]
Roofs = Annotated[
    Literal["stored", "fresh", "none"],
    _option(
        MEASUREMENT,
        "--roofs",
        metavar="stored|fresh|none",
        help="What to compare with: roofs stored up to a week ago, fresh ones, none.",
    ),
]

StorePlace = Annotated[
    str | None,
    _option(
        OUTPUT,
        "--store",
        metavar="PATH|URL",
        help="The store. Default: $KERNELMARK_STORE, else the user's own.",
    ),
]
NoStore = Annotated[bool, _option(OUTPUT, "--no-store", help="Keep nothing in a store.")]
NoSentinels = Annotated[
    bool,
    _option(
        SELECTION,
        "--no-sentinels",
        help="Leave out the sentinels: a launch, a copy and a product, measured beside every "
        "stored run of a suite so that a change of the machine is told from one of the code.",
    ),
]
Label = Annotated[
    str, _option(OUTPUT, "--label", metavar="TEXT", help="A name for the run, to find it by.")
]
Json = Annotated[
    str | None,
    _option(OUTPUT, "--json", metavar="FILE|-", help="Write JSON there; - is stdout."),
]
Csv = Annotated[
    str | None, _option(OUTPUT, "--csv", metavar="FILE|-", help="Write CSV there; - is stdout.")
]
Md = Annotated[
    str | None,
    _option(OUTPUT, "--md", metavar="FILE|-", help="Write Markdown there; - is stdout."),
]
Quiet = Annotated[
    bool, _option(OUTPUT, "-q", "--quiet", help="No progress and no notes, only what holds it up.")
]

Resume = Annotated[
    str | None,
    _option(
        RUNNING,
        "--resume",
        metavar="[RUN]",
        help="Go on with an unfinished run, the newest if none is named. Nothing that it has a "
        "result for is measured again.",
    ),
]
RetryFailed = Annotated[
    bool, _option(RUNNING, "--retry-failed", help="With --resume: measure again what failed.")
]
DryRun = Annotated[
    bool,
    _option(RUNNING, "--dry-run", help="List the cases and the expected time; run nothing."),
]
Timeout = Annotated[
    float,
    _option(
        RUNNING, "--timeout", metavar="S", help="Seconds a case may take, compiling not counted."
    ),
]
Jobs = Annotated[
    int | None,
    _option(RUNNING, "--jobs", metavar="N", help="Host cores that compile ahead. Default: all."),
]

RunRef = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        help="A run: its id or the beginning of it, label, latest, latest~1, or an exported "
        "JSON file.",
    ),
]
StatusWords = Annotated[
    Words,
    _option(SELECTION, "--status", metavar="STATUS", help="Only results that ended so: ok, …"),
]


def comma_list(given: Iterable[str] | None) -> tuple[str, ...]:
    """`-b numpy,torch -b iree` as three words, each once, in order."""
    words = [word.strip() for text in given or () for word in text.split(",")]
    if words and not any(words):
        raise UsageError("an empty list names nothing", hint="leave it out, or name something")
    return tuple(dict.fromkeys(word for word in words if word))


def check_alone(context: typer.Context, kept: Sequence[str], beside: str, *, hint: str) -> None:
    """Refuse options that would be ignored `beside` what was asked for: all but the `kept` ones."""
    given = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        ignored = parameter.name not in kept
        if ignored and source is not None and source.name == "COMMANDLINE":
            given.append(parameter.opts[-1])
    if given:
        verb = "do" if len(given) > 1 else "does"
        raise UsageError(f"{', '.join(given)} {verb} not go with {beside}", hint=hint)
