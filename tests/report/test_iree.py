"""Tables on IREE modules."""

from __future__ import annotations

import numpy as np
import pytest

from kernelmark.core.result import Block, Status
from kernelmark.iree.ab import Report, Times, VariantOutcome, VariantPlan, measure_divergence
from kernelmark.iree.modules import BuiltModule, ModuleDispatch, Variant, resolve_target
from kernelmark.report.iree import document, tables
from kernelmark.report.tables import text
from kernelmark.stats.paired import paired_verdict

TILES = (
    "pipeline = #iree_gpu.pipeline<TileAndFuse> workgroup_size = [512, 1, 1]",
    "{mma_kind = #iree_gpu.mma_layout<MFMA_F32_16x16x16_F16>, promote_operands = [0, 1], "
    "reduction = [0, 0, 0, 0, 2], subgroup = [1, 2, 1, 4, 0], workgroup = [1, 4, 32, 128, 0]}",
)
RESOURCES = {
    "registers": 128,
    "accumulation_registers": 0,
    "scalar_registers": 28,
    "spilled_registers": 0,
    "spilled_scalar_registers": 0,
    "stack_bytes": 0,
    "shared_bytes": 26112,
}


@pytest.mark.parametrize(
    ("asked", "named"),
    [("sm_80", {"sm_80"}), ("sm_90", {"sm_89", "sm_90"}), ("gfx942", {"gfx942"})],
)
def test_the_title_names_what_was_asked_for_and_what_it_is_compiled_for(tmp_path, asked, named):
    module = tmp_path / "m.mlir"
    module.write_text("")
    goal = resolve_target(asked)
    report = Report(
        plan=VariantPlan(module=module, variants=(Variant(name="base"),), target=asked, run=False),
        target=goal.name,
        driver=goal.driver,
        function="",
        module_sha256="",
        outcomes=(),
        not_run="compiled only",
    )
    words = tables(report)[0].title.replace(")", "").split()
    assert {word for word in words if word.startswith(("sm_", "gfx"))} == named


def test_there_is_no_table_of_times_if_no_variant_ran(tmp_path):
    module = tmp_path / "m.mlir"
    module.write_text("")
    variant = Variant(name="base")
    report = Report(
        plan=VariantPlan(module=module, variants=(variant,)),
        target="llvm-cpu",
        driver="local-task",
        function="",
        module_sha256="",
        outcomes=(VariantOutcome(variant=variant, status=Status.COMPILE_ERROR, error="no"),),
    )
    assert len(tables(report)) == 1


def test_tables_fit_into_a_terminal(tmp_path):
    module = tmp_path / "sdxl_conv.mlir"
    module.write_text("")
    values = np.linspace(-1, 1, 64)
    found = measure_divergence(values + 1, values.reshape(64), "f16", None)
    block = Block(process=0, allocation=0, samples_s=(0.0123456,))
    times = Times(
        blocks=(block,),
        median_s=0.0123,
        low_s=0.0121,
        high_s=0.0125,
        mean_s=0.0124,
        stddev_s=0.00124,
        cv=0.1,
        cpu_s=0.0456,
    )
    verdict = paired_verdict(
        [0.012 + i / 1e5 for i in range(8)], [0.01 + i / 1e5 for i in range(8)]
    )
    dispatch = ModuleDispatch(
        name="forward_dispatch_0_conv_2x32x32x64x3x3x64_f16xf16xf32",
        config=TILES,
        resources=RESOURCES,
    )
    outcome = VariantOutcome(
        variant=Variant(name="im2col"),
        status=Status.OK,
        built=BuiltModule(
            variant=Variant(name="im2col"),
            binary=module,
            sha256="",
            compile_s=1.0,
            dispatches=(dispatch,) * 30,
            sources={},
        ),
        end_to_end=times,
        kernels=times,
        against_first=(found,),
        against_reference=(found,),
        end_to_end_verdict=verdict,
        kernels_verdict=verdict,
    )
    report = Report(
        plan=VariantPlan(module=module, variants=(outcome.variant,)),
        target="rocm gfx942",
        driver="hip",
        function="forward",
        module_sha256="",
        outcomes=(outcome,),
    )
    shown = "".join(map(text, tables(report)))
    assert max(map(len, shown.splitlines())) <= 120
    assert shown.count(dispatch.name) == 2 * 20  # a whole model has hundreds; JSON has them all
    assert len(document(report)["variants"][0]["dispatches"]) == 30
    assert all(part in shown for part in ("MFMA_F32_16x16x16_F16", "[1, 4, 32, 128, 0]", "26112"))
