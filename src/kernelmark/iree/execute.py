"""Run compiled modules with IREE's own tools, each time in a new process.

iree-run-module returns the outputs and iree-benchmark-module the times. Both run in a child
process, so that a crashing kernel ends its variant only, and each round of timings has its own
allocations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernelmark.backends.iree.targets import Target
from kernelmark.backends.iree.tools import Round, command, parse_round, run_tool
from kernelmark.core.dtype import DTYPES, dtype
from kernelmark.core.errors import CaseError, UsageError, located
from kernelmark.core.reason import Reason
from kernelmark.iree.modules import Signature, TensorType, parse_type
from kernelmark.kernels.mlir.base import DTYPE_OF
from kernelmark.numerics.floats import decode, encode, storage

_FORM = "SHAPExTYPE, SHAPExTYPE=VALUES or @FILE.npy"
_SHAPED = re.compile(r"((?:\d+x)*)([a-z]\w*)(?:=(.*))?\Z", re.DOTALL)
# Integers without a kernelmark dtype; IREE stores a boolean in a byte.
_INTEGERS = {"i1": np.uint8, "i16": np.int16, "i64": np.int64, "si8": np.int8, "ui8": np.uint8}
_MLIR_NAME = {ours: name for name, ours in DTYPE_OF.items()}
# Least duration of a repetition, and of the warm-up.
_REPETITION_S = 0.05
# A longer call is timed once per round, without repetitions and warm-up.
_LONG_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An argument: its values, exact in float64, and the type they are stored in. A scalar has only
    its `text`."""

    type: TensorType
    values: NDArray[np.float64] | None = None
    text: str = ""


def check_module(module: Path) -> None:
    """Raise UsageError if there is no such file."""
    if not module.is_file():
        raise UsageError(Reason("file-missing", file=str(module)))


def check_least(option: str, value: float, least: int) -> None:
    """Raise UsageError for a value below `least`, or NaN."""
    if not value >= least:
        wanted = f"a number of at least {least}"
        raise UsageError(Reason("argument-type", name=option, given=f"{value:g}", wanted=wanted))


def check_timeout(timeout_s: float) -> None:
    """Raise UsageError for a limit that is not above 0."""
    if not timeout_s > 0:
        raise UsageError(Reason("limit-not-positive"))


def make_inputs(signature: Signature, given: Sequence[str], seed: int = 1) -> tuple[Input, ...]:
    """Return the function's arguments. Where only a type is given, values are random: floats
    uniform in [-1, 1], integers 0 or 1, which are also valid as indices."""
    if given and len(given) != len(signature.inputs):
        raise UsageError(
            Reason(
                "input-count",
                given=len(given),
                wanted=len(signature.inputs),
                types=tuple(map(str, signature.inputs)),
            ),
            hint="give one --input for each argument, or none",
        )
    random = np.random.default_rng(seed)
    words = given or [""] * len(signature.inputs)
    made = []
    for number, (word, kind) in enumerate(zip(words, signature.inputs, strict=True), 1):
        with located(f"--input {number}"):
            made.append(_input(word, kind, random))
    return tuple(made)


def run_module(
    binary: Path,
    function: str,
    inputs: Sequence[Input],
    outputs: Sequence[TensorType],
    *,
    target: Target,
    folder: Path,
    timeout_s: float,
    threads: int = 0,
) -> tuple[NDArray[np.float64], ...]:
    """Return the outputs of one call, exact in float64. Raise CaseError if the run fails."""
    files = [folder / f"{binary.stem}.out{at}.bin" for at in range(len(outputs))]
    run_tool(
        [
            *command("iree-run-module", binary, function, target, threads),
            *_arguments(inputs, folder),
            *(f"--output=@{file}" for file in files),
        ],
        timeout_s,
    )
    return tuple(_load(file.read_bytes(), kind) for file, kind in zip(files, outputs, strict=True))


def benchmark_module(
    binary: Path,
    function: str,
    inputs: Sequence[Input],
    *,
    target: Target,
    folder: Path,
    timeout_s: float,
    threads: int = 0,
    expected_s: float = 0.0,
) -> Round:
    """Time one process of iree-benchmark-module; `expected_s` is the known time of a call, or 0."""
    long = expected_s > _LONG_S
    text = run_tool(
        [
            *command("iree-benchmark-module", binary, function, target, threads),
            *_arguments(inputs, folder),
            "--benchmark_format=json",
            "--dispatch_statistics=true",
            f"--benchmark_repetitions={1 if long else 3}",
            "--benchmark_min_time=" + ("1x" if long else f"{_REPETITION_S}s"),
            f"--benchmark_min_warmup_time={0 if long else _REPETITION_S}",
        ],
        timeout_s,
    )
    return parse_round(text)


