"""Triton configs of vLLM and SGLang: one file per shape, with entries found by the nearest M; and
the emitters vllm, sglang, vllm_moe and sglang_moe, which write winners into them.

    N=…,K=…,device_name=…,dtype=fp8_w8a8,block_shape=[128,128].json   block-scaled fp8 GEMMs
    E=…,N=…,device_name=…[,dtype=…][,block_shape=…].json              fused MoE

SGLang writes a blank into block_shape, may add per_channel_quant=True and _down, and has one
folder of MoE files per Triton version. If a file is missing there, the newest other version's is
used. Both libraries use the entry with the nearest M; of two equally near ones, the first in the
file. So an entry is used for all m that are nearest to it, and a new entry changes lookups of its
neighbours: problems that did not gain keep their config, by an additional entry that repeats it. In
a new file, entries that repeat the library's own default keep it for every m that was not tuned."""

from __future__ import annotations

import dataclasses
import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from kernelmark.core.codec import once
from kernelmark.core.errors import UsageError
from kernelmark.core.files import read_whole
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, ConfigValue
from kernelmark.ops.moe import SCALE_GROUP
from kernelmark.tune.install.aiter_config import Lint, LintFinding, check_settings
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
    with_object,
)
from kernelmark.tune.results import Outcome

Style = Literal["vllm", "sglang"]
Entries = Mapping[int, Mapping[str, Any]]
_NAME = re.compile(
    r"(?P<first>[EN])=(?P<size>[0-9]+),(?P<second>[NK])=(?P<other>[0-9]+),"
    r"device_name=(?P<device>[^,/]+?)(?:,dtype=(?P<dtype>\w+?))?"
    r"(?:,block_shape=\[(?P<block_n>[0-9]+), ?(?P<block_k>[0-9]+)\])?"
    r"(?P<channels>,per_channel_quant=True)?(?P<down>_down)?\.json\Z"
)
VERSION = re.compile(r"triton_([0-9]+(?:_[0-9]+)*)\Z")
_TRITON = "triton_version"  # a key next to the entries of vLLM's MoE files
_BLOCK_K = "BLOCK_SIZE_K"
_CHANNELWISE = "fp8_w8a8_channelwise"  # SGLang's; for m nearest to a null entry, CUTLASS is used


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigShape:
    """The lookup key of a file. A GEMM has `k`, a fused MoE `experts`; the other is 0."""

    n: int
    device: str
    k: int = 0
    experts: int = 0
    dtype: str = ""
    block: tuple[int, int] | None = None
    per_channel: bool = False
    down: bool = False

    @property
    def raised(self) -> bool:
        """Whether SGLang may raise BLOCK_SIZE_K to the block size of the scales (on reading)."""
        return bool(self.k and self.block) and self.dtype == "fp8_w8a8"

    def file_name(self, style: Style) -> str:
        """Return the file name that the library opens."""
        device = self.device
        # Only vLLM's lookup of MoE files treats all GPUs of the H200 family as one.
        if style == "vllm" and self.experts and "H200" in device.split("_"):
            device = "NVIDIA_H200"
        sizes = f"E={self.experts},N={self.n}" if self.experts else f"N={self.n},K={self.k}"
        name = f"{sizes},device_name={device}"
        name += f",dtype={self.dtype}" if self.dtype else ""
        if self.block:
            comma = "," if style == "vllm" else ", "
            name += f",block_shape=[{self.block[0]}{comma}{self.block[1]}]"
        name += ",per_channel_quant=True" if self.per_channel else ""
        return f"{name}{'_down' if self.down else ''}.json"


def spell_device(name: str, style: Style) -> str:
    """Return a GPU's name as it is in the library's file names."""
    return re.sub(r"[\s/]+", "_", name) if style == "vllm" else name.replace(" ", "_")


def parse_name(name: str) -> ConfigShape | None:
    """Parse the shape from a file's name; return None for a file of another kind."""
    match = _NAME.match(name)
    if match is None or (match["first"], match["second"]) not in (("E", "N"), ("N", "K")):
        return None
    moe = match["first"] == "E"
    block = (int(match["block_n"]), int(match["block_k"])) if match["block_n"] else None
    return ConfigShape(
        n=int(match["other"] if moe else match["size"]),
        k=0 if moe else int(match["other"]),
        experts=int(match["size"]) if moe else 0,
        device=match["device"],
        dtype=match["dtype"] or "",
        block=block,
        per_channel=bool(match["channels"]),
        down=bool(match["down"]),
    )


