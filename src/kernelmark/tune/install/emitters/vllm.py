"""vllm: winners in vLLM's configs of block-scaled fp8 GEMMs."""

from __future__ import annotations

from kernelmark.core.formats import FormatFacts
from kernelmark.tune.install.emitters._nearest import BlockFp8Emitter


class Vllm(BlockFp8Emitter):
    name = "vllm"
    summary = "vLLM's JSON configs of block-fp8 GEMMs, a file for each (N, K) and GPU"
    style = "vllm"
    facts = FormatFacts(
        versions="vLLM a014e35f (2026-08)",
        exactness="a new entry serves the m nearest to it; lookups without a gain are unchanged",
        checked="vLLM's own lookup executed on its files and on what is written, without a "
        "difference (17,658 lookups in 981 files with SGLang's, 1,665 after writing)",
    )


emitter = Vllm()
