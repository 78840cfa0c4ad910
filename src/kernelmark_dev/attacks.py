"""The corpus of `attacks/`: attacks on a judge of kernels, and honest kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark import backends, ops
from kernelmark.judge.referee import Question
from kernelmark.judge.verdict import Verdict

FOLDER = Path(__file__).resolve().parents[2] / "attacks"
PROBLEM = "gemm m=64 n=64 k=64 dtype=f32"
LAYERNORM = "layernorm rows=8 cols=64 dtype=f32"
# A kernel that is measured at less than this fraction of its work has deceived the clock. Work that
# is repeated finds its inputs in the cache: four GEMMs of 128³ take 2.7 to 3.3 times as long.
DECEIVED, REPEATED = 0.6, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A file of the corpus. `work` is how often it does its work, 0 if it should be refused;
    `needs` is the defence without which docs/judge.md promises nothing."""

    path: Path
    problem: str
    reference: str
    work: int = 0
    forbids_libraries: bool = False
    needs: str = ""

    @property
    def name(self) -> str:
        return self.path.stem

    def question(self, **changes: object) -> Question:
        """Return what a judge is asked about it."""
        if backends.is_file(self.reference):
            backends.find(self.reference)  # it defines the op
        settings: dict[str, object] = {
            "threads": 1,
            "rounds": 6,
            "limit_s": 3.0,
            "reference": self.reference,
            "forbid_libraries": self.forbids_libraries,
        }
        return Question(
            kernel=str(self.path),
            problem=ops.parse(self.problem),
            **(settings | changes),  # type: ignore[arg-type]
        )

    def is_defended(self, lacks: Sequence[str]) -> bool:
        """Return whether a host that lacks this has the defence against it."""
        return not self.needs or not any(self.needs in sentence for sentence in lacks)

    def won(self, verdict: Verdict) -> bool:
        """Return whether the judge was deceived."""
        if not verdict.accepted:
            return False
        least = DECEIVED * (1 + REPEATED * (self.work - 1))
        return not self.work or verdict.ratio is None or verdict.ratio < least


def attacks() -> list[Attack]:
    """Return all attacks, by name."""
    return [_attack(path) for path in sorted(FOLDER.glob("*.py"))]


def honest(problems: Iterator[str] | None = None) -> list[Attack]:
    """Return honest kernels, each on all problems that it is for."""
    problems_of = list(problems or _PROBLEMS)
    kernels = []
    for path in sorted((FOLDER / "honest").glob("*.py")):
        if "layernorm" in path.read_text():
            for rows, cols in ((1, 8), (8, 64), (33, 70), (128, 512)):
                problem = f"layernorm rows={rows} cols={cols} dtype=f32"
                kernels.append(_attack(path, problem))
            continue
        kernels += [_attack(path, problem) for problem in problems_of]
    return kernels


_SIZES = (
    *("m=16 n=16 k=16", "m=64 n=64 k=64", "m=128 n=96 k=32", "m=33 n=65 k=70", "m=1 n=256 k=256"),
    *("m=256 n=1 k=128", "m=112 n=112 k=112", "m=16 n=300 k=5", "m=80 n=8 k=1024"),
)
_PROBLEMS = tuple(f"gemm {size} dtype={kind}" for size in _SIZES for kind in ("f32", "f64"))


def _attack(path: Path, problem: str = "") -> Attack:
    text = path.read_text()
    is_layernorm = "problems/layernorm.py" in text
    declared = re.search(r'^problem = "(.*)"$', text, re.MULTILINE)
    needs = re.search(r'^needs = "(.*)"$', text, re.MULTILINE)
    work = re.search(r"^work = (\d+)$", text, re.MULTILINE)
    default = LAYERNORM if is_layernorm else PROBLEM
    return Attack(
        path=path,
        problem=problem or (declared[1] if declared else default),
        reference=str(FOLDER / "problems" / "layernorm.py") if is_layernorm else "numpy",
        work=int(work[1]) if work else 0,
        needs=needs[1] if needs else "",
        forbids_libraries="forbids_libraries = True" in text,
    )
