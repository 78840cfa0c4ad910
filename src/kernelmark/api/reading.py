"""Read a run by name: from a store, from a kernelmark file, or from a file of another tool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.core.errors import CodecError, NothingToDo, UsageError, about
from kernelmark.core.reason import Reason
from kernelmark.core.result import ResultSet
from kernelmark.core.timing import Timing
from kernelmark.stores.values import check_name as check_id

if TYPE_CHECKING:
    from kernelmark.stores.store import Store
    from kernelmark.workloads.importers.base import Given

_SUFFIXES = {".json", ".csv", ".txt", ".log", ".db", ".sqlite"}
_HEAD_BYTES = 4096


def is_file(ref: str) -> bool:
    """Return whether `ref` names a file, not a run of the store: by its suffix, by a prefix such as
    `./`, or because it contains a slash and exists. A label may contain a slash."""
    if ref == "-" or Path(ref).suffix.lower() in _SUFFIXES:
        return True
    return ref.startswith(("/", "./", "../", "~/")) or ("/" in ref and Path(ref).is_file())


def check_name(name: str, what: str = "the label") -> None:
    """Raise UsageError for a label or pinned name that would be taken for a file."""
    if name and is_file(name):
        raise UsageError(
            Reason("name-like-file", what=what, name=name),
            hint="choose one without an ending like .json and without a path's beginning",
        )


def read_file(place: str, given: Given | None = None, form: str | None = None) -> ResultSet:
    """Return the run in a file that `--json` or `export` wrote (`-`: stdin), or in any format that
    has an importer. `form` names the format (default: detected)."""
    if given is not None:
        check_name(given.label)
    if place == "-":
        if form is not None:
            raise UsageError(
                Reason("stdin-format", format=form),
                hint="write it to a file, and name that",
            )
        return _ours(sys.stdin.buffer.read(), place)
    from kernelmark.core.files import file_unreadable, read_whole
    from kernelmark.workloads import importers
    from kernelmark.workloads.importers.base import Given as Nothing

    path = Path(place).expanduser()
    try:
        if form is None and importers.recognized(path) is None:
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
            if path.suffix == ".json" or head.lstrip()[:1] in (b"{", b"["):
                return _ours(read_whole(path), place)
    except FileNotFoundError:
        raise UsageError(Reason("file-missing", file=place)) from None
    except OSError as error:
        raise UsageError(file_unreadable(place, error)) from None
    return importers.read(path, given or Nothing(), form)


@about("results-file")
def read_run(ref: str, store: Store | None) -> ResultSet:
    """Return the run that `ref` names: a file, or an id, label, pinned name, `latest` or `latest~1`
    in the store."""
    if is_file(ref):
        return read_file(ref)
    if store is None:
        raise UsageError(
            Reason("run-without-store", name=ref),
            hint=f"a stored run is given as km.load({ref!r})",
        )
    return store.result_set(store.run(ref).id)


def _ours(data: bytes, place: str) -> ResultSet:
    from kernelmark.core import codec
    from kernelmark.core.micro import is_old, read_old
    from kernelmark.core.validation import check_results

    ours = False
    try:
        document = codec.parse(data)
        ours = isinstance(document, dict) and "kernelmark" in document
        if document == []:
            raise NothingToDo(Reason("file-without-results", file=place))
        old = is_old(document)
        found = read_old(document) if old else codec.from_document(document, ResultSet)
        check_id("run", check_results(found).run.id)
    except (CodecError, UsageError) as error:
        reason = Reason("in-file", file=place, cause=error.message)
        hint = error.hint or (Reason("document-changed") if ours else None)
        raise CodecError(reason, hint=hint) from None
    return found


def load_timing(timing: str | Timing) -> Timing:
    """Return the timing of a preset or TOML file; a `Timing` unchanged."""
    if isinstance(timing, str):
        return Timing.load(timing)
    if not isinstance(timing, Timing):
        raise UsageError(
            Reason("argument-type", name="timing", given=repr(timing), wanted="a timing"),
            hint='give "quick", "default", "full", a TOML file, or a Timing',
        )
    return timing
