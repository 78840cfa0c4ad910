"""Modules with other floats, and the functions that IREE does not have in float64."""

import math
import re

import numpy as np
import pytest

from kernelmark.core.errors import CompileError
from kernelmark.iree.ab import VariantPlan, compare_variants
from kernelmark.iree.modules import (
    ModuleCall,
    ModuleInput,
    Variant,
    build_variant,
    lower_module,
    resolve_target,
)
from kernelmark.iree.reference import FUNCTIONS, with_floats
from kernelmark.iree.signature import TensorType

pytest.importorskip("iree.compiler", reason="needs iree-base-compiler, which make test installs")
pytest.importorskip("iree.runtime", reason="needs iree-base-runtime, which make test installs")

EXACT = {
    "expm1": np.expm1,
    "log1p": np.log1p,
    "log2": np.log2,
    "log10": np.log10,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "cbrt": np.cbrt,
    "atan2": np.arctan2,
    "powf": np.power,
    "fpowi": lambda x, y: np.power(x, np.rint(y)),
}


def _samples():
    random = np.random.default_rng(0)
    sizes = [random.uniform(-high, high, 300) for high in (1e-3, 1.0, 20.0, 1e5)]
    return np.concatenate([*sizes, [0.0, 0.5, -1.0, 1.0, np.inf, -np.inf, np.nan]])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_formulas_are_exact_to_a_few_ulps(name):
    x = _samples()
    y = np.random.default_rng(1).integers(-6, 7, x.size) * (1.0 if name == "fpowi" else 0.5)
    arguments = (x, y) if name in ("atan2", "powf", "fpowi") else (x,)
    with np.errstate(all="ignore"):
        expected, values = EXACT[name](*arguments), FUNCTIONS[name](*arguments)
    # tan has poles, where the last bit of the argument counts.
    near = np.isfinite(expected) & (np.abs(expected) < 1e3 if name == "tan" else True)
    np.testing.assert_array_equal(np.isnan(values), np.isnan(expected))
    np.testing.assert_allclose(values[near], expected[near], rtol=1e-13, atol=1e-290)


# IREE 3.13 has no erfc, cbrt and log10 on a CPU in float32 either.
_OTHERS = {"atan2", "powf", "fpowi", "asin", "acos", "log1p", "erfc", "cbrt", "log10"}
UNARY = sorted(set(FUNCTIONS) - _OTHERS)
POSITIVE = ("log2",)


def _functions():
    lines = []
    for name in UNARY:
        lines.append(f"%{name} = math.{name} %{'p' if name in POSITIVE else 'x'} : f32")
    lines += ["%powf = math.powf %p, %x : f32", "%atan2 = math.atan2 %x, %p : f32"]
    names = [*UNARY, "powf", "atan2"]
    kind = "tensor<64xf32>"
    maps = ", ".join(["affine_map<(i) -> (i)>"] * (len(names) + 1))
    blocks = ", ".join(f"%o{at}: f32" for at in range(len(names)))
    types = ", ".join([kind] * len(names))
    body = "\n    ".join(lines)
    return (
        f"""
func.func @f(%a: {kind}) -> ({types}) {{
  %e = tensor.empty() : {kind}
  %y:{len(names)} = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
      ins(%a : {kind}) outs({", ".join(["%e"] * len(names))} : {types}) {{
  ^bb0(%x: f32, {blocks}):
    %square = arith.mulf %x, %x : f32
    %one = arith.constant 1.0 : f32
    %p = arith.addf %square, %one : f32
    {body}
    linalg.yield {", ".join(f"%{name}" for name in names)} : {", ".join(["f32"] * len(names))}
  }} -> ({types})
  return {", ".join(f"%y#{at}" for at in range(len(names)))} : {types}
}}
""",
        names,
    )


def test_every_function_has_a_reference_in_float64(tmp_path):
    text, names = _functions()
    (tmp_path / "m.mlir").write_text(text)
    plan = VariantPlan(module=tmp_path / "m.mlir", variants=(Variant(name="base"),), rounds=2)
    report = compare_variants(plan)
    assert report.outcomes[0].built, report.outcomes[0].error
    assert (report.reference, report.no_reference) == ("float64", "")
    (base,) = report.outcomes
    assert len(base.against_reference) == len(names)
    assert base.status.value == "ok", base.error
    # The reference is not the float32 module itself: its last bits are rounded away in float32.
    assert all(item.max_abs > 0 for item in base.against_reference)


MODULE = b"""
func.func @f(%a: tensor<4xf16>, %low: tensor<2xf16>) -> tensor<4xf16> {
  %lowest = arith.constant dense<0xFF800000> : tensor<4xf32>
  %tenths = arith.constant dense<[1.0, 0.1, 0.2, 0.3]> : tensor<4xf32>
  %b = arith.extf %a : tensor<4xf16> to tensor<4xf32>
  %c = arith.maximumf %b, %lowest : tensor<4xf32>
  %d = arith.mulf %c, %tenths : tensor<4xf32>
  %e = arith.truncf %d : tensor<4xf32> to tensor<4xf16>
  return %e : tensor<4xf16>
}
"""