def parse(text: str, file: str, style: Style) -> dict[int, Mapping[str, Any]]:
    """Parse the entries of a file, in order; raise UsageError where the library's reader fails."""
    shape = parse_name(PurePath(file).name)
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("not an object")
        if style == "vllm" and not (shape and shape.k):
            document.pop(_TRITON, None)
        nulls = shape is not None and shape.dtype == _CHANNELWISE
        entries = {
            int(key): {} if nulls and value is None else value for key, value in document.items()
        }
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: cannot be read by {style}: {error}") from None
    needs_block_k = style == "sglang" and shape is not None and shape.raised
    for key, value in entries.items():
        if not isinstance(value, dict):
            raise UsageError(f"{file}: {key} is {value!r} and not an object of settings")
        if needs_block_k and not isinstance(value.get(_BLOCK_K), int):
            raise UsageError(f"{file}: cannot be read by {style}: {key} has no {_BLOCK_K}")
    return entries


def nearest(entries: Entries, m: int) -> int | None:
    """Return the M whose entry is used for m."""
    return min(entries, key=lambda key: abs(key - m), default=None)


def served(entries: Entries, key: int) -> tuple[int, int | None]:
    """Return the first and the last m that an entry is used for; None means no upper limit."""
    order = list(entries)
    below = max((x for x in entries if x < key), default=None)
    above = min((x for x in entries if x > key), default=None)
    first, last = 1, None
    if below is not None:
        middle, odd = divmod(below + key, 2)
        wins = not odd and order.index(key) < order.index(below)
        first = middle if wins else middle + 1
    if above is not None:
        middle, odd = divmod(key + above, 2)
        loses = not odd and order.index(above) < order.index(key)
        last = middle - 1 if loses else middle
    return first, last


def find_file(root: Path, shape: ConfigShape, style: Style, triton: str = "") -> Path | None:
    """Return the file that the library opens. `triton` is the Triton version that SGLang runs
    with, whose folder has its MoE files; without a file for the down projection, SGLang uses that
    of the up projection."""
    name = shape.file_name(style)
    folders = list(_folders(root, triton)) if style == "sglang" and shape.experts else [root]
    file = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if file is None and shape.down:
        return find_file(root, dataclasses.replace(shape, down=False), style, triton)
    return file


def lookup(
    text: str, file: str, shape: ConfigShape, style: Style, m: int
) -> Mapping[str, Any] | None:
    """Return the settings that a kernel is launched with for m; None if the library uses its
    default."""
    entries = parse(text, file, style)
    key = nearest(entries, m)
    if key is None:
        return None
    settings = entries[key]
    if not settings and shape.dtype == _CHANNELWISE:
        return None
    if style == "sglang" and shape.raised:
        return _raise_block_k(settings, shape)
    return settings


def lint(root: Path) -> Lint:
    """Check the files of both libraries under `root`."""
    root = root.absolute()  # the last part of its name may be a Triton version
    shapes = {path: parse_name(path.name) for path in sorted(root.rglob("*.json"))}
    files = {path: shape for path, shape in shapes.items() if shape}
    findings = [
        LintFinding(file=str(path.relative_to(root)), entry=entry, text=text)
        for path, shape in files.items()
        for entry, text in _check(path, shape)
    ]
    return Lint(files=len(files), findings=tuple(findings))


