"""`kmark audit` on a GPU: a vLLM file of fused MoE and a Triton cache, with planted slow rows.

    python benchmarks/gpu/audit.py [-d cuda:0] [--rounds 10] [--again] [-o results.json]

The MoE file has an entry per M. Good entries are vLLM's own default, which a tuner that gains
nothing writes; two planted ones have tiles that are far too small or too large for their M. The
caches of an autotuner are timed here once per config, in one process, as Triton does: one of them
gets the slowest of its configs as the recorded choice. Both are audited with kernelmark's Triton
kernels. With --again the written MoE file is audited too: no row may be slower than the default.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.api.tuner_audit import audit, contests, read_file, stable_text
from kernelmark.backends.triton import backend as triton
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Case, Config
from kernelmark.core.timing import Timing
from kernelmark.report.tables import printed
from kernelmark.report.tuner_audit import audit_table, summary, to_json
from kernelmark.runners.ab import ROUND, Rule
from kernelmark.runners.jobs import MeasureCase
from kernelmark.runners.local import LocalRunner
from kernelmark.stats.paired import Looks
from kernelmark.tune.install.emitters.nearest import default_settings, parse_name
from kernelmark.tune.recorded.audited import AuditPlan, AuditReport, RowVerdict
from kernelmark.tune.recorded.base import AuditFacts
from kernelmark.tune.strategies.base import Points
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_audit.json"
MOE_FILE = "E=128,N=192,device_name=NVIDIA_H200.json"
MOE_VALUES = FrozenDict({"k": "4096", "top_k": "8", "dtype": "bf16"})
TOKENS = (1, 64, 1024, 4096)
PLANTED_MOE = {
    64: {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32},
    4096: {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "num_warps": 4},
}
GEMMS = ((64, 6144, 4096), (512, 4096, 7168), (2048, 5120, 5120))
PLANTED_GEMM = 1
CONFIGS = 4
FLAGGED = (RowVerdict.SLOWER, RowVerdict.BEATEN, RowVerdict.FAILED)


def moe_file(folder: Path) -> Path:
    """Write the MoE file."""
    shape = parse_name(MOE_FILE)
    assert shape is not None
    entries = {str(m): default_settings(shape, "vllm", m) | PLANTED_MOE.get(m, {}) for m in TOKENS}
    path = folder / MOE_FILE
    path.write_text(json.dumps(entries, indent=4))
    return path


def caches(folder: Path, info: DeviceInfo) -> list[Path]:
    """Write an autotuner's cache of each GEMM."""
    paths = []
    with LocalRunner([info.name]).pool() as pool:
        for i, (m, n, k) in enumerate(GEMMS):
            problem = ops.parse(f"gemm m={m} n={n} k={k} dtype=bf16 tb=t")
            space = triton.space(problem, info)
            assert space is not None
            points = Points.of(space, limit=4096)
            drawn = random.Random(i).sample(range(len(points)), CONFIGS - 1)
            configs: list[Config] = [space.default, *map(points.config, drawn)]
            timed = []
            for config in configs:
                case = Case(problem=problem, backend="triton", config=config, timing=ROUND)
                result = pool.call(MeasureCase(case=case))
                ok = result.measurement is not None
                timed.append((config, result.measurement.median_s * 1e3 if ok else float("inf")))
            if i == PLANTED_GEMM:
                slowest = max((ms for _, ms in timed if ms != float("inf")))
                timed = [(c, 1e-3 if ms == slowest else ms) for c, ms in timed]
            pairs = [[{"kwargs": dict(config)}, [ms, ms, ms]] for config, ms in timed]
            path = folder / f"gemm{i}.autotune.json"
            key = [m, n, k, "torch.bfloat16", "torch.bfloat16", "torch.bfloat16"]
            path.write_text(json.dumps({"key": key, "configs_timings": pairs}))
            paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("-d", "--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    info = gpu_info(options.device)
    rule = Rule(looks=Looks(rounds=(options.rounds,)))
    timing: Timing = ROUND
    moe_plan = AuditPlan(
        device=info.name,
        facts=AuditFacts(values=MOE_VALUES),
        alternatives=1,
        rule=rule,
        timing=timing,
        jobs=8,
    )
    gemm_plan = AuditPlan(
        device=info.name,
        facts=AuditFacts(kernel="triton", key="gemm m,n,k,a,b,c tb=t"),
        alternatives=CONFIGS,
        rule=rule,
        timing=timing,
        jobs=8,
    )
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kmark-") as temporary:
        folder = Path(temporary)
        moe, seconds = audited([moe_file(folder)], moe_plan)
        figures["moe"] = {"seconds": seconds, **json.loads(to_json(moe))}
        written = stable_text(read_file(folder / MOE_FILE, moe_plan), moe)
        figures["moe_file"] = json.loads(written)
        still: list[str] = []
        if options.again:
            (folder / "again").mkdir()
            (folder / "again" / MOE_FILE).write_text(written)
            kept, seconds = audited([folder / "again" / MOE_FILE], moe_plan)
            figures["moe_again"] = {"seconds": seconds, **json.loads(to_json(kept))}
            still = [row.row.where for row in kept.rows if row.verdict is RowVerdict.SLOWER]
        gemm, seconds = audited(caches(folder, info), gemm_plan)
        figures["gemm"] = {"seconds": seconds, **json.loads(to_json(gemm))}
    slow_moe = {int(row.row.where) for row in moe.rows if row.verdict in FLAGGED}
    slow_default = {int(r.row.where) for r in moe.rows if r.verdict is RowVerdict.SLOWER}
    planted = gemm.rows[PLANTED_GEMM].verdict
    bars = [
        (
            "planted MoE rows slower than vLLM's default, and no other row",
            f"planted {sorted(PLANTED_MOE)}, slower than default {sorted(slow_default)}, "
            f"slower or beaten {sorted(slow_moe)}",
            slow_default == {*PLANTED_MOE},
        ),
        ("the planted cache is called slow", planted.value, planted in FLAGGED),
    ]
    if options.again:
        asked = "rows slower than default in the written file: none"
        bars.append((asked, str(still or "none"), not still))
    evidence.write(
        options.output,
        title="Planted rows of a vLLM MoE file and of Triton caches, audited",
        bars=bars,
        figures=figures,
        device=info,
        libraries=evidence.libraries("triton", "torch"),
    )
    print(evidence.bars_text(bars))


def audited(paths: list[Path], plan: AuditPlan) -> tuple[AuditReport, float]:
    """Audit the files, and print the table."""
    begun = time.monotonic()
    files = [read_file(path, plan) for path in paths]
    planned = {str(file.path): contests(file.rows, plan) for file in files}
    report = audit(files, plan, contested=planned)
    seconds = round(time.monotonic() - begun, 1)
    print(printed(audit_table(report)))
    print(f"{summary(report)}; {seconds} s", flush=True)
    return report, seconds


if __name__ == "__main__":
    main()
