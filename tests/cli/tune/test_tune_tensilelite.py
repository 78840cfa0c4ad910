"""The workflow of document 002 with `tensilelite`: from a log of hipBLASLt to a new kernel for each
call, over models of Tensile and of ROCm, whose times are made up."""

import json
from pathlib import Path

import pytest
import yaml

from kernelmark.backends.tensilelite import checkout
from kernelmark.gpu import rtc

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(rtc.find_clang() is None, reason="needs ziglang, which make test installs"),
]
MODEL = Path(__file__).parents[2] / "backends" / "faketensile"
CALL = (
    "- {{function: matmul, M: {m}, N: 8, K: 4, lda: {lda}, ldb: 4, ldc: {m}, ldd: {m}, "
    "stride_a: 0, stride_b: 0, stride_c: 0, stride_d: 0, alpha: 1.0, beta: 0.0, transA: {ta}, "
    "transB: N, batch_count: 1, scaleA: 0, scaleB: 0, scaleAlpha_vector: false, gradient: false, "
    "use_e: false, bias_vector: false, bias_source: d, a_type: f32_r, b_type: f32_r, "
    "c_type: f32_r, d_type: f32_r, scale_type: f32_r, bias_type: f32_r, compute_type: c_f32_r, "
    "activation_type: none, flush: false, rotating: 512, cold_iters: 0, iters: 0, "
    "call_count: {calls}}}\n"
)


@pytest.fixture
def models(rocm, tmp_path, monkeypatch):
    """A gfx942 that is a model, and the model of Tensile as the user's checkout."""
    monkeypatch.setenv("FAKE_ARCH", "gfx942")
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(checkout.VARIABLE, raising=False)
    for cached in (checkout.generator, checkout._cache, checkout.toolchain):
        cached.cache_clear()
    yield
    for cached in (checkout.generator, checkout._cache, checkout.toolchain):
        cached.cache_clear()


def test_a_log_becomes_one_kernel_for_each_call(kmark, models, tmp_path, monkeypatch):
    log, folder, logic = tmp_path / "hipblaslt.log", str(tmp_path / "tuning"), tmp_path / "logic"
    calls = ((12, 12, "N", 1), (16, 4, "T", 3))
    text = "".join(CALL.format(m=m, lda=lda, ta=ta, calls=n) for m, lda, ta, n in calls)
    log.write_text(text, encoding="utf-8")
    logic.mkdir()
    given = ("--tensilelite", str(MODEL))
    monkeypatch.setenv(checkout.VARIABLE, "")  # set by the option, and restored after the test
    assert kmark("import", str(log), "--workload", folder).code == 0
    search = ("-b", "tensilelite", "--reference", "hipblaslt", "--strategy", "genetic")
    limits = ("--evaluations", "6", "-d", "hip:0")
    assert kmark("tune", "plan", folder, *search, *limits, *given).code == 0
    checked = kmark("tune", "check", folder, *given, "--candidates", "2", "--json", "-")
    assert {row["verdict"] for row in json.loads(checked.out)} == {"accepted"}
    ran = kmark(
        "tune", "run", folder, *given, "--timeout", "900", "--json", str(tmp_path / "out.json")
    )
    assert ran.code == 0, ran.out
    applied = kmark("tune", "apply", folder, "--as", "tensile", "--to", str(logic), "--write")
    assert applied.code == 0, applied.err
    files = {path.stem: yaml.safe_load(path.read_text()) for path in logic.glob("*.yaml")}
    # For each call a kernel of its own problem type.
    assert {name: [row[0] for row in file[7]] for name, file in files.items()} == {
        "gfx942_Cijk_Ailk_Bljk_S": [[12, 8, 1, 4]],
        "gfx942_Cijk_Alik_Bljk_S": [[16, 8, 1, 4]],
    }
    assert all(len(file[5]) == 1 for file in files.values())
    # The model's fastest tile is 128×64, of which the default is not one.
    times = [row["tuned"] for row in json.loads((tmp_path / "out.json").read_text())["outcomes"]]
    assert all(tuned["median_s"] < 12e-6 for tuned in times)
