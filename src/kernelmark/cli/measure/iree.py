"""`kmark iree`: compare variants of an IREE module; convert a model's dispatches to a workload."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import put_tables, say
from kernelmark.core.verdict import NOTHING, SOME_FAILED

Module = Annotated[
    Path, typer.Argument(metavar="MODULE", help="MLIR text or bytecode that iree-compile accepts.")
]
Target = Annotated[
    str,
    o.option(
        "--target TARGET",
        help="Compile for cpu, gfx942, gfx90a, gfx1100, sm_80, vulkan … Without such a device it "
        "only compiles.",
        common=True,
    ),
]
Function = Annotated[
    str, o.option("--function NAME", help="Call this function. Default: the only one.", common=True)
]
InputWords = Annotated[
    list[str] | None,
    o.option(
        "--input INPUT",
        help="Pass an argument: @FILE.npy, 2x34xf16 (random), 2x34xf16=1.5. Repeatable, once for "
        "each argument. Default: random.",
        common=True,
    ),
]
Parameters = Annotated[
    list[str] | None,
    o.option(
        "--parameters SCOPE=FILE",
        help="Load the parameters of a scope from a file (.irpa, .gguf, .safetensors); FILE alone "
        "for those without a scope. Repeatable.",
        common=True,
    ),
]
Allocator = Annotated[
    str,
    o.option(
        "--device-allocator SPEC", help="Allocate with this allocator of IREE, such as caching."
    ),
]
Timeout = Annotated[float, o.option("--timeout SECONDS", help="Limit the seconds of one process.")]


def ab(
    module: Module,
    variant: Annotated[
        list[str],
        o.option(
            "--variant NAME:WORDS",
            help="Add a variant: compiler flags, specs (.mlir) and kernel objects (.o, .hsaco). "
            "Repeatable; the first is the base.",
            common=True,
        ),
    ],
    candidates: Annotated[
        Path | None,
        o.option(
            "--candidates DIR",
            help="Add each spec (.mlir) of a folder, with the flags of the base, as a variant that "
            "may fail. Only the fastest are measured in full.",
        ),
    ] = None,
    finalists: Annotated[int, o.option("--finalists N", help="Measure N candidates in full.")] = 3,
    target: Target = "cpu",
    function: Function = "",
    inputs: InputWords = None,
    parameters: Parameters = None,
    device_allocator: Allocator = "",
    tolerance: Annotated[
        float | None,
        o.option(
            "--tolerance X",
            help="Allow this error relative to |reference| + rms(reference). Default: by dtype.",
        ),
    ] = None,
    reference: Annotated[
        bool,
        o.option(
            "--reference/--no-reference",
            help="Compare with the same module in float64, or in float32.",
        ),
    ] = True,
    compile_only: Annotated[
        bool, o.option("--compile-only", help="List dispatches and resources; run nothing.")
    ] = False,
    rounds: Annotated[
        int, o.option("--rounds N", help="Measure N interleaved rounds.", common=True)
    ] = 10,
    budget: Annotated[
        float, o.option("--budget SECONDS", help="Start no round after this time.", common=True)
    ] = 120.0,
    timeout: Timeout = 300.0,
    threads: o.Threads = None,
    keep: Annotated[
        Path | None,
        o.option(
            "--keep DIR", help="Keep binaries, dumps and outputs in this folder.", common=True
        ),
    ] = None,
    label: o.Label = "",
    store: o.StorePlace = None,
    no_store: o.NoStore = False,
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> int:
    """Compare variants of a module: time, numerics, resources.

    Times are end to end, and of the kernels alone. The exit code is 3 if a variant does
    not compile or run, exceeds the tolerance, or has a spec that changed nothing.

    For example: kmark iree ab conv.mlir --variant base: --variant im2col:spec.mlir
    """
    from kernelmark.core.files import json_text
    from kernelmark.iree.ab import VariantPlan, compare_variants
    from kernelmark.iree.modules import load_candidates, parse_variant
    from kernelmark.report.iree import document, tables

    outputs = o.Outputs(json=json)
    variants = tuple(map(parse_variant, variant))
    if candidates is not None:
        variants += load_candidates(candidates, variants[0])
    plan = VariantPlan(
        module=module,
        variants=variants,
        finalists=finalists,
        target=target,
        function=function,
        inputs=tuple(inputs or ()),
        parameters=tuple(parameters or ()),
        device_allocator=device_allocator,
        tolerance=tolerance,
        reference=reference,
        run=not compile_only,
        rounds=rounds,
        budget_s=budget,
        timeout_s=timeout,
        threads=threads or 0,
    )
    report = compare_variants(plan, folder=keep, on_step=None if quiet else say)
    if not no_store:
        from kernelmark.iree.ab import result_set
        from kernelmark.stores import open_store

        with open_store(store) as opened:
            added = opened.add_result_set(result_set(report, label))
            if not quiet:
                say(str(added))
    outputs.put(json=lambda: json_text(document(report)))
    if not outputs.stdout_taken:
        put_tables(tables(report))
    if not quiet and report.not_run:
        say(f"not run: {report.not_run}")
    if not quiet and report.no_reference:
        say(f"no float64 reference: {report.no_reference.splitlines()[0]}")
        if report.reference_error is not None:
            say(f"compared with {report.reference}, whose error is {report.reference_error:.2g}")
    for outcome in report.outcomes:
        if outcome.error:
            say(f"{outcome.variant.name}: {outcome.error.splitlines()[0]}")
        if outcome.specs_applied is False:
            say(f"{outcome.variant.name}: its specs changed no dispatch")
    return SOME_FAILED if report.failed else 0


def dispatches(
    module: Module,
    target: Annotated[
        str,
        o.option(
            "--target TARGET", help="Time on cpu, gfx942, sm_80, vulkan …; needs such a device."
        ),
    ] = "cpu",
    function: Function = "",
    inputs: InputWords = None,
    parameters: Parameters = None,
    device_allocator: Allocator = "",
    flags: Annotated[str, o.option("--flags FLAGS", help="Pass these flags to iree-compile.")] = "",
    rounds: Annotated[int, o.option("--rounds N", help="Time N processes.")] = 3,
    workload: Annotated[
        str | None,
        o.option(
            "--workload DIR",
            help="Write the contractions, convolutions and attentions as DIR/workload.csv for "
            "'kmark tune' and DIR/suite.toml for 'kmark run -s'.",
        ),
    ] = None,
    benchmarks: Annotated[
        Path | None,
        o.option(
            "--output -o DIR",
            help="Write a benchmark of each dispatch, for iree-compile and iree-benchmark-module.",
        ),
    ] = None,
    timeout: Timeout = 300.0,
    threads: o.Threads = None,
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> int:
    """Rank a model's dispatches by time; write a workload.

    MODULE may be a folder of dispatch benchmarks: those of -o, or of iree-compile
    --iree-hal-dump-executable-benchmarks-to.

    For example: kmark iree dispatches unet.mlir --workload unet
    """
    from kernelmark.core.errors import UsageError
    from kernelmark.core.files import json_text
    from kernelmark.iree.dispatches import (
        rank_benchmarks,
        rank_dispatches,
        save_workload,
        workload_of,
    )
    from kernelmark.iree.modules import split_words
    from kernelmark.report.iree import costs_document, costs_table

    outputs = o.Outputs(json=json)
    on_step = (lambda step: None) if quiet else say
    if module.is_dir():
        if function or inputs or parameters or device_allocator or benchmarks:
            raise UsageError(
                f"{module} is a folder of dispatch benchmarks, which have no function to call",
                hint="leave out --function, --input, --parameters, --device-allocator and -o",
            )
        costs = rank_benchmarks(
            module,
            target=target,
            flags=split_words(flags),
            rounds=rounds,
            timeout_s=timeout,
            threads=threads or 0,
            on_step=on_step,
        )
    else:
        costs = rank_dispatches(
            module,
            target=target,
            function=function,
            flags=split_words(flags),
            inputs=inputs or (),
            parameters=parameters or (),
            device_allocator=device_allocator,
            benchmarks=benchmarks,
            rounds=rounds,
            timeout_s=timeout,
            threads=threads or 0,
            on_step=on_step,
        )
    outputs.put(json=lambda: json_text(costs_document(costs)))
    if not outputs.stdout_taken:
        put_tables([costs_table(costs)])
    if benchmarks is not None:
        say(f"written: {benchmarks}; next: kmark iree dispatches {shlex.quote(str(benchmarks))}")
    if workload is None:
        return 0
    workload_calls = workload_of(costs, Path(workload).name)
    if not workload_calls.calls:
        say("no dispatch is a contraction, a convolution or an attention")
        return NOTHING
    save_workload(workload_calls, Path(workload), module)
    say(f"written: {workload}; next: kmark run -s {shlex.quote(workload)}/suite.toml, or")
    # Use IREE as the reference: other backends do not support all problems of its dispatches.
    say(f"  kmark tune summarise {shlex.quote(workload)} -b iree")
    return 0


app = typer.Typer(
    name="iree",
    help="Compare variants of an IREE module; rank its dispatches.",
    no_args_is_help=True,
)
app.command("ab")(ab)
app.command("dispatches")(dispatches)
