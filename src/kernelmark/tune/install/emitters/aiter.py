"""aiter: winners in a folder of aiter's JSON configs (aiter/ops/triton/configs).

A default file is used for every (N, K) without a file, so it is never edited. A winner is written
to the file of its (N, K); a new file is a copy of the whole default, because aiter does not merge
them. In that file only the bucket of the winner's m changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.tune.install import aiter_config as configs
from kernelmark.tune.install.emitters import _aiter_buckets as words
from kernelmark.tune.install.emitters._json_text import with_object
from kernelmark.tune.install.emitters.base import (
    ON_AMD,
    Change,
    Edit,
    Emitter,
    Entry,
    Fields,
    Held,
    Unfit,
    Wanted,
    check_weights,
    option,
    settle,
    text_at,
)
from kernelmark.tune.records.outcome import Outcome

# The family whose kernel also looks for files with its batch.
_BY_BATCH = (configs.FAMILIES["bf16"],)
_SIXTEEN = ("bf16", "f16")
_EIGHT = ("i8", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
_UNSEEN = 7  # an N, K or batch that no file has


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The lookup key without m. `batch` is "" for families without a batch in file names."""

    family: str
    arch: str
    backend: str
    batch: str
    n: str
    k: str

    def key(self, m: int) -> Fields:
        return FrozenDict({**dataclasses.asdict(self), "m": str(m)})

    @property
    def suffix(self) -> str:
        return (f"B={self.batch}-" if self.batch else "") + f"N={self.n}-K={self.k}"


class Aiter(Emitter):
    name = "aiter"
    summary = "aiter's JSON configs for Triton GEMMs, a file for each (N, K)"
    facts = FormatFacts(
        versions="aiter e4048607 (2026-08)",
        exactness="only the bucket of a winner changes; every other lookup is checked to be "
        "unchanged",
        checked="aiter's own lookup executed on what is written; 265 of its files found as "
        "lint-configs predicts",
    )
    backends = ("triton",)
    options = FrozenDict(
        {
            "arch": "the architecture whose files to change, if not the one it was tuned on",
            "family": "the config family, as GEMM-A16W16, if not the one of the problem",
            "backend": "aiter's backend: triton or gluon",
        }
    )
    needs_base = True
    caution = ON_AMD

    def emit(self, outcomes: Sequence[Outcome], into: Path, given: Fields) -> Change:
        if not into.is_dir():
            raise UsageError(
                Reason("not-a-folder", path=str(into)), hint="give aiter/ops/triton/configs"
            )
        settled = settle(self, outcomes, lambda outcome: self._lookup_key(outcome, given))
        work = _Work(into)
        held = list(settled.held)
        for fields, outcome in settled.winners.items():
            timed = [o.problem.dims["m"] for o in outcomes if self._has_key(o, fields, given)]
            try:
                work.put(self._shape(outcome, given), outcome, timed)
            except Unfit as error:
                held.append(Held(name=outcome.name, reason=error.reason))
        for outcome in outcomes:
            try:
                work.watch(self._shape(outcome, given), outcome.problem.dims["m"])
            except Unfit:
                continue
        return work.change(self, tuple(held))

    def read(self, path: Path) -> list[Entry]:
        entries = []
        for file in sorted(path.rglob("*.json")):
            name = configs.name_of(path, file)
            if name is not None:
                parts = {
                    "family": name.family,
                    "arch": name.arch,
                    "backend": name.backend,
                    "suffix": name.suffix,
                }
                entries += [
                    Entry(
                        fields=FrozenDict({**parts, "bucket": bucket}),
                        config=words.to_config(config),
                    )
                    for bucket, config in configs.read(file).items()
                ]
        return entries

    def find(self, path: Path, fields: Fields) -> Entry | None:
        answer = _lookup(path, fields)
        if answer is None:
            return None
        return Entry(fields=fields, config=words.to_config(answer.config))

    def _has_key(self, outcome: Outcome, fields: Fields, given: Fields) -> bool:
        try:
            return self._lookup_key(outcome, given) == fields
        except Unfit:
            return False

    def _lookup_key(self, outcome: Outcome, given: Fields) -> Fields:
        # Problems of one bucket have the same key.
        shape = self._shape(outcome, given)
        bucket = words.region(outcome.problem.dims["m"], configs.bounds(shape.family))
        return FrozenDict({**dataclasses.asdict(shape), "bucket": bucket})

    def _shape(self, outcome: Outcome, given: Fields) -> Shape:
        problem = outcome.problem
        family = option(self, given, "family") or _family(problem)
        arch = option(self, given, "arch") or outcome.arch.split(":")[0]
        if not arch.startswith("gfx"):
            raise Unfit(Reason("format-arch", format=self.name, arch=arch))
        batch = str(problem.dims.get("batch", "")) if family in _BY_BATCH else ""
        n, k = str(problem.dims["n"]), str(problem.dims["k"])
        backend = option(self, given, "backend")
        return Shape(family=family, arch=arch, backend=backend, batch=batch, n=n, k=k)


