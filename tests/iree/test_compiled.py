"""Modules through IREE's compiler and runtime, on the CPU."""

import json
import math
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelmark import backends, ops
from kernelmark.cli.main import main
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Status
from kernelmark.iree.ab import VariantPlan, compare_variants
from kernelmark.iree.dispatches import (
    computed_by,
    rank_benchmarks,
    rank_dispatches,
    save_workload,
    workload_of,
)
from kernelmark.iree.modules import Variant, load_candidates, parse_variant
from kernelmark.stores import open_store
from kernelmark.workloads import suites, workload

pytest.importorskip("iree.compiler", reason="needs iree-base-compiler, which make test installs")
pytest.importorskip("iree.runtime", reason="needs iree-base-runtime, which make test installs")
EXAMPLES = Path(__file__).parents[2] / "examples" / "iree"
# The target and the triple in external_matmul_spec.mlir; its comment has those of aarch64.
CPUS = {
    "x86_64": ("embedded-elf-x86_64", "x86_64-unknown"),
    "aarch64": ("embedded-elf-arm_64", "aarch64-unknown"),
}

MODULE = """
func.func @forward(%a: tensor<16x32xf16>, %b: tensor<32x8xf16>) -> tensor<16x8xf16> {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %empty = tensor.empty() : tensor<16x8xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<16x8xf32>) -> tensor<16x8xf32>
  %sum = linalg.matmul ins(%a, %b : tensor<16x32xf16>, tensor<32x8xf16>)
      outs(%start : tensor<16x8xf32>) -> tensor<16x8xf32>
  %out = tensor.empty() : tensor<16x8xf16>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
                       iterator_types = ["parallel", "parallel"]}
      ins(%sum : tensor<16x8xf32>) outs(%out : tensor<16x8xf16>) {
  ^bb0(%s: f32, %o: f16):
    %m = arith.maximumf %s, %low : f32
    %r = arith.truncf %m : f32 to f16
    linalg.yield %r : f16
  } -> tensor<16x8xf16>
  return %y : tensor<16x8xf16>
}
"""
# Replaces the matmul by one that forgets half of the terms, or by the same in another form.
SPEC = """
module attributes {transform.with_named_sequence} {
  util.func private @other(%a: tensor<16x32xf16>, %b: tensor<32x8xf16>, %c: tensor<16x8xf32>)
      -> tensor<16x8xf32> {
    %x = tensor.extract_slice %a[0, 0] [16, {terms}] [1, 1]
        : tensor<16x32xf16> to tensor<16x{terms}xf16>
    %y = tensor.extract_slice %b[0, 0] [{terms}, 8] [1, 1]
        : tensor<32x8xf16> to tensor<{terms}x8xf16>
    %d = linalg.matmul ins(%x, %y : tensor<16x{terms}xf16>, tensor<{terms}x8xf16>)
        outs(%c : tensor<16x8xf32>) -> tensor<16x8xf32>
    util.return %d : tensor<16x8xf32>
  }
  transform.named_sequence @match(%op: !transform.any_op {transform.readonly})
      -> !transform.any_op {
    transform.match.operation_name %op ["{name}"] : !transform.any_op
    transform.yield %op : !transform.any_op
  }
  transform.named_sequence @replace(%op: !transform.any_op {transform.readonly}) {
    %module = transform.util.get_nearest_symbol_table %op : (!transform.any_op) -> !transform.any_op
    %func = transform.util.import_symbol @other into %module if undefined
        : (!transform.any_op) -> !transform.any_op
    %ins = transform.get_operand %op[all] : (!transform.any_op) -> !transform.any_value
    %out = transform.get_result %op[all] : (!transform.any_op) -> !transform.any_value
    transform.util.cast_and_call %func(%ins) -> %out before %op
        : (!transform.any_op, !transform.any_value, !transform.any_value, !transform.any_op)
        -> !transform.any_op
    transform.yield
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op) {
    %f = transform.structured.match ops{["util.func"]} in %module
        : (!transform.any_op) -> !transform.any_op
    transform.foreach %f : !transform.any_op {
    ^bb1(%func: !transform.any_op):
      transform.foreach_match in %func @match -> @replace : (!transform.any_op) -> !transform.any_op
    }
    transform.apply_dce to %module : !transform.any_op
    transform.apply_registered_pass "inline" to %module : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
}
"""


