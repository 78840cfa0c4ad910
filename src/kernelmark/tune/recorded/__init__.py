"""Formats of other tuners' choices, for `kmark audit`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.tune.recorded.base import ChoiceFormat
from kernelmark.workloads.source import opened


@cache
def formats() -> dict[str, ChoiceFormat]:
    """Return all formats by name."""
    from kernelmark.tune.recorded import libraries, serving, triton_autotune

    every: tuple[ChoiceFormat, ...] = (
        *(triton_autotune.TritonCache(), triton_autotune.TritonLog()),
        *(libraries.InductorChoices(), libraries.TunableOpChoices(), libraries.AiterTables()),
        *(serving.NearestChoices("vllm", "vLLM"), serving.NearestChoices("sglang", "SGLang")),
        *(serving.AiterConfigs(), serving.FlashInferChoices(), serving.HelionLog()),
    )
    return {each.name: each for each in sorted(every, key=lambda each: each.name)}


def format_of(path: Path, name: str = "") -> ChoiceFormat:
    """Return the format of this name, or the one that recognises the file."""
    known = formats()
    if name and name not in known:
        raise UsageError(
            f"there is no format {name!r} of choices", hint=f"known: {', '.join(known)}"
        )
    with opened(str(path)) as source:
        head = source.head
    if not head:
        raise UsageError(f"{path}: the file is empty", hint="leave it out, or tune again")
    if name:
        return known[name]
    plain = path.name.removesuffix(".gz")
    for each in known.values():
        if each.recognizes(plain, head):
            return each
    raise UsageError(
        f"{path} is in no format of choices that can be read",
        hint=f"--as FORMAT reads it as one of: {', '.join(known)}",
    )
