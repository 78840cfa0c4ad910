"""Class 24: infinities, whose error may be infinite minus infinite."""

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        sets[index]["d"][:] = float("inf")

    return launch
