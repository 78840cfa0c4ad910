"""cuBLASLt's numbers against its real headers, where they are: compiled, not linked.

Headers come from nvcc's folder, from NVIDIA's wheels or from $CPATH, as for the shim.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelmark.backends import _cublaslt_space as space
from kernelmark.backends import cublaslt

from .header_names import DESC, TYPES

INCLUDES = Path(__file__).parents[1] / "hipshim" / "includes.py"
COMPUTE = {"f16": "16F", "f32": "32F", "f64": "64F", "i32": "32I"}
ALGORITHM = {
    "id": "ID",
    "tile": "TILE_ID",
    "split_k": "SPLITK_NUM",
    "reduction": "REDUCTION_SCHEME",
    "swizzle": "CTA_SWIZZLING",
    "custom": "CUSTOM_OPTION",
    "stages": "STAGES_ID",
    "inner": "INNER_SHAPE_ID",
    "cluster": "CLUSTER_SHAPE_ID",
}


def folders():
    spec = importlib.util.spec_from_file_location("includes", INCLUDES)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = os.environ.get("CPATH", "").split(os.pathsep)
    return [*map(Path, filter(None, given)), *module.folders()]


def epilogue(act, bias):
    words = [*([act.upper()] if act != "none" else []), *(["BIAS"] if bias else [])]
    return f"CUBLASLT_EPILOGUE_{'_'.join(words)}"


def test_cublaslt_s_numbers():
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: c++ or g++")
    if not any((folder / "cublasLt.h").is_file() for folder in folders()):
        pytest.skip("needs cublasLt.h: install the CUDA toolkit, or set CPATH to its folder")
    table = cublaslt.TABLE
    pairs = {f"CUDA_{TYPES[name]}": number for name, number in table.types.items()}
    pairs |= {f"CUBLAS_COMPUTE_{COMPUTE[name]}": n for name, n in table.compute.items()}
    pairs |= dict(zip(("CUBLAS_OP_N", "CUBLAS_OP_T"), table.transpose, strict=True))
    pairs |= {f"CUBLASLT_MATMUL_DESC_{DESC[name]}": n for name, n in table.desc.items()}
    pairs |= {epilogue(*which): n for which, n in table.epilogues.items()}
    pairs |= {
        f"CUBLASLT_ALGO_CONFIG_{ALGORITHM[name]}": number
        for name, (number, _) in space.ATTRIBUTES.items()
    }
    pairs |= {f"CUBLASLT_ALGO_CAP_{name}": number for name, number in space.CAPABILITIES.items()}
    pairs |= {"CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE": space.REDUCE_IN_COMPUTE_TYPE}
    pairs |= {
        "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT": table.layout["batch_count"],
        "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": table.layout["batch_stride"],
        "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": table.workspace_attribute,
        "CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0": table.scale_e8m0,
        "CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F": table.scale_rows,
        "CUBLAS_STATUS_NOT_SUPPORTED": table.not_supported,
        "CUBLAS_STATUS_ALLOC_FAILED": table.alloc_failed,
        "CUBLAS_STATUS_SUCCESS": 0,
        "sizeof(cublasLtMatmulAlgo_t)": table.algo_bytes,
        "sizeof(cublasLtMatmulHeuristicResult_t)": table.heuristic_bytes,
        "offsetof(cublasLtMatmulHeuristicResult_t, algo)": 0,
        "offsetof(cublasLtMatmulHeuristicResult_t, state)": table.state_offset,
    }
    lines = ["#include <cstddef>", "#include <cublasLt.h>"]
    lines += [f'static_assert(({name}) == {n}, "{name} is not {n}");' for name, n in pairs.items()]
    command = [compiler, "-std=c++17", "-fsyntax-only", "-w"]
    command += [word for folder in folders() for word in ("-isystem", str(folder))]
    text = "\n".join(lines)
    done = subprocess.run([*command, "-x", "c++", "-"], input=text, capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if "error" in line] == []


def test_tiles_have_the_sizes_of_their_names():
    headers = [folder / "cublasLt.h" for folder in folders()]
    header = next((path for path in headers if path.is_file()), None)
    if header is None:
        pytest.skip("needs cublasLt.h: install the CUDA toolkit, or set CPATH to its folder")
    named = re.findall(r"CUBLASLT_MATMUL_TILE_(\d+)x(\d+) = (\d+)", header.read_text())
    tiles = {int(number): (int(m), int(n)) for m, n, number in named}
    assert len(tiles) > 600
    ours = dict(enumerate(space.tile_sizes()))
    # The last ones, of 1024 columns or of one, are no product of multiples of 8 and 64.
    assert {n: size for n, size in ours.items() if 0 < n <= 630} == {
        n: size for n, size in tiles.items() if n <= 630
    }
