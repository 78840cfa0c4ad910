"""vllm_moe: winners in vLLM's configs of fused mixtures of experts."""

from __future__ import annotations

from kernelmark.core.formats import FormatFacts
from kernelmark.tune.install.emitters._nearest import MoeEmitter


class VllmMoe(MoeEmitter):
    name = "vllm_moe"
    summary = "vLLM's JSON configs of fused MoE, a file for each (E, N) and GPU (also: vllm-moe)"
    style = "vllm"
    facts = FormatFacts(
        versions="vLLM a014e35f (2026-08)",
        exactness="f16 and bf16, which share a file; a new entry serves the m nearest to it; "
        "lookups without a gain are unchanged",
        checked="vLLM's own lookup executed before and after writing 443 synthetic winners into "
        "its 143 files of f16 and bf16 and 26 new ones: 2,877 lookups without a difference",
    )


emitter = VllmMoe()
