"""The loop of an AMD kernel that multiplies, read from its assembly text, and what is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kernelmark.core.problem import Problem
from kernelmark.core.result import ConfigValue
from kernelmark_dev.plain_gemm import plain_plan

_LEAST_STEPS = 4
_MATRIX = ("v_mfma", "v_smfmac", "v_wmma", "v_swmmac")
_LOAD = re.compile(r"(?:global|buffer|flat)_load_(?:lds_)?(?:tr\d*_)?(?:d16_)?([a-z]+)(\d*)")
_LABEL = re.compile(r"(\.L\w+):")
_BRANCH = re.compile(r"s_c?branch\w*\s+(\.L\w+)")
# Bytes per lane: dword is 4 bytes, b64 is 64 bits; gfx9 and gfx11 name the same loads differently.
_NARROW = {"ubyte": 1, "sbyte": 1, "ushort": 2, "sshort": 2, "short": 2}


@dataclass(frozen=True, slots=True)
class Loop:
    """Instructions of a loop by mnemonic, each as often as in the text."""

    counts: Counter[str]

    @property
    def matrix(self) -> int:
        return self._starting(*_MATRIX)

    @property
    def share(self) -> float:
        """The fraction of instructions that are matrix instructions."""
        return self.matrix / max(1, self.counts.total())

    @property
    def loads(self) -> dict[int, int]:
        """Loads from memory, by bytes per lane."""
        sizes: Counter[int] = Counter()
        for name, count in self.counts.items():
            if match := _LOAD.match(name):
                sizes[_load_bytes(*match.groups())] += count
        return dict(sizes)

    @property
    def buffer_loads(self) -> int:
        return self._starting("buffer_load")

    @property
    def scratch(self) -> int:
        return self._starting("scratch_")

    @property
    def pingpong(self) -> bool:
        """Whether half of the waves load while the others multiply. On gfx942 multiplying waves
        have priority; on gfx950 only barriers between the halves separate them."""
        return self.counts["s_setprio"] > 0 or self.counts["s_barrier"] >= 3

    def summary(self) -> dict[str, object]:
        return {
            "instructions": self.counts.total(),
            "matrix": self.matrix,
            "loads": {f"{nbytes} B": count for nbytes, count in sorted(self.loads.items())},
            "buffer_loads": self.buffer_loads,
            "lds_byte_reads": self.counts["ds_read_u8"],
        }

    def _starting(self, *prefixes: str) -> int:
        return sum(count for name, count in self.counts.items() if name.startswith(prefixes))


def faults(loop: Loop, problem: Problem, config: Mapping[str, ConfigValue], arch: str) -> list[str]:
    """Return what is wrong with the loop of a problem's main kernel, compiled with a config, next
    to a plain GEMM with the same tile."""
    wrong = []
    if loop.scratch:
        wrong.append(f"{loop.scratch} accesses to scratch memory")
    if not loop.matrix or not loop.loads:
        return wrong  # RDNA has no matrix instruction for some dtypes; a short sum has no loop
    if not loop.buffer_loads:
        wrong.append("no buffer load")
    if not is_aligned(problem):
        return wrong
    narrow = sum(count for nbytes, count in loop.loads.items() if nbytes < 4)
    if narrow:
        wrong.append(f"{narrow} loads of 1 or 2 bytes")
    if problem.op not in ("gemm", "batched_gemm"):
        return wrong
    (call,) = plain_plan(problem, config).calls
    plain = matrix_loop(call.assembly(arch))
    if plain.loads and min(loop.loads) < min(plain.loads):
        wrong.append(f"loads of {min(loop.loads)} bytes, {min(plain.loads)} in a plain GEMM")
    # The pipeline peels steps off the loop, and LLVM may unroll what is left of a short one: it may
    # never run as a loop.
    steps = problem.dims["k"] // (int(config["split_k"]) * int(config["block_k"]))
    if steps >= _LEAST_STEPS and loop.share < plain.share:
        wrong.append(f"{loop.share:.1%} matrix instructions, {plain.share:.1%} in a plain GEMM")
    return wrong


def is_aligned(problem: Problem) -> bool:
    """Return whether Triton can know that every row of the operands begins at a multiple of 16
    elements, which is what it needs to load 16 bytes at a time."""
    d, options = problem.dims, problem.options
    rows: tuple[int, ...]
    if problem.op in ("gemm", "batched_gemm"):
        rows = (
            d["m"] if options["ta"] == "t" else d["k"],
            d["k"] if options["tb"] == "t" else d["n"],
        )
    elif problem.op == "conv":
        # Channels of NCHW are gathered one by one.
        rows = (d["c"] // d["groups"] if options["layout"] == "nhwc" else 1,)
    elif problem.op == "attention":
        rows = d["dim_qk"], d["dim_v"]
    elif problem.op == "moe":
        rows = d["n"], d["k"]
    else:
        rows = (d["k"] // 32 if problem.dtypes["b"] == "f4e2m1" else d["k"],)  # rows of scales
    return all(row % 16 == 0 for row in rows)


def _load_bytes(kind: str, size: str) -> int:
    if kind in _NARROW:
        return _NARROW[kind]
    if kind in ("dword", "dwordx"):
        return 4 * int(size or 1)
    return int(size) // 8  # b128, u16, i8


def matrix_loop(assembly: str) -> Loop:
    """Return the loop with the most matrix instructions, the innermost of nested ones; without
    instructions if the kernel has none."""
    blocks, successors = _blocks(assembly)
    predecessors: list[set[int]] = [set() for _ in blocks]
    for at, targets in enumerate(successors):
        for target in targets:
            predecessors[target].add(at)
    best = Loop(Counter())
    for end, targets in enumerate(successors):
        for start in targets:
            body = _reached(end, predecessors, start) & _reached(start, successors, end)
            if not {start, end} <= body:
                continue  # a jump that leads to no second visit
            names = (name for at in body for name in blocks[at])
            loop = Loop(Counter(names))
            if (loop.matrix, -loop.counts.total()) > (best.matrix, -best.counts.total()):
                best = loop
    return best


def _blocks(assembly: str) -> tuple[list[list[str]], list[set[int]]]:
    """Return the instructions of each basic block, and the blocks that each may continue at."""
    blocks: list[list[str]] = [[]]
    labels: dict[str, int] = {}
    jumps: list[tuple[int, str]] = []
    falls: set[int] = set()
    for line in assembly.splitlines():
        text = line.split(";")[0].strip()
        if label := _LABEL.fullmatch(text):
            falls.add(len(blocks) - 1)
            labels[label[1]] = len(blocks)
            blocks.append([])
        elif text and text[0].isalpha() and not text.endswith(":"):
            blocks[-1].append(text.split()[0])
            if jump := _BRANCH.match(text):
                jumps.append((len(blocks) - 1, jump[1]))
            if jump or text.startswith("s_endpgm"):
                if text.startswith("s_cbranch"):
                    falls.add(len(blocks) - 1)
                blocks.append([])
    successors: list[set[int]] = [set() for _ in blocks]
    for at in falls:
        if at + 1 < len(blocks):
            successors[at].add(at + 1)
    for at, target in jumps:
        if target in labels:
            successors[at].add(labels[target])
    return blocks, successors


def _reached(start: int, edges: list[set[int]], stop: int) -> set[int]:
    """Return the blocks on paths from `start` that end at `stop` or before."""
    reached, left = {start}, [start]
    while left:
        at = left.pop()
        if at == stop:
            continue
        new = edges[at] - reached
        reached |= new
        left += new
    return reached
