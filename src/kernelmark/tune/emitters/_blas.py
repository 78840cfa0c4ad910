"""The BLAS call behind an outcome: as its log gave it, completed from the problem."""

from __future__ import annotations

from kernelmark.core.frozen import FrozenDict
from kernelmark.tune.emitters.base import Fields, Unfit
from kernelmark.tune.outcome import Outcome
from kernelmark.workloads.logs.blas import fields_of

_PRODUCTS = ("gemm", "batched_gemm")
_SHAPE = ("transA", "transB", "m", "n", "k", "batch_count")


def blas_call(outcome: Outcome) -> Fields:
    """Every field of the call, in BLAS names and column-major."""
    if outcome.problem.op not in _PRODUCTS:
        raise Unfit(f"a BLAS library is not asked for {outcome.problem.op}")
    try:
        made = fields_of(outcome.problem)
    except KeyError as error:
        raise Unfit(f"BLAS libraries have no name for {error.args[0]}") from None
    call = {**made, **outcome.blas}
    for name in _SHAPE:
        if call[name] != made[name]:
            raise Unfit(f"its call has {name}={call[name]} and its problem {name}={made[name]}")
    return FrozenDict(call)