def _arguments(inputs: Sequence[Input], folder: Path) -> list[str]:
    """Return `--input` arguments; values are passed in files, which support every dtype."""
    words = []
    for at, one in enumerate(inputs):
        if one.values is None or one.type.shape is None:
            words.append(f"--input={one.text}")
            continue
        file = folder / f"input{at}.{one.type.dtype}.bin"
        if not file.exists():
            file.write_bytes(_bits(one.values, one.type.dtype))
        shape = "".join(f"{size}x" for size in one.values.shape)
        words.append(f"--input={shape}{_MLIR_NAME.get(one.type.dtype, one.type.dtype)}=@{file}")
    return words


def _bits(values: NDArray[np.float64], name: str) -> bytes:
    if name in _INTEGERS:
        return values.astype(_INTEGERS[name]).tobytes()
    return np.ascontiguousarray(encode(values, name)).tobytes()


def _load(data: bytes, kind: TensorType) -> NDArray[np.float64]:
    """Return stored elements as float64; a dynamic dim gets the remaining size."""
    name = kind.dtype
    if name in _INTEGERS:
        flat = np.frombuffer(data, _INTEGERS[name]).astype(np.float64)
    elif name in DTYPES:
        flat = decode(np.frombuffer(data, storage(name)), name)
    else:
        raise CaseError(Reason("tensor-dtype", dtype=name))
    shape = kind.shape or ()
    return flat.reshape(shape if shape.count(-1) < 2 else (-1,))


def _input(word: str, kind: TensorType, random: np.random.Generator) -> Input:
    if kind.shape is None:
        if not word:
            raise UsageError(Reason("scalar-without-value", dtype=kind.dtype))
        try:
            (float if _is_float(kind.dtype) else int)(word)
        except ValueError:
            raise UsageError(Reason("input-type", given=word, type=kind.dtype)) from None
        return Input(type=kind, text=word)
    if kind.dtype not in DTYPES and kind.dtype not in _INTEGERS:
        raise UsageError(Reason("tensor-dtype", dtype=kind.dtype))
    if word.startswith("@"):
        return Input(type=kind, values=_from_file(Path(word[1:]), kind))
    shape, content = kind.shape, ""
    if word:
        match = _SHAPED.match(word)
        if match is None:
            raise UsageError(Reason("not-of-form", given=word, form=_FORM))
        asked = parse_type(f"tensor<{match[1]}{match[2]}>")
        shape, content = asked.shape or (), match[3] or ""
        fits = len(shape) == len(kind.shape) and all(
            declared in (-1, size) for size, declared in zip(shape, kind.shape, strict=True)
        )
        if asked.dtype != kind.dtype or not fits:
            raise UsageError(
                Reason("input-type", given=word, type=str(kind)),
                hint="give the shape and dtype that the function declares",
            )
    if -1 in shape:
        raise UsageError(
            Reason("input-dynamic", type=str(kind)),
            hint="give its shape: --input 4x128xf32 for each argument",
        )
    if content:
        try:
            values = _given_values(content, TensorType(shape=shape, dtype=kind.dtype))
        except (OSError, ValueError) as error:
            raise UsageError(
                Reason("input-unreadable", given=word, error=str(error)),
                hint="give one number for all elements, or as many as the shape has",
            ) from None
    elif not _is_float(kind.dtype):
        values = random.integers(0, 2, shape).astype(np.float64)
    else:
        # Rounded to the dtype, so that the float64 reference has the same values.
        values = decode(encode(random.uniform(-1, 1, shape), kind.dtype), kind.dtype)
    return Input(type=kind, values=values)


def _is_float(name: str) -> bool:
    return name in DTYPES and dtype(name).kind == "float"


def _given_values(content: str, kind: TensorType) -> NDArray[np.float64]:
    """Return the elements in `@FILE`, which are stored as raw bytes, or numbers: one for all, or
    one each."""
    if content.startswith("@"):
        return _load(Path(content[1:]).expanduser().read_bytes(), kind)
    numbers = np.array([float(x) for x in re.split(r"[\s,\[\]]+", content) if x])
    shape = kind.shape or ()
    return np.broadcast_to(numbers, shape) if numbers.size == 1 else numbers.reshape(shape)


def _from_file(path: Path, kind: TensorType) -> NDArray[np.float64]:
    try:
        with path.expanduser().open("rb") as file:  # np.load would also open zip files
            values = np.lib.format.read_array(file, allow_pickle=False).astype(np.float64)
    except (OSError, ValueError) as error:
        raise UsageError(Reason("input-unreadable", given=str(path), error=str(error))) from None
    shape = kind.shape or ()
    if len(shape) != values.ndim or any(
        declared not in (-1, size) for size, declared in zip(values.shape, shape, strict=True)
    ):
        raise UsageError(Reason("input-shape", file=str(path), shape=values.shape, wanted=shape))
    return values if kind.dtype in _INTEGERS else decode(encode(values, kind.dtype), kind.dtype)
