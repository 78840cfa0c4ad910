"""cublaslt: cuBLASLt algorithms in a JSON file, for programs that select an algorithm themselves.

    {"format": "kernelmark-cublaslt", "version": 1, "cublaslt": "13.1.0", "entries": [
      {"problem": "gemm m=…", "arch": "sm_90", "algo": {"id": 66, "tile": 20, …}}]}

`algo` has the attributes for cublasLtMatmulAlgoConfigSetAttribute, with the names of kernelmark's
cublaslt backend. They are valid for one version of the library, so a file is for one version.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config
from kernelmark.tune.install.emitters.base import (
    Change,
    Edit,
    Emitter,
    Entry,
    Fields,
    Held,
    Unfit,
    Wanted,
    kept_answers,
    read_json,
    settle,
    text_at,
)
from kernelmark.tune.records.outcome import Outcome

FORMAT = "kernelmark-cublaslt"
VERSION = 1


class Cublaslt(Emitter):
    name = "cublaslt"
    summary = "cuBLASLt algorithms in a versioned JSON file, by problem and architecture"
    facts = FormatFacts(
        versions="kernelmark's own",
        exactness="exact",
        checked="read back in tests",
    )
    backends = ("cublaslt",)

    def emit(self, outcomes: Sequence[Outcome], into: Path, given: Fields) -> Change:
        before = text_at(into)
        document = None if before is None else _document(into)
        rows: dict[Fields, dict[str, Any]] = {}
        for row in document["entries"] if document else []:
            rows[_fields(row)] = row
        settled = settle(self, outcomes, _lookup_key)
        held, new = list(settled.held), {}
        for fields, outcome in settled.winners.items():
            try:
                new[fields] = _row(outcome)
            except Unfit as error:
                held.append(Held(name=outcome.name, reason=error.reason))
        version = _version([settled.winners[fields] for fields in new], document)
        wanted = [
            Wanted(fields=fields, config=_config(row), name=settled.winners[fields].name)
            for fields, row in new.items()
        ]
        before_configs = {fields: _config(row) for fields, row in rows.items()}
        wanted += kept_answers(before_configs, settled.others, new)
        head = {"format": FORMAT, "version": VERSION, "cublaslt": version}
        after = _text(head, [*(rows | new).values()])
        edits = (Edit(path=Path(), before=before, after=after),) if new and after != before else ()
        return Change(emitter=self.name, edits=edits, wanted=tuple(wanted), held=tuple(held))

    def read(self, path: Path) -> list[Entry]:
        return [
            Entry(fields=_fields(row), config=_config(row), kernel=row["kernel"])
            for row in _document(path)["entries"]
        ]


def _lookup_key(outcome: Outcome) -> Fields:
    return FrozenDict({"problem": outcome.problem.key, "arch": outcome.arch})


def _row(outcome: Outcome) -> dict[str, Any]:
    text = outcome.tuned.config.get("algo")
    if not isinstance(text, str):
        raise Unfit(Reason("algo-missing"))
    try:
        algo = {name: int(value) for name, value in (word.split("=") for word in text.split())}
    except ValueError:
        raise Unfit(Reason("algo-unreadable", algo=text)) from None
    row: dict[str, Any] = {**_lookup_key(outcome), "algo": algo}
    row["kernel"] = outcome.tuned.kernel.name
    row["us"] = round(outcome.tuned.median_s * 1e6, 4)
    row["reference_us"] = round(outcome.reference.median_s * 1e6, 4)
    return row


def _config(row: dict[str, Any]) -> Config:
    words = " ".join(f"{name}={value}" for name, value in row["algo"].items())
    return FrozenDict({"algo": words})


def _fields(row: dict[str, Any]) -> Fields:
    return FrozenDict({"problem": row["problem"], "arch": row["arch"]})


def _version(winners: Sequence[Outcome], document: dict[str, Any] | None) -> str:
    versions = {outcome.tuned.version for outcome in winners}
    if document:
        versions.add(document["cublaslt"])
    if len(versions) > 1:
        raise UsageError(
            Reason("library-versions-mixed", versions=tuple(sorted(versions))),
            hint="write another file, or tune again",
        )
    if versions == {""}:
        raise UsageError(Reason("library-version-unknown", format="cublaslt"), hint="tune again")
    return versions.pop() if versions else ""


def _document(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = read_json(path, FORMAT)
    if document.get("version") != VERSION:
        raise UsageError(
            Reason("file-version", file=str(path), given=repr(document.get("version"))),
            hint="upgrade kernelmark, or write the file again",
        )
    entries = document.get("entries")
    if not isinstance(entries, list) or not isinstance(document.get("cublaslt"), str):
        raise UsageError(Reason("file-without-entries", file=str(path)))
    for i, row in enumerate(entries):
        _check_row(row, str(path), i + 1)
    return document


def _check_row(row: object, file: str, number: int) -> None:
    if not isinstance(row, dict):
        raise UsageError(Reason("entry-not-object", file=file, entry=number))
    for name in ("problem", "arch", "kernel"):
        if not isinstance(row.get(name), str):
            raise UsageError(Reason("entry-lacks", file=file, entry=number, name=name))
    algo = row.get("algo")
    if not isinstance(algo, dict) or not all(type(value) is int for value in algo.values()):
        raise UsageError(Reason("entry-algo", file=file, entry=number))


def _text(head: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Format the document with one entry per line, for readable diffs."""
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    start = json.dumps(head)[:-1]
    return f'{start}, "entries": [\n{lines}\n]}}\n'


emitter = Cublaslt()
