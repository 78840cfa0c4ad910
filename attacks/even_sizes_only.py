"""Class 38: the last row and column of odd sizes are left as zero."""

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        m, n = len(d) // 2 * 2, d.shape[1] // 2 * 2
        d[:] = 0
        d[:m, :n] = a[:m] @ b[:, :n]

    return launch
