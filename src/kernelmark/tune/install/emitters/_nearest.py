"""Winners in the Triton configs of vLLM and SGLang, whose entries are found by the nearest M.

An entry is used for all m that are nearest to it, so a new entry changes lookups of its neighbours.
Problems that did not gain keep their config, by an additional entry that repeats it if needed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue
from kernelmark.tune.install import nearest_config as configs
from kernelmark.tune.install.emitters._json_text import with_object
from kernelmark.tune.install.emitters.base import (
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

_OURS = {
    "block_m": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "group_m": "GROUP_SIZE_M",
    **{name: name for name in ("num_warps", "num_stages", "waves_per_eu", "kpack")},
    "matrix_instr_nonkdim": "matrix_instr_nonkdim",
}
_THEIRS = {theirs: ours for ours, theirs in _OURS.items()}
_NEEDED = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
# Settings that their kernels lack, with the value that is equivalent to lacking it.
_WITHOUT: Mapping[str, ConfigValue] = {"split_k": 1, "persistent": False, "cache_modifier": ""}
_F8 = ("f8e4m3", "f8e4m3fnuz")
_DTYPE = "fp8_w8a8"


class NearestEmitter(Emitter):
    """The emitter for both libraries, which differ in file names and in how they adjust configs."""

    style: configs.Style
    backends = ("triton",)
    options: Mapping[str, str] = FrozenDict(
        {"device_name": "the GPU's name as torch.cuda.get_device_name() has it; needed"}
    )
    needs_base = True

    @abstractmethod
    def _shape(self, problem: Problem, given: Fields) -> configs.Shape:
        """Return the lookup key of a problem's file; raise Unfit if it has none."""

    def emit(self, outcomes: Sequence[Outcome], into: Path, given: Fields) -> Change:
        if not into.is_dir():
            raise UsageError(
                Reason("not-a-folder", path=str(into)), hint="give the folder of its configs"
            )
        device = self._device(given)
        if configs.parse_name(f"E=1,N=1,device_name={device}.json") is None:
            raise UsageError(
                Reason("format-device-name", format=self.name, given=device),
                hint="give --with device_name=NVIDIA_H200, as torch.cuda.get_device_name() has it",
            )
        settled = settle(self, outcomes, lambda outcome: self._lookup_key(outcome, given))
        others: dict[str, list[int]] = {}
        for fields in settled.others:
            others.setdefault(fields["file"], []).append(int(fields["m"]))
        winners: dict[str, dict[int, Outcome]] = {}
        for fields, outcome in settled.winners.items():
            winners.setdefault(fields["file"], {})[int(fields["m"])] = outcome
        held, edits, wanted, notes = list(settled.held), [], [], []
        for name, put in winners.items():
            try:
                done = self._file(into / name, put, others.get(name, ()))
            except Unfit as error:
                held += [Held(name=outcome.name, reason=error.reason) for outcome in put.values()]
                continue
            edits += [done.edits] if done.edits else []
            wanted += done.wanted
            notes += done.notes
        if edits:
            notes.append(
                f"these configs were timed with kernelmark's Triton kernel: time {self.name}'s "
                "with them"
            )
        return Change(
            emitter=self.name,
            edits=tuple(edits),
            wanted=tuple(wanted),
            held=tuple(held),
            notes=tuple(notes),
        )

    def _file(self, file: Path, put: Mapping[int, Outcome], others: Iterable[int]) -> _FileChange:
        shape = configs.parse_name(file.name)
        assert shape is not None
        before = text_at(file)
        text = before or self._fallback_text(file, shape) or "{}"
        old = configs.parse(text, str(file), self.style)
        made = {m: self._settings(outcome.tuned.config, shape) for m, outcome in put.items()}
        now = dict(old)
        kept = {m: self._answer(text, file, shape, m) for m in (*old, *others) if m not in made}
        for m, settings in made.items():
            text = _with(text, now, m, settings)
            now = configs.parse(text, str(file), self.style)
        # A repeated entry changes lookups of its neighbours too: continue until none changes.
        while lost := [m for m in kept if kept[m] != self._answer(text, file, shape, m)]:
            answer = kept[lost[0]]
            if answer is None:
                raise Unfit(Reason("new-file-changes", m=lost[0], file=file.name))
            text = _with(text, now, lost[0], dict(answer))
            now = configs.parse(text, str(file), self.style)
        wanted = [
            Wanted(fields=_fields(file.name, m), config=_config(made[m]), name=put[m].name)
            for m in made
        ]
        wanted += [
            Wanted(fields=_fields(file.name, m), config=_config(answer))
            for m, answer in kept.items()
            if answer is not None
        ]
        notes = []
        for m, outcome in put.items():
            first, last = configs.served(now, m)
            end = f"to {last}" if last else "upwards"
            notes.append(f"{outcome.name}: {m} of {file.name} serves m={first} {end}")
        edit = None if text == before else Edit(path=Path(file.name), before=before, after=text)
        return _FileChange(edit, wanted, notes)

    def _settings(self, config: Config, shape: configs.Shape) -> dict[str, Any]:
        settings = dict(config)
        unequal = [n for n, same in _WITHOUT.items() if settings.pop(n, same) not in (same, None)]
        if unknown := unequal or sorted(settings.keys() - _OURS.keys()):
            raise Unfit(Reason("format-no-setting", format=self.name, name=unknown[0]))
        if missing := [name for name in _NEEDED if name not in settings]:
            raise Unfit(Reason("config-lacks", name=missing[0]))
        if shape.block:
            # The kernel loads one scale per step along k. SGLang raises a smaller block_k on AMD.
            of_scale, step = shape.block[1], int(settings["block_k"])
            if of_scale % step or (step < of_scale and not shape.device.startswith("NVIDIA")):
                raise Unfit(Reason("block-k-of-scales", block_k=step, scale_k=of_scale))
        return {_OURS[name]: value for name, value in ({"group_m": 1} | settings).items()}

    def _answer(
        self, text: str, file: Path, shape: configs.Shape, m: int
    ) -> Mapping[str, Any] | None:
        return configs.lookup(text, str(file), shape, self.style, m)

    def read(self, path: Path) -> list[Entry]:
        entries_read = []
        for file in sorted(path.rglob("*.json")):
            if configs.parse_name(file.name) is None:
                continue
            entries = configs.parse(text_at(file) or "", str(file), self.style)
            name = file.relative_to(path).as_posix()
            entries_read += [
                Entry(fields=_fields(name, m), config=_config(one)) for m, one in entries.items()
            ]
        return entries_read

    def find(self, path: Path, fields: Fields) -> Entry | None:
        file = path / fields["file"]
        shape, text = configs.parse_name(file.name), text_at(file)
        if shape is None or text is None:
            return None
        settings = self._answer(text, file, shape, int(fields["m"]))
        return None if settings is None else Entry(fields=fields, config=_config(settings))

    def _device(self, given: Fields) -> str:
        return configs.spell_device(option(self, given, "device_name"), self.style)

    def _lookup_key(self, outcome: Outcome, given: Fields) -> Fields:
        shape = self._shape(outcome.problem, given)
        return _fields(shape.file_name(self.style), outcome.problem.dims["m"])

    def _fallback_text(self, file: Path, shape: configs.Shape) -> str | None:
        """Return the text of the file that the library reads if `file` is missing, or None."""
        return None


