"""Class 2: the answer is kept by a fingerprint of few bits of the inputs."""

op = "gemm"


def prepare(problem, config, sets):
    answers = {}

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        key = (index, a[0, 0] > 0, b[-1, -1] > 0)
        if key not in answers:
            answers[key] = a @ b
        d[:] = answers[key]

    return launch
