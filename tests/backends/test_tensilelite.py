"""Kernels by TensileLite: over a model of it (faketensile), and by a real checkout where
KERNELMARK_TENSILELITE names one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kernelmark import ops
from kernelmark.backends.tensilelite import backend, checkout, genes
from kernelmark.core.errors import CompileError, Unsupported, UsageError
from kernelmark.gpu import rtc
from kernelmark.gpu.architectures import absent
from kernelmark.tune.strategies import registry as strategies
from kernelmark.tune.strategies.base import Points

MODEL = Path(__file__).with_name("faketensile")
# Tests have none of the user's variables, except those that they set.
REAL = {
    name: os.environ[name]
    for name in (checkout.VARIABLE, checkout.PYTHON_VARIABLE)
    if name in os.environ
}
BF16 = "gemm m=64 n=32 k=64 dtype=bf16 tb=t"

needs_clang = pytest.mark.skipif(
    rtc.find_clang() is None, reason="needs ziglang, which make test installs, or a clang for AMD"
)
needs_checkout = pytest.mark.skipif(
    not REAL, reason=f"needs a checkout of hipBLASLt or rocm-libraries in {checkout.VARIABLE}"
)


def forget():
    for cached in (checkout.generator, checkout._cache, checkout.toolchain):
        cached.cache_clear()
    sys.modules["kernelmark.backends.tensilelite"]._valid.cache_clear()


@pytest.fixture
def model(tmp_path, monkeypatch):
    """The model as the user's checkout."""
    monkeypatch.setenv(checkout.VARIABLE, str(MODEL))
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    forget()
    yield MODEL
    forget()


@pytest.fixture
def real(tmp_path, monkeypatch):
    """The user's checkout."""
    for name, value in REAL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    forget()
    yield checkout.find()
    forget()


def space(text=BF16, arch="gfx942"):
    return backend.space(ops.parse(text), absent(arch))


def test_without_a_checkout_it_says_what_to_give(monkeypatch, tmp_path):
    monkeypatch.delenv(checkout.VARIABLE, raising=False)
    assert "--tensilelite" in backend.available()
    monkeypatch.setenv(checkout.VARIABLE, str(tmp_path))
    assert str(tmp_path) in backend.available()
    with pytest.raises(UsageError):
        checkout.the_checkout()


@pytest.mark.parametrize("inside", ["tensilelite", "projects/hipblaslt/tensilelite"])
def test_a_checkout_is_found_in_what_contains_it(inside, tmp_path, monkeypatch):
    folder = tmp_path / inside / "Tensile"
    folder.mkdir(parents=True)
    (folder / "KernelWriterAssembly.py").touch()
    monkeypatch.setenv(checkout.VARIABLE, str(tmp_path))
    assert checkout.the_checkout().folder == tmp_path / inside


@needs_clang
def test_the_space_has_what_the_checkout_knows(model):
    parameters = space().parameters
    assert "LdsPadA" not in parameters
    assert parameters["StreamK"] == (0, 3)
    assert parameters["MatrixInstruction"] == ("16x16x16", "32x32x8")
    assert "16x16x32" in space(arch="gfx950").parameters["MatrixInstruction"]


@needs_clang
def test_the_checkout_decides_what_is_legal(model):
    bf16 = space()
    reasons = bf16.check([{**bf16.default, "DepthU": d} for d in (64, 256)])
    assert reasons == ["", "DepthU is too large"]
    (raised,) = bf16.check([{**bf16.default, "VectorWidthA": 8}])
    assert raised.startswith("ZeroDivisionError")
    points = Points.of(bf16)
    assert len(points) > 100
    configs = [points.config(i) for i in range(len(points))]
    assert not any(bf16.check(configs))
    assert all(bf16.forbids(config) is None for config in configs)


@needs_clang
def test_a_genetic_search_adds_legal_children(model):
    bf16 = space()
    points = Points.of(bf16, limit=32)
    search = strategies.get("genetic").begin(points, budget=60, seed=1, starts=[0])
    asked = []
    for _ in range(60):
        (point,) = search.ask(1)
        asked.append(point)
        config = points.config(point)
        search.tell(point, abs(config["MIWaveTileA"] - 6) + abs(config["MIWaveTileB"] - 3) + 1.0)
    assert len(set(asked)) == 60
    assert max(asked) >= 32
    assert not any(bf16.check([points.config(point) for point in asked]))


