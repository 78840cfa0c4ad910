"""Class 31: a constant, near the mean of all answers."""

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        sets[index]["d"][:] = 0

    return launch
