"""aiter's CSV tables: the library of a 16-bit GEMM, and kernels of CK by number and name."""

import pytest

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.emitters.aiter_tables import emitter, padded

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