# Adds the terms that a spec with 16 of the 32 leaves out.
SECOND_HALF = """
    %x2 = tensor.extract_slice %a[0, 16] [16, 16] [1, 1] : tensor<16x32xf16> to tensor<16x16xf16>
    %y2 = tensor.extract_slice %b[16, 0] [16, 8] [1, 1] : tensor<32x8xf16> to tensor<16x8xf16>
    %e = linalg.matmul ins(%x2, %y2 : tensor<16x16xf16>, tensor<16x8xf16>)
        outs(%d : tensor<16x8xf32>) -> tensor<16x8xf32>
    """


def _spec(folder, name, *, op="linalg.matmul", terms):
    path = folder / name
    path.write_text(SPEC.replace("{terms}", str(terms)).replace("{name}", op))
    return path


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "m.mlir"
    path.write_text(MODULE)
    return path


def _generic(a, b, c, loops, maps, kinds):
    shown = ", ".join(f"affine_map<({loops}) -> ({one})>" for one in maps)
    words = ", ".join({"p": '"parallel"', "r": '"reduction"'}[kind] for kind in kinds)
    return f"""
    func.func @f(%a: tensor<{a}>, %b: tensor<{b}>, %c: tensor<{c}>) -> tensor<{c}> {{
      %r = linalg.generic {{indexing_maps = [{shown}], iterator_types = [{words}]}}
          ins(%a, %b : tensor<{a}>, tensor<{b}>) outs(%c : tensor<{c}>) {{
      ^bb0(%x: f32, %y: f32, %o: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %o, %p : f32
        linalg.yield %s : f32
      }} -> tensor<{c}>
      return %r : tensor<{c}>
    }}"""


@pytest.mark.parametrize(
    ("text", "key", "lost"),
    [
        (
            _generic("4x8xf32", "6x4xf32", "8x6xf32", "i, j, k", ("k, i", "j, k", "i, j"), "ppr"),
            "gemm m=8 n=6 k=4 ta=t tb=t dtype=f32",
            (),
        ),
        (  # a transposed result is the product of swapped operands
            _generic("8x4xf32", "4x6xf32", "6x8xf32", "i, j, k", ("i, k", "k, j", "j, i"), "ppr"),
            "gemm m=6 n=8 k=4 ta=t tb=t dtype=f32",
            (),
        ),
        (
            _generic("8x4xf32", "4xf32", "8xf32", "i, k", ("i, k", "k", "i"), "pr"),
            "gemm m=8 n=1 k=4 dtype=f32",
            (),
        ),
        (  # a shared right operand makes one product of the batch
            _generic(
                *("2x8x4xf32", "4x6xf32", "2x8x6xf32", "b, i, j, k"),
                *(("b, i, k", "k, j", "b, i, j"), "pppr"),
            ),
            "gemm m=16 n=6 k=4 dtype=f32",
            (),
        ),
        (
            _generic(
                *("8x3x4xf32", "3x6x4xf32", "8x3x6xf32", "b, i, j, k"),
                *(("i, b, k", "b, j, k", "i, b, j"), "pppr"),
            ),
            "batched_gemm batch=3 m=8 n=6 k=4 tb=t dtype=f32",
            ("layout",),
        ),
    ],
)
def test_contractions_as_problems(text, key, lost):
    ((name, found),) = computed_by(text)
    assert (name, found.problem, found.lost) == ("f", ops.parse(key), lost)


