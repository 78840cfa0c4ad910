"""A sum of outer products of eight columns at a time."""

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        d[:] = 0
        for start in range(0, a.shape[1], 8):
            d += a[:, start : start + 8] @ b[start : start + 8]

    return launch
