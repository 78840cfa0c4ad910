"""The examples are right: NumPy's by a real run, Triton's by its interpreter and its compilers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmark.backends._file import FileBackend
from kernelmark.backends.triton.launch import Argument, build
from kernelmark.devices import registry as devices
from kernelmark.ops import parse
from kernelmark.testing.backends import bench

EXAMPLES = Path(__file__).parents[2] / "examples"
INTERPRETED = """
import sys
import torch
from kernelmark.backends._file import _load
from kernelmark.ops import parse
from pathlib import Path

example = _load(Path(sys.argv[1]))
for ta, tb in (("n", "n"), ("t", "n"), ("n", "t"), ("t", "t")):
    problem = parse(f"gemm m=70 n=50 k=90 dtype=f16 ta={ta} tb={tb}")
    assert example.supports(problem) is None
    a = torch.rand((90, 70) if ta == "t" else (70, 90)).half() - 0.5
    b = torch.rand((50, 90) if tb == "t" else (90, 50)).half() - 0.5
    d = torch.full((70, 50), float("nan")).half()
    config = {"block_m": 32, "block_n": 32, "block_k": 32}
    example.prepare(problem, config, [{"a": a, "b": b, "d": d}])(0)
    left, right = (a.T if ta == "t" else a), (b.T if tb == "t" else b)
    torch.testing.assert_close(d.float(), left.float() @ right.float(), rtol=1e-3, atol=2e-3)
"""


@pytest.fixture
def cpu():
    device = devices.get("cpu").open(0, threads=1)
    yield device
    device.close()


@pytest.mark.parametrize("key", ["dtype=f32", "dtype=f64 ta=t", "dtype=f32 ta=t tb=t"])
@pytest.mark.parametrize("config", [{}, {"rows": 64}])
def test_numpy_is_right_everywhere(cpu, key, config):
    backend = FileBackend(str(EXAMPLES / "gemm_numpy.py"))
    problem = parse(f"gemm m=130 n=31 k=65 {key}")
    assert backend.supports(problem, cpu.info) is None
    with bench(backend, problem, cpu, config=config) as made:
        made.outcome(1, 0xFF)
        assert made.worst(1, everywhere=True) <= 1.0
        assert cpu.guards_intact(made.output(1))


@pytest.mark.parametrize("key", ["dtype=f16", "dtype=f32 alpha=0.5", "dtype=f32 bias=yes"])
def test_numpy_refuses_what_it_would_get_wrong(cpu, key):
    backend = FileBackend(str(EXAMPLES / "gemm_numpy.py"))
    assert backend.supports(parse(f"gemm m=8 n=8 k=8 {key}"), cpu.info)


def test_the_space_of_each_holds_configs_that_prepare_understands(cpu):
    for name in ("gemm_numpy.py", "gemm_triton.py"):
        space = FileBackend(str(EXAMPLES / name)).space(
            parse("gemm m=8 n=8 k=8 dtype=f32"), cpu.info
        )
        text = (EXAMPLES / name).read_text(encoding="utf-8").split("def prepare")[1]
        assert all(f'"{parameter}"' in text for parameter in space.parameters)


@pytest.mark.slow
def test_triton_is_right_in_its_interpreter():
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED, str(EXAMPLES / "gemm_triton.py")],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_triton_compiles_for_both_vendors(arch):
    backend = FileBackend(str(EXAMPLES / "gemm_triton.py"))
    example = backend._module
    pointers = tuple(Argument(name=name, kind="bf16", pointer=True) for name in "abd")
    sizes = ("m", "n", "k", "a_row", "b_column")
    numbers = tuple(Argument(name=name, kind="i32", pointer=False) for name in sizes)
    constants = {name.upper(): example.DEFAULT[name] for name in ("block_m", "block_n", "block_k")}
    options = {name: example.DEFAULT[name] for name in ("num_warps", "num_stages")}
    built = build(
        example.gemm, pointers + numbers, {**constants, "a_column": 1, "b_row": 1}, options, arch
    )
    assert built.code
    assert built.resources.get("spilled_registers", 0) == 0
