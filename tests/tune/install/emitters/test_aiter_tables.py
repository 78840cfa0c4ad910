"""aiter's CSV tables: the library of a 16-bit GEMM, and kernels of CK by number and name."""

import pytest

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.emitters.aiter_tables import emitter, padded, padded_tokens

BF16 = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,"
    "err_ratio,tflops,bw\n"
    "gfx950,256,64,512,1024,False,torch.bfloat16,torch.bfloat16,False,False,asm,5,3,7.9,_ZN5asmE,"
    "0.0,21.19,417.92\n"
)
CK = (
    "gfx,cu_num,B,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio\n"
    "gfx950,256,4,16,512,1024,28,0,68.98,{0}256x32x128x256,155.6,5004.8,0.0\n"
    "gfx950,256,4,32,512,1024,21,1,74.93,{0}256x64x128x256,286.5,4736.5,0.0\n"
)


def written(tmp_path, winners, before="", **options):
    path = tmp_path / "tuned.csv"
    if before:
        path.write_text(before)
    change = applying.prepare(emitter, winners, path, FrozenDict(options))
    return change, [line.split(",") for edit in change.edits for line in edit.after.splitlines()]


def test_a_solution_of_hipblaslt_replaces_the_row_of_its_shape(w, tmp_path):
    winner = w.outcome(problem=w.product(m=64), backend="hipblaslt", config={"solution_index": 9})
    change, (_, row) = written(tmp_path, [winner], BF16)
    assert change.winners == {winner.name}
    assert row[:10] == BF16.splitlines()[1].split(",")[:10]
    assert row[10:15] == ["hipblaslt", "9", "0", "10.0000", winner.tuned.kernel.name]
    assert float(row[16]) == pytest.approx(2 * 64 * 512 * 1024 / 1e-5 / 1e12, abs=0.01)
    change, _ = written(tmp_path, [winner], BF16.replace("gfx950", "gfx942"))
    assert change.edits[0].after.startswith(BF16.replace("gfx950", "gfx942")), "the row is kept"


@pytest.mark.parametrize(
    ("backend", "config", "more"),
    [
        ("aiter", {"kernel": "asm"}, {}),
        ("aiter", {"kernel": "auto"}, {}),
        ("hipblaslt", {"solution_index": 9}, {"blas": {"lda": "2048"}}),
        ("hipblaslt", {"solution_index": 9}, {"blas": {"activation_type": "relu"}}),
        ("hipblaslt", {"solution_index": 9}, {"arch": "sm_90"}),
        ("hipblaslt", {"solution_index": 9}, {"problem": {"tb": "n"}}),
        ("hipblaslt", {"solution_index": 9}, {"problem": {"dtype": "f32"}}),
        ("hipblaslt", {"solution_index": 9}, {"problem": {"alpha": 2.0}}),
    ],
)
def test_what_a_row_cannot_say_is_not_written(w, tmp_path, backend, config, more):
    problem = w.product(m=64, **more.pop("problem", {}))
    winner = w.outcome(problem=problem, backend=backend, config=config, **more)
    change, _ = written(tmp_path, [winner], BF16)
    assert [skipped.name for skipped in change.skipped] == [winner.name]
    assert not change.edits


@pytest.mark.parametrize(("m", "is_written"), [(50, False), (33, False), (65, True), (16, True)])
def test_a_winner_that_aiter_pads_another_m_to_is_withheld(w, tmp_path, m, is_written):
    solution = {"backend": "hipblaslt", "config": {"solution_index": 9}}
    winner = w.outcome("A", w.product(m=64), **solution)
    other = w.outcome("B", w.product(m=m), kept=False, **solution)
    change, _ = written(tmp_path, [winner, other], cu_num="256")
    assert bool(change.edits) == is_written


