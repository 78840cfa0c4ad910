"""Rules on the configs of the Triton GEMM: which can be built, and which are duplicates."""

from __future__ import annotations

from kernelmark.backends.triton.launch import ceil_div, has_wide_unit, level, shared_bytes
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config
from kernelmark.gpu.rtc import vendor_of

GROUPS = (1, 4, 8, 16)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
# From this many tiles on, split-K only adds traffic: several per SM/CU of any GPU.
_TILES_ENOUGH = 1024
_MOST_ACCUMULATORS = 128  # registers per thread
NO_SLICES, PERSISTENT_SPLIT = Reason("no-slices"), Reason("persistent-split")
PERSISTENT_SWAP = Reason("persistent-swap")
_DESCRIPTORS_ALIGNMENT = Reason("descriptors-alignment")


def sizes(problem: Problem) -> tuple[int, int, int, int]:
    """Return (batch, m, n, k)."""
    dims = problem.dims
    return dims.get("batch", 1), dims["m"], dims["n"], dims["k"]


def in_halves(problem: Problem) -> bool:
    """Return whether the persistent kernel stores a tile in two steps."""
    return dtype(problem.dtypes["c"]).bits == 32


def waiting_bytes(problem: Problem, info: DeviceInfo, block_m: int, block_n: int) -> int:
    """Return the shared memory of the persistent kernel's output tile, in addition to the staged
    tiles. Without wide matrix units the staged tiles are no longer in use at that time."""
    if not has_wide_unit(info):
        return 0
    nbytes = block_m * block_n * dtype(problem.dtypes["c"]).bits // 8
    return nbytes // 2 if in_halves(problem) else nbytes


def least_depth(wide: int) -> int:
    """Return the smallest block_k that fills the matrix unit with operands of `wide` bits."""
    return 64 if wide == 8 else 32


def least_group(m: int, block_m: int, group: int) -> int:
    """Return the smallest group that visits the tiles in the same order as `group`."""
    rows = ceil_div(m, block_m)
    return next((g for g in GROUPS if g >= min(rows, group)), group)


def slices(k: int, split: int, block_k: int) -> tuple[int, int]:
    """Return the actual number of slices of k, each of whole blocks, and the length of a slice."""
    per_part = ceil_div(ceil_div(k, split), block_k) * block_k
    return ceil_div(k, per_part), per_part


def least_split(k: int, split: int, block_k: int) -> int:
    """Return the smallest split that gives the same slices as `split`."""
    wanted = slices(k, split, block_k)
    return next((s for s in SPLITS if slices(k, s, block_k) == wanted), split)


def splits_in_vain(problem: Problem, block_m: int, block_n: int) -> bool:
    """Return whether there are enough tiles without splitting k."""
    batch, m, n, _ = sizes(problem)
    return batch * ceil_div(m, block_m) * ceil_div(n, block_n) >= _TILES_ENOUGH


def swap_pays(problem: Problem, info: DeviceInfo) -> bool:
    """Return whether swapped operands may be faster: A has fewer than the 64 rows that wide matrix
    units need, and B's columns fill them. With fewer rows, such GPUs use the older instructions."""
    if not has_wide_unit(info):
        return False
    _, m, n, _ = sizes(problem)
    kind = dtype(problem.dtypes["a"])
    # With any other layout Triton 3.6 to 3.9 load without pipelining.
    innermost = problem.options["ta"] == "n" and problem.options["tb"] == "t"
    return m < 64 <= n and innermost and kind.kind == "float" and kind.bits <= 16


def descriptors_fit(problem: Problem, info: DeviceInfo, config: Config) -> bool:
    """Return whether tensor descriptors can address every operand."""
    if level(info) < 90:
        return False
    batch, m, n, k = sizes(problem)
    ta, tb = problem.options["ta"] == "t", problem.options["tb"] == "t"
    rows = {"a": m if ta else k, "b": k if tb else n, "c": n}
    if any(rows[x] * dtype(problem.dtypes[x]).bits % 128 for x in rows):
        return False
    if dtype(problem.dtypes["a"]).bits == 8 and (ta or not tb):
        return False  # the matrix unit takes 8-bit operands only with k innermost
    if problem.dtypes["a"] == "f32":
        return False
    if batch == 1:
        return True
    blocks = (int(config["block_m"]), int(config["block_n"]), int(config["block_k"]))
    return all(size % block == 0 for size, block in zip((m, n, k), blocks, strict=True))


class Rules:
    """Decides why a config is not a distinct kernel for a problem. `forbids` is called for every
    point of a space, so what is common to all points is computed once."""

    def __init__(self, problem: Problem, info: DeviceInfo) -> None:
        self._problem = problem
        self._info = info
        self._wide = dtype(problem.dtypes["a"]).bits
        self._cuda = vendor_of(info.arch) == "cuda"
        self._shared = shared_bytes(info)
        self._swap_pays = swap_pays(problem, info)
        _, self._m, _, self._k = sizes(problem)
        self._same: dict[tuple[int, int, int, int], bool] = {}

    def forbids(self, config: Config) -> str | None:
        block_m, block_n = int(config["block_m"]), int(config["block_n"])
        block_k, split = int(config["block_k"]), int(config["split_k"])
        staged = (block_m + block_n) * block_k * self._wide // 8 * int(config["num_stages"])
        if config.get("persistent"):
            staged += waiting_bytes(self._problem, self._info, block_m, block_n)
        if staged > self._shared:
            return f"{staged} bytes of staged tiles exceed {self._shared} of shared memory"
        if split == 1:
            if config.get("fused_sum"):
                return NO_SLICES
        elif config.get("persistent"):
            return PERSISTENT_SPLIT
        elif splits_in_vain(self._problem, block_m, block_n):
            return "there are tiles enough without splitting k"
        if self._repeats(block_m, int(config["group_m"]), block_k, split):
            return "a smaller group_m or split_k makes the same kernel"
        warps = int(config["num_warps"])
        if block_m * block_n > 256 * 128:
            return "the accumulator tile does not fit into registers"
        if self._cuda and block_m * block_n > _MOST_ACCUMULATORS * 32 * warps:
            return "the accumulator tile does not fit into the registers of so few warps"
        if block_m * block_n < 32 * 32 and warps > 4:
            return "more warps than the tile has work for"
        if block_k < least_depth(self._wide):
            return "8-bit operands want a deeper block"
        if config.get("swap") and not (self._swap_pays and block_m < 64 <= block_n):
            return "swapped operands want few rows, at least 64 columns and k innermost"
        if config.get("persistent"):
            if config.get("swap"):
                return PERSISTENT_SWAP
            if not descriptors_fit(self._problem, self._info, config):
                return _DESCRIPTORS_ALIGNMENT
        return None

    def _repeats(self, block_m: int, group: int, block_k: int, split: int) -> bool:
        key = block_m, group, block_k, split
        if key not in self._same:
            plain = least_group(self._m, block_m, group), least_split(self._k, split, block_k)
            self._same[key] = plain != (group, split)
        return self._same[key]
