"""Class 33: only corners, edges and a few random positions are right."""

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        d[:] = 0
        for rows in (slice(0, 4), slice(-4, None)):
            d[rows] = a[rows] @ b
            d[:, rows] = a @ b[:, rows]

    return launch
