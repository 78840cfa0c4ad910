"""A request for cases, declared once: the options of `kmark run`, the arguments of `km.run` and the
keys of a nightly file are its fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelmark.backends import BackendRef, is_file, parse_all
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict, flag, flags

if TYPE_CHECKING:
    from kernelmark.core.result import Config, ConfigValue


def comma_list(texts: Iterable[str] | None) -> tuple[str, ...]:
    """Split the texts of a repeatable option at commas, without duplicates: `-b numpy,torch -b
    iree` names three backends."""
    names = [name.strip() for text in texts or () for name in text.split(",")]
    if names and not any(names):
        raise UsageError("an empty list names nothing", hint="leave it out, or name something")
    return tuple(dict.fromkeys(name for name in names if name))


def parse_ops(texts: Iterable[str] | None) -> tuple[str, ...]:
    """Return the ops that a comma-separated list names; refuse kernel files, which are backends."""
    names = comma_list(texts)
    for name in names:
        if is_file(name):
            raise UsageError(
                f"{name} is a kernel file, not an op",
                hint="give it by -b: a file that defines its own op needs no -o",
            )
    return names


def parse_backends(texts: Iterable[str] | None) -> tuple[BackendRef, ...]:
    """Return the backends that a comma-separated list names."""
    return parse_all(comma_list(texts))


def parse_config(texts: Iterable[str] | Config | None) -> Config:
    """Parse `name=value` texts into a config; the form of a value determines its type. A mapping is
    a config already."""
    from kernelmark.core.problem import parse_value

    if isinstance(texts, Mapping):
        return FrozenDict(texts)
    config: dict[str, ConfigValue] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"{text!r} is not NAME=VALUE", hint="write: --config tile=64")
        if name in config:
            raise UsageError(
                f"config {name!r} is given twice", hint="a run has one config; 'kmark ab' two"
            )
        config[name] = parse_value(value)
    return FrozenDict(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to measure.

    Problems come from `suites`, from `ops` with `axes`, or from `problems`; with a suite, `ops`
    filters it. No backends means all that support the problems. `canaries` adds the canaries to
    suites; filter and limit do not apply to them."""

    ops: tuple[str, ...] = flag(
        (),
        "-o --op OP",
        "Select ops, separated by commas. Repeatable.",
        parse=parse_ops,
        complete="ops",
        common=True,
    )
    suites: tuple[str, ...] = flag(
        (),
        "-s --suite SUITE",
        "Select suites, by name (kmark list suites) or TOML file.",
        parse=comma_list,
        complete="suites",
        common=True,
    )
    axes: tuple[str, ...] = flag(
        (),
        "-a --axis NAME=VALUES",
        "Set a parameter of the op, or sweep it: m=512, m=[1,2,4], m=[1024:8192:*2] (doubling), "
        "ta=t. Repeatable.",
        parse=tuple,
        common=True,
    )
    dtypes: tuple[str, ...] = flag(
        (),
        "--dtype DTYPE",
        "Set the dtypes, separated by commas; overrides those of a suite. Repeatable.",
        parse=comma_list,
        complete="dtypes",
        common=True,
    )
    problems: tuple[str, ...] = flag(
        (),
        "-p --problem KEY",
        "Add one complete problem: 'gemm m=512 n=512 k=512 dtype=f32'. Repeatable.",
        parse=tuple,
    )
    filter: str | None = flag(
        None,
        "--filter REGEX",
        "Keep only problems whose text matches, such as 'm=4096 '.",
        takes=str,
    )
    limit: int | None = flag(None, "--limit N", "Sample at most N problems, stratified.", takes=int)
    backends: tuple[BackendRef, ...] = flag(
        (),
        "-b --backend BACKEND",
        "Select backends, separated by commas. Repeatable. Default: every available one that "
        "supports a selected problem.",
        parse=parse_backends,
        complete="backends",
        common=True,
    )
    devices: tuple[str, ...] = flag(
        ("cpu",),
        "-d --device DEVICE",
        "Spread the cases over these devices: cpu, cuda:0, cuda:0-7, all. Default: cpu.",
        parse=comma_list,
        complete="devices",
        common=True,
    )
    config: Config = flag(
        FrozenDict(),
        "--config NAME=VALUE",
        "Set a tuning parameter of the backend. Repeatable.",
        takes=list,
        parse=parse_config,
    )
    canaries: bool = False

    @classmethod
    def parse(cls, **texts: Any) -> Selection:
        """Return a selection from the texts of its fields, as users write them; a field whose texts
        are empty keeps its default."""
        values: dict[str, Any] = {}
        for name, declared in flags(cls).items():
            text, parse = texts.pop(name, None), declared.parse
            if text is None or (parse is not None and not text):
                continue
            if (value := text if parse is None else parse(text)) != ():
                values[name] = value
        return cls(**values, **texts)


def format_axes(values: Mapping[str, object]) -> tuple[str, ...]:
    """Format Python values as axes: m=512, m=[256, 512], ta=("n", "t"), causal=True, m="[1:16]"."""
    return tuple(f"{name}={_axis_text(name, value)}" for name, value in values.items())


def _axis_text(name: str, value: object) -> str:
    from kernelmark.core.dtype import foreign_dtype

    if (dtype := foreign_dtype(value)) is not None:
        return dtype
    if hasattr(value, "tolist") and not isinstance(value, type):
        value = value.tolist()  # a NumPy array
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, Sequence):
        return f"[{','.join(_axis_text(name, item) for item in value)}]"
    raise UsageError(
        f"{name}={value!r} is not an axis", hint="give a number, a word, or a list of them"
    )
