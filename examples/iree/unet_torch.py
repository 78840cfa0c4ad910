"""Write a small UNet as iree-turbine exports one: a module in the torch dialect and its parameters.

    python examples/iree/unet_torch.py -o unet --levels 3 --channels 32 --size 16

writes unet.mlir and unet.irpa, whose values are random. The structure is that of Stable Diffusion's
UNet: sinusoidal time embedding, residual blocks (group norm, SiLU, convolution), transformer blocks
(self- and cross-attention, GEGLU) on all levels but the first, and skips by concatenation.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

SCOPE = "model"
_CONTEXT = (77, 64)  # text tokens and their channels
_DEPTH = 2  # residual blocks of a level
_GROUPS = 8
_HEADS = 2


class Value(NamedTuple):
    """A tensor in the module."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def type(self) -> str:
        return f"!torch.vtensor<[{','.join(map(str, self.shape))}],{self.dtype}>"


class Module:
    """The text of a function of torch ops, and the parameters that it loads."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.parameters: dict[str, tuple[int, ...]] = {}
        self._lines: list[str] = []
        self._constants: dict[str, str] = {}

    def op(self, name: str, shape: Sequence[int], *operands: object, dtype: str = "") -> Value:
        """Append torch.aten.NAME; an operand is a Value, or a Python constant."""
        words, types = zip(*map(self._operand, operands), strict=True)
        result = self._result(shape, dtype or self.dtype)
        self._lines.append(
            f"{result.name} = torch.aten.{name} {', '.join(words)} : {', '.join(types)}"
            f" -> {result.type}"
        )
        return result

    def parameter(self, name: str, *shape: int) -> Value:
        """Load a parameter."""
        self.parameters[name] = shape
        built = f"tensor<{'x'.join(map(str, shape))}x{self.dtype}>"
        result = self._result(shape, self.dtype)
        self._lines.append(f'{result.name}_load = util.global.load @"{name}" : {built}')
        self._lines.append(
            f"{result.name} = torch_c.from_builtin_tensor {result.name}_load : {built}"
            f" -> {result.type}"
        )
        return result

    def text(self, name: str, inputs: Sequence[Value], output: Value) -> str:
        """Return the module with one function."""
        arguments = ", ".join(f"{value.name}: {value.type}" for value in inputs)
        globals_text = [
            f'util.global private @"{key}" = #flow.parameter.named<"{SCOPE}"::"{key}">'
            f" : tensor<{'x'.join(map(str, shape))}x{self.dtype}>"
            for key, shape in self.parameters.items()
        ]
        constants = [f"{value} = {text}" for text, value in self._constants.items()]
        body = [*constants, *self._lines, f"return {output.name} : {output.type}"]
        lines = [
            *(f"  {line}" for line in globals_text),
            f"  func.func @{name}({arguments}) -> {output.type}"
            " attributes {torch.assume_strict_symbolic_shapes} {",
            *(f"    {line}" for line in body),
            "  }",
        ]
        return "\n".join(["module @unet {", *lines, "}\n"])

    def _result(self, shape: Sequence[int], dtype: str) -> Value:
        return Value(f"%value{len(self._lines)}", tuple(shape), dtype)

    def _operand(self, value: object) -> tuple[str, str]:
        if isinstance(value, Value):
            return value.name, value.type
        if isinstance(value, (list, tuple)):
            words = [self._operand(item) for item in value]
            kind = "vtensor" if isinstance(value[0], Value) else "int"
            list_type = f"!torch.list<{kind}>"
            name = f"%list{len(self._lines)}"
            self._lines.append(
                f"{name} = torch.prim.ListConstruct {', '.join(word for word, _ in words)} :"
                f" ({', '.join(kind for _, kind in words)}) -> {list_type}"
            )
            return name, list_type
        kind = "none" if value is None else type(value).__name__
        literal = {
            "bool": str(value).lower(),
            "float": f"{value:e}" if kind == "float" else "",
            "none": "",
            "str": f'"{value}"',
        }.get(kind, str(value))
        constant = f"torch.constant.{kind} {literal}".rstrip()
        if constant not in self._constants:
            self._constants[constant] = f"%{kind}{len(self._constants)}"
        return self._constants[constant], f"!torch.{kind}"


class UNet:
    """The layers, each as a method that appends its ops."""

    def __init__(self, module: Module) -> None:
        self._m = module

    def linear(self, name: str, x: Value, outputs: int, *, bias: bool = True) -> Value:
        weight = self._m.parameter(f"{name}.weight", outputs, x.shape[-1])
        offset = self._m.parameter(f"{name}.bias", outputs) if bias else None
        return self._m.op("linear", (*x.shape[:-1], outputs), x, weight, offset)

    def conv(self, name: str, x: Value, outputs: int, taps: int = 3, stride: int = 1) -> Value:
        n, c, h, w = x.shape
        weight = self._m.parameter(f"{name}.weight", outputs, c, taps, taps)
        bias = self._m.parameter(f"{name}.bias", outputs)
        pad = taps // 2
        sizes = [(size + 2 * pad - taps) // stride + 1 for size in (h, w)]
        lists = ([stride, stride], [pad, pad], [1, 1], False, [0, 0], 1)
        return self._m.op("convolution", (n, outputs, *sizes), x, weight, bias, *lists)

    def norm(self, name: str, x: Value) -> Value:
        """Group norm of an image, layer norm of tokens."""
        image = len(x.shape) == 4
        channels = x.shape[1] if image else x.shape[-1]
        weight, bias = (self._m.parameter(f"{name}.{k}", channels) for k in ("weight", "bias"))
        if image:
            return self._m.op("group_norm", x.shape, x, _GROUPS, weight, bias, 1e-5, False)
        return self._m.op("layer_norm", x.shape, x, [channels], weight, bias, 1e-5, False)

    def add(self, x: Value, y: Value) -> Value:
        return self._m.op("add.Tensor", x.shape, x, y, 1)

    def silu(self, x: Value) -> Value:
        return self._m.op("silu", x.shape, x)

    def residual(self, name: str, x: Value, time: Value, outputs: int) -> Value:
        n, channels, _, _ = x.shape
        y = self.conv(f"{name}.conv1", self.silu(self.norm(f"{name}.norm1", x)), outputs)
        shift = self.linear(f"{name}.time", self.silu(time), outputs)
        y = self.add(y, self._m.op("view", (n, outputs, 1, 1), shift, [n, outputs, 1, 1]))
        y = self.conv(f"{name}.conv2", self.silu(self.norm(f"{name}.norm2", y)), outputs)
        return self.add(x if channels == outputs else self.conv(f"{name}.skip", x, outputs, 1), y)

    def attention(self, name: str, x: Value, context: Value) -> Value:
        n, tokens, channels = x.shape
        dim = channels // _HEADS

        def heads(part: str, source: Value) -> Value:
            shape = (n, source.shape[1], _HEADS, dim)
            y = self.linear(f"{name}.{part}", source, channels, bias=False)
            y = self._m.op("view", shape, y, list(shape))
            return self._m.op("transpose.int", (n, _HEADS, shape[1], dim), y, 1, 2)

        q, k, v = heads("q", x), heads("k", context), heads("v", context)
        y = self._m.op(
            "scaled_dot_product_attention", q.shape, q, k, v, None, 0.0, False, None, False
        )
        y = self._m.op("transpose.int", (n, tokens, _HEADS, dim), y, 1, 2)
        y = self._m.op("contiguous", y.shape, y, 0)
        return self.linear(f"{name}.out", self._m.op("view", x.shape, y, list(x.shape)), channels)

    def transformer(self, name: str, x: Value, context: Value) -> Value:
        n, channels, h, w = x.shape
        y = self.norm(f"{name}.norm", x)
        y = self._m.op("view", (n, channels, h * w), y, [n, channels, h * w])
        y = self._m.op("transpose.int", (n, h * w, channels), y, 1, 2)
        y = self.linear(f"{name}.in", y, channels)
        z = self.norm(f"{name}.norm1", y)
        y = self.add(y, self.attention(f"{name}.self", z, z))
        z = self.norm(f"{name}.norm2", y)
        y = self.add(y, self.attention(f"{name}.cross", z, context))
        z = self.norm(f"{name}.norm3", y)
        gate = self.linear(f"{name}.gate", z, 4 * channels)
        gate = self._m.op("gelu", gate.shape, gate, "none")
        wide = self.linear(f"{name}.wide", z, 4 * channels)
        wide = self._m.op("mul.Tensor", wide.shape, wide, gate)
        y = self.add(y, self.linear(f"{name}.narrow", wide, channels))
        y = self.linear(f"{name}.out", y, channels)
        y = self._m.op("transpose.int", (n, channels, h * w), y, 1, 2)
        return self.add(x, self._m.op("view", x.shape, y, list(x.shape)))

    def time(self, timestep: Value, channels: int) -> Value:
        """Sine and cosine of the timestep at random frequencies, and two layers."""
        half, m = channels // 2, self._m
        torch_dtype = {"f16": 5, "f32": 6}[m.dtype]  # as in torch's enumeration ScalarType
        steps = m.op("view", (1, 1), timestep, [1, 1], dtype=timestep.dtype)
        steps = m.op("to.dtype", (1, 1), steps, torch_dtype, False, False, None)
        angles = m.op("mul.Tensor", (1, half), steps, m.parameter("time.frequencies", half))
        parts = [m.op(name, (1, half), angles) for name in ("cos", "sin")]
        y = self.linear("time.0", m.op("cat", (1, channels), parts, -1), 4 * channels)
        return self.linear("time.1", self.silu(y), 4 * channels)

    def block(self, name: str, x: Value, time: Value, context: Value | None, width: int) -> Value:
        x = self.residual(f"{name}.residual", x, time, width)
        return self.transformer(f"{name}.transformer", x, context) if context else x

    def whole(self, sample: Value, timestep: Value, context: Value, widths: Sequence[int]) -> Value:
        time = self.time(timestep, widths[0])
        x = self.conv("in", sample, widths[0])
        skips = [x]
        for level, width in enumerate(widths):
            for depth in range(_DEPTH):
                x = self.block(f"down.{level}.{depth}", x, time, context if level else None, width)
                skips.append(x)
            if level + 1 < len(widths):
                x = self.conv(f"down.{level}.stride", x, width, stride=2)
                skips.append(x)
        x = self.block("middle.0", x, time, context, widths[-1])
        x = self.residual("middle.1", x, time, widths[-1])
        for level, width in reversed(list(enumerate(widths))):
            for depth in range(_DEPTH + 1):
                skip = skips.pop()
                shape = (x.shape[0], x.shape[1] + skip.shape[1], *x.shape[2:])
                x = self._m.op("cat", shape, [x, skip], 1)
                x = self.block(f"up.{level}.{depth}", x, time, context if level else None, width)
            if level:
                n, c, h, w = x.shape
                shape = (n, c, 2 * h, 2 * w)
                x = self._m.op("upsample_nearest2d", shape, x, [2 * h, 2 * w], None, None)
                x = self.conv(f"up.{level}.conv", x, width)
        return self.conv("out", self.silu(self.norm("out.norm", x)), sample.shape[1])


def save(stem: Path, *, levels: int, channels: int, size: int, dtype: str, seed: int) -> None:
    """Write STEM.mlir and STEM.irpa."""
    import iree.runtime

    module = Module(dtype)
    sample = Value("%sample", (1, 4, size, size), dtype)
    timestep = Value("%timestep", (1,), "si64")
    context = Value("%context", (1, *_CONTEXT), dtype)
    widths = [channels * 2**level for level in range(levels)]
    output = UNet(module).whole(sample, timestep, context, widths)
    stem.with_suffix(".mlir").write_text(module.text("main", [sample, timestep, context], output))
    random = np.random.default_rng(seed)
    index = iree.runtime.ParameterIndex()
    for name, shape in module.parameters.items():
        # Weights of this spread keep the scale of the activations; a norm starts from 1.
        inputs = math.prod(shape[1:]) if len(shape) > 1 else 0
        values = random.normal(0, inputs**-0.5 if inputs else 0.1, shape)
        values += "norm" in name and name.endswith("weight")
        index.add_buffer(name, values.astype({"f16": "<f2", "f32": "<f4"}[dtype]).tobytes())
    index.create_archive_file(str(stem.with_suffix(".irpa")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("unet"), metavar="STEM")
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--channels", type=int, default=32, help="of the first level")
    parser.add_argument("--size", type=int, default=16, help="height and width of the sample")
    parser.add_argument("--dtype", choices=("f16", "f32"), default="f32")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    save(
        asked.output,
        levels=asked.levels,
        channels=asked.channels,
        size=asked.size,
        dtype=asked.dtype,
        seed=asked.seed,
    )


if __name__ == "__main__":
    main()