@pytest.mark.parametrize(
    ("op", "x", "w", "y", "key", "lost"),
    [
        ("nhwc_fhwc", "1x9x8x4", "6x3x2x4", "1x7x7x6", "c=4 k=6 layout=nhwc", ()),
        ("nhwc_hwcf", "1x9x8x4", "3x2x4x6", "1x7x7x6", "c=4 k=6 layout=nhwc", ("layout",)),
        ("nchw_fchw", "1x4x9x8", "6x4x3x2", "1x6x7x7", "c=4 k=6", ()),
        ("ngchw_gfchw", "1x2x4x9x8", "2x6x4x3x2", "1x2x6x7x7", "c=8 k=12 groups=2", ()),
    ],
)
def test_convolutions_as_problems(op, x, w, y, key, lost):
    x, w, y = (f"tensor<{one}xf32>" for one in (x, w, y))
    ((_, found),) = computed_by(f"""
    func.func @f(%x: {x}, %w: {w}, %y: {y}) -> {y} {{
      %r = linalg.conv_2d_{op} {{dilations = dense<1> : tensor<2xi64>,
          strides = dense<1> : tensor<2xi64>}} ins(%x, %w : {x}, {w}) outs(%y : {y}) -> {y}
      return %r : {y}
    }}""")
    assert found.problem == ops.parse(f"conv n=1 h=9 w=8 r=3 s=2 {key} dtype=f32")
    assert found.lost == lost


def test_attention_as_a_problem():
    q, k, v, o = (f"tensor<4x{one}xf16>" for one in ("32x16", "48x16", "48x24", "32x24"))
    maps = ", ".join(
        f"affine_map<(b, m, n, c, d) -> ({one})>"
        for one in ("b, m, c", "b, d, c", "b, d, n", "", "b, m, n")
    )
    ((_, found),) = computed_by(f"""
    func.func @f(%q: {q}, %k: {k}, %v: {v}, %s: f16, %o: {o}) -> {o} {{
      %r = iree_linalg_ext.attention <{{indexing_maps = [{maps}]}}>
          ins(%q, %k, %v, %s : {q}, {k}, {v}, f16) outs(%o : {o}) {{
      ^bb0(%x: f32): iree_linalg_ext.yield %x : f32 }} -> {o}
      return %r : {o}
    }}""")
    key = "attention heads=4 seq_q=32 seq_kv=48 dim_qk=16 dim_v=24 dtype=f16"
    assert found.problem == ops.parse(key)


def test_a_dispatch_without_a_contraction_is_no_problem():
    ((_, found),) = computed_by("func.func @f() { return }")
    assert found.problem is None


def test_a_dynamic_contraction_is_no_problem():
    text = _generic("?x8xf32", "6x?xf32", "8x6xf32", "i, j, k", ("k, i", "j, k", "i, j"), "ppr")
    ((_, found),) = computed_by(text)
    assert found.problem is None


@pytest.mark.slow
def test_variants_are_checked_and_timed(module, tmp_path):
    plan = VariantPlan(
        module=module,
        variants=(
            Variant(name="base"),
            parse_variant(f"same:{_spec(tmp_path, 'same.mlir', terms=32)}"),
            parse_variant(f"half:{_spec(tmp_path, 'half.mlir', terms=16)}"),
            parse_variant(f"idle:{_spec(tmp_path, 'idle.mlir', op='linalg.dot', terms=16)}"),
            parse_variant("broken:--iree-no-such-flag"),
        ),
        rounds=2,
    )
    report = compare_variants(plan)
    outcomes = {one.variant.name: one for one in report.outcomes}
    assert {name: one.status for name, one in outcomes.items()} == {
        "base": Status.OK,
        "same": Status.OK,
        "half": Status.WRONG,
        "idle": Status.OK,
        "broken": Status.COMPILE_ERROR,
    }
    assert report.failed
    assert (outcomes["base"].specs_applied, outcomes["half"].specs_applied) == (None, True)
    assert outcomes["idle"].specs_applied is False
    # The replacement is in the compiled kernel: it sums 16 terms, where the base sums 32.
    assert "16x8x32" in outcomes["base"].built.dispatches[0].name
    assert "16x8x16" in outcomes["half"].built.dispatches[0].name
    assert all(d.passed for d in outcomes["base"].against_reference)
    assert outcomes["half"].against_reference[0].fraction_bad > 0.5
    assert "float64" in outcomes["half"].error
    assert outcomes["half"].against_first[0].first_bad is not None
    for name in ("base", "same", "half"):
        one = outcomes[name]
        assert len(one.end_to_end.blocks) == 2
        assert one.kernels.median_s > 0
        assert [time.calls for time in one.dispatch_s.values()] == [1.0]
    assert outcomes["same"].end_to_end_verdict is not None
    # A wrong result has times, but is neither faster nor slower.
    assert (outcomes["half"].end_to_end_verdict, outcomes["half"].kernels_verdict) == (None, None)
    assert outcomes["broken"].built is None


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx942", "sm_80"])
def test_the_sdxl_convolution_compiles_for_gpus(target):
    plan = VariantPlan(
        module=EXAMPLES / "sdxl_conv.mlir",
        variants=(Variant(name="base"), parse_variant(f"spec:{EXAMPLES / 'conv_as_matmul.mlir'}")),
        target=target,
        run=False,
    )
    report = compare_variants(plan)
    assert not report.failed
    base, spec = (one.built.dispatches for one in report.outcomes)
    assert (len(base), len(spec)) == (1, 2)
    assert report.outcomes[1].specs_applied
    used = {name for dispatch in (*base, *spec) for name in dispatch.resources}
    expected = (
        {"registers", "spilled_registers", "shared_bytes"} if target == "gfx942" else {"threads"}
    )
    assert expected <= used