def test_padding_is_aiter_s():
    assert padded(33, 64) == (48, 64)
    assert padded(300, 64) == (320, 512)
    assert padded(1100, 64) == (1152, 2048)
    assert padded(9000, 4096) == (9088, 16384)
    assert padded(9000, 8192) == (9088, 8192)


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({"split_k": 2}, ["28", "2"]),
        ({"split_k": "tuned"}, ["28", "0"]),
        ({"kernel_id": 21, "split_k": 3}, ["21", "3"]),
        ({"kernel_id": 21}, ["21", "0"]),
        ({"kernel_id": 7}, None),
    ],
)
@pytest.mark.parametrize("kind", ["bf16", "a8w8"])
def test_kernels_of_ck_get_their_names_from_the_file(w, tmp_path, kind, config, shown):
    sizes = {"batch": 4, "m": 16, "n": 512, "k": 1024}
    problem = w.product(**sizes)
    if kind == "a8w8":
        problem = ops.registry.get("batched_gemm_quant").problem(**sizes, scheme="a8w8")
    winner = w.outcome(problem=problem, backend="aiter", config={"kernel": "ck", **config})
    names = "bf16_batched_" if kind == "bf16" else "a8w8_batched_rowwise_"
    change, rows = written(tmp_path, [winner], CK.format(names))
    assert [skipped.name for skipped in change.skipped] == [winner.name] * (shown is None)
    if shown:
        assert rows[1][6:8] == shown
        blocks = {"28": "256x32x128x256", "21": "256x64x128x256"}
        assert rows[1][9] == names + blocks[shown[0]]
        assert rows[2] == CK.format(names).splitlines()[2].split(",")
    change, _ = written(tmp_path, [winner], CK.format("fp4_"))
    assert not change.edits, "a table of another kernel with the same columns"


def test_a_table_of_another_kind_and_unknown_units_are_refused(w, tmp_path):
    winner = w.outcome(problem=w.product(m=64), backend="hipblaslt", config={"solution_index": 9})
    with pytest.raises(UsageError):
        written(tmp_path, [winner], CK.format("bf16_batched_"))
    with pytest.raises(UsageError):
        written(tmp_path, [winner], "M,N,K\n1,2,3\n", cu_num="256")
    (tmp_path / "tuned.csv").unlink()
    with pytest.raises(UsageError):
        written(tmp_path, [winner])


G1 = "moe_ck2stages_gemm1_256x{}x64x64_1x4_TypeCast_v1_Nswizzle0_Quant0_MulRoutedWeight0_silu_B16"
G2 = "moe_ck2stages_gemm2_256x{}x64x64_1x4_TypeCast_v1_Nswizzle0_Quant0_MulRoutedWeight1_B16"
KERNELS = {"kernel": "ck", "kernel1": G1.format(64), "kernel2": G2.format(64)}
MOE_HEAD = (
    "gfx,cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,"
    "use_g1u1,doweight_stage1,block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us,"
    "run_1stage,xbf16,flat,tflops,bw,_tag\n"
)
MOE_ROW = (
    "gfx950,256,64,64,32,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
    "QuantType.No,1,0,32,0,17.8,k1,0.0%,14.5,k2,0.0%,32.3,0,0,0,5.26,2629.41,\n"
)
OLD_HEAD = MOE_HEAD.removeprefix("gfx,").replace(",xbf16,flat", "")
OLD_ROW = MOE_ROW.removeprefix("gfx950,").replace(",0,0,0,5.26", ",0,5.26")


def experts(m=50, **more):
    sizes = {"m": m, "n": 32, "k": 64, "e": 8, "top_k": 2}
    order = {"dtype": "bf16", "w_order": "tiled"} | more
    return ops.registry.get("moe").problem(**sizes, **order)


def moe(w, name="A", m=50, *, config=KERNELS, **more):
    return w.outcome(name, experts(m), backend="aiter", config=config, **more)


