"""The configs in the compiler's dumps, and on one line."""

from __future__ import annotations

import pytest

from kernelmark.backends.iree.compiler import attributes_in, config_text, parse_configs

PIPELINE = "pipeline = #iree_gpu.pipeline<TileAndFuse> workgroup_size = [512, 1, 1]"
THREADS = "#iree_gpu.derived_thread_config"
CONVOLUTION = (
    "{mma_kind = #iree_gpu.mma_layout<MFMA_F32_16x16x16_F16>, promote_operands = [0, 1], "
    "reduction = [0, 0, 0, 0, 2], subgroup = [1, 2, 1, 4, 0], workgroup = [1, 4, 32, 128, 0]}"
)
SWIZZLED = (
    "{mma_kind = #iree_gpu.mma_layout<MFMA_F32_16x16x32_F16>, promote_operands = [0, 1], "
    "promotion_types = [#iree_gpu.swizzle_operand<copy_config = #iree_gpu.derived_thread_config, "
    "swizzle = #iree_codegen.xor_shuffle<64, 8>>, #iree_gpu.use_global_load_dma], "
    "reduction = [0, 0, 2], subgroup = [4, 4, 0], workgroup = [128, 128, 0]}"
)
ATTENTION = (
    f"{{promote_operands = [0, 1, 2], promotion_types = [{THREADS}, {THREADS}, {THREADS}], "
    "reduction = [0, 0, 0, 0, 128], workgroup = [1, 64, 64, 0, 0]}"
)


@pytest.mark.parametrize(
    ("tiles", "shown"),
    [
        (CONVOLUTION, ("MFMA_F32_16x16x16_F16", "[1, 4, 32, 128, 0]", "[0, 0, 0, 0, 2]")),
        (SWIZZLED, ("MFMA_F32_16x16x32_F16", "[128, 128, 0]", "[4, 4, 0]")),
        (ATTENTION, ("[1, 64, 64, 0, 0]", "[0, 0, 0, 0, 128]")),
    ],
)
def test_every_tile_size_of_a_gpu_is_shown(tiles, shown):
    text = config_text((PIPELINE, tiles))
    assert all(one in text for one in ("TileAndFuse", "[512, 1, 1]", *shown))


DUMP = """
func.func @k_matmul() attributes {translation_info = #iree_codegen.translation_info<pipeline =
#iree_gpu.pipeline<TileAndFuse> workgroup_size = [256, 1, 1]>} {
  %6 = linalg.fill {lowering_config = #iree_cpu.lowering_config<vector_common_parallel = [8]>}
  %7 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], lowering_config =
       #iree_gpu.lowering_config<{mma_kind = #iree_gpu.mma_layout<MFMA>, reduction = [0, 4]}>}
}
func.func @k_copy() {
}
"""


def test_the_configs_of_kernels():
    configs = parse_configs(DUMP)
    assert list(configs) == ["k_matmul", "k_copy"]
    info, *tiles = configs["k_matmul"]
    assert info.endswith("workgroup_size = [256, 1, 1]")
    assert set(tiles) == {
        "vector_common_parallel = [8]",
        "{mma_kind = #iree_gpu.mma_layout<MFMA>, reduction = [0, 4]}",
    }
    assert configs["k_copy"] == ()
    assert config_text(configs["k_copy"]) == ""


def test_an_arrow_closes_no_attribute():
    assert attributes_in("#x.y<a -> b<c>, d> #x.y<>", "#x.y") == ["a -> b<c>, d", ""]
