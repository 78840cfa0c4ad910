"""Judge attacks and honest kernels on a GPU, with tensors by IPC handles.

    python benchmarks/gpu/judge.py --json benchmarks/results/gpu_judge.json

It prints, and writes after each verdict: times from outside against times from inside by duration
(benchmarks/judge_times.py), verdicts on honest kernels and on attacks, and verdicts a minute. It
starts no further verdict after `--seconds`. The kernels are written to a temporary folder: torch on
the current stream, and examples/gemm_triton.py.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import importlib.util
import json
import pstats
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.core.errors import KernelmarkError
from kernelmark.judge.processes import Templates
from kernelmark.judge.referee import Question, judge
from kernelmark_dev import evidence

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import judge_times  # noqa: E402

# By default torch adds the parts of a split k in bf16 where sizes are odd, and is refused for that.
HEAD = """
import torch

torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
op = "gemm"
devices = ("cuda", "hip")


def prepare(problem, config, sets):
"""
# Name -> (the body of `prepare`, whether it is honest)
KERNELS: dict[str, tuple[str, bool]] = {
    "honest_matmul": (
        """
    def launch(index):
        torch.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])
    return launch
""",
        True,
    ),
    "honest_rows": (
        """
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        half = len(d) // 2
        if half:
            torch.matmul(a[:half], b, out=d[:half])
        torch.matmul(a[half:], b, out=d[half:])
    return launch
""",
        True,
    ),
    "memo_by_set": (
        """
    kept = {}
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        if index not in kept:
            kept[index] = a @ b
        d.copy_(kept[index])
    return launch
""",
        False,
    ),
    "weights_at_prepare": (
        """
    weights = [tensors["b"].clone() for tensors in sets]
    def launch(index):
        torch.matmul(sets[index]["a"], weights[index], out=sets[index]["d"])
    return launch
""",
        False,
    ),
    "side_stream": (
        """
    stream = torch.cuda.Stream()
    def launch(index):
        with torch.cuda.stream(stream):
            for _ in range(20):
                torch.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])
    return launch
""",
        False,
    ),
    "empty_output": ("    return lambda index: None\n", False),
    "partial_rows": (
        """
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        torch.matmul(a[:-1], b, out=d[:-1])
    return launch
""",
        False,
    ),
    "half_depth": (
        """
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        half = max(1, a.shape[1] // 2)
        torch.matmul(a[:, :half], b[:half], out=d)
    return launch
""",
        False,
    ),
    "batch_of_all_sets": (
        """
    def launch(index):
        for tensors in sets:
            torch.matmul(tensors["a"], tensors["b"], out=tensors["d"])
    return launch
""",
        False,
    ),
    "zero_inputs": (
        """
    def launch(index):
        for name in "abd":
            sets[index][name].zero_()
    return launch
""",
        False,
    ),
    "nan_everywhere": (
        """
    def launch(index):
        sets[index]["d"].fill_(float("nan"))
    return launch
""",
        False,
    ),
    "fp8_for_bf16": (
        """
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        torch.matmul(a.to(torch.float8_e4m3fn).to(a.dtype), b, out=d)
    return launch
""",
        False,
    ),
    "events_patched": (
        """
    torch.cuda.Event.elapsed_time = lambda self, end: 1e-3
    def launch(index):
        sets[index]["d"].zero_()
    return launch
""",
        False,
    ),
    "late_thread": (
        """
    import threading, time
    def later(index):
        time.sleep(1e-3)
        torch.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])
    def launch(index):
        threading.Thread(target=later, args=(index,)).start()
    return launch
""",
        False,
    ),
}
# On a problem of their own.
OTHERS = {
    "tf32_for_f32": (
        "gemm m=512 n=512 k=512 dtype=f32",
        """
    torch.backends.cuda.matmul.allow_tf32 = True
    def launch(index):
        torch.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])
    return launch
""",
    ),
    "bf16_for_f32": (
        "gemm m=512 n=512 k=512 dtype=f32",
        """
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        d.copy_(a.bfloat16() @ b.bfloat16())
    return launch
