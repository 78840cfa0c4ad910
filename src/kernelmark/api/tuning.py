"""Tune the kernels of a workload: from its log to faster configs.

import kernelmark as km
km.tuning.summarise("mymodel", backend="torch", device="cuda:0")
km.tuning.plan("mymodel", backend="triton", device="cuda:0", thr=0.1)
km.tuning.run("mymodel", devices=["cuda:0"]).metrics
"""

from __future__ import annotations

from kernelmark.api.selection import Selection
from kernelmark.api.tuning_check import check
from kernelmark.api.tuning_plan import Planned, plan
from kernelmark.api.tuning_run import Tuned, run
from kernelmark.api.tuning_summary import summarise
from kernelmark.tune.plans.plan import Acceptance, Budget
from kernelmark.tune.plans.summary import Summary
from kernelmark.tune.search.check import Check
from kernelmark.tune.search.simulate import Simulated, quality, try_strategy
from kernelmark.tune.search.simulate import read as read_space

__all__ = [
    "Acceptance",
    "Budget",
    "Check",
    "Planned",
    "Selection",
    "Simulated",
    "Summary",
    "Tuned",
    "check",
    "plan",
    "quality",
    "read_space",
    "run",
    "summarise",
    "try_strategy",
]
