"""One JSON form for every value: exact, versioned, strict.

A document is `{"kernelmark": "<kind>", "version": 1, …fields}`. Nested values have no envelope.
Unknown fields, missing fields, wrong types and unknown versions raise a CodecError that names the
path. Floats are exact; `nan` and infinities are strings, because JSON has no numbers for them. A
field marked `OPTIONAL` was added later: it is not written if it has its default, and may be
missing, so that new tools read old files, and old tools read files without it. A field that holds a
`Reason` is written as its sentence; code and fields are in `reasons` of the same object.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar, cast

from kernelmark.core.environment import Environment
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Roof
from kernelmark.core.problem import Problem, parse_key
from kernelmark.core.reason import Reason, prefixed, read_reason, reason_documents
from kernelmark.core.result import OPTIONAL, Case, Result, ResultSet, Run
from kernelmark.core.units import join_commas
from kernelmark.core.verdict import Verdict

VERSION = 1
REASONS = "reasons"  # codes and fields of the sentences of an object, by the name of the field
KINDS: dict[str, type] = {
    "case": Case,
    "environment": Environment,
    "result": Result,
    "results": ResultSet,
    "roof": Roof,
    "run": Run,
    "verdict": Verdict,
}
T = TypeVar("T")
Json = Any
_PLAIN = frozenset({str, int, bool, type(None)})  # unchanged in JSON; not their subclasses


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict of pairs; raise ValueError for a duplicate key, of which JSON readers silently
    drop the first value."""
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice} is given twice")
    return document


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ONCE = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=once)


def dumps(value: object) -> str:
    """Return a value as one line of JSON, with its envelope."""
    return json.dumps(to_document(value), separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes, kind: type[T]) -> T:
    """Return the value of type `kind` that `dumps` wrote."""
    return from_document(parse(text), kind)


def parse(text: str | bytes, *, foreign: bool = False) -> Json:
    """Return the values of a JSON text; raise CodecError if it is not JSON, or, if another tool
    wrote it (`foreign`), if an object has a key twice."""
    try:
        text = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise CodecError("it is not text") from None
    if not text.strip():
        raise CodecError("it is empty")
    try:
        return (_ONCE if foreign else _DECODER).decode(text)
    except (ValueError, RecursionError) as error:
        begun = text.lstrip().startswith(("{", "["))
        raise CodecError(
            f"not JSON: {error}", hint="is the file cut short?" if begun else None
        ) from None


def to_document(value: object) -> dict[str, Json]:
    """Return a value as JSON values, with its envelope."""
    for name, kind in KINDS.items():
        if type(value) is kind:
            return {"kernelmark": name, "version": VERSION, **plain(value)}
    raise TypeError(f"{type(value).__name__} is not a document kind")


def from_document(document: Json, kind: type[T]) -> T:
    """Return the value of a document; the strict inverse of `to_document`."""
    kind_name = next(name for name, registered in KINDS.items() if registered is kind)
    fields = open_envelope(document, kind_name)
    return cast(T, read(fields, kind, kind_name))


def open_envelope(document: Json, kind_name: str) -> dict[str, Json]:
    """Return a document's fields, after checking that it is of kind `kind_name` and of a known
    version."""
    if not isinstance(document, dict) or "kernelmark" not in document:
        raise CodecError(f"not a kernelmark {kind_name} document: no 'kernelmark' field")
    if document["kernelmark"] != kind_name:
        raise CodecError(
            f"a kernelmark {document['kernelmark']!r} document, not a {kind_name!r} one"
        )
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise CodecError(
            f"{kind_name}: version {version!r} is not known; this kernelmark reads {VERSION}",
            hint="upgrade kernelmark, or export again with this version",
        )
    return {k: v for k, v in document.items() if k not in ("kernelmark", "version")}


def plain(value: Any) -> Json:
    """Return any value as JSON values, without an envelope."""
    kind = type(value)
    if kind in _PLAIN or (kind is float and math.isfinite(value)):
        return value
    if isinstance(value, Problem):
        return value.key
    if dataclasses.is_dataclass(kind):
        optional = _optional(kind)
        fields = {}
        for field in dataclasses.fields(kind):
            field_value = getattr(value, field.name)
            if field.name not in optional or field_value != field.default:
                fields[field.name] = plain(field_value)
        coded = reason_documents({name: getattr(value, name) for name in _coded(kind)})
        return {**fields, REASONS: coded} if coded else fields
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        if all(type(v) is float for v in value) and all(map(math.isfinite, value)):
            return list(value)
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def read(value: Json, hint: Any, where: str) -> Any:
    """Return `value` as the type `hint`; raise a CodecError that names `where`."""
    return _reader(hint)(value, hint, where)


