"""The plugin's own tests: the contracts that kernelmark ships, and nothing else.

Run with the plugin installed: pytest check_contracts.py
"""

from __future__ import annotations

from kernelmark_axpy.op import op

from kernelmark.testing import BackendContract, OpContract


class TestAxpy(OpContract):
    op = op
    examples = (
        {"n": 1, "dtype": "f32"},
        {"n": 1000, "dtype": "f32", "alpha": -0.5},
        {"n": 333, "dtype": "f64", "alpha": 3},
    )
    refused = ({"n": 8}, {"n": 8, "dtype": "i8"}, {"n": 8, "dtype": "f32", "alpha": "much"})

    def dense(self, problem, arrays):
        return problem.options["alpha"] * arrays["x"] + arrays["y"]


class TestPlain(BackendContract):
    backend = "plain"
