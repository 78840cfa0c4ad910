"""Reason: a code, fields and a sentence for a refusal, warning, failure or verdict.

A reason is a `str`, its sentence, so that it can be shown, stored and joined like one. Programs use
`code` and `fields`; the sentences are in `messages`, and no program parses them.
"""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from kernelmark.core import units
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.messages import SETTINGS, TEMPLATES

TEXT = "text"  # the code of plain text, as in old stores and files of other tools
WIDEST = 9.99  # largest relative width of an interval that is shown as a number
_SMALL = 0.001  # below it, one decimal of a percentage could be 0.0
_LONGEST = 200  # characters of foreign text in brief style
_INFINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_NO_FIELDS: FrozenDict[Any] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How sentences are formatted. `names` selects among the names of a setting; `store` holds the
    options to add to a command that reads the store."""

    names: int = 0
    brief: bool = False
    store: str = ""


FIELDS, OPTIONS, PYTHON = Style(), Style(names=1), Style(names=2)
BRIEF = Style(brief=True)  # one line


class Reason(str):
    """The sentence of a `code`, formatted with `fields`."""

    __slots__ = ("code", "fields")
    code: str
    fields: Mapping[str, Any]

    def __new__(cls, code: str, /, **fields: Any) -> Self:
        return cls._made(_format(code, fields, FIELDS), code, fields)

    @classmethod
    def _made(cls, text: str, code: str, fields: Mapping[str, Any]) -> Self:
        made = super().__new__(cls, text)
        made.code, made.fields = code, FrozenDict(fields) if fields else _NO_FIELDS
        return made

    @classmethod
    def of(cls, text: str) -> Reason:
        """Return `text` itself if it is a reason, else a reason with the code `text`."""
        if isinstance(text, Reason):
            return text
        return cls._made(text, TEXT, _NO_FIELDS) if text else NO_REASON

    @property
    def root(self) -> Reason:
        """The innermost cause; the reason itself if it has none."""
        cause = self.fields.get("cause")
        return cause.root if isinstance(cause, Reason) else self

    def having(self, **fields: Any) -> Reason:
        """Return this reason with fields added or replaced."""
        return self if self.code == TEXT else Reason(self.code, **{**self.fields, **fields})

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Reason) and (self.code, self.fields) != (other.code, other.fields):
            return False
        return str.__eq__(self, other) if isinstance(other, str) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (str(self), self.code, dict(self.fields))


NO_REASON = Reason._made("", TEXT, _NO_FIELDS)


def _restored(text: str, code: str, fields: Mapping[str, Any]) -> Reason:
    return Reason._made(text, code, fields)


def format_reason(reason: str, style: Style = FIELDS) -> str:
    """Return the sentence in a style; a reason without a template keeps its text."""
    found = Reason.of(reason)
    if found.code in TEMPLATES:
        return _format(found.code, found.fields, style)
    if not style.brief:
        return str(found)
    first, *rest = found.splitlines() or [""]
    cut = first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"
    return f"{cut} …" if rest else cut


def names_settings(reason: str) -> bool:
    """Return whether the sentence names settings, which differ between CLI and Python."""
    return format_reason(reason, PYTHON) != format_reason(reason, FIELDS)


# To and from JSON


def reason_document(reason: Reason) -> Any:
    """Return code and fields as JSON values; only the text for a reason without a code."""
    if reason.code == TEXT:
        return str(reason)
    document = {"code": reason.code, "fields": _plain(reason.fields)}
    return document if reason.code in TEMPLATES else {**document, "text": str(reason)}


def read_reason(document: Any, text: str = "") -> Reason:
    """Return the reason in a document, or that of a sentence. A reason that this version cannot
    format keeps its `text`."""
    if document is None:
        return Reason.of(text)
    if isinstance(document, str) or not isinstance(document, Mapping):
        return Reason.of(str(document))
    code = str(document.get("code", TEXT))
    fields = _read_fields(document.get("fields"))
    try:
        return Reason(code, **fields)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError):
        known = ", ".join(f"{name}={value}" for name, value in fields.items())
        return _restored(str(document.get("text", text)) or f"{code} ({known})", code, fields)


def reason_documents(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the documents of all values that are coded reasons, or lists with such reasons."""
    found = {}
    for name, value in values.items():
        if isinstance(value, Reason) and value.code != TEXT:
            found[name] = reason_document(value)
        elif isinstance(value, tuple | list) and any(_is_coded(one) for one in value):
            found[name] = [reason_document(one) if _is_coded(one) else None for one in value]
    return found


def _is_coded(value: object) -> bool:
    return isinstance(value, Reason) and value.code != TEXT


