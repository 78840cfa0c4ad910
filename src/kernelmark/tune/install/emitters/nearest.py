"""vllm, sglang, vllm_moe, sglang_moe: winners in the Triton configs of vLLM and SGLang.

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
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, ConfigValue
from kernelmark.tune.install import nearest_config as configs
from kernelmark.tune.install.emitters.base import (
    CannotWrite,
    Change,
    Edit,
    Emitter,
    Entry,
    Key,
    Lookup,
    Options,
    Skipped,
    check_folder,
    check_weights,
    text_at,
)
from kernelmark.tune.install.json_text import with_object
from kernelmark.tune.records.results import Outcome

# The names of their settings by ours.
_SETTINGS = {
    "block_m": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "group_m": "GROUP_SIZE_M",
    **{name: name for name in ("num_warps", "num_stages", "waves_per_eu", "kpack")},
    "matrix_instr_nonkdim": "matrix_instr_nonkdim",
}
_OURS = {theirs: ours for ours, theirs in _SETTINGS.items()}
_NEEDED = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
# Settings that their kernels lack, with the value that is equivalent to lacking it.
_WITHOUT: Mapping[str, ConfigValue] = {"split_k": 1, "persistent": False, "cache_modifier": ""}


class NearestEmitter(Emitter):
    """The formats of both libraries, which differ in file names and in how they adjust configs."""

    backends = ("triton",)
    options: Mapping[str, str] = FrozenDict(
        {"device_name": "the GPU's name as torch.cuda.get_device_name() has it; needed"}
    )
    needs_base = True

    def __init__(self, name: str, style: configs.Style, summary: str, facts: FormatFacts) -> None:
        self.name, self.style, self.summary, self.facts = name, style, summary, facts

    @abstractmethod
    def shape(self, problem: Problem, device: str, options: Options) -> configs.Shape:
        """Return the lookup key of a problem's file; raise CannotWrite if it has none."""

    def emit(self, outcomes: Sequence[Outcome], into: Path, options: Options) -> Change:
        check_folder(into, "give the folder of its configs")
        device_name = options.get("device_name", "")
        device = configs.spell_device(device_name, self.style)
        if configs.parse_name(f"E=1,N=1,device_name={device}.json") is None:
            raise UsageError(
                f"{self.name}: device_name={device_name!r} is not the name of a GPU, which file "
                "names contain",
                hint="give --with device_name=NVIDIA_H200, as torch.cuda.get_device_name() has it",
            )

        def lookup_key(outcome: Outcome) -> Key:
            shape = self.shape(outcome.problem, device, options)
            return _key(shape.file_name(self.style), outcome.problem.dims["m"])

        chosen = self.choose(outcomes, lookup_key)
        unchanged: dict[str, list[int]] = {}
        for key in chosen.unchanged:
            unchanged.setdefault(key["file"], []).append(int(key["m"]))
        winners: dict[str, dict[int, Outcome]] = {}
        for key, outcome in chosen.winners.items():
            winners.setdefault(key["file"], {})[int(key["m"])] = outcome
        skipped, notes = list(chosen.skipped), list[str]()
        edits: list[Edit] = []
        lookups: list[Lookup] = []
        for name, by_m in winners.items():
            try:
                change = self._change_file(into / name, by_m, unchanged.get(name, ()))
            except CannotWrite as error:
                skipped += [Skipped(name=o.name, reason=error.reason) for o in by_m.values()]
                continue
            edits += change.edits
            lookups += change.lookups
            notes += change.notes
        if edits:
            notes.append(
                f"these configs were timed with kernelmark's Triton kernel: time {self.name}'s "
                "with them"
            )
        return Change(
            emitter=self.name,
            edits=tuple(edits),
            lookups=tuple(lookups),
            skipped=tuple(skipped),
            notes=tuple(notes),
        )

    def _change_file(
        self, file: Path, winners: Mapping[int, Outcome], unchanged: Iterable[int]
    ) -> Change:
        shape = configs.parse_name(file.name)
        assert shape is not None
        before = text_at(file)
        text = before or self.fallback_text(file, shape) or "{}"

        def lookup(m: int) -> Mapping[str, Any] | None:
            return configs.lookup(text, str(file), shape, self.style, m)

        def parsed() -> configs.Entries:
            return configs.parse(text, str(file), self.style)

        new = {m: self._settings(outcome.tuned.config, shape) for m, outcome in winners.items()}
        kept = {m: lookup(m) for m in (*parsed(), *unchanged) if m not in new}
        for m, settings in new.items():
            text = _with_entry(text, parsed(), m, settings)
        # A repeated entry changes lookups of its neighbours too: continue until none changes.
        while changed := [m for m in kept if kept[m] != lookup(m)]:
            settings_before = kept[changed[0]]
            if settings_before is None:
                raise CannotWrite(
                    f"m={changed[0]} did not gain, and the new file {file.name} would change its "
                    "config too"
                )
            text = _with_entry(text, parsed(), changed[0], dict(settings_before))
        lookups = [
            Lookup(key=_key(file.name, m), config=_config(new[m]), winner=winners[m].name)
            for m in new
        ]
        lookups += [
            Lookup(key=_key(file.name, m), config=_config(settings))
            for m, settings in kept.items()
            if settings is not None
        ]
        notes = []
        for m, outcome in winners.items():
            first, last = configs.served(parsed(), m)
            end = f"to {last}" if last else "upwards"
            notes.append(f"{outcome.name}: {m} of {file.name} serves m={first} {end}")
        edits = () if text == before else (Edit(path=Path(file.name), before=before, after=text),)
        return Change(emitter=self.name, edits=edits, lookups=tuple(lookups), notes=tuple(notes))

    def _settings(self, config: Config, shape: configs.Shape) -> dict[str, Any]:
        settings = dict(config)
        lacking = [n for n, same in _WITHOUT.items() if settings.pop(n, same) not in (same, None)]
        if unknown := lacking or sorted(settings.keys() - _SETTINGS.keys()):
            raise CannotWrite(f"{self.name}'s configs have no {unknown[0]}")
        if missing := [name for name in _NEEDED if name not in settings]:
            raise CannotWrite(f"its config has no {missing[0]}")
        if shape.block:
            # The kernel loads one scale per step along k. SGLang raises a smaller block_k on AMD.
            scale_k, step = shape.block[1], int(settings["block_k"])
            if scale_k % step or (step < scale_k and not shape.device.startswith("NVIDIA")):
                raise CannotWrite(f"block_k={step} does not fit scales of {scale_k} along k")
        return {_SETTINGS[name]: value for name, value in ({"group_m": 1} | settings).items()}

    def read(self, path: Path) -> list[Entry]:
        return [
            Entry(key=_key(file.relative_to(path).as_posix(), m), config=_config(settings))
            for file in sorted(path.rglob("*.json"))
            if configs.parse_name(file.name) is not None
            for m, settings in configs.parse(text_at(file) or "", str(file), self.style).items()
        ]

    def find(self, path: Path, key: Key) -> Entry | None:
        file = path / key["file"]
        shape, text = configs.parse_name(file.name), text_at(file)
        if shape is None or text is None:
            return None
        settings = configs.lookup(text, str(file), shape, self.style, int(key["m"]))
        return None if settings is None else Entry(key=key, config=_config(settings))

    def fallback_text(self, file: Path, shape: configs.Shape) -> str | None:
        """Return the text of the file that the library reads if `file` is missing, or None."""
        return None


