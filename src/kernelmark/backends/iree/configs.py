"""The config that the compiler chose for each kernel: pipeline, tile sizes, matrix instruction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

DUMP_PREFIX = "configured_"
_FUNCTION = re.compile(r"func\.func @([\w.$-]+)\(\)(.*)")
_PIPELINE = re.compile(r"pipeline = #[\w.]+<(\w+)>")
_WORKGROUP = re.compile(r"workgroup_size = (\[[\d, ]+\])")
_MMA = re.compile(r"#iree_gpu\.(?:virtual_)?mma_layout<([^>]+)>")
_COMMA = re.compile(r", (?=\w+ = )")
_PROMOTION = re.compile(r"\b(?:promote_operands|promotion_types) = \[")


def dump_flag(folder: str | Path) -> str:
    """Return the flag that makes iree-compile write configured kernels into `folder`."""
    return f"--iree-hal-dump-executable-configurations-to={folder}"


def load_configs(folder: Path) -> dict[str, tuple[str, ...]]:
    """Parse the configs of all kernels that the compiler dumped into `folder`."""
    return {
        name: config
        for path in sorted(folder.glob(f"{DUMP_PREFIX}*.mlir"))
        for name, config in parse_configs(path.read_text(encoding="utf-8")).items()
    }


def parse_configs(text: str) -> dict[str, tuple[str, ...]]:
    """Parse the translation info and the lowering configs of each kernel in a dump."""
    found = list(_FUNCTION.finditer(text))
    configs = {}
    for at, match in enumerate(found):
        end = found[at + 1].start() if at + 1 < len(found) else len(text)
        body = text[match.start(2) : end]
        info = attributes_in(body, "#iree_codegen.translation_info")
        tiles = [
            one
            for dialect in ("iree_cpu", "iree_gpu", "iree_codegen")
            for one in attributes_in(body, f"#{dialect}.lowering_config")
        ]
        configs[match[1]] = tuple(dict.fromkeys([*info, *tiles]))
    return configs


def attributes_in(text: str, name: str) -> list[str]:
    """Return the text between the angle brackets of each attribute `name<…>`."""
    found = []
    for match in re.finditer(re.escape(name) + "<", text):
        depth, at = 1, match.end()
        while depth and at < len(text):
            # The > of -> is not a closing bracket.
            depth += {"<": 1, ">": -(text[at - 1] != "-")}.get(text[at], 0)
            at += 1
        found.append(text[match.end() : at - 1])
    return found


def config_text(config: Sequence[str]) -> str:
    """Return pipeline, workgroup and tile sizes on one line; empty if the compiler chose none."""
    return ", ".join(config_parts(config))


def config_parts(config: Sequence[str]) -> tuple[str, ...]:
    """Return the pipeline with its workgroup, then each list of tile sizes."""
    pipeline = _PIPELINE.search(config[0]) if config else None
    size = _WORKGROUP.search(config[0]) if config else None
    head = " ".join(found[1] for found in (pipeline, size) if found)
    # A kernel may have several lowering configs. Only that of the op with a reduction is shown:
    # elementwise ops fused with it follow its tiles.
    tiles = [
        part
        for one in sorted(config[1:], key=lambda one: "reduction" in one)[-1:]
        for part in _COMMA.split(_MMA.sub(r"\1", _without_promotion(one)).strip("{}"))
    ]
    return tuple(filter(None, [head, *tiles]))


def _without_promotion(config: str) -> str:
    """Remove the attributes for promoting operands, which are longer than the tile sizes."""
    while found := _PROMOTION.search(config):
        depth, at = 1, found.end()
        while depth and at < len(config):
            depth += {"[": 1, "]": -1}.get(config[at], 0)
            at += 1
        config = config[: found.start()] + config[at:].removeprefix(", ")
    return config
