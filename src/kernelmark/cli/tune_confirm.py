"""`kmark tune confirm`: check that a library runs the tuned kernels with the file installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from kernelmark.cli import options as o
from kernelmark.cli.output import put_table, say
from kernelmark.cli.tune_apply import Folder, load_winners
from kernelmark.core.exit_codes import REGRESSION, SOME_FAILED

As = Annotated[
    str,
    o.option(
        "--as FORMAT",
        help="Check this format: hipblaslt, rocblas, tensile, tunableop; not yet run on AMD "
        "hardware.",
    ),
]
To = Annotated[
    str,
    o.option(
        "--to PATH",
        help="Use this file, which 'kmark tune apply' wrote; for tensile the folder of the library "
        "built from it.",
    ),
]
Timeout = Annotated[
    float, o.option("--timeout S", o.RUNNING, help="Limit the seconds of each run.")
]


def confirm(
    folder: Folder, form: As, to: To, timeout: Timeout = 300.0, quiet: o.Quiet = False
) -> int:
    """Check which kernels a library runs with the file installed.

    A library silently ignores an entry that does not fit. This runs each
    winner's problem through the library and reads the kernel's name from the library's
    own log. If the tuned kernel ran, it runs the problem again without the file, to see
    whether the library chooses that kernel anyway. The exit code is 1 if another kernel
    ran, and 3 if a name is unknown or a winner is not in the file.
    """
    from kernelmark.report.tables import NONE, Column, Table
    from kernelmark.tune.install import confirm as confirming
    from kernelmark.tune.install.confirm import Proof
    from kernelmark.tune.install.emitters import registry

    path = Path(to).expanduser()
    confirming.check_file(registry.get(form), path)
    emitter, outcomes, _, missing = load_winners(folder, form, ())
    kept = [outcome for outcome in outcomes if outcome.kept]
    results = []
    for result in confirming.confirm(emitter, kept, path, timeout_s=timeout):
        results.append(result)
        if not quiet:
            say(f"[{len(results)}/{len(kept)}] {result.outcome.name}: {result.proof.value}")
    columns = tuple(Column(name=name) for name in ("name", "proof", "tuned kernel", "what ran"))
    rows = tuple(
        (
            result.outcome.name,
            result.proof.value,
            result.outcome.tuned.kernel.name,
            result.ran or result.detail,
        )
        for result in results
    )
    put_table(Table(columns=columns, rows=tuple(tuple(x or NONE for x in row) for row in rows)))
    proofs = {result.proof for result in results}
    if Proof.ABSENT in proofs:
        say("a winner is not in the file: kmark tune apply writes it, or says why it cannot")
    if Proof.UNPROVEN in proofs:
        say("the library chooses a tuned kernel by itself: its entry changes nothing")
    if Proof.IGNORED in proofs:
        say("an entry is ignored: is the file of this build of the library, and its path right?")
        return REGRESSION
    return missing if proofs <= {Proof.CONFIRMED, Proof.UNPROVEN} else SOME_FAILED
