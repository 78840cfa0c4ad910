"""Coverage: every op × dtype × backend that the hardware has is ok, or says why not.

    python benchmarks/gpu/coverage.py --fill PACK          where IREE's compiler is
    python benchmarks/gpu/coverage.py [--pack PACK] [--only TEXT ...] [-o results.json]

`--only` keeps the cases whose backend and problem, as text, hold one of the given words. IREE's
modules come from a pack, compiled elsewhere: without one its cases are not run.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark.core.dtype import DTYPES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import ProblemError
from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Result, Status
from kernelmark.core.timing import Timing
from kernelmark.gpu import pack
from kernelmark.ops import registry as ops
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_coverage.json"
BACKENDS = ("torch", "triton", "cublaslt", "rtc", "iree")
REASON_CHARACTERS = 160
FINE = (Status.OK, Status.UNSUPPORTED)
SHAPES: dict[str, list[dict[str, object]]] = {
    "gemm": [
        {"m": 512, "n": 512, "k": 512, "tb": "t"},
        {"m": 512, "n": 512, "k": 512},
        {"m": 384, "n": 256, "k": 512, "ta": "t"},
        {"m": 100, "n": 72, "k": 200, "tb": "t"},
        {"m": 256, "n": 256, "k": 256, "tb": "t", "bias": True},
        {"m": 256, "n": 256, "k": 256, "tb": "t", "beta": 2.0},
    ],
    "batched_gemm": [
        {"batch": 8, "m": 128, "n": 128, "k": 128, "tb": "t"},
        {"batch": 3, "m": 65, "n": 96, "k": 80},
    ],
    "batched_gemm_quant": [
        {"batch": 8, "m": 128, "n": 128, "k": 256, "scheme": "a8w8", "bias": True},
        {"batch": 3, "m": 5, "n": 72, "k": 4000, "scheme": "a8w8", "c_order": "mbn"},
        {"batch": 4, "m": 64, "n": 192, "k": 512, "scheme": "a8w8_group", "bias": True},
        {"batch": 3, "m": 65, "n": 96, "k": 200, "scheme": "a8w8_group", "b": "i8"},
        {"batch": 2, "m": 16, "n": 64, "k": 256, "scheme": "a8w8_group", "b": "f8e4m3fnuz"},
        {"batch": 8, "m": 128, "n": 128, "k": 256, "scheme": "a16wfp4", "a_order": "mbk"},
        {"batch": 2, "m": 3, "n": 40, "k": 2080, "scheme": "a16wfp4"},
        {"batch": 8, "m": 128, "n": 128, "k": 256, "scheme": "afp4wfp4"},
        {"batch": 2, "m": 3, "n": 40, "k": 2080, "scheme": "afp4wfp4", "c_order": "mbn"},
    ],
    "attention": [
        {"batch": 2, "heads": 8, "seq": 512, "dim": 128},
        {"batch": 2, "heads": 8, "seq": 512, "dim": 128, "causal": True, "layout": "bshd"},
        {"batch": 2, "heads_q": 8, "heads_kv": 2, "seq": 384, "dim": 64, "causal": True},
        {"batch": 4, "heads_q": 8, "heads_kv": 2, "seq_q": 1, "seq_kv": 1024, "dim": 128},
        {"heads": 4, "seq_q": 100, "seq_kv": 612, "dim": 64, "causal": True},
    ],
    "conv": [
        {"n": 2, "c": 64, "h": 28, "w": 28, "k": 64, "r": 3, "s": 3, "pad": 1, "layout": "nhwc"},
        {"n": 2, "c": 64, "h": 28, "w": 28, "k": 64, "r": 3, "s": 3, "stride": 2},
        {"n": 2, "c": 32, "h": 20, "w": 20, "k": 64, "r": 1, "s": 1, "groups": 2},
        {"n": 2, "c": 64, "h": 28, "w": 28, "k": 128, "r": 1, "s": 1, "stride": 2},
        {"n": 2, "c": 64, "h": 28, "w": 28, "k": 128, "r": 1, "s": 1, "layout": "nhwc"},
    ],
    "copy": [{"n": 1}, {"n": 100_003}, {"n": 2**22}],
}
CONFIGS = {("torch", "attention"): [{"kernel": k} for k in ("flash", "cudnn", "efficient", "math")]}


def cases(only: list[str]) -> list[Case]:
    timing = Timing.preset("quick", max_s=0.02, warmup_s=0.01)
    made = []
    for op, shapes in SHAPES.items():
        for dtype in DTYPES:
            for shape in shapes:
                problem = legal(op, dtype, shape)
                if problem is None:
                    continue
                for backend in BACKENDS:
                    for config in CONFIGS.get((backend, op), [{}]):
                        made.append(
                            Case(problem=problem, backend=backend, timing=timing, config=config)
                        )
    texts = [f"{case.backend} {case.problem.key}" for case in made]
    return [
        case
        for case, text in zip(made, texts, strict=True)
        if not only or any(word in text for word in only)
    ]


def legal(op: str, dtype: str, shape: dict[str, object]) -> Problem | None:
    """The problem, or None where the op itself has no such dtype."""
    try:
        return ops.get(op).problem(dtype=dtype, **shape)  # type: ignore[arg-type]
    except ProblemError:
        return None


def fill(folder: Path, arch: str, only: list[str]) -> None:
    """Compile what IREE has of these problems for `arch` into a pack."""
    from kernelmark.backends.iree.pack import fill as fill_pack

    mine = [case.problem for case in cases(only) if case.backend == "iree"]
    for one in fill_pack(folder, mine, [arch]):
        print(f"{one.problem.key}: {one.reason or f'{one.nbytes} bytes'}", flush=True)


def answered(case: Case, info: DeviceInfo) -> bool:
    """Whether IREE can do this without its compiler: from a pack, or by refusing the problem."""
    from kernelmark.backends.iree import backend, choices
    from kernelmark.backends.iree.compiler import pack_key
    from kernelmark.backends.iree.targets import target

    goal = target(info)
    if goal is None or backend.refuses(case.problem, info):
        return True
    choice = choices.choose(case.problem, case.config, goal)
    key = pack_key(choices.source(case.problem, choice), choice.flags)
    return pack.find(key, goal.pack) is not None


def without_unpacked(
    made: list[Case], folder: Path | None, info: DeviceInfo
) -> tuple[list[Case], str]:
    """The cases to run, and which of IREE's are not run and why."""
    mine = [case for case in made if case.backend == "iree"]
    kept = [case for case in mine if folder is not None and answered(case, info)]
    left = len(mine) - len(kept)
    why = "no pack was given" if folder is None else "the pack does not hold them"
    told = f"{left} of {len(mine)} cases of iree are not run: {why}" if left else ""
    return [case for case in made if case.backend != "iree"] + kept, told


