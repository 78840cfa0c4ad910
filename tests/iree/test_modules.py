"""What is read of variants, types, dumps and IREE's JSON, without a compiler."""

import json

import numpy as np
import pytest

from kernelmark.backends.iree.compiler import parse_round
from kernelmark.core.errors import CaseError, CompileError, UsageError
from kernelmark.iree import modules
from kernelmark.iree.modules import (
    Variant,
    make_inputs,
    parameter_options,
    parse_variant,
    resolve_target,
)
from kernelmark.iree.signature import Signature, parse_type
from kernelmark_dev.raising import raises


def test_a_variant_has_flags_specs_and_objects(tmp_path):
    spec, tuning, library, kernel = (
        tmp_path / name for name in ("a.mlir", "b.mlir", "c.mlir", "k.hsaco")
    )
    spec.write_text("transform.named_sequence @__transform_main")
    tuning.write_text("module attributes { iree_codegen.tuning_spec_with_default_entrypoint }")
    library.write_text("transform.named_sequence @__kernel_config")
    kernel.write_bytes(b"")
    found = parse_variant(f"fast:--a=1 {spec} '--b=x y' +{tuning} {library} {kernel}")
    assert (found.name, found.flags) == ("fast", ("--a=1", "--b=x y"))
    assert found.arguments == (
        "--a=1",
        "--b=x y",
        f"--iree-preprocessing-transform-spec-filename={spec}",
        f"--iree-codegen-tuning-spec-path={tuning}",
        f"--iree-codegen-transform-dialect-library={library}",
        f"--iree-hal-executable-object-search-path={tmp_path}",
    )


def test_a_tuning_spec_may_also_be_one_for_preprocessing(tmp_path):
    both = tmp_path / "both.mlir"
    both.write_text(
        "module attributes { iree_codegen.tuning_spec_with_default_entrypoint } {\n"
        "transform.named_sequence @__transform_main(%module: !transform.any_op) {}"
    )
    assert parse_variant(f"tuned:{both}").arguments == (
        f"--iree-codegen-tuning-spec-path={both}",
        f"--iree-preprocessing-transform-spec-filename={both}",
    )


@pytest.mark.parametrize("text", ["base", ":--a", "a b:", "x:missing.mlir", "x:'open", "x:x.txt"])
def test_a_bad_variant_is_a_usage_error(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("")  # a file of another kind
    with pytest.raises(UsageError):
        parse_variant(text)


@pytest.mark.parametrize(
    ("name", "driver", "flag"),
    [
        ("cpu", "local-task", "--iree-llvmcpu-target-cpu=host"),
        ("gfx942", "hip", "--iree-rocm-target=gfx942"),
        ("sm_80", "cuda", "--iree-cuda-target=sm_80"),
        ("sm_90", "cuda", "--iree-cuda-target=sm_89"),
        ("vulkan", "vulkan", "--iree-hal-target-device=vulkan"),
        ("vulkan:rdna3", "vulkan", "--iree-vulkan-target=rdna3"),
    ],
)
def test_targets(name, driver, flag):
    found = resolve_target(name)
    assert found.driver == driver
    assert flag in found.device_flags
    assert not any("execution-model" in one for one in found.device_flags)


@pytest.mark.parametrize(
    "name", ["tpu", "vulkan:", "gfx", "gfxbanana", "sm_", "sm_12", "cpu:0", ""]
)
def test_an_unknown_target_is_a_usage_error(name):
    with raises(UsageError, what="target", name=name):
        resolve_target(name)


def _row(name, milliseconds, **more):
    return {
        "name": name,
        "run_name": name,
        "run_type": "iteration",
        "real_time": milliseconds,
        "time_unit": "ms",
        **more,
    }


def test_a_round_has_every_repetition_and_the_kernels():
    rows = [
        _row("BM_f/process_time/real_time", 2.0, iterations=10, cpu_time=4.0),
        _row("BM_f/process_time/real_time", 3.0, iterations=20, cpu_time=5.0),
        _row("BM_f/process_time/real_time_mean", 2.5) | {"run_type": "aggregate"},
        _row("BM_f/k0", 0.5, calls=2.0),
        _row("BM_f/k1", 0.25, calls=1.0),
    ]
    found = parse_round("warning before\n" + json.dumps({"benchmarks": rows}))
    assert found.samples_s == (0.002, 0.003)
    assert {name: (one.seconds, one.calls) for name, one in found.dispatches.items()} == {
        "k0": (0.0005, 2.0),
        "k1": (0.00025, 1.0),
    }
    assert found.kernel_s == 0.00075
    assert found.cpu_s == (0.004, 0.005)
    assert found.timed_s == pytest.approx(0.002 * 10 + 0.003 * 20)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"benchmarks": []}',
        json.dumps({"benchmarks": [_row("BM_f", 1.0, error_occurred=True, error_message="no")]}),
    ],
)
def test_a_failed_benchmark_is_a_failed_case(text):
    with pytest.raises(CaseError):
        parse_round(text)