def _plain(value: Any) -> Any:
    if isinstance(value, Reason):
        return reason_document(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _read_fields(document: Any) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        return {}
    return {str(name): _read(value) for name, value in document.items()}


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return read_reason(value)
    if isinstance(value, list):
        return tuple(_read(one) for one in value)
    return _INFINITE.get(value, value) if isinstance(value, str) else value


# Templates

Part = Callable[[Mapping[str, Any], Style], str]


def _format(code: str, fields: Mapping[str, Any], style: Style) -> str:
    text = "".join([part(fields, style) for part in _parts(TEMPLATES[code])])
    output = fields.get("output")  # a compiler's log, or the standard error of a lost worker
    if not output or not isinstance(output, str):  # some reasons have the index of an output
        return text
    if not style.brief:
        return f"{text}\n{output}"
    said, frame = fields.get("said"), fields.get("frame")
    return text + (f": {said}" if said else "") + (f", at {frame}" if frame else "")


@functools.cache
def _parts(template: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    for literal, name, spec, conversion in string.Formatter().parse(template):
        if literal:
            parts.append(functools.partial(_literal, literal))
        if name is not None:
            parts.append(_part(name, spec or "", conversion))
    return tuple(parts)


def _part(name: str, spec: str, conversion: str | None) -> Part:
    if name == "@store":
        return lambda _, style: style.store
    if name.startswith("@"):
        names = SETTINGS[name[1:]]
        return lambda _, style: names[style.names]
    kind, _, word = spec.partition(" ")
    inner = _parts(word) if "{" in word else ()
    if kind == "if":
        return lambda fields, style: (
            "".join([part(fields, style) for part in _parts(word)]) if fields.get(name) else ""
        )
    if conversion == "r":
        return lambda fields, _: repr(fields[name])
    if kind in FORMATS:
        form = FORMATS[kind]
        return lambda fields, style: form(
            fields.get(name) if kind == "phase" else fields[name],
            "".join([part(fields, style) for part in inner]) if inner else word,
            style,
        )
    return lambda fields, style: _value(fields[name], spec, style)


def _literal(text: str, _fields: Mapping[str, Any], _style: Style) -> str:
    return text


def _value(value: Any, spec: str, style: Style) -> str:
    if isinstance(value, Reason):
        return format_reason(value, style)
    text = format(value, spec)
    return f"{text[:-1]} %" if spec.endswith("%") else text


def _span(low: float, high: str, _: Style) -> str:
    return units.span_text(_log(low), _log(float(high)))


def _log(ratio: float) -> float:
    return math.log(ratio) if 0 < ratio < math.inf else math.copysign(math.inf, ratio - 1)


def _each(findings: Iterable[Reason], _word: str, style: Style) -> str:
    return "; ".join(format_reason(finding, style) for finding in findings)


def _failures(findings: Sequence[Reason], more: str, style: Style) -> str:
    """Format failed checks, in brief style the first of each kind, and the number of others, which
    includes `more`."""
    codes = [Reason.of(finding).code for finding in findings]
    shown = [
        finding
        for at, finding in enumerate(findings)
        if not style.brief or codes[at] not in codes[:at]
    ]
    texts = [format_reason(finding, style) for finding in shown]
    if others := len(findings) - len(shown) + int(more or 0):
        texts.append(f"and {units.counted(others, 'more failed check')}")
    return "; ".join(texts)


def _aside(hint: str | Reason, _word: str, style: Style) -> str:
    """Format a hint after its cause: in brackets unless it has some."""
    text = _value(hint, "", style)
    return f"; {text}" if "(" in text else f" ({text})"


def _excess(ratio: float, _word: str, _: Style) -> str:
    """Format the ratio of an error to the error allowed. It is infinite if the output is not
    finite, and if no error is allowed."""
    if not math.isfinite(ratio):
        return ""
    return f", up to {ratio:.3g} times as far from float64 as allowed"


def _spread(width: float, _word: str, _: Style) -> str:
    if 0 < width < _SMALL:
        return f"±{100 * width:.2g} %"
    return f"±{units.width_text(width)}" if width <= WIDEST else f"more than ±{100 * WIDEST:.0f} %"


# By the first word of a format: (value, rest of the format, style) -> text.
FORMATS: dict[str, Callable[[Any, str, Style], str]] = {
    "aside": _aside,
    "against": lambda value, limit, _: units.told_apart(value, float(limit))[0],
    "and": lambda values, _word, _: " and ".join(values),
    "bytes": lambda count, _word, _: units.bytes_text(count),
    "brief": lambda value, _word, style: format_reason(value, replace(style, brief=True)),
    "detectable": lambda share, _word, _: units.detectable_text(share),
    "duration": lambda seconds, _word, _: units.duration_text(seconds),
    "each": _each,
    "excess": _excess,
    "exact": lambda value, _word, _: units.exact(value),
    "failures": _failures,
    "level": lambda level, _word, _: f"{100 * level:.3g} %",
    "list": lambda values, _word, _: ", ".join(map(str, values)),
    "n": lambda count, noun, _: units.counted(count, noun),
    "or": lambda values, _word, _: " or ".join(filter(None, (", ".join(values[:-1]), values[-1]))),
    "percent": lambda ratio, _word, _: units.percent_text(_log(ratio)),
    "phase": lambda phase, _word, _: f" (in phase {phase})" if phase else "",
    "rate": lambda value, unit, _: units.rate_text(value, unit),
    "setting": lambda name, _word, style: SETTINGS.get(name, (name,) * 3)[style.names],
    "share": lambda share, _word, _: f"{100 * share:g} %",
    "spread": _spread,
    "time": lambda seconds, _word, _: ("-" if seconds < 0 else "") + units.time_text(abs(seconds)),
    "to": _span,
    "value": lambda value, unit, _: units.value_text(value, unit),
}
