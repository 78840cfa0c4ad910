"""aiter's tables: what the file's name, the columns and the gfx of a row say of a GEMM."""

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.workloads import importers
from kernelmark_dev.raising import tells

I8 = "batched_gemm_quant batch=1 m=5 n=48 k=64 a=i8 b=i8"
F4 = "batched_gemm_quant batch=1 m=5 n=48 k=64 a=f4e2m1 b=f4e2m1"
F8 = "gemm m=5 n=48 k=64 a=f8e4m3 b=f8e4m3 c=bf16"
FNUZ = "gemm m=5 n=48 k=64 a=f8e4m3fnuz b=f8e4m3fnuz c=bf16"
BF16 = "gemm m=5 n=48 k=64 a=bf16 b=bf16 c=bf16"
SCALED = ("scaleA", "scaleB")


@pytest.mark.parametrize(
    ("name", "arch", "problem", "lost"),
    [
        ("a4w4_blockscale_untuned_gemm.csv", "", F4, ()),
        ("dsv3_a4w4_blockscale_untuned_gemm.csv", "", F4, ()),
        ("a8w8_blockscale_untuned_gemm.csv", "gfx942", FNUZ, SCALED),
        ("a8w8_blockscale_untuned_gemm_ds_v3.csv", "gfx950", F8, SCALED),
        ("a8w8_blockscale_bpreshuffle_untuned_gemm.csv", "gfx950", F8, (*SCALED, "bpreshuffle")),
        # Before its tables had q_dtype_w, aiter tuned a8w8 for int8 and a8w8_bpreshuffle for fp8.
        ("a8w8_untuned_gemm.csv", "", I8, ()),
        ("a8w8_bpreshuffle_untuned_gemm.csv", "gfx942", FNUZ, (*SCALED, "bpreshuffle")),
        ("bf16_untuned_gemm.csv", "", BF16, ()),
    ],
)
@pytest.mark.parametrize("form", [None, "aiter-csv"])
def test_tables_of_sizes_alone_are_typed_by_their_name(read, name, arch, problem, lost, form):
    reading = read("M,N,K\n5,48,64\n", name, arch=arch, form=form)
    (call,) = reading.workload.calls
    assert reading.inputs[0].formats == ("aiter-csv",)
    assert call.problem.key.startswith(problem + " ")
    assert set(call.lost) == set(lost)


OPUS = "gfx,b,m,n,k,libtype,kernelId,splitK,us,kernelName\ngfx950,3,5,48,64,opus,311,1,7.8,f\n"
FP8_KERNEL = (
    "gfx,cu_num,M,N,K,kernelId,kernelName\n"
    "gfx950,256,5,48,64,1,_ZN5aiter39fp8gemm_bf16_blockscale_BpreShuffle_128x128E\n"
)


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        (
            *("B,M,N,K\n3,5,48,64\n", "a8w8_untuned_batched_gemm.csv"),
            "batched_gemm_quant batch=3 m=5 n=48 k=64 a=i8",
        ),
        (
            *("B,M,N,K\n3,5,48,64\n", "bf16_untuned_batched_gemm.csv"),
            "batched_gemm batch=3 m=5 n=48 k=64 a=bf16",
        ),
        # Small letters are the same columns.
        (
            *(OPUS, "dsv4_batched_gemm_a8w8_blockscale_mxscale_tuned.csv"),
            "batched_gemm batch=3 m=5 n=48 k=64 a=f8e4m3 b=f8e4m3",
        ),
        # The name of a kernel that computes in 8 bits holds the type of its output too.
        (FP8_KERNEL, "x.csv", F8),
    ],
)
def test_types_by_the_names_of_files_and_kernels(read, text, name, problem):
    (call,) = read(text, name).workload.calls
    assert call.problem.key.startswith(problem + " ")