def run(made: list[Case]) -> list[Result]:
    start = time.perf_counter()
    results = []
    for event in LocalRunner(["cuda:0"], timeout_s=120).run(made):
        if isinstance(event, CaseFinished):
            results.append(event.result)
            if event.result.status not in FINE:
                print(describe(event.result), flush=True)
            if len(results) % 50 == 0:
                print(f"{len(results)} cases, {time.perf_counter() - start:.0f} s", flush=True)
    return results


def rows_of(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for each backend, op, dtypes and status, with the reasons that were given."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        problem = result.case.problem
        dtypes = " ".join(f"{name}={dtype}" for name, dtype in problem.dtypes.items())
        key = (result.case.backend, problem.op, dtypes, str(result.status))
        groups.setdefault(key, []).append(result)
    return [
        {
            **dict(zip(("backend", "op", "dtypes", "status"), key, strict=True)),
            "count": len(some),
            "reasons": sorted({shortened(r.error) for r in some if r.error}),
        }
        for key, some in sorted(groups.items())
    ]


def shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS else f"{line[: REASON_CHARACTERS - 1]}…"


def bars_of(results: Sequence[Result]) -> list[tuple[str, str, bool]]:
    wrong = sum(r.status is Status.WRONG for r in results)
    bad = [r for r in results if r.status not in FINE]
    silent = [r for r in results if r.status is Status.UNSUPPORTED and not r.error]
    return [
        ("zero wrong", f"{wrong} of {len(results)}", not wrong),
        (
            "every other case ok, or with a reason",
            f"{len(bad)} failed, {len(silent)} silent",
            not bad and not silent,
        ),
    ]


def describe(result: Result) -> str:
    return (
        f"{result.status} {result.case.backend} {dict(result.case.config)} "
        f"{result.case.problem.key}: {result.error[:200]}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT")
    parser.add_argument("--fill", type=Path, metavar="PACK", help="compile IREE's pack and stop")
    parser.add_argument("--arch", default="sm_90", help="what --fill compiles for")
    parser.add_argument("--pack", type=Path, help="run the cases of iree that this pack holds")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.fill:
        fill(given.fill, given.arch, given.only)
        return
    if given.pack:
        from iree_gpu import find_driver, use

        use(given.pack)  # first: where there is no compiler, it makes the GPU usable
        info = gpu_info()
        find_driver()
    else:
        info = gpu_info()
    made, left_out = without_unpacked(cases(given.only), given.pack, info)
    results = run(made)
    bars = bars_of(results)
    evidence.write(
        given.output,
        title="Coverage: op × dtype × backend",
        bars=bars,
        figures={
            "rows": rows_of(results),
            "left_out": left_out,
            "failed": [describe(r) for r in results if r.status not in FINE],
        },
        device=info,
        libraries=evidence.libraries(
            "torch", "triton", "cublaslt", *(["iree"] if given.pack else [])
        ),
    )
    table = Counter((r.case.backend, r.case.problem.op, str(r.status)) for r in results)
    for key, count in sorted(table.items()):
        print(*key, count)
    print("\n".join(filter(None, [left_out, evidence.bars_text(bars)])))


if __name__ == "__main__":
    main()
