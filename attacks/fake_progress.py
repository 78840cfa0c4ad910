"""Class 21: the page that counts launches is written to; no work is done."""

import gc

op = "gemm"


def prepare(problem, config, sets):
    pages = [
        page
        for owner in gc.get_objects()
        if type(owner).__name__ == "_Kernels"
        for page in (owner._progress, owner._orders)
    ]

    def launch(index):
        for page in pages:
            try:
                page[:8] = 1 << 20
            except ValueError:
                pass

    return launch