@pytest.mark.parametrize(("head", "row"), [(MOE_HEAD, MOE_ROW), (OLD_HEAD, OLD_ROW), ("", "")])
def test_a_moe_is_written_for_its_padded_tokens_in_the_columns_of_the_file(w, tmp_path, head, row):
    winner = moe(w)
    other = row.replace(",64,64,", ",128,64,")
    change, lines = written(tmp_path, [winner], head + other + row, cu_num="256")
    assert change.winners == {winner.name}
    columns = lines[0]
    assert columns == (head or MOE_HEAD).strip().split(",")
    if row:
        assert lines[1] == other.strip().split(",")
    found = dict(zip(columns, lines[-1], strict=True))
    assert found["token"] == "64"
    assert (found["block_m"], found["ksplit"], found["run_1stage"]) == ("64", "0", "0")
    assert (found["kernelName1"], found["kernelName2"]) == (G1.format(64), G2.format(64))
    assert (found["us"], found["us1"]) == ("10.0000", "")
    assert [found[name] for name in columns if name in ("act_type", "q_type", "use_g1u1")] == [
        "ActivationType.Silu",
        "QuantType.No",
        "1",
    ]


@pytest.mark.parametrize(
    ("m", "tokens"),
    [
        (1, 1),
        (3, 4),
        (64, 64),
        (16385, 32768),
        (40_000, 32768),
        (131_072, 131_072),
        (10**6, 131072),
    ],
)
def test_tokens_are_padded_as_aiter_pads_them(m, tokens):
    assert padded_tokens(m) == tokens


def test_a_moe_that_other_tokens_would_lose_by_is_withheld(w, tmp_path):
    """All numbers of tokens above the half of a row's get its kernels."""
    assert written(tmp_path, [moe(w), moe(w, "B", 33, kept=False)], cu_num="256")[0].skipped
    assert not written(tmp_path, [moe(w), moe(w, "B", 32, kept=False)], cu_num="256")[0].skipped
    large, larger = moe(w, m=32768), moe(w, "B", 200_000, kept=False)
    assert written(tmp_path, [large, larger], cu_num="256")[0].skipped
    row = MOE_ROW.replace(",64,64,", ",131072,64,")
    assert not written(tmp_path, [large, larger], MOE_HEAD + row)[0].skipped


@pytest.mark.parametrize(
    ("file", "more"),
    [
        (MOE_HEAD + MOE_ROW.replace("Silu", "Gelu"), {}),  # the lookup does not compare it
        (OLD_HEAD + OLD_ROW, {"arch": "gfx942"}),
        (MOE_HEAD + MOE_ROW, {"config": {"kernel": "auto"}}),
        (MOE_HEAD + MOE_ROW, {"config": {}}),
    ],
)
def test_a_moe_that_the_table_cannot_hold_is_not_written(w, tmp_path, file, more):
    change, _ = written(tmp_path, [moe(w, **more)], file)
    assert [skipped.name for skipped in change.skipped] == ["A"]
    assert not change.edits


def test_weights_by_rows_are_not_those_of_the_table(w, tmp_path):
    winner = w.outcome(problem=experts(w_order="rows"), backend="aiter", config=KERNELS)
    assert written(tmp_path, [winner], MOE_HEAD + MOE_ROW)[0].skipped


def test_rows_that_aiter_does_not_look_up_stay(w, tmp_path):
    row = MOE_ROW.replace("2629.41,", "2629.41,flydsl_fallback")
    _, lines = written(tmp_path, [moe(w)], MOE_HEAD + row, cu_num="256")
    assert lines[1] == row.strip().split(",")
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("arch", "units", "is_written"),
    [
        *(("gfx942", units, True) for units in ("304", "80", "228")),
        ("gfx942", "256", False),
        ("gfx950", "256", True),
        ("gfx950", "304", False),
        ("gfx1250", "256", True),
    ],
)
def test_a_number_of_cus_of_another_architecture_is_refused(w, tmp_path, arch, units, is_written):
    solution = {"backend": "hipblaslt", "config": {"solution_index": 9}}
    change, _ = written(tmp_path, [w.outcome(arch=arch, **solution)], cu_num=units)
    assert bool(change.edits) == is_written
