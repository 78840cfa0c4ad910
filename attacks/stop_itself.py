"""Class 44: the process stops itself, so that the judge waits for it."""

import signal

op = "gemm"


def prepare(problem, config, sets):
    def launch(index):
        signal.raise_signal(signal.SIGSTOP)

    return launch
