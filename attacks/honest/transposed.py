"""The transposed product, copied back."""

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        d[:] = (b.T @ a.T).T

    return launch
