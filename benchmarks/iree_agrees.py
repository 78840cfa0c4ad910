"""The end-to-end times of `kmark iree ab` against iree-benchmark-module itself.

    taskset -c 1 python benchmarks/iree_agrees.py [--rounds 10] [--state FILE]

Each module is compiled once; both are called in turns, one thread, in an order that changes each
round. kernelmark runs the same program, but with shorter repetitions and with the statistics of
dispatches, which must not cost time. Differences are of medians over rounds, in wall time and in
CPU time; on a machine that is not quiet only CPU time, or the fastest round, can agree to 2 %.
The paired ratio of CPU times has the interval over rounds that `kmark iree ab` gives. With a state
file, the same command goes on with the next module where it was interrupted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from kernelmark.backends.iree.compiler import ToolRound, parse_round, run_tool
from kernelmark.iree.modules import (
    ModuleCall,
    Variant,
    build_variant,
    lower_module,
    make_inputs,
    resolve_target,
)
from kernelmark.iree.signature import read_signature
from kernelmark.stats.paired import paired_verdict
from kernelmark_dev import evidence

EXAMPLES = Path(__file__).parents[1] / "examples" / "iree"
RESULT = Path(__file__).resolve().parent / "results" / "iree_agrees.json"
LIMIT = 0.02
_TIMEOUT_S = 300.0


def modules(folder: Path) -> list[Path]:
    """Write the modules: matmuls of three sizes with three elementwise ops, and two examples."""
    paths = []
    for size in (64, 128, 256):
        kind = f"tensor<{size}x{size}xf32>"
        for name, function in (("plain", ""), ("tanh", "tanh"), ("exp", "exp")):
            last = (
                f"%y = math.{function} %c : {kind}"
                if function
                else f"%y = arith.addf %c, %c : {kind}"
            )
            path = folder / f"matmul_{size}_{name}.mlir"
            path.write_text(f"""
func.func @main(%a: {kind}, %b: {kind}) -> {kind} {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : {kind}
  %start = linalg.fill ins(%zero : f32) outs(%empty : {kind}) -> {kind}
  %c = linalg.matmul ins(%a, %b : {kind}, {kind}) outs(%start : {kind}) -> {kind}
  {last}
  return %y : {kind}
}}
""")
            paths.append(path)
    return [*paths, EXAMPLES / "external_matmul.mlir", EXAMPLES / "unet_like.mlir"]


def compared(module: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Return the relative differences of a module's times."""
    target = resolve_target("cpu")
    built = build_variant(module, Variant(name=module.stem), target, folder)
    function, signature = read_signature(built.binary, "", lambda: lower_module(module, ()))
    call = ModuleCall(
        function=function,
        inputs=make_inputs(signature, ()),
        target=target,
        folder=folder / module.stem,
        timeout_s=_TIMEOUT_S,
        threads=1,
    )
    call.folder.mkdir(exist_ok=True)

    def alone() -> ToolRound:
        command = call.command("iree-benchmark-module", built.binary)
        options = ["--benchmark_format=json", "--benchmark_repetitions=3"]
        return parse_round(run_tool([*command, *options], _TIMEOUT_S))

    sides: dict[str, list[ToolRound]] = {"kmark": [], "tool": []}
    for number in range(rounds):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            run = alone if name == "tool" else lambda: call.times(built.binary)
            sides[name].append(run())
    wall, cpu = (
        {
            name: [statistics.median(getattr(item, field)) for item in found]
            for name, found in sides.items()
        }
        for field in ("samples_s", "cpu_s")
    )
    paired = paired_verdict(cpu["tool"], cpu["kmark"])
    return {
        "module": module.stem,
        "paired": paired.ratio,
        "paired_low": paired.low,
        "paired_high": paired.high,
        "tool_s": statistics.median(wall["tool"]),
        **{
            name: choose(times["kmark"]) / choose(times["tool"]) - 1
            for name, times, choose in (
                ("wall", wall, statistics.median),
                ("fastest", wall, min),
                ("cpu", cpu, statistics.median),
            )
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--state", type=Path, help="append modules here, and go on from them")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    given = parser.parse_args()
    known = evidence.load_state(given.state)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for module in modules(Path(temporary)):
            key = f"{module.stem} {given.rounds}"
            if key not in known:
                known[key] = {"key": key, **compared(module, Path(temporary), given.rounds)}
                evidence.append_state(given.state, known[key])
            rows.append(row := known[key])
            shown = "  ".join(f"{name} {row[name]:+7.2%}" for name in ("wall", "fastest", "cpu"))
            interval = f"{row['paired']:.4f} ({row['paired_low']:.4f} to {row['paired_high']:.4f})"
            print(
                f"{row['module']:20} {row['tool_s'] * 1e3:9.4f} ms  {shown}  paired {interval}",
                flush=True,
            )
    counts = {
        name: sum(abs(row[name]) <= LIMIT for row in rows) for name in ("wall", "fastest", "cpu")
    }
    counts["paired CPU"] = sum(abs(row["paired"] - 1) <= LIMIT for row in rows)
    bars = [
        (f"within {LIMIT:.0%} in {name} time", f"{count} of {len(rows)}", count == len(rows))
        for name, count in counts.items()
    ]
    return evidence.conclude(
        given.output,
        title="kmark iree ab against iree-benchmark-module",
        bars=bars,
        figures={"rows": rows},
        libraries=evidence.libraries("iree"),
    )


if __name__ == "__main__":
    raise SystemExit(main())
