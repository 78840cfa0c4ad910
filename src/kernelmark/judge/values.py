"""Values of inputs from a secret key, and the families of inputs that a kernel is tested with.

`numerics.generate` has a public pool of values: who knows a few elements of an input knows the
rest. Here the key is secret, and every (tensor, number) is a stream of its own of Philox, a
counter-based generator. The key is published with the verdict, so that a counter-example can be
computed again by `inputs_of`.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import dtype
from kernelmark.core.tensor import TensorSpec
from kernelmark.numerics.floats import decode, encode, storage
from kernelmark.numerics.generate import Inputs, period

Bits = NDArray[np.generic]
Floats = NDArray[np.float64]

UNIFORM = "uniform"
# A family's number is in the top bits of a set's number.
_FAMILY_SHIFT = 56
# Formats of up to 16 bits take their values from a table of this many points.
_TABLE = 1 << 16


def _matrices(values: Floats) -> Floats:
    """Return a view with at least two axes; the last two are a matrix."""
    return values.reshape(1, -1) if values.ndim < 2 else values


def _identity(values: Floats) -> Floats:
    rows, cols = _matrices(values).shape[-2:]
    return np.broadcast_to(np.eye(rows, cols), _matrices(values).shape).reshape(values.shape)


def _triangular(values: Floats) -> Floats:
    return np.tril(_matrices(values)).reshape(values.shape)


def _sorted(values: Floats) -> Floats:
    return np.sort(values, axis=None).reshape(values.shape)


def _rank_one(values: Floats) -> Floats:
    matrices = _matrices(values)
    return (matrices[..., :1] * matrices[..., :1, :]).reshape(values.shape)


# Families that change the values of float inputs whose range is symmetric. Kernels that exploit a
# structure, skip work where they see it, or compute nothing where it is hidden are wrong in some.
FAMILIES: dict[str, Callable[[Floats], Floats]] = {
    UNIFORM: lambda values: values,
    "zeros": np.zeros_like,
    "identity": _identity,
    "triangular": _triangular,
    "sorted": _sorted,
    "rank-one": _rank_one,
    "times-10": lambda values: 10.0 * values,
    "plus-5": lambda values: values + 5.0,
    "large": lambda values: 2.0**20 * values,
    "denormal": lambda values: values,  # by bit patterns
}
_NAMES = tuple(FAMILIES)
# Families of single values, which a table of values can have, and those that leave values out.
_BY_VALUE, _BY_POSITION = ("times-10", "plus-5", "large"), ("zeros", "triangular")
# Units of many GPUs flush denormals to zero, so a kernel that does so is not refused.
NOT_REFUSED = ("denormal",)


def families_of(tensors: Sequence[TensorSpec], *, is_contraction: bool) -> list[str]:
    """Return the families that differ from the uniform one for these tensors, and whose answers
    are finite."""
    varied = [spec for spec in tensors if _is_varied(spec)]
    if not varied:
        return []
    skipped = {UNIFORM}
    if min(spec.type.bits for spec in varied) < 16:
        skipped |= {"times-10", "plus-5", "large", "denormal"}  # beyond the range of the format
    if not is_contraction:
        skipped |= {"large", "denormal"}  # exponents and square roots, which may overflow
    if any(spec.dtype == "f16" for spec in varied):
        skipped |= {"large"} if is_contraction else {"times-10", "plus-5"}
    return [name for name in _NAMES if name not in skipped]


def _is_varied(spec: TensorSpec) -> bool:
    symmetric = spec.low == -spec.high
    return spec.role == "in" and spec.given is None and spec.type.kind == "float" and symmetric


class Values:
    """The values of all inputs under one key of 128 bits. `number` of a set is drawn once for each
    rewrite, by `next_number`."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._next = 1
        self._recent: tuple[int, dict[TensorSpec, Bits]] = (0, {})
        self._streams: dict[str, tuple[np.random.Philox, dict[str, Any]]] = {}

    def next_number(self, family: str = UNIFORM) -> int:
        """Return a number that no set had before, for values of `family`."""
        self._next += 1
        return (_NAMES.index(family) << _FAMILY_SHIFT) + self._next

    def bits(self, spec: TensorSpec, number: int) -> Bits:
        """Return the elements of an input as flat bit patterns."""
        random = self._random(spec.name, number)
        if spec.given is not None:
            return self._rotated(spec, random)
        family = family_of(number)
        if family == UNIFORM or not _is_varied(spec):
            return _uniform(spec, random)
        if family == "denormal":
            raw = random.random_raw(spec.count)
            sign = (raw >> np.uint64(63)) << np.uint64(spec.type.bits - 1)
            codes: Bits = ((raw & np.uint64(7)) | sign).astype(storage(spec.dtype))
            return codes
        return self._of_family(spec, number, random)

    def _of_family(self, spec: TensorSpec, number: int, random: np.random.Philox) -> Bits:
        """Return the elements of a family. Those of the last set are kept, as they are written,
        compared and read by a reference, and take tenths of a second for a few megabytes."""
        if self._recent[0] != number:
            self._recent = (number, {})
        kept = self._recent[1]
        if spec not in kept:
            kept[spec] = _family_bits(spec, family_of(number), random)
        return kept[spec]

    def write(self, spec: TensorSpec, number: int, target: NDArray[np.uint8]) -> None:
        """Write the elements of an input to its memory: the bytes of `bits`."""
        kind = spec.type.name
        plain = spec.given is None and (family_of(number) == UNIFORM or not _is_varied(spec))
        if not plain or kind not in ("f32", "f64"):
            target[:] = pack_bits(spec, self.bits(spec, number)).ravel()
            return
        # In place: for small tensors, allocating takes longer than generating the values.
        random = np.random.Generator(self._random(spec.name, number))
        values: NDArray[np.float32] | NDArray[np.float64]
        if kind == "f32":
            values = target.view(np.float32)
            random.random(dtype=np.float32, out=values)
        else:
            values = target.view(np.float64)
            random.random(out=values)
        values *= values.dtype.type(spec.high - spec.low)
        values += values.dtype.type(spec.low)

    def stream_key(self, name: str) -> tuple[int, int]:
        """Return the two words of the key of a tensor's stream."""
        low, high = self._stream(name)[1]["state"]["key"].tolist()
        return low, high

    def _stream(self, name: str) -> tuple[np.random.Philox, dict[str, Any]]:
        """Return a tensor's generator, and the state that it begins with."""
        if name not in self._streams:
            stream = hashlib.blake2b(name.encode(), key=self.key, digest_size=16).digest()
            generator = np.random.Philox(key=int.from_bytes(stream, "little"))
            self._streams[name] = generator, dict(generator.state)
        return self._streams[name]

    def _random(self, name: str, number: int) -> np.random.Philox:
        generator, state = self._stream(name)
        # Set, not constructed anew, which takes longer than the values of a small tensor.
        state["state"]["counter"][2] = number
        generator.state = cast(Any, state)
        return generator

    def _rotated(self, spec: TensorSpec, random: np.random.Philox) -> Bits:
        assert spec.given is not None
        pool, start = spec.given.bits, 0
        if spec.given.rotates:
            rows = period(spec) // spec.given.row
            start = int(random.random_raw() % rows) * spec.given.row
        return np.take(pool, np.arange(start, start + spec.count), mode="wrap")