def _check(path: Path, shape: ConfigShape) -> Iterator[tuple[str, str]]:
    """Yield pairs of M ("" for the whole file) and an error."""
    if " " in shape.device:
        yield "", "is never read: a blank in the name of a GPU is _"
        return
    sglang = VERSION.match(path.parent.name) if shape.experts else ", " in path.name
    style: Style = "sglang" if sglang else "vllm"
    if path.name != shape.file_name(style):
        moe = "; SGLang's MoE files are in triton_X_Y_Z" if shape.experts and not sglang else ""
        yield "", f"is never read: {style} asks for {shape.file_name(style)}{moe}"
        return
    try:
        text = read_whole(path).decode()
        json.loads(text, object_pairs_hook=once)
        entries = parse(text, path.name, style)
    except OSError as error:
        yield "", f"cannot be read: {error.strerror}"
        return
    except (ValueError, RecursionError) as error:
        yield "", f"is not JSON: {error}"
        return
    except UsageError as error:
        yield "", str(error.message).removeprefix(f"{path.name}: ")
        return
    if not entries:
        yield "", "holds no entry"
    for key, settings in entries.items():
        first, last = served(entries, key)
        if last is not None and last < first:
            yield str(key), "is dead: another entry is as near or nearer to every m"
        yield from ((str(key), text) for text in check_settings(settings))


def _raise_block_k(settings: Mapping[str, Any], shape: ConfigShape) -> Mapping[str, Any]:
    """Return the settings with BLOCK_SIZE_K as SGLang raises it if it is below the block size of
    the scales, on NVIDIA only if it does not divide that."""
    assert shape.block is not None
    of_scale, block_k = shape.block[1], settings.get(_BLOCK_K)
    if not isinstance(block_k, int) or block_k >= of_scale:
        return settings
    if shape.device.startswith("NVIDIA") and of_scale % block_k == 0:
        return settings
    return {**settings, _BLOCK_K: of_scale}


def _folders(root: Path, triton: str) -> Iterator[Path]:
    """Yield the folder of the running Triton version, then the others, newest first."""
    own = root / f"triton_{triton.replace('.', '_')}"
    if triton:
        yield own
    versions = {
        path: tuple(map(int, match[1].split("_")))
        for path in root.iterdir()
        if (match := VERSION.match(path.name))
    }
    yield from (
        path for path in sorted(versions, key=lambda p: versions[p], reverse=True) if path != own
    )


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
_WITHOUT: Mapping[str, ConfigValue] = {
    **dict.fromkeys(("split_k", "xcds"), 1),
    **dict.fromkeys(("persistent", "fused_sum", "swap", "specialize", "turn"), False),
    "cache_modifier": "",
}
# The m that both libraries' tuning scripts measure.
_GRID = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 8192)
# The architecture of a GPU by a part of its name; the first that occurs counts.
_GPUS = (
    *(("MI100", "gfx908"), ("MI2", "gfx90a"), ("MI30", "gfx942"), ("MI325", "gfx942")),
    *(("MI35", "gfx950"), ("R9700", "gfx1201"), ("8060S", "gfx1151")),
    *(("V100", "sm_70"), ("T4", "sm_75"), ("A100", "sm_80"), ("A800", "sm_80"), ("A10", "sm_86")),
    *(("A40", "sm_86"), ("RTX_30", "sm_86"), ("Ada", "sm_89"), ("RTX_40", "sm_89")),
    *(("L4", "sm_89"), ("L20Y", "sm_"), ("L20", "sm_89"), ("GB10", "sm_121")),
    *(("B300", "sm_103"), ("B200", "sm_100"), ("B100", "sm_100"), ("RTX_50", "sm_120")),
    *(("Blackwell", "sm_120"), ("GH200", "sm_90"), ("H100", "sm_90"), ("H200", "sm_90")),
    *(("H800", "sm_90"), ("H20", "sm_90")),
)


# How drivers begin the names of GPUs.
_VENDORS = ("NVIDIA", "Tesla", "AMD", "Radeon", "Intel")


