"""Import results of other tools as runs: one module per format.

A bare mean becomes a measurement of one sample. It has no dispersion, so it is used by history and
threshold rules only, never for an interval.
"""

from __future__ import annotations

import codecs
import contextlib
import shlex
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.core.errors import UNEXPECTED, KernelmarkError, UsageError
from kernelmark.core.files import file_unreadable
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.registry import Registry
from kernelmark.core.validation import check_results
from kernelmark.workloads import naming

if TYPE_CHECKING:
    from kernelmark.core.result import Result, ResultSet
    from kernelmark.workloads.importers.base import Given, Importer

registry: Registry[Importer] = naming.results
_HEAD_BYTES = 16384
_GZIP = b"\x1f\x8b"
_MOST_CASES = 3
_NOTED = ("may-be-cut", "graphs-untraced", "times-left-out")


def names() -> list[str]:
    """Return the names of all formats, as in the CLI."""
    return naming.names(registry)


def named(name: str) -> Importer:
    """Return the importer of a format, given by its name or a prefix of it."""
    return naming.find(registry, name)


def recognized(path: Path) -> Importer | None:
    """Return the importer that recognises the file by its name and first bytes."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_GZIP):
        with contextlib.suppress(zlib.error):
            head = zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    return known_by(path.name.removesuffix(".gz"), head.removeprefix(codecs.BOM_UTF8))


def known_by(name: str, head: bytes) -> Importer | None:
    """Return the importer that recognises a file by its name and first bytes `head`."""
    known = (registry.get(one) for one in registry.names())
    return next((one for one in known if one.recognizes(name, head[:_HEAD_BYTES])), None)


def read(path: Path, given: Given, name: str | None = None) -> ResultSet:
    """Return the run in a file of another tool; `name` is its format (default: detected)."""
    try:
        importer = recognized(path) if name is None else named(name)
        with path.open("rb") as file:
            _check(path, file.read(len(_GZIP)), packed=importer is not None and importer.packed)
        if importer is not None:
            return _read(importer, path, given)
    except FileNotFoundError:
        raise UsageError(
            Reason("file-missing", file=str(path)),
            hint="look at its spelling; 'kmark import --help' says which files can be read",
        ) from None
    except OSError as error:
        raise UsageError(file_unreadable(path, error)) from None
    raise UsageError(
        Reason("format-unknown", file=str(path), known=tuple(names())),
        hint=f"kmark import --as FORMAT reads it as one of: {', '.join(names())}",
    )


def notes(found: Iterable[Result]) -> list[Reason]:
    """Return notes on the file that these results come from."""
    results = [r for r in found if any(one.code in _NOTED for one in _reasons(r))]
    return [note for note in (doubt(results), unnamed(results), left_out(results)) if note]


def left_out(results: Iterable[Result]) -> Reason:
    """Summarise the non-positive times that were dropped, if there are any."""
    cases = tuple(
        Reason("times-dropped-of", count=int(one.fields["count"]), **_shown(result))
        for result in results
        for one in _reasons(result)
        if one.code == "times-left-out"
    )
    if not cases:
        return NO_REASON
    count = sum(one.fields["count"] for one in cases)
    more = max(0, len(cases) - _MOST_CASES)
    return Reason("times-dropped", count=count, cases=cases[:_MOST_CASES], more=more)


def unnamed(results: Iterable[Result]) -> Reason:
    """Return the note on kernels without a name in the file, if there are any."""
    every = (one for result in results for one in _reasons(result))
    return next((one for one in every if one.code == "graphs-untraced"), NO_REASON)


def doubt(results: Iterable[Result]) -> Reason:
    """Return a note if the file may be truncated, with the last result."""
    for result in results:
        for one in _reasons(result):
            if one.code == "may-be-cut":
                return Reason("doubt-of", cause=one, **_shown(result))
    return NO_REASON


def _shown(result: Result) -> dict[str, str]:
    return {"problem": result.case.problem.key, "backend": result.case.backend}


def _reasons(result: Result) -> list[Reason]:
    """Return the warnings of a result and its error, which may contain a second reason."""
    warned = result.measurement.warnings if result.measurement else ()
    if not result.error:
        return list(warned)
    doubted = result.error.fields.get("doubt", NO_REASON)
    return [*warned, result.error.root, doubted]


def _read(importer: Importer, path: Path, given: Given) -> ResultSet:
    try:
        return check_results(importer.read(path, given))
    except UNEXPECTED as error:
        # No importer anticipates everything that can be wrong with a file.
        text = f"{type(error).__name__}: {str(error)[:80]}"
        raise UsageError(
            Reason("file-not-whole", file=str(path), format=importer.name, error=text)
        ) from error
    except KernelmarkError as error:
        # Without a hint, callers would add one for kernelmark's own files.
        hint = f"it was read as {importer.name}: is it whole, and as that tool wrote it?"
        error.hint = error.hint or hint
        raise


def _check(path: Path, head: bytes, *, packed: bool) -> None:
    if not head:
        reason = Reason("in-file", file=str(path), cause=Reason("document-empty"))
        raise UsageError(reason, hint="leave it out, or measure again")
    if head == _GZIP and not packed:
        raise UsageError(
            Reason("results-compressed", file=str(path)),
            hint=f"unpack it: gunzip -k {shlex.quote(str(path))}",
        )
