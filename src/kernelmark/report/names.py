"""Short names of problems, and the command that measures a case again."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kernelmark import backends, ops
from kernelmark.backends._lineage import place_of
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.micro import benchmark_name, is_micro, mode_of, parameters_of
from kernelmark.core.problem import Problem, parse_key
from kernelmark.core.result import Case, Config, Result, Run
from kernelmark.core.timing import PRESETS, Timer, Timing
from kernelmark.micro import registry as micro

# Written even if equal to the default: without them a GEMM reads as a plain one.
_ALWAYS = ("dtype", "scheme")
_USUAL = Timing()
_LONGEST = 40  # maximum characters of a parameter's value in a table
_MOST_NAMES = 3  # maximum backends named in a sentence
_TIMING_OPTIONS = {
    "processes": "--processes",
    "max_allocations": "--max-blocks",
    "target_rel_ci": "--target-ci",
    "max_s": "--max-s",
    "warmup_s": "--warmup-s",
    "seed": "--seed",
}


def short(problem: Problem) -> str:
    """Return the problem's key without redundant parameters; `ops.parse` is the inverse."""
    return _short(problem.key)


@functools.lru_cache(maxsize=100_000)
def _short(key: str) -> str:
    problem = parse_key(key)
    if problem.options.get("mode") and problem.op in micro:
        return _short_micro(problem)
    try:
        ops.registry.get(problem.op)
    except KernelmarkError:  # a plugin that is not installed or does not load
        return key
    for dtype in dict.fromkeys(problem.dtypes.values()):
        with contextlib.suppress(KernelmarkError):  # another dtype is the one to derive from
            text = _without_defaults(problem, dtype)
            if ops.parse(text) == problem:
                return text
    return key


def _without_defaults(problem: Problem, dtype: str) -> str:
    """Return the problem without the words that the op fills in, given the sizes that it needs and
    the dtype that others are derived from."""
    values = dict(word.split("=", 1) for word in problem.key.split()[1:])
    needed = {name: values[name] for name in problem.dims if name not in _optional(problem.op)}
    always = {name: values[name] for name in _ALWAYS if name in values}
    usual = ops.parse(_text(problem.op, {**needed, "dtype": dtype, **always})).key.split()
    explicit = {
        name: word
        for name, word in values.items()
        if name in needed or name in always or f"{name}={word}" not in usual
    }
    sizes = {name: word for name, word in explicit.items() if name in problem.dims}
    rest = {name: word for name, word in explicit.items() if name not in problem.dims}
    return _text(problem.op, {**_with_shorthands(problem.op, sizes), "dtype": dtype} | rest)


@functools.cache
def _optional(op_name: str) -> frozenset[str]:
    """Return the sizes that an op has defaults for. Those of a user-defined op are not known
    elsewhere, so they are always written."""
    from kernelmark.ops._own import OwnOp

    op = ops.registry.get(op_name)
    if isinstance(op, OwnOp) or not op.examples:
        return frozenset()
    example = ops.parse(op.examples[0])
    key_words = example.key.split()
    return frozenset(
        name
        for name in example.dims
        if _parses(" ".join(word for word in key_words if not word.startswith(f"{name}=")))
    )


def _parses(text: str) -> bool:
    try:
        return bool(ops.parse(text))
    except KernelmarkError:
        return False


def _with_shorthands(op_name: str, dims: Mapping[str, str]) -> dict[str, str]:
    """Return the sizes with `stride=2` instead of stride_h=2 stride_w=2."""
    values = dict(dims)
    for short_name in ops.registry.get(op_name).parameters:
        names = [name for name in values if name.startswith(f"{short_name}_")]
        if (
            short_name not in values
            and len(names) > 1
            and len({values[name] for name in names}) == 1
        ):
            values = {short_name if n == names[0] else n: w for n, w in values.items()}
            values = {name: word for name, word in values.items() if name not in names}
    return values


def _text(op: str, values: Mapping[str, str]) -> str:
    return " ".join([op, *(f"{name}={text}" for name, text in values.items())])


def _short_micro(problem: Problem) -> str:
    """Return the benchmark, its mode and the parameters that differ from the mode's."""
    explicit = [f"{name}={_abbreviated(value)}" for name, value in _chosen(problem).items()]
    return " ".join([benchmark_name(problem), mode_of(problem), *explicit])


def _chosen(problem: Problem) -> dict[str, str]:
    """Return the parameters of a microbenchmark that differ from its mode's."""
    from kernelmark.micro.base import MODES  # imports numpy, which few tables need

    mode = next((item for item in MODES if item == mode_of(problem)), None)
    usual = micro.get(problem.op).case_parameters(mode, {}) if mode else {}
    values = {name: option_text(value) for name, value in parameters_of(problem).items()}
    return {n: text for n, text in values.items() if text != option_text(usual.get(n))}


