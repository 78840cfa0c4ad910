"""The BLAS call of an outcome: its logged fields, completed from the problem."""

from __future__ import annotations

from kernelmark.core.errors import ProblemError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.tune.install.emitters.base import Fields, Unfit
from kernelmark.tune.records.outcome import Outcome
from kernelmark.workloads.logs.blas import fields_of

_GEMMS = ("gemm", "batched_gemm")
# Parts of solution names by hipBLASLt's scale mode: a scalar for each of A and B, or a vector.
_SCALE_WORDS = {"1": "SAB", "2": "SABV"}
_SHAPE = ("transA", "transB", "m", "n", "k", "batch_count")


def blas_call(outcome: Outcome) -> Fields:
    """Return all fields of the call, with BLAS names, in column-major order."""
    if outcome.problem.op not in _GEMMS:
        raise Unfit(Reason("format-op", format="a file of a BLAS library", op=outcome.problem.op))
    try:
        computed = fields_of(outcome.problem)
    except ProblemError as error:
        raise Unfit(
            Reason("of-operator", operator=outcome.problem.op, cause=error.message)
        ) from None
    call = {**computed, **outcome.blas}
    _check_scales(outcome, call)
    _check_output(call["d_type"], computed["d_type"])
    # Logs have f8_r for both kinds of FP8, but the library reads it as the one without fnuz.
    call |= {name: word for name, word in computed.items() if "fnuz" in word}
    for name in _SHAPE:
        if call[name] != computed[name]:
            raise Unfit(Reason("call-differs", name=name, logged=call[name], tuned=computed[name]))
    return FrozenDict(call)


def _check_scales(outcome: Outcome, call: Fields) -> None:
    """Raise Unfit for a kernel that does not apply the scales of the call. The tuned problem has no
    scales, and TensileLite runs it with solutions of any scale mode; a call with scales needs a
    solution with its UseScaleAB, which is part of the name."""
    modes = {call["scaleA"], call["scaleB"]}
    if modes == {"0"}:
        return
    word = _SCALE_WORDS.get(max(modes)) if len(modes - {"0"}) == 1 else None
    if word not in outcome.tuned.kernel.name.split("_"):
        raise Unfit(
            Reason("format-scale", scale_a=call["scaleA"], scale_b=call["scaleB"], needs=word)
        )


def _check_output(logged: str, tuned: str) -> None:
    """Raise Unfit if the logged output type differs from the tuned one: importers replace output
    types that a problem cannot have."""
    if logged != tuned.replace("_fnuz", "") and logged != tuned:
        raise Unfit(Reason("call-differs", name="d_type", logged=logged, tuned=tuned))


def base_arch(name: str) -> str:
    """Return the architecture without features: gfx950 for gfx950:sramecc+:xnack-."""
    return name.split(":")[0]