def _signature(*types):
    return Signature(inputs=tuple(map(parse_type, types)), outputs=())


def test_random_inputs_are_exact_in_their_dtype_and_repeat():
    signature = _signature("tensor<4x4xf16>", "tensor<3xi64>", "tensor<5xbf16>")
    one, two = make_inputs(signature, []), make_inputs(signature, [])
    for a, b in zip(one, two, strict=True):
        assert a.values is not None
        np.testing.assert_array_equal(a.values, b.values)
    assert np.array_equal(one[0].values, one[0].values.astype(np.float16))
    assert 0 < np.abs(one[0].values).max() <= 1
    assert set(one[1].values) <= {0.0, 1.0}
    bits = one[2].values.astype(np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()


def test_given_inputs(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.float32))
    np.arange(2, dtype=np.float32).tofile(tmp_path / "y.bin")
    signature = _signature("tensor<4xf32>", "tensor<2x2xf16>", "tensor<?xf32>", "tensor<2xf32>")
    words = [f"@{tmp_path}/x.npy", "2x2xf16=1 2 3 4", "3xf32=1.5", f"2xf32=@{tmp_path}/y.bin"]
    values = [one.values for one in make_inputs(signature, words)]
    assert [v.tolist() for v in values] == [[0, 1, 2, 3], [[1, 2], [3, 4]], [1.5] * 3, [0, 1]]


@pytest.mark.parametrize(
    ("type", "words"),
    [
        ("tensor<4xf32>", ("4xf32", "4xf32")),
        ("tensor<4xf32>", ("5xf32",)),
        ("tensor<4xf32>", ("4xf16",)),
        ("tensor<4xf32>", ("@missing.npy",)),
        ("tensor<4xf32>", ("four",)),
        ("tensor<4xf32>", ("4 f32",)),
        ("tensor<4xf32>", ("4xf32=one",)),
        ("tensor<4xf32>", ("4xf32=1,2,3",)),
        ("tensor<4xf32>", ("4xf32=@missing.bin",)),
        ("tensor<?xf32>", ()),
        ("i32", ()),
        ("i32", ("x",)),
        ("i32", ("1.5",)),
        ("f32", ("x",)),
        ("tensor<4xindex>", ()),
        ("!hal.buffer_view", ()),
        ("!hal.buffer_view", ("five",)),
    ],
)
def test_bad_inputs_are_usage_errors(type, words):
    with pytest.raises(UsageError):
        make_inputs(_signature(type), words)


def test_an_argument_without_a_type_takes_that_of_its_input():
    (made,) = make_inputs(_signature("!hal.buffer_view"), ["2x3xf16"])
    assert (made.type, made.values.shape) == (parse_type("tensor<2x3xf16>"), (2, 3))


LOADS = '#flow.parameter.named<"model"::"w">, #flow.parameter.named<"v">'


def test_parameters_are_files_of_the_scopes_that_the_module_loads(tmp_path):
    module, model, rest = (tmp_path / name for name in ("m.mlir", "m.irpa", "r.irpa"))
    module.write_text(LOADS)
    model.write_bytes(b"")
    rest.write_bytes(b"")
    options = parameter_options(module, [f"model={model}", str(rest)])
    assert options == (f"--parameters=model={model}", f"--parameters={rest}")


@pytest.mark.parametrize("given", [[], ["model={}"], ["{}"], ["model={}", "{}x"], ["x=", "{}"]])
def test_parameters_that_are_missing_are_a_usage_error(tmp_path, given):
    module, file = tmp_path / "m.mlir", tmp_path / "m.irpa"
    module.write_text(LOADS)
    file.write_bytes(b"")
    with pytest.raises(UsageError):
        parameter_options(module, [text.format(file) for text in given])


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04"], ids=["empty", "cut", "zip"])
def test_a_damaged_npy_file_is_refused(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(UsageError):
        make_inputs(_signature("tensor<4xf32>"), [f"@{tmp_path}/x.npy"])
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    with raises(UsageError, shape=(2, 3), wanted=(4,)) as caught:
        make_inputs(_signature("tensor<4xf32>", "i32"), [f"@{tmp_path}/x.npy", "1"])
    assert "--input 1" in caught.value.message


def test_a_module_whose_compiler_hangs_is_a_compile_error(tmp_path, monkeypatch):
    tool = tmp_path / "iree-compile"
    tool.write_text("#!/bin/sh\nsleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setattr(modules, "tool", lambda name: str(tool))
    monkeypatch.setattr(modules, "compiler_present", lambda: True)
    monkeypatch.setattr(modules, "MODULE_LIMIT_S", 0.5)
    (tmp_path / "a.mlir").write_text("module {}")
    with pytest.raises(CompileError):
        modules.build_variant(
            tmp_path / "a.mlir", Variant(name="a"), resolve_target("cpu"), tmp_path / "built"
        )