def family_of(number: int) -> str:
    """Return the family of the values of a set with this number."""
    return _NAMES[number >> _FAMILY_SHIFT]


def _family_bits(spec: TensorSpec, family: str, random: np.random.Philox) -> Bits:
    change = FAMILIES[family]
    if is_tabled(spec) and family in _BY_VALUE:
        return _table(spec.dtype, spec.low, spec.high, family)[_raw16(spec.count, random)]
    if is_tabled(spec) and family == "sorted":  # the table is
        return table_of(spec)[np.sort(_raw16(spec.count, random), kind="stable")]
    bits = _uniform(spec, random).reshape(spec.shape)
    if family in _BY_POSITION:  # zeros are zeros in all formats
        return np.ascontiguousarray(cast(Any, change)(bits)).ravel()
    if family == "identity":
        one = encode(np.array([0.0, 1.0]), spec.dtype)
        return one[np.ascontiguousarray(change(np.zeros(spec.shape, bool))).astype(np.intp).ravel()]
    values = change(decode(bits.ravel(), spec.dtype).reshape(spec.shape))
    return encode(np.ascontiguousarray(values).ravel(), spec.dtype)


def _raw16(count: int, random: np.random.Philox) -> NDArray[np.uint16]:
    return random.random_raw(-(-count // 4)).view(np.uint16)[:count]


def _uniform(spec: TensorSpec, random: np.random.Philox) -> Bits:
    kind, count = spec.type, spec.count
    if kind.kind == "int":
        span = int(spec.high) - int(spec.low) + 1
        values = (random.random_raw(count) >> np.uint64(11)) % np.uint64(span)
        return encode(values.astype(np.float64) + math.floor(spec.low), spec.dtype)
    if kind.name == "f64":
        unit = (random.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return encode(spec.low + unit * (spec.high - spec.low), "f64")
    if kind.name == "f32":
        raw = random.random_raw(-(-count // 2)).view(np.uint32)[:count]
        single = (raw >> np.uint32(8)).astype(np.float32)
        single *= np.float32(2.0**-24 * (spec.high - spec.low))
        single += np.float32(spec.low)
        return single.view(storage("f32"))
    return table_of(spec)[_raw16(count, random)]


def is_tabled(spec: TensorSpec) -> bool:
    """Return whether a tensor's values come from a table."""
    return spec.type.kind == "float" and spec.type.name not in ("f64", "f32")


def table_of(spec: TensorSpec) -> Bits:
    """Return the table of a tensor's values, by 16 random bits."""
    return _table(spec.dtype, spec.low, spec.high)


@functools.lru_cache(maxsize=16)
def _table(dtype_name: str, low: float, high: float, family: str = UNIFORM) -> Bits:
    if family != UNIFORM:
        values = decode(_table(dtype_name, low, high), dtype_name)
        return encode(FAMILIES[family](values), dtype_name)
    points = (np.arange(_TABLE) + 0.5) / _TABLE
    return encode(low + points * (high - low), dtype_name)


class SecretInputs(Inputs):
    """The inputs of one argument set, as `Inputs` has them for the public generator."""

    def __init__(self, tensors: tuple[TensorSpec, ...], values: Values, number: int) -> None:
        super().__init__(tensors, 0, 0)
        self._values = values
        self._number = number
        self._arrays: dict[str, Floats] = {}

    def start(self, name: str) -> int:
        return 0

    def take(self, name: str, where: NDArray[np.int64]) -> Floats:
        return self._flat(name)[where]

    def whole(self, name: str) -> Floats:
        return self._flat(name).reshape(self._tensors[name].shape).copy()

    def largest(self, name: str) -> float:
        """Return the largest absolute value of an input."""
        values = self._flat(name)
        return float(max(values.max(initial=0.0), -values.min(initial=0.0)))

    def run(self, name: str, start: int, count: int) -> Floats:
        return self._flat(name)[start : start + count]

    def _flat(self, name: str) -> Floats:
        if name not in self._arrays:
            spec = self._tensors[name]
            self._arrays[name] = decode(self._values.bits(spec, self._number), spec.dtype)
        return self._arrays[name]


def pack_bits(spec: TensorSpec, bits: Bits) -> NDArray[np.uint8]:
    """Return bit patterns as the bytes of a tensor; 4-bit formats are two to a byte."""
    if dtype(spec.dtype).bits >= 8:
        return np.ascontiguousarray(bits).view(np.uint8)
    even = np.zeros(-(-bits.size // 2) * 2, np.uint8)
    even[: bits.size] = bits
    return even[0::2] | (even[1::2] << np.uint8(4))


def inputs_of(tensors: Sequence[TensorSpec], key: bytes, number: int) -> dict[str, Floats]:
    """Return the inputs of a counter-example, as float64 arrays by name."""
    inputs = SecretInputs(tuple(tensors), Values(key), number)
    return {spec.name: inputs.whole(spec.name) for spec in tensors if spec.role == "in"}