class BlockFp8Emitter(NearestEmitter):
    """Block-scaled fp8 GEMMs."""

    options = FrozenDict(
        {**NearestEmitter.options, "block_shape": "n,k of the weights' scales; default: 128,128"}
    )

    def shape(self, problem: Problem, device: str, options: Options) -> configs.Shape:
        if problem.op != "gemm":
            raise CannotWrite(f"{self.name} has no entries for {problem.op}")
        for dtype in (problem.dtypes["a"], problem.dtypes["b"]):
            if dtype not in ("f8e4m3", "f8e4m3fnuz"):
                raise CannotWrite(f"{self.name} has no entries for {problem.op} of {dtype}")
        check_weights(self.name, problem)
        return configs.Shape(
            n=problem.dims["n"],
            k=problem.dims["k"],
            device=device,
            dtype="fp8_w8a8",
            block=_parse_block(options.get("block_shape", "128,128")),
        )


class MoeEmitter(NearestEmitter):
    """Fused mixtures of experts. File names have no hidden size and no top_k."""

    def shape(self, problem: Problem, device: str, options: Options) -> configs.Shape:
        if problem.op != "moe":
            raise CannotWrite(f"{self.name} has no entries for {problem.op}")
        return configs.Shape(n=problem.dims["n"], experts=problem.dims["e"], device=device)

    def fallback_text(self, file: Path, shape: configs.Shape) -> str | None:
        """Return the text of the newest other Triton version's file, which SGLang uses if `file` is
        missing."""
        if self.style == "vllm":
            return None
        if not configs.VERSION.match(file.parent.name):
            raise UsageError(
                f"{file.parent.name} is not a folder of SGLang's configs",
                hint="give that of its Triton version, as configs/triton_3_6_0",
            )
        other = configs.find_file(file.parent.parent, shape, self.style)
        return None if other is None else text_at(other)


