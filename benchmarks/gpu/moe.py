"""The Triton mixture of experts: right everywhere, against torch, and tuned into vLLM's configs.

    python benchmarks/gpu/moe.py --folder F [--minutes 1] [-o results.json]

First the whole output of small problems, with the default and with random configs, against float64.
Then problems of models, cold and verified, by our Triton kernel's default and torch's grouped GEMM,
beside a plain torch loop over experts, called eagerly: it waits for the number of rows of each, so
that no graph can hold it. Then one layer is tuned for several m, and winners are written to
F/configs as vLLM reads them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _gpu import gpu_info

from kernelmark import backends, ops
from kernelmark.backends.torch import expert_by_expert, run_experts
from kernelmark.core.dtype import TORCH_NAMES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Config, Status
from kernelmark.core.timing import Timing
from kernelmark.devices import registry
from kernelmark.devices.base import GUARD_BYTES, Device, Tensor
from kernelmark.numerics.floats import decode, storage
from kernelmark.numerics.generate import Inputs
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark.tune import progress as e
from kernelmark.tune.driver import Driver
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.emitters import nearest as configs
from kernelmark.tune.install.emitters import registry as emitters
from kernelmark.tune.plans import Acceptance, Budget, TunePlan
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_moe.json"
SMALL = (
    "m=1 n=64 k=128 e=8 top_k=2",
    "m=2 n=40 k=72 e=64 top_k=8",
    "m=7 n=33 k=65 e=5 top_k=5",
    "m=16 n=128 k=256 e=128 top_k=8",
    "m=33 n=96 k=80 e=8 top_k=2",
    "m=64 n=256 k=512 e=8 top_k=2",
    "m=65 n=48 k=200 e=16 top_k=4",
    "m=100 n=192 k=384 e=256 top_k=8",
    "m=129 n=64 k=64 e=1 top_k=1",
    "m=200 n=72 k=96 e=3 top_k=1",
    "m=300 n=128 k=128 e=6 top_k=3",
    "m=777 n=32 k=64 e=12 top_k=2",
)
DTYPES = ("f16", "bf16")
RANDOM_CONFIGS = 2
MODELS = {
    "Mixtral 8x7B, 2 ranks": "n=7168 k=4096 e=8 top_k=2",
    "Qwen3-30B-A3B": "n=768 k=2048 e=128 top_k=8",
    "DeepSeek-V3, 8 ranks": "n=256 k=7168 e=256 top_k=8",
}
TOKENS = (1, 64, 1024)
TUNED = "n=192 k=4096 e=128 top_k=8"  # Qwen3-235B-A22B, 8 ranks
DEVICE_NAME = "NVIDIA_H200"
_EAGER = 20  # timed calls of the plain loop


def worst_error(problem: Problem, config: Config, device: Device, backend: str) -> float:
    """The largest error of a whole output in units of what is allowed; infinity for a NaN, and if
    bytes around the output changed."""
    op = ops.registry.get(problem.op)
    specs = op.tensors(problem)
    tensors = {}
    for spec in specs:
        buffer = device.allocate(spec.nbytes + 2 * GUARD_BYTES)
        tensors[spec.name] = Tensor(spec=spec, buffer=buffer, offset=GUARD_BYTES)
    out = tensors[specs[-1].name]
    for spec in specs[:-1]:
        device.generate(tensors[spec.name], 1, 0)
    device.poison(out, 0xFF)
    kernel = backends.registry.get(backend).prepare(problem, config, device, [tensors])
    try:
        kernel.launch(device.stream, 0)
        device.synchronize()
        kernel.collect(0)
        raw = device.read(out.buffer, out.offset, out.spec.nbytes)
        intact = device.guards_intact(out)
    finally:
        kernel.close()
        for tensor in tensors.values():
            device.free(tensor.buffer)
    got = decode(raw.view(storage(out.spec.dtype)), out.spec.dtype)
    right = op.reference(problem, Inputs(specs, 1, 0), np.arange(out.spec.count))
    allowed = op.tolerance(problem)
    limit = allowed.per_magnitude * right.magnitude + allowed.per_value * np.abs(right.value)
    ratio = np.abs(got - right.value) / (limit + allowed.absolute)
    return float(np.nan_to_num(ratio, nan=np.inf).max()) if intact else math.inf


def small_cases(info: DeviceInfo, backend: str) -> list[tuple[Problem, Config]]:
    """Every small problem in both dtypes with its default and some random configs."""
    problems = [ops.parse(f"moe {shape} dtype={kind}") for shape in SMALL for kind in DTYPES]
    return [(p, config) for p in problems for config in chosen(p, info, backend)]


def compile_ahead(cases: Sequence[tuple[Problem, Config]], info: DeviceInfo) -> None:
    """Fill Triton's cache on disk, on all cores. What fails here fails again where it is told."""
    jobs = [(problem, config, info) for problem, config in cases]
    with concurrent.futures.ProcessPoolExecutor() as pool:
        list(pool.map(_compile, jobs))


