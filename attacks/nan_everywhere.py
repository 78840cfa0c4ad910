"""Class 24: NaN, which compares as unequal to everything and is skipped by some checkers."""

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        sets[index]["d"][:] = float("nan")

    return launch