def _with_entry(text: str, entries: configs.Entries, m: int, settings: dict[str, Any]) -> str:
    """Return the text with an entry for m, inserted after the entries of smaller M."""
    below = max((key for key in entries if key < m), default=None)
    return with_object(text, str(m), settings, after=None if below is None else str(below))


def _config(settings: Mapping[str, Any]) -> Config:
    config: dict[str, ConfigValue] = {_OURS.get(name, name): v for name, v in settings.items()}
    return FrozenDict(config)


def _key(file: str, m: int) -> Key:
    return FrozenDict({"file": file, "m": str(m)})


def _parse_block(text: str) -> tuple[int, int]:
    sizes = text.strip("[]").split(",")
    if len(sizes) != 2 or not all(size.strip().isdecimal() and int(size) for size in sizes):
        raise UsageError(f"block_shape={text} is not two sizes", hint="as block_shape=128,128")
    return int(sizes[0]), int(sizes[1])


def _block_fp8(name: str, style: configs.Style, label: str, version: str) -> BlockFp8Emitter:
    other = {"vllm": "SGLang", "sglang": "vLLM"}[style]
    return BlockFp8Emitter(
        name,
        style,
        f"{label}'s JSON configs of block-fp8 GEMMs, a file for each (N, K) and GPU",
        FormatFacts(
            versions=f"{label} {version} (2026-08)",
            exactness="a new entry serves the m nearest to it; lookups without a gain are "
            "unchanged",
            checked=f"{label}'s own lookup executed on its files and on what is written, without a "
            f"difference (17,658 lookups in 981 files with {other}'s, 1,665 after writing)",
        ),
    )


_VLLM_MOE = MoeEmitter(
    "vllm_moe",
    "vllm",
    "vLLM's JSON configs of fused MoE, a file for each (E, N) and GPU (also: vllm-moe)",
    FormatFacts(
        versions="vLLM a014e35f (2026-08)",
        exactness="f16 and bf16, which share a file; a new entry serves the m nearest to it; "
        "lookups without a gain are unchanged",
        checked="vLLM's own lookup executed before and after writing 443 synthetic winners into "
        "its 143 files of f16 and bf16 and 26 new ones: 2,877 lookups without a difference",
    ),
)
_SGLANG_MOE = MoeEmitter(
    "sglang_moe",
    "sglang",
    "SGLang's JSON configs of fused MoE, in configs/triton_X_Y_Z (also: sglang-moe)",
    FormatFacts(
        versions="SGLang cce0a124 (2026-08)",
        exactness="as vllm_moe; a file that exists only for another Triton version is copied "
        "first; _down files are unchanged",
        checked="SGLang's own lookup executed before and after writing 535 synthetic winners "
        "into files of 179 names, with and without one of its own Triton version: 3,546 lookups "
        "without a difference",
    ),
)
emitters: dict[str, NearestEmitter] = {
    "sglang": _block_fp8("sglang", "sglang", "SGLang", "cce0a124"),
    "sglang_moe": _SGLANG_MOE,
    "vllm": _block_fp8("vllm", "vllm", "vLLM", "a014e35f"),
    "vllm_moe": _VLLM_MOE,
}