def _compile(job: tuple[Problem, Config, DeviceInfo]) -> None:
    with contextlib.suppress(CaseError):
        backends.registry.get("triton").compile(*job)


def check(
    cases: Sequence[tuple[Problem, Config]], device: Device, backend: str = "triton"
) -> list[dict[str, Any]]:
    """The worst error of each, or why there is none."""
    found = []
    for problem, config in cases:
        row: dict[str, Any] = {"problem": problem.key, "config": dict(config)}
        try:
            row["worst"] = worst_error(problem, config, device, backend)
        except CaseError as error:
            row["error"] = error.message
        found.append(row)
        if not row.get("worst", 2.0) <= 1.0:
            print(row, flush=True)
    return found


def chosen(problem: Problem, info: DeviceInfo, backend: str) -> list[Config]:
    """The default, which is {}, and random configs that the space allows."""
    space, rng = backends.registry.get(backend).space(problem, info), random.Random(problem.key)
    made: list[Config] = [FrozenDict()]
    while space is not None and len(made) <= RANDOM_CONFIGS:
        config = FrozenDict({name: rng.choice(v) for name, v in space.parameters.items()})
        if space.forbids(config) is None:
            made.append(config)
    return made


def plain_loop_s(problem: Problem) -> float:
    """Median seconds of a torch loop over experts, eagerly, on random inputs."""
    import torch

    d, kind = problem.dims, getattr(torch, TORCH_NAMES[problem.dtypes["x"]])

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=kind).mul_(shape[-1] ** -0.5)

    chosen_ids = torch.rand(d["m"], d["e"], device="cuda").argsort(dim=1)[:, : d["top_k"]]
    held: Mapping[str, Any] = {
        "x": drawn(d["m"], d["k"]),
        "w1": drawn(d["e"], 2 * d["n"], d["k"]),
        "w2": drawn(d["e"], d["k"], d["n"]),
        "weights": torch.rand(d["m"], d["top_k"], device="cuda"),
        "ids": chosen_ids.to(torch.int32),
    }
    times: list[float] = []
    with torch.no_grad():
        for number in range(_EAGER + 3):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run_experts(held, expert_by_expert)
            end.record()
            end.synchronize()
            if number >= 3:
                times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def timed() -> list[dict[str, Any]]:
    """Problems of models: µs by each way."""
    shapes = {
        f"moe m={m} {shape} dtype=bf16": name for name, shape in MODELS.items() for m in TOKENS
    }
    problems = {key: ops.parse(key) for key in shapes}
    timing = Timing.preset("quick")
    cases = [
        Case(problem=problem, backend=backend, timing=timing)
        for problem in problems.values()
        for backend in ("triton", "torch")
    ]
    runner = LocalRunner(["cuda:0"], timeout_s=120)
    done = [event.result for event in runner.run(cases) if isinstance(event, CaseFinished)]
    rows = []
    for key, name in shapes.items():
        row: dict[str, Any] = {"model": name, "problem": key}
        for result in done:
            if result.case.problem == problems[key]:
                backend = result.case.backend
                row[f"{backend} status"] = str(result.status)
                if result.measurement and result.status is Status.OK:
                    row[backend] = result.measurement.median_s * 1e6
                else:
                    row[f"{backend} error"] = result.error[:300]
        row["plain loop"] = plain_loop_s(problems[key]) * 1e6
        rows.append(row)
        print(row, flush=True)
    return rows


