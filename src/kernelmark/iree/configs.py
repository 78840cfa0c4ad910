"""The config of a dispatch on one line, for tables and stored runs."""

from __future__ import annotations

import re

from kernelmark.iree.modules import Dispatch

_MOST_CHARACTERS = 160
_PIPELINE = re.compile(r"pipeline = #[\w.]+<(\w+)>")
_WORKGROUP = re.compile(r"workgroup_size = (\[[\d, ]+\])")
_MMA = re.compile(r"#iree_gpu\.(?:virtual_)?mma_layout<([^>]+)>")
_PROMOTION = re.compile(r"\b(?:promote_operands|promotion_types) = \[")


def config_text(dispatch: Dispatch) -> str:
    """The pipeline and tile sizes of a dispatch; empty where the compiler chose none."""
    pipeline = _PIPELINE.search(dispatch.config[0]) if dispatch.config else None
    size = _WORKGROUP.search(dispatch.config[0]) if dispatch.config else None
    # The op with a reduction decides how its neighbours are tiled.
    tiles = [
        _MMA.sub(r"\1", _without_promotion(one))
        for one in sorted(dispatch.config[1:], key=lambda one: "reduction" in one)[-1:]
    ]
    words = [pipeline[1] if pipeline else "", size[1] if size else "", *tiles]
    text = " ".join(filter(None, words))
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def _without_promotion(config: str) -> str:
    """A lowering config without how operands are copied, which is longer than its tile sizes."""
    while found := _PROMOTION.search(config):
        depth, at = 1, found.end()
        while depth and at < len(config):
            depth += {"[": 1, "]": -1}.get(config[at], 0)
            at += 1
        config = config[: found.start()] + config[at:].removeprefix(", ")
    return config
