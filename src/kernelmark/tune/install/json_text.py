"""Editing JSON as text: unchanged parts keep their order, indentation and line ends."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of an object: its name, and the positions of its name, value and end."""

    name: str
    start: int
    value: int
    end: int


def members(text: str, at: int = 0) -> list[Member]:
    """Return the members of the first object at or after `at`. The text must be valid JSON."""
    position = _skip(text, at) + 1
    listed: list[Member] = []
    while True:
        position = _skip(text, position)
        if text[position] == "}":
            return listed
        if text[position] == ",":
            position = _skip(text, position + 1)
        name, after = _decode(text, position)
        value = _skip(text, _skip(text, after) + 1)
        _, end = _decode(text, value)
        listed.append(Member(name=name, start=position, value=value, end=end))
        position = end


def with_object(text: str, name: str, new: dict[str, Any], *, after: str | None) -> str:
    """Return `text` with the member `name` set to the flat object `new`. A new member is inserted
    after the member `after` (None: first), in the layout of its neighbour."""
    every = members(text)
    old = next((member for member in every if member.name == name), None)
    if old is not None:
        return text[: old.value] + _edited(text[old.value : old.end], new) + text[old.end :]
    if not every:
        return json.dumps({name: new}, indent=4) + "\n"
    neighbour = next((member for member in every if member.name == after), every[0])
    models = [text[m.value : m.end] for m in (neighbour, *every) if text[m.value] == "{"]
    body = f"{json.dumps(name)}: {_format_like(models[0], new) if models else json.dumps(new)}"
    gap = _gap(text, every[0].start)
    if after is None:
        return f"{text[: neighbour.start]}{body},{gap}{text[neighbour.start :]}"
    return f"{text[: neighbour.end]},{gap}{body}{text[neighbour.end :]}"


def _edited(text: str, new: dict[str, Any]) -> str:
    """Return an object's text with its members changed to `new`; remaining members keep their
    order."""
    for member in reversed(members(text)):
        if member.name not in new:
            text = _without(text, member)
        elif json.loads(text[member.value : member.end]) != new[member.name]:
            value = json.dumps(new[member.name])
            text = text[: member.value] + value + text[member.end :]
    every = members(text)
    for name, value in new.items():
        if any(member.name == name for member in every):
            continue
        if not every:
            text = json.dumps({name: value}, indent=4)
        else:
            gap = _gap(text, every[0].start)
            end = every[-1].end
            text = f"{text[:end]},{gap}{json.dumps(name)}: {json.dumps(value)}{text[end:]}"
        every = members(text)
    return text


def _without(text: str, member: Member) -> str:
    after = _skip(text, member.end)
    if text[after] == ",":
        return text[: member.start] + text[_skip(text, after + 1) :]
    before = text[: member.start].rstrip(" \t\r\n")
    return before.removesuffix(",") + text[member.end :]


def _format_like(model: str, new: dict[str, Any]) -> str:
    """Return `new` in the layout of the object `model`: on one line, or one member per line."""
    every = members(model)
    inner = _gap(model, every[0].start) if every else " "
    if "\n" not in inner:
        return json.dumps(new)
    closing = model[every[-1].end : -1]
    lines = f",{inner}".join(f"{json.dumps(name)}: {json.dumps(v)}" for name, v in new.items())
    return "{" + inner + lines + closing + "}"


def _gap(text: str, start: int) -> str:
    """Return the white space before `start`, or one blank."""
    left = len(text[:start].rstrip(" \t\r\n"))
    return text[left:start] or " "


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()
