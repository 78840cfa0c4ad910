"""Tables of the resources that tuning candidates use, from compilation alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from kernelmark.core.result import config_key
from kernelmark.core.units import bytes_text, counted
from kernelmark.report.tables import NONE, Column, Table
from kernelmark.report.tuning import titled
from kernelmark.tune.search.evaluate import Candidate, Check, Verdict, spilled_bytes


def check_table(checks: Sequence[Check]) -> Table:
    """Return a table with one row per plan; registers and spills are ranges per thread."""
    right = ("compiled", "accepted", "rejected", "failed", "registers", "spilled")
    names = ("plan", *right, "the others, for example")
    columns = tuple(Column(name=n, align="right" if n in right else "left") for n in names)
    return Table(columns=columns, rows=tuple(map(_row, checks)))


def _row(check: Check) -> tuple[str, ...]:
    built = [c for c in check.candidates if c.verdict is not Verdict.FAILED]
    registers = [
        c.kernel.resources["registers"] for c in built if "registers" in c.kernel.resources
    ]
    spilled = [spilled_bytes(c.kernel.resources) for c in built]
    return (
        titled(check.plan),
        str(len(check.candidates)),
        *(str(check.count(verdict)) for verdict in Verdict),
        _span(registers, str),
        _span(spilled, bytes_text),
        next((c.reason for c in check.candidates if c.reason), ""),
    )


def _span(values: Sequence[int], text: Callable[[int], str]) -> str:
    if not values:
        return NONE
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def check_records(checks: Sequence[Check]) -> list[dict[str, str | int | float | None]]:
    """Return one flat record per candidate; resources that the compiler did not report are None."""
    return [_record(check, candidate) for check in checks for candidate in check.candidates]


def _record(check: Check, candidate: Candidate) -> dict[str, str | int | float | None]:
    used = candidate.kernel.resources
    return {
        "plan": check.plan.name,
        "problem": check.plan.problem.key,
        "arch": check.plan.arch,
        "verdict": candidate.verdict.value,
        "reason": candidate.reason,
        "registers": used.get("registers"),
        "accumulation_registers": used.get("accumulation_registers"),
        "scalar_registers": used.get("scalar_registers"),
        "spilled_registers": used.get("spilled_registers"),
        "spilled_scalar_registers": used.get("spilled_scalar_registers"),
        "stack_bytes": used.get("stack_bytes"),
        "shared_bytes": used.get("shared_bytes"),
        "compile_s": round(candidate.seconds, 6),
        "config": config_key(candidate.config),
    }


def check_line(checks: Sequence[Check]) -> str:
    """Return a one-sentence summary of all plans."""
    every = [candidate for check in checks for candidate in check.candidates]
    counts = Counter(candidate.verdict for candidate in every)
    verdicts = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)
    archs = ", ".join(dict.fromkeys(check.plan.arch for check in checks))
    where = f"{counted(len(every), 'candidate')} of {counted(len(checks), 'plan')}"
    return f"{where} compiled for {archs}: {verdicts}"
