"""Class 8: answers are computed before the first launch."""

op = "gemm"


def prepare(problem, config, sets):
    answers = [tensors["a"] @ tensors["b"] for tensors in sets]

    def launch(index):
        sets[index]["d"][:] = answers[index]

    return launch
