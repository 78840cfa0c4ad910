"""What the IREE backend decides before anything is compiled or runs; IREE need not be installed."""

import dataclasses
import importlib.util
import signal
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark import backends, ops
from kernelmark.backends.iree import choices, compiler
from kernelmark.backends.iree.choices import choose
from kernelmark.backends.iree.compiler import explain
from kernelmark.backends.iree.targets import target
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.reason import Reason
from kernelmark_dev.raising import raises, raises_code, tells

CPU = DeviceInfo(name="cpu", kind="cpu", model="some", arch="x86_64")
GOOD = {
    "tile_m": 64,
    "tile_n": 64,
    "vector_m": 8,
    "vector_n": 8,
    "vector_k": 4,
    "cache_m": 32,
    "cache_n": 16,
    "cache_k": 32,
}


def device(kind, arch):
    return DeviceInfo(name=f"{kind}:0", kind=kind, model="some", arch=arch)


def cpu():
    found = target(CPU)
    assert found is not None
    return found


def chosen(key, config=None):
    return choose(ops.parse(key), config or {}, cpu())


def supports(key, info=CPU):
    return backends.registry.get("iree").supports(ops.parse(key), info)


def test_refuses_moe_for_want_of_a_grouped_gemm():
    reason = Reason.of(supports("moe m=8 n=16 k=16 e=4 top_k=2 dtype=f32") or "")
    assert "4" in reason
    assert "2" in reason


@pytest.mark.parametrize(
    ("key", "tiled"),
    [
        ("gemm m=512 n=512 k=512 dtype=f32", True),
        ("gemm m=512 n=512 k=512 dtype=f16 acc=f16", True),
        ("gemm m=512 n=512 k=512 dtype=f16", False),
        ("gemm m=512 n=512 k=512 dtype=bf16", False),
        ("gemm m=512 n=512 k=512 dtype=f64", False),
        ("gemm m=1 n=512 k=512 dtype=f32", False),
        ("gemm m=1 n=512 k=512 dtype=i8", True),
        ("conv n=1 c=8 h=64 w=64 k=128 r=3 s=3 dtype=f32", True),
        ("conv n=1 c=8 h=64 w=64 k=8 r=3 s=3 dtype=f32", False),
        ("attention heads=2 seq=512 dim=128 dtype=f32", False),
    ],
)
def test_default_of_data_tiling(key, tiled):
    choice = chosen(key)
    assert f"--iree-opt-data-tiling={str(tiled).lower()}" in choice.flags
    assert ("data-tiled" in choice.label) == tiled
    other = chosen(key, {"data_tiling": not tiled})
    assert f"--iree-opt-data-tiling={str(not tiled).lower()}" in other.flags


@pytest.mark.parametrize(
    ("dtype", "flag"),
    [
        ("f64", "--iree-input-demote-f64-to-f32=false"),
        ("f16 acc=f16", "--iree-llvmcpu-skip-intermediate-roundings=false"),
    ],
)
def test_never_computes_in_another_type(dtype, flag):
    assert flag in chosen(f"gemm m=8 n=8 k=8 dtype={dtype}").flags


def test_conv_by_columns_is_a_choice():
    key = "conv n=1 c=8 h=8 w=8 k=8 r=3 s=3 dtype=f32"
    assert chosen(key, {"im2col": True}).form.im2col
    assert "im2col" in chosen(key, {"im2col": True}).label
    assert not chosen(key, {"im2col": False}).form.im2col
    assert not chosen(f"{key} groups=2").form.im2col


HWCF = "conv n=1 c=8 h=10 w=10 k=16 r=3 s=3 pad=1 dtype=f32 layout=nhwc"


def test_filters_are_transposed_where_registers_are_wide():
    problem = ops.parse(HWCF)
    short, wide = (dataclasses.replace(cpu(), vector_bytes=size) for size in (16, 64))
    forms = [choices.form_of(problem, {}, target) for target in (short, wide)]
    assert [(form.im2col, form.hwcf) for form in forms] == [(True, False), (False, True)]
    # Tiles of a GEMM and packed operands are those of im2col.
    for config in (GOOD, {"data_tiling": True}):
        assert choices.form_of(problem, config, wide).im2col
    tiled = choices.form_of(problem, {"direct_tile_p": 5}, wide)
    assert (tiled.hwcf, tiled.bands) == (True, 2)
    with pytest.raises(Unsupported):
        choices.form_of(problem, {"im2col": True, "hwcf": True}, wide)
    # One row or one tap is no such convolution.
    assert choices.form_of(ops.parse(HWCF.replace("r=3", "r=1")), {}, wide).im2col


def test_tiles_exclude_data_tiling():
    choice = chosen("gemm m=512 n=512 k=512 dtype=f32", GOOD)
    assert "--iree-opt-data-tiling=false" in choice.flags
    (entry,) = choice.entries
    assert entry.lowering.config == (
        "#iree_cpu.lowering_config<cache_parallel = [32, 16, 0], cache_reduction = [0, 0, 32], "
        "distribution = [64, 64, 0], vector_common_parallel = [8, 8, 0], "
        "vector_reduction = [0, 0, 4]>"
    )
    assert entry.lowering.info in choice.spec
    bare = GOOD | {"cache_m": 0, "cache_n": 0, "cache_k": 0}
    no_cache = chosen("gemm m=512 n=512 k=512 dtype=f32", bare)
    assert "cache" not in no_cache.entries[0].lowering.config


