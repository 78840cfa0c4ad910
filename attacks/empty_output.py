"""Class 7: nothing is written; the memory may hold an answer."""

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        pass

    return launch