def json_schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of the documents of a kind. What values must be to each other, as
    samples and interval of a measurement, is checked only when they are read."""
    name = next(name for name, registered in KINDS.items() if registered is kind)
    fields = _schema(kind)
    return {
        **fields,
        "required": ["kernelmark", "version", *fields["required"]],
        "properties": {
            "kernelmark": {"const": name},
            "version": {"const": VERSION},
            **fields["properties"],
        },
    }


_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
_SCHEMAS: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    float: _NUMBER,
    type(None): {"type": "null"},
    Reason: {"type": "string", "description": "a sentence"},
    Problem: {"type": "string", "description": "the key of a problem"},
}


def _schema(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema of what `_reader` reads as this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCHEMAS:
        return _SCHEMAS[hint]
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(argument) for argument in arguments]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is not None:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if not dataclasses.is_dataclass(hint):
        return {"enum": [member.value for member in hint]}
    hints = _hints(cast(type, hint))
    coded = {REASONS: {"type": "object"}} if _coded(cast(type, hint)) else {}
    return {
        "type": "object",
        "required": sorted(hints.keys() - _optional(cast(type, hint))),
        "properties": {**{name: _schema(field) for name, field in hints.items()}, **coded},
        "additionalProperties": False,
    }


@functools.cache
def _reader(hint: Any) -> Callable[[Json, Any, str], Any]:
    """Return the function that reads values of the type `hint`. It is cached, because the lookup
    takes longer than reading."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _read_union
    if origin is typing.Literal:
        return _read_literal
    if origin is tuple:
        return _read_tuple
    if origin is not None and issubclass(origin, Mapping):
        return _read_mapping
    if hint is Reason:
        return _read_reason
    if hint is Problem:
        return _read_problem
    if dataclasses.is_dataclass(hint):
        return _read_fields
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _read_enum
    return _read_scalar


def _read_literal(value: Json, hint: Any, where: str) -> Any:
    if value not in _arguments(hint):
        raise CodecError(_not_one_of(where, value, _arguments(hint)))
    return value


def _read_tuple(value: Json, hint: Any, where: str) -> tuple[Any, ...]:
    _expect(isinstance(value, list), where, "a list", value)
    item = _arguments(hint)[0]
    if item is float and all(type(v) is float for v in value):
        return tuple(value)
    return tuple(read(v, item, f"{where}[{i}]") for i, v in enumerate(value))


def _read_mapping(value: Json, hint: Any, where: str) -> FrozenDict[Any]:
    _expect(isinstance(value, dict), where, "an object", value)
    item = _arguments(hint)[1]
    return FrozenDict({k: read(v, item, f"{where}.{k}") for k, v in value.items()})


def _read_reason(value: Json, hint: Any, where: str) -> Reason:
    _expect(isinstance(value, str), where, "a string", value)
    return Reason.of(value)


def _read_problem(value: Json, hint: Any, where: str) -> Problem:
    _expect(isinstance(value, str), where, "a problem key", value)
    return cast(Problem, _built(where, lambda: parse_key(value)))


def _read_fields(value: Json, kind: type, where: str) -> Any:
    _expect(isinstance(value, dict), where, "an object", value)
    hints = _hints(kind)
    coded = value.get(REASONS, {}) if _coded(kind) else {}
    if coded:
        value = {name: member for name, member in value.items() if name != REASONS}
    if not value.keys() <= hints.keys():
        raise CodecError(
            f"{where}: unknown field {min(value.keys() - hints.keys())!r}",
            hint="the file may come from a newer kernelmark",
        )
    if len(value) < len(hints) and (missing := hints.keys() - value.keys() - _optional(kind)):
        raise CodecError(f"{where}: field {min(missing)!r} is missing")
    fields = {name: read(v, hints[name], f"{where}.{name}") for name, v in value.items()}
    _expect(isinstance(coded, dict), f"{where}.{REASONS}", "an object", coded)
    for name in coded.keys() & fields.keys():
        fields[name] = _read_coded(coded[name], fields[name])
    return _built(where, lambda: kind(**fields))


def _read_coded(document: Json, text: Any) -> Any:
    """Return a sentence, or several, with their codes and fields from `document`."""
    if isinstance(text, Reason):
        return read_reason(document, text)
    documents = document if isinstance(document, list) else []
    pairs = itertools.zip_longest(documents[: len(text)], text)
    return tuple(read_reason(coded, sentence) for coded, sentence in pairs)


def _built(where: str, make: Any) -> Any:
    try:
        return make()
    except UsageError as error:
        reason = prefixed(error.message, f"{where}: ")
        raise CodecError(reason, hint=error.hint) from None


_arguments = functools.cache(typing.get_args)


@functools.cache
def _optional(kind: type) -> frozenset[str]:
    return frozenset(f.name for f in dataclasses.fields(kind) if OPTIONAL in f.metadata)


@functools.cache
def _coded(kind: type) -> tuple[str, ...]:
    """Return the names of the fields that hold reasons."""
    return tuple(n for n, hint in _hints(kind).items() if hint in (Reason, tuple[Reason, ...]))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _read_union(value: Json, hint: Any, where: str) -> Any:
    options = _arguments(hint)
    if value is None and type(None) in options:
        return None
    rest = [o for o in options if o is not type(None)]
    if len(rest) == 1:
        return read(value, rest[0], where)
    if type(value) in rest:
        return value
    raise CodecError(f"{where}: {value!r} has the wrong type")


def _read_enum(value: Json, kind: type[StrEnum], where: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise CodecError(_not_one_of(where, value, kind)) from None


def _not_one_of(where: str, value: Json, choices: Iterable[object]) -> str:
    return f"{where}: {value!r} is not one of {join_commas(choices)}"


_SCALARS = {int: "an integer", str: "a string", bool: "true or false"}


def _read_scalar(value: Json, hint: Any, where: str) -> Any:
    if hint is float:
        if value in ("nan", "inf", "-inf"):
            return float(value)
        _expect(type(value) in (int, float), where, "a number", value)
        try:
            return float(value)
        except OverflowError:
            raise CodecError(f"{where}: the number is too large") from None
    _expect(type(value) is hint, where, _SCALARS[hint], value)
    return value


def _expect(condition: object, where: str, what: str, value: Json) -> None:
    if not condition:
        shown = repr(value)[:60]
        raise CodecError(f"{where}: expected {what}, found {shown}")