@needs_clang
def test_a_kernel_is_assembled_once(model):
    problem, info = ops.parse(BF16), absent("gfx942")
    config = {**space().default, "MIWaveTileA": 2, "MIWaveTileB": 2, "DepthU": 64}
    made = backend.compile(problem, config, info)
    assert made.name == "Cijk_Alik_Bljk_B_MT64x64x64"
    assert made.resources["shared_bytes"] == 128 * 64 * 2
    assert not made.cached
    assert backend.compile(problem, config, info).cached
    with pytest.raises(CompileError, match="overflowed"):
        backend.compile(problem, {**config, "MIWaveTileA": 8, "MIWaveTileB": 8}, info)
    with pytest.raises(Unsupported):
        backend.compile(problem, {**config, "DepthU": 65}, info)
    with pytest.raises(Unsupported):
        backend.compile(problem, {"depth": 64}, info)


@needs_clang
def test_an_architecture_that_the_checkout_lacks(model):
    with pytest.raises(CompileError, match="gfx90a"):
        space(arch="gfx90a")


@needs_clang
def test_a_python_that_cannot_run_tensile(model, monkeypatch, tmp_path):
    monkeypatch.setenv(checkout.PYTHON_VARIABLE, str(tmp_path / "python"))
    with pytest.raises(UsageError) as refused:
        space()
    assert checkout.PYTHON_VARIABLE in refused.value.hint
    without = tmp_path / "Tensile"
    without.mkdir()
    (without / "__init__.py").write_text("", encoding="utf-8")
    (without / "KernelWriterAssembly.py").touch()
    (without / "Common.py").write_text("import not_installed", encoding="utf-8")
    monkeypatch.delenv(checkout.PYTHON_VARIABLE)
    monkeypatch.setenv(checkout.VARIABLE, str(tmp_path))
    with pytest.raises(CompileError, match="not_installed") as lacking:
        space()
    assert "requirements.txt" in lacking.value.hint


@needs_clang
def test_a_generator_that_ends_is_replaced(model):
    first = checkout.generator("gfx942")
    first._process.kill()
    first._process.wait()
    with pytest.raises(CompileError):
        first.ask(do="valid", names=[])
    assert checkout.generator("gfx942").ask(do="valid", names=[]) == {"values": {}}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (BF16, {"TransposeA": True, "TransposeB": False, "DataType": "B"}),
        ("gemm m=8 n=8 k=8 dtype=f16 ta=t", {"TransposeA": False, "TransposeB": True}),
        ("gemm m=16 n=16 k=32 dtype=f8e4m3fnuz c=bf16", {"UseScaleAB": "Scalar"}),
        (
            "gemm_epilogue m=16 n=16 k=32 dtype=f8e4m3fnuz tb=t scale=row",
            {"UseScaleAB": "Vector", "DataType": "F8N"},
        ),
    ],
)
def test_the_problem_type_is_column_major(text, changed):
    kind = genes.problem_type(ops.parse(text))
    assert {name: kind[name] for name in changed} == changed


READER = """
import sys, yaml
sys.path.insert(0, sys.argv[1])
import generator
arch, compiler, path = sys.argv[2:]
tensile = generator.Tensile(arch, compiler)
read = generator._find("parseLibraryLogicFile")
import inspect
given = {"filename": path, "archs": [arch], "cxxCompiler": compiler, "splitGSU": False,
         "assembler": getattr(tensile, "_assembler", None), "isaInfoMap": tensile._table,
         "printSolutionRejectionReason": True, "printIndexAssignmentInfo": False,
         "lazyLibraryLoading": False}
logic = read(**{name: given[name] for name in inspect.signature(read).parameters if name in given})
valid = [int(solution["Valid"]) for solution in logic.solutions]
print(valid, [row[0] for row in logic.exactLogic])
"""


@needs_checkout
@needs_clang
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_a_checkout_generates_kernels_and_reads_their_logic(arch, real, tmp_path):
    problem, info = ops.parse(BF16), absent(arch)
    bf16 = backend.space(problem, info)
    config = bf16.default
    made = backend.compile(problem, config, info)
    assert made.name.startswith("Cijk_Alik_Bljk_BBS_BH_Bias_HA")
    assert made.resources["spilled_registers"] == 0
    assert 0 < made.resources["shared_bytes"] <= int(info.attributes["shared_per_block"])
    assert bf16.check([{**config, "LocalReadVectorWidth": 8, "TransposeLDS": 0}])[0]
    parts = backend.logic(problem, config, arch)
    path = tmp_path / "logic.yaml"
    path.write_text(yaml.safe_dump(parts), encoding="utf-8")
    own = str(Path(checkout.__file__).parent)
    command = [real.python, "-c", READER, own, arch, str(checkout.toolchain()), str(path)]
    done = subprocess.run(command, env=real.environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[1] [[32, 64, 1, 64]]"], done.stderr