@pytest.mark.slow
def test_the_example_with_a_planted_error_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KERNELMARK_STORE", str(tmp_path / "store.sqlite"))
    words = [f"{EXAMPLES / name}" for name in ("small_conv.mlir", "conv_as_matmul.mlir")]
    given = ["iree", "ab", words[0], "--variant", "base:", "--variant", f"im2col:{words[1]}"]
    fast = ["--rounds", "2", "-q", "--json", "-"]
    with pytest.raises(SystemExit) as ended:
        main([*given, *fast])
    assert not ended.value.code
    document = json.loads(capsys.readouterr().out)
    assert [one["status"] for one in document["variants"]] == ["ok", "ok"]
    with pytest.raises(SystemExit) as ended:
        main([*given, "--variant", f"wrong:{EXAMPLES / 'wrong_conv.mlir'}", *fast])
    assert ended.value.code == 3
    document = json.loads(capsys.readouterr().out)
    assert document["variants"][2]["status"] == "wrong"
    assert document["variants"][2]["against_reference"][0]["fraction_bad"] > 0.9
    assert document["variants"][2]["error"]
    with open_store(None) as store:
        stored = store.result_set(store.run("latest").id).results
    found = {(r.case.config["variant"], r.case.problem.options["part"]): r for r in stored}
    assert {key: one.status.value for key, one in found.items()} == {
        (name, part): "wrong" if name == "wrong" else "ok"
        for name in ("base", "im2col", "wrong")
        for part in ("end_to_end", "kernels")
    }
    assert all(len(one.measurement.blocks) == 2 for one in found.values())
    assert found["im2col", "kernels"].kernel.binary_hash
    dispatched = document["variants"][1]["dispatches"]
    assert all(one["name"] in found["im2col", "kernels"].kernel.name for one in dispatched)
    configs = found["im2col", "kernels"].kernel.configs
    assert set(configs) == {one["name"] for one in dispatched}
    assert all("distribution = [" in text for text in configs.values())


@pytest.mark.slow
def test_of_many_candidates_the_fastest_right_ones_are_measured_in_full(module, tmp_path):
    folder = tmp_path / "specs"
    folder.mkdir()
    for number in (2, 10):
        path = _spec(folder, f"{number}_spec.mlir", terms=16)
        path.write_text(path.read_text().replace("util.return %d", f"{SECOND_HALF}util.return %e"))
    _spec(folder, "3_wrong.mlir", terms=16)
    _spec(folder, "4_other.mlir", op="linalg.batch_matmul", terms=32)
    (folder / "5_bad.mlir").write_text("module {")
    base = Variant(name="base")
    candidates = load_candidates(folder, base)
    names = ("2_spec", "3_wrong", "4_other", "5_bad", "10_spec")
    assert tuple(variant.name for variant in candidates) == names
    plan = VariantPlan(module=module, variants=(base, *candidates), rounds=2, finalists=1)
    report = compare_variants(plan)
    found = {outcome.variant.name: outcome for outcome in report.outcomes}
    assert [found[name].status for name in ("base", *names)] == [
        *(Status.OK, Status.OK, Status.WRONG, Status.OK, Status.COMPILE_ERROR, Status.OK)
    ]
    assert found["4_other"].specs_applied is False
    assert {name for name, one in found.items() if one.end_to_end} == {"base", "2_spec", "10_spec"}
    final = [name for name, one in found.items() if one.end_to_end_verdict]
    assert final in (["2_spec"], ["10_spec"])
    assert not report.failed


