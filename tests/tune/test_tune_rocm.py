"""Real searches of hipBLASLt's and rocBLAS's solutions, over a model of the libraries in C: what is
found fills each library's file, and the library then runs it."""

import pytest
import yaml

from kernelmark import ops
from kernelmark.core.immutable import FrozenDict
from kernelmark.runners.local import LocalRunner
from kernelmark.tune.driver import Driver
from kernelmark.tune.install import apply
from kernelmark.tune.install.apply import Proof, confirm
from kernelmark.tune.install.emitters import registry
from kernelmark.tune.plans import Acceptance, Budget, TunePlan

pytestmark = pytest.mark.slow
BEST = {
    "hipblaslt": ("Cijk_Ailk_Bljk_SB_MT128x64x16_MI32x32x1_SN", 3, 20 / 14),
    "rocblas": ("Cijk_Ailk_Bljk_SB_MT64x32x8_SE_K1", -13, 21 / 15),
}
VALIDATORS = {
    "PT_VERSION": "2.9.1",
    "HIP_VERSION": "702",
    "HIPBLASLT_VERSION": "100202-fa4e0000",
    "GCN_ARCH_NAME": "gfx90a:sramecc+:xnack-",
    "ROCBLAS_VERSION": "5.2.0.fa4e0000",
}


@pytest.fixture
def tuned(request, rocm, tmp_path, monkeypatch):
    """The outcome of a search over every solution of a backend."""
    monkeypatch.setenv("ROCBLAS_USE_HIPBLASLT", "0")
    plan = TunePlan(
        name="SSS_NN_0",
        problem=ops.parse("gemm m=8 n=12 k=4 dtype=f32"),
        backend=request.param,
        reference_backend=request.param,
        strategy="exhaustive",
        budget=Budget(evaluations=10),
        acceptance=Acceptance(finalists=1, rounds=6, neighbours=1),
    )
    driver = Driver([plan], LocalRunner(["hip:0"]), tmp_path / "trials")
    driver.run()
    assert driver.retired == {}
    return driver.outcomes["SSS_NN_0"]


def library_logic(folder, name):
    """Logic of a library that has the solution, for another size."""
    solution = {"SolutionIndex": 0, "SolutionNameMin": name, "KernelNameMin": name, "DepthU": 16}
    kind = {"DataType": 0, "DestDataType": 0, "TransposeA": 0, "TransposeB": 0}
    exact = [[[64, 64, 1, 64], [0, 0.5]]]
    document = [
        {"MinimumRequiredVersion": "4.33.0"},
        *("aldebaran", "gfx90a", ["Device 7400"], kind, [solution], [2, 3, 0, 1], exact),
        *(None, None, "DeviceEfficiency", "Equality"),
    ]
    path = folder / "Equality" / "aldebaran_Cijk_Ailk_Bljk_SB.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(document, sort_keys=True), encoding="utf-8")
    return folder


@pytest.mark.parametrize("tuned", ["hipblaslt", "rocblas"], indirect=True)
def test_a_search_fills_the_files_of_its_library(tuned, tmp_path):
    backend = tuned.tuned.backend
    name, index, ratio = BEST[backend]
    assert tuned.kept, tuned.reason
    assert tuned.tuned.config == {"solution": name}
    assert tuned.tuned.kernel.resources["solution_index"] == index
    assert tuned.ratio == pytest.approx(ratio, rel=1e-3)
    forms = {
        "hipblaslt": ("hipblaslt", "tunableop", "tensile"),
        "rocblas": ("rocblas", "tunableop"),
    }
    for form in forms[backend]:
        emitter, path = registry.get(form), tmp_path / form
        if form == "tensile":
            library_logic(path, name)
        given = FrozenDict(VALIDATORS if form == "tunableop" else {})
        change = apply.prepare(emitter, [tuned], path, given)
        assert (len(change.winners), change.skipped) == (1, ())
        apply.write(emitter, change, path)
        entries = [one for lookup in change.lookups if (one := emitter.find(path, lookup.key))]
        assert entries, f"{form}: nothing is found"
    (found,) = confirm(registry.get(backend), [tuned], tmp_path / backend)
    assert (found.proof, found.ran) == (Proof.CONFIRMED, name), found.detail