LEFT = dict.fromkeys(GOOD, 0)


def test_sizes_of_zero_leave_the_tiles_to_the_compiler():
    key = "gemm m=64 n=64 k=64 dtype=f32"
    packed = chosen(key, LEFT | {"data_tiling": True, "ukernels": True})
    assert {"--iree-opt-data-tiling=true", "--iree-llvmcpu-enable-ukernels=all"} <= {*packed.flags}
    (entry,) = packed.entries
    assert (entry.lowering.config, entry.lowering.packed) == ("", True)
    assert entry.lowering == chosen(key, LEFT | {"data_tiling": True}).entries[0].lowering
    (plain,) = chosen(key, LEFT | {"data_tiling": False}).entries
    assert not plain.lowering.packed
    assert not chosen(key, {"data_tiling": True}).entries  # nothing that a spec would have to say


@pytest.mark.parametrize(
    "config",
    [
        {"data_tiling": False, "ukernels": True},  # microkernels are for packed operands
        *(tiles | {"dynamic": "m"} for tiles in (GOOD, LEFT)),
    ],
)
def test_what_excludes_each_other_is_refused(config):
    with pytest.raises(Unsupported):
        chosen("gemm m=512 n=512 k=512 dtype=f32", config)


@pytest.mark.parametrize(
    ("config", "values"),
    [
        ({"tile_m": 0, "data_tiling": True}, {"name": "tile_n"}),
        ({"no_such": 1}, {"name": "no_such"}),
        ({"im2col": True}, {"name": "im2col"}),
        ({"data_tiling": "yes"}, {"name": "data_tiling", "value": "yes"}),
        ({"data_tiling": 1}, {"name": "data_tiling", "value": 1}),
        (GOOD | {"data_tiling": True}, {}),
        ({"tile_m": 64}, {"name": "tile_n"}),
        (GOOD | {"tile_m": 0}, {"name": "tile_m"}),
        (GOOD | {"tile_m": -64}, {"name": "tile_m", "value": -64}),
        (GOOD | {"tile_m": 6.5}, {"name": "tile_m", "value": 6.5}),
        (GOOD | {"tile_m": 48}, {"dim": "m", "tile": 48}),
        (GOOD | {"vector_m": 64}, {"dim": "m", "vector": 64}),
        (GOOD | {"cache_k": 2}, {"cache_k": 2}),
        # Too large for the widest registers, too.
        (GOOD | dict.fromkeys(("tile_m", "tile_n", "cache_m", "cache_n"), 128), {}),
        (GOOD | {"cache_m": 0}, {}),
        *(
            ({"dynamic": dims}, {"known": ("m", "n", "k")})
            for dims in ("x", "m,x", "m,", "all,m", True, 3, "batch")
        ),
    ],
)
def test_refuses_bad_configs(config, values):
    with raises(Unsupported, **values):
        chosen("gemm m=8 n=8 k=8 dtype=f32", config)


@pytest.mark.parametrize(
    ("key", "config", "name"),
    [
        ("gemm m=1 n=8 k=8 dtype=f32", GOOD, "tile_m"),
        ("attention heads=2 seq=64 dim=64 dtype=f32", {"ukernels": True}, "ukernels"),
        ("conv n=1 c=4 h=8 w=8 k=4 r=3 s=3 groups=2 dtype=f32", {"im2col": True}, "im2col"),
    ],
)
def test_refuses_what_other_problems_have(key, config, name):
    with raises_code(Unsupported, "config-unknown-name") as refused:
        chosen(key, config)
    fields = refused.value.message.fields
    assert name not in fields["known"]
    assert fields["name"] in config


@pytest.mark.parametrize(
    ("given", "dynamic"),
    [("all", ("m", "n", "k")), ("k,m", ("m", "k")), ("n", ("n",)), (False, ())],
)
def test_dynamic_dims_are_a_choice(given, dynamic):
    choice = chosen("gemm m=8 n=8 k=8 dtype=f32", {"dynamic": given})
    assert choice.form.dynamic == dynamic
    assert choice.label == " ".join(
        ["gemm llvm-cpu", *["dynamic " + ",".join(dynamic)] * bool(dynamic)]
    )


def test_nothing_to_tune_or_compile_where_it_cannot_run():
    iree, problem = backends.registry.get("iree"), ops.parse("gemm m=8 n=8 k=8 dtype=f32")
    assert iree.space(problem, device("fake", "fake")) is None
    with raises(Unsupported, arch="sm_52"):
        iree.compile(problem, {}, device("cuda", "sm_52"))
    with raises(Unsupported, dtype="f8e4m3"):
        iree.compile(ops.parse("gemm m=8 n=8 k=8 dtype=f8e4m3"), {}, CPU)


