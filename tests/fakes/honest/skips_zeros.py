"""Leaves out rows of A that are zero, in every launch anew."""

op = ("gemm",)


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        some = a.any(axis=1)
        d[~some] = 0
        d[some] = a[some] @ b

    return launch