def tune(folder: Path, minutes: float, evaluations: int) -> dict[str, Any]:
    """One layer for several m, against our default; winners into a file for vLLM."""
    plans = [
        TunePlan(
            name=f"MOE_{m}",
            problem=ops.parse(f"moe m={m} {TUNED} dtype=bf16"),
            backend="triton",
            reference_backend="triton",
            budget=Budget(evaluations=evaluations),
            acceptance=Acceptance(finalists=2, seeds=1, neighbours=1),
        )
        for m in TOKENS
    ]

    def tell(event: e.Event) -> None:
        if isinstance(event, e.Ended):
            print(f"{event.outcome.name}: {event.outcome.reason}", flush=True)
        elif isinstance(event, e.Retired | e.Began):
            print(event, flush=True)

    runner = LocalRunner(["cuda:0"], timeout_s=20, compile_timeout_s=60)
    driver = Driver(plans, runner, folder / "trials", minutes=minutes, on_event=tell)
    driver.run()
    target = folder / "configs"
    target.mkdir(exist_ok=True)
    outcomes = list(driver.outcomes.values())
    given = FrozenDict({"device_name": DEVICE_NAME})
    # Alone, those that did not gain have no entry to keep: vLLM's default would serve them.
    kept = [outcome for outcome in outcomes if outcome.kept]
    change = applying.prepare(emitters.get("vllm_moe"), kept, target, given)
    if change.edits:
        applying.write(emitters.get("vllm_moe"), change, target, backup=False)
    files = {file.name: file.read_text() for file in sorted(target.glob("*.json"))}
    return {
        "outcomes": [
            {
                "problem": outcome.problem.key,
                "ratio": outcome.ratio,
                "kept": outcome.kept,
                "reason": outcome.reason,
                "evaluations": outcome.evaluations,
                "config": dict(outcome.tuned.config),
            }
            for outcome in outcomes
        ],
        "unfinished": sorted({plan.name for plan in plans} - driver.outcomes.keys()),
        "held": [f"{one.name}: {one.reason}" for one in change.skipped],
        "found": {name: _found(name, text) for name, text in files.items()},
        "findings": [str(one) for one in configs.lint(target).findings],
        "files": files,
    }


def _found(name: str, text: str) -> dict[str, Any]:
    """What vLLM finds for each m, by the nearest."""
    shape = configs.parse_name(name)
    assert shape is not None
    return {str(m): configs.lookup(text, name, shape, "vllm", m) for m in TOKENS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=1.0, help="of the search")
    parser.add_argument("--evaluations", type=int, default=40, help="of each problem")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    info = gpu_info()
    given.folder.mkdir(parents=True, exist_ok=True)
    cases = small_cases(info, "triton")
    compile_ahead(cases, info)
    device = registry.get("cuda").open(0)
    checked = check(cases, device)
    device.close()
    rows = timed()
    tuned = tune(given.folder, given.minutes, given.evaluations)
    wrong = [row for row in checked if not row.get("worst", 2.0) <= 1.0]
    worst = max((row.get("worst", 0.0) for row in checked), default=0.0)
    bad = [row["problem"] for row in rows if row["triton status"] != "ok"]
    ratios = {
        other: statistics.geometric_mean(
            [row[other] / row["triton"] for row in rows if row.get(other) and row.get("triton")]
            or [0.01]
        )
        for other in ("torch", "plain loop")
    }
    kept = [one["ratio"] for one in tuned["outcomes"] if one["kept"]]
    bars = [
        (
            f"whole outputs of {len(checked)} small problems and configs within tolerance",
            f"{len(wrong)} are not; the worst error is {worst:.2f} of what is allowed",
            not wrong,
        ),
        ("problems of models are right", f"{len(bad)} of {len(rows)} are not", not bad),
        (
            "Triton default ≥ 1.5 × a plain torch loop over experts, geomean",
            f"{ratios['plain loop']:.2f}; {ratios['torch']:.2f} × torch's grouped GEMM",
            ratios["plain loop"] >= 1.5,
        ),
        (
            "winners are found in the file that vLLM would read",
            f"{len(kept)} winners of {len(TOKENS)} m: {', '.join(f'{r:.2f} ×' for r in kept)}",
            bool(kept) and bool(tuned["files"]) and not tuned["findings"] and not tuned["held"],
        ),
    ]
    evidence.write(
        given.output,
        title="Triton mixture of experts against torch, tuned for vLLM",
        bars=bars,
        figures={"checked": checked, "rows": rows, "geomeans": ratios, "tuned": tuned},
        device=info,
        libraries=evidence.libraries("torch", "triton"),
    )
    print(evidence.bars_text(bars))


if __name__ == "__main__":
    main()