class NearestEmitter(Emitter):
    """The formats of both libraries, which differ in file names and in how they adjust configs."""

    backends = ("triton",)
    options: Mapping[str, str] = FrozenDict(
        {"device_name": "the GPU's name as torch.cuda.get_device_name() has it; needed"}
    )
    needs_base = True

    def __init__(self, name: str, style: Style, summary: str, facts: FormatFacts) -> None:
        self.name, self.style, self.summary, self.facts = name, style, summary, facts

    @abstractmethod
    def shape(self, problem: Problem, device: str, options: Options) -> ConfigShape:
        """Return the lookup key of a problem's file; raise CannotWrite if it has none."""

    def emit(self, outcomes: Sequence[Outcome], into: Path, options: Options) -> Change:
        check_folder(into, "give the folder of its configs")
        device_name = options.get("device_name", "")
        device = spell_device(device_name, self.style)
        named = parse_name(f"E=1,N=1,device_name={device}.json")
        if named is None or not device.startswith(_VENDORS):
            raise UsageError(
                f"{self.name}: device_name={device_name!r} is not the name of a GPU, which file "
                "names contain",
                hint="give --with device_name=NVIDIA_H200, as torch.cuda.get_device_name() has it",
            )

        def lookup_key(outcome: Outcome) -> Key:
            _check_device(device, outcome.arch)
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
        shape = parse_name(file.name)
        assert shape is not None
        before = text_at(file)
        text = before or self.fallback_text(file, shape) or "{}"
        is_new = not parse(text, str(file), self.style)
        if is_new and shape.experts and shape.dtype:
            raise CannotWrite(
                f"{file.name} does not exist, and what {self.name} launches without it is not known"
            )

        def settings_at(m: int) -> Mapping[str, Any]:
            settings = lookup(text, str(file), shape, self.style, m)
            return default_settings(shape, self.style, m) if settings is None else settings

        def parsed() -> Entries:
            return parse(text, str(file), self.style)

        new = {m: self.settings_of(outcome.tuned.config, shape) for m, outcome in winners.items()}
        others = _pinned(shape, self.style, max(new)) if is_new else parsed()
        kept = {m: settings_at(m) for m in (*others, *unchanged) if m not in new}
        for m, settings in new.items():
            text = _with_entry(text, parsed(), m, settings)
        # A repeated entry changes lookups of its neighbours too: continue until none changes.
        while changed := [m for m in kept if kept[m] != settings_at(m)]:
            text = _with_entry(text, parsed(), changed[0], dict(kept[changed[0]]))
        lookups = [
            Lookup(key=_key(file.name, m), config=_config(new[m]), winner=winners[m].name)
            for m in new
        ]
        lookups += [
            Lookup(key=_key(file.name, m), config=_config(settings)) for m, settings in kept.items()
        ]
        notes = []
        if is_new:
            notes.append(f"{file.name} is new: m that were not tuned keep {self.name}'s default")
        for m, outcome in winners.items():
            first, last = served(parsed(), m)
            end = f"to {last}" if last else "upwards"
            notes.append(f"{outcome.name}: {m} of {file.name} serves m={first} {end}")
        edits = () if text == before else (Edit(path=Path(file.name), before=before, after=text),)
        return Change(emitter=self.name, edits=edits, lookups=tuple(lookups), notes=tuple(notes))

    def settings_of(self, config: Config, shape: ConfigShape) -> dict[str, Any]:
        """Return a config as the file has it; raise CannotWrite if it cannot have it."""
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
            if parse_name(file.name) is not None
            for m, settings in parse(text_at(file) or "", str(file), self.style).items()
        ]

    def find(self, path: Path, key: Key) -> Entry | None:
        file = path / key["file"]
        shape, text = parse_name(file.name), text_at(file)
        if shape is None or text is None:
            return None
        settings = lookup(text, str(file), shape, self.style, int(key["m"]))
        return None if settings is None else Entry(key=key, config=_config(settings))

    def fallback_text(self, file: Path, shape: ConfigShape) -> str | None:
        """Return the text of the file that the library reads if `file` is missing, or None."""
        return None


class BlockFp8Emitter(NearestEmitter):
    """Block-scaled fp8 GEMMs."""

    options = FrozenDict(
        {**NearestEmitter.options, "block_shape": "n,k of the weights' scales; default: 128,128"}
    )

    def shape(self, problem: Problem, device: str, options: Options) -> ConfigShape:
        scale = str(problem.options.get("scale", "none"))
        if problem.op not in ("gemm", "gemm_epilogue") or scale not in ("none", "block"):
            raise CannotWrite(f"{self.name} has no entries for {problem.op} scale={scale}")
        for dtype in (problem.dtypes["a"], problem.dtypes["b"]):
            if dtype not in ("f8e4m3", "f8e4m3fnuz"):
                raise CannotWrite(f"{self.name} has no entries for {problem.op} of {dtype}")
        check_weights(self.name, problem)
        return ConfigShape(
            n=problem.dims["n"],
            k=problem.dims["k"],
            device=device,
            dtype="fp8_w8a8",
            block=_parse_block(options.get("block_shape", "128,128")),
        )


