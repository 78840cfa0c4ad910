"""cublaslt: cuBLASLt algorithms in a JSON file, for programs that select an algorithm themselves.

    {"format": "kernelmark-cublaslt", "version": 1, "cublaslt": "13.1.0", "entries": [
      {"problem": "gemm m=…", "arch": "sm_90", "algo": {"id": 66, "tile": 20, …}}]}

`algo` has the attributes for cublasLtMatmulAlgoConfigSetAttribute, with the names of kernelmark's
cublaslt backend. They are valid for one version of the library, so a file is for one version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.frozen import FrozenDict
from kernelmark.tune.install.emitters.base import (
    CannotWrite,
    Entry,
    FileEmitter,
    Key,
    NewEntry,
    Options,
)
from kernelmark.tune.records.results import Outcome

FORMAT = "kernelmark-cublaslt"
VERSION = 1
_KEY = ("problem", "arch")

Json = dict[str, Any]


class Cublaslt(FileEmitter[Json]):
    name = "cublaslt"
    summary = "cuBLASLt algorithms in a versioned JSON file, by problem and architecture"
    facts = FormatFacts(
        versions="kernelmark's own", exactness="exact", checked="read back in tests"
    )
    backends = ("cublaslt",)

    def parse(self, text: str | None, path: Path) -> Json:
        if text is None:
            return {"entries": []}
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: is not JSON: {error}", hint="is it truncated?") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise UsageError(f"{path}: is not a {FORMAT} file")
        if document.get("version") != VERSION:
            raise UsageError(
                f"{path}: version {document.get('version')!r} is not known",
                hint="upgrade kernelmark, or write the file again",
            )
        rows = document.get("entries")
        if not isinstance(rows, list) or not isinstance(document.get("cublaslt"), str):
            raise UsageError(f"{path}: has no entries or no cublaslt version")
        for number, row in enumerate(rows, 1):
            if wrong := _row_error(row):
                raise UsageError(f"{path}: entry {number} {wrong}")
        return document

    def entries(self, document: Json) -> list[Entry]:
        return [
            Entry(
                key=FrozenDict({name: row[name] for name in _KEY}),
                config=FrozenDict({"algo": _algo_text(row["algo"])}),
                kernel=row["kernel"],
            )
            for row in document["entries"]
        ]

    def lookup_key(self, outcome: Outcome, options: Options) -> Key:
        return FrozenDict({"problem": outcome.problem.key, "arch": outcome.arch})

    def entry(self, outcome: Outcome, key: Key) -> NewEntry:
        text = outcome.tuned.config.get("algo")
        if not isinstance(text, str):
            raise CannotWrite("its config names no algorithm")
        try:
            algo = {name: int(value) for name, value in (word.split("=") for word in text.split())}
        except ValueError:
            raise CannotWrite(f"its algorithm {text!r} is not name=number …") from None
        row = {
            **key,
            "algo": algo,
            "kernel": outcome.tuned.kernel.name,
            "us": round(outcome.tuned.median_s * 1e6, 4),
            "reference_us": round(outcome.reference.median_s * 1e6, 4),
        }
        return NewEntry(config=FrozenDict({"algo": _algo_text(algo)}), content=row)

    def merge(
        self,
        document: Json,
        new: Mapping[Key, NewEntry],
        winners: Sequence[Outcome],
        options: Options,
    ) -> str:
        versions = {outcome.tuned.version for outcome in winners}
        versions |= {document["cublaslt"]} if "cublaslt" in document else set()
        if len(versions) > 1:
            raise UsageError(
                f"algorithms of cuBLASLt {' and '.join(sorted(versions))} do not go into one file",
                hint="write another file, or tune again",
            )
        if versions == {""}:
            raise UsageError("cublaslt: the library's version is not known", hint="tune again")
        rows: dict[Key, Json] = {
            FrozenDict({name: row[name] for name in _KEY}): row for row in document["entries"]
        }
        rows |= {key: entry.content for key, entry in new.items()}
        head = {"format": FORMAT, "version": VERSION, "cublaslt": versions.pop()}
        # One entry per line, for readable diffs.
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows.values())
        return f'{json.dumps(head)[:-1]}, "entries": [\n{lines}\n]}}\n'


def _algo_text(algo: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in algo.items())


def _row_error(row: object) -> str:
    if not isinstance(row, dict):
        return "is not an object"
    missing = next((n for n in (*_KEY, "kernel") if not isinstance(row.get(n), str)), "")
    if missing:
        return f"has no {missing}"
    algo = row.get("algo")
    whole = isinstance(algo, dict) and all(type(value) is int for value in algo.values())
    return "" if whole else "has no algo of whole numbers"


emitter = Cublaslt()