def test_a_folder_without_candidates_is_a_usage_error(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError):
            load_candidates(folder, Variant(name="base"))


@pytest.mark.slow
@pytest.mark.skipif(
    platform.machine() not in CPUS, reason=f"the example is for {' and '.join(CPUS)}"
)
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler called cc")
def test_an_external_kernel_replaces_a_dispatch(tmp_path):
    kernel = tmp_path / "external_matmul.o"
    flags = ["-O2", "-ffreestanding", "-fPIC", "-fno-tree-loop-distribute-patterns"]
    source = EXAMPLES / "external_matmul.c"
    subprocess.run(["cc", *flags, "-c", str(source), "-o", str(kernel)], check=True)
    text = (EXAMPLES / "external_matmul_spec.mlir").read_text()
    for before, after in zip(CPUS["x86_64"], CPUS[platform.machine()], strict=True):
        assert before in text
        text = text.replace(before, after)
    spec = tmp_path / "spec.mlir"
    spec.write_text(text)
    words = f"--iree-hal-link-executables=false {spec} {kernel}"
    plan = VariantPlan(
        module=EXAMPLES / "external_matmul.mlir",
        variants=(Variant(name="base"), parse_variant(f"own:{words}")),
        rounds=2,
    )
    report = compare_variants(plan)
    own = report.outcomes[1]
    assert (own.status, own.specs_applied, report.failed) == (Status.OK, True, False)
    assert own.dispatch_s["external_matmul"].seconds > 0
    assert own.against_reference[0].passed


@pytest.mark.slow
def test_a_model_becomes_a_workload(tmp_path):
    costs = rank_dispatches(EXAMPLES / "unet_like.mlir", rounds=1)
    assert [one.seconds for one in costs] == sorted((one.seconds for one in costs), reverse=True)
    assert sum(one.fraction for one in costs) == pytest.approx(1)
    found = workload_of(costs, "unet")
    counts = {call.problem.op: call.count for call in found.calls}
    assert counts["conv"] == 2
    assert {"gemm", "batched_gemm"} <= counts.keys()
    save_workload(found, tmp_path, EXAMPLES / "unet_like.mlir")
    assert workload.read(tmp_path / "workload.csv").calls == found.calls
    suite = suites.load(str(tmp_path / "suite.toml"))
    assert {p.key for p in suite.problems} == {call.problem.key for call in found.calls}


CONV = """
func.func @main(%x: tensor<1x8x10x10xf32>, %w: tensor<16x8x3x3xf32>, %y: tensor<1x16x8x8xf32>)
    -> tensor<1x16x8x8xf32> {
  %0 = linalg.conv_2d_nchw_fchw {strides = dense<1> : tensor<2xi64>}
      ins(%x, %w : tensor<1x8x10x10xf32>, tensor<16x8x3x3xf32>)
      outs(%y : tensor<1x16x8x8xf32>) -> tensor<1x16x8x8xf32>
  return %0 : tensor<1x16x8x8xf32>
}
"""


@pytest.mark.parametrize("text", [MODULE, pytest.param(CONV, marks=pytest.mark.slow)])
def test_a_benchmark_of_a_dispatch_is_the_dispatch_in_the_model(tmp_path, text):
    (tmp_path / "m.mlir").write_text(text)
    in_model = rank_dispatches(tmp_path / "m.mlir", rounds=1, benchmarks=tmp_path / "b")
    assert {f"{cost.name}.mlir" for cost in in_model} == {
        p.name for p in (tmp_path / "b").iterdir()
    }
    alone = rank_benchmarks(tmp_path / "b", rounds=1)
    assert [(one.name, one.computed.problem) for one in alone] == [
        (one.name, one.computed.problem) for one in in_model
    ]
    assert [one.fraction for one in alone] == [1.0]
    # A benchmark with a config would keep it, whatever a tuning spec says.
    assert not any("lowering_config" in p.read_text() for p in (tmp_path / "b").iterdir())


