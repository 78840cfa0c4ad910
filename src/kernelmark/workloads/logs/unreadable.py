"""Explain why a log has no calls, and what the file is instead."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from kernelmark.core import codec
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.reason import Reason
from kernelmark.workloads.logs.counting import NO_CALL
from kernelmark.workloads.logs.opening import EXPANDS, Source
from kernelmark.workloads.logs.skips import Skips
from kernelmark.workloads.logs.table import header

_LOG_AGAIN = "leave it out, or log again"
_COLUMNS = (
    "a list has M,N,K (GEMMs), heads,seqlen,head_dim (attention) or N,C,H,W,K,R,S "
    "(convolutions), and may have batch, dtype, count"
)
_SHOWN = 12  # columns of a header in errors
_QUOTED = 24  # characters of a column's name
_HEAD = 4096
_UNSIZED = {
    b"[Api][rocblaslt_matmul]": ("hipBLASLt", "HIPBLASLT_LOG_MASK=32"),
    b"[cublasLt]": ("cuBLASLt", "CUBLASLT_LOG_LEVEL=2"),
}
_PACKED = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_OURS = re.compile(rb'\s*\{\s*"kernelmark"')
_JSON = re.compile(rb'\s*(\{\s*("|\Z)|\[\s*[\[{"])')  # not [Api], as lines of logs begin
_MARK_BYTES = 3  # of a UTF-8 byte order mark, which the head does not have
_NAME = re.compile(r"[^\W\d][\w .:/()%#-]*\Z")
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Tried:
    """The formats that were tried, whether the user named one, and the format detected instead."""

    formats: Sequence[str]
    named: bool = False
    looks_like: str | None = None

    @property
    def hint(self) -> str:
        more = "; without --as every format is" if self.named else ""
        return f"tried: {', '.join(self.formats)}{more}"


def unreadable(
    source: Source, skips: Skips, tried: Tried, *, columns: bool, remarks: Sequence[str] = ()
) -> UsageError:
    """Return the error for a log without calls. `columns`: whether a header was recognised;
    `remarks`: notes on what is there instead."""
    place, head = source.place, source.head
    if source.complaint:
        return UsageError(
            Reason("log-without-calls", file=place, cause=source.complaint),
            hint=_LOG_AGAIN if source.complaint == EXPANDS else "copy it again, or log again",
        )
    if not head.strip():
        return UsageError(Reason("log-empty", file=place), hint=_LOG_AGAIN)
    broken = [
        group
        for group in skips.groups()
        if Reason.of(group.reason).code != NO_CALL.code
        and any(one.file == place for one in group.first)
    ]
    if broken:
        first = broken[-1].first[0]  # the most frequent reason
        return UsageError(
            Reason("log-broken", file=place, line=first.line, cause=Reason.of(first.reason)),
            hint=tried.hint,
        )
    if remarks:
        return UsageError(
            Reason("log-without-calls", file=place, cause=Reason.of(remarks[0])),
            hint=f"its times are history without --workload: kmark import {shlex.quote(place)}",
        )
    if tried.looks_like:
        named, found = tried.formats[0], tried.looks_like
        return UsageError(
            Reason("log-of-other-format", file=place, format=named, found=found),
            hint=f"leave --as out, or: --as {tried.looks_like}",
        )
    if columns:
        return UsageError(Reason("log-without-rows", file=place), hint=_LOG_AGAIN)
    return (
        _pointers(source)
        or _timings(source)
        or _no_text(place, head)
        or _no_json(source)
        or ("shapes" in tried.formats and _unknown_table(place, head))
        or UsageError(Reason("log-without-calls", file=place), hint=tried.hint)
    )


def _pointers(source: Source) -> UsageError | None:
    for mark, (library, variable) in _UNSIZED.items():
        if mark in source.head:
            return UsageError(
                Reason("log-without-sizes", file=source.place, library=library),
                hint=f"log again with {variable}",
            )
    return None


def _timings(source: Source) -> UsageError | None:
    from kernelmark.workloads import importers

    place = source.place
    importer = importers.known_by(PurePath(place).name.removesuffix(".gz"), source.head)
    if importer is not None and importer.is_log:
        return None
    if importer is None and not _OURS.match(source.head):
        return None
    name = "kernelmark" if importer is None else importer.name
    steps = "unpack it, then " if source.packed else ""
    file = "FILE" if source.packed or place == "-" else shlex.quote(place)
    return UsageError(
        Reason("log-of-times", file=place, format=name),
        hint=f"{steps}without --workload it is taken for history: kmark import {file}",
    )


def _no_text(place: str, head: bytes) -> UsageError | None:
    for begin, what in _PACKED.items():
        if head.startswith(begin):
            return UsageError(
                Reason("file-encoding", file=place, encoding=what),
                hint="unpack it first; what gzip compressed is read as it is",
            )
    if head.startswith(_UTF16):
        return UsageError(
            Reason("file-encoding", file=place, encoding="UTF-16"),
            hint=f"write it as UTF-8: iconv -f UTF-16 -t UTF-8 {shlex.quote(place)}",
        )
    # A log may have a stray control byte; of random bytes, every ninth is one.
    some = head[:_HEAD]
    if 50 * len(_BINARY.findall(some)) > len(some):
        return UsageError(
            Reason("in-file", file=place, cause=Reason("document-not-text")),
            hint="logs are text, or text that gzip compressed",
        )
    return None


def _no_json(source: Source) -> UsageError | None:
    """Return the error for a file that begins as JSON and is not; None for one of JSON lines, and
    for a file that is longer than its head."""
    head = source.head
    size = source.unpacked if source.packed else source.size
    if not _JSON.match(head) or size > len(head) + _MARK_BYTES:
        return None
    try:
        with contextlib.suppress(CodecError):
            codec.parse(head.splitlines()[0])
            return None
        codec.parse(head)
    except CodecError as error:
        return UsageError(
            Reason("in-file", file=source.place, cause=error.message), hint=error.hint
        )
    return None


def _unknown_table(place: str, head: bytes) -> UsageError | None:
    """Return the error for a file that begins with a header and has rows of as many cells; else
    None."""
    lines = [line for line in head.splitlines() if line.strip() and line.lstrip()[:1] != b"#"]
    cells, separator = header(lines[0]) if lines else ([], "")
    names = [name for name in cells if name]
    if not separator or len(names) < 2 or not all(_NAME.match(name) for name in names):
        return None
    if len(lines) > 1 and len(header(lines[1])[0]) != len(cells):
        return None
    shown, more = [name[:_QUOTED] for name in names[:_SHOWN]], len(names[_SHOWN:])
    return UsageError(
        Reason("log-columns", file=place, columns=shown, more=more),
        hint=_COLUMNS,
    )
