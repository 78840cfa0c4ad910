"""Triton configs of vLLM and SGLang: one file per shape, with entries found by the nearest M.

    N=…,K=…,device_name=…,dtype=fp8_w8a8,block_shape=[128,128].json   block-scaled fp8 GEMMs
    E=…,N=…,device_name=…[,dtype=…][,block_shape=…].json              fused MoE

SGLang writes a blank into block_shape, may add per_channel_quant=True and _down, and has one
folder of MoE files per Triton version. If a file is missing there, the newest other version's is
used. Both libraries use the entry with the nearest M; of two equally near ones, the first in the
file.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from kernelmark.core.errors import UsageError
from kernelmark.core.files import read_whole
from kernelmark.tune.install.aiter_config import Finding, Lint, check_settings, once

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
class Shape:
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


def parse_name(name: str) -> Shape | None:
    """Parse the shape from a file's name; return None for a file of another kind."""
    match = _NAME.match(name)
    if match is None or (match["first"], match["second"]) not in (("E", "N"), ("N", "K")):
        return None
    moe = match["first"] == "E"
    block = (int(match["block_n"]), int(match["block_k"])) if match["block_n"] else None
    return Shape(
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


def find_file(root: Path, shape: Shape, style: Style, triton: str = "") -> Path | None:
    """Return the file that the library opens. `triton` is the Triton version that SGLang runs
    with, whose folder has its MoE files; without a file for the down projection, SGLang uses that
    of the up projection."""
    name = shape.file_name(style)
    folders = list(_folders(root, triton)) if style == "sglang" and shape.experts else [root]
    file = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if file is None and shape.down:
        return find_file(root, dataclasses.replace(shape, down=False), style, triton)
    return file


def lookup(text: str, file: str, shape: Shape, style: Style, m: int) -> Mapping[str, Any] | None:
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
        Finding(file=str(path.relative_to(root)), entry=entry, text=text)
        for path, shape in files.items()
        for entry, text in _check(path, shape)
    ]
    return Lint(files=len(files), findings=tuple(findings))


def _check(path: Path, shape: Shape) -> Iterator[tuple[str, str]]:
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


def _raise_block_k(settings: Mapping[str, Any], shape: Shape) -> Mapping[str, Any]:
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
