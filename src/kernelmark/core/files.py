"""Texts of files, and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.printable import csv_word
from kernelmark.core.reason import Reason, reason_documents

Cell = str | int | float | None
_PART_BYTES = 1 << 20
_EMPTY = '""'  # a row of one empty cell, which would be no row at all


MOST_BYTES = 1 << 30  # of a file that is read at once


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file; OSError where they are more than any file of its kind has.
    /dev/zero has no end, and a file with a hole of any size takes no room."""
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
    """`data` in a file that appears whole or not at all; with `sync` it survives a crash of the
    machine once this returns. A link stays one, and a file keeps its mode."""
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
    """Return the values in a TOML text; the message of a ValueError is for the author of the
    file."""
    import tomllib  # compiles its patterns, which takes longer than most imports

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python's limit on digits, with advice for programmers
        raise ValueError("a number in it is too long") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_text(path: Path, *, missing: str | None = None, shown: str = "") -> str:
    """Return the text of a user's file, called `shown` in errors; `missing` is the hint if there is
    no such file."""
    shown = shown or str(path)
    try:
        return read_whole(path).decode()
    except FileNotFoundError:
        raise UsageError(Reason("file-missing", file=shown), hint=missing) from None
    except UnicodeDecodeError:
        raise UsageError(Reason("file-not-utf8", file=shown)) from None
    except OSError as error:
        raise UsageError(file_unreadable(shown, error)) from None


def load_toml(
    path: Path, *, missing: str, hint: str | None = None, shown: str = ""
) -> dict[str, Any]:
    """Return the values in a user's TOML file; `hint` is for a text that is not TOML."""
    text = read_text(path, missing=missing, shown=shown)
    try:
        return parse_toml(text)
    except ValueError as error:
        message = Reason("file-not-toml", file=shown or str(path), error=str(error))
        raise UsageError(message, hint=hint) from None


def file_unreadable(shown: object, error: OSError) -> Reason:
    """Return why the file that is called `shown` cannot be read."""
    return Reason("file-unreadable", file=str(shown), error=error.strerror or str(error))


def file_unwritable(shown: object, error: OSError) -> Reason:
    """Return why the file that is called `shown` cannot be written."""
    return Reason("file-unwritable", file=str(shown), error=error.strerror or str(error))


def json_text(document: object) -> str:
    """Indented by one, letters as they are, and no NaN, which most readers refuse. Objects with
    coded reasons have their codes and fields too, in `reasons`."""
    whole = _with_codes(document)
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _with_codes(document: object) -> object:
    if isinstance(document, list | tuple):
        return [_with_codes(one) for one in document]
    if not isinstance(document, Mapping):
        return document
    coded = reason_documents(document)
    fields = {name: _with_codes(value) for name, value in document.items()}
    return {**fields, "reasons": coded} if coded else fields


def csv_text(records: Sequence[Mapping[str, Cell]], names: Sequence[str] = ()) -> str:
    """Comma-separated under a header: `names`, or those of the first record. Floats are exact,
    what is missing is empty."""
    if not (records or names):
        return ""
    names = names or list(records[0])
    rows = [names, *([record.get(name) for name in names] for record in records)]
    return "".join(f"{','.join(map(_cell, row)) or _EMPTY}\n" for row in rows)


def _cell(value: Cell) -> str:
    text = csv_word(value) if isinstance(value, str) else "" if value is None else repr(value)
    quoted = text.replace('"', '""')
    return f'"{quoted}"' if any(sign in text for sign in ',"\n') else text
