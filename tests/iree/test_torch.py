"""Modules in the torch dialect: what iree-turbine exports, without torch."""

import importlib.util
import json
from pathlib import Path

import pytest

from kernelmark import ops
from kernelmark.backends.iree import choices
from kernelmark.backends.iree.compiler import run_compiler
from kernelmark.backends.iree.spec import EMPTY, missing
from kernelmark.backends.iree.targets import target_named
from kernelmark.cli.main import main
from kernelmark.core.result import Status
from kernelmark.iree.ab import VariantPlan, compare_variants
from kernelmark.iree.dispatches import rank_dispatches
from kernelmark.iree.modules import Variant

pytest.importorskip("iree.compiler", reason="needs iree-base-compiler, which make test installs")
pytest.importorskip("iree.runtime", reason="needs iree-base-runtime, which make test installs")
SCRIPT = Path(__file__).parents[2] / "examples" / "iree" / "unet_torch.py"
_spec = importlib.util.spec_from_file_location("unet_torch", SCRIPT)
unet_torch = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(unet_torch)


def _module(folder, build, *shapes):
    """Write a module of one function of tensors; `build` gets the module and its arguments."""
    module = unet_torch.Module("f32")
    arguments = [
        unet_torch.Value(f"%a{at}", shape, "si64" if at and len(shape) == 1 else "f32")
        for at, shape in enumerate(shapes)
    ]
    path = folder / "m.mlir"
    path.write_text(module.text("main", arguments, build(module, *arguments)))
    return path


def _compare(module, **more):
    plan = VariantPlan(module=module, variants=(Variant(name="base"),), rounds=2, **more)
    report = compare_variants(plan)
    (outcome,) = report.outcomes
    assert (report.reference, outcome.status) == ("float64", Status.OK), outcome.error
    return report


def test_parameters_of_a_torch_module_are_loaded_in_float64_too(tmp_path):
    import iree.runtime
    import numpy as np

    def build(module, x):
        y = module.op("linear", (3, 2), x, module.parameter("a.w", 2, 4), None)
        return module.op("tanh", (3, 2), y)

    module = _module(tmp_path, build, (3, 4))
    index = iree.runtime.ParameterIndex()
    index.add_buffer("a.w", np.arange(8, dtype="<f4").tobytes())
    index.create_archive_file(str(tmp_path / "m.irpa"))
    report = _compare(
        module, parameters=(f"model={tmp_path / 'm.irpa'}",), device_allocator="caching"
    )
    assert report.function == "main"
    assert report.outcomes[0].end_to_end.cpu_s > 0


OPS = {
    "mm": (lambda m, x, y: m.op("mm", (6, 5), x, y), (6, 4), (4, 5)),
    "softmax": (lambda m, x: m.op("softmax.int", x.shape, x, -1, None), (3, 8)),
    "layer_norm": (
        lambda m, x: m.op("layer_norm", x.shape, x, [8], None, None, 1e-5, False),
        (3, 8),
    ),
    "group_norm": (
        lambda m, x: m.op("group_norm", x.shape, x, 2, None, None, 1e-5, False),
        (1, 4, 3, 3),
    ),
    "gelu": (lambda m, x: m.op("gelu", x.shape, x, "none"), (3, 8)),
    "gelu_tanh": (lambda m, x: m.op("gelu", x.shape, x, "tanh"), (3, 8)),
    "pow": (lambda m, x: m.op("pow.Tensor_Scalar", x.shape, x, 3), (3, 8)),
    "convolution": (
        lambda m, x, w: m.op(
            "convolution", (1, 2, 5, 5), x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1
        ),
        *((1, 3, 5, 5), (2, 3, 3, 3)),
    ),
    "embedding": (
        lambda m, x, i: m.op("embedding", (3, 4), x, i, -1, False, False),
        *((5, 4), (3,)),
    ),
    "cat": (lambda m, x, y: m.op("cat", (2, 7), [x, y], 1), (2, 3), (2, 4)),
    "upsample": (
        lambda m, x: m.op("upsample_nearest2d", (1, 2, 6, 6), x, [6, 6], None, None),
        (1, 2, 3, 3),
    ),
    "mean": (lambda m, x: m.op("mean.dim", (3,), x, [1], False, None), (3, 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_torch_ops_have_a_signature_and_a_reference(tmp_path, name):
    build, *shapes = OPS[name]
    report = _compare(_module(tmp_path, build, *shapes))
    assert len(report.outcomes[0].against_reference) == 1


@pytest.mark.slow
def test_a_whole_model_from_its_parameters_to_its_dispatches(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KERNELMARK_STORE", str(tmp_path / "store.sqlite"))
    stem = tmp_path / "unet"
    unet_torch.save(stem, levels=2, channels=16, size=8, dtype="f32", seed=0)
    parameters = f"model={stem}.irpa"
    options = ["--parameters", parameters]
    with pytest.raises(SystemExit) as ended:
        main(f"iree ab {stem}.mlir --variant base: --rounds 2 --json - -q".split() + options)
    assert not ended.value.code
    document = json.loads(capsys.readouterr().out)
    assert document["reference"] == "float64"
    costs = rank_dispatches(stem.with_suffix(".mlir"), parameters=[parameters], rounds=1)
    assert sum(cost.calls for cost in costs) >= 200
    assert sum(cost.fraction for cost in costs) == pytest.approx(1)
    assert {"conv", "attention"} <= {c.computed.problem.op for c in costs if c.computed.problem}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["hwcf", "im2col"])
def test_what_was_tuned_reaches_a_convolution_of_the_model(tmp_path, form):
    def build(module, x):
        w, bias = module.parameter("w", 64, 32, 3, 3), module.parameter("b", 64)
        lists = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        return module.op("convolution", (1, 64, 16, 16), x, w, bias, *lists)

    # The dispatch of the model, whose padding is an op of its own.
    problem = ops.parse("conv n=1 c=32 h=18 w=18 k=64 r=3 s=3 dtype=f32 layout=nchw")
    cpu = target_named("cpu")
    found = choices.space(problem, cpu)
    sizes = [name for name in found.parameters if name[-2] == "_"]
    config = next(c for c in (found.default, *found.seeds) if c[form] and any(map(c.get, sizes)))
    entries = choices.choose(problem, config, cpu).entries
    module = _module(tmp_path, build, (1, 32, 16, 16)).read_text()
    flags = (*cpu.flags, "--iree-opt-data-tiling=false", "--compile-to=executable-configurations")
    dump = run_compiler(module, flags, EMPTY.with_entries(entries).text).decode()
    assert missing(dump, entries) == []


@pytest.mark.slow
def test_a_real_export_of_iree_turbine(tmp_path):
    aot = pytest.importorskip("iree.turbine.aot", reason="needs iree-turbine, from PyPI")
    import torch

    layers = [torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers)
    aot.externalize_module_parameters(model)
    exported = aot.export(model, torch.zeros(3, 8))
    exported.save_mlir(tmp_path / "m.mlir")
    aot.save_module_parameters(tmp_path / "m.irpa", model)
    _compare(tmp_path / "m.mlir", parameters=(f"model={tmp_path / 'm.irpa'}",))
