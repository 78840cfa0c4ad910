"""Class 14: every clock of Python runs four times as slow; the kernel does its work four times."""

import gc
import time

import numpy as np

op = "gemm"
problem = "gemm m=128 n=128 k=128 dtype=f32"
work = 4


def prepare(problem, config, sets):
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "process_time", "time"):
        real = getattr(time, name)
        fake = (
            (lambda real=real: real() // 4)
            if name.endswith("_ns")
            else (lambda real=real: real() / 4)
        )
        for holder in gc.get_referrers(real):
            if isinstance(holder, dict):
                for key in [key for key, value in holder.items() if value is real]:
                    holder[key] = fake

    def launch(index):
        for _ in range(work):
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
