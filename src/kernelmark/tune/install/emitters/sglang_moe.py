"""sglang_moe: winners in SGLang's configs of fused mixtures of experts."""

from __future__ import annotations

from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import Reason
from kernelmark.tune.install import nearest_config as configs
from kernelmark.tune.install.emitters._nearest import MoeEmitter
from kernelmark.tune.install.emitters.base import text_at


class SglangMoe(MoeEmitter):
    name = "sglang_moe"
    summary = "SGLang's JSON configs of fused MoE, in configs/triton_X_Y_Z (also: sglang-moe)"
    style = "sglang"
    facts = FormatFacts(
        versions="SGLang cce0a124 (2026-08)",
        exactness="as vllm_moe; a file that exists only for another Triton version is copied "
        "first; _down files are unchanged",
        checked="SGLang's own lookup executed before and after writing 535 synthetic winners "
        "into files of 179 names, with and without one of its own Triton version: 3,546 lookups "
        "without a difference",
    )

    def _fallback_text(self, file: Path, shape: configs.Shape) -> str | None:
        """Return the text of the newest other Triton version's file, which SGLang uses if `file` is
        missing."""
        if not configs.VERSION.match(file.parent.name):
            raise UsageError(
                Reason("not-a-folder", path=file.parent.name, of="SGLang's configs"),
                hint="give that of its Triton version, as configs/triton_3_6_0",
            )
        other = configs.find_file(file.parent.parent, shape, self.style)
        return None if other is None else text_at(other)


emitter = SglangMoe()