def test_what_is_no_benchmark_is_named(tmp_path):
    with pytest.raises(UsageError):
        rank_benchmarks(tmp_path)
    (tmp_path / "x.mlir").write_text("func.func @f(")
    with pytest.raises(UsageError) as caught:
        rank_benchmarks(tmp_path)
    assert "x.mlir" in caught.value.message
    assert '"-":1:' in caught.value.message  # where, not MLIR's heading above it


@pytest.mark.parametrize(
    ("arch", "key", "used"),
    [
        ("gfx942", "gemm m=64 n=64 k=64 dtype=f16", {"registers", "scalar_registers"}),
        (
            *("gfx942", "batched_gemm_quant batch=2 m=16 n=16 k=64 scheme=a8w8_group b=f8e4m3fnuz"),
            {"spilled_registers", "shared_bytes"},
        ),
        ("sm_80", "gemm m=64 n=64 k=64 dtype=f16", {"threads"}),
    ],
)
def test_the_backend_reads_resources_from_the_object(arch, key, used):
    kind = "hip" if arch.startswith("gfx") else "cuda"
    info = DeviceInfo(name=f"{kind}:0", kind=kind, model=arch, arch=arch)
    found = backends.registry.get("iree").compile(ops.parse(key), {}, info).resources
    assert used <= found.keys()
    assert found[next(iter(used & {"registers", "threads", "shared_bytes"}))] > 0


def test_variants_that_are_only_compiled_are_stored_without_a_time(module, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_STORE", str(tmp_path / "store.sqlite"))
    variants = ["--variant", "base:", "--variant", "bad:--iree-no-such-flag"]
    with pytest.raises(SystemExit) as ended:
        main(["iree", "ab", str(module), *variants, "--target", "gfx942", "--compile-only", "-q"])
    assert ended.value.code == 3
    with open_store(None) as store:
        stored = store.result_set(store.run("latest").id)
    found = {one.case.config["variant"]: one for one in stored.results}
    assert {name: one.status for name, one in found.items()} == {
        "base": Status.SKIPPED,
        "bad": Status.COMPILE_ERROR,
    }
    base = found["base"]
    assert base.measurement is None
    assert base.kernel.resources["registers"] > 0
    assert all("workgroup = [" in text for text in base.kernel.configs.values())
    assert (base.device, base.arch) == ("hip", "rocm gfx942")


@pytest.mark.parametrize(
    "target", ["gfx9999", pytest.param("vulkan:banana", marks=pytest.mark.slow)]
)
def test_a_target_that_the_compiler_does_not_know_is_a_usage_error(module, target):
    plan = VariantPlan(module=module, variants=(Variant(name="base"),), target=target, run=False)
    with pytest.raises(UsageError) as caught:
        compare_variants(plan)
    assert target.rpartition(":")[2] in caught.value.message


def test_plans_that_cannot_be(module):
    base = Variant(name="base")
    for bad in (
        {"variants": ()},
        {"variants": (base, base)},
        {"rounds": 1},
        {"finalists": 0},
        {"tolerance": -1.0},
        {"tolerance": math.nan},
        {"timeout_s": 0.0},
        {"timeout_s": math.nan},
        {"budget_s": -1.0},
        {"module": module.with_name("none.mlir")},
    ):
        with pytest.raises(UsageError):
            VariantPlan(**({"module": module, "variants": (base,)} | bad))


def test_dispatches_are_not_ranked_without_a_round_or_a_device(module, monkeypatch):
    monkeypatch.setattr("kernelmark.iree.dispatches.absent", lambda driver: "there is none")
    for bad in ({"rounds": 0}, {"timeout_s": 0.0}, {"target": "gfx942"}):
        with pytest.raises(UsageError):
            rank_dispatches(module, **bad)


def test_an_open_quote_in_flags_is_a_usage_error(module, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["iree", "dispatches", str(module), "--flags", "'open"])
    assert ended.value.code == 2
    assert "ValueError" not in capsys.readouterr().err
