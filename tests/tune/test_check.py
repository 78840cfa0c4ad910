"""What candidates use, by compiling alone: no GPU is asked."""

import importlib.util

import pytest

from kernelmark import ops
from kernelmark.backends.iree.compiler import compiler_present
from kernelmark.core.errors import UsageError
from kernelmark.report.tuning import check_line, check_records, check_table
from kernelmark.tune.evaluate import CheckVerdict, check
from kernelmark.tune.plans import TunePlan
from kernelmark_dev.tuning import fake_plans

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which make test installs"
)
# Four waves a SIMD leave each thread 128 registers, too few for such a tile on two waves.
SPILLING = {
    "block_m": (16,),
    "block_n": (64,),
    "block_k": (256,),
    "num_warps": (8,),
    "num_stages": (2,),
    "waves_per_eu": (8,),
    "matrix_instr_nonkdim": (16,),
    "kpack": (1,),
    "split_k": (1,),
    "group_m": (16,),
    "persistent": (False,),
    "xcds": (8,),
    "cache_modifier": (".cg",),
}


def plan(name="BBS_TN_0", **more):
    given = {
        "name": name,
        "problem": ops.parse("gemm m=512 n=512 k=512 dtype=bf16 tb=t"),
        "backend": "triton",
        "reference_backend": "triton",
        "arch": "gfx942",
        **more,
    }
    return TunePlan(**given)


def checked(*plans, candidates=2):
    return list(check(plans, candidates=candidates, jobs=1, compile_timeout_s=120))


@pytest.mark.slow
@pytest.mark.skipif(
    not compiler_present(), reason="needs iree-base-compiler, which make test installs"
)
def test_a_backend_whose_runtime_needs_the_gpu_compiles_without_it():
    (found,) = checked(plan(backend="iree", reference_backend="iree"), candidates=1)
    assert [one.verdict for one in found.candidates] == [CheckVerdict.ACCEPTED]


@pytest.mark.slow
@needs_triton
def test_candidates_for_a_gpu_that_is_not_here_are_judged_by_what_they_use():
    good, bad = checked(plan(), plan("BBS_TN_1", space=SPILLING))
    assert good.candidates[0].verdict is CheckVerdict.ACCEPTED  # the backend's own choice
    assert len(good.candidates) == 2
    for one in good.candidates:
        assert one.kernel.resources["registers"] > 0
        assert one.seconds > 0
    (worst,) = bad.candidates
    assert worst.verdict is CheckVerdict.REJECTED
    assert worst.kernel.resources["spilled_registers"] > 64
    assert str(worst.reason).endswith("above 0 B")  # what gfx942 is allowed
    rows = check_table([good, bad]).rows
    assert rows[1][0].startswith("BBS_TN_1: gemm m=512")
    assert rows[1][1:5] == ("1", "0", "1", "0")
    assert check_line([good, bad]).endswith("compiled for gfx942: 2 accepted, 1 rejected, 0 failed")
    record = check_records([bad])[0]
    assert record["verdict"] == "rejected"
    kinds = ("registers", "accumulation_registers", "scalar_registers")
    for name in (*kinds, "spilled_registers", "spilled_scalar_registers", "shared_bytes"):
        assert record[name] == worst.kernel.resources[name]


@pytest.mark.slow
@needs_triton
def test_the_same_seed_gives_the_same_sample_on_any_architecture():
    one, again = checked(plan(arch="sm_90"))[0], checked(plan(arch="sm_90"))[0]
    other = checked(plan(arch="sm_90", seed=2))[0]
    configs = [[c.config for c in found.candidates] for found in (one, again, other)]
    assert configs[0] == configs[1] != configs[2]
    assert configs[0][0] == configs[2][0]


def test_what_does_not_compile_is_told():
    (found,) = checked(plan(backend="fake"), candidates=1)
    (one,) = found.candidates
    assert one.verdict is CheckVerdict.FAILED
    assert "unsupported" in one.reason
    assert "\n" not in one.reason


def test_what_cannot_be_checked_is_refused_before_anything_starts():
    with pytest.raises(UsageError, match="fake"):
        checked(*fake_plans(1))
    with pytest.raises(UsageError, match="gfx000"):
        checked(plan(arch="gfx000"))
    with pytest.raises(UsageError, match="numpy"):
        checked(plan(backend="numpy"))
    with pytest.raises(UsageError, match="candidates"):
        checked(plan(), candidates=0)
