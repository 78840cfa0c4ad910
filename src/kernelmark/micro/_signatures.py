"""Parse kernel parameters from their source, to pack arguments by declared type.

An int passed where a kernel takes 8 bytes would leave four bytes undefined; types from the
declaration prevent that.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.kernels import rtc

_TYPES: dict[str, Any] = {
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "int": ctypes.c_int32,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_KERNEL = re.compile(r"\bKERNEL\s+(?:BLOCK_OF\([^)]*\)\s*)?([\w#]+)\s*\(([^)]*)\)", re.DOTALL)

Parameter = tuple[str, str]  # (C type, name)


def parse(source: str) -> dict[str, tuple[Parameter, ...]]:
    """Return the parameters of kernels by name pattern: `chain_##NAME##_##ILP` is
    `chain_\\w+_\\w+`."""
    found = {}
    for name, parameters in _KERNEL.findall(re.sub(r"\\\n", "\n", source)):
        pattern = re.sub(r"\w*##\w+", _glued, name)
        found[pattern] = tuple(_parameter(text) for text in parameters.split(",") if text.strip())
    return found


def _glued(match: re.Match[str]) -> str:
    return match[0].split("##")[0] + r"\w+"


def _parameter(text: str) -> Parameter:
    words = text.replace("*", " * ").replace("const ", " ").split()
    return " ".join(words[:-1]), words[-1]


@functools.cache
def of_file(name: str) -> dict[str, tuple[Parameter, ...]]:
    return parse(rtc.source(name))


def parameters(file: str, kernel: str) -> tuple[Parameter, ...]:
    """Return the parameters of `kernel` in `file`, in order."""
    known = of_file(file)
    if kernel in known:
        return known[kernel]
    for pattern, found in known.items():
        if re.fullmatch(pattern, kernel):
            return found
    raise UsageError(Reason("kernel-unknown", file=file, kernel=kernel))


def pack(file: str, kernel: str, values: Sequence[Any], types: dict[str, str]) -> list[Any]:
    """Return `values` as C values of the declared types; `types` maps type parameters such as T."""
    wanted = parameters(file, kernel)
    if len(wanted) != len(values):
        raise UsageError(
            Reason("kernel-arguments", kernel=kernel, wanted=len(wanted), given=len(values))
        )
    return [_packed(kernel, p, v, types) for p, v in zip(wanted, values, strict=True)]


def _packed(kernel: str, parameter: Parameter, value: Any, types: dict[str, str]) -> Any:
    kind, name = parameter
    if kind.endswith("*"):
        address = getattr(value, "address", value)
        if not isinstance(address, int) or address < 0:
            raise UsageError(Reason("kernel-address", kernel=kernel, name=name, value=repr(value)))
        return ctypes.c_void_p(address)
    made = _TYPES[types.get(kind, kind)]
    if made not in (ctypes.c_float, ctypes.c_double):
        size = 8 * ctypes.sizeof(made)
        if not isinstance(value, int) or not -(2 ** (size - 1)) <= value < 2**size:
            raise UsageError(
                Reason(
                    "kernel-argument-range", kernel=kernel, name=name, value=repr(value), type=kind
                )
            )
        return made(value)
    return made(float(value))
