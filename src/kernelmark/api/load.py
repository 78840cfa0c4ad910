"""Read a run by name: from a store, from a kernelmark file, or from a file of another tool."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.api.results import Results
from kernelmark.core.errors import CodecError, NothingToDo, UsageError, about
from kernelmark.core.reason import prefixed
from kernelmark.core.result import ResultSet
from kernelmark.core.timing import Timing
from kernelmark.stores import opened
from kernelmark.stores.values import check_name as check_id

if TYPE_CHECKING:
    from kernelmark.stores import StoreArgument
    from kernelmark.stores.store import Store
    from kernelmark.workloads.importers import Overrides

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
            f"{what} {name!r} would be taken for a file",
            hint="choose one without an ending like .json and without a path's beginning",
        )


def read_file(place: str, given: Overrides | None = None, form: str | None = None) -> ResultSet:
    """Return the run in a file that `--json` or `export` wrote (`-`: stdin), or in any format that
    has an importer. `form` names the format (default: detected)."""
    if given is not None:
        check_name(given.label)
    if place == "-":
        if form is not None:
            raise UsageError(
                f"stdin is read as kernelmark's own JSON only, not as {form}",
                hint="write it to a file, and name that",
            )
        return _ours(sys.stdin.buffer.read(), place)
    from kernelmark.core.files import file_unreadable, read_whole
    from kernelmark.workloads import importers

    path = Path(place).expanduser()
    try:
        if form is None and importers.recognized(path) is None:
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
            if path.suffix == ".json" or head.lstrip()[:1] in (b"{", b"["):
                return _ours(read_whole(path), place)
    except FileNotFoundError:
        raise UsageError(f"there is no file {place}") from None
    except OSError as error:
        raise UsageError(file_unreadable(place, error)) from None
    return importers.read(path, given or importers.Overrides(), form)


@about("results-file")
def read_run(ref: str, store: Store | None) -> ResultSet:
    """Return the run that `ref` names: a file, or an id, label, pinned name, `latest` or `latest~1`
    in the store."""
    if is_file(ref):
        return read_file(ref)
    if store is None:
        raise UsageError(
            f"{ref!r} is not a file, and there is no store to look in",
            hint=f"a stored run is given as km.load({ref!r})",
        )
    return store.result_set(store.run(ref).id)


def _ours(data: bytes, name: str) -> ResultSet:
    from kernelmark.core import codec
    from kernelmark.core.micro import is_old, read_old
    from kernelmark.core.validation import check_results

    ours = False
    try:
        document = codec.parse(data)
        ours = isinstance(document, dict) and "kernelmark" in document
        if document == []:
            raise NothingToDo(f"{name}: there are no results in it")
        old = is_old(document)
        results = read_old(document) if old else codec.from_document(document, ResultSet)
        check_id("run", check_results(results).run.id)
    except (CodecError, UsageError) as error:
        reason = prefixed(error.message, f"{name}: ")
        hint = (
            "it is a kernelmark file, but was changed, or written by another version; export the"
            " run again: kmark export RUN --json FILE"
        )
        raise CodecError(reason, hint=error.hint or (hint if ours else None)) from None
    return results


def load_timing(timing: str | Timing) -> Timing:
    """Return the timing of a preset or TOML file; a `Timing` unchanged."""
    if isinstance(timing, str):
        return Timing.load(timing)
    if not isinstance(timing, Timing):
        raise UsageError(
            f"timing={timing!r} is not a timing",
            hint='give "quick", "default", "full", a TOML file, or a Timing',
        )
    return timing


@contextlib.contextmanager
def loaded(
    ref: str | os.PathLike[str], place: StoreArgument
) -> Iterator[tuple[Results, Store | None]]:
    """Yield the results of a run with their roofs, and the open store; None instead of the store
    if the run is in a file. A `place` of None is the user's own store."""
    if not isinstance(ref, str | os.PathLike):
        raise UsageError(
            f"ref={ref!r} is not the name of a run",
            hint='give a run\'s id, its label, "latest", "latest~1", or a JSON file',
        )
    ref = os.fspath(ref)
    if is_file(ref):
        yield Results(read_run(ref, None)), None
        return
    with opened(True if place is None else place, readonly=True) as store:
        if store is None:
            yield Results(read_run(ref, None)), None  # raises: `ref` is not a file
            return
        from kernelmark.api.roofs import stored_roofs

        result_set = store.result_set(store.run(ref).id)
        yield Results(result_set, stored_roofs(store, result_set)), store


def load(ref: str | os.PathLike[str] = "latest", *, store: StoreArgument = True) -> Results:
    """Return a stored run as `Results`.

    ref: id, label or pinned name of a run, "latest", "latest~1", …, or a file.
    store: path, URL or open store (default: $KERNELMARK_STORE, or the user's store).
    """
    with loaded(ref, store) as (results, _):
        return results
