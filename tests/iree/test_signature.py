"""The types of functions, with and without a declaration in the module."""

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.iree.modules import Variant, build_variant, lower_module, resolve_target
from kernelmark.iree.signature import Signature, TensorType, parse_type, read_signature

pytest.importorskip("iree.compiler", reason="needs iree-base-compiler, which make test installs")
pytest.importorskip("iree.runtime", reason="needs iree-base-runtime, which make test installs")


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "shown"),
    [
        ("tensor<2x34xf16>", (2, 34), "f16", "2x34xf16"),
        ("tensor<?x4xf8E4M3FN>", (-1, 4), "f8e4m3", "?x4xf8e4m3"),
        ("tensor<f32>", (), "f32", "f32"),
        ("tensor<4xi64>", (4,), "i64", "4xi64"),
        ("i32", None, "i32", None),
    ],
)
def test_types(text, shape, dtype, shown):
    found = parse_type(text)
    assert found == TensorType(shape=shape, dtype=dtype)
    assert shown is None or str(found) == shown  # as an input is typed


TORCH = """
func.func @main(%a: !torch.vtensor<[2,?],f16>, %n: !torch.int)
    -> (!torch.vtensor<[2,?],f16>, !torch.vtensor<[2],si64>) {
  %dim = torch.constant.int 1
  %no = torch.constant.bool false
  %0 = torch.aten.add.Scalar %a, %n, %dim
      : !torch.vtensor<[2,?],f16>, !torch.int, !torch.int -> !torch.vtensor<[2,?],f16>
  %1 = torch.aten.argmax %0, %dim, %no
      : !torch.vtensor<[2,?],f16>, !torch.int, !torch.bool -> !torch.vtensor<[2],si64>
  return %0, %1 : !torch.vtensor<[2,?],f16>, !torch.vtensor<[2],si64>
}
"""
VIEWS = """
func.func @tripled(%a: !hal.buffer_view, %unused: !hal.buffer_view) -> !hal.buffer_view {
  %t = hal.tensor.import %a "a" : !hal.buffer_view -> tensor<4xf32>
  %0 = arith.addf %t, %t : tensor<4xf32>
  %1 = hal.tensor.export %0 "b" : tensor<4xf32> -> !hal.buffer_view
  return %1 : !hal.buffer_view
}
"""
ASYNC = """
func.func @twice(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %a, %0 : tensor<4xf32>, tensor<4xf32>
}
"""


def _read(folder, text, *flags, function=""):
    module = folder / "m.mlir"
    module.write_text(text)
    variant = Variant(name="m", flags=flags)
    built = build_variant(module, variant, resolve_target("cpu"), folder)
    return read_signature(built.binary, function, lambda: lower_module(module, flags))


def _types(*texts):
    return tuple(map(parse_type, texts))


@pytest.mark.parametrize(
    ("text", "flags", "name", "signature"),
    [
        (
            *(TORCH, (), "main"),
            Signature(
                inputs=_types("tensor<2x?xf16>", "i64"),
                outputs=_types("tensor<2x?xf16>", "tensor<2xi64>"),
            ),
        ),
        (
            *(VIEWS, (), "tripled"),
            Signature(
                inputs=_types("tensor<4xf32>", "!hal.buffer_view"), outputs=_types("tensor<4xf32>")
            ),
        ),
        (
            *(ASYNC, ("--iree-execution-model=async-external",), "twice"),
            Signature(inputs=_types("tensor<4xf32>"), outputs=_types(*["tensor<4xf32>"] * 2)),
        ),
    ],
    ids=["torch", "buffer views", "async"],
)
def test_a_function_without_declared_types_has_those_of_the_mlir(
    tmp_path, text, flags, name, signature
):
    assert _read(tmp_path, text, *flags) == (name, signature)


def test_a_function_with_fences_is_not_offered_beside_the_one_that_waits(tmp_path):
    with pytest.raises(UsageError) as caught:
        _read(tmp_path, TORCH, function="main$async")
    assert caught.value.hint == "--function: main"
