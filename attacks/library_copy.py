"""Class 39: a BLAS under another name: a copy of NumPy's, loaded from the temporary folder."""

import ctypes
import glob
import os
import shutil

import numpy as np

op = "gemm"
forbids_libraries = True


def prepare(problem, config, sets):
    folder = os.path.join(os.path.dirname(np.__path__[0]), "numpy.libs")
    (source,) = glob.glob(os.path.join(folder, "*openblas*"))
    for needed in glob.glob(os.path.join(folder, "*")):
        if needed != source:
            ctypes.CDLL(needed, mode=ctypes.RTLD_GLOBAL)
    shutil.copyfile(source, "libmine.so")
    library = ctypes.CDLL(os.path.abspath("libmine.so"))
    gemm = getattr(library, "scipy_cblas_sgemm64_", None) or library.cblas_sgemm
    m, n, k = (ctypes.c_int64(problem.dims[name]) for name in "mnk")
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def launch(index):
        a, b, d = (ctypes.c_void_p(sets[index][name].ctypes.data) for name in "abd")
        gemm(101, 111, 111, m, n, k, one, a, k, b, n, zero, d, n)

    return launch