class MoeEmitter(NearestEmitter):
    """Fused mixtures of experts. File names have no hidden size and no top_k."""

    def shape(self, problem: Problem, device: str, options: Options) -> ConfigShape:
        if problem.op != "moe":
            raise CannotWrite(f"{self.name} has no entries for {problem.op}")
        small, scale = problem.dtypes.get("w", ""), problem.options.get("scale")
        kinds = {"i8": "int8_w8a8", "f8e4m3": "fp8_w8a8", "f8e4m3fnuz": "fp8_w8a8"}
        return ConfigShape(
            n=problem.dims["n"],
            experts=problem.dims["e"],
            device=device,
            dtype=kinds.get(small, ""),
            block=(SCALE_GROUP, SCALE_GROUP) if scale == "block" else None,
            per_channel=self.style == "sglang" and scale == "row",
        )

    def fallback_text(self, file: Path, shape: ConfigShape) -> str | None:
        """Return the text of the newest other Triton version's file, which SGLang uses if `file` is
        missing."""
        if self.style == "vllm":
            return None
        if not VERSION.match(file.parent.name):
            raise UsageError(
                f"{file.parent.name} is not a folder of SGLang's configs",
                hint="give that of its Triton version, as configs/triton_3_6_0",
            )
        other = find_file(file.parent.parent, shape, self.style)
        return None if other is None else text_at(other)


def default_settings(shape: ConfigShape, style: Style, m: int) -> dict[str, Any]:
    """Return what the library launches for m without a file: a block-scaled fp8 GEMM or a fused MoE
    of f16 or bf16, in the versions of the emitters' facts."""
    names = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", _BLOCK_K, "GROUP_SIZE_M", "num_warps", "num_stages")
    is_nvidia = shape.device.startswith("NVIDIA")
    if shape.block:
        values: tuple[int, ...] = (64, *shape.block, 32, 4, 2 if style == "vllm" else 3)
    elif style == "sglang":
        values = (16, 32, 64, 1) if m <= shape.experts else (64, 64, 32, 8)
    else:
        block_m = next((size for most, size in ((32, 16), (96, 32), (512, 64)) if m <= most), 128)
        blocks = (block_m, *((64, 128) if m <= 64 else (128, 64)))
        group_m = 16 if m // shape.experts > 128 else 1
        stages = (4 if m <= 32 else 3) if is_nvidia else 2
        values = (*blocks, group_m, 4 if m <= 128 else 8, stages)
    return dict(zip(names, values, strict=False))


def _pinned(shape: ConfigShape, style: Style, largest: int) -> list[int]:
    """Return the m at which a new file repeats the library's default: those that are usually tuned,
    one beyond the largest, and both sides of each step of the default."""
    steps = (32, 64, 96, 128, 512, shape.experts, 129 * shape.experts - 1)
    sides = [m for step in steps for m in (step, step + 1) if shape.experts]
    return sorted({*_GRID, 2 * max(largest, _GRID[-1]), *sides})


def _check_device(device: str, arch: str) -> None:
    """Raise CannotWrite if a GPU of this name is of another architecture than the winner's."""
    expected = next((known for part, known in _GPUS if part in device), "")
    if not expected:
        vendors = (("NVIDIA", "sm_"), ("AMD", "gfx"), ("Radeon", "gfx"))
        expected = next((known for part, known in vendors if part in device), "")
    if arch.startswith(("sm_", "gfx")) and not arch.startswith(expected):
        raise CannotWrite(f"it was tuned on {arch}, and device_name={device} is another GPU")


def _with_entry(text: str, entries: Entries, m: int, settings: dict[str, Any]) -> str:
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


def _block_fp8(name: str, style: Style, label: str, version: str) -> BlockFp8Emitter:
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
        exactness="f16 and bf16 share a file; of fp8 and int8, only files that exist; a new entry "
        "serves the m nearest to it; lookups without a gain are unchanged",
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
