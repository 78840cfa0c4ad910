"""Judge attacks and honest kernels on a GPU, with tensors by IPC handles.

    python benchmarks/gpu/judge.py --tries 5 --json benchmarks/results/gpu_judge.json

The kernels are written to a temporary folder: torch on the current stream, and CUDA or HIP sources.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.core.errors import KernelmarkError
from kernelmark.judge.referee import Question, judge

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
    parser.add_argument("--only", default="")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    info = gpu_info(options.device)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name, (body, is_honest) in KERNELS.items():
            if options.only not in name:
                continue
            file = Path(folder) / f"{name}.py"
            file.write_text(HEAD + body)
            for problem in PROBLEMS:
                rows += [
                    _judged(file, problem, options, is_honest=is_honest)
                    for _ in range(options.tries)
                ]
    won = sum(not row["honest"] and row["verdict"] == "accepted" for row in rows)
    refused = sum(row["honest"] and row["verdict"] != "accepted" for row in rows)
    print(f"{len(rows)} verdicts: {won} attacks accepted, {refused} honest kernels refused")
    if options.json:
        document = {
            "device": info.model,
            "arch": info.arch,
            "attacks_won": won,
            "honest_refused": refused,
            "verdicts": rows,
        }
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if won or refused else 0


def _judged(
    file: Path, problem: str, options: argparse.Namespace, *, is_honest: bool
) -> dict[str, Any]:
    question = Question(
        kernel=str(file),
        problem=ops.parse(problem),
        device=options.device,
        reference=options.reference,
        rounds=8,
    )
    start = time.time()
    row: dict[str, Any] = {"kernel": file.stem, "problem": problem, "honest": is_honest}
    try:
        verdict = judge(question)
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
    return row


if __name__ == "__main__":
    raise SystemExit(main())
