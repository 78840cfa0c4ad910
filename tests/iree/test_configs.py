"""The config of a dispatch on one line."""

from __future__ import annotations

import pytest

from kernelmark.iree.configs import config_text
from kernelmark.iree.modules import Dispatch

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
    text = config_text(Dispatch(name="d", config=(PIPELINE, tiles)))
    assert all(one in text for one in ("TileAndFuse", "[512, 1, 1]", *shown))
