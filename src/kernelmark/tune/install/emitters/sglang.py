"""sglang: winners in SGLang's configs of block-scaled fp8 GEMMs."""

from __future__ import annotations

from kernelmark.core.formats import FormatFacts
from kernelmark.tune.install.emitters._nearest import BlockFp8Emitter


class Sglang(BlockFp8Emitter):
    name = "sglang"
    summary = "SGLang's JSON configs of block-fp8 GEMMs, a file for each (N, K) and GPU"
    style = "sglang"
    facts = FormatFacts(
        versions="SGLang cce0a124 (2026-08)",
        exactness="a new entry serves the m nearest to it; lookups without a gain are unchanged",
        checked="SGLang's own lookup executed on its files and on what is written, without a "
        "difference (17,658 lookups in 981 files with vLLM's, 1,665 after writing)",
    )


emitter = Sglang()
