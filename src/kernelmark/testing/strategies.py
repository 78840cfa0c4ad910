"""Hypothesis strategies that draw values by the types of their fields, so that a new field is
drawn, and must round-trip, without a change here."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, get_args, get_origin

from hypothesis import strategies as st

from kernelmark.core.dtype import DTYPES
from kernelmark.core.metric import Metric, PointColumn
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason, failed_checks
from kernelmark.core.result import Block, Case, Measurement, Mode, Result
from kernelmark.core.timing import Timing
from kernelmark.core.units import spread_text

_names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
_any_text = st.text(st.characters(), max_size=12)  # NUL and lone surrogates too


def problems() -> st.SearchStrategy[Problem]:
    """Return a strategy for legal problems of any op."""
    options = st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
    return st.builds(
        lambda op, dims, dtypes, options: Problem(
            op=op,
            dims={f"d_{name}": value for name, value in dims.items()},
            dtypes={f"t_{name}": value for name, value in dtypes.items()},
            options={f"o_{name}": value for name, value in options.items()},
        ),
        _names,
        st.dictionaries(_names, st.integers(1, 2**40), max_size=3),
        st.dictionaries(_names, st.sampled_from(sorted(DTYPES)), max_size=3),
        st.dictionaries(_names, options, max_size=3),
    )


def timings() -> st.SearchStrategy[Timing]:
    """Return a strategy for legal timings."""
    positive = st.floats(1e-9, 9e5)
    special: dict[str, st.SearchStrategy[Any]] = {
        "processes": st.integers(1, 9),
        "allocations": st.integers(1, 9),
        "max_allocations": st.integers(9, 99),
        "min_samples": st.integers(1, 99),
        "threads": st.integers(0, 999),
        "seed": st.integers(0, 2**40),
    }
    fields = dict.fromkeys(("min_sample_s", "target_rel_ci", "max_s", "warmup_s"), positive)
    return _built(Timing, special | fields)


def results() -> st.SearchStrategy[Result]:
    """Return a strategy for results with every field drawn by its type."""
    backends = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9)
    values = (
        _any_text | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
    )
    cases = _built(
        Case,
        {
            "problem": problems(),
            "timing": timings(),
            "backend": backends,
            "config": st.dictionaries(_any_text, values, max_size=3),
            "name": st.just(""),  # a store keeps it instead of the backend's path
        },
    )
    counts = st.integers(0, 2**80)
    # Ok results have no impossible values: limits are tested elsewhere.
    figures = st.floats(0, 1e300)
    metrics = _built(Metric, {"value": figures, "limit": st.none(), "least": st.none()})
    columns = _built(PointColumn, {"name": _any_text.map("c_{}".format)})
    cells = _any_text | st.integers() | st.booleans() | figures | st.none()
    special = {
        "metrics": st.lists(metrics, max_size=3).map(tuple),
        "columns": st.lists(columns, max_size=3).map(tuple),
        "rows": st.lists(st.dictionaries(_any_text, cells, max_size=3), max_size=3).map(tuple),
        "case": cases,
        "flops": counts,
        "bytes": counts,
        "measurement": st.none() | measurements(),
    }
    return _built(Result, special)


def measurements() -> st.SearchStrategy[Measurement]:
    """Return a strategy for legal measurements: times are positive and finite."""
    times = st.lists(st.floats(5e-324, 1e300), min_size=1, max_size=4).map(tuple)
    blocks = _built(Block, {"samples_s": times})
    modes = _built(
        Mode, {"value_s": st.floats(5e-324, 1e300), "share": st.floats(0, 1, exclude_min=True)}
    )
    special = {
        "blocks": st.lists(blocks, min_size=1, max_size=4).map(tuple),
        "modes": st.lists(modes, max_size=4).map(tuple),
    }
    return _built(Measurement, special)


def _built(kind: type, special: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind,
        **{
            f.name: special[f.name] if f.name in special else _drawn(hints[f.name])
            for f in dataclasses.fields(kind)
        },
    )


@functools.cache
def _drawn(hint: Any) -> st.SearchStrategy[Any]:
    origin, items = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(st.none() if i is type(None) else _drawn(i) for i in items))
    if origin is typing.Literal:
        return st.sampled_from(items)
    if origin is tuple:
        return st.lists(_drawn(items[0]), max_size=4).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(_any_text, _drawn(items[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        return _built(typing.cast(type, hint), {})
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    simple: dict[Any, st.SearchStrategy[Any]] = {
        Reason: reasons(),
        float: st.floats(),
        int: st.integers(0, 2**53),
        str: _any_text,
        bool: st.booleans(),
    }
    return simple[hint]


def reasons() -> st.SearchStrategy[Reason]:
    """Return a strategy for sentences and for reasons with numbers, lists and causes."""
    plain = _any_text.map(Reason.of)
    limit = st.floats(allow_nan=False)
    wide = st.builds(
        lambda width: Reason(
            f"interval: {spread_text(width)} is above the target of "
            f"{spread_text(0.1)}: allow more time (--max-s) or more blocks (max_allocations)",
            "interval-above-target",
            width=width,
            target=0.1,
        ),
        limit,
    )
    many = st.lists(st.one_of(plain, wide), max_size=3).map(lambda found: failed_checks(found, 2))
    caused = st.builds(
        lambda cause: Reason(f"not cross-checked: {cause}", "not-cross-checked", cause=cause), many
    )
    return st.one_of(plain, wide, many, caused)


def same(one: object, other: object) -> bool:
    """Return whether values are bit-identical: nan equals nan, and -0.0 differs from 0.0."""
    return type(one) is type(other) and repr(one) == repr(other)
