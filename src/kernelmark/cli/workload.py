"""`kmark import --workload`: convert call logs to a tuning folder, and summarise the import."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.cli.output import check_writable, say, write
from kernelmark.core.units import counted

if TYPE_CHECKING:
    from kernelmark.workloads.counting import Skips
    from kernelmark.workloads.logs import Reading

_REASONS = 8  # maximum reasons printed


def import_workload(
    files: Sequence[str],
    folder: str,
    *,
    form: str | None = None,
    arch: str = "",
    dtype: str = "",
    key: str = "",
    skipped: str | None = None,
    force: bool = False,
) -> int:
    """Read logs, write FOLDER/workload.csv, and print what was read and what was skipped."""
    from kernelmark.core.dtype import dtype as checked
    from kernelmark.tune.folder import TuningFolder
    from kernelmark.workloads import logs

    if skipped is not None:
        check_writable(skipped)
    if dtype:
        checked(dtype)
    name = Path(folder).expanduser().absolute().name
    reading = logs.read(files, name=name, arch=arch, dtype=dtype, key=key, form=form)
    if skipped is not None:
        write(skipped, _table(reading.skipped))
    place = TuningFolder.make(folder)
    logs.save(reading, place.workload, arch=arch, force=force)
    _print_notes(reading, arch)
    say(f"written: {place.workload}; next: kmark tune summarise {shlex.quote(folder)}")
    return 0


def _print_notes(reading: Reading, arch: str) -> None:
    workload = reading.workload
    problems = len({call.problem for call in workload.calls})
    formats = dict.fromkeys(name for entry in reading.inputs for name in entry.formats)
    say(
        f"{_many(workload.total, 'call')} of {_many(problems, 'problem')} "
        f"in {_many(len(reading.inputs), 'file')} ({', '.join(formats)})"
    )
    _print_lost(reading)
    again = sum(entry.again for entry in reading.inputs)
    if again:
        say(f"{_many(again, 'call')} logged a second time by another kind of line, counted once")
    _print_copies(reading)
    for item in reading.inputs:
        for note in item.notes:
            say(f"{item.place}: {note}")
    if not arch and _has_shared_f8(reading, formats):
        say("8-bit floats were read as OCP's; if the log is of gfx940 to gfx942: --arch gfx942")
    _print_skipped(reading.skipped)


def _print_copies(reading: Reading) -> None:
    first: dict[str, str] = {}
    for item in reading.inputs:
        if item.sha256 in first:
            say(f"{first[item.sha256]} and {item.place} hold the same bytes, and both were counted")
        first.setdefault(item.sha256, item.place)


def _print_lost(reading: Reading) -> None:
    lost: dict[str, int] = {}
    for call in reading.workload.calls:
        for word in call.lost:
            lost[word] = lost.get(word, 0) + call.count
    if lost:
        most = sorted(lost.items(), key=lambda item: (-item[1], item[0]))
        words = ", ".join(f"{word} ({_many(count, 'call')})" for word, count in most)
        say(f"left out of the problems: {words}")


def _print_skipped(skips: Skips) -> None:
    groups = skips.groups()
    say(f"{_many(len(skips), 'line')} skipped{':' if groups else ''}")
    for group in groups[:_REASONS]:
        first = group.first[0]
        numbers = ", ".join(str(item.line) for item in group.first if item.file == first.file)
        more = ", …" if group.count > len(group.first) else ""
        say(f"  {group.count:,} × {group.reason} ({first.file}: line {numbers}{more})")
    if len(groups) > _REASONS:
        say(f"  and {len(groups) - _REASONS} other reasons; --skipped FILE writes all")


def _table(skips: Skips) -> str:
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("file", "line", "reason"))
    rows.writerows((skip.file, skip.line, skip.reason) for skip in skips)
    return text.getvalue()


def _has_shared_f8(reading: Reading, formats: Iterable[str]) -> bool:
    from kernelmark.workloads.blas import SHARED_BY, SHARED_F8

    types = {call.blas.get(f"{name}_type") for call in reading.workload.calls for name in "ab"}
    return bool(SHARED_BY.intersection(formats) and SHARED_F8 & types)


def _many(count: int, noun: str) -> str:
    return counted(count, noun).replace(str(count), f"{count:,}", 1)
