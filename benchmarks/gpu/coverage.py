"""Coverage: every op × dtype × backend that the hardware has is ok, or says why not.

python benchmarks/gpu/coverage.py [--only TEXT ...] [-o results.json]

`--only` keeps the cases whose backend and problem, as text, hold one of the given words.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from kernelmark.core.dtype import DTYPES
from kernelmark.core.errors import ProblemError
from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Result, Status
from kernelmark.core.timing import Timing
from kernelmark.devices import registry
from kernelmark.ops import registry as ops
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark.testing import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_coverage.json"
BACKENDS = ("torch", "triton", "cublaslt", "iree")
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
    ],
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    info = registry.get("cuda").infos()[0]
    runner = LocalRunner(["cuda:0"], timeout_s=120)
    start = time.perf_counter()
    results = []
    for event in runner.run(cases(given.only)):
        if isinstance(event, CaseFinished):
            results.append(event.result)
            if event.result.status not in (Status.OK, Status.UNSUPPORTED):
                print(describe(event.result), flush=True)
            if len(results) % 50 == 0:
                print(f"{len(results)} cases, {time.perf_counter() - start:.0f} s", flush=True)
    table = Counter((r.case.backend, r.case.problem.op, str(r.status)) for r in results)
    bad = [r for r in results if r.status not in (Status.OK, Status.UNSUPPORTED)]
    silent = [r for r in results if r.status is Status.UNSUPPORTED and not r.error]
    bars = [
        (
            "zero wrong",
            f"{sum(r.status is Status.WRONG for r in results)} of {len(results)}",
            not any(r.status is Status.WRONG for r in results),
        ),
        (
            "every other case ok, or with a reason",
            f"{len(bad)} failed, {len(silent)} silent",
            not bad and not silent,
        ),
    ]
    evidence.write(
        given.output,
        title="Coverage: op × dtype × backend",
        bars=bars,
        figures={
            "counts": [[*key, count] for key, count in sorted(table.items())],
            "reasons": sorted(
                {f"{r.case.backend}: {r.error}" for r in results if r.status is Status.UNSUPPORTED}
            ),
            "failed": [describe(r) for r in bad],
        },
        device=info,
    )
    for key, count in sorted(table.items()):
        print(*key, count)
    print(evidence.told(bars))


def describe(result: Result) -> str:
    return (
        f"{result.status} {result.case.backend} {dict(result.case.config)} "
        f"{result.case.problem.key}: {result.error[:200]}"
    )


if __name__ == "__main__":
    main()
