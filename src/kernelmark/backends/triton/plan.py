"""Plan: the launches that compute one problem with one config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelmark.backends._rules import refuse_unknown
from kernelmark.backends.triton.build import Argument, Built, Constant, build
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config
from kernelmark.gpu.rtc import vendor_of

WORKSPACE = "workspace"
ZEROED = "zeroed"  # zero before the first launch, and reset to zero by every launch
# Config names of copies (`turn` pre-transposes, `widen` upcasts) that a problem may not need.
_ELSEWHERE = {
    "turn": "operands of this problem are read as they are stored, there is nothing to transpose",
    "widen": "there is nothing to upcast in this problem: only 8-bit values of many queries are",
}
CACHE_MODIFIERS = ("", ".ca", ".cg", ".cv")  # load modifiers that all of Triton's targets support
_MAY_BE_ZERO = ("split_kv", "waves_per_eu", "matrix_instr_nonkdim")
Value = str | int | float  # the name of a tensor or of a buffer of the plan, or a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One launch: a kernel, its arguments in order with their values, and its grid."""

    function: Any
    arguments: tuple[Argument, ...]
    values: tuple[Value, ...]
    constants: Mapping[str, Constant]
    options: Mapping[str, Constant]
    grid: tuple[int, int, int]

    def build(self, arch: str) -> Built:
        return build(self.function, self.arguments, self.constants, self.options, arch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Calls in order, and the bytes of the buffers that pass data between them. `main` is the call
    that multiplies: calls before it prepare operands, calls after it sum partial results."""

    calls: tuple[Call, ...]
    main: int = 0
    workspace_bytes: int = 0
    zeroed_bytes: int = 0
    named_bytes: Mapping[str, int] = field(default_factory=dict)  # by the name in `values`


class Arguments:
    """Collects the arguments of a call, in the kernel's order."""

    def __init__(self) -> None:
        self._arguments: list[Argument] = []
        self._values: list[Value] = []

    def pointer(self, name: str, dtype: str, value: Value) -> Arguments:
        self._arguments.append(Argument(name=name, kind=dtype, pointer=True))
        self._values.append(value)
        return self

    def integer(self, name: str, value: int) -> Arguments:
        aligned = value % 16 == 0
        kind = "i32" if abs(value) < 2**31 else "i64"
        self._arguments.append(Argument(name=name, kind=kind, pointer=False, aligned=aligned))
        self._values.append(value)
        return self

    def real(self, name: str, value: float) -> Arguments:
        self._arguments.append(Argument(name=name, kind="fp32", pointer=False, aligned=False))
        self._values.append(value)
        return self

    def call(
        self,
        function: Any,
        constants: Mapping[str, Constant],
        options: Mapping[str, Constant],
        grid: tuple[int, int, int],
    ) -> Call:
        return Call(
            function=function,
            arguments=tuple(self._arguments),
            values=tuple(self._values),
            constants=constants,
            options=options,
            grid=grid,
        )


def check_config(config: Config, default: Config) -> None:
    """Raise Unsupported with a reason for values from which no plan can be made; the compiler
    checks the rest."""
    refuse_unknown("triton", config, tuple(default), _ELSEWHERE)
    for name, value in config.items():
        if name == "cache_modifier":
            if value not in CACHE_MODIFIERS:
                known = tuple(map(repr, CACHE_MODIFIERS))
                raise Unsupported(
                    Reason(
                        "config-not-in-space",
                        backend="triton",
                        name=name,
                        known=known,
                        value=repr(value),
                    )
                )
            continue
        if not isinstance(value, int) or isinstance(value, bool) != isinstance(default[name], bool):
            where = {"backend": "triton", "name": name, "value": value}
            raise Unsupported(
                Reason("config-not-yes-or-no", **where)
                if isinstance(default[name], bool)
                else Reason("config-not-whole", **where)
            )
        least = 0 if name in _MAY_BE_ZERO else 1
        if not isinstance(value, bool) and value < least:
            raise Unsupported(
                Reason("config-below", backend="triton", name=name, value=value, least=least)
            )


def level(info: DeviceInfo) -> int:
    """Return NVIDIA's architecture number, such as 90 for sm_90a; 0 for AMD."""
    if vendor_of(info.arch) != "cuda":
        return 0
    return int(info.arch.removeprefix("sm_").rstrip("af"))


def has_wide_unit(info: DeviceInfo) -> bool:
    """Return whether matrix instructions read shared memory, as on Hopper and the large Blackwells.
    Other GPUs also need registers for operands, so their tiles are smaller."""
    return 90 <= level(info) < 120


def shared_bytes(info: DeviceInfo) -> int:
    """Return the shared memory limit of a block; if unknown, the largest of any GPU."""
    return int(info.attributes.get("shared_per_block", "0")) or 232448


def too_large_tiles(
    config: Config, info: DeviceInfo, *, bits: tuple[int, int], depth: int = 0
) -> str | None:
    """Return why the tiles of a config do not fit on an SM/CU, or None; `bits` are those of an
    element of each operand, `depth` replaces a missing block_k."""
    block_m, block_n = int(config["block_m"]), int(config["block_n"])
    depth = int(config.get("block_k", depth))
    row_bits = block_m * bits[0] + block_n * bits[1]
    staged, most = row_bits * depth // 8 * int(config["num_stages"]), shared_bytes(info)
    if staged > most:
        return f"{staged} bytes of staged tiles exceed {most} of shared memory"
    if block_m * block_n > 256 * 128:
        return "the accumulator tile does not fit into registers"
    return None


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(value: int, least: int, most: int) -> int:
    """Return the smallest power of two that is at least `value`, clamped to the bounds."""
    return max(least, min(most, 1 << max(0, value - 1).bit_length()))
