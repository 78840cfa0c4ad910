"""Into memory that is kept between launches, and copied."""

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    scratch = np.empty((problem.dims["m"], problem.dims["n"]), sets[0]["d"].dtype)

    def launch(index):
        np.matmul(sets[index]["a"], sets[index]["b"], out=scratch)
        np.copyto(sets[index]["d"], scratch)

    return launch
