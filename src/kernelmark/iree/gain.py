"""What a tuning spec gains in modules, and what its flags gain without it."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.backends.iree.targets import Target
from kernelmark.iree.modules import ModuleCall, Variant, build_variant, lower_module, make_inputs
from kernelmark.iree.signature import read_signature

_ROUNDS = 4
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecGain:
    """Geometric means over modules: the time of iree-compile's defaults divided by that with the
    flags only, and by that with flags and spec."""

    flags: float
    spec: float


def measure_gain(
    modules: Sequence[str], spec: Path, flags: Sequence[str], target: Target
) -> SpecGain:
    """Measure the modules in interleaved rounds: with iree-compile's defaults, with `flags`, and
    with `flags` and `spec`. On a single core, measure CPU time, as the tuning does."""
    variants = (
        Variant(name="none"),
        Variant(name="flags", flags=tuple(flags)),
        Variant(name="spec", flags=tuple(flags), specs=(spec.absolute(),)),
    )
    ratios: dict[str, list[float]] = {"flags": [], "spec": []}
    with tempfile.TemporaryDirectory(prefix="kmark-iree-") as temporary:
        for number, text in enumerate(modules):
            module = Path(temporary, f"module{number}.mlir")
            module.write_text(text, encoding="utf-8")
            seconds = _times(module, variants, target)
            for name, of_module in ratios.items():
                of_module.append(seconds["none"] / seconds[name])
    return SpecGain(**{name: statistics.geometric_mean(each) for name, each in ratios.items()})


def _times(module: Path, variants: Sequence[Variant], target: Target) -> dict[str, float]:
    """Return the median seconds of each variant."""
    folder = module.with_suffix("")
    binaries = {v.name: build_variant(module, v, target, folder).binary for v in variants}
    function, signature = read_signature(
        binaries[variants[0].name], "", lambda: lower_module(module, ())
    )
    call = ModuleCall(
        function=function,
        inputs=make_inputs(signature, ()),
        target=target,
        folder=folder,
        timeout_s=_TIMEOUT_S,
    )
    alone = not target.gpu and len(os.sched_getaffinity(0)) == 1
    samples: dict[str, list[float]] = {name: [] for name in binaries}
    for number in range(_ROUNDS):
        for name in list(binaries)[:: -1 if number % 2 else 1]:
            timed = call.times(binaries[name])
            samples[name].append(statistics.median(timed.cpu_s if alone else timed.samples_s))
    return {name: statistics.median(each) for name, each in samples.items()}