class _Work:
    """The new texts of files, and the lookups to check."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts: dict[Path, str] = {}
        self.watched: dict[Fields, None] = {}
        self.new: dict[tuple[Shape, str], tuple[configs.Bucket, str]] = {}
        self.notes: list[str] = []

    def put(self, shape: Shape, outcome: Outcome, timed: Sequence[int]) -> None:
        """Add a winner to the file of its shape; `timed` are all m that were tuned in its
        bucket."""
        m, known = outcome.problem.dims["m"], configs.bounds(shape.family)
        now = self._current(shape, m)
        backend = shape.backend or None
        folder, prefix, _ = configs.folder_of(self.root, shape.family, shape.arch, backend)
        file = folder / f"{prefix}{shape.family}-{shape.suffix}.json"
        text = self.texts.get(file) or text_at(file if file.is_file() else now.file) or ""
        buckets = configs.parse(text, file)
        target = words.region(m, known)
        bucket = words.to_bucket(outcome.tuned.config, now.config, shape.family)
        after = words.contained(buckets, target, bucket, known)
        for name in sorted(after, key=words.order_of):
            if buckets.get(name) != after[name]:
                before = [b for b in buckets if words.order_of(b) < words.order_of(name)]
                previous = max(before, key=words.order_of, default=None)
                text = with_object(text, name, dict(after[name]), after=previous)
                buckets = configs.parse(text, file)
        self.texts[file] = text
        self.new[shape, target] = (bucket, outcome.name)
        first, last = words.others(m, known)
        if first != last:
            end = f"to {last}" if last else "upwards"
            shown = ", ".join(map(str, sorted({*timed})))
            self.notes.append(
                f"{outcome.name}: {target} of {file.name} serves m={first} {end}, timed: {shown}"
            )

    def _current(self, shape: Shape, m: int) -> configs.Found:
        """Return the config that would be replaced. Raise Unfit for a missing family, and
        UsageError for an unreadable file: it is used for other shapes too."""
        backend = shape.backend or None
        try:
            configs.folder_of(self.root, shape.family, shape.arch, backend)
        except UsageError as error:
            raise Unfit(Reason("hinted", cause=error.message, hint=error.hint)) from None
        return _read(self.root, shape.key(m))

    def watch(self, shape: Shape, m: int) -> None:
        """Add a lookup to be checked, and all lookups that the files of a changed family cover."""
        families = {(new.family, new.arch, new.backend) for new, _ in self.new}
        if (shape.family, shape.arch, shape.backend) not in families:
            return
        self.watched[shape.key(m)] = None
        unseen = dataclasses.replace(shape, n=str(_UNSEEN), k=str(_UNSEEN))
        elsewhere = dataclasses.replace(shape, batch=str(_UNSEEN)) if shape.batch else shape
        for other in (shape, unseen, elsewhere, *self._files(shape)):
            for sample in words.samples(configs.bounds(shape.family)):
                self.watched.setdefault(other.key(sample), None)

    def change(self, emitter: Aiter, held: tuple[Held, ...]) -> Change:
        wanted = [answer for fields in self.watched if (answer := self._wanted(fields)) is not None]
        edits = [
            Edit(path=file.relative_to(self.root), before=text_at(file), after=text)
            for file, text in self.texts.items()
        ]
        families = {(shape.family, shape.arch, shape.backend) for shape, _ in self.new}
        also_read = {file for family in families for file in self._family(*family)}
        if self.texts:
            self.notes.append(
                "these configs were timed with kernelmark's Triton kernel: time aiter's with them"
            )
        return Change(
            emitter=emitter.name,
            edits=tuple(edit for edit in edits if edit.before != edit.after),
            wanted=tuple(wanted),
            held=held,
            notes=tuple(self.notes),
            also_read=tuple(sorted(file.relative_to(self.root) for file in also_read)),
        )

    def _wanted(self, fields: Fields) -> Wanted | None:
        m = int(fields["m"])
        shape = Shape(**{name: value for name, value in fields.items() if name != "m"})
        put = self.new.get((shape, words.region(m, configs.bounds(shape.family))))
        if put is not None:
            return Wanted(fields=fields, config=words.to_config(put[0]), name=put[1])
        answer = _lookup(self.root, fields)
        # A lookup that failed before may succeed now.
        if answer is None:
            return None
        return Wanted(fields=fields, config=words.to_config(answer.config))

    def _family(self, family: str, arch: str, backend: str) -> list[Path]:
        """Return the default file of a family and its files for single shapes."""
        folder, prefix, default = configs.folder_of(self.root, family, arch, backend or None)
        return [default, *folder.glob(f"{prefix}{family}-*=*.json")]

    def _files(self, shape: Shape) -> Iterator[Shape]:
        """Yield the shapes that have a file."""
        for file in self._family(shape.family, shape.arch, shape.backend):
            name = configs.name_of(self.root, file)
            if name is None or not name.suffix:
                continue
            sizes = dict(part.split("=") for part in name.suffix.split("-"))
            if sizes.keys() <= {"B", "N", "K"} and {"N", "K"} <= sizes.keys():
                batch = sizes.get("B", "")
                yield dataclasses.replace(shape, batch=batch, n=sizes["N"], k=sizes["K"])


def _lookup(root: Path, fields: Fields) -> configs.Found | None:
    try:
        return _read(root, fields)
    except UsageError:
        return None


def _read(root: Path, fields: Fields) -> configs.Found:
    return configs.lookup(
        root,
        fields["family"],
        fields["arch"],
        m=int(fields["m"]),
        n=int(fields["n"]),
        k=int(fields["k"]),
        batch=int(fields["batch"]) if fields["batch"] else None,
        backend=fields["backend"] or None,
    )


def _family(problem: Problem) -> str:
    if problem.op == "batched_gemm_quant":
        return configs.FAMILIES[str(problem.options["scheme"])]
    if problem.op not in ("gemm", "batched_gemm"):
        raise Unfit(Reason("format-op", format="aiter's folder of GEMM configs", op=problem.op))
    check_weights("aiter", problem)
    dtype, batched = problem.dtypes["a"], problem.op == "batched_gemm"
    if dtype in _SIXTEEN:
        return configs.FAMILIES["bf16"] if batched else "GEMM-A16W16"
    if batched or dtype not in _EIGHT:
        raise Unfit(Reason("format-dtype", format="aiter", op=problem.op, dtype=dtype))
    return "GEMM-A8W8"


emitter = Aiter()