def _abbreviated(value: str) -> str:
    if len(value) <= _LONGEST:
        return value
    each = value.split(",")
    return f"{each[0]},…,{each[-1]} ({len(each)})" if len(each) > 2 else f"{value[:_LONGEST]}…"


def config_text(config: Config) -> str:
    """Return `tile=64 stages=2`; "" for the backend's default config."""
    return " ".join(f"{name}={option_text(value)}" for name, value in sorted(config.items()))


def backend_text(case: Case) -> str:
    """Return the backend, with its config if it has one."""
    config = config_text(case.config)
    return f"{case.backend} [{config}]" if config else case.backend


def distinguishing(names: Sequence[tuple[str, ...]], timings: Sequence[Timing | str]) -> list[str]:
    """Return for each row the timing fields in which it differs from rows with the same names, as
    `cache=hot threads=1`; "" for a row whose names are unique."""
    counts = Counter(names)
    alike: dict[tuple[str, ...], list[dict[str, str]]] = {}
    fields = [
        _timing_fields(timing) if counts[name] > 1 else {}
        for name, timing in zip(names, timings, strict=True)
    ]
    for name, own in zip(names, fields, strict=True):
        alike.setdefault(name, []).append(own)
    return [
        " ".join(
            f"{field}={value}"
            for field, value in own.items()
            if any(row.get(field) != value for row in alike[name])
        )
        for name, own in zip(names, fields, strict=True)
    ]


def timing_text(result: Result, run: Run) -> str:
    """Return the settings of a measurement; of another tool, that they are unknown, and its
    method."""
    if not run.imported:
        return result.case.timing.identity
    return f"unknown ({result.measurement.method})" if result.measurement else "unknown"


def _timing_fields(timing: Timing | str) -> dict[str, str]:
    text = timing if isinstance(timing, str) else timing.identity
    fields = {name: value for name, _, value in (word.partition("=") for word in text.split())}
    if fields.get("threads") == "0":
        fields["threads"] = "all"
    return fields


def first_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the different names: at most three of them, then `4 more`."""
    distinct = tuple(dict.fromkeys(names))
    rest = len(distinct) - _MOST_NAMES
    return distinct if rest <= 0 else (*distinct[:_MOST_NAMES], f"{rest} more")


def rerun(result: Result, more: Sequence[str] = ()) -> str:
    """Return the command that measures this case again, with `more` arguments; "" if it cannot."""
    case = result.case
    if is_micro(case):
        return _micro_again(result, more)
    ours = result.measurement is None or result.measurement.timed_s > 0
    is_known = case.backend in backends.registry or backends.is_file(case.backend)
    if result.device == "unknown" or not (ours or is_known):
        return ""
    installed = case.backend in backends.registry
    if installed and case.problem.op not in ops.registry:
        return ""  # e.g. a whole IREE module: the problem does not include its file
    path_or_name = case.backend if installed else place_of(case.backend)
    judged = case.timing.timer is Timer.OUTSIDE
    if judged and installed:
        return ""  # the reference of a kernel that was judged
    arguments = ["kmark", "judge", path_or_name, "-p", short(case.problem)]
    if not judged:
        arguments = ["kmark", "run", "-p", short(case.problem), "-b", path_or_name]
    if result.device != "cpu":
        arguments += ["-d", result.device]
    for name, value in sorted(case.config.items()):
        arguments += ["--config", f"{name}={option_text(value)}"]
    arguments += [] if judged else _timing_words(case.timing)
    for name in ("threads",) if judged else ("cache", "timer", "strain", "duty", "threads"):
        value = getattr(case.timing, name)
        if value != getattr(_USUAL, name):
            arguments += [f"--{name}", str(value)]
    return shlex.join([*arguments, *more])


def _micro_again(result: Result, more: Sequence[str]) -> str:
    problem = result.case.problem
    if problem.op not in micro:
        return ""
    arguments = ["kmark", "micro", benchmark_name(problem), f"--{mode_of(problem)}"]
    arguments += ["-d", result.device] if result.device != "cpu" else []
    threads = result.case.timing.threads
    arguments += ["--threads", str(threads)] if threads else []
    arguments += [
        word for name, text in _chosen(problem).items() for word in ("-p", f"{name}={text}")
    ]
    return shlex.join([*arguments, *more])


def _timing_words(timing: Timing) -> list[str]:
    """Return the options for a timing's stop rule: the preset that needs the fewest overrides."""
    candidates: list[list[str]] = []
    for name, preset in PRESETS.items():
        options = [] if name == "default" else ["--timing", name]
        for field, option in _TIMING_OPTIONS.items():
            value = getattr(timing, field)
            if value != getattr(preset, field):
                options += [option, str(value)]
        candidates.append(options)
    return min(candidates, key=len)


def option_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
