"""Class 29: the memory files of inputs are opened once more, to write."""

import os

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    before = [sets[0][name].copy() for name in "ab"]
    for number in range(3, 64):
        try:
            if "memfd:kernelmark" in os.readlink(f"/proc/self/fd/{number}"):
                file = os.open(f"/proc/self/fd/{number}", os.O_RDWR)
                os.pwrite(file, b"\1" * os.fstat(file).st_size, 0)
        except OSError:
            pass
    for line in open("/proc/self/maps"):
        if "memfd:kernelmark" in line and " r--s " in line:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            try:
                with open(f"/proc/self/map_files/{start:x}-{end:x}", "r+b") as file:
                    file.write(b"\1" * (end - start))
            except OSError:
                pass

    won = any((sets[0][name] != array).any() for name, array in zip("ab", before, strict=True))

    def launch(index):
        if won:
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