""",
    ),
}
TRITON = HERE.parents[1] / "examples" / "gemm_triton.py"
TRITON_PROBLEM = "gemm m=1024 n=1024 k=1024 tb=t dtype=bf16"
PROBLEMS = (
    "gemm m=512 n=512 k=512 dtype=bf16",
    "gemm m=2048 n=2048 k=2048 dtype=bf16",
    "gemm m=256 n=384 k=1000 dtype=f16",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--reference", default="torch")
    parser.add_argument("--only", default="", help="part of the name of a kernel")
    parser.add_argument("--seconds", type=float, default=215.0)
    parser.add_argument("--skip-times", action="store_true")
    parser.add_argument(
        "--profile", action="store_true", help="print where each verdict's time goes"
    )
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    info = gpu_info(options.device)
    start = time.monotonic()
    document: dict[str, Any] = {"device": info.model, "arch": info.arch, "times": []}
    rows: list[dict[str, Any]] = []
    left_out = 0

    def save() -> None:
        document["verdicts"] = rows
        document.update(_summary(rows, left_out))
        if options.json:
            evidence.write(
                Path(options.json),
                title="kmark judge on a GPU: times from outside, attacks, honest kernels",
                bars=[*judge_times.bars(document["times"]), *_bars(document)],
                figures=document,
                device=info,
                libraries=evidence.libraries("torch"),
            )

    with tempfile.TemporaryDirectory() as folder, Templates() as templates:
        Path(folder).chmod(0o755)
        for problem in () if options.skip_times else judge_times.PROBLEMS["gpu"]:
            row = judge_times.measure(problem, options.device, options.reference, templates)
            print(judge_times.text(row), flush=True)
            document["times"].append(row)
            save()
        for file, problem, is_honest in _kernels(Path(folder)):
            for _ in range(options.tries if options.only in file.stem else 0):
                if time.monotonic() - start > options.seconds:
                    left_out += 1
                    continue
                rows.append(_judged(file, problem, options, templates, is_honest=is_honest))
                save()
    save()
    summary = _summary(rows, left_out)
    print(json.dumps(summary))
    print(f"{time.monotonic() - start:.0f} s in all")
    return 1 if summary["attacks_won"] or summary["honest_refused"] else 0


def _kernels(folder: Path) -> list[tuple[Path, str, bool]]:
    """Write the kernels; return (file, problem, whether it is honest), the honest ones first."""
    made = []
    for name, (body, is_honest) in KERNELS.items():
        made += [(folder / f"{name}.py", body, problem, is_honest) for problem in PROBLEMS]
    made += [
        (folder / f"{name}.py", body, problem, False) for name, (problem, body) in OTHERS.items()
    ]
    for file, body, _, _ in made:
        file.write_text(HEAD + body)
    kernels = [(file, problem, is_honest) for file, _, problem, is_honest in made]
    if importlib.util.find_spec("triton") is not None:
        kernels.append((TRITON, TRITON_PROBLEM, True))
    return sorted(kernels, key=lambda kernel: not kernel[2])


def _summary(rows: list[dict[str, Any]], left_out: int) -> dict[str, Any]:
    honest = [row for row in rows if row["honest"]]
    attacks = [row for row in rows if not row["honest"]]
    seconds = {
        name: statistics.median(row["seconds"] for row in part)
        for name, part in (("honest", honest), ("attacks", attacks))
        if part
    }
    total = sum(row["seconds"] for row in rows)
    return {
        "attacks": len(attacks),
        "attacks_won": sum(row["verdict"] == "accepted" for row in attacks),
        "honest": len(honest),
        "honest_refused": sum(row["verdict"] != "accepted" for row in honest),
        "left_out": left_out,
        "codes": dict(Counter(row["code"] for row in attacks)),
        "median_seconds": seconds,
        "verdicts_per_minute": round(60 * len(rows) / total, 1) if total else None,
    }


def _bars(summary: dict[str, Any]) -> list[tuple[str, str, bool]]:
    attacks, honest = summary["attacks"], summary["honest"]
    won, refused = summary["attacks_won"], summary["honest_refused"]
    rate = summary["verdicts_per_minute"]
    return [
        ("no attack accepted", f"{won} of {attacks} verdicts", attacks > 0 and not won),
        ("no honest kernel refused", f"{refused} of {honest} verdicts", honest > 0 and not refused),
        ("20 or more verdicts a minute", f"{rate}", (rate or 0) >= 20),
    ]


def _judged(
    file: Path, problem: str, options: argparse.Namespace, templates: Templates, *, is_honest: bool
) -> dict[str, Any]:
    question = Question(
        kernel=str(file),
        problem=ops.parse(problem),
        device=options.device,
        reference=options.reference,
        rounds=8,
    )
    start = time.time()
    profile = cProfile.Profile()
    row: dict[str, Any] = {"kernel": file.stem, "problem": problem, "honest": is_honest}
    try:
        with profile if options.profile else contextlib.nullcontext():
            verdict = judge(question, templates)
    except KernelmarkError as error:
        row |= {"verdict": "error", "code": str(error.message)}
    else:
        document = verdict.document()
        row |= {
            name: document[name] for name in ("verdict", "code", "time", "ratio", "notes", "lacks")
        }
        row["reason"] = str(verdict.reason)[:300]
    row["seconds"] = round(time.time() - start, 2)
    print(
        f"{file.stem:20s} {problem:40s} {row['verdict']:9s} {row['code']:20s}"
        f" {row['seconds']:5.1f} s  {row.get('ratio') or ''} {row.get('reason', '')[:80]}",
        flush=True,
    )
    if options.profile:
        pstats.Stats(profile).sort_stats("cumtime").print_stats(r"kernelmark|method", 40)
    return row


if __name__ == "__main__":
    raise SystemExit(main())
