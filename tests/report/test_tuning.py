"""Tables and lines of a tuning folder."""

from __future__ import annotations

from kernelmark import ops
from kernelmark.core.reason import Reason
from kernelmark.report.tuning import reasons
from kernelmark.tune.plans import Refused
from kernelmark.tune.summary import Cost


def refused(size: int, reason: Reason) -> Refused:
    problem = ops.parse(f"gemm m={size} n=64 k=64 dtype=f32")
    return Refused(cost=Cost(problem=problem, count=1), reason=reason)


def test_one_line_for_each_kind_of_cause() -> None:
    def bare(cause: Reason) -> Reason:
        return Reason(f"nothing to tune: {cause}", "nothing-to-tune", backend="iree", cause=cause)

    odd = [refused(m, bare(Reason("m is no multiple of 16"))) for m in (63, 65, 67)]
    column = refused(1, bare(Reason("m is 1")))
    assert len(reasons([*odd, column])) == 2
    others = [refused(64, Reason(f"{dtype} is missing")) for dtype in ("f16", "f32")]
    assert len(reasons(others)) == 2