def test_a_table_without_a_type_is_refused_unless_one_is_given(read):
    for text, name in (
        ("M,N,K\n5,48,64\n", "llama70B_untuned_gemm.csv"),
        ("gfx,cu_num,M,N,K,kernelId\ngfx942,80,5,48,64,1\n", "x.csv"),
    ):
        with pytest.raises(UsageError):
            read(text, name)
        (call,) = read(text, name, dtype="f16").workload.calls
        assert call.problem.key.startswith("gemm m=5 n=48 k=64 a=f16")


def test_a_shape_counts_once_whatever_it_was_tuned_on(read):
    """aiter drops rows of one key; a row for another GPU is the same shape again."""
    head = "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,us\n"
    row = "gfx950,256,5,48,64,False,torch.bfloat16,torch.bfloat16,False,False,asm,7.9\n"
    others = row.replace("gfx950", "gfx942"), row.replace("256", "128"), row.replace("asm", "ck")
    reading = read(head + row + "".join(others) + row, "bf16_tuned_gemm.csv")
    assert [call.count for call in reading.workload.calls] == [1]
    (note,) = reading.inputs[0].notes
    assert tells(note, archs=["gfx942", "gfx950"])


def test_rows_of_another_architecture_than_asked_for_are_left_out(read, told):
    text = "gfx,cu_num,M,N,K,libtype\ngfx942,80,5,48,64,ck\ngfx950,256,5,48,64,ck\n"
    name = "a8w8_blockscale_tuned_gemm.csv"
    both = read(text, name)
    assert {call.problem.dtypes["a"] for call in both.workload.calls} == {"f8e4m3", "f8e4m3fnuz"}
    one = read(text, name, arch="gfx950:sramecc+:xnack-")
    assert [call.problem.dtypes["a"] for call in one.workload.calls] == ["f8e4m3"]
    assert [line for line, _ in told(one)] == [2]


def test_8_bit_floats_of_no_architecture_are_told(read):
    name = "a8w8_blockscale_untuned_gemm.csv"
    assert len(read("M,N,K\n5,48,64\n", name).inputs[0].notes) == 1
    assert not read("M,N,K\n5,48,64\n", name, arch="gfx942").inputs[0].notes


@pytest.mark.parametrize(
    ("name", "column", "mode"),
    [
        ("a8w8_blockscale_untuned_gemm.csv", "M,N,K", "3"),
        ("a8w8_untuned_gemm.csv", "M,N,K,q_dtype_w", "2"),
    ],
)
def test_how_operands_are_scaled(read, name, column, mode):
    cell = ",torch.float8_e4m3fn" if "q_dtype_w" in column else ""
    (call,) = read(f"{column}\n5,48,64{cell}\n", name, arch="gfx950").workload.calls
    assert (call.blas["scaleA"], call.blas["scaleB"]) == (mode, mode)


MOE = "token,model_dim,inter_dim,expert,topk,act_type,dtype,q_type,us,_tag\n"
MOE_ROW = "16,64,32,8,2,ActivationType.Silu,torch.bfloat16,QuantType.No,9.5"


def test_the_last_cell_of_a_row_may_be_missing_if_it_is_a_tag(read, told, tmp_path):
    """aiter itself has 19 such rows; pandas fills the cell in."""
    text = f"{MOE}{MOE_ROW},\n{MOE_ROW.replace('16,', '32,', 1)}\n"
    reading = read(text, "tuned_fmoe.csv")
    assert not told(reading)
    assert [call.problem.dims["m"] for call in reading.workload.calls] == [16, 32]
    path = tmp_path / "tuned_fmoe.csv"
    assert len(importers.read(path, importers.Overrides()).results) == 2
    untagged = f"{MOE.replace(',_tag', '')}{MOE_ROW}\n{MOE_ROW.removesuffix(',9.5')}\n"
    assert [line for line, _ in told(read(untagged, path.name))] == [3]
    with pytest.raises(UsageError):
        importers.read(path, importers.Overrides())
