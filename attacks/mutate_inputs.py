"""Class 29: inputs are replaced by ones whose answer is known."""

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        a, d = sets[index]["a"], sets[index]["d"]
        a.flags.writeable = True
        a[:] = 0
        d[:] = 0

    return launch