class BlockFp8Emitter(NearestEmitter):
    """The emitter for block-scaled fp8 GEMMs."""

    options = FrozenDict(
        {
            **NearestEmitter.options,
            "block_shape": "n,k of the weights' scales; default: 128,128",
        }
    )

    def _shape(self, problem: Problem, given: Fields) -> configs.Shape:
        if problem.op != "gemm":
            raise Unfit(Reason("format-op", format=self.name, op=problem.op))
        if others := sorted({problem.dtypes["a"], problem.dtypes["b"]} - {*_F8}):
            raise Unfit(Reason("format-dtype", format=self.name, op=problem.op, dtype=others[0]))
        check_weights(self.name, problem)
        return configs.Shape(
            n=problem.dims["n"],
            k=problem.dims["k"],
            device=self._device(given),
            dtype=_DTYPE,
            block=_block(option(self, given, "block_shape", "128,128")),
        )


class MoeEmitter(NearestEmitter):
    """The emitter for fused mixtures of experts. File names have no hidden size and no top_k."""

    def _shape(self, problem: Problem, given: Fields) -> configs.Shape:
        if problem.op != "moe":
            raise Unfit(Reason("format-op", format=self.name, op=problem.op))
        return configs.Shape(
            n=problem.dims["n"], experts=problem.dims["e"], device=self._device(given)
        )


class _FileChange:
    """The change of one file."""

    def __init__(self, edits: Edit | None, wanted: list[Wanted], notes: list[str]) -> None:
        self.edits, self.wanted, self.notes = edits, wanted, notes


def _with(text: str, now: configs.Entries, m: int, settings: dict[str, Any]) -> str:
    """Return the text with an entry for m, inserted after the entries of smaller M."""
    below = max((key for key in now if key < m), default=None)
    return with_object(text, str(m), settings, after=None if below is None else str(below))


def _config(settings: Mapping[str, Any]) -> Config:
    config: dict[str, ConfigValue] = {_THEIRS.get(name, name): v for name, v in settings.items()}
    return FrozenDict(config)


def _fields(file: str, m: int) -> Fields:
    return FrozenDict({"file": file, "m": str(m)})


def _block(text: str) -> tuple[int, int]:
    words = text.strip("[]").split(",")
    if len(words) != 2 or not all(word.strip().isdecimal() and int(word) for word in words):
        raise UsageError(
            Reason("argument-type", name="block_shape", given=text, wanted="two sizes"),
            hint="as block_shape=128,128",
        )
    return int(words[0]), int(words[1])
