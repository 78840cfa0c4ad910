"""Short names of problems, and the command that measures a case again."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable, Mapping, Sequence

from kernelmark import backends, ops
from kernelmark.backends._lineage import place_of
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.micro import benchmark_name, is_micro, mode_of, parameters_of
from kernelmark.core.problem import Problem, parse_key
from kernelmark.core.result import Case, Config, Result
from kernelmark.core.timing import PRESETS, Timing
from kernelmark.micro import registry as micro

# Written even if equal to the default: without them a GEMM reads as a plain one.
_ALWAYS = ("dtype", "scheme")
_USUAL = Timing()
_LONGEST = 40  # maximum characters of a parameter's value in a table
_MOST_NAMES = 3  # maximum backends named in a sentence
_STOP_RULE = {
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
    given = dict(word.split("=", 1) for word in key.split()[1:])
    likeness = _likeness(problem)
    words = _words(_SHAPES.get(likeness, ()), given)
    if not words or not _same(problem, words):
        shape = _shape(problem, given)
        _SHAPES[likeness] = shape
        words = _words(shape, given)
    return _text(problem.op, words)


def _short_micro(problem: Problem) -> str:
    """Return the benchmark, its mode and the parameters that differ from the mode's."""
    given = [f"{name}={_abbreviated(value)}" for name, value in _chosen(problem).items()]
    return " ".join([benchmark_name(problem), mode_of(problem), *given])


def _chosen(problem: Problem) -> dict[str, str]:
    """Return the parameters of a microbenchmark that differ from its mode's."""
    from kernelmark.micro.base import MODES  # imports numpy, which few tables need

    mode = next((one for one in MODES if one == mode_of(problem)), None)
    usual = micro.get(problem.op).case_parameters(mode, {}) if mode else {}
    given = {name: option_text(value) for name, value in parameters_of(problem).items()}
    return {n: text for n, text in given.items() if text != option_text(usual.get(n))}


def _abbreviated(value: str) -> str:
    if len(value) <= _LONGEST:
        return value
    each = value.split(",")
    return f"{each[0]},…,{each[-1]} ({len(each)})" if len(each) > 2 else f"{value[:_LONGEST]}…"


# Which words are needed depends on which values are defaults or equal to each other, hardly on the
# values: problems alike in that are shortened alike, and the result is verified.
_Shape = tuple[tuple[str, str], ...]  # (name to write, name whose value it has in the key)
_SHAPES: dict[tuple[object, ...], _Shape] = {}


def _likeness(problem: Problem) -> tuple[object, ...]:
    sizes = list(problem.dims.values())
    dims = tuple(size if size < 2 else -sizes.index(size) - 1 for size in sizes)
    return problem.op, dims, *problem.dtypes.values(), *problem.options.values()


def _shape(problem: Problem, given: Mapping[str, str]) -> _Shape:
    """Return the fewest words that still parse to the problem, found by greedy removal."""
    from kernelmark.ops._own import OwnOp

    # Always write the dims of a user-defined op: its defaults are not known elsewhere.
    own = isinstance(ops.registry.get(problem.op), OwnOp)
    kept = (*_ALWAYS, *problem.dims) if own else _ALWAYS
    shape = _with_dtype(problem, given)
    for name in ops.registry.get(problem.op).parameters:
        if name not in given and name != "dtype":
            candidate = _with_shorthand(shape, name)
            shape = candidate if _same(problem, _words(candidate, given)) else shape
    for pair in reversed(shape):
        fewer = tuple(other for other in shape if other != pair)
        if pair[0] not in kept and _same(problem, _words(fewer, given)):
            shape = fewer
    return shape


def _with_dtype(problem: Problem, given: Mapping[str, str]) -> _Shape:
    """Return the shape with `dtype=` before the dtypes, if one of them can be derived from it."""
    whole = [(name, name) for name in given]
    position = len(problem.dims)
    for source in problem.dtypes:
        candidate = (*whole[:position], ("dtype", source), *whole[position:])
        if _same(problem, _words(candidate, given)):
            return candidate
    return tuple(whole)


def _with_shorthand(shape: _Shape, short_name: str) -> _Shape:
    """Return the shape with `stride=2` instead of stride_h=2 stride_w=2."""
    long_names = [name for name, _ in shape if name.startswith(f"{short_name}_")]
    if len(long_names) < 2:
        return shape
    return tuple(
        (short_name, source) if name == long_names[0] else (name, source)
        for name, source in shape
        if name not in long_names[1:]
    )


def _words(shape: _Shape, given: Mapping[str, str]) -> dict[str, str]:
    return {name: given[source] for name, source in shape}


def _same(problem: Problem, words: Mapping[str, str]) -> bool:
    try:
        return ops.parse(_text(problem.op, words)) == problem
    except KernelmarkError:
        return False


def _text(op: str, words: Mapping[str, str]) -> str:
    return " ".join([op, *(f"{name}={text}" for name, text in words.items())])


def config_text(config: Config) -> str:
    """Return `tile=64 stages=2`; "" for the backend's default config."""
    return " ".join(f"{name}={option_text(value)}" for name, value in sorted(config.items()))


def backend_text(case: Case) -> str:
    """Return the backend, with its config if it has one."""
    config = config_text(case.config)
    return f"{case.backend} [{config}]" if config else case.backend


def first_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the different names: at most three of them, then `4 more`."""
    found = tuple(dict.fromkeys(names))
    rest = len(found) - _MOST_NAMES
    return found if rest <= 0 else (*found[:_MOST_NAMES], f"{rest} more")


def rerun(result: Result, more: Sequence[str] = ()) -> str:
    """Return the command that measures this case again, with `more` arguments; "" if it cannot."""
    case = result.case
    if is_micro(case):
        return _micro_again(result, more)
    ours = result.measurement is None or result.measurement.timed_s > 0
    known = case.backend in backends.registry or backends.is_file(case.backend)
    if result.device == "unknown" or not (ours or known):
        return ""
    installed = case.backend in backends.registry
    if installed and case.problem.op not in ops.registry:
        return ""  # e.g. a whole IREE module: the problem does not include its file
    path_or_name = case.backend if installed else place_of(case.backend)
    words = ["kmark", "run", "-p", short(case.problem), "-b", path_or_name]
    if result.device != "cpu":
        words += ["-d", result.device]
    for name, value in sorted(case.config.items()):
        words += ["--config", f"{name}={option_text(value)}"]
    words += _timing_words(case.timing)
    for name in ("cache", "timer", "strain", "duty", "threads"):
        value = getattr(case.timing, name)
        if value != getattr(_USUAL, name):
            words += [f"--{name}", str(value)]
    return shlex.join([*words, *more])


def _micro_again(result: Result, more: Sequence[str]) -> str:
    problem = result.case.problem
    if problem.op not in micro:
        return ""
    words = ["kmark", "micro", benchmark_name(problem), f"--{mode_of(problem)}"]
    words += ["-d", result.device] if result.device != "cpu" else []
    threads = result.case.timing.threads
    words += ["--threads", str(threads)] if threads else []
    words += [word for name, text in _chosen(problem).items() for word in ("-p", f"{name}={text}")]
    return shlex.join([*words, *more])


def _timing_words(timing: Timing) -> list[str]:
    """Return the options for a timing's stop rule: the preset that needs the fewest overrides."""
    found: list[list[str]] = []
    for name, preset in PRESETS.items():
        words = [] if name == "default" else ["--timing", name]
        for field, option in _STOP_RULE.items():
            value = getattr(timing, field)
            if value != getattr(preset, field):
                words += [option, str(value)]
        found.append(words)
    return min(found, key=len)


def option_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