def test_the_float64_module_has_no_other_float_and_no_cast():
    text = with_floats(MODULE)
    assert not re.search(r"(?<![\w])(f16|f32)\b|xf(16|32)\b", text)
    assert "arith.truncf" not in text
    assert "0xFFF0000000000000> : tensor<4xf64>" in text  # -inf keeps its value, not its bits
    assert "0.10000000149011612" in text


def test_a_module_that_is_none_has_no_other_form():
    with pytest.raises(CompileError):
        with_floats(b"func.func @f(")


def test_where_float64_is_impossible_the_reference_is_float32(tmp_path):
    (tmp_path / "m.mlir").write_text("""
func.func @f(%a: tensor<64xf32>) -> tensor<64xf32> {
  %bits = arith.bitcast %a : tensor<64xf32> to tensor<64xi32>
  %b = arith.bitcast %bits : tensor<64xi32> to tensor<64xf32>
  %c = math.exp %b : tensor<64xf32>
  return %c : tensor<64xf32>
}
""")
    plan = VariantPlan(module=tmp_path / "m.mlir", variants=(Variant(name="base"),), rounds=2)
    report = compare_variants(plan)
    assert (report.reference, bool(report.no_reference)) == ("float32", True)
    assert 0 <= report.reference_error < 1e-5
    assert report.outcomes[0].against_reference[0].passed


def test_stored_data_keeps_its_type_and_is_upcast():
    text = with_floats(b"""
util.global private @"a.w" = #flow.parameter.named<"model"::"a.w"> : tensor<2xf16>
util.global private @v = dense<1.0> : tensor<2xf16>
func.func @f() -> (tensor<2xf16>, tensor<2xf16>) {
  %0 = util.global.load @"a.w" : tensor<2xf16>
  %1 = util.global.load @v : tensor<2xf16>
  return %0, %1 : tensor<2xf16>, tensor<2xf16>
}
""")
    assert re.search(
        r'load"\(\) <\{global = @a.w\}> : \(\) -> tensor<2xf16>', text.replace('"a.w"', "a.w")
    )
    assert text.count('"arith.extf"') == 1
    assert "dense<1.000000e+00> : tensor<2xf64>" in text


def _attention(mask):
    q, k = "!torch.vtensor<[1,2,6,4],f32>", "!torch.vtensor<[1,2,5,4],f32>"
    kind = f"!torch.vtensor<[1,2,6,5],{mask}>" if mask else "!torch.none"
    argument = f", %mask: {kind}" if mask else ""
    return f"""
func.func @main(%q: {q}, %k: {k}, %v: {k}{argument}) -> {q} {{
  %none = torch.constant.none
  %zero = torch.constant.float 0.0
  %no = torch.constant.bool false
  %0 = torch.aten.scaled_dot_product_attention %q, %k, %v, {"%mask" if mask else "%none"}, %zero,
      %no, %none, %no : {q}, {k}, {k}, {kind}, !torch.float, !torch.bool, !torch.none, !torch.bool
      -> {q}
  return %0 : {q}
}}
"""


@pytest.mark.parametrize("mask", ["", "f32", "i1"])
def test_attention_has_a_reference_in_float64(tmp_path, mask):
    """Against NumPy, which does not share the writer of the reference."""
    (tmp_path / "m.mlir").write_text(_attention(mask))
    lowered = lower_module(tmp_path / "m.mlir", [])
    (tmp_path / "r.mlir").write_text(with_floats(lowered))
    random = np.random.default_rng(0)
    q, k, v = (random.uniform(-1, 1, (1, 2, n, 4)) for n in (6, 5, 5))
    arguments = [ModuleInput(type=_type(x), values=x) for x in (q, k, v)]
    scores = q @ k.swapaxes(2, 3) / 2
    if mask:
        bias = random.uniform(-1, 1, (1, 2, 6, 5))
        bias = bias if mask == "f32" else (bias > 0).astype(float)
        arguments.append(
            ModuleInput(type=_type(bias, "i1" if mask == "i1" else "f64"), values=bias)
        )
        scores = scores + bias if mask == "f32" else np.where(bias, scores, -np.inf)
    weights = np.exp(scores)
    expected = weights @ v / weights.sum(axis=3, keepdims=True)
    target = resolve_target("cpu")
    variant = Variant(name="r", flags=("--iree-input-demote-f64-to-f32=false",))
    built = build_variant(tmp_path / "r.mlir", variant, target, tmp_path)
    call = ModuleCall(
        function="main", inputs=tuple(arguments), target=target, folder=tmp_path, timeout_s=60.0
    )
    (values,) = call.outputs(built.binary, [_type(q)])
    np.testing.assert_allclose(values, expected, rtol=1e-13, atol=1e-15)


def _type(values, dtype="f64"):
    return TensorType(shape=values.shape, dtype=dtype)
