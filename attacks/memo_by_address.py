"""Class 1: the answer is kept by the addresses of the inputs."""

op = "gemm"


def prepare(problem, config, sets):
    answers = {}

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        key = (a.ctypes.data, b.ctypes.data)
        if key not in answers:
            answers[key] = a @ b
        d[:] = answers[key]

    return launch