@pytest.mark.parametrize(
    ("info", "driver", "flag"),
    [
        (CPU, "local-task", "--iree-llvmcpu-target-cpu=host"),
        (device("cuda", "sm_80"), "cuda", "--iree-cuda-target=sm_80"),
        (device("cuda", "sm_75"), "cuda", "--iree-cuda-target=sm_60"),
        (device("cuda", "sm_90"), "cuda", "--iree-cuda-target=sm_89"),
        (device("cuda", "sm_100a"), "cuda", "--iree-cuda-target=sm_89"),
        (device("hip", "gfx942"), "hip", "--iree-rocm-target=gfx942"),
    ],
)
def test_targets(info, driver, flag):
    found = target(info)
    assert found.driver == driver
    assert flag in found.flags
    assert found.gpu == (info.kind != "cpu")
    assert target(device("cuda", "sm_52")) is target(device("fake", "fake")) is None


SOURCE = "module {\n  func.func @main() {\n    %0 = bad\n  }\n}"
LOG = "<stdin>:3:10: error: use of undeclared SSA value name\n    %0 = bad\n         ^\nmore"


def test_explains_with_the_line_of_the_mlir():
    found = explain(1, LOG, SOURCE)
    assert "use of undeclared SSA value name" in found
    assert "3" in found
    assert "%0 = bad" in found
    assert found.partition("\n")[2] == LOG
    assert "no target" in explain(1, "<stdin>:1:1: error: no target", "")  # there is no MLIR


def test_an_error_without_a_line_names_none():
    """As iree-compile writes it of an empty module."""
    named, none = (
        explain(1, f"empty.mlir:{line}:0: error: no module", "").splitlines()[0] for line in (3, 0)
    )
    assert "empty.mlir" in named
    assert "empty.mlir" not in none


def test_explains_with_the_first_error_and_the_first_line():
    """The cause comes first and has no place; what it made fail has one."""
    log = "<unknown>:0: error: no such type on gfx942\n<stdin>:3:10: error: translation failed"
    first = explain(1, log, SOURCE).partition("\n")[0]
    assert tells(first, error="no such type on gfx942", line=3, source="%0 = bad")
    assert "translation failed" not in first


@pytest.mark.parametrize(
    ("exit_code", "log", "fields"),
    [
        (-signal.SIGABRT, "Please report a bug", {"signal": "SIGABRT", "error": ""}),
        (-99, "", {"signal": "signal 99", "error": ""}),
        (
            -signal.SIGSEGV,
            "<unknown>:0: error: no such thing\nStack dump:",
            {"signal": "SIGSEGV", "error": "no such thing"},
        ),
        (1, "iree-compile: error: no such flag:\n", {"error": "no such flag"}),
        (2, "\nstrange\nthings", {"exit_code": 2, "error": "strange"}),
        (0, "", {"exit_code": 0}),
        (1, "-:99:1: error: far away", {"error": "far away", "line": 99}),
        (1, "my spec.mlir:7:3: error: odd", {"error": "odd", "line": 7, "file": "my spec.mlir"}),
    ],
)
def test_explains_the_rest(exit_code, log, fields):
    found = explain(exit_code, log, SOURCE)
    assert tells(found, **fields)


@pytest.mark.parametrize(("folder", "runs"), [(".", 2), ("/tmp/other", 1)])
def test_an_error_in_a_dumped_file_is_located_in_the_module(monkeypatch, folder, runs):
    """IREE locates errors in the files that it dumps, which are deleted."""
    made = []

    def run(command, **more):
        made.append(command)
        place = "./configured_main.mlir:2:2" if "--dump" in command else "<stdin>:6:10"
        log = f"<unknown>:0: error: no such type\n{place}: error: failed to translate".encode()
        return subprocess.CompletedProcess(command, 1, b"", log)

    monkeypatch.setattr(compiler, "run_child", run)
    done = compiler.run_dumping(["iree-compile"], folder, ["--dump"])
    assert len(made) == runs
    assert (b"<stdin>:6:10" in done.stderr) == (runs == 2)


@given(st.text(), st.integers(-70, 300))
def test_explains_anything_briefly(log, code):
    text = explain(code, log, SOURCE)
    assert text.startswith("iree-compile")
    assert len(text) < 2000 + len(log.strip().partition("\n")[0]) + 400


@pytest.mark.parametrize("missing", ["iree.compiler", "iree.runtime"])
def test_a_missing_package_is_named(monkeypatch, missing):
    real = importlib.util.find_spec

    def find_spec(name, package=None):
        if name == missing:
            return None
        return object() if name.startswith("iree.") else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    reason = Reason.of(backends.registry.get("iree").available() or "").root
    assert f"iree-base-{missing.removeprefix('iree.')}" in reason


def test_missing_altogether(monkeypatch):
    def find_spec(name, package=None):
        raise ModuleNotFoundError("No module named 'iree'")

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    reason = Reason.of(backends.registry.get("iree").available() or "").root
    assert "iree-base-compiler and iree-base-runtime" in reason
