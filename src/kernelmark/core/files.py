"""Read and write files; a written file appears complete or not at all."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason, reason_documents
from kernelmark.core.text import csv_word

Cell = str | int | float | None
_PART_BYTES = 1 << 20
_EMPTY = '""'  # a row of one empty cell, which would otherwise be an empty line


MOST_BYTES = 1 << 30  # largest file that is read at once


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with ~ as the user's folder. Path.expanduser raises for users who do not exist,
    but a file may be called ~x."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file; raise OSError above MOST_BYTES: /dev/zero has no end, and a
    sparse file can be of any size."""
    with path.open("rb") as file:
        parts, size = [], 0
        too_large = os.fstat(file.fileno()).st_size > MOST_BYTES
        while not too_large and (part := file.read(_PART_BYTES)):
            parts.append(part)
            size += len(part)
            too_large = size > MOST_BYTES
    if too_large:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB", str(path))
    return b"".join(parts)


def write_whole(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Write a file atomically; with `sync`, it survives a crash of the machine once this returns.
    Symbolic links are followed, and an existing file keeps its mode."""
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name[:64]}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text; raise a ValueError whose message is meant for the author of
    the file."""
    import tomllib  # here, because it compiles regular expressions when imported

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        last = f"at the end, line {max(1, len(text.splitlines()))}"
        raise ValueError(str(error).replace("at end of document", last)) from None
    except ValueError:  # Python's limit on digits, whose message is for programmers
        raise ValueError("a number in it is too long") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_text(path: Path, *, missing: str | None = None, shown: str = "") -> str:
    """Return the text of a user's file. `shown` is its name in errors, `missing` the hint if it
    does not exist."""
    shown = shown or str(path)
    try:
        return read_whole(path).decode()
    except FileNotFoundError:
        raise UsageError(f"there is no file {shown}", hint=missing) from None
    except UnicodeDecodeError:
        raise UsageError(f"{shown}: is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(file_unreadable(shown, error)) from None


def load_toml(
    path: Path, *, missing: str, hint: str | None = None, shown: str = ""
) -> dict[str, Any]:
    """Return the values of a user's TOML file; `hint` is for files that are not TOML."""
    text = read_text(path, missing=missing, shown=shown)
    try:
        return parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{shown or path}: is not valid TOML: {error}", hint=hint) from None


def file_unreadable(shown: object, error: OSError) -> Reason:
    """Return the reason why the file `shown` cannot be read."""
    return Reason(f"{shown}: cannot be read: {error.strerror or error}")


def file_unwritable(shown: object, error: OSError) -> Reason:
    """Return the reason why the file `shown` cannot be written."""
    return Reason(f"{shown} cannot be written: {error.strerror or error}")


def json_text(document: object) -> str:
    """Format a document as JSON: indented by 1, not escaped to ASCII, without NaN, which most
    parsers refuse. Objects with coded reasons get their codes and fields in `reasons`."""
    return _indented(_with_codes(document), 0) + "\n"


_SCALARS = frozenset({str, int, float, bool, NoneType})  # a Reason is none of these


def _with_codes(document: object) -> object:
    if isinstance(document, list | tuple):
        return [item if type(item) in _SCALARS else _with_codes(item) for item in document]
    if not isinstance(document, Mapping):
        return document
    fields = dict(document)
    nested = [name for name, value in fields.items() if type(value) not in _SCALARS]
    coded = reason_documents({name: fields[name] for name in nested})
    for name in nested:
        fields[name] = _with_codes(fields[name])
    return {**fields, "reasons": coded} if coded else fields


def _indented(value: object, depth: int) -> str:
    """Return the text of `json.dumps(indent=1)`. With an indentation, Python's json has no C
    encoder: a history of 60,000 points takes 15 times as long. So containers of scalars are
    encoded at once, with line breaks as separators."""
    if not (isinstance(value, dict | list) and value):
        return _encoder(0).encode(value)
    break_, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    items = value.values() if isinstance(value, dict) else value
    if not any(isinstance(item, dict | list) for item in items):
        text = _encoder(depth + 1).encode(value)
        return f"{text[0]}{break_}{text[1:-1]}{end}{text[-1]}"
    texts = [_indented(item, depth + 1) for item in items]
    if isinstance(value, list):
        return f"[{break_}{f',{break_}'.join(texts)}{end}]"
    # Of each name as an object has it: numbers and None are names too.
    names = [_encoder(0).encode({name: 0})[1:-4] for name in value]
    pairs = (f"{name}: {text}" for name, text in zip(names, texts, strict=True))
    return f"{{{break_}{f',{break_}'.join(pairs)}{end}}}"


@functools.cache
def _encoder(depth: int) -> json.JSONEncoder:
    """Return an encoder that begins each item on a new line, indented by `depth`."""
    separators = (",\n" + " " * depth, ": ")
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=separators)


def csv_text(records: Sequence[Mapping[str, Cell]], names: Sequence[str] = ()) -> str:
    """Format records as CSV. The header is `names`, or the keys of the first record. Floats are
    exact, missing values empty."""
    if not (records or names):
        return ""
    names = names or list(records[0])
    rows = [names, *([record.get(name) for name in names] for record in records)]
    return "".join(f"{','.join(map(_cell, row)) or _EMPTY}\n" for row in rows)


def _cell(value: Cell) -> str:
    text = csv_word(value) if isinstance(value, str) else "" if value is None else repr(value)
    quoted = text.replace('"', '""')
    return f'"{quoted}"' if any(sign in text for sign in ',"\n') else text
